"""The rate of each SM's clock64: from calibrations where the launch continues them, else from its own pairs.

In: `Pairs`. Out: `Rates`; pairs that cannot be believed are dropped on the way, and doubts are told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from warplens.clock.pairs import (
    CHANGED_RATE,
    F64,
    GROSS_RATE_ERROR,
    Bool,
    ClockProblem,
    Pairs,
    extent,
    guess_rate,
    near,
    slope_bounds,
)

ROUGH_RATE_ERROR: Final = 2e-3
"""Of the rate that a launch's pairs give roughly."""
RATE_SPREAD: Final = 1e-4
"""SMs of one GPU run within this of each other (measured: benchmarks/results/clocks.json)."""
AGREEING: Final = 0.9
"""Share of the SMs that a calibration must agree with."""
SLIP_NS: Final = 40.0
"""A calibration whose line lies this far off a launch's pairs, beside their step, is of another time."""


@dataclass
class Rates:
    """Per SM, arrays of shape (SMs,)."""

    ns_per_cycle: F64
    error: F64  # half width, ns per cycle


def find_rates(
    pairs: Pairs, size: int, guess: float, problems: list[ClockProblem], nominal: float | None = None
) -> Rates:
    """Each SM's rate: from its own pairs where they say enough, else narrowed by what the other SMs say.

    `nominal` is the SM clock that was reported (cycles per ns), or None.
    """
    if pairs.calibrated.any():
        known = _calibrated_rates(pairs, size, guess) or _continued_calibration(pairs, size, problems)
        if known is not None:
            return known
    _forgive_late(pairs, size)
    low, high = slope_bounds(pairs, pairs.kept, size)
    changed = np.zeros(size, np.bool_)
    if pairs.calibrated.any():
        low, high, changed = _without_false_calibration(pairs, low, high, size, problems)
    own = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(own, low, 0.0), np.where(own, high, 0.0)
    rate, error = (low + high) / 2, np.abs(high - low) / 2
    own &= near(rate, guess) & (error < rate / 2)
    sure = own & (error < rate * RATE_SPREAD / 4)
    if sure.any():
        middle = float(np.median(rate[sure]))
        pool_low, pool_high = middle * (1 - RATE_SPREAD), middle * (1 + RATE_SPREAD)
    elif own.any():  # SMs differ by less than their pairs can tell: what all of them allow
        pool_low = float((rate - error)[own].max()) * (1 - RATE_SPREAD)
        pool_high = float((rate + error)[own].min()) * (1 + RATE_SPREAD)
        pool_low, pool_high = min(pool_low, pool_high), max(pool_low, pool_high)
    else:
        pool_low, pool_high = guess * (1 - GROSS_RATE_ERROR), guess * (1 + GROSS_RATE_ERROR)
    narrow_low = np.maximum(np.where(own, rate - error, -np.inf), pool_low)
    narrow_high = np.minimum(np.where(own, rate + error, np.inf), pool_high)
    unsure = ~sure & (narrow_low <= narrow_high)
    rate = np.where(unsure, (narrow_low + narrow_high) / 2, np.where(own, rate, (pool_low + pool_high) / 2))
    error = np.where(unsure, (narrow_high - narrow_low) / 2, np.where(own, error, (pool_high - pool_low) / 2))
    if nominal is not None:
        # The clock changed, nobody knows when, and is never faster than it is reported to be: by as much as the
        # launch's mean rate is slower, times between its pairs may be off (twice, since half a span counts). Where it
        # is faster, globaltimer fell behind (12 ms within a minute of an H200's, once), and the same holds.
        error += np.where(changed, 2 * np.abs(rate - 1 / nominal) * _longest_gap(pairs, size), 0.0)
    return Rates(rate, error)


def _calibrated_rates(pairs: Pairs, size: int, guess: float) -> Rates | None:
    """Rates from the calibration alone, when it fixes each SM's better than a launch can and the launch agrees."""
    edges = pairs.part(pairs.calibrated & pairs.kept)
    if not len(edges.sm):
        return None
    low, high = slope_bounds(edges, edges.kept, size)
    needed = np.bincount(pairs.sm[pairs.kept], minlength=size) > 0
    if not needed.any() or not (np.isfinite(low) & np.isfinite(high))[needed].all():
        return None
    low[~needed] = high[~needed] = 0.0
    rate, error = (low + high) / 2, (high - low) / 2
    if not (near(rate, guess) & (np.abs(error) <= rate * RATE_SPREAD / 4))[needed].all():
        return None
    rate[~needed], error[~needed] = np.median(rate[needed]), RATE_SPREAD * np.median(rate[needed])
    since = pairs.cycles * rate[pairs.sm]
    lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(lower, pairs.sm[pairs.kept], (pairs.low - since)[pairs.kept])
    np.minimum.at(upper, pairs.sm[pairs.kept], (pairs.high - since)[pairs.kept])
    agrees = (lower - upper)[needed].max() <= max(pairs.step_ns / 2, 50.0)
    return Rates(rate, np.abs(error)) if agrees else None


def _continued_calibration(pairs: Pairs, size: int, problems: list[ClockProblem]) -> Rates | None:
    """Rates where the launch continues one calibration and not the other; only that one then bounds the lines.

    An SM's clock falls behind, by some hundred cycles, when much work begins at once, on one side of the launch or the
    other (docs/adr/0002-clocks.md). A launch's own pairs show which line it continues, but bound it badly: globaltimer
    is read behind the clock, and other warps' turns come between.
    """
    own = pairs.part(pairs.kept & ~pairs.calibrated)
    if not len(own.sm):
        return None
    found = []
    for entry in np.unique(pairs.entry[pairs.calibrated & pairs.kept]):
        edges = pairs.part(pairs.kept & (pairs.entry == entry))
        rate = guess_rate(edges)
        if rate is None:
            continue
        slip = own.read - own.cycles * rate - edges.median(edges.read - edges.cycles * rate, size)[own.sm]
        told = np.isfinite(slip)
        if told.mean() < AGREEING:
            continue
        # The prompt reads of each part of the launch: a clock that changes in between continues nothing.
        order = np.argsort(own.read[told], kind="stable")
        parts = [np.percentile(part, 25) for part in np.array_split(slip[told][order], 4) if len(part)]
        before = bool(np.median(edges.read) < np.median(own.read))
        found.append((max(np.abs(parts)), float(np.median(parts)), before, int(entry), rate))
    reach_ns = pairs.step_ns + SLIP_NS
    if not found or min(found)[0] > reach_ns:
        return None
    least_off, _, _, chosen, rate = min(found)
    for off, middle, before, _, _ in found:
        if off > reach_ns:
            verb, way = ("fell", "behind") if (middle > 0) == before else ("ran", "ahead")
            between = "the calibration before and the launch" if before else "the launch and the calibration after"
            text = f"the SM clocks {verb} {abs(middle):.0f} ns {way} between {between}"
            problems.append(ClockProblem("clock_slipped", 1, "note", text + ": the other calibration is used"))
    pairs.kept &= ~pairs.calibrated | (pairs.entry == chosen)
    pairs.low -= least_off  # as far as the launch was seen to be off
    pairs.high += least_off
    pairs.low[~pairs.calibrated], pairs.high[~pairs.calibrated] = -np.inf, np.inf
    return Rates(np.full(size, rate), np.full(size, rate * RATE_SPREAD))


def _forgive_late(pairs: Pairs, size: int) -> None:
    """Takes lower bounds from launch pairs that were read late: those above an upper bound of their SM.

    Globaltimer is read behind the clock, so that a pair bounds the true time from above always, and from below only
    where no other warp's turn came in between. What lies close by shows that best: in ten cycles no clock runs away.
    """
    own = pairs.part(pairs.kept & ~pairs.calibrated)
    rate = guess_rate(own) if len(own.sm) else None
    if rate is None:
        return
    left, right = extent(pairs, pairs.kept & ~pairs.calibrated, size)
    slack = ROUGH_RATE_ERROR * rate * np.maximum(right - left, 0)
    least = np.full(size, np.inf)
    np.minimum.at(least, own.sm, own.high - own.cycles * rate)
    late = ~pairs.calibrated & (pairs.low - pairs.cycles * rate > (least + slack)[pairs.sm])
    late[pairs.kept & ~pairs.calibrated] |= _late_beside(own, rate)
    pairs.low[late] = -np.inf


def _late_beside(own: Pairs, rate: float) -> Bool:
    """Which pairs of a launch lie above what others of their SM allow, if its clock keeps within CHANGED_RATE."""
    first = np.searchsorted(own.sm, own.sm)
    cycles = (own.cycles - own.cycles[first]).astype(np.float64)
    low, high = own.low - own.read[first], own.high - own.read[first]
    allowed = np.full(len(low), np.inf)
    for way, fastest in ((slice(None), 1 + CHANGED_RATE), (slice(None, None, -1), 1 - CHANGED_RATE)):
        level = high - cycles * rate * fastest
        apart = np.ptp(level) + 1  # the least so far of an SM, and of no other
        turn = np.abs(own.sm - own.sm[way][0]) * apart
        least = np.minimum.accumulate((level - turn)[way])[way] + turn
        allowed = np.minimum(allowed, least + cycles * rate * fastest)
    return np.asarray(low > allowed)


def _longest_gap(pairs: Pairs, size: int) -> F64:
    """Per SM, of the time between its first and last pair of the launch, the share without any other (0 to 1)."""
    own = pairs.part(pairs.kept & ~pairs.calibrated)
    longest, whole = np.zeros(size), np.zeros(size)
    same = own.sm[1:] == own.sm[:-1]
    gap = np.diff(own.cycles).astype(np.float64)[same]
    np.maximum.at(longest, own.sm[1:][same], gap)
    np.add.at(whole, own.sm[1:][same], gap)
    return np.divide(longest, whole, out=np.zeros(size), where=whole > 0)


def _without_false_calibration(
    pairs: Pairs, low: F64, high: F64, size: int, problems: list[ClockProblem]
) -> tuple[F64, F64, Bool]:
    """Bounds in which an SM whose calibration no line joins with its launch has lost its calibration pairs; which."""
    extent = np.zeros(size)
    np.maximum.at(extent, pairs.sm, np.abs(pairs.cycles).astype(np.float64))
    some = np.isfinite(low) & np.isfinite(high)
    crossed = np.where(some, low, 0.0) - np.where(some, high, 0.0)
    false = crossed * extent > max(2 * pairs.step_ns, 100.0)
    if not false.any():
        return low, high, false
    launch_only = pairs.kept & ~pairs.calibrated
    has_launch = np.bincount(pairs.sm[launch_only], minlength=size) > 0
    false &= has_launch
    pairs.kept &= ~(pairs.calibrated & false[pairs.sm])
    again_low, again_high = slope_bounds(pairs, pairs.kept, size)
    if false.any():
        text = (
            f"on {false.sum()} SMs the clock ran otherwise in the launch than right before and after it (it slows for "
            "a moment when much work begins): there the launch's own clock pairs are used"
        )
        problems.append(ClockProblem("clock_disagrees", int(false.sum()), "note", text))
    return np.where(false, again_low, low), np.where(false, again_high, high), false
