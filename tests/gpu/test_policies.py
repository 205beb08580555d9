"""Storage policies and narrowing on a real GPU: each policy records the same, and what is left out is left out.

Needs an NVIDIA GPU of compute capability 8.0 or newer and NVRTC: pytest -m gpu.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import warplens
from tests.marked import EVENTS_A_TURN, LOOP, kernel, losses, record
from warplens import layout
from warplens.capture import driver
from warplens.capture.arena import Arena, Window
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions

pytestmark = pytest.mark.gpu

POLICIES = ("packed", "staged", "stream", "live")
STEPS = """
  for (int i = 0; i < n; ++i) {
    r.iteration(i);
    r.phase(s::a, i);
    p[threadIdx.x] += 1;
    r.phase(s::b);
  }"""


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_records_a_loop_with_all_verbs(policy: str) -> None:
    trace = record(LOOP, 7, 96, np.int32(40), policy=policy)
    assert losses(trace)["text"].to_list() == []
    pushes = trace.spans.filter((pl.col("block") == 6) & (pl.col("warp") == 2) & (pl.col("site") == 0))
    assert pushes.sort("sequence")["payload"].to_list() == list(range(40))
    assert trace.spans.height == 7 * 3 * 40 * 3
    assert (trace.spans["duration_cycles"] >= 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_counts_what_does_not_fit_to_the_event(policy: str) -> None:
    capacity_bytes = layout.CONTROL_BYTES + 4000 * layout.CHUNK_BYTES
    options: dict[str, Any] = {"policy": policy, "capacity_bytes": capacity_bytes, "rounds": 0, "warmup": 0}
    trace = record(LOOP, 264, 128, np.int32(50), **options)
    launch = trace.launches.row(0, named=True)
    assert launch["lost_events"] > 0
    assert launch["events"] + launch["lost_events"] == 264 * 4 * 50 * EVENTS_A_TURN


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("turns", [0.9, 1.0, 1.1, 30.0])
def test_times_are_right_however_long_a_warp_waits(policy: str, turns: float) -> None:
    turn = 1 << (32 - layout.code_bits(3))
    wait_cycles = int(turns * turn)
    body = """
  for (int i = 0; i < 3; ++i) {
    r.phase(s::a);
    const long long begin = clock64();
    while (clock64() - begin < n) {}
    r.phase(s::b);
  }"""
    trace = record(
        kernel(body, "float* p, long long n"), 2, 64, np.int64(wait_cycles), policy=policy, rounds=0, warmup=1
    )
    assert "wrapped" not in trace.problems["kind"].to_list()
    waits = trace.spans.filter(pl.col("site") == 0)["duration_cycles"].to_list()
    assert len(waits) == 2 * 2 * 3
    assert min(waits) >= wait_cycles
    assert max(waits) < wait_cycles + 100_000


SPLIT = """#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b, c);
template <bool T> __global__ void k(float* p) {
  __shared__ float last;
  warplens::split<s, T>([&](auto& r) {
    r.phase(s::a);
    if (threadIdx.x == 0) last = p[blockIdx.x];
    r.wait(s::b);
    __syncthreads();
    r.phase(s::c);
    if (threadIdx.x == blockDim.x - 1) p[blockIdx.x] = last + 1.f;
  });
}"""


@pytest.mark.parametrize(
    ("chosen", "blocks"),
    [
        ({}, list(range(300))),
        ({"every_block": 64}, [0, 64, 128, 192, 256]),
        ({"blocks": (3, 31, 32, 299)}, [3, 31, 32, 299]),
        ({"blocks": (7,), "warps": (1,)}, [7]),
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_body_that_is_split_is_recorded_in_the_chosen_blocks_and_runs_in_all(
    policy: str, chosen: dict[str, Any], blocks: list[int]
) -> None:
    values = np.zeros(300, np.float32)
    warplens_kernel = warplens.Kernel(SPLIT, "k<true>")
    trace = warplens_kernel.record(300, 64, values, policy=policy, rounds=0, warmup=1, **chosen)
    assert losses(trace).is_empty()
    assert sorted(trace.spans["block"].unique().to_list()) == blocks
    assert trace.spans.height == len(blocks) * len(chosen.get("warps", (0, 1))) * 3
    assert (values == 3).all()  # warm-up: clean and traced, and the launch that is kept


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_of_a_list_alone_are_recorded(policy: str) -> None:
    trace = record(kernel("r.phase(s::a); p[0] += 1;"), 300, 64, policy=policy, blocks=(3, 31, 32, 299))
    assert trace.blocks["block"].to_list() == [3, 31, 32, 299]
    assert losses(trace)["text"].to_list() == []


@pytest.mark.parametrize("every", [2, 3, 6, 7])
def test_every_nth_block_is_recorded(every: int) -> None:
    trace = record(kernel("r.phase(s::a); p[0] += 1;"), 100, 64, every_block=every)
    assert trace.blocks["block"].to_list() == list(range(0, 100, every))


@pytest.mark.parametrize("policy", POLICIES)
def test_one_iteration_in_n_is_recorded_and_the_others_are_counted(policy: str) -> None:
    trace = record(kernel(STEPS, "float* p, int n"), 2, 64, np.int32(10), policy=policy, every_iteration=4)
    numbers = trace.spans.filter(pl.col("site") == 0).sort("block", "warp", "sequence")["payload"].to_list()
    assert numbers == [0, 4, 8] * 4
    assert losses(trace)["text"].to_list() == []
    gaps = trace.problems.filter(pl.col("kind") == "gap")
    assert gaps["count"].to_list() == [6] * 2 * 4  # three iterations of two phases, before the 4th and the 8th


class Graph:
    """A captured graph of launches of one traced kernel, with an arena that is watched from outside."""

    def __init__(self, nodes: int, blocks: int, threads: int) -> None:
        self.kernel = CudaKernel(kernel("r.phase(s::a); p[0] += 1; r.phase(s::b);"), "k<true>")
        self.arena = Arena(layout.CONTROL_BYTES + 100_000 * layout.CHUNK_BYTES)
        options = RecordOptions(blocks=tuple(range(blocks)))
        build, _ = self.kernel.traced_build((blocks, 1, 1), (threads, 1, 1), options, self.arena)
        self.memory = driver.DeviceMemory(4096)
        self.stream = driver.call("cuStreamCreate", 1)
        value = self.arena.descriptor().reshape(1)
        driver.copy_to_device(int(build.library.symbol(layout.DESCRIPTOR_SYMBOL) or 0), value)
        driver.call("cuStreamBeginCapture", self.stream, driver.bindings().CUstreamCaptureMode(2))
        for _ in range(nodes):
            arguments = ((self.memory.address,), (ctypes.c_void_p,))
            shape = (blocks, 1, 1, threads, 1, 1)
            driver.call("cuLaunchKernel", build.function.handle, *shape, 0, self.stream, arguments, 0)
        self.graph = driver.call("cuGraphInstantiate", driver.call("cuStreamEndCapture", self.stream), 0)
        self.build = build

    def replay(self, times: int) -> None:
        for _ in range(times):
            driver.call("cuGraphLaunch", self.graph, self.stream)
        driver.call("cuStreamSynchronize", self.stream)

    def grids(self) -> NDArray[np.uint32]:
        """What the chunks say of their launch."""
        return self.arena.drain(int(self.stream)).chunks[:, layout.WORD_GRID]


def test_a_captured_graph_is_switched_on_and_off_between_replays() -> None:
    graph = Graph(nodes=2, blocks=5, threads=64)
    graph.replay(3)
    assert len(graph.grids()) == 0
    graph.arena.choose(int(graph.stream))
    graph.replay(1)
    assert len(graph.grids()) == 2 * 5 * 2
    graph.arena.switch_off(int(graph.stream))
    graph.replay(4)
    assert len(graph.grids()) == 2 * 5 * 2


def test_a_window_of_launches_is_chosen_on_the_device_and_replays_are_told_apart() -> None:
    graph = Graph(nodes=1, blocks=7, threads=96)
    graph.arena.choose(int(graph.stream), window=Window(first=90, launches=3))
    graph.replay(100)
    launches, chunks = np.unique(graph.grids(), return_counts=True)
    assert launches.tolist() == [90, 91, 92]
    assert chunks.tolist() == [21, 21, 21]
