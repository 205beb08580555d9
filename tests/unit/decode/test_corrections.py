"""What marks cost, from launches with a planted cost: the numbers are derived by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.corrections import corrections
from tests.synthesis import BlockRecord, Clock, Event, Warp, calibration, encode_warp, lose, manifest
from warplens import layout
from warplens.decode.arrays import U32
from warplens.decode.corrected import correct, mean_half_widths, overcorrected, role_factors
from warplens.decode.corrections import LaunchTimes, UnfitError, estimate, half_width, measure, middle_mean
from warplens.decode.flags import SpanFlag
from warplens.layout import ChunkFlag, Control, Verb

CLOCK = Clock(offset_cycles=8_000_000_000_000)
SITES = [("load", "phase", ""), ("wait", "wait", "bar"), ("store", "phase", ""), ("tile", "range", "")]
BLOCKS, WARPS = 12, 3
WORK = ((Verb.PHASE, 1, 1000), (Verb.WAIT, 2, 200), (Verb.PHASE, 3, 300))
"""Verb, site and cycles of work of each phase."""
COST = 40
"""Cycles that a mark takes."""


def warp_events(begin: int, copies: int, *, work: Any = WORK, cost: int = COST, slow: int = 0) -> list[Event]:
    """A warp that marks each phase; all marks but the first are taken `copies` times, `cost` cycles each."""
    now, events = begin, [Event(work[0][0], begin, work[0][1])]
    for index, (verb, site, cycles) in enumerate(work):
        if index:
            events += [Event(verb, now + cost * copy, site) for copy in range(copies)]
            now += cost * (copies - 1)
        now += cost + cycles + slow
    return [*events, Event(Control.END, now)]


def launch(copies: int, *, slow: int = 0, **how: Any) -> U32:
    """Chunks of a launch of BLOCKS blocks of WARPS warps."""
    parts = []
    for block in range(BLOCKS):
        begin = CLOCK.cycles(1_000_000) + 5000 * block
        for warp in range(WARPS):
            events = warp_events(begin + 7 * warp, copies, slow=slow, **how)
            where = Warp(block=block, warp=warp, clock=CLOCK, code_bits=layout.code_bits(len(SITES)))
            record = BlockRecord(events[0].t_cycles, 0, layout.sites_hash("rmsnorm")) if warp == 0 else None
            parts.append(encode_warp(events, where, block_record=record))
    return np.concatenate(parts)


def test_warps_without_the_block_record_count_where_no_calibration_lies_beside_the_launch() -> None:
    """Straight-line builds tell the low half of a clock; only a block's first warp says when it began."""
    near = launch(1)
    near[:, layout.WORD_META] |= np.uint32(int(ChunkFlag.NEAR) << layout.META_FLAGS_SHIFT)
    near[:, layout.WORD_META] &= ~np.uint32(int(ChunkFlag.EXACT) << layout.META_FLAGS_SHIFT)
    found = measure(near, facts() | {"calibration": []})
    assert np.array_equal(found.count, times(1).count)
    assert found.count[WARPS - 1].sum() > 0


def facts(warps: int = WARPS, **kernel: Any) -> dict[str, Any]:
    made = manifest(launches=[{"grid": [BLOCKS, 1, 1], "block": [32 * warps, 1, 1]}], sites=SITES, sm_count=1)
    made["kernels"][0] |= kernel
    return made | {"calibration": [calibration([CLOCK], when, t) for when, t in (("before", 0), ("after", 20_000_000))]}


def times(copies: int, **how: Any) -> LaunchTimes:
    return measure(launch(copies, **how), facts(), copies=copies)


def rows_of(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The rows by site (0: life) of a single role."""
    rows = found["rows"]
    return {site: {name: rows[name][i] for name in rows} for i, site in enumerate(rows["site"])}


def test_a_launch_tells_durations_lives_and_the_distance_of_copies() -> None:
    once, twice = times(1), times(2)
    assert once.count.tolist() == [[BLOCKS, BLOCKS, BLOCKS, BLOCKS, 0]] * WARPS
    assert once.mean_cycles[0, :4].tolist() == [1620, 1040, 240, 340]
    assert twice.mean_cycles[0, :4].tolist() == [1700, 1040, 280, 380]
    assert not len(once.apart_cycles)
    assert set(twice.apart_cycles.tolist()) == {COST}
    assert len(twice.apart_cycles) == BLOCKS * WARPS * 2


def test_a_planted_cost_is_found_and_the_first_mark_keeps_its_own() -> None:
    found = estimate([times(1)] * 4, [times(2)] * 4)
    rows = rows_of(found)
    assert found["mark_cycles"] == {"p10": COST, "p50": COST, "p90": COST}
    assert found["roles"] == [[0, 1, 2]]
    assert {site: row["cost_cycles"] for site, row in rows.items()} == {0: 80, 1: 0, 2: 40, 3: 40}
    assert {site: row["verb"] for site, row in rows.items()} == {0: "life", 1: "phase", 2: "wait", 3: "phase"}
    assert {site: row["duration_cycles"] for site, row in rows.items()} == {0: 1620, 1: 1040, 2: 240, 3: 340}
    assert {row["spans"] for row in rows.values()} == {BLOCKS * WARPS * 4}


def test_three_copies_tell_the_cost_of_one() -> None:
    rows = rows_of(estimate([times(1)] * 4, [times(3)] * 4, copies=3))
    assert [rows[site]["cost_cycles"] for site in (0, 1, 2, 3)] == [80, 0, 40, 40]


def test_the_half_width_is_that_of_students_t_for_as_many_further_launches() -> None:
    # Costs 38, 40, 42, 44 of four launches: s = 2.582, t(3) = 2.353, and one cycle of resolution.
    twice = [times(2, slow=slow) for slow in (-2, 0, 2, 4)]
    row = rows_of(estimate([times(1)] * 4, twice))[2]
    assert row["cost_cycles"] == 41
    expected = math.hypot(2.353 * math.sqrt(20 / 3) * math.sqrt(2 / 4), 1)
    assert row["cost_uncertainty_cycles"] == pytest.approx(expected, abs=0.01)
    assert half_width([5, 5, 5, 5]) == 1


# ---- the anchor: the life in a build with two marks -----------------------------------------------------------
TWO = ((Verb.PHASE, 1, 1500),)
"""What a warp does, in the build that marks its begin alone: the life is 1500 and the 40 of the first mark, 1540."""


def disturbed(copies: int, slow: int = 20) -> LaunchTimes:
    """A launch in which each of the three phases lasts 20 cycles more, however often marks are taken: indirect cost."""
    return times(copies, slow=slow)


def test_what_copies_do_not_tell_is_shared_out_so_that_phases_sum_to_the_life_with_two_marks() -> None:
    # One copy: phases of 1060, 260 and 360 make a life of 1680. Doubling tells 40 each of the second and third: 1060,
    # 220 and 320 are 1600, and the warp lives 1540 without these marks: what is too much are 60 of 1600.
    found = estimate([disturbed(1)] * 4, [disturbed(2)] * 4, [times(1, work=TWO)] * 4)
    rows = rows_of(found)
    assert {site: (row["duration_cycles"], row["cost_cycles"]) for site, row in rows.items()} == {
        0: (1680, 80),
        1: (1060, 0),
        2: (260, 40),
        3: (360, 40),
    }
    anchor = found["anchor"]
    assert anchor["not_measured"] is None
    assert (anchor["life_cycles"], anchor["factor"]) == ([1540], [0.9625])
    assert role_factors(found) == [(0.9625, 0.0)]
    corrected_cycles = [0.9625 * (rows[s]["duration_cycles"] - rows[s]["cost_cycles"]) for s in (1, 2, 3)]
    assert corrected_cycles == [1020.25, 211.75, 308]
    assert sum(corrected_cycles) == anchor["life_cycles"][0]


def test_without_indirect_cost_the_factor_is_one() -> None:
    found = estimate([times(1)] * 4, [times(2)] * 4, [times(1, work=TWO)] * 4)
    assert found["anchor"]["factor"] == [1.0]


def test_the_factor_has_the_error_of_both_lives_and_a_common_drift_cancels() -> None:
    # Lives with two marks of 1540 by -2, 0, 2 and 4 (s = 2.582), the middle half is 1541; nothing else moves.
    bare = [times(1, work=TWO, slow=slow) for slow in (-2, 0, 2, 4)]
    anchor = estimate([disturbed(1)] * 4, [disturbed(2)] * 4, bare)["anchor"]
    chance = 2.353 * math.sqrt(20 / 3) * math.sqrt(2 / 4)
    assert anchor["life_cycles"] == [1541]
    assert anchor["factor_uncertainty"][0] == pytest.approx(chance / 1600, abs=1e-5)
    assert anchor["marks_uncertainty_cycles"][0] == pytest.approx(math.hypot(chance, 1), abs=0.01)
    # Launches in which all builds take a tenth longer say the same of the factor.
    slower = [{"work": tuple((v, s, c * 11 // 10) for v, s, c in work), "cost": 44} for work in (WORK, TWO)]
    once, twice = ([times(n, **slower[0]), times(n)] * 2 for n in (1, 2))
    drifting = estimate(once, twice, [times(1, **slower[1]), times(1, work=TWO)] * 2)
    assert drifting["anchor"]["factor_uncertainty"][0] < 1e-5
    assert rows_of(drifting)[1]["corrected_uncertainty_cycles"] == pytest.approx(
        math.hypot(2.353 * 104 / math.sqrt(3) * math.sqrt(2 / 4), 1), abs=0.01
    )


def test_an_odd_launch_does_not_move_the_anchor() -> None:
    assert middle_mean(np.array([4632.0, 4635, 4654, 4666, 4681, 4702, 4746, 5247])) == (4654 + 4666 + 4681 + 4702) / 4
    assert middle_mean(np.array([4.0, 1, 90, 2])) == 3


def test_without_launches_of_the_two_mark_build_durations_are_corrected_directly_and_the_file_says_why() -> None:
    found = estimate([disturbed(1)] * 4, [disturbed(2)] * 4, not_anchored="it holds 4 blocks")
    assert found["anchor"] == {"not_measured": "it holds 4 blocks"}
    assert role_factors(found) == [(1.0, 0.0)]


def test_a_role_that_the_two_mark_build_does_not_show_is_corrected_directly() -> None:
    chunks, doubled, bare = launch(1), launch(2), launch(1, work=TWO)
    other = ((Verb.PHASE, 1, 100), (Verb.WAIT, 2, 5000), (Verb.PHASE, 3, 300))
    for array, copies in ((chunks, 1), (doubled, 2)):
        mine = array[:, layout.WORD_META] & 63 == 2
        array[mine] = launch(copies, work=other, cost=10)[mine]
    bare = bare[bare[:, layout.WORD_META] & 63 != 2]
    own = measure(chunks, facts()), measure(doubled, facts(), copies=2), measure(bare, facts())
    found = estimate(*([each] * 4 for each in own))
    assert found["anchor"]["factor"] == [1.0, None]
    assert role_factors(found) == [(1.0, 0.0), (1.0, 0.0)]


def test_a_mark_that_hides_behind_a_wait_costs_less_than_nothing_there() -> None:
    # The doubled launch waits 60 cycles less: the barrier opens when it would have.
    shorter = ((Verb.PHASE, 1, 1000), (Verb.WAIT, 2, 140), (Verb.PHASE, 3, 300))
    rows = rows_of(estimate([times(1)] * 4, [times(2, work=shorter)] * 4))
    assert rows[2]["cost_cycles"] == -20
    assert rows[0]["cost_cycles"] == 20


def test_what_a_mark_costs_once_in_many_counts_by_its_share() -> None:
    # In one block of twelve of the single launch, and in two of the doubled, a write takes 96 cycles more in each
    # phase: 8 and 16 on average, so that a mark costs the copy's 40, and 8 more.
    def written(copies: int, share: int) -> U32:
        slow = launch(copies, slow=96)
        return np.where((slow[:, layout.WORD_BLOCK] < share)[:, None], slow, launch(copies))

    once, twice = measure(written(1, 1), facts()), measure(written(2, 2), facts(), copies=2)
    assert once.mean_cycles[0, 1] == 1040 + 8
    rows = rows_of(estimate([once] * 4, [twice] * 4))
    assert [rows[site]["cost_cycles"] for site in (1, 2, 3)] == [8, 48, 48]


def test_ranges_are_paired_by_their_first_copies() -> None:
    marks: list[tuple[Verb | Control, int, int | None]] = [
        (Verb.PHASE, 1, None),
        (Verb.RANGE_PUSH, 4, 7),
        (Control.RANGE_POP, 0, None),
        (Verb.PHASE, 3, None),
    ]

    def events(copies: int) -> list[Event]:
        now, out = CLOCK.cycles(1_000_000), []
        for number, (verb, site, payload) in enumerate(marks):
            for _ in range(copies if number else 1):
                out.append(Event(verb, now, site, payload=payload))
                now += 50
            now += 450
        return [*out, Event(Control.END, now)]

    def of(copies: int) -> LaunchTimes:
        where = Warp(clock=CLOCK, code_bits=layout.code_bits(len(SITES)))
        made = events(copies)
        record = BlockRecord(made[0].t_cycles, 0, layout.sites_hash("rmsnorm"))
        return measure(encode_warp(made, where, block_record=record), facts(warps=1), copies=copies)

    once, twice = of(1), of(2)
    assert once.mean_cycles[0].tolist()[4] == 500
    assert twice.mean_cycles[0].tolist()[4] == 550
    rows = rows_of(estimate([once] * 4, [twice] * 4))
    assert rows[4]["verb"] == "range_push"
    assert rows[4]["cost_cycles"] == 50


def test_a_site_with_two_verbs_is_left_out() -> None:
    both = ((Verb.PHASE, 1, 1000), (Verb.WAIT, 2, 200), (Verb.PHASE, 2, 300))
    found = estimate([times(1, work=both)] * 4, [times(2, work=both)] * 4)
    assert sorted(rows_of(found)) == [0, 1]


def test_warps_that_do_the_same_share_a_role_and_others_do_not() -> None:
    chunks, doubled = launch(1), launch(2)
    other = ((Verb.PHASE, 1, 100), (Verb.WAIT, 2, 5000), (Verb.PHASE, 3, 300))
    for array, copies in ((chunks, 1), (doubled, 2)):
        mine = array[:, layout.WORD_META] & 63 == 2
        array[mine] = launch(copies, work=other, cost=10)[mine]
    found = estimate([measure(chunks, facts())] * 4, [measure(doubled, facts(), copies=2)] * 4)
    assert found["roles"] == [[0, 1], [2]]
    rows = found["rows"]
    of = {(r, s): c for r, s, c in zip(rows["role"], rows["site"], rows["cost_cycles"], strict=True)}
    assert (of[0, 3], of[1, 3]) == (40, 10)


@pytest.mark.parametrize(
    ("once", "twice", "text"),
    [
        (lambda: times(1), lambda: measure(launch(1), facts(), copies=2), "do not come so"),
        (lambda: times(1), lambda: measure(launch(2)[:0], facts(), copies=2), "nothing was recorded"),
        (
            lambda: measure(lose(launch(1, work=WORK * 12), range(0, BLOCKS * WARPS * 2, 2)), facts()),
            lambda: times(2),
            "most warps lost records",
        ),
        (lambda: [times(1)] * 3, lambda: [times(2)] * 3, "4 are needed"),
    ],
)
def test_records_that_cannot_tell_give_a_reason(once: Any, twice: Any, text: str) -> None:
    def both() -> None:
        estimate(*(own if isinstance(own, list) else [own] * 4 for own in (once(), twice())))

    with pytest.raises(UnfitError, match=text):
        both()


def test_warps_that_lost_records_are_left_out_and_the_others_count() -> None:
    chunks = launch(1, work=WORK * 12)
    odd = np.flatnonzero((chunks[:, layout.WORD_BLOCK] == 2) & (chunks[:, layout.WORD_SEQUENCE] == 0))
    found = measure(lose(chunks, odd.tolist()), facts())
    assert found.count[:, 0].tolist() == [BLOCKS - 1] * WARPS
    assert found.mean_cycles[0, 1] == 1040


# ---- corrected durations --------------------------------------------------------------------------------------
def corrected(found: Any, *, flags: int = 0, durations: tuple[int, ...] = (100, 10, 4), rate: float = 2.0) -> Any:
    made = facts(corrections=found)
    size = len(durations)
    return correct(
        made,
        np.array([rate]),
        launch=np.zeros(size, np.uint32),
        warp=np.zeros(size, np.uint8),
        site=np.full(size, 1, np.uint16),
        duration_ns=np.array(durations),
        flags=np.full(size, flags, np.uint16),
    )


def test_a_corrected_duration_is_the_raw_one_less_the_cost_and_may_be_negative() -> None:
    # 20 cycles at 2 cycles/ns are 10 ns; 6 and 8 cycles of error are 10 together, 5 ns.
    out = corrected(corrections({2: 20.0}, cost_error=6.0, mark_error=8.0))
    assert out.corrected_ns.tolist() == [90, 0, -6]
    assert out.uncertainty_ns.tolist() == [5, 5, 5]
    assert out.over.tolist() == [False, False, True]


def test_a_factor_scales_what_is_left_and_all_that_it_takes_away_is_uncertain() -> None:
    # 100 ns less 10 are 90, of which 0.9 are 81: 9 are shared out. By chance 0.9 * 5 ns of the cost and the mark, and
    # 0.02 * 90 of the factor, in squares. The third is -6: it becomes -5.4, and 0.6 may be its own.
    out = corrected(corrections({2: 20.0}, cost_error=6.0, mark_error=8.0, factor=0.9, factor_error=0.02))
    assert out.corrected_ns.tolist() == pytest.approx([81, 0, -5.4])
    assert out.uncertainty_ns.tolist() == pytest.approx([9 + math.hypot(4.5, 1.8), 4.5, 0.6 + math.hypot(4.5, 0.12)])
    assert out.over.tolist() == [False, False, True]  # -5.4 and 5.1


def test_the_mean_of_a_site_has_the_error_of_its_cost_and_all_that_was_shared_out() -> None:
    # 500 cycles less 20 are 480: 48 shared out, and by chance 0.9 * 6 and 0.02 * 480.
    made = facts(corrections=corrections({2: 20.0}, cost_error=6.0, factor=0.9, factor_error=0.02))
    assert mean_half_widths(made)[0, 1, 0] == pytest.approx(48 + math.hypot(5.4, 9.6))
    assert np.isnan(mean_half_widths(made)[0, 0, 0])


@pytest.mark.parametrize("flag", [SpanFlag.INSTANT, SpanFlag.UNENDED, SpanFlag.CROSS_WARP, SpanFlag.WRAPPED])
def test_spans_without_a_length_of_their_own_are_not_corrected(flag: SpanFlag) -> None:
    out = corrected(corrections({2: 20.0}, cost_error=6.0), flags=int(flag))
    assert np.isnan(out.corrected_ns).all()
    assert not out.over.any()


@pytest.mark.parametrize("found", [None, {"not_measured": "rounds=0"}])
def test_without_corrections_there_are_no_columns(found: Any) -> None:
    assert corrected(found) is None


def test_a_site_and_a_rate_that_are_not_known_leave_nan() -> None:
    assert np.isnan(corrected(corrections({0: 20.0, 3: 5.0})).corrected_ns).all()
    assert np.isnan(corrected(corrections({2: 20.0}), rate=np.nan).corrected_ns).all()


def test_overcorrected_spans_are_a_problem_row_a_launch_and_site() -> None:
    over = np.array([True, True, False, True])
    rows = overcorrected(over, np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0]), ["load", "wait"])
    assert [(row.kind, row.count, row.severity, row.launch) for row in rows] == [
        ("overcorrected", 2, "note", 0),
        ("overcorrected", 1, "note", 1),
    ]
    assert "spans of wait" in rows[0].text
