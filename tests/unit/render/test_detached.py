"""Marks of single lanes as every renderer shows them: instants in their warp, out of the order of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import warplens
from tests import page as pages
from tests.synthesis import Event, FakeRecording, Warp, detached, fake_recording
from tests.unit.render.perfetto_cases import written
from tests.unit.render.test_text import printed
from warplens import layout
from warplens.decode.flags import SpanFlag
from warplens.layout import ChunkFlag, Verb
from warplens.render.phases import launch_groups
from warplens.render.report import report
from warplens.render.text import summary
from warplens.render.timeline import show
from warplens.trace import Trace

SITE = 9
LANES = 0x80000003


def recorded(*, warp: int = 2, cycles_ago: int = 900) -> FakeRecording:
    """RMSNorm-like, with a ninth site: one mark of lanes in one warp of each block, and a second one with a payload."""
    out = fake_recording(blocks=12)
    sites = out.manifest["site_sets"][0]["sites"]
    sites.append({**sites[-1], "id": SITE, "name": "slow path", "kind": "mark"})
    ((member, words),) = out.records.items()
    meta = words[:, layout.WORD_META]
    base = words[:, layout.WORD_BASE_HIGH].astype(np.int64) << 32 | words[:, layout.WORD_BASE_LOW]
    recorded = meta >> np.uint32(layout.META_FLAGS_SHIFT) & np.uint32(ChunkFlag.BLOCK_RECORD) != 0
    sm = dict(words[recorded][:, [layout.WORD_BLOCK, layout.BLOCK_RECORD_WORD + layout.BLOCK_SM]].tolist())
    own = meta & np.uint32((1 << layout.META_WARP_BITS) - 1) == warp
    chunks = [words]
    for (block, _, grid), cycles in zip(words[own, :3].tolist(), base[own].tolist(), strict=True):
        place = Warp(block=block, warp=warp, sm=sm[block], grid=grid, code_bits=layout.code_bits(SITE))
        for payload, ago in ((None, cycles_ago), (7, cycles_ago // 2)):
            mark = Event(Verb.MARK, cycles - ago, SITE, payload=payload)
            chunks.append(detached(mark, place, LANES))
    out.records[member] = np.concatenate(chunks).astype(np.uint32)
    return out


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace.from_recording(recorded())


def marks(trace: Trace) -> pl.DataFrame:
    return trace.spans.filter(pl.col("flags") & int(SpanFlag.DETACHED) != 0)


def test_the_marks_lie_inside_of_the_life_of_their_warps(trace: Trace) -> None:
    assert marks(trace).height == 24
    inside = marks(trace).join(trace.blocks, on=["launch", "block"], suffix="_of_block")
    assert (inside["start_ns"] >= inside["start_ns_of_block"]).all()
    assert (inside["start_ns"] <= inside["end_ns"]).all()
    assert trace.problems.filter(pl.col("severity") != "note").height == 0


def test_marks_of_lanes_make_no_roles_but_for_warps_that_have_nothing_else(trace: Trace) -> None:
    usual = Trace.from_recording(fake_recording(blocks=12))
    (with_marks,), (without,) = launch_groups(trace), launch_groups(usual)
    assert with_marks.roles == without.roles
    text = printed(summary(trace), width=120)
    (row,) = [line for line in text.splitlines() if "slow path" in line]
    assert row.split()[3:6] == ["mark", "24", "-"]


def test_show_draws_them_as_instants(trace: Trace) -> None:
    text = printed(show(trace, block=0), width=120)
    assert "slow path" in text
    assert "2 instants" in text


def test_perfetto_has_them_as_instants_in_their_phase_with_flags_and_lanes(trace: Trace) -> None:
    slices = [s for s in written(trace).slices if s.name == "slow path"]
    assert len(slices) == 24
    assert all(s.instant and s.parent is not None and s.parent.category in ("phase", "wait") for s in slices)
    assert {s.args["flags"] for s in slices} == {"INSTANT DETACHED"}
    assert {s.args["id"] for s in slices} == {LANES}
    assert {s.args.get("payload") for s in slices} == {None, 7}


def test_the_page_holds_each_mark_with_its_time_and_flags(trace: Trace, tmp_path: Path) -> None:
    page = report(trace, tmp_path / "page.html").path.read_text(encoding="utf-8")
    found = pages.spans_of(*pages.facts_and_streams(page))
    expected = trace.spans.select(pages.COLUMNS).cast(pl.Int64).sort(*pages.KEYS, "start_ns")
    assert found.equals(expected)


def test_a_file_gives_the_same_rows_back(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "lanes.wlens")
    assert warplens.open(tmp_path / "lanes.wlens").spans.equals(trace.spans)
