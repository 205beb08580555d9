"""Marks of single lanes on a real GPU: in branches, recursion, loops of different length, and without a recorder.

Needs an NVIDIA GPU of compute capability 8.0 or newer and NVRTC: pytest -m gpu. Which lanes come to a mark together is
the hardware's choice: the tests hold that each lane is in exactly one event where it should be, and in none elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

import warplens
from tests.marked import HEAD, kernel, losses, record
from warplens import layout
from warplens.decode.flags import SpanFlag
from warplens.trace import Trace

pytestmark = pytest.mark.gpu

POLICIES = ("packed", "staged", "stream", "live")
BRANCH = """
  r.phase(s::a);
  p[threadIdx.x] += 1;
  if (threadIdx.x % 32 < 5) {
    r.mark_lane(s::c, blockIdx.x);
    p[threadIdx.x] *= 2;
  }
  r.phase(s::b);
  p[threadIdx.x] += 1;"""
LOOP = """
  r.phase(s::a);
  for (unsigned i = 0; i < threadIdx.x % 32; ++i) {
    p[threadIdx.x] += i;
    r.mark_lane(s::c, i);
  }
  __syncwarp();  // lanes that leave a loop with such marks do not wait for the others
  r.phase(s::b);"""
RECURSION = (
    HEAD
    + """
template <bool T> __device__ __noinline__ float deeper(float v, unsigned left, unsigned level) {
  if (left == 0) return v;
  warplens::mark<s, T>(s::c, level);
  return deeper<T>(v * 1.5f + left, left - 1, level + 1) + v;
}
__device__ __noinline__ float plain(float v) {
  warplens::mark<s>(s::b);
  return v * v;
}
template <bool T> __global__ void k(float* p) {
  RECORDER
  p[threadIdx.x] = deeper<T>(p[threadIdx.x], threadIdx.x % 4, 0);
  if (threadIdx.x % 32 == 7) p[threadIdx.x] = plain(p[threadIdx.x]);
}"""
)
WITH_RECORDER = RECURSION.replace("RECORDER", "warplens::Recorder<s, T> r; r.phase(s::a);")
WITHOUT_RECORDER = RECURSION.replace("RECORDER", "")
ONE_LANE = """
  for (int i = 0; i < n; ++i) {
    r.phase(s::a);
    if (threadIdx.x % 32 == i % 32) r.mark_lane(s::c, i);
    p[threadIdx.x] += 1;
  }"""


def detached(trace: Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("flags") & int(SpanFlag.DETACHED) != 0)


def lanes_by_payload(trace: Trace, **where: int) -> dict[int, int]:
    """The lanes that came to the marks of site c, by their payload; none twice."""
    out: dict[int, int] = {}
    of_site = detached(trace).filter(site=2, **where)
    for payload, mask in of_site.select("payload", "id").iter_rows():
        assert out.get(payload, 0) & mask == 0, "a lane came twice"
        out[payload] = out.get(payload, 0) | mask
    return out


@pytest.mark.parametrize("policy", POLICIES)
def test_lanes_of_a_branch_are_one_event_inside_of_the_phase(policy: str) -> None:
    trace = record(kernel(BRANCH), 9, 96, policy=policy)
    assert losses(trace)["text"].to_list() == []
    for block in range(9):
        for warp in range(3):
            assert lanes_by_payload(trace, block=block, warp=warp) == {block: 0x1F}
    phases = trace.spans.filter(pl.col("site") == 0).select("block", "warp", "start_cycles", "duration_cycles")
    assert phases.height == trace.spans.filter(pl.col("site") == 1).height == 27
    marks = detached(trace).join(phases, on=["block", "warp"])
    since = marks["start_cycles"] - marks["start_cycles_right"]
    assert (since >= 0).all()
    assert (since <= marks["duration_cycles_right"]).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_of_different_length_in_each_lane_has_each_lane_once_a_turn(policy: str) -> None:
    trace = record(kernel(LOOP), 2, 64, policy=policy)
    assert losses(trace)["text"].to_list() == []
    for block in range(2):
        for warp in range(2):
            found = lanes_by_payload(trace, block=block, warp=warp)
            assert found == {i: 0xFFFFFFFF & ~((1 << i + 1) - 1) for i in range(31)}  # lanes above i


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("source", [WITH_RECORDER, WITHOUT_RECORDER], ids=["recorder", "no recorder"])
def test_called_and_recursive_functions_mark_without_a_handle(source: str, policy: str) -> None:
    trace = record(source, 4, 64, policy=policy)
    assert losses(trace)["text"].to_list() == []
    levels = {level: sum(1 << lane for lane in range(32) if lane % 4 > level) for level in range(3)}
    for block in range(4):
        for warp in range(2):
            assert lanes_by_payload(trace, block=block, warp=warp) == levels
            assert detached(trace).filter(block=block, warp=warp, site=1)["id"].to_list() == [1 << 7]
    assert trace.blocks["block"].to_list() == list(range(4))
    assert (trace.spans["start_ns"] >= 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_finds_no_space_is_counted_to_the_event(policy: str) -> None:
    capacity_bytes = layout.CONTROL_BYTES + 4000 * layout.CHUNK_BYTES
    options: dict[str, Any] = {"policy": policy, "capacity_bytes": capacity_bytes, "rounds": 0, "warmup": 0}
    trace = record(kernel(ONE_LANE, "float* p, int n"), 264, 128, np.int32(50), **options)
    launch = trace.launches.row(0, named=True)
    assert launch["lost_events"] > 0
    assert launch["events"] + launch["lost_events"] == 264 * 4 * 50 * 2
    assert 0 < detached(trace).height <= 4000


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_and_warps_that_are_left_out_have_no_detached_marks(policy: str) -> None:
    body = kernel(ONE_LANE, "float* p, int n")
    trace = record(body, 30, 128, np.int32(4), policy=policy, blocks=(3, 29), warps=(0, 2))
    assert detached(trace).group_by("block", "warp").len().sort("block", "warp").rows() == [
        (block, warp, 4) for block in (3, 29) for warp in (0, 2)
    ]
    trace = record(body, 30, 128, np.int32(4), policy=policy, every_block=7)
    assert sorted(set(detached(trace)["block"].to_list())) == [0, 7, 14, 21, 28]


def test_iterations_that_are_left_out_have_no_marks_of_lanes() -> None:
    body = """
  for (int i = 0; i < n; ++i) {
    r.iteration(i);
    r.phase(s::a);
    if (threadIdx.x % 32 == 3) r.mark_lane(s::c, i);
    p[threadIdx.x] += 1;
  }"""
    trace = record(kernel(body, "float* p, int n"), 1, 32, np.int32(10), every_iteration=4)
    assert detached(trace).sort("sequence")["payload"].to_list() == [0, 4, 8]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_kernel_computes_the_same_with_and_without_marks(policy: str) -> None:
    plain, marked = np.arange(4096, dtype=np.float32), np.arange(4096, dtype=np.float32)
    for values, source in ((plain, BRANCH.replace("r.mark_lane(s::c, blockIdx.x);", "")), (marked, BRANCH)):
        options: dict[str, Any] = {"policy": policy, "rounds": 0, "warmup": 0, "correct": False}
        warplens.Kernel(kernel(source), "k<true>").record(1, 96, values, **options)
    assert np.array_equal(plain, marked)
