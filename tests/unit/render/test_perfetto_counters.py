"""Arrows and counters of the Perfetto file: what belongs together, and which share of the warps is in each phase."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest

from tests.perfetto_reader import PerfettoTrace
from tests.unit.render import fake
from tests.unit.render.perfetto_cases import COPY, FILLED, FULL, SITES, TICK, TILE, exported, span, written
from warplens.demo import demo_trace
from warplens.render.perfetto.flows import find_flows
from warplens.render.perfetto.nesting import read_spans
from warplens.render.perfetto.packets import site_names


def arrows(found: PerfettoTrace) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """(warp, start) of the arrival and of the wait of each arrow."""
    ends: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for each in found.of_spans():
        for flow in each.flows:
            assert each.category not in ends[flow]
            ends[flow][each.category] = each.args["warp"], each.start_ns
    return {(pair["arrive"], pair["wait"]) for pair in ends.values()}


def test_arrows_join_arrivals_and_waits_of_the_same_block_resource_and_id() -> None:
    arrive = {"site": FILLED, "flags": 1}
    found = exported(
        {"start": 10, "end": 10, "warp": 0, "id": 1, **arrive},
        {"start": 12, "end": 12, "warp": 1, "id": 1, **arrive},
        {"start": 40, "end": 40, "warp": 1, "id": 1, **arrive},  # after both waits
        {"start": 15, "end": 15, "warp": 1, "id": 2, **arrive},  # nobody waits for 2
        {"start": 16, "end": 16, "warp": 1, **arrive},  # without an id
        {"start": 10, "end": 10, "warp": 0, "id": 1, "block": 1, **arrive},  # nobody waits in that block
        span(5, 20, FULL, warp=2, id=1),
        span(6, 30, FULL, warp=3, id=1),
        span(30, 31, FULL, warp=3),
    )
    assert arrows(found) == {((0, 10), (2, 5)), ((0, 10), (3, 6)), ((1, 12), (2, 5)), ((1, 12), (3, 6))}


def test_an_id_that_does_not_tell_rounds_apart_makes_no_arrows() -> None:
    rows = [{"start": n, "end": n, "site": FILLED, "flags": 1, "id": 0} for n in range(1000)]
    rows += [span(n, n + 1, FULL, warp=1, id=0) for n in range(1000)]
    assert arrows(exported(*rows)) == set()


def test_pairs_that_are_not_drawn_are_not_made_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 arrivals and waits of one id would be 4 * 10^10 pairs: this test would not end."""
    count = 200_000
    few = fake.of_spans([span(0, 1, FULL), {"start": 0, "end": 0, "site": FILLED, "flags": 1}], SITES)
    spans = few.spans[np.tile([0, 1], count)].with_columns(
        id=pl.lit(0, pl.UInt32), sequence=pl.int_range(2 * count, dtype=pl.UInt32)
    )
    assert len(find_flows(read_spans(spans, few.blocks), few.sites).ids) == 0
    monkeypatch.setattr("warplens.render.perfetto.flows.MAX_PAIRS", 4)
    assert len(find_flows(read_spans(spans.head(4), few.blocks), few.sites).ids) == 8


def shares_of(found: PerfettoTrace) -> dict[str, list[tuple[int, float]]]:
    """Counters of phases by name."""
    (group,) = (t for t in found.tracks.values() if t.name == "warps in each phase")
    return {track.name: found.counters[track.uuid] for track in found.children(group.uuid)}


def test_counters_of_phases_say_which_share_of_the_resident_warps_is_in_each() -> None:
    found = exported(
        span(0, 10), span(10, 20, FULL), span(0, 4, warp=1), span(5, 20, warp=1), span(8, 9, TILE), span(50, 60, FULL)
    )
    # two warps: both load, one from 4 to 5, both to 10, then one waits; the block is resident in 4..5 and 20..50 too
    assert shares_of(found) == {
        "load": [(0, 100), (4, 50), (5, 100), (10, 50), (20, 0)],
        "full [stage 0]": [(0, 0), (10, 50), (20, 0), (50, 50), (60, 0)],
    }
    assert {t.unit for t in found.tracks.values() if t.name == "load"} == {"% of resident warps"}


def test_a_share_is_a_mean_over_its_step() -> None:
    """1,000 ns make steps of 5 ns: of the step from 10 to 15, load takes 2 ns."""
    found = exported(span(0, 12), span(12, 1000, FULL))
    assert shares_of(found)["load"] == [(0, 100), (10, 40), (15, 0)]
    assert shares_of(found)["full [stage 0]"] == [(0, 0), (10, 60), (15, 100), (1000, 0)]


def test_time_without_resident_warps_has_no_steps_and_ranges_count_where_there_is_nothing_else() -> None:
    far = 10**12
    found = exported(span(0, 100, TILE), span(far, far + 100, TILE, launch=1), span(far + 50, far + 60, COPY, launch=1))
    assert shares_of(found) == {
        "tile": [(0, 100), (100, 0), (far, 100), (far + 100, 0)],
        "copy": [(0, 0), (far + 50, 100), (far + 60, 0)],
    }


def test_shares_of_spans_that_cross_warps_are_not_counted_and_marks_have_none() -> None:
    found = exported(span(0, 10), span(0, 10, FULL, flags=16, id=1), span(5, 5, TICK, flags=1))
    assert shares_of(found) == {"load": [(0, 100), (10, 0)], "full [stage 0]": [(0, 0)]}
    assert "warps in each phase" not in {t.name for t in exported(span(5, 5, TICK, flags=1)).tracks.values()}


def test_phases_of_one_name_have_counters_of_their_own() -> None:
    trace = fake.of_spans([span(0, 10), span(10, 30, TILE), span(30, 40, COPY)], [("a", "phase", "")] * 3)
    assert list(shares_of(written(trace))) == ["a", "a (2)", "a (3)"]


def test_shares_of_a_recording_are_overlaps_of_spans_over_those_of_its_blocks() -> None:
    trace = demo_trace("cpu")[0]
    spans, blocks = (table.filter(pl.col("block") < 60) for table in (trace.spans, trace.blocks))
    counters = shares_of(written(trace, arguments=False, blocks=range(60)))
    assert list(counters) == site_names(trace.sites)
    times = np.unique([at for values in counters.values() for at, _ in values])
    for index in range(0, len(times) - 1, 37):
        at, until = times[index : index + 2] - trace.origin_ns

        def overlap(end: pl.Expr, at: int = at, until: int = until) -> pl.Expr:
            return (pl.min_horizontal(end, until) - pl.max_horizontal("start_ns", at)).clip(0)

        resident = blocks.select((overlap(pl.col("end_ns")) * pl.col("warps")).sum()).item()
        end = pl.col("start_ns") + pl.col("duration_ns")
        inside = dict(spans.group_by("site").agg(overlap(end).sum()).rows())
        for site, values in enumerate(counters.values()):
            held = [percent for begin, percent in values if begin <= times[index]][-1]
            assert held == pytest.approx(100 * inside[site] / resident, abs=1 / 16)
