"""A line for each block, where one for each SM cannot follow its clock: from the block's begin to its end.

In: pairs of globaltimer and clock64 at the begin and end of blocks, and the launch's `ClockMap`. Out: `Chords`. A block
whose pairs look damaged gets none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.clock.pairs import CHANGED_RATE, F64, I64, SKEW_NS, Bool

if TYPE_CHECKING:
    from warplens.clock import ClockMap

_SHORT: Final = 8
"""Steps of globaltimer: what lasts shorter takes its rate from the SM's line."""
_STRAY: Final = 4
"""Times the launch's uncertainty: a pair that lies farther off its SM's line is damaged."""


@dataclass(frozen=True)
class Chords:
    """One line per block, arrays of shape (n,): ns = map.base_ns + offset_ns + (cycles - begin) * ns_per_cycle.

    `usable`: blocks that have one. `uncertainty_ns`: how far off a time inside of a block may be.
    """

    offset_ns: F64
    ns_per_cycle: F64
    usable: Bool
    uncertainty_ns: float


def chords(
    fitted: ClockMap,
    sm: I64,
    begin: tuple[I64, I64],
    end: tuple[I64, I64],
    *,
    step_ns: float,
    late_ns: float,
    nominal_cycles_per_ns: float | None = None,
) -> Chords:
    """`begin` and `end`: globaltimer (ns) and clock64 of each block; at the end it may be read `late_ns` late.

    Within a block the clock may have changed too: between the fastest rate (that of the block that was fastest, or the
    reported one) and the slowest of all blocks, at the worst moment.
    """
    (begin_ns, begin_cycles), (end_ns, end_cycles) = begin, end
    first = np.asarray(begin_ns - fitted.base_ns, np.float64) + step_ns / 2
    last = np.asarray(end_ns - fitted.base_ns, np.float64) + (step_ns - late_ns) / 2
    cycles = (end_cycles - begin_cycles).astype(np.float64)
    own = fitted.ns_per_cycle[sm]
    rate = np.where(last - first >= _SHORT * step_ns, (last - first) / np.maximum(cycles, 1.0), own)
    line = fitted.offset_ns[sm] + (begin_cycles - fitted.base_cycles[sm]).astype(np.float64) * own
    usable = (cycles > 0) & (np.abs(rate / own - 1) <= CHANGED_RATE)
    usable &= np.abs(first - line) <= _STRAY * fitted.uncertainty_ns
    if not usable.any():
        return Chords(first, rate, usable, fitted.uncertainty_ns)
    fastest = float(rate[usable].min())
    if nominal_cycles_per_ns is not None and nominal_cycles_per_ns > 0:
        fastest = min(fastest, 1.0 / nominal_cycles_per_ns)
    inside = float(((rate - fastest) * cycles)[usable].max()) / 4
    return Chords(first, rate, usable, (step_ns + late_ns) / 2 + SKEW_NS + inside)
