"""How many blocks or warps are resident, as steps over time.

In: intervals. Out: the times at which their sum changes, as numpy columns. Writes no bytes.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from warplens.render.perfetto.nesting import I64


def steps(group: I64, begin_ns: I64, end_ns: I64, amount: I64) -> tuple[I64, I64, I64]:
    """Group by group the times at which the sum of its intervals changes, and its value from each on: 0 at the last."""
    if not len(group):
        return group, begin_ns, amount
    groups, times = np.concatenate([group, group]), np.concatenate([begin_ns, end_ns])
    order = np.lexsort((times, groups))
    groups, times = groups[order], times[order]
    first = np.flatnonzero(np.append(True, (groups[1:] != groups[:-1]) | (times[1:] != times[:-1])))
    change = np.add.reduceat(np.concatenate([amount, -amount])[order], first)
    kept = np.flatnonzero(change)
    return groups[first[kept]], times[first[kept]], np.cumsum(change)[kept]


def block_times(blocks: pl.DataFrame) -> tuple[I64, I64]:
    """Begin and end of each block; none ends before it begins."""
    begin, end = (blocks[name].to_numpy() for name in ("start_ns", "end_ns"))
    return begin, np.maximum(begin, end)
