"""Which share of the resident warps is in each phase, over time: what a Perfetto trace shows as counters.

In: blocks, spans, sites. Out: times, and per phase the share in percent from each on. A share is a mean over a step of
time, not a sample: exact counters would have as many packets as the spans. Writes no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.render.coverage import F64, Covered
from warplens.render.perfetto.nesting import I64, Spans
from warplens.render.perfetto.steps import block_times, steps

SPANS_PER_VALUE: Final = 32
"""At least this many spans stand for one value of a counter, so that counters add little to a large file."""
LEAST_STEPS: Final = 200
"""Of a trace in which that would leave fewer."""
PARTS: Final = 8
"""Shares are in eighths of a percent: as binary fractions they are short, and pack well."""
_ROWS: Final = 1 << 18


@dataclass(frozen=True)
class Shares:
    """`percent[n]` holds from `times_ns[n]` on (0 at the end of each stretch with resident warps), a column a site."""

    sites: list[int]
    times_ns: I64
    percent: F64


@dataclass(frozen=True)
class _Grid:
    """Steps of `step_ns` over each stretch of time in which warps are resident, and one place more for its end."""

    begin_ns: I64
    end_ns: I64
    first: I64
    """Place of the first step of each stretch."""
    places: int
    step_ns: int

    def stretch(self, at_ns: I64) -> I64:
        """The stretch that each time lies in."""
        return np.asarray(np.maximum(np.searchsorted(self.begin_ns, at_ns, side="right") - 1, 0))

    def place(self, stretch: I64, times_ns: I64) -> F64:
        """How many steps, whole and in part, lie before each time."""
        at = (times_ns - self.begin_ns[stretch]) / self.step_ns + self.first[stretch]
        return np.clip(at, 0, self.places - 1, out=at)


def find_shares(blocks: pl.DataFrame, spans: Spans, sites: pl.DataFrame) -> Shares:
    """The shares of phases and waits, of ranges where neither was recorded; none where no warp is resident."""
    kinds, site = sites["kind"].to_numpy(), spans.frame["site"].to_numpy()
    seen = np.flatnonzero(np.bincount(site, minlength=sites.height))
    chosen = seen[np.isin(kinds[seen], ["phase", "wait"])].tolist() or seen[kinds[seen] == "range"].tolist()
    begin, end = block_times(blocks)
    warps = blocks["warps"].to_numpy().astype(np.int64)
    grid = _grid(begin, end, warps, len(spans) // (SPANS_PER_VALUE * max(len(chosen), 1)))
    if not chosen or not grid.places:
        return Shares([], np.zeros(0, np.int64), np.zeros((0, 0)))
    stretch = grid.stretch(begin)
    resident = Covered(1, grid.places)
    resident.add(0, grid.place(stretch, begin), grid.place(stretch, end), warps)
    covered = _covered(spans, grid, stretch[spans.block_row], chosen, sites.height)
    whole = resident.total()
    percent = np.round(covered / np.maximum(whole, 1e-9) * (100 * PARTS)) / PARTS
    return Shares(chosen, _times_ns(grid), np.where(whole > 1e-6, percent, 0).T)


def _covered(spans: Spans, grid: _Grid, stretch_of_run: I64, chosen: list[int], sites: int) -> F64:
    """What the spans of each chosen site cover: shape (sites, places)."""
    row_of_site = np.full(sites, len(chosen))  # all else goes to one more row
    row_of_site[chosen] = np.arange(len(chosen))
    site = spans.frame["site"].to_numpy()
    found = Covered(len(chosen) + 1, grid.places)
    for low in range(0, len(spans), _ROWS):
        part = slice(low, min(low + _ROWS, len(spans)))
        row, stretch = row_of_site[site[part]], stretch_of_run[spans.run(part)]
        row[(spans.flags[part] & np.uint16(SpanFlag.CROSS_WARP)) != 0] = len(chosen)
        found.add(row, grid.place(stretch, spans.start_ns[part]), grid.place(stretch, spans.end_ns[part]))
    return found.total()[:-1]


def _grid(begin: I64, end: I64, warps: I64, wanted: int) -> _Grid:
    """About `wanted` steps, or LEAST_STEPS, over the stretches; a stretch has one at least."""
    _, times, values = steps(np.zeros_like(begin), begin, end, warps)
    from_ns = times[(values > 0) & (np.append(0, values)[:-1] == 0)]
    to_ns = times[values == 0]
    busy_ns = int((to_ns - from_ns).sum())
    step_ns = max(1, -(-busy_ns // max(wanted, LEAST_STEPS)))
    sizes = -(-(to_ns - from_ns) // step_ns) + 1
    return _Grid(from_ns, to_ns, np.cumsum(sizes) - sizes, int(sizes.sum()), step_ns)


def _times_ns(grid: _Grid) -> I64:
    """When each place begins."""
    sizes = np.diff(np.append(grid.first, grid.places))
    stretch = np.repeat(np.arange(len(sizes)), sizes)
    step = np.arange(grid.places) - grid.first[stretch]
    return np.asarray(np.minimum(grid.begin_ns[stretch] + step * grid.step_ns, grid.end_ns[stretch]))
