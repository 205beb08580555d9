"""From clock64 of an SM to nanoseconds of globaltimer: the only place that converts.

In: pairs (globaltimer_ns, clock_cycles) per SM from chunks, block records and calibrations. Out: a `ClockMap` with
one line per SM, its half width and the doubts about it. Each pair says that the true time lay within one step of
globaltimer, so each SM's line must pass through all its intervals; a rate is found, never assumed
(docs/adr/0002-clocks.md). Counters and times stay int64; floats hold only differences below 2^53.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens.clock.chords import Chords, chords
from warplens.clock.pairs import (
    CHANGED_RATE,
    F64,
    I64,
    SKEW_NS,
    Bool,
    ClockProblem,
    Pairs,
    extent,
    gather,
    guess_rate,
    int64,
)
from warplens.clock.rates import Rates, find_rates

__all__ = [
    "DEFAULT_STEP_NS",
    "Chords",
    "ClockMap",
    "ClockProblem",
    "begins",
    "chords",
    "cycles_to_ns",
    "fit",
    "int64",
    "rough_ns_per_cycle",
]

DEFAULT_STEP_NS: Final = 1000
"""Step of globaltimer where none was observed: GPUs before Hopper step by about 1 us."""
_FINE_NS: Final = 500
"""How far off the line of its SM a pair may be read, beside two steps."""
_MOST_PAIRS: Final = 98
"""Percentile of the pairs that the uncertainty holds for: some may be damaged."""
_USUAL_CYCLES_PER_NS: Final = 2.0
"""Only to tell turns of 4.29 s and of records apart, where no two pairs of an SM exist."""


def cycles_to_ns(cycles: F64, cycles_per_ns: F64) -> F64:
    """Lengths in nanoseconds of short lengths in cycles, at measured rates; nan where either is."""
    return np.asarray(cycles / cycles_per_ns)


@dataclass
class ClockMap:
    """One line per SM: ns = base_ns + offset_ns[sm] + (cycles - base_cycles[sm]) * ns_per_cycle[sm].

    Arrays are indexed by SM. `known` is true for SMs that had a pair of their own.
    """

    base_ns: int
    base_cycles: I64
    offset_ns: F64
    ns_per_cycle: F64
    half_width_ns: F64
    known: Bool
    uncertainty_ns: float
    """Worst error of a time against the time of another SM, over the SMs and the span of the pairs."""
    problems: list[ClockProblem] = field(default_factory=list)
    changed: bool = False
    """Whether an SM's clock changed within the launch by more than its line can follow."""
    unjoined: ClockProblem | None = None
    """Of `problems`: that no line joins the pairs of some SMs."""

    def to_ns(self, sm: npt.ArrayLike, cycles: npt.ArrayLike) -> I64:
        """Nanoseconds of globaltimer (int64) for clock64 values `cycles` (int64 or uint64) read on `sm`."""
        sm = np.asarray(sm)
        since = np.asarray(cycles).astype(np.int64) - self.base_cycles[sm]
        with np.errstate(invalid="ignore"):  # damaged clocks may lie beyond int64
            ns = np.rint(self.offset_ns[sm] + since * self.ns_per_cycle[sm]).astype(np.int64)
        return np.asarray(self.base_ns + ns)

    def cycles_per_ns(self, sm: npt.ArrayLike | None = None) -> F64:
        """Rate of each SM in `sm`, or the median over the SMs with pairs (shape ()) when `sm` is None."""
        if sm is None:
            rates = self.ns_per_cycle[self.known] if self.known.any() else self.ns_per_cycle
            return np.asarray(1.0 / np.median(rates))
        return np.asarray(1.0 / self.ns_per_cycle[np.asarray(sm)])


def fit(
    sm: npt.ArrayLike,
    globaltimer_ns: npt.ArrayLike,
    clock_cycles: npt.ArrayLike,
    *,
    step_ns: float | None,
    late_ns: npt.ArrayLike = 0.0,
    calibration: Sequence[Mapping[str, Any]] = (),
    nominal_cycles_per_ns: float | None = None,
    wanted_sms: npt.ArrayLike = (),
    unknown_sm: int | None = None,
    wanted_cycles: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> ClockMap:
    """Finds each SM's line from the pairs of one launch and from calibration pairs taken before and after it.

    `sm`, `globaltimer_ns`, `clock_cycles`: integers of equal length, shape (n,); a pair's true time lies in
    [globaltimer, globaltimer + step). `step_ns` is the observed step (None: 1000). `late_ns` (shape () or (n,)) says by
    how much globaltimer may have been read later than the clock. `calibration` holds entries of a
    manifest (keys sm, globaltimer_ns, clock_cycles), whose pairs were taken at edges of globaltimer.
    `nominal_cycles_per_ns` is used, with a problem, where no rate can be found; without it one cycle counts as 1 ns
    there. Where the clock changed in the launch it bounds how far off times between its pairs may be. `wanted_sms`
    names SMs that need a line even without a pair: they get the median line, and a problem; `unknown_sm`, a number that
    stands for an SM that is not known, gets it without. `wanted_cycles`, SMs and clocks, are those that will be
    converted, where the pairs may not enclose them: then the uncertainty holds for all of these, and it is told how far
    beyond the pairs they lie.
    Raises ValueError when the columns differ in length.
    """
    step_ns = step_ns or DEFAULT_STEP_NS
    pairs, problems = gather(sm, globaltimer_ns, clock_cycles, calibration, step_ns, late_ns)
    wanted = np.asarray(wanted_sms, np.int64)
    size = int(max(pairs.sm.max(initial=-1), wanted.max(initial=-1))) + 1
    if not len(pairs.sm):
        return _no_pairs(max(size, 1), nominal_cycles_per_ns, problems)
    guess = guess_rate(pairs)
    if guess is None:
        guess = _fallback_rate(nominal_cycles_per_ns, problems)
        unsure = CHANGED_RATE if nominal_cycles_per_ns and nominal_cycles_per_ns > 0 else 1.0
        rates = Rates(np.full(size, guess), np.full(size, guess * unsure))
        pairs.reject_gross(guess, size)
    else:
        pairs.reject_gross(guess, size)
        rates = find_rates(pairs, size, guess, problems, nominal_cycles_per_ns)
    plausible = pairs.plausible(guess, size)
    out = _offsets(pairs, rates, _asked(pairs, wanted, size), problems)
    out.changed = out.unjoined is not None
    _tell_of_change(out, pairs, plausible)
    if wanted_cycles is not None:
        _extrapolate(out, rates, int64(wanted_cycles[0]), int64(wanted_cycles[1]), pairs)
    told = wanted if unknown_sm is None else wanted[wanted != unknown_sm]
    missing = np.setdiff1d(told, np.flatnonzero(out.known))
    if missing.size:
        text = f"{missing.size} SMs (the first: SM {missing[0]}) gave no usable clock pair: their times are a guess"
        out.problems.append(ClockProblem("no_clock_pair", int(missing.size), "error", text))
    return out


def _fallback_rate(nominal_cycles_per_ns: float | None, problems: list[ClockProblem]) -> float:
    """ns per cycle where no two pairs of one SM exist; says what it took."""
    if nominal_cycles_per_ns and nominal_cycles_per_ns > 0:
        text = f"no SM has two clock pairs: the reported SM clock ({nominal_cycles_per_ns:.4g} cycles/ns) is used"
        problems.append(ClockProblem("rate_unknown", 1, "error", text))
        return 1.0 / nominal_cycles_per_ns
    text = "no SM has two clock pairs and no SM clock was reported: one cycle is shown as 1 ns"
    problems.append(ClockProblem("rate_unknown", 1, "error", text))
    return 1.0


def _no_pairs(size: int, nominal_cycles_per_ns: float | None, problems: list[ClockProblem]) -> ClockMap:
    rate = _fallback_rate(nominal_cycles_per_ns, problems)
    text = "no clock pairs at all: times count from zero of each SM's own clock and SMs cannot be compared"
    problems.append(ClockProblem("no_clock_pair", size, "error", text))
    zero = np.zeros(size)
    return ClockMap(
        base_ns=0,
        base_cycles=np.zeros(size, np.int64),
        offset_ns=zero,
        ns_per_cycle=np.full(size, rate),
        half_width_ns=np.full(size, np.inf),
        known=np.zeros(size, np.bool_),
        uncertainty_ns=float("inf"),
        problems=problems,
    )


def _asked(pairs: Pairs, wanted: I64, size: int) -> Bool:
    """Which SMs the launch ran on: their lines are used. All of them, where that is not told."""
    asked = np.zeros(size, np.bool_)
    asked[wanted] = True
    asked[pairs.sm[~pairs.calibrated]] = True
    return asked if asked.any() else ~asked


def _offsets(pairs: Pairs, rates: Rates, asked: Bool, problems: list[ClockProblem]) -> ClockMap:
    """Each SM's offset: the middle of what all its intervals allow at its rate. `asked`: SMs whose line is used."""
    size = len(asked)
    own = pairs.kept & ~pairs.calibrated
    reference = own if own.any() else pairs.kept
    center_cycles = np.zeros(size, np.int64)
    span_cycles = np.zeros(size)
    for edges in (pairs.kept, reference):  # the launch's own middle where it has one, else the calibration's
        left, right = extent(pairs, edges, size)
        some = right >= left
        center_cycles[some] = left[some] + (right - left)[some] // 2
        span_cycles[some] = ((right - left)[some]).astype(np.float64)
    since = (pairs.cycles - center_cycles[pairs.sm]).astype(np.float64)
    slack = rates.error[pairs.sm] * np.abs(since) * pairs.calibrated
    low = pairs.low - slack - since * rates.ns_per_cycle[pairs.sm]
    high = pairs.high + slack - since * rates.ns_per_cycle[pairs.sm]
    rest = pairs.read - since * rates.ns_per_cycle[pairs.sm]
    unjoined = _reject_fine(pairs, rest, rates.error[pairs.sm] * np.abs(since), asked, problems)
    kept = pairs.kept
    lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(lower, pairs.sm[kept], low[kept])
    np.minimum.at(upper, pairs.sm[kept], high[kept])
    known = np.bincount(pairs.sm[kept], minlength=size) > 0
    _bound_by_reads(pairs, rest, known & ~(np.isfinite(lower) & np.isfinite(upper)), lower, upper)
    lower[~known] = upper[~known] = 0.0
    offset = (lower + upper) / 2
    half = np.where(known, np.abs(upper - lower) / 2, np.inf)
    if known.any():
        offset[~known] = np.median(offset[known])
        center_cycles[~known] = int(np.median(center_cycles[known]))
    seen = known & (np.bincount(pairs.sm[reference & kept], minlength=size) > 0)
    worst = (half + rates.error * span_cycles / 2)[seen] if seen.any() else np.array([np.inf])
    return ClockMap(
        base_ns=pairs.base_ns,
        base_cycles=center_cycles + np.int64(pairs.base_cycles),
        offset_ns=offset,
        ns_per_cycle=rates.ns_per_cycle,
        half_width_ns=half,
        known=known,
        uncertainty_ns=float(worst.max()),
        problems=problems,
        unjoined=unjoined,
    )


def _bound_by_reads(pairs: Pairs, rest: F64, open_sms: Bool, lower: F64, upper: F64) -> None:
    """Bounds of SMs whose pairs were all read late, so that none bounds from below: how far their reads lie apart."""
    which = pairs.kept & open_sms[pairs.sm]
    lower[open_sms], upper[open_sms] = np.inf, -np.inf
    np.minimum.at(lower, pairs.sm[which], rest[which] - SKEW_NS)
    np.maximum.at(upper, pairs.sm[which], rest[which] + SKEW_NS + pairs.step_ns)


def _tell_of_change(out: ClockMap, pairs: Pairs, plausible: Bool) -> None:
    """Widens the uncertainty to how far the launch's own pairs lie off their SM's line, where that is far."""
    own = pairs.part(plausible)
    if not len(own.sm):
        return
    cycles = own.cycles + np.int64(pairs.base_cycles) - out.base_cycles[own.sm]
    off = np.abs(own.read - out.offset_ns[own.sm] - cycles * out.ns_per_cycle[own.sm])
    worst = float(np.percentile(off, _MOST_PAIRS, method="higher"))
    if worst > 2 * pairs.step_ns + _FINE_NS:
        out.changed = True
        out.uncertainty_ns = max(out.uncertainty_ns, worst)


def _extrapolate(out: ClockMap, rates: Rates, sm: I64, cycles: I64, pairs: Pairs) -> None:
    """Widens the uncertainty to what holds for clocks beyond the pairs, and tells how far beyond they are."""
    some = out.known[sm]
    sm, since = sm[some], cycles[some] - out.base_cycles[sm[some]]
    if not len(sm):
        return
    ns = since * out.ns_per_cycle[sm] + out.offset_ns[sm]
    worst = float((out.half_width_ns[sm] + rates.error[sm] * np.abs(since)).max())
    if worst <= out.uncertainty_ns:
        return
    out.uncertainty_ns = worst
    read = pairs.read[pairs.kept]
    for beyond_ns, events, other, way in (
        (float(ns.max() - read.max()), "last events", "behind the last", "before"),
        (float(read.min() - ns.min()), "first events", "before the first", "behind it"),
    ):
        if beyond_ns > pairs.step_ns:
            text = (
                f"the {events} lie {beyond_ns / 1e6:.3g} ms {other} clock pair: their times follow from the rate "
                f"{way}, to {worst / 1e3:.3g} us if the SM clock did not change"
            )
            out.problems.append(ClockProblem("clock_extrapolated", 1, "note", text))


def _reject_fine(pairs: Pairs, rest: F64, slack: F64, asked: Bool, problems: list[ClockProblem]) -> ClockProblem | None:
    """Drops pairs off their SM's line by more than reading them can explain; all stay where that is many.

    Returns the problem, of those it adds, that no line joins the pairs of some SMs: of those that were `asked` for. The
    clock of an SM on which nothing of the launch ran may change between calibrations that are not right beside it.
    """
    size = len(asked)
    residual = np.abs(rest - pairs.median(rest, size)[pairs.sm])
    off = pairs.kept & (residual > 2 * pairs.step_ns + _FINE_NS + 2 * slack)
    many = np.bincount(pairs.sm[off], minlength=size) * 4 > np.bincount(pairs.sm[pairs.kept], minlength=size)
    pairs.kept &= ~off | many[pairs.sm]
    count = int(((off & ~many[pairs.sm] | pairs.gross) & asked[pairs.sm]).sum())
    unjoined = None
    if told := int((many & asked).sum()):
        text = f"{told} SMs have clock pairs that no line joins: their clock changed during the launch"
        unjoined = ClockProblem("clock_disagrees", told, "error", text)
        problems.append(unjoined)
    if count:
        text = f"{count} of {len(pairs.sm)} clock pairs lie off the line of their SM by more than a reading can"
        problems.append(ClockProblem("clock_disagrees", count, "note", text))
    return unjoined


def begins(end_ns: I64, end_cycles: I64, begin_low: I64, least_cycles: I64, ns_per_cycle: float) -> tuple[I64, I64]:
    """When blocks began: globaltimer (ns), and roughly clock64, from the low 32 bits of globaltimer at their begin.

    `end_ns` and `end_cycles` are a pair of each block's end; at least `least_cycles` passed between, which tells turns
    of the low word (4.29 s) apart. `ns_per_cycle` need only be rough.
    """
    elapsed_ns = (end_ns - begin_low) & 0xFFFFFFFF
    turns = np.rint((least_cycles * ns_per_cycle - elapsed_ns) / 2.0**32).astype(np.int64)
    elapsed_ns += np.maximum(turns, 0) << 32
    return end_ns - elapsed_ns, end_cycles - np.rint(elapsed_ns / ns_per_cycle).astype(np.int64)


def rough_ns_per_cycle(
    sm: npt.ArrayLike,
    globaltimer_ns: npt.ArrayLike,
    clock_cycles: npt.ArrayLike,
    *,
    calibration: Sequence[Mapping[str, Any]] = (),
    nominal_cycles_per_ns: float | None = None,
) -> float:
    """ns per cycle from pairs as in `fit`, right to a percent; the nominal or a usual rate where they tell none."""
    pairs, _ = gather(sm, globaltimer_ns, clock_cycles, calibration, DEFAULT_STEP_NS, 0.0)
    guess = guess_rate(pairs) if len(pairs.sm) else None
    return guess or 1.0 / (nominal_cycles_per_ns or _USUAL_CYCLES_PER_NS)
