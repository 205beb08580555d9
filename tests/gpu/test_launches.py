"""Kinds of launches on a real GPU: clusters, cooperative and persistent kernels, several streams, a second GPU.

Needs an NVIDIA GPU of compute capability 9.0 or newer and NVRTC: pytest -m gpu. Graphs and programmatic dependent
launches stand in test_policies.py and benchmarks/stress.py.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.marked import HEAD, losses, record
from warplens.capture import driver
from warplens.trace import Trace

pytestmark = pytest.mark.gpu

POLICIES = ("packed", "staged", "stream", "live")
EXACT = {"rounds": 0, "warmup": 0, "correct": False, "audit": False}
CLUSTER = (
    HEAD
    + """template <bool T> __global__ void k(float* p) {
  warplens::Recorder<s, T> r;
  r.phase(s::a);
  p[threadIdx.x] += 1;
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  r.wait(s::b);
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  r.end_phase();
}"""
)
MEETS = (
    HEAD
    + """template <bool T> __global__ void k(float* p, unsigned* came) {
  warplens::Recorder<s, T> r;
  r.phase(s::a);
  p[threadIdx.x] += 1;
  __syncthreads();
  r.wait(s::b);
  if (threadIdx.x == 0) {
    atomicAdd(came, 1u);
    while (*(volatile unsigned*)came < gridDim.x) {}
  }
  __syncthreads();
  r.end_phase();
}"""
)
PERSISTENT = (
    HEAD
    + """template <bool T> __global__ void k(float* p, unsigned* next, unsigned tiles) {
  warplens::Recorder<s, T> r;
  __shared__ unsigned tile;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) tile = atomicAdd(next, 1u);
    __syncthreads();
    const unsigned own = tile;
    if (own >= tiles) return;
    r.range_push(s::a, own);
    p[threadIdx.x] += own;
    r.range_pop();
  }
}"""
)


def events(trace: Trace) -> int:
    launch = trace.launches.row(0, named=True)
    return int(launch["events"] + launch["lost_events"])


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_of_a_cluster_wait_for_each_other_and_are_all_recorded(policy: str) -> None:
    trace = record(CLUSTER, 64, 96, policy=policy, cluster=(4, 1, 1), **EXACT)
    assert losses(trace)["text"].to_list() == []
    assert trace.blocks["block"].to_list() == list(range(64))
    assert trace.spans.filter(site=0).height == trace.spans.filter(site=1).height == 64 * 3
    ends = trace.spans.filter(site=1).select(
        cluster=pl.col("block") // 4, end=pl.col("start_ns") + pl.col("duration_ns"), start="start_ns"
    )
    of_each = ends.group_by("cluster").agg(pl.col("start").max(), pl.col("end").min())
    late_ns = of_each["start"] - of_each["end"]  # no block passes before the last one has come
    assert late_ns.max() < trace.launches["uncertainty_ns"][0] + 100


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cooperative_launch_meets_in_all_blocks(policy: str) -> None:
    options: dict[str, Any] = {"policy": policy, "cooperative": True, **EXACT}
    trace = record(MEETS, 132, 128, np.zeros(1, np.uint32), **options)
    assert losses(trace)["text"].to_list() == []
    assert trace.spans.filter(site=1).height == 132 * 4


@pytest.mark.parametrize("policy", POLICIES)
def test_a_persistent_kernel_records_each_tile_once_a_warp(policy: str) -> None:
    trace = record(PERSISTENT, 132, 128, np.zeros(1, np.uint32), np.uint32(5000), policy=policy, **EXACT)
    assert losses(trace)["text"].to_list() == []
    assert trace.spans.group_by("payload").len()["len"].unique().to_list() == [4]
    assert trace.spans["payload"].n_unique() == 5000


def test_kernels_on_several_streams_at_once_are_recorded_apart() -> None:
    device = driver.ensure_context()
    context = driver.call("cuCtxGetCurrent")
    traces: dict[int, Trace] = {}

    def one(number: int) -> None:
        driver.call("cuCtxSetCurrent", context)
        stream = int(driver.call("cuStreamCreate", 1))
        tiles = 100 + number
        arguments = (np.zeros(1, np.uint32), np.uint32(tiles))
        traces[number] = record(PERSISTENT, 16, 64, *arguments, stream=stream, **EXACT)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device >= 0
    for number in range(4):
        assert traces[number].spans["payload"].n_unique() == 100 + number
        assert events(traces[number]) == (100 + number) * 2 * 2
        assert losses(traces[number])["text"].to_list() == []


def test_a_second_gpu_is_recorded_as_the_first() -> None:
    if driver.call("cuDeviceGetCount") < 2:
        pytest.skip("one GPU: run it where there are two")
    first = driver.ensure_context()
    before = driver.call("cuCtxGetCurrent")
    driver.call("cuCtxSetCurrent", driver.call("cuDevicePrimaryCtxRetain", driver.call("cuDeviceGet", 1)))
    try:
        trace = record(PERSISTENT, 132, 128, np.zeros(1, np.uint32), np.uint32(500), **EXACT)
    finally:
        driver.call("cuCtxSetCurrent", before)
    assert driver.ensure_context() == first
    assert losses(trace)["text"].to_list() == []
    assert trace.spans["payload"].n_unique() == 500
