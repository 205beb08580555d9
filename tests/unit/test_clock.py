"""Lines from pairs: right for SMs of different rates, steps, spans and offsets; honest where pairs say nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.synthesis import Clock, calibration
from warplens import clock
from warplens.clock import ClockMap

ZERO_NS = 1_795_000_000_000_000_000
SMS = 24


def make_clocks(seed: int, *, step_ns: int = 32, apart_cycles: int = 7_000_000) -> list[Clock]:
    """Offsets of +-7e6 cycles and rates that differ by 4.5e-5, as SMs of one H200 do that was just started."""
    rng = np.random.default_rng(seed)
    offsets = 5_000_000_000_000 + rng.integers(-apart_cycles, apart_cycles, SMS)
    rates = 1.98 * (1 - 4.5e-5 * rng.random(SMS))
    return [Clock(int(o), float(r), step_ns=step_ns) for o, r in zip(offsets, rates, strict=True)]


def pairs_of(clocks: list[Clock], *, begin_ns: int, span_ns: int, each: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Pairs at random times of a launch: (sm, globaltimer_ns, clock_cycles)."""
    rng = np.random.default_rng(seed)
    sm = np.repeat(np.arange(len(clocks)), each)
    cycles = np.array(
        [clocks[s].cycles(t) for s, t in zip(sm, begin_ns + rng.integers(0, span_ns + 1, len(sm)), strict=True)]
    )
    ns = np.array([clocks[s].globaltimer(int(c)) for s, c in zip(sm, cycles, strict=True)])
    return sm, ns, cycles


def both_calibrations(clocks: list[Clock], after_ns: int) -> list[dict[str, Any]]:
    return [calibration(clocks, "before", 0), calibration(clocks, "after", after_ns)]


def worst_error_ns(fitted: ClockMap, clocks: list[Clock], begin_ns: int, span_ns: int) -> float:
    """Largest error over all SMs at the begin, the middle and the end of a launch."""
    worst = 0
    for sm, own in enumerate(clocks):
        for t_ns in (begin_ns, begin_ns + span_ns // 2, begin_ns + span_ns):
            cycles = own.cycles(t_ns)
            true_ns = ZERO_NS + int((cycles - own.offset_cycles) / own.cycles_per_ns)
            worst = max(worst, abs(int(fitted.to_ns(sm, np.int64(cycles))) - true_ns))
    return worst


@pytest.mark.parametrize("step_ns", [32, 1000])
@pytest.mark.parametrize("span_ns", [10_000, 1_000_000, 100_000_000, 60_000_000_000])
@pytest.mark.parametrize("calibrated", [True, False])
def test_times_are_right_within_the_uncertainty_that_is_stated(step_ns: int, span_ns: int, calibrated: bool) -> None:
    clocks = make_clocks(1, step_ns=step_ns)
    begin_ns = 2_000_000
    pairs = both_calibrations(clocks, begin_ns + span_ns + 2_000_000) if calibrated else []
    sm, ns, cycles = pairs_of(clocks, begin_ns=begin_ns, span_ns=span_ns, each=40)
    fitted = clock.fit(sm, ns, cycles, step_ns=step_ns, calibration=pairs)
    assert worst_error_ns(fitted, clocks, begin_ns, span_ns) <= fitted.uncertainty_ns + 1
    assert not fitted.problems
    if calibrated:
        assert fitted.uncertainty_ns <= 45  # an edge is seen up to 24 ns late, whatever the step
    elif span_ns >= 1_000_000:
        assert fitted.uncertainty_ns <= step_ns


def test_rates_that_differ_between_sms_are_found_to_a_millionth() -> None:
    clocks = make_clocks(2)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=50_000, each=10)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=both_calibrations(clocks, 30_000_000))
    found = fitted.cycles_per_ns(np.arange(SMS))
    assert np.abs(found / [c.cycles_per_ns for c in clocks] - 1).max() < 1e-6


def test_one_pair_an_sm_is_enough_with_a_calibration() -> None:
    clocks = make_clocks(3)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=20_000, each=1)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=both_calibrations(clocks, 30_000_000))
    assert worst_error_ns(fitted, clocks, 1_000_000, 20_000) <= fitted.uncertainty_ns + 1 <= 45


@pytest.mark.parametrize("slips", ["before the launch", "behind it", "on both sides"])
def test_a_clock_that_slips_beside_a_launch_takes_its_line_from_the_calibration_it_continues(slips: str) -> None:
    rng = np.random.default_rng(11)
    clocks = make_clocks(7)

    def fallen_behind(cycles: int) -> list[Clock]:
        return [replace(own, offset_cycles=own.offset_cycles - cycles) for own in clocks]

    launch = fallen_behind(0 if slips == "behind it" else 400)
    after = fallen_behind({"before the launch": 400, "behind it": 400, "on both sides": 800}[slips])
    begin_ns, span_ns = 90_000, 6_000
    sm, ns, cycles = pairs_of(launch, begin_ns=begin_ns, span_ns=span_ns, each=6)
    late_ns = rng.integers(0, 40, len(sm)) + np.where(rng.random(len(sm)) < 0.1, 400, 0)  # other warps' turns
    ns = (ns + late_ns) // 32 * 32
    around = [spread_calibration(clocks, "before", 0), spread_calibration(after, "after", 110_000)]
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=around)
    assert worst_error_ns(fitted, launch, begin_ns, span_ns) <= fitted.uncertainty_ns + 1
    kinds = [problem.kind for problem in fitted.problems]
    if slips == "on both sides":
        assert kinds == ["clock_disagrees"]
    else:
        assert kinds == ["clock_slipped"]
        told = re.search(r"fell (\d+) ns behind between the (\w+)", fitted.problems[0].text)
        assert told is not None
        assert told[2] == ("calibration" if slips == "before the launch" else "launch")
        assert int(told[1]) == pytest.approx(400 / 1.98, abs=40)
        assert fitted.uncertainty_ns < 90
        assert abs(float(fitted.cycles_per_ns()) / 1.98 - 1) < 3e-4


@pytest.mark.parametrize("slow", [6e-4, -6e-4])
def test_a_clock_that_changes_in_a_launch_of_a_minute_is_told_with_how_far_off_times_may_be(slow: float) -> None:
    """Blocks say the time at their begin and end alone: where the rate changed in between cannot be known. Nor where it
    was globaltimer that fell behind, which looks like a clock faster than it can be."""
    clocks = make_clocks(8)
    begin_ns, middle_ns, end_ns = 1_000_000, 25_000_000_000, 60_000_000_000
    behind = [replace(c, offset_cycles=c.offset_cycles - round(slow * 1.98 * (end_ns - middle_ns))) for c in clocks]
    first = pairs_of(clocks, begin_ns=begin_ns, span_ns=1, each=1)
    last = pairs_of(behind, begin_ns=end_ns, span_ns=1, each=1)
    sm, ns, cycles = (np.concatenate(both) for both in zip(first, last, strict=True))
    around = [calibration(clocks, "before", 0), calibration(behind, "after", end_ns + 1_000_000)]
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=around, nominal_cycles_per_ns=1.98)
    # clocks run as before up to the middle: there the line between the ends is farthest off
    off_ns = worst_error_ns(fitted, clocks, middle_ns, 1)
    assert off_ns > 5_000_000
    assert off_ns <= fitted.uncertainty_ns <= 3 * off_ns
    assert [problem.kind for problem in fitted.problems] == ["clock_disagrees"]


def spread_calibration(clocks: list[Clock], when: str, t_ns: int) -> dict[str, Any]:
    """Nine pairs of each SM, 4 us apart, as the calibration kernel takes them."""
    parts = [calibration(clocks, when, t_ns + 4_000 * i) for i in range(9)]
    names = ("sm", "globaltimer_ns", "clock_cycles")
    return {"when": when, **{name: [value for part in parts for value in part[name]] for name in names}}


def test_a_calibration_before_only_gives_the_rate_over_the_way_to_the_launch() -> None:
    clocks = make_clocks(4)
    sm, ns, cycles = pairs_of(clocks, begin_ns=5_000_000, span_ns=20_000, each=4)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=both_calibrations(clocks, 0)[:1])
    assert worst_error_ns(fitted, clocks, 5_000_000, 20_000) <= fitted.uncertainty_ns + 1 <= 40


def test_an_sm_with_one_pair_takes_its_rate_from_the_others() -> None:
    clocks = make_clocks(5)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=10_000_000, each=20)
    keep = (sm != 7) | (np.arange(len(sm)) == 7 * 20)
    fitted = clock.fit(sm[keep], ns[keep], cycles[keep], step_ns=32)
    assert not fitted.problems
    assert abs(float(fitted.cycles_per_ns(7)) / 1.98 - 1) < 1e-4


def test_without_two_pairs_on_any_sm_the_rate_is_said_to_be_unknown() -> None:
    clocks = make_clocks(6)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=10_000, each=1)
    plain = clock.fit(sm, ns, cycles, step_ns=32)
    assert [p.kind for p in plain.problems] == ["rate_unknown"]
    assert float(plain.cycles_per_ns()) == 1.0
    told = clock.fit(sm, ns, cycles, step_ns=32, nominal_cycles_per_ns=1.755)
    assert [p.kind for p in told.problems] == ["rate_unknown"]
    assert float(told.cycles_per_ns()) == pytest.approx(1.755)


def test_an_sm_without_a_pair_is_told() -> None:
    clocks = make_clocks(7)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=1_000_000, each=5)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, wanted_sms=[0, 1, SMS + 3])
    assert [(p.kind, p.count, p.severity) for p in fitted.problems] == [("no_clock_pair", 1, "error")]
    assert not fitted.known[SMS + 3]
    fitted.to_ns(SMS + 3, cycles[0])


def test_no_pairs_at_all_is_told_and_still_gives_a_map() -> None:
    fitted = clock.fit([], [], [], step_ns=None, wanted_sms=[2])
    assert [p.kind for p in fitted.problems] == ["rate_unknown", "no_clock_pair"]
    assert int(fitted.to_ns(2, 1234)) == 1234
    assert fitted.uncertainty_ns == float("inf")


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("each", [1, 12])
def test_clocks_that_have_drifted_apart_for_months_are_believed(calibrated: bool, each: int) -> None:
    """Rates that differ by 4.5e-5 take two SMs a second apart in six hours, and ten minutes in half a year."""
    clocks = make_clocks(12, apart_cycles=1_200_000_000_000)
    begin_ns, span_ns = 2_000_000, 1_000_000
    pairs = both_calibrations(clocks, begin_ns + span_ns + 2_000_000) if calibrated else []
    sm, ns, cycles = pairs_of(clocks, begin_ns=begin_ns, span_ns=span_ns, each=each)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=pairs, nominal_cycles_per_ns=1.98, wanted_sms=sm)
    assert [p.kind for p in fitted.problems] == ([] if calibrated or each > 1 else ["rate_unknown"])
    assert fitted.known.all()
    if calibrated or each > 1:
        assert worst_error_ns(fitted, clocks, begin_ns, span_ns) <= fitted.uncertainty_ns + 1 <= 45


@pytest.mark.parametrize("seed", range(40))
def test_an_sm_keeps_its_pairs_however_the_clock_changes_around_and_in_a_launch(seed: int) -> None:
    """A GPU that was idle goes from 345 to 1980 MHz, and slows under load, before, in and behind a launch."""
    rng = np.random.default_rng(seed)
    turns_ns = np.sort(rng.uniform(0, rng.choice([400_000, 1_000_000, 5_000_000], 3)))
    rates = rng.choice([0.345, 0.6, 1.2, 1.755, 1.98], 4)
    offsets = rng.integers(-7_000_000, 7_000_000, SMS)

    def read(sm: Any, t_ns: Any) -> tuple[Any, Any]:
        lasted = np.diff(np.clip(np.asarray(t_ns)[:, None], 0, [0, *turns_ns, np.inf]), axis=1)
        return ZERO_NS + np.floor(t_ns / 32).astype(np.int64) * 32, (lasted @ rates).astype(np.int64) + offsets[sm]

    begin_ns, span_ns, each = rng.uniform(2e4, 2e6), rng.choice([2e5, 1e6, 5e6]), int(rng.integers(1, 24))
    around = []
    for when, t_ns in (("before", 0.0), ("after", begin_ns + span_ns + rng.uniform(2e4, 1e6))):
        sm, at = np.repeat(np.arange(SMS), 9), t_ns + np.tile(32 * 125 * np.arange(9), SMS)
        ns, cycles = read(sm, np.ceil(at / 32) * 32)
        around.append({"when": when, "sm": sm, "globaltimer_ns": ns, "clock_cycles": cycles})
    sm = np.repeat(np.arange(SMS), each)
    ns, cycles = read(sm, begin_ns + rng.uniform(0, span_ns, len(sm)))
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=around, nominal_cycles_per_ns=1.98, wanted_sms=sm)
    assert fitted.known.all(), [p.text for p in fitted.problems]
    assert "no_clock_pair" not in [p.kind for p in fitted.problems]
    off_ns = np.abs(fitted.to_ns(sm, cycles) - ns)
    assert (off_ns <= fitted.uncertainty_ns + 64).mean() >= 0.97


@pytest.mark.parametrize("absurd_ns", [ZERO_NS + 40_000_000_000, ZERO_NS - 40_000_000_000, 1234])
def test_the_only_pair_of_an_sm_is_left_out_where_it_was_read_at_another_time_than_the_others(absurd_ns: int) -> None:
    clocks = make_clocks(13)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=1_000_000, each=12)
    keep = (sm != 7) | (np.arange(len(sm)) == 7 * 12)
    ns[7 * 12] = absurd_ns
    fitted = clock.fit(sm[keep], ns[keep], cycles[keep], step_ns=32, wanted_sms=sm)
    assert sorted((p.kind, p.count) for p in fitted.problems) == [("clock_disagrees", 1), ("no_clock_pair", 1)]
    assert np.flatnonzero(~fitted.known).tolist() == [7]


@pytest.mark.parametrize("absurd_ns", [0, -5, 2**63 - 1, ZERO_NS + 40_000_000_000, 1234])
def test_absurd_pairs_are_left_out_and_counted(absurd_ns: int) -> None:
    clocks = make_clocks(8)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=1_000_000, each=12)
    ns[5] = absurd_ns
    fitted = clock.fit(sm, ns, cycles, step_ns=32)
    assert [(p.kind, p.count) for p in fitted.problems] == [("clock_disagrees", 1)]
    assert worst_error_ns(fitted, clocks, 1_000_000, 1_000_000) <= fitted.uncertainty_ns + 1 <= 32


def test_an_absurd_clock_value_is_left_out() -> None:
    clocks = make_clocks(9)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=1_000_000, each=12)
    cycles[3], cycles[40] = 17, 2**62
    fitted = clock.fit(sm, ns, cycles, step_ns=32)
    assert [(p.kind, p.count) for p in fitted.problems] == [("clock_disagrees", 2)]
    assert worst_error_ns(fitted, clocks, 1_000_000, 1_000_000) <= fitted.uncertainty_ns + 1 <= 32


def test_a_calibration_at_another_clock_rate_is_not_believed() -> None:
    idle = [Clock(c.offset_cycles, c.cycles_per_ns * 0.6) for c in make_clocks(10)]
    clocks = [Clock(i.offset_cycles - 50_000_000, i.cycles_per_ns / 0.6) for i in idle]
    sm, ns, cycles = pairs_of(clocks, begin_ns=40_000_000, span_ns=1_000_000, each=20)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=both_calibrations(idle, 1_000_000))
    assert {p.kind for p in fitted.problems} == {"clock_disagrees"}
    assert worst_error_ns(fitted, clocks, 40_000_000, 1_000_000) <= fitted.uncertainty_ns + 1 <= 40


def test_a_clock_that_changes_during_the_launch_is_told_and_widens_the_uncertainty() -> None:
    sm, ns, cycles = pairs_of([Clock()], begin_ns=0, span_ns=1_000_000, each=40)
    cycles += np.maximum(0, ns - ZERO_NS - 500_000) // 10  # 10 % faster in the second half
    fitted = clock.fit(sm, ns, cycles, step_ns=32)
    assert fitted.problems
    assert fitted.uncertainty_ns > 1000


@pytest.mark.parametrize("each", [1, 2, 9])
@pytest.mark.parametrize("slower", [0.01, 0.15])
def test_pairs_in_the_middle_of_a_launch_whose_clock_changed_widen_the_uncertainty(each: int, slower: float) -> None:
    """The line joins the ends: what lies between is farthest off, and is no damage."""
    own, end_ns = Clock(), 50_000_000
    times = np.array([0, *(end_ns // 2 + np.arange(each) * 1000), end_ns])
    cycles = np.array([cycles_under_load(own, t, end_ns // 2, end_ns, slower) for t in times])
    fitted = clock.fit(np.zeros(len(times), np.int64), ZERO_NS + times // 32 * 32, cycles, step_ns=32)
    off = np.abs(fitted.to_ns(np.zeros(len(times), np.int64), cycles) - (ZERO_NS + times)).max()
    assert off > 100_000
    assert off <= 1.1 * fitted.uncertainty_ns
    assert fitted.changed
    if fitted.unjoined is not None:
        assert fitted.unjoined in fitted.problems


def test_pairs_of_one_sm_that_no_line_joins_are_an_error_and_a_change() -> None:
    clocks = make_clocks(4)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=100_000, each=8)
    ns[np.flatnonzero(sm == 3)[::3]] += 1_500
    fitted = clock.fit(sm, ns, cycles, step_ns=32)
    assert fitted.changed
    assert fitted.unjoined is not None
    assert (fitted.unjoined.kind, fitted.unjoined.severity) == ("clock_disagrees", "error")


def test_an_sm_on_which_nothing_ran_may_change_its_clock_between_calibrations() -> None:
    """As between one calibration before many small launches and one behind them, 117 ms later on an idle GPU."""
    launch_ns, after_ns = 70_000_000, 117_000_000
    rng = np.random.default_rng(16)
    own = [[Clock(5_000_000_000_000 + 1_000_000 * sm, 1.98)] for sm in range(SMS)]
    for clocks in own:
        for at_ns in (launch_ns - 1_000_000, after_ns):  # goes on where it stopped, at another rate
            before, rate = clocks[-1], 1.98 - 0.006 * float(rng.random())
            reached = before.offset_cycles + at_ns * before.cycles_per_ns
            clocks.append(Clock(round(reached - at_ns * rate), rate))
    entries = []
    for number, when, begin_ns in ((0, "before", 0), (2, "after", after_ns)):
        parts = [calibration([clocks[number] for clocks in own], when, begin_ns + 4_000 * turn) for turn in range(9)]
        keys = ("sm", "globaltimer_ns", "clock_cycles")
        entries.append({key: np.concatenate([part[key] for part in parts]) for key in keys})
    there = [clocks[1] for clocks in own[:2]]
    sm, ns, cycles = pairs_of(there, begin_ns=launch_ns, span_ns=500, each=4)
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=entries, wanted_sms=np.array([0, 1]))
    assert [problem for problem in fitted.problems if problem.severity == "error"] == []
    assert fitted.unjoined is None
    assert worst_error_ns(fitted, there, launch_ns, 500) <= fitted.uncertainty_ns + 1 <= 60
    fitted = clock.fit(sm, ns, cycles, step_ns=32, calibration=entries, wanted_sms=np.array([0, 1, 5]))
    assert fitted.unjoined is not None
    assert fitted.unjoined.count == 1


@pytest.mark.parametrize("nominal", [None, 1.98])
@pytest.mark.parametrize("at_ns", [-2_000_000, 1_000_000])
def test_clocks_on_either_side_of_the_pairs_are_right_within_the_uncertainty(nominal: float | None, at_ns: int) -> None:
    own = Clock(cycles_per_ns=1.7)  # slower than is reported, as under load
    begin_ns = 5_000_000
    pair = ([0], [own.globaltimer(own.cycles(begin_ns))], [own.cycles(begin_ns)])
    wanted = np.array([own.cycles(begin_ns + at_ns)])
    fitted = clock.fit(*pair, step_ns=32, nominal_cycles_per_ns=nominal, wanted_cycles=([0], wanted))
    off = abs(int(fitted.to_ns(0, wanted)[0]) - (ZERO_NS + begin_ns + at_ns))
    assert 100_000 < off <= fitted.uncertainty_ns
    told = [problem.text for problem in fitted.problems if problem.kind == "clock_extrapolated"]
    assert ("first events" if at_ns < 0 else "last events") in told[0]


@pytest.mark.parametrize("base", [2**63 - 1000, 2**63 - 10**9, 2**63 + 10**6, 2**64 - 10**9])
def test_clock_values_round_two_to_the_63_give_exact_differences(base: int) -> None:
    own = Clock(offset_cycles=0, cycles_per_ns=2.0)
    sm, ns, cycles = pairs_of([own], begin_ns=0, span_ns=1_000_000, each=20)
    shifted = (cycles.astype(np.uint64) + np.uint64(base)).astype(np.uint64)
    plain = clock.fit(sm, ns, cycles, step_ns=32)
    high = clock.fit(sm, ns, shifted, step_ns=32)
    assert np.array_equal(plain.to_ns(sm, cycles), high.to_ns(sm, shifted))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        clock.fit([0], [1, 2], [3], step_ns=32)


def test_begins_are_found_from_the_low_word_of_globaltimer_also_after_a_minute() -> None:
    own = Clock(offset_cycles=123, cycles_per_ns=1.98)
    for lasted_ns in (0, 1000, 4_000_000_000, 5_000_000_000, 60_000_000_000):
        begin, end = own.cycles(10_000), own.cycles(10_000 + lasted_ns)
        low, end_ns = own.globaltimer(begin) & 0xFFFFFFFF, own.globaltimer(end)
        least = np.array([end - begin])
        rough = 0.51  # wrong by 1 %
        begin_ns, near = clock.begins(np.array([end_ns]), np.array([end]), np.array([low]), least, rough)
        assert begin_ns.tolist() == [own.globaltimer(begin)]
        assert abs(int(near[0]) - begin) <= 0.011 * (end - begin) + 100


def test_a_rough_rate_is_found_from_few_pairs_or_named() -> None:
    clocks = make_clocks(13)
    sm, ns, cycles = pairs_of(clocks, begin_ns=0, span_ns=20_000, each=2)
    assert clock.rough_ns_per_cycle(sm, ns, cycles) == pytest.approx(1 / 1.98, rel=0.01)
    assert clock.rough_ns_per_cycle([], [], [], nominal_cycles_per_ns=1.5) == pytest.approx(1 / 1.5)
    assert clock.rough_ns_per_cycle(sm[:1], ns[:1], cycles[:1]) == 0.5
    both = both_calibrations(clocks, 10_000_000)
    assert clock.rough_ns_per_cycle([], [], [], calibration=both) == pytest.approx(1 / 1.98, rel=1e-4)


def test_an_end_read_late_does_not_move_the_line() -> None:
    clocks = make_clocks(12)
    sm, ns, cycles = pairs_of(clocks, begin_ns=1_000_000, span_ns=100_000, each=20)
    late = np.arange(len(sm)) % 2 * 200
    fitted = clock.fit(
        sm, ns + late // 32 * 32, cycles, step_ns=32, late_ns=late, calibration=both_calibrations(clocks, 10**7)
    )
    assert worst_error_ns(fitted, clocks, 1_000_000, 100_000) <= fitted.uncertainty_ns + 1 <= 20


def test_two_reads_close_by_of_which_one_is_late_do_not_make_a_rate() -> None:
    """As seen of a layer norm on an H200 (recordings/triton_layer_norm_h200.wlens): of two warps that began 18 cycles
    apart one read globaltimer 64 ns behind the other, and its SM's rate was off by 80 %.
    """
    clocks = make_clocks(6)
    begin_ns, span_ns = 2_000_000, 16_000
    at_ns = np.array([0, 9, 4_600, 5_700, 13_200, 16_000])
    sm = np.repeat(np.arange(SMS), len(at_ns))
    cycles = [
        cycles_under_load(own, begin_ns + ns, begin_ns, begin_ns + span_ns, 0.016) for own in clocks for ns in at_ns
    ]
    ns = (ZERO_NS + begin_ns + np.tile(at_ns, SMS)) // 32 * 32
    ns[5 * len(at_ns) + 1 : 6 * len(at_ns)] += 64
    late_ns = np.tile([0, 0, 64, 64, 0, 64], SMS)
    fitted = clock.fit(
        sm,
        ns,
        cycles,
        step_ns=32,
        late_ns=late_ns,
        calibration=both_calibrations(clocks, 3_000_000),
        nominal_cycles_per_ns=1.98,
    )
    assert "slows for a moment" in fitted.problems[0].text
    assert fitted.cycles_per_ns(np.arange(SMS)) == pytest.approx(1.98 * (1 - 0.016), rel=0.01)
    off = np.abs(fitted.to_ns(sm, cycles) - ZERO_NS - begin_ns - np.tile(at_ns, SMS))
    assert off.max() <= fitted.uncertainty_ns + 1 <= 600


def test_integers_of_any_size_are_taken_modulo_two_to_the_64() -> None:
    assert clock.int64([2**64 - 1, -1, 2**63, 5]).tolist() == [-1, -1, -(2**63), 5]
    assert clock.int64([]).tolist() == []


def cycles_under_load(own: Clock, ns: float, begin_ns: float, end_ns: float, slower: float = 0.1) -> int:
    """clock64 of an SM whose clock runs slower, by a tenth, from `begin_ns` to `end_ns`."""
    slow = min(max(ns - begin_ns, 0.0), end_ns - begin_ns)
    return int(own.offset_cycles + own.cycles_per_ns * (ns - slower * slow))


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_clock_that_falls_by_a_tenth_under_load_leaves_the_launchs_own_pairs_in_force(blocks: int) -> None:
    """As seen of a matmul on an H200: few blocks an SM, calibrations right before and 100 ms behind."""
    clocks = make_clocks(9)
    begin_ns, block_ns = 200_000, 40_000
    end_ns = begin_ns + blocks * block_ns
    edges = np.ravel([(begin_ns + n * block_ns + 500, begin_ns + (n + 1) * block_ns - 500) for n in range(blocks)])
    sm = np.repeat(np.arange(SMS), len(edges))
    times = np.tile(edges, SMS)
    cycles = np.array([cycles_under_load(clocks[s], t, begin_ns, end_ns) for s, t in zip(sm, times, strict=True)])
    lost = 0.1 * (end_ns - begin_ns)
    late = [replace(own, offset_cycles=own.offset_cycles - int(lost * own.cycles_per_ns)) for own in clocks]
    around = [calibration(clocks, "before", 0), calibration(late, "after", 100_000_000)]
    fitted = clock.fit(sm, ZERO_NS + times // 32 * 32, cycles, step_ns=32, calibration=around)
    assert fitted.known.all()
    error = np.abs(fitted.to_ns(sm, cycles) - (ZERO_NS + times))
    assert error.max() <= fitted.uncertainty_ns + 32
    assert {problem.kind for problem in fitted.problems} & {"clock_disagrees", "clock_changed"}
