"""Which track of a Perfetto trace each block and each span lies on, and in which order their events come.

In: the chosen tables. Out: numbers of SMs, slots, warps and lines, as numpy columns; per piece of the spans the
places of begins and ends. Writes no bytes.

A warp's track belongs to a slot of its SM, not to its block: as one block leaves, the next takes the lowest slot that
is free, and its warps go on in the same rows. A grid of 10^5 blocks then has as many rows as fit on the GPU at once
(132 SMs x 3 blocks x 20 warps for RMSNorm), waves stand side by side, and rows do not move when blocks are left out.

On a track spans must nest. Those that cannot (the decoder flagged them, or they cross an earlier one of their warp)
go "aside", to lines of their own below the warp, where they only follow each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.errors import FormatError, UsageError

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

PIECE_ROWS: Final = 1 << 15
"""Spans worked on at a time: their columns and packets stay in the caches, and places fit into 16 bits."""
_NEVER_NESTS: Final = np.uint16(SpanFlag.OVERLAPPING | SpanFlag.CROSS_WARP)


@dataclass(frozen=True)
class Spans:
    """Columns of the spans, in an order in which all spans of a warp stand together."""

    frame: pl.DataFrame
    start_ns: I64
    end_ns: I64
    depth: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint16]
    first: I64
    """Index of the first span of each run: the spans of one warp of one block."""
    block_row: I64
    """Row of the table of blocks, for each run."""
    warp: I64
    """Warp of the block, for each run."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def run(self, part: slice | I64) -> I64:
        """Which run each of the spans in `part` is of."""
        if not isinstance(part, slice):
            return np.asarray(np.searchsorted(self.first, part, side="right") - 1)
        one, last = np.searchsorted(self.first, [part.start, part.stop - 1], side="right") - 1
        edges = np.concatenate([[part.start], self.first[one + 1 : last + 1], [part.stop]])
        return np.repeat(np.arange(one, last + 1), np.diff(edges))


def read_spans(frame: pl.DataFrame, blocks: pl.DataFrame) -> Spans:
    """The columns of `frame`; FormatError when `blocks` lacks one of its blocks, UsageError for times beyond int64."""
    first, block_row, warp = _runs(frame, blocks)
    run = block_row << 8 | warp
    if len(np.unique(run)) < len(run):  # no file of ours: a warp's spans lie apart
        frame = frame.sort("launch", "block", "warp", "sequence")
        first, block_row, warp = _runs(frame, blocks)
    frame = frame.rechunk()
    start_ns, duration_ns = (frame[name].to_numpy() for name in ("start_ns", "duration_ns"))
    end_ns = start_ns + np.maximum(duration_ns, 0)
    if (end_ns < start_ns).any():
        raise UsageError("a span ends beyond 2^63 ns: leave it out with --to or --blocks")
    depth, flags = frame["depth"].to_numpy(), frame["flags"].to_numpy()
    instant = (flags & np.uint16(SpanFlag.INSTANT)) != 0
    end_ns[instant] = start_ns[instant]
    return Spans(frame, start_ns, end_ns, depth, flags, first, block_row, warp)


def _runs(frame: pl.DataFrame, blocks: pl.DataFrame) -> tuple[I64, I64, I64]:
    """First span, row of `blocks`, and warp of each run."""
    launch, block, warp = (frame[name].to_numpy() for name in ("launch", "block", "warp"))
    begins = np.ones(len(launch), np.bool_)
    begins[1:] = (warp[1:] != warp[:-1]) | (block[1:] != block[:-1]) | (launch[1:] != launch[:-1])
    first = np.flatnonzero(begins)
    keys = blocks["launch"].to_numpy().astype(np.int64) << 32 | blocks["block"].to_numpy()
    wanted = launch[first].astype(np.int64) << 32 | block[first]
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), max(len(keys) - 1, 0))
    row = order[at] if len(keys) else np.zeros(0, np.int64)
    if len(row) != len(wanted) or (keys[row] != wanted).any():
        raise FormatError("the table of blocks lacks a block that has spans")
    return first, row, warp[first].astype(np.int64)


def lanes(group: I64, begin_ns: I64, end_ns: I64, *, apart: bool = False) -> I64:
    """The lowest lane of its group in which each interval meets no other.

    With `apart` a lane is free only after its last interval ended, else also at that moment.
    """
    lane = np.zeros(len(group), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    now: int | None = None
    order = np.lexsort((end_ns, begin_ns, group))
    columns = (order, group[order], begin_ns[order], end_ns[order])
    for row, where, begin, end in zip(*(c.tolist() for c in columns), strict=True):
        if where != now:
            now, busy, free = where, [], []
        while busy and (busy[0][0] < begin or (busy[0][0] == begin and not apart)):
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[row] = place = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, place))
    return lane


def extents(blocks: pl.DataFrame, spans: Spans) -> tuple[I64, I64]:
    """Begin and end of each block: what the table says, widened to its spans that end in their own warp."""
    begin, end = (np.array(blocks[name].to_numpy()) for name in ("start_ns", "end_ns"))
    if len(spans):
        inside = np.where(spans.flags & np.uint16(SpanFlag.CROSS_WARP), spans.start_ns, spans.end_ns)
        np.minimum.at(begin, spans.block_row, np.minimum.reduceat(spans.start_ns, spans.first))
        np.maximum.at(end, spans.block_row, np.maximum.reduceat(inside, spans.first))
    return begin, np.maximum(begin, end)


# ---- nesting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nest:
    """How the spans at `rows` lie in each other: `close` is the first of them that begins when each has ended."""

    rows: slice | I64
    close: I64 | None
    """None: each ends before the next begins."""
    level: I64
    """Spans open when each begins; empty when none ever is."""


def pieces(spans: Spans) -> Iterator[slice]:
    """The spans in pieces of whole runs, of about PIECE_ROWS where no run is longer."""
    begin, size = 0, len(spans)
    while begin < size:
        next_run = int(np.searchsorted(spans.first, begin + PIECE_ROWS))
        end = int(spans.first[next_run]) if next_run < len(spans.first) else size
        yield slice(begin, end)
        begin = end


def nest(spans: Spans, rows: slice | I64) -> Nest:
    """How the spans at `rows` nest; where they do not, some lie on a level whose owner ends before them."""
    begin, end, run = spans.start_ns[rows], spans.end_ns[rows], spans.run(rows)
    if _follows(begin, end, run).all():
        return Nest(rows, None, np.zeros(0, np.int64))
    key_begin, key_end = _keys(begin, end, run)
    if (key_begin[1:] < key_begin[:-1]).any():  # times that go back: damaged records, or a warp that changed its SM
        order = np.argsort(key_begin, kind="stable")
        rows = order + rows.start if isinstance(rows, slice) else rows[order]
        begin, end, key_begin, key_end = (a[order] for a in (begin, end, key_begin, key_end))
    size = len(begin)
    close = np.maximum(np.searchsorted(key_begin, key_end), np.arange(1, size + 1))
    _keep_empty_children(close, spans, rows, key_begin, key_end)
    level = np.arange(size) - np.cumsum(np.bincount(close, minlength=size + 1))[:size]
    return Nest(rows, close, level)


def _follows(begin: I64, end: I64, run: I64) -> Bool:
    """Whether each span but the first begins after the one before it has ended, or in another run."""
    return np.asarray((begin[1:] >= end[:-1]) | (run[1:] != run[:-1]))


def _keys(begin: I64, end: I64, run: I64) -> tuple[I64, I64]:
    """Times as numbers that also tell runs apart: each run has a range of its own."""
    low, reach = int(begin.min()), int(end.max()) - int(begin.min()) + 1
    order = run - run.min()
    if (int(order.max()) + 1) * reach >= 1 << 62:  # no room for that: their ranks are enough
        _, ranks = np.unique(np.concatenate([begin, end]), return_inverse=True)
        begin, end = ranks[: len(begin)], ranks[len(begin) :]
        low, reach = 0, len(ranks) + 1
    return order * reach + (begin - low), order * reach + (end - low)


def _keep_empty_children(close: I64, spans: Spans, rows: slice | I64, key_begin: I64, key_end: I64) -> None:
    """A span of 0 ns at the very end of a pushed range lies in it: its depth says so, the time alone does not."""
    depth = spans.depth[rows].astype(np.int64)
    within = np.append(depth[1:] > depth[:-1], False)  # only a push raises the depth of what comes next
    within &= (spans.flags[rows] & np.uint16(SpanFlag.INSTANT)) == 0  # a detached mark knows no depth
    owners = np.flatnonzero(within)
    key_begin, key_end = np.append(key_begin, -1), np.append(key_end, -1)
    depth = np.append(depth, -1)
    while len(owners):
        last = close[owners]
        inside = (key_begin[last] == key_end[owners]) & (key_end[last] == key_end[owners])
        owners = owners[inside & (depth[last] > depth[owners])]
        close[owners] += 1


def find_aside(spans: Spans) -> Bool:
    """True for each span that needs a line of its own."""
    aside = np.asarray((spans.flags & _NEVER_NESTS) != 0)
    meets = spans.start_ns[1:] < spans.end_ns[:-1]
    meets[spans.first[1:] - 1] = False
    runs = np.unique(np.searchsorted(spans.first, np.flatnonzero(meets), side="right") - 1)
    sizes = np.diff(np.append(spans.first, len(spans)))[runs]
    until = np.cumsum(sizes)
    begin = 0
    while begin < len(runs):  # some runs at a time, PIECE_ROWS spans or one run
        done = int(until[begin] - sizes[begin])
        end = max(begin + 1, int(np.searchsorted(until, done + PIECE_ROWS)))
        size = sizes[begin:end]
        rows = np.repeat(spans.first[runs[begin:end]] - np.cumsum(size) + size, size) + np.arange(int(size.sum()))
        _mark_crossing(spans, rows[~aside[rows]], aside)
        begin = end
    return aside


def _mark_crossing(spans: Spans, rows: I64, aside: Bool) -> None:
    """Marks spans that cross an earlier one of their run that stays on the warp's track."""
    if not len(rows):
        return
    found = nest(spans, rows)
    if found.close is None:
        return
    assert not isinstance(found.rows, slice)
    end, level = spans.end_ns[found.rows], found.level
    by_level = np.argsort(level, kind="stable")
    first = np.searchsorted(level[by_level], np.arange(int(level.max()) + 2))
    wrong = np.zeros(len(rows), np.bool_)
    for above, here, stop in zip(first[:-2].tolist(), first[1:-1].tolist(), first[2:].tolist(), strict=True):
        outer, inner = by_level[above:here], by_level[here:stop]
        owner = outer[np.searchsorted(outer, inner) - 1]
        wrong[inner] = end[inner] > end[owner]
    runs = spans.run(found.rows)
    bad = np.isin(runs, runs[wrong])
    columns = (found.rows[bad], runs[bad], spans.start_ns[found.rows[bad]], end[bad])
    crossing, now, open_until = [], -1, list[int]()
    for row, run, begin, until in zip(*(column.tolist() for column in columns), strict=True):
        if run != now:
            now, open_until = run, []
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if open_until and open_until[-1] < until:
            crossing.append(row)
        else:
            open_until.append(until)
    aside[crossing] = True


def event_order(close: I64) -> tuple[I64, I64]:
    """Places of the begins and of the ends of spans that nest, in the one order of all of these events.

    An end comes before the begins at its time, those of the innermost spans first.
    """
    size = len(close)
    ends_before = np.cumsum(np.bincount(close, minlength=size + 1))[:size]
    narrow: Any = close.astype(np.uint16) if size < 1 << 16 else close  # numpy sorts 16 bits by radix
    by_close = size - 1 - np.argsort(narrow[::-1], kind="stable")
    end = np.empty(size, np.int64)
    end[by_close] = np.arange(size) + close[by_close]
    return np.arange(size) + ends_before, end
