"""From clock64 of an SM to nanoseconds of globaltimer: the only place that converts.

In: pairs (globaltimer_ns, clock_cycles) per SM from chunks, block records and calibrations. Out: a `ClockMap` with
one line per SM, its half width and the doubts about it. Each pair says that the true time lay within one step of
globaltimer, so each SM's line must pass through all its intervals; a rate is found, never assumed
(docs/adr/0002-clocks.md). Counters and times stay int64; floats hold only differences below 2^53.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

SKEW_NS: Final = 4.0
"""A pair's two reads lie a few cycles apart (measured: 4 cycles for clock64, globaltimer, clock64)."""
EDGE_NS: Final = 4.0
EDGE_LATE_NS: Final = 24.0
"""A calibration pair is taken at an edge of globaltimer: at most a turn of the polling loop late (about 35 cycles)."""
DEFAULT_STEP_NS: Final = 1000
"""Step of globaltimer where none was observed: GPUs before Hopper step by about 1 us."""
_EXTREMES: Final = 16
"""Pairs kept at each end of an SM's life to find its rate: those say the most about it."""
_PLAUSIBLE: Final = (0.02, 50.0)
"""ns per cycle of a clock between 20 MHz and 50 GHz: slopes beyond come from damaged pairs."""
_GROSS_RATE_ERROR: Final = 1e-3
_ROUGH_RATE_ERROR: Final = 2e-3
"""Of the rate that a launch's pairs give roughly."""
_RATE_SPREAD: Final = 1e-4
"""SMs of one GPU run within this of each other (measured: 4.5e-5)."""
_USUAL_CYCLES_PER_NS: Final = 2.0
"""Only to tell turns of 4.29 s and of records apart, where no two pairs of an SM exist."""
_AGREEING: Final = 0.9
"""Share of the SMs that a calibration must agree with."""
_SLIP_NS: Final = 40.0
"""A calibration whose line lies this far off a launch's pairs, beside their step, is of another time."""
_MAX_NS: Final = 1 << 62


@dataclass(frozen=True)
class ClockProblem:
    """A doubt about the time axis: `kind`, `count` (pairs or SMs), `severity` and what it means."""

    kind: str
    count: int
    severity: Literal["loss", "error", "note"]
    text: str


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
) -> ClockMap:
    """Finds each SM's line from the pairs of one launch and from calibration pairs taken before and after it.

    `sm`, `globaltimer_ns`, `clock_cycles`: integers of equal length, shape (n,); a pair's true time lies in
    [globaltimer, globaltimer + step). `step_ns` is the observed step (None: 1000). `late_ns` (shape () or (n,)) says by
    how much globaltimer may have been read later than the clock. `calibration` holds entries of a
    manifest (keys sm, globaltimer_ns, clock_cycles), whose pairs were taken at edges of globaltimer.
    `nominal_cycles_per_ns` is used, with a problem, only where no rate can be found; without it one cycle counts
    as 1 ns. `wanted_sms` names SMs that need a line even without a pair: they get the median line, and a
    problem; `unknown_sm`, a number that stands for an SM that is not known, gets it without.
    Raises ValueError when the columns differ in length.
    """
    step_ns = step_ns or DEFAULT_STEP_NS
    pairs, problems = _gather(sm, globaltimer_ns, clock_cycles, calibration, step_ns, late_ns)
    wanted = np.asarray(wanted_sms, np.int64)
    size = int(max(pairs.sm.max(initial=-1), wanted.max(initial=-1))) + 1
    if not len(pairs.sm):
        return _no_pairs(max(size, 1), nominal_cycles_per_ns, problems)
    guess = _guess(pairs)
    if guess is None:
        guess = _fallback_rate(nominal_cycles_per_ns, problems)
        rates = _Rates(np.full(size, guess), np.full(size, guess * _GROSS_RATE_ERROR))
        pairs.reject_gross(guess, size)
    else:
        pairs.reject_gross(guess, size)
        rates = _rates(pairs, size, guess, problems)
    out = _offsets(pairs, rates, size, problems)
    told = wanted if unknown_sm is None else wanted[wanted != unknown_sm]
    missing = np.setdiff1d(told, np.flatnonzero(out.known))
    if missing.size:
        text = f"{missing.size} SMs (the first: SM {missing[0]}) gave no usable clock pair: their times are a guess"
        out.problems.append(ClockProblem("no_clock_pair", int(missing.size), "error", text))
    return out


@dataclass
class _Pairs:
    """Pairs in the order SM, clock; `low` and `high` bound the true time, in ns since `base_ns`."""

    sm: I64
    cycles: I64  # since base_cycles
    read: F64  # globaltimer, ns since base_ns
    low: F64
    high: F64
    entry: I64  # index of the calibration that a pair is of; -1: the launch's own
    kept: Bool
    base_ns: int
    base_cycles: int
    step_ns: float
    rejected: int = 0

    @property
    def calibrated(self) -> Bool:
        return np.asarray(self.entry >= 0)

    def part(self, which: Bool) -> _Pairs:
        """Only the pairs in the mask."""
        columns = {
            name: getattr(self, name)[which] for name in ("sm", "cycles", "read", "low", "high", "entry", "kept")
        }
        return replace(self, **columns)

    def ends(self, size: int) -> tuple[I64, I64]:
        """Indices of each SM's first and last pairs by clock, two tables (size, _EXTREMES); -1 where it has fewer."""
        count = np.bincount(self.sm, minlength=size)
        start = np.cumsum(count) - count
        k = np.arange(min(_EXTREMES, int(count.max(initial=1))))
        absent = k >= count[:, None]
        first = np.where(absent, -1, start[:, None] + k)
        last = np.where(absent, -1, (start + count - 1)[:, None] - k)
        return first, last

    def median(self, values: F64, size: int) -> F64:
        """Median per SM over the pairs at its ends that are kept, shape (size,); nan where there is none."""
        index = np.concatenate(self.ends(size), axis=1)
        table = np.where((index >= 0) & self.kept[index], values[index], np.nan)
        table.sort(axis=1)  # nan goes last
        count = np.count_nonzero(~np.isnan(table), axis=1)
        each = np.arange(size)
        middle = table[each, np.maximum(count - 1, 0) // 2] + table[each, np.minimum(count // 2, table.shape[1] - 1)]
        return np.asarray(middle / 2)

    def reject_gross(self, guess: float, size: int) -> None:
        """Drops pairs that lie microseconds or more off the median of their SM, or seconds off the other SMs."""
        residual = self.read - self.cycles * guess
        center = self.median(residual, size)
        middle = self.median(self.cycles.astype(np.float64), size)
        far = np.abs(self.cycles - middle[self.sm]) * guess
        tolerance = 4 * self.step_ns + 1000 + _GROSS_RATE_ERROR * far
        self.kept &= np.abs(residual - center[self.sm]) <= tolerance
        if np.isfinite(center).sum() > 2:
            stray = np.abs(center - np.nanmedian(center)) > 1e9
            self.kept &= ~stray[self.sm]
        self.rejected = int((~self.kept).sum())


@dataclass
class _Rates:
    ns_per_cycle: F64
    error: F64  # half width, ns per cycle


def _gather(
    sm: npt.ArrayLike,
    globaltimer_ns: npt.ArrayLike,
    clock_cycles: npt.ArrayLike,
    calibration: Sequence[Mapping[str, Any]],
    step_ns: float,
    late_ns: npt.ArrayLike,
) -> tuple[_Pairs, list[ClockProblem]]:
    columns = [(int64(sm), int64(globaltimer_ns), int64(clock_cycles))]
    columns += [(int64(c["sm"]), int64(c["globaltimer_ns"]), int64(c["clock_cycles"])) for c in calibration]
    for column in columns:
        if len({len(part) for part in column}) != 1:
            raise ValueError(f"columns of clock pairs differ in length: {[len(part) for part in column]}")
    of_launch = len(columns[0][0])
    sms, ns, cycles = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    entry = np.repeat(np.arange(-1, len(columns) - 1), [len(column[0]) for column in columns])
    late = np.concatenate([np.broadcast_to(np.asarray(late_ns, np.float64), of_launch), np.zeros(len(sms) - of_launch)])
    absurd = (ns <= 0) | (ns >= _MAX_NS) | (sms < 0)
    problems = []
    if absurd.any():
        count = int(absurd.sum())
        text = f"{count} clock pairs have a globaltimer that cannot be (0, negative or beyond 2^62 ns): left out"
        problems.append(ClockProblem("clock_disagrees", count, "error", text))
        sms, ns, cycles, entry, late = (part[~absurd] for part in (sms, ns, cycles, entry, late))
    base_ns = int(_middle(ns)) if len(ns) else 0
    base_cycles = _middle(cycles.view(np.uint64)).astype(np.int64) if len(ns) else np.int64(0)
    since = cycles - base_cycles
    order = np.lexsort((since, sms))
    start = (ns - base_ns)[order].astype(np.float64)
    entry = entry[order]
    calibrated = entry >= 0
    return _Pairs(
        sm=sms[order],
        cycles=since[order],
        read=start,
        low=start - np.where(calibrated, EDGE_NS, SKEW_NS + late[order]),
        high=start + np.where(calibrated, EDGE_LATE_NS, SKEW_NS + step_ns),
        entry=entry,
        kept=np.ones(len(order), np.bool_),
        base_ns=base_ns,
        base_cycles=int(base_cycles),
        step_ns=step_ns,
    ), problems


def int64(values: npt.ArrayLike) -> I64:
    """Integers of any size modulo 2^64, as an int64 array of one dimension."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":  # a list with values on both sides of 2^63 has no integer dtype
        array = np.array([int(v) & 0xFFFFFFFFFFFFFFFF for v in np.asarray(values, object).reshape(-1)], np.uint64)
    return np.atleast_1d(array).astype(np.int64)


def _middle(values: npt.NDArray[Any]) -> Any:
    return np.partition(values, len(values) // 2)[len(values) // 2]


def _guess(pairs: _Pairs) -> float | None:
    """A first rate (ns per cycle): the median slope between early and late pairs of an SM, long ones counting more."""
    size = int(pairs.sm[-1]) + 1
    first, last = pairs.ends(size)
    cycles = (pairs.cycles[last] - pairs.cycles[first]).astype(np.float64)
    ns = pairs.read[last] - pairs.read[first]
    slope = ns / np.maximum(cycles, 1.0)
    good = (first >= 0) & (cycles > 0) & (slope > _PLAUSIBLE[0]) & (slope < _PLAUSIBLE[1])
    if not good.any():
        return None
    slope, weight = slope[good], np.minimum(cycles[good], 1e6)
    order = np.argsort(slope)
    reached = np.cumsum(weight[order])
    return float(slope[order][np.searchsorted(reached, reached[-1] / 2)])


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


def _slope_bounds(pairs: _Pairs, use: Bool, size: int) -> tuple[F64, F64]:
    """Lowest and highest rate of each SM that passes through all intervals in `use`; crossed where none does."""
    first, last = pairs.ends(size)
    low = np.full(size, -np.inf)
    high = np.full(size, np.inf)
    valid = (first >= 0) & use[first]
    valid_last = (last >= 0) & use[last]
    for k in range(last.shape[1]):  # each late pair against all early pairs
        late = last[:, k : k + 1]
        cycles = (pairs.cycles[late] - pairs.cycles[first]).astype(np.float64)
        good = valid & valid_last[:, k : k + 1] & (cycles > 0)
        cycles[~good] = 1.0
        low = np.maximum(low, np.where(good, (pairs.low[late] - pairs.high[first]) / cycles, -np.inf).max(axis=1))
        high = np.minimum(high, np.where(good, (pairs.high[late] - pairs.low[first]) / cycles, np.inf).min(axis=1))
    return low, high


def _calibrated_rates(pairs: _Pairs, size: int, guess: float) -> _Rates | None:
    """Rates from the calibration alone, when it fixes each SM's better than a launch can and the launch agrees."""
    edges = pairs.part(pairs.calibrated & pairs.kept)
    if not len(edges.sm):
        return None
    low, high = _slope_bounds(edges, edges.kept, size)
    needed = np.bincount(pairs.sm[pairs.kept], minlength=size) > 0
    if not needed.any() or not (np.isfinite(low) & np.isfinite(high))[needed].all():
        return None
    low[~needed] = high[~needed] = 0.0
    rate, error = (low + high) / 2, (high - low) / 2
    if not (_near(rate, guess) & (np.abs(error) <= rate * _RATE_SPREAD / 4))[needed].all():
        return None
    rate[~needed], error[~needed] = np.median(rate[needed]), _RATE_SPREAD * np.median(rate[needed])
    since = pairs.cycles * rate[pairs.sm]
    lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(lower, pairs.sm[pairs.kept], (pairs.low - since)[pairs.kept])
    np.minimum.at(upper, pairs.sm[pairs.kept], (pairs.high - since)[pairs.kept])
    agrees = (lower - upper)[needed].max() <= max(pairs.step_ns / 2, 50.0)
    return _Rates(rate, np.abs(error)) if agrees else None


def _near(rate: F64, guess: float) -> Bool:
    """Rates that are positive and within twice or half of the guess: others come from damaged pairs."""
    return np.asarray((rate > guess / 2) & (rate < guess * 2))


def _rates(pairs: _Pairs, size: int, guess: float, problems: list[ClockProblem]) -> _Rates:
    """Each SM's rate: from its own pairs where they say enough, else narrowed by what the other SMs say."""
    if pairs.calibrated.any():
        known = _calibrated_rates(pairs, size, guess) or _continued_calibration(pairs, size, problems)
        if known is not None:
            return known
    _forgive_late(pairs, size)
    low, high = _slope_bounds(pairs, pairs.kept, size)
    if pairs.calibrated.any():
        low, high = _without_false_calibration(pairs, low, high, size, problems)
    own = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(own, low, 0.0), np.where(own, high, 0.0)
    rate, error = (low + high) / 2, np.abs(high - low) / 2
    own &= _near(rate, guess) & (error < rate / 2)
    sure = own & (error < rate * _RATE_SPREAD / 4)
    if sure.any():
        middle = float(np.median(rate[sure]))
        pool_low, pool_high = middle * (1 - _RATE_SPREAD), middle * (1 + _RATE_SPREAD)
    elif own.any():  # SMs differ by less than their pairs can tell: what all of them allow
        pool_low = float((rate - error)[own].max()) * (1 - _RATE_SPREAD)
        pool_high = float((rate + error)[own].min()) * (1 + _RATE_SPREAD)
        pool_low, pool_high = min(pool_low, pool_high), max(pool_low, pool_high)
    else:
        pool_low, pool_high = guess * (1 - _GROSS_RATE_ERROR), guess * (1 + _GROSS_RATE_ERROR)
    narrow_low = np.maximum(np.where(own, rate - error, -np.inf), pool_low)
    narrow_high = np.minimum(np.where(own, rate + error, np.inf), pool_high)
    unsure = ~sure & (narrow_low <= narrow_high)
    rate = np.where(unsure, (narrow_low + narrow_high) / 2, np.where(own, rate, (pool_low + pool_high) / 2))
    error = np.where(unsure, (narrow_high - narrow_low) / 2, np.where(own, error, (pool_high - pool_low) / 2))
    return _Rates(rate, error)


def _continued_calibration(pairs: _Pairs, size: int, problems: list[ClockProblem]) -> _Rates | None:
    """Rates where the launch continues one calibration and not the other; only that one then bounds the lines.

    An SM's clock falls behind, by some hundred cycles, when much work begins at once (docs/adr/0002-clocks.md): most
    often between the calibration before and the launch. A launch's own pairs show which line it continues, but bound
    it badly: globaltimer is read behind the clock, and other warps' turns come between.
    """
    own = pairs.part(pairs.kept & ~pairs.calibrated)
    if not len(own.sm):
        return None
    found = []
    for entry in np.unique(pairs.entry[pairs.calibrated & pairs.kept]):
        edges = pairs.part(pairs.kept & (pairs.entry == entry))
        rate = _guess(edges)
        if rate is None:
            continue
        slip = own.read - own.cycles * rate - edges.median(edges.read - edges.cycles * rate, size)[own.sm]
        told = np.isfinite(slip)
        if told.mean() < _AGREEING:
            continue
        # The prompt reads of each part of the launch: a clock that changes in between continues nothing.
        order = np.argsort(own.read[told], kind="stable")
        parts = [np.percentile(part, 25) for part in np.array_split(slip[told][order], 4) if len(part)]
        found.append((max(np.abs(parts)), float(np.median(parts)), int(entry), rate))
    reach_ns = pairs.step_ns + _SLIP_NS
    if not found or min(found)[0] > reach_ns:
        return None
    _, _, chosen, rate = min(found)
    for off, middle, _, _ in found:
        if off > reach_ns:
            way = "behind" if middle > 0 else "ahead"
            text = f"the SM clocks fell {abs(middle):.0f} ns {way} between a calibration and the launch"
            problems.append(ClockProblem("clock_slipped", 1, "note", text + ": the other calibration is used"))
    pairs.kept &= ~pairs.calibrated | (pairs.entry == chosen)
    pairs.low -= min(found)[0]  # what the launch was seen to be off by
    pairs.high += min(found)[0]
    pairs.low[~pairs.calibrated], pairs.high[~pairs.calibrated] = -np.inf, np.inf
    return _Rates(np.full(size, rate), np.full(size, rate * _RATE_SPREAD))


def _forgive_late(pairs: _Pairs, size: int) -> None:
    """Takes lower bounds from launch pairs that were read late: those above an upper bound of their SM.

    Globaltimer is read behind the clock, so that a pair bounds the true time from above always, and from below only
    where no other warp's turn came in between.
    """
    own = pairs.part(pairs.kept & ~pairs.calibrated)
    rate = _guess(own) if len(own.sm) else None
    if rate is None:
        return
    left, right = _extent(pairs, pairs.kept & ~pairs.calibrated, size)
    slack = _ROUGH_RATE_ERROR * rate * np.maximum(right - left, 0)
    least = np.full(size, np.inf)
    np.minimum.at(least, own.sm, own.high - own.cycles * rate)
    late = ~pairs.calibrated & (pairs.low - pairs.cycles * rate > (least + slack)[pairs.sm])
    pairs.low[late] = -np.inf


def _without_false_calibration(
    pairs: _Pairs, low: F64, high: F64, size: int, problems: list[ClockProblem]
) -> tuple[F64, F64]:
    """Bounds in which an SM whose calibration no line joins with its launch has lost its calibration pairs."""
    extent = np.zeros(size)
    np.maximum.at(extent, pairs.sm, np.abs(pairs.cycles).astype(np.float64))
    some = np.isfinite(low) & np.isfinite(high)
    crossed = np.where(some, low, 0.0) - np.where(some, high, 0.0)
    false = crossed * extent > max(2 * pairs.step_ns, 100.0)
    if not false.any():
        return low, high
    launch_only = pairs.kept & ~pairs.calibrated
    has_launch = np.bincount(pairs.sm[launch_only], minlength=size) > 0
    false &= has_launch
    pairs.kept &= ~(pairs.calibrated & false[pairs.sm])
    again_low, again_high = _slope_bounds(pairs, pairs.kept, size)
    if false.any():
        text = (
            f"on {false.sum()} SMs the clock ran otherwise in the launch than right before and after it (it slows for "
            "a moment when much work begins): there the launch's own clock pairs are used"
        )
        problems.append(ClockProblem("clock_disagrees", int(false.sum()), "note", text))
    return np.where(false, again_low, low), np.where(false, again_high, high)


def _offsets(pairs: _Pairs, rates: _Rates, size: int, problems: list[ClockProblem]) -> ClockMap:
    """Each SM's offset: the middle of what all its intervals allow at its rate."""
    own = pairs.kept & ~pairs.calibrated
    reference = own if own.any() else pairs.kept
    center_cycles = np.zeros(size, np.int64)
    span_cycles = np.zeros(size)
    for edges in (pairs.kept, reference):  # the launch's own middle where it has one, else the calibration's
        left, right = _extent(pairs, edges, size)
        some = right >= left
        center_cycles[some] = left[some] + (right - left)[some] // 2
        span_cycles[some] = ((right - left)[some]).astype(np.float64)
    since = (pairs.cycles - center_cycles[pairs.sm]).astype(np.float64)
    slack = rates.error[pairs.sm] * np.abs(since) * pairs.calibrated
    low = pairs.low - slack - since * rates.ns_per_cycle[pairs.sm]
    high = pairs.high + slack - since * rates.ns_per_cycle[pairs.sm]
    _reject_fine(
        pairs, pairs.read - since * rates.ns_per_cycle[pairs.sm], rates.error[pairs.sm] * np.abs(since), size, problems
    )
    kept = pairs.kept
    lower, upper = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(lower, pairs.sm[kept], low[kept])
    np.minimum.at(upper, pairs.sm[kept], high[kept])
    known = np.isfinite(lower)
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
    )


def _extent(pairs: _Pairs, use: Bool, size: int) -> tuple[I64, I64]:
    left, right = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(left, pairs.sm[use], pairs.cycles[use])
    np.maximum.at(right, pairs.sm[use], pairs.cycles[use])
    return left, right


def _reject_fine(pairs: _Pairs, rest: F64, slack: F64, size: int, problems: list[ClockProblem]) -> None:
    """Drops pairs off their SM's line by more than reading them can explain; all stay where that is many."""
    residual = np.abs(rest - pairs.median(rest, size)[pairs.sm])
    off = pairs.kept & (residual > 2 * pairs.step_ns + 500 + 2 * slack)
    many = np.bincount(pairs.sm[off], minlength=size) * 4 > np.bincount(pairs.sm[pairs.kept], minlength=size)
    pairs.kept &= ~off | many[pairs.sm]
    count = int((off & ~many[pairs.sm]).sum()) + pairs.rejected
    if many.any():
        text = f"{many.sum()} SMs have clock pairs that no line joins: their clock changed during the launch"
        problems.append(ClockProblem("clock_disagrees", int(many.sum()), "error", text))
    if count:
        text = f"{count} of {len(pairs.sm)} clock pairs lie off the line of their SM by more than a reading can"
        problems.append(ClockProblem("clock_disagrees", count, "note", text))


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
    pairs, _ = _gather(sm, globaltimer_ns, clock_cycles, calibration, DEFAULT_STEP_NS, 0.0)
    guess = _guess(pairs) if len(pairs.sm) else None
    return guess or 1.0 / (nominal_cycles_per_ns or _USUAL_CYCLES_PER_NS)
