"""Pairs of globaltimer and clock64: gathered in order, with bounds of the true time, and what slopes they allow.

In: columns of pairs and calibrations. Out: `Pairs`. Knows nothing of which of them can be believed: rates.py.
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
EXTREMES: Final = 16
"""Pairs kept at each end of an SM's life to find its rate: those say the most about it."""
PLAUSIBLE: Final = (0.02, 50.0)
"""ns per cycle of a clock between 20 MHz and 50 GHz: slopes beyond come from damaged pairs."""
GROSS_RATE_ERROR: Final = 1e-3
CHANGED_RATE: Final = 0.25
"""Under load an SM's clock runs slower, by a tenth on an H200 at a matmul: pairs so far off are no damage."""
STRAY_NS: Final = 1e9
STRAY_SPANS: Final = 10
"""A launch's pairs on one SM that lie farther off those of the others, in ns and in their length, are damaged."""
MAX_NS: Final = 1 << 62


@dataclass(frozen=True)
class ClockProblem:
    """A doubt about the time axis: `kind`, `count` (pairs or SMs), `severity` and what it means."""

    kind: str
    count: int
    severity: Literal["loss", "error", "note"]
    text: str


@dataclass
class Pairs:
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
    gross: Bool = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Pairs that `reject_gross` dropped."""

    @property
    def calibrated(self) -> Bool:
        """Which pairs are a calibration's."""
        return np.asarray(self.entry >= 0)

    def part(self, which: Bool) -> Pairs:
        """Only the pairs in the mask."""
        columns = {
            name: getattr(self, name)[which] for name in ("sm", "cycles", "read", "low", "high", "entry", "kept")
        }
        return replace(self, **columns)

    def ends(self, size: int) -> tuple[I64, I64]:
        """Indices of each SM's first and last pairs by clock, two tables (size, EXTREMES); -1 where it has fewer."""
        count = np.bincount(self.sm, minlength=size)
        start = np.cumsum(count) - count
        k = np.arange(min(EXTREMES, int(count.max(initial=1))))
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
        """Drops pairs that lie microseconds or more off the others of their SM, and a launch's pairs of an SM of which
        all were read seconds before or behind those of the other SMs.

        Those of the launch may agree with each other alone: its clock may have run otherwise than before and after it.
        """
        residual = self.read - self.cycles * guess
        center = self.median(residual, size)
        near = self._near(residual, center, self.median(self.cycles.astype(np.float64), size), guess)
        own = self.part(~self.calibrated)
        if 0 < len(own.sm) < len(self.sm):
            for rate in (guess, guess_rate(own) or guess):  # that of all pairs may be of neither's clock
                its = own.read - own.cycles * rate
                among = own._near(its, own.median(its, size), own.median(own.cycles.astype(np.float64), size), rate)
                near[~self.calibrated] |= among
        self.kept &= near
        self.kept &= ~self._stray(size)
        self.gross = ~self.kept

    def _stray(self, size: int) -> Bool:
        """Pairs of the launch on SMs of which each was read long before or behind what most SMs' pairs enclose.

        By globaltimer alone: clock64 of two SMs may lie any number of cycles apart. Groups of SMs run at rates that
        differ by 4.5e-5 on an H200, a second in six hours.
        """
        own = self.kept & ~self.calibrated
        left, right = np.full(size, np.inf), np.full(size, -np.inf)
        np.minimum.at(left, self.sm[own], self.read[own])
        np.maximum.at(right, self.sm[own], self.read[own])
        some = np.isfinite(left)
        if some.sum() < 3:
            return np.zeros(len(self.sm), np.bool_)
        begin, end = float(np.median(left[some])), float(np.median(right[some]))
        most = STRAY_NS + STRAY_SPANS * (end - begin)
        return np.asarray(own & ((left - end > most) | (begin - right > most))[self.sm])

    def plausible(self, guess: float, size: int) -> Bool:
        """Which pairs are the launch's own and no damage: those kept, and those that a clock which changed may have led
        off the line between the others, wherever in the launch they lie.
        """
        out = np.zeros(len(self.sm), np.bool_)
        own = self.part(~self.calibrated)
        if not len(own.sm):
            return out
        left, right = extent(own, own.kept, size)
        residual = own.read - own.cycles * guess
        span = np.maximum(right - left, 0).astype(np.float64) * guess
        off = np.abs(residual - own.median(residual, size)[own.sm])
        inside = (own.cycles >= left[own.sm]) & (own.cycles <= right[own.sm])
        out[~self.calibrated] = own.kept | (inside & (off <= CHANGED_RATE * span[own.sm]))
        return out

    def _near(self, residual: F64, center: F64, middle: F64, guess: float) -> Bool:
        """Which pairs lie no farther from the center of their SM than a clock between both can have led."""
        far = np.abs(self.cycles - middle[self.sm]) * guess
        rate_error = np.where(self.calibrated, GROSS_RATE_ERROR, CHANGED_RATE)
        tolerance = 4 * self.step_ns + 1000 + rate_error * far
        return np.asarray(np.abs(residual - center[self.sm]) <= tolerance)


def gather(
    sm: npt.ArrayLike,
    globaltimer_ns: npt.ArrayLike,
    clock_cycles: npt.ArrayLike,
    calibration: Sequence[Mapping[str, Any]],
    step_ns: float,
    late_ns: npt.ArrayLike,
) -> tuple[Pairs, list[ClockProblem]]:
    """The pairs of a launch and of calibrations with their bounds, and doubts about them. See `warplens.clock.fit`."""
    columns = [(int64(sm), int64(globaltimer_ns), int64(clock_cycles))]
    columns += [(int64(c["sm"]), int64(c["globaltimer_ns"]), int64(c["clock_cycles"])) for c in calibration]
    for column in columns:
        if len({len(part) for part in column}) != 1:
            raise ValueError(f"columns of clock pairs differ in length: {[len(part) for part in column]}")
    of_launch = len(columns[0][0])
    sms, ns, cycles = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    entry = np.repeat(np.arange(-1, len(columns) - 1), [len(column[0]) for column in columns])
    late = np.concatenate([np.broadcast_to(np.asarray(late_ns, np.float64), of_launch), np.zeros(len(sms) - of_launch)])
    absurd = (ns <= 0) | (ns >= MAX_NS) | (sms < 0)
    problems = []
    if absurd.any():
        count = int(absurd.sum())
        text = f"{count} clock pairs have a globaltimer that cannot be (0, negative or beyond 2^62 ns): left out"
        problems.append(ClockProblem("clock_disagrees", count, "error", text))
        sms, ns, cycles, entry, late = (part[~absurd] for part in (sms, ns, cycles, entry, late))
    base_ns = int(middle(ns)) if len(ns) else 0
    base_cycles = middle(cycles.view(np.uint64)).astype(np.int64) if len(ns) else np.int64(0)
    since = cycles - base_cycles
    order = np.lexsort((since, sms))
    start = (ns - base_ns)[order].astype(np.float64)
    entry = entry[order]
    calibrated = entry >= 0
    return Pairs(
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


def middle(values: npt.NDArray[Any]) -> Any:
    """One of the values, that about half of the others are below."""
    return np.partition(values, len(values) // 2)[len(values) // 2]


def guess_rate(pairs: Pairs) -> float | None:
    """A first rate (ns per cycle): the median slope between early and late pairs of an SM, long ones counting more."""
    size = int(pairs.sm[-1]) + 1
    first, last = pairs.ends(size)
    cycles = (pairs.cycles[last] - pairs.cycles[first]).astype(np.float64)
    ns = pairs.read[last] - pairs.read[first]
    slope = ns / np.maximum(cycles, 1.0)
    good = (first >= 0) & (cycles > 0) & (slope > PLAUSIBLE[0]) & (slope < PLAUSIBLE[1])
    if not good.any():
        return None
    slope, weight = slope[good], np.minimum(cycles[good], 1e6)
    order = np.argsort(slope)
    reached = np.cumsum(weight[order])
    return float(slope[order][np.searchsorted(reached, reached[-1] / 2)])


def slope_bounds(pairs: Pairs, use: Bool, size: int) -> tuple[F64, F64]:
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


def near(rate: F64, guess: float) -> Bool:
    """Rates that are positive and within twice or half of the guess: others come from damaged pairs."""
    return np.asarray((rate > guess / 2) & (rate < guess * 2))


def extent(pairs: Pairs, use: Bool, size: int) -> tuple[I64, I64]:
    """First and last clock of each SM among the pairs in `use`; the first is the larger where there is none."""
    left, right = np.full(size, np.iinfo(np.int64).max), np.full(size, np.iinfo(np.int64).min)
    np.minimum.at(left, pairs.sm[use], pairs.cycles[use])
    np.maximum.at(right, pairs.sm[use], pairs.cycles[use])
    return left, right
