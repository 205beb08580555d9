"""Which row of the page each span stands in.

In: spans (ordered by launch, block, warp, sequence), blocks and the kinds of the sites. Out: `Rows`: lanes (a launch,
an SM, a slot that one block at a time is resident in), rows (a lane, a warp, a level) and the spans in the order of
rows and time. Nested and crossing ranges take levels of their own, so that no two spans of a row overlap.
Computes in columns; only warps whose ranges cross in ways that counting cannot settle are walked span by span.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

I64 = npt.NDArray[np.int64]

SM_UNKNOWN: Final = -1
MAX_LEVELS: Final = 64
"""Deeper spans share the last level: the row would be taller than a screen."""
_BASE_KINDS: Final = ("phase", "wait")


@dataclass(frozen=True)
class Lanes:
    """One entry a lane, in the order launch, SM, slot; and the lane of each row of `blocks`."""

    launch: I64
    sm: I64
    slot: I64
    of_block: I64


@dataclass(frozen=True)
class Rows:
    """The order of spans on the page, and where rows and blocks begin in it.

    A segment is what one block put into one row. `order` gives the spans' places in the input (None: as they are).
    """

    order: I64 | None
    segment_block: I64
    segment_spans: I64
    row_lane: I64
    row_warp: I64
    row_level: I64
    row_segments: I64


def lanes_of(blocks: pl.DataFrame) -> Lanes:
    """Lanes of all `blocks`: a block takes the lowest slot of its SM that is free when it begins."""
    sm = blocks["sm_begin"].fill_null(blocks["sm_end"]).cast(pl.Int64).fill_null(SM_UNKNOWN).to_numpy()
    launch = blocks["launch"].to_numpy().astype(np.int64)
    begin, end = blocks["start_ns"].to_numpy(), blocks["end_ns"].to_numpy()
    place = np.zeros(len(sm), np.int64)
    free: dict[tuple[int, int], list[int]] = {}
    busy: dict[tuple[int, int], list[tuple[int, int]]] = {}
    order = np.lexsort((begin, sm, launch))
    for index, key, start, stop in zip(
        order.tolist(),
        zip(launch[order].tolist(), sm[order].tolist(), strict=True),
        begin[order].tolist(),
        end[order].tolist(),
        strict=True,
    ):
        running, slots = busy.setdefault(key, []), free.setdefault(key, [])
        while running and running[0][0] <= start:
            heapq.heappush(slots, heapq.heappop(running)[1])
        place[index] = heapq.heappop(slots) if slots else len(running)
        heapq.heappush(running, (stop, int(place[index])))
    keys, of_block = np.unique(np.stack([launch, sm, place]), axis=1, return_inverse=True)
    return Lanes(keys[0], keys[1], keys[2], of_block.reshape(-1).astype(np.int64))


def rows_of(spans: pl.DataFrame, block_row: I64, blocks: pl.DataFrame, lanes: Lanes, kinds: list[str]) -> Rows:
    """Rows of `spans`; `block_row` is the row of `blocks` that each span belongs to."""
    size = len(spans)
    warp = spans["warp"].to_numpy()
    first = np.flatnonzero(_changes(block_row) | _changes(warp))
    start_ns = spans["start_ns"].to_numpy()
    end_ns = start_ns + spans["duration_ns"].to_numpy()
    inner = np.ones(max(size - 1, 0), np.bool_)
    inner[first[1:] - 1] = False
    apart = bool((start_ns[1:] >= end_ns[:-1])[inner].all())
    order: I64 | None = None
    level = np.zeros(len(first), np.int64)
    if not apart:
        track = np.repeat(np.arange(len(first)), np.diff(np.append(first, size)))
        levels = _levels(track, start_ns, end_ns, spans["site"].to_numpy(), kinds)
        order = np.lexsort((start_ns, levels, track)).astype(np.int64)
        track, levels = track[order], levels[order]
        first = np.flatnonzero(_changes(track) | _changes(levels))
        level = levels[first]
    counts = np.diff(np.append(first, size))
    at = first if order is None else order[first]
    seg_block, seg_warp = block_row[at], warp[at].astype(np.int64)
    begin = blocks["start_ns"].to_numpy()[seg_block]
    lane = lanes.of_block[seg_block]
    sorting = np.lexsort((begin, level, seg_warp, lane))
    if (np.diff(sorting) != 1).any():
        gather = _ranges(first[sorting], counts[sorting])
        order = gather if order is None else order[gather]
    lane, seg_warp, level, counts, seg_block = (v[sorting] for v in (lane, seg_warp, level, counts, seg_block))
    begins = np.flatnonzero(_changes(lane) | _changes(seg_warp) | _changes(level))
    return Rows(
        order,
        seg_block,
        counts,
        lane[begins],
        seg_warp[begins],
        level[begins],
        np.diff(np.append(begins, len(lane))),
    )


def _levels(track: I64, start: I64, end: I64, site: npt.NDArray[Any], kinds: list[str]) -> I64:
    """The level of each span: phases and waits on 0, ranges above; as low as it can be, without overlaps."""
    base = np.isin(np.array(kinds), _BASE_KINDS)[site]
    level = np.zeros(len(track), np.int64)
    above = ~base
    level[above] = _open_before(track[above], start[above], end[above]) + int(base.any())
    order = np.lexsort((start, level, track))
    same = (np.diff(track[order]) == 0) & (np.diff(level[order]) == 0)
    crossing = np.unique(track[order][1:][same & (start[order][1:] < end[order][:-1])])
    if len(crossing):
        chosen = np.flatnonzero(np.isin(track, crossing))
        chosen = chosen[np.lexsort((above[chosen], start[chosen], track[chosen]))]
        level[chosen] = _lowest_free(track[chosen].tolist(), start[chosen].tolist(), end[chosen].tolist())
    return np.minimum(level, MAX_LEVELS - 1)


def _open_before(track: I64, start: I64, end: I64) -> I64:
    """How many spans of its track are open when each begins; of those that begin together the first one is below."""
    size = len(track)
    lasting = np.flatnonzero(end > start)
    step = np.concatenate([(end > start).astype(np.int64), np.full(len(lasting), -1, np.int64)])
    times = np.concatenate([start, end[lasting]])
    begins = np.concatenate([np.ones(size, np.int64), np.zeros(len(lasting), np.int64)])
    tracks = np.concatenate([track, track[lasting]])
    order = np.lexsort((begins, times, tracks))
    open_before = np.zeros(len(order), np.int64)
    open_before[order] = np.cumsum(step[order]) - step[order]
    return open_before[:size]


def _lowest_free(track: list[int], start: list[int], end: list[int]) -> list[int]:
    out, ends, current = [], list[int](), None
    for where, begin, stop in zip(track, start, end, strict=True):
        if where != current:
            current, ends = where, []
        level = next((i for i, busy in enumerate(ends) if busy <= begin), len(ends))
        ends[level : level + 1] = [stop]
        out.append(level)
    return out


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True where a value differs from the one before, and at the first."""
    out = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def _ranges(first: I64, counts: I64) -> I64:
    """first[0], first[0] + 1, ... (counts[0] of them), first[1], ..."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(first - (ends - counts), counts))
