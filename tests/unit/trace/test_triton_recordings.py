"""Recordings of Triton's kernels on an H200 open without a GPU, whole, and on a time axis that can be believed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import warplens

RECORDINGS = Path(__file__).parents[3] / "recordings"
CHANGED_NS = 3_000
"""The SM clock falls within the launch of a matmul, and that is told."""
STEADY_NS = 300


@pytest.mark.parametrize(
    ("name", "warps", "waits_for", "within_ns"),
    [
        ("attention", 32 * 4, {"wait barrier 0", "wait cp.async", "wait wgmma"}, CHANGED_NS),
        ("matmul", 16 * 8, {"wait barrier 0", "wait cp.async", "wait wgmma"}, CHANGED_NS),
        ("persistent_matmul", 9 * 8, {"wait wgmma", "wait bulk copies read", "wait mbarrier"}, CHANGED_NS),
        ("specialized_matmul", 16 * 12, {"wait barrier 1", "wait wgmma", "wait mbarrier"}, CHANGED_NS),
        ("layer_norm", 256 * 8, {"wait barrier 0"}, STEADY_NS),
        ("gated_mlp", None, set(), CHANGED_NS),
    ],
)
def test_a_recording_of_a_triton_program_is_whole(
    name: str, warps: int | None, waits_for: set[str], within_ns: float
) -> None:
    path = RECORDINGS / f"triton_{name}_h200.wlens"
    assert path.stat().st_size < 150_000
    trace = warplens.open(path)
    assert not trace.problems.filter(pl.col("severity") != "note").height, trace.problems
    assert all(uncertainty_ns < within_ns for uncertainty_ns in trace.launches["uncertainty_ns"])
    assert not trace.launches["lost_events"].sum()
    spans = trace.spans
    assert (spans["duration_ns"] >= 0).all()
    if warps is not None:
        assert spans.select("block", "warp").unique().height == warps
    assert trace.manifest["kernels"][0]["name"] in (name, "matmul_tma", "triton_per_fused__fused_rms_norm_0")
    waited = {wait for wait in waits_for if trace.sites["name"].str.contains(wait, literal=True).any()}
    assert waited == waits_for
    assert trace.sites["file"].is_not_null().all()
