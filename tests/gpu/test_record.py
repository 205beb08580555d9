"""Recording on a real GPU, from source to trace: shapes, losses, long waits, odd kernels, bad input.

Needs an NVIDIA GPU of compute capability 8.0 or newer and NVRTC: pytest -m gpu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import warplens
from tests.marked import EVENTS_A_TURN, HEAD, LOOP, kernel, losses, record
from warplens import errors

pytestmark = pytest.mark.gpu


def test_blocks_and_threads_of_three_dimensions_are_numbered_x_first() -> None:
    trace = record(kernel("r.phase(s::a); p[0] += 1; r.phase(s::b);"), (3, 2, 4), (8, 4, 3))
    assert losses(trace).is_empty()
    assert trace.blocks.height == 24
    assert trace.spans.height == 24 * 3 * 2
    last = trace.blocks.filter(pl.col("block") == 23).row(0, named=True)
    assert (last["x"], last["y"], last["z"]) == (2, 1, 3)


def test_a_recording_says_what_its_marks_measure() -> None:
    trace = record(kernel("r.phase(s::a); p[threadIdx.x] += 1; r.phase(s::b);"), 2, 32)
    assert trace.audit["verb"].to_list() == ["phase", "phase", "end"]
    assert trace.audit["site"].to_list() == [0, 1, None]
    without = record(kernel("r.phase(s::a);"), 2, 32, audit=False)
    assert without.audit.is_empty()
    assert without.manifest["kernels"][0]["audit"]["not_audited"] == "audit=False"


@pytest.mark.parametrize("threads", [1, 31, 33, 100, 1023])
def test_a_block_that_is_no_multiple_of_32_loses_nothing(threads: int) -> None:
    trace = record(kernel("r.phase(s::a, 7u); p[threadIdx.x] += 1; r.phase(s::b); r.mark(s::c);"), 5, threads)
    assert losses(trace).is_empty()
    assert trace.spans.height == 5 * -(-threads // 32) * 3
    assert trace.spans.filter(pl.col("site") == 0)["payload"].unique().to_list() == [7]


def test_one_thread_records_hundreds_of_events_in_order() -> None:
    trace = record(LOOP, 2, 1, np.int32(100))
    assert losses(trace).is_empty()
    pushes = trace.spans.filter((pl.col("block") == 1) & (pl.col("site") == 0)).sort("sequence")
    assert pushes["payload"].to_list() == list(range(100))
    assert (pushes["start_cycles"].diff().drop_nulls() > 0).all()


def test_lanes_that_leave_early_cost_no_event_that_their_warp_recorded_before() -> None:
    body = "r.phase(s::a); if ((int)threadIdx.x >= n) return; p[threadIdx.x] += 1; r.phase(s::b); r.phase(s::c);"
    trace = record(kernel(body, "float* p, int n"), 4, 128, np.int32(40), policy="packed")
    first = trace.spans.filter((pl.col("warp") == 0) & (pl.col("site") == 2))
    assert first.height == 4
    split = trace.spans.filter((pl.col("warp") == 1) & (pl.col("site") == 0))
    assert split.height == 4
    assert {"partial_warp", "nonuniform_marks"} & set(trace.problems["kind"])


def test_warps_that_leave_by_exit_are_named_as_missing() -> None:
    body = 'r.phase(s::a); p[threadIdx.x] += 1; r.phase(s::b); if (threadIdx.x >= 64) asm volatile("exit;");'
    trace = record(kernel(body), 4, 128)
    missing = trace.problems.filter(pl.col("kind") == "missing_warp")
    assert int(missing["count"].sum()) == 8
    assert trace.spans.filter(pl.col("warp") < 2).height == 4 * 2 * 2


def test_what_does_not_fit_is_counted_exactly() -> None:
    turns, warps = 1000, 64 * 8
    trace = record(LOOP, 64, 256, np.int32(turns), capacity_bytes=1 << 20)
    launch = trace.launches.row(0, named=True)
    assert launch["lost_events"] > 0
    assert launch["events"] + launch["lost_events"] == warps * turns * EVENTS_A_TURN


def test_an_arena_without_room_loses_all_events_and_counts_them() -> None:
    trace = record(LOOP, 8, 64, np.int32(10), capacity_bytes=36_000)
    launch = trace.launches.row(0, named=True)
    assert launch["events"] + launch["lost_events"] == 8 * 2 * 10 * EVENTS_A_TURN
    assert launch["lost_events"] > 0


@pytest.mark.parametrize("threads", [64, 33])
def test_a_wait_longer_than_the_clocks_low_half_is_never_told_wrong(threads: int) -> None:
    wait_cycles = 6 * 10**9
    body = "r.phase(s::a); long long t = clock64(); while (clock64() - t < n) {} r.phase(s::b); r.phase(s::c);"
    trace = record(kernel(body, "float* p, long long n"), 2, threads, np.int64(wait_cycles), rounds=0, warmup=0)
    waited = trace.spans.filter(pl.col("site") == 0)
    exact = (waited["duration_cycles"] - wait_cycles).is_between(0, 100_000).all()
    doubted = trace.problems.filter(pl.col("kind").str.contains("wrap|time")).height > 0
    assert exact or doubted
    if threads % 32:
        assert exact


@pytest.mark.parametrize("threads", [64, 63])
def test_a_wait_at_a_barrier_lasts_until_the_last_warp_has_come(threads: int) -> None:
    late_cycles = 100_000
    body = """
  if (threadIdx.x >= 32) for (long long t = clock64(); clock64() - t < n;) {}
  r.wait(s::a);
  __syncthreads();
  r.phase(s::b);"""
    trace = record(kernel(body, "float* p, long long n"), 1, threads, np.int64(late_cycles))
    waits = trace.spans.filter(pl.col("site") == 0).sort("warp")["duration_cycles"].to_list()
    assert waits[0] > 0.9 * late_cycles
    assert waits[1] < 0.1 * late_cycles


def test_a_mark_between_a_wait_and_its_barrier_does_not_hide_the_wait() -> None:
    body = """
  if (threadIdx.x >= 32) for (long long t = clock64(); clock64() - t < n;) {}
  r.wait(s::a);
  r.arrive(s::c);
  __syncthreads();
  r.phase(s::b);"""
    trace = record(kernel(body, "float* p, long long n"), 1, 64, np.int64(100_000))
    waits = trace.spans.filter(pl.col("site") == 0).sort("warp")["duration_cycles"].to_list()
    assert waits[0] > 90_000


def test_marks_of_one_elected_lane_hang_nothing_and_are_told() -> None:
    body = "if (threadIdx.x % 32 == 0) for (int i = 0; i < n; ++i) r.phase(s::a); r.phase(s::b);"
    trace = record(kernel(body, "float* p, int n"), 4, 64, np.int32(40), rounds=0, warmup=0, policy="packed")
    assert {"nonuniform_marks", "partial_warp"} & set(trace.problems["kind"])


def test_marks_of_lanes_that_outlast_others_are_told_as_missing() -> None:
    body = (
        "r.phase(s::a); r.phase(s::b); if (threadIdx.x % 32 >= 10) return; for (int i = 0; i < n; ++i) r.phase(s::c);"
    )
    trace = record(kernel(body, "float* p, int n"), 1, 64, np.int32(20), rounds=0, warmup=0, policy="packed")
    launch = trace.launches.row(0, named=True)
    missing = trace.problems.filter(pl.col("kind") == "gap")["count"].sum()
    assert launch["events"] + missing == 2 * 22
    assert missing > 0


def test_a_block_whose_first_warp_makes_no_mark_knows_its_sm() -> None:
    trace = record(kernel("if (threadIdx.x >= 32) { r.phase(s::a); r.phase(s::b); }"), 200, 64, rounds=0, warmup=0)
    assert trace.blocks["sm_begin"].is_between(0, 1022).all()
    assert trace.blocks["sm_begin"].n_unique() > 1


def test_recorded_warps_know_their_sm_where_the_first_one_is_left_out() -> None:
    trace = record(LOOP, 8, 64, np.int32(3), warps=(1,))
    assert trace.problems.filter(pl.col("kind") == "sm_unknown").height == 0


def test_a_grid_along_y_uses_the_whole_arena() -> None:
    trace = record(LOOP, (1, 600), 64, np.int32(1), capacity_bytes=1 << 20)
    assert trace.launches["lost_events"].item() == 0


def test_ranges_join_across_warps_by_their_id() -> None:
    source = r"""#include <warplens/warplens.cuh>
#define LIST(X)                                   \
  X(tile, "tile: größe 漢字 </script>", range, "") \
  X(full, "wait full", wait, "smem")              \
  X(make, "make", phase, "")
WARPLENS_SITES_FROM(j, LIST);
template <bool T> __global__ void k(float* p) {
  warplens::Recorder<j, T> r;
  for (unsigned i = 0; i < 4; ++i) {
    if (threadIdx.x < 32) {
      r.phase(j::make, i);
      r.range_start(j::tile, warplens::join(i));
      r.arrive(j::full, warplens::join(i));
      r.end_phase();
    } else {
      r.wait(j::full, warplens::join(i));
    }
    __syncthreads();
    if (threadIdx.x / 32 == 1) r.range_end(j::tile, warplens::join(i));
    r.end_phase();
  }
  p[threadIdx.x] = 1;
}"""
    trace = record(source, 3, 128)
    assert losses(trace).is_empty()
    tile = int(trace.sites.filter(pl.col("name").str.starts_with("tile"))["site"][0])
    joined = trace.spans.filter(pl.col("site") == tile)
    assert joined.height == 3 * 4
    assert sorted(joined["id"].unique().to_list()) == [0, 1, 2, 3]
    assert (joined["duration_ns"] >= 0).all()


def test_only_selected_blocks_and_warps_are_recorded() -> None:
    trace = record(kernel("r.phase(s::a); p[0] += 1; r.phase(s::b);"), 64, 256, every_block=8, warps=(0, 3))
    assert losses(trace).is_empty()
    assert sorted(trace.spans["block"].unique().to_list()) == list(range(0, 64, 8))
    assert sorted(trace.spans["warp"].unique().to_list()) == [0, 3]


def test_launches_are_kept_apart() -> None:
    trace = record(kernel("r.phase(s::a); p[0] += 1; r.phase(s::b);"), 16, 64, launches=3)
    assert trace.launches.height == 3
    assert trace.launches["grid_id"].n_unique() == 3
    assert trace.spans.group_by("launch").len()["len"].to_list() == [16 * 2 * 2] * 3


def test_the_result_of_a_traced_kernel_is_that_of_the_clean_one() -> None:
    values = np.arange(1024, dtype=np.float32)
    kernel_ = warplens.Kernel(LOOP, "k<true>")
    kernel_.record(1, 1024, values, np.int32(7), rounds=1, warmup=0)
    launches = 2 * (0 + 1) + 1
    assert np.array_equal(values, np.arange(1024, dtype=np.float32) + 7 * launches)


PHASES_IN_A_LOOP = """
  r.phase(s::a);
  float v = p[threadIdx.x];
  for (int i = 0; i < n; ++i) {
    r.phase(s::b);
    for (int j = 0; j < 64; ++j) v = v * 1.0001f + 1.0f;
    r.phase(s::c);
    for (int j = 0; j < 32; ++j) v = v * 0.9999f - 1.0f;
  }
  if (v == 12345.f) p[threadIdx.x] = v;"""


def test_corrections_are_measured_and_phases_sum_to_the_life_of_a_two_mark_build() -> None:
    source, shape = kernel(PHASES_IN_A_LOOP, "float* p, int n"), (264, 256)
    trace = record(source, *shape, np.int32(16), rounds=8, warmup=2, launches=4)
    found = trace.manifest["kernels"][0]["corrections"]
    assert found["not_measured"] is None
    assert 0 < trace.manifest["kernels"][0]["mark_cost_cycles"] < 200
    corrected = trace.spans.filter(pl.col("corrected_ns").is_not_null())
    assert corrected.height == trace.spans.height
    assert (corrected["corrected_uncertainty_ns"] > 0).all()
    anchor, rows = found["anchor"], found["rows"]
    assert anchor["not_measured"] is None
    assert anchor["resources"]["resident_blocks"] == trace.manifest["kernels"][0]["traced"]["resident_blocks"]
    two = warplens.Kernel(source, "k<true>", options=["-DWARPLENS_MARKS=0"])
    # By `packed`, though the traced build would spill by it and is of another policy, which begins a warp otherwise.
    options: dict[str, Any] = {"rounds": 0, "warmup": 2, "launches": 4, "policy": "packed"}
    lives = two.record(*shape, np.zeros(4096, np.float32), np.int32(16), **options)
    assert lives.spans.height == 4 * 264 * 8
    warps = trace.spans.select("launch", "block", "warp").n_unique()
    stated = max(apart / factor for apart, factor in zip(anchor["factor_uncertainty"], anchor["factor"], strict=True))
    whole = float(corrected["corrected_ns"].sum()) / warps
    life = float(lives.spans["duration_ns"].to_numpy().mean())
    assert abs(whole / life - 1) < 0.03 + stated
    sums = {"life": 0.0, "phase": 0.0}
    for verb, role, spans, duration, cost in zip(
        *(rows[name] for name in ("verb", "role", "spans", "duration_cycles", "cost_cycles")), strict=True
    ):
        sums[verb] += spans * (1 if verb == "life" else (duration - cost) * anchor["factor"][role])
    its_life = float(lives.spans["duration_cycles"].to_numpy().mean())
    assert abs(sums["phase"] / sums["life"] / its_life - 1) < 0.03 + stated


def test_corrections_that_were_not_asked_for_say_so() -> None:
    body = kernel("r.phase(s::a); p[0] += 1; r.phase(s::b);")
    for options, why in (({"rounds": 1}, "rounds=1"), ({"rounds": 5, "correct": False}, "correct=False")):
        trace = record(body, 4, 64, **options)
        assert why in trace.manifest["kernels"][0]["corrections"]["not_measured"]
        assert trace.spans["corrected_ns"].null_count() == trace.spans.height


def test_a_saved_trace_opens_as_it_was(tmp_path: Any) -> None:
    trace = record(LOOP, 4, 64, np.int32(20), note="n=20")
    for records in (False, True):
        path = tmp_path / f"{records}.wlens"
        trace.save(path, records=records, tables=not records)
        again = warplens.open(path)
        assert again.spans.equals(trace.spans)
        assert again.note == "n=20"


@pytest.mark.parametrize(
    ("source", "args", "error", "text"),
    [
        ("template <bool T> __global__ void k(float* p) {}", (1, 32), errors.SitesError, "declares no sites"),
        (HEAD + "template <bool T> __global__ void k(float* p) { wrong; }", (1, 32), errors.CompileError, "wrong"),
        (LOOP, (1, 2048, np.int32(1)), errors.UsageError, "2,048 threads"),
        (LOOP, (1, 64), errors.UsageError, "takes 2 arguments"),
        (LOOP, (0, 64, np.int32(1)), errors.UsageError, "positive"),
        (LOOP, (1, 64, np.float64(1)), errors.UsageError, "8 bytes"),
    ],
)
def test_bad_input_is_refused_before_the_launch(source: str, args: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        record(source, *args)


def test_a_launch_with_too_much_shared_memory_names_what_was_asked_for() -> None:
    with pytest.raises(errors.DeviceError, match="shared memory"):
        record(LOOP, 1, 64, np.int32(1), shared_bytes=1 << 20)


def test_arrays_of_torch_cupy_and_dlpack_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    cupy = pytest.importorskip("cupy")

    class Exported:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.tensor.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    kernel_ = warplens.Kernel(LOOP, "k<true>")
    exported = torch.zeros(64, device="cuda")
    for array in (torch.zeros(64, device="cuda"), cupy.zeros(64, "float32"), Exported(exported)):
        trace = kernel_.record(2, 64, array, np.int32(5), rounds=0, warmup=0)
        assert losses(trace).is_empty()
    assert exported.cpu().tolist()[0] > 0
    with pytest.raises(errors.UsageError, match="cpu"):
        kernel_.record(2, 64, torch.zeros(64), np.int32(5))


ILLEGAL = """
from tests.marked import kernel, record
record(kernel("r.phase(s::a); *(volatile float*)16 = 1.f; r.phase(s::b);"), 1, 32)
"""


def test_an_illegal_access_is_told_as_the_kernels_failure() -> None:
    # In a process of its own, whose context it makes unusable.
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", ILLEGAL], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.search(r"DeviceError: .*ILLEGAL_ADDRESS", done.stderr), done.stderr
