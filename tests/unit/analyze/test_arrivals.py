"""Which arrival ended a wait: numbers derived by hand from timelines of a few warps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import warplens
from tests.unit.render import fake
from warplens.analyze.arrivals import Arrivals, Basis, find_arrivals
from warplens.decode.flags import SpanFlag

RECORDING = Path(__file__).parents[3] / "recordings" / "rmsnorm_528x5120_h200.wlens"
BARRIER = [("work", "phase", ""), ("sync", "wait", "bar"), ("sync_2", "wait", "bar")]
PIPE = [("work", "phase", ""), ("full", "wait", "full"), ("filled", "arrive", "full"), ("lost", "wait", "")]


Row = tuple[int, int, int, int, dict[str, int]]


def found(trace: Any) -> Arrivals:
    return find_arrivals(trace.spans, trace.blocks, trace.launches, trace.sites)


def trace_of(rows: list[Row], sites: list[tuple[str, str, str]], arrivals: list[int | None] | None = None) -> Any:
    """Spans as (warp, site, start, end, other columns), in the order of each warp's records.

    `arrivals`: of each site, as the column; by default of none.
    """
    spans = [{"warp": w, "site": s, "start": a, "end": b, **more} for w, s, a, b, more in rows]
    trace = fake.of_spans(spans, sites)
    warps = trace.blocks["warps"].max()
    return replace(
        trace,
        launches=trace.launches.with_columns(warps_per_block=pl.lit(warps, pl.UInt16)),
        sites=trace.sites.with_columns(arrivals=pl.Series(arrivals or [None] * len(sites), dtype=pl.UInt32)),
    )


def by_span(trace: Any) -> dict[tuple[int, int], tuple[str, tuple[int, int] | None]]:
    """(warp, start) of each wait: basis, and (warp, start) of the arrival."""
    place = list(zip(trace.spans["warp"].to_list(), trace.spans["start_ns"].to_list(), strict=True))
    result = found(trace)
    return {
        place[wait]: (Basis(basis).name, None if arrival < 0 else place[arrival])
        for wait, arrival, basis in zip(
            result.wait.tolist(), result.arrival.tolist(), result.basis.tolist(), strict=True
        )
    }


def two_rounds(**more: int) -> Any:
    """Two warps at one barrier twice, at two sites: warp 1 comes last at 30, warp 0 at 70."""
    rows: list[Row] = [(0, 0, 0, 10, {}), (0, 1, 10, 32, {}), (0, 0, 32, 70, {}), (0, 2, 70, 72, {})]
    rows += [(1, 0, 0, 30, {}), (1, 1, 30, 32, more), (1, 0, 32, 50, {}), (1, 2, 50, 72, {})]
    return trace_of(rows, BARRIER)


def test_a_barrier_opens_when_the_last_warp_of_the_round_begins_to_wait() -> None:
    assert by_span(two_rounds()) == {
        (0, 10): ("INFERRED", (1, 30)),
        (0, 70): ("INFERRED", (0, 70)),
        (1, 30): ("INFERRED", (1, 30)),
        (1, 50): ("INFERRED", (0, 70)),
    }
    assert found(two_rounds()).of.tolist() == [2, 2, 2, 2]


def test_at_a_barrier_whose_number_is_not_known_nobody_waits_for_another() -> None:
    """`bar.sync 1 + group, 64` of two groups: warps 0 and 1 wait for each other, and 2 and 3."""
    rows: list[Row] = []
    for warp, begin in enumerate((10, 30, 20, 31)):
        rows += [(warp, 0, 0, begin, {}), (warp, 1, begin, 33, {})]
    sites = [("work", "phase", ""), ("sync", "wait", "barrier ?")]
    assert {basis for basis, _ in by_span(trace_of(rows, sites)).values()} == {"NO_RESOURCE"}
    sites[1] = ("sync", "wait", "barrier 1")
    assert {basis for basis, _ in by_span(trace_of(rows, sites)).values()} == {"INFERRED"}


def test_rounds_are_counted_in_the_order_of_records_for_each_block_and_launch_apart() -> None:
    one = two_rounds()
    blocks = pl.concat([one.blocks, one.blocks.with_columns(block=pl.lit(1, pl.UInt32))])
    spans = pl.concat([one.spans, one.spans.with_columns(block=pl.lit(1, pl.UInt32))])
    later = replace(one, spans=spans, blocks=blocks)
    assert found(later).arrival.tolist() == [5, 3, 5, 3, 13, 11, 13, 11]


def test_arrivals_at_a_resource_count_and_waits_there_do_not() -> None:
    rows: list[Row] = [(0, 1, 0, 25, {}), (0, 1, 30, 55, {}), (1, 2, 20, 20, {}), (1, 2, 50, 50, {})]
    rows += [(2, 2, 24, 24, {}), (2, 2, 40, 40, {})]
    assert by_span(trace_of(rows, PIPE)) == {
        (0, 0): ("INFERRED", (2, 24)),  # the later of 20 and 24
        (0, 30): ("INFERRED", (1, 50)),  # the later of 50 and 40
    }


RING = [
    ("full", "wait", "mbarrier full[]"),
    ("expect", "arrive", "mbarrier full[]"),
    ("issue", "mark", "mbarrier full[]"),
    ("empty", "wait", "mbarrier empty[]"),
    ("free", "arrive", "mbarrier empty[]"),
]


RING_COUNTS = [1, 1, 0, 2, 1]


def ring(sites: list[tuple[str, str, str]] = RING, counts: list[int | None] | None = None, **more: int) -> Any:
    """Warp 0 loads two stages by hardware, without waiting in the first round; warps 1 and 2 wait, work, set free.

    `counts`: arrivals of each site, by default one for "full" and one of each warp for "empty".
    """
    rows: list[Row] = [(0, 3, 0, 1, {}), (0, 1, 2, 2, {}), (0, 2, 3, 3, {})]
    rows += [(0, 3, 4, 5, {}), (0, 1, 6, 6, {}), (0, 2, 7, 7, more)]
    for warp in (1, 2):
        rows += [
            (warp, 0, 1, 20, {}),
            (warp, 4, 30, 30, {}),
            (warp, 0, 31, 40, {}),
            (warp, 4, 50 + warp, 50 + warp, {}),
        ]
    counts = counts or [*RING_COUNTS, *[None] * (len(sites) - len(RING_COUNTS))]
    return trace_of(rows, sites, counts)


def test_what_hardware_fills_came_between_its_issue_and_the_end_of_the_wait() -> None:
    told = by_span(ring())
    assert {told[warp, 1] for warp in (1, 2)} == {("HARDWARE", (0, 3))}  # not the arrival at 2, which counts bytes
    assert {told[warp, 31] for warp in (1, 2)} == {("HARDWARE", (0, 7))}


def test_a_wait_that_its_parity_lets_pass_gets_no_arrow_to_a_later_round() -> None:
    told = by_span(ring())
    assert told[0, 0] == ("TOO_LATE", None)
    assert told[0, 4] == ("TOO_LATE", None)


FREED = [("empty", "wait", "mbarrier empty"), ("free", "arrive", "mbarrier empty")]


def freed(ends: list[int], name: str = "mbarrier empty", counts: tuple[int | None, int | None] = (2, 1)) -> Any:
    """Warp 0 waits from 0, 40, 80, 120 until `ends`; warps 1 and 2 set free at 30 and 32, and every 40 cycles then."""
    rows: list[Row] = [(0, 0, 40 * turn, end, {}) for turn, end in enumerate(ends)]
    rows += [(w, 1, 28 + 2 * w + 40 * turn, 28 + 2 * w + 40 * turn, {}) for w in (1, 2) for turn in range(len(ends))]
    return trace_of(rows, [(own, kind, name) for own, kind, _ in FREED], [*counts])


def test_where_a_wait_passed_before_its_round_came_each_is_for_the_phase_before() -> None:
    assert by_span(freed([1, 41, 81, 121])) == {
        (0, 0): ("OPEN", None),
        (0, 40): ("INFERRED", (2, 32)),
        (0, 80): ("INFERRED", (2, 72)),
        (0, 120): ("INFERRED", (2, 112)),
    }
    assert by_span(freed([33, 73, 113, 153]))[0, 40] == ("INFERRED", (2, 72))  # none did: it is its own round


def test_in_a_ring_of_barriers_it_is_a_turn_of_the_ring_before() -> None:
    assert by_span(freed([1, 41, 81, 121], "mbarrier empty[2]")) == {
        (0, 0): ("OPEN", None),
        (0, 40): ("OPEN", None),
        (0, 80): ("INFERRED", (2, 32)),
        (0, 120): ("INFERRED", (2, 72)),
    }
    unknown = by_span(freed([1, 41, 81, 121], "mbarrier empty[]"))
    assert set(unknown.values()) == {("TOO_LATE", None)}  # how many barriers it holds is not known


def test_a_wait_that_neither_phase_explains_leaves_its_barrier_without_arrows() -> None:
    rows: list[Row] = [(0, 0, 0, 1, {}), (0, 0, 20, 31, {}), (1, 1, 32, 32, {}), (1, 1, 50, 50, {})]
    told = by_span(trace_of(rows, FREED, [1, 1]))
    assert set(told.values()) == {("TOO_LATE", None)}  # over at 31, and freed first at 32


@pytest.mark.parametrize(
    ("counts", "basis"),
    [
        ((64, 32), "INFERRED"),  # all lanes of both warps
        ((3, 1), "COUNT_DISAGREES"),  # another warp arrives without a mark
        ((1, 1), "COUNT_DISAGREES"),  # two phases passed where one was counted
        ((None, 1), "COUNT_UNKNOWN"),  # the count is no constant
        ((2, None), "COUNT_UNKNOWN"),  # by a predicate that lanes differ in
    ],
)
def test_as_many_arrivals_as_the_barrier_was_made_for_or_no_arrow(
    counts: tuple[int | None, int | None], basis: str
) -> None:
    told = by_span(freed([33, 73, 113, 153], counts=counts))
    assert told[0, 40] == (basis, (2, 72) if basis == "INFERRED" else None)
    shifted = by_span(freed([1, 41, 81, 121], counts=counts))
    assert shifted[0, 0] == ("OPEN", None)
    assert shifted[0, 40] == (basis, (2, 32) if basis == "INFERRED" else None)


def test_an_arrival_that_tells_of_bytes_counts_among_those_of_its_phase() -> None:
    counts: list[list[int | None]] = [[1, 1, 0, 2, 1], [2, 1, 0, 2, 1], [1, 1, 1, 2, 1], [1, None, 0, 2, 1]]
    told = [by_span(ring(counts=own))[1, 31] for own in counts]
    assert told[0] == ("HARDWARE", (0, 7))
    assert [basis for basis, _ in told[1:]] == ["COUNT_DISAGREES", "COUNT_DISAGREES", "COUNT_UNKNOWN"]


def test_one_round_with_another_number_of_arrivals_takes_the_arrows_of_its_block() -> None:
    sites = [
        ("empty", "wait", "mbarrier empty"),
        ("free", "arrive", "mbarrier empty"),
        ("too", "arrive", "mbarrier empty"),
    ]
    rows: list[Row] = [(0, 0, 0, 33, {}), (0, 0, 40, 73, {}), (1, 1, 30, 30, {}), (1, 2, 70, 70, {})]
    assert by_span(trace_of(rows, sites, [1, 1, 1]))[0, 0] == ("INFERRED", (1, 30))
    assert set(by_span(trace_of(rows, sites, [1, 1, 32])).values()) == {("COUNT_DISAGREES", None)}


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("mbarrier empty+8", "SEVERAL_NAMES"),
        ("mbarrier empty+32", "INFERRED"),
        ("mbarrier empty+8[]", "SEVERAL_NAMES"),
        ("mbarrier full+8", "INFERRED"),
    ],
)
def test_a_ring_of_which_a_stage_has_a_name_of_its_own_gets_no_arrows(other: str, told: str) -> None:
    sites = [("empty", "wait", "mbarrier empty[4]"), ("free", "arrive", "mbarrier empty[4]"), ("one", "arrive", other)]
    rows: list[Row] = [(0, 0, 0, 33, {}), (0, 0, 40, 73, {}), (1, 1, 30, 30, {}), (1, 1, 70, 70, {})]
    assert by_span(trace_of(rows, sites, [1, 1, 1]))[0, 40][0] == told


def test_of_rings_whose_size_is_not_known_each_ends_where_the_next_begins() -> None:
    rows: list[Row] = [(0, 0, 0, 33, {}), (1, 1, 30, 30, {})]
    free = ("free", "arrive", "mbarrier smem+64[]")
    for other, told in (("+96[]", "INFERRED"), ("+96", "SEVERAL_NAMES"), ("+56", "INFERRED"), ("+72", "SEVERAL_NAMES")):
        sites = [("empty", "wait", "mbarrier smem+64[]"), free, ("other", "wait", f"mbarrier smem{other}")]
        assert by_span(trace_of(rows, sites, [1, 1, 1]))[0, 0][0] == told, other
    sites = [("empty", "wait", "mbarrier smem+64[]"), free, ("next", "wait", "mbarrier smem+96[]")]
    sites.append(("first", "wait", "mbarrier smem+96"))
    assert by_span(trace_of(rows, sites, [1, 1, 1, 1]))[0, 0][0] == "INFERRED"


def test_an_issue_that_is_missing_leaves_its_waits_without_an_arrow() -> None:
    assert {by_span(ring(flags=int(SpanFlag.AFTER_GAP)))[warp, 1] for warp in (1, 2)} == {("RECORDS_MISSING", None)}
    once: list[Row] = [(0, 2, 3, 3, {}), (1, 0, 1, 20, {}), (1, 0, 31, 40, {})]  # under a predicate, say
    assert set(by_span(trace_of(once, RING)).values()) == {("COUNTS_DIFFER", None)}


@pytest.mark.parametrize("resource", ["mbarrier full[]", "mbarrier"])
def test_where_other_blocks_arrive_too_nothing_is_counted(resource: str) -> None:
    told = by_span(ring([*RING, ("theirs", "arrive", f"remote {resource}")]))
    assert {told[warp, 1] for warp in (1, 2)} == {("REMOTE", None)}
    assert told[0, 0] == ("TOO_LATE" if resource == "mbarrier full[]" else "REMOTE", None)


@pytest.mark.parametrize("resource", ["mbarrier full", "wgmma", "cp.async", "bulk copies", "flag", "earlier grid"])
def test_what_is_no_barrier_of_warps_is_not_opened_by_who_begins_to_wait(resource: str) -> None:
    rows: list[Row] = [(0, 0, 10, 40, {}), (1, 0, 30, 42, {})]
    assert set(by_span(trace_of(rows, [("wait", "wait", resource)])).values()) == {("NO_ARRIVAL", None)}
    assert set(by_span(trace_of(rows, [("wait", "wait", "barrier 0")])).values()) == {("INFERRED", (1, 30))}


def test_a_barrier_that_is_not_known_gets_no_arrow() -> None:
    rows: list[Row] = [(0, 0, 10, 40, {}), (1, 1, 30, 30, {})]
    sites = [("wait", "wait", "mbarrier"), ("free", "arrive", "mbarrier")]
    assert set(by_span(trace_of(rows, sites)).values()) == {("NO_RESOURCE", None)}


def test_the_same_id_on_both_sides_is_recorded_and_needs_no_counting() -> None:
    rows: list[Row] = [
        (0, 1, 0, 25, {"id": 7}),
        (0, 1, 30, 55, {"id": 8}),
        (1, 2, 20, 20, {"id": 7}),
        (1, 2, 50, 50, {"id": 8}),
    ]
    rows += [(2, 2, 22, 22, {"id": 7, "flags": int(SpanFlag.AFTER_GAP)})]  # records are lost, and that is no matter
    trace = trace_of(rows, PIPE)
    assert by_span(trace) == {(0, 0): ("RECORDED", (2, 22)), (0, 30): ("RECORDED", (1, 50))}
    assert found(trace).of.tolist() == [2, 1]


def test_an_id_that_comes_back_leaves_the_rounds_to_counting() -> None:
    rows: list[Row] = [
        (0, 1, 0, 25, {"id": 0}),
        (0, 1, 30, 55, {"id": 0}),
        (1, 2, 20, 20, {"id": 0}),
        (1, 2, 50, 50, {"id": 0}),
    ]
    assert by_span(trace_of(rows, PIPE)) == {(0, 0): ("INFERRED", (1, 20)), (0, 30): ("INFERRED", (1, 50))}


def test_different_numbers_of_rounds_give_no_arrival() -> None:
    rows: list[Row] = [(0, 1, 0, 25, {}), (0, 1, 30, 55, {}), (1, 2, 20, 20, {})]
    assert set(by_span(trace_of(rows, PIPE)).values()) == {("COUNTS_DIFFER", None)}
    uneven: list[Row] = [(0, 1, 10, 32, {}), (0, 2, 70, 72, {}), (1, 1, 30, 32, {})]
    assert set(by_span(trace_of(uneven, BARRIER)).values()) == {("COUNTS_DIFFER", None)}


def test_nothing_is_inferred_in_a_block_with_gaps_cut_spans_absent_warps_or_two_sms() -> None:
    for flag in (SpanFlag.AFTER_GAP, SpanFlag.UNENDED, SpanFlag.WRAPPED):
        assert set(by_span(two_rounds(flags=int(flag))).values()) == {("RECORDS_MISSING", None)}
    whole = two_rounds()
    absent = replace(whole, launches=whole.launches.with_columns(warps_per_block=pl.lit(3, pl.UInt16)))
    assert set(by_span(absent).values()) == {("WARPS_MISSING", None)}
    moved = replace(whole, blocks=whole.blocks.with_columns(sm_end=pl.lit(5, pl.UInt16)))
    assert set(by_span(moved).values()) == {("RECORDS_MISSING", None)}


def test_an_arrival_after_the_end_of_the_wait_is_none() -> None:
    rows: list[Row] = [(0, 1, 0, 19, {"id": 7}), (1, 2, 20, 20, {"id": 7})]
    assert by_span(trace_of(rows, PIPE)) == {(0, 0): ("TOO_LATE", None)}
    no_barrier: list[Row] = [(0, 1, 10, 20, {}), (1, 1, 30, 32, {})]
    assert by_span(trace_of(no_barrier, BARRIER)) == {(0, 10): ("TOO_LATE", None), (1, 30): ("NO_BARRIER", None)}


def test_one_wait_that_ends_too_early_shows_for_all_rounds_that_a_resource_is_no_barrier() -> None:
    rows: list[Row] = [(0, 1, 10, 40, {}), (0, 2, 50, 60, {}), (1, 1, 30, 42, {}), (1, 2, 70, 80, {})]
    assert by_span(trace_of(rows, BARRIER)) == {
        (0, 10): ("NO_BARRIER", None),
        (1, 30): ("NO_BARRIER", None),
        (0, 50): ("TOO_LATE", None),  # over at 60, when warp 1 had not come
        (1, 70): ("NO_BARRIER", None),
    }


def test_a_wait_without_a_resource_or_without_an_arrival_says_which() -> None:
    rows: list[Row] = [(0, 3, 0, 5, {}), (0, 1, 5, 9, {"id": 3}), (1, 2, 7, 7, {"id": 4})]
    assert by_span(trace_of(rows, PIPE)) == {(0, 0): ("NO_RESOURCE", None), (0, 5): ("NO_ARRIVAL", None)}
    alone: list[Row] = [(0, 1, 10, 20, {}), (1, 0, 0, 32, {})]
    assert by_span(trace_of(alone, BARRIER)) == {(0, 10): ("NO_ARRIVAL", None)}


def test_of_some_spans_alone_an_arrival_among_the_others_is_outside() -> None:
    kept = np.array([0, 1, 1, 1, 1, 0, 1, 1], bool)  # without warp 0's first span and the wait of warp 1 at 30
    part = found(two_rounds()).within(kept)
    assert part.wait.tolist() == [0, 2, 5]
    assert part.arrival.tolist() == [-1, 2, 2]
    assert part.basis.tolist() == [Basis.OUTSIDE, Basis.INFERRED, Basis.INFERRED]
    assert part.of.tolist() == [0, 2, 2]


def test_a_trace_without_spans_or_without_waits_has_no_arrivals() -> None:
    plain = fake.of_spans([{"start": 0, "end": 5}])
    assert len(found(plain).wait) == 0
    assert len(found(replace(plain, spans=plain.spans.clear(), blocks=plain.blocks.clear())).wait) == 0


def test_both_barriers_of_a_real_recording_open_behind_the_last_of_20_warps() -> None:
    trace = warplens.open(RECORDING)
    result = found(trace)
    assert len(result.wait) == 528 * 20 * 2
    assert (result.basis == Basis.INFERRED).all()
    assert (result.of == 20).all()
    start, end = (trace.spans["start_cycles"].to_numpy(), 0)
    end = start + trace.spans["duration_cycles"].to_numpy()
    lag = end[result.wait] - start[result.arrival]
    assert lag.min() >= 0
    assert np.median(lag) < 200  # cycles from the last arrival to the end of a wait
    assert (trace.spans["block"].to_numpy()[result.wait] == trace.spans["block"].to_numpy()[result.arrival]).all()
