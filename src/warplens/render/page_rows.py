"""Which row of the page each span stands in.

In: spans (ordered by launch, block, warp, sequence), blocks and the kinds of the sites. Out: `Rows`: lanes (a launch,
an SM, a slot that one block at a time is resident in), rows (a lane, a warp, a level) and the spans in the order of
rows and time. Nested and crossing ranges take levels of their own (page_levels.py), so that no two spans of a row
overlap. Computes in columns.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.render.page_levels import ROUNDING_NS, levels_of

I64 = npt.NDArray[np.int64]

SM_UNKNOWN: Final = -1
PIECE: Final = 1 << 16
"""Spans worked on at a time: their columns stay in the second-level cache, and no fresh memory is touched."""


@dataclass(frozen=True)
class Lanes:
    """One entry a lane, in the order launch, SM, slot; and the lane of each row of `blocks`."""

    launch: I64
    sm: I64
    slot: I64
    of_block: I64


@dataclass(frozen=True)
class Tracks:
    """Runs of spans of one block and one warp, in the order of the spans: where each begins, its row of `blocks`."""

    first: I64
    block: I64
    warp: I64


@dataclass(frozen=True)
class Rows:
    """The order of spans on the page, and where rows and blocks begin in it.

    A segment is what one block put into one row: `segment_spans` spans from place `segment_first` on, of the spans as
    they are or, where there is an `order`, of `order`.
    """

    order: I64 | None
    segment_first: I64
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
    lanes, of_block = distinct(launch, sm, place)
    return Lanes(lanes[0], lanes[1], lanes[2], of_block)


def tracks_of(spans: pl.DataFrame, blocks: pl.DataFrame) -> Tracks:
    """The tracks of `spans`; `blocks` is ordered by launch and block, as the spans are."""
    launch, block, warp = (spans[name].to_numpy() for name in ("launch", "block", "warp"))
    first = np.flatnonzero(_changes(launch) | _changes(block) | _changes(warp))
    keys = blocks["launch"].to_numpy().astype(np.int64) << 32 | blocks["block"].to_numpy()
    wanted = launch[first].astype(np.int64) << 32 | block[first]
    return Tracks(first, np.searchsorted(keys, wanted), warp[first].astype(np.int64))


def rows_of(spans: pl.DataFrame, tracks: Tracks, blocks: pl.DataFrame, lanes: Lanes, kinds: list[str]) -> Rows:
    """Rows of `spans`."""
    size = len(spans)
    first, track = tracks.first, np.arange(len(tracks.first))
    start_ns, duration_ns = spans["start_ns"].to_numpy(), spans["duration_ns"].to_numpy()
    order: I64 | None = None
    level = np.zeros(len(first), np.int64)
    if not _apart(start_ns, duration_ns, first):
        of_span = np.repeat(track, np.diff(np.append(first, size)))
        levels = levels_of(of_span, start_ns, start_ns + duration_ns, spans["site"].to_numpy(), kinds)
        order = np.lexsort((start_ns, levels, of_span)).astype(np.int64)
        of_span, levels = of_span[order], levels[order]
        first = np.flatnonzero(_changes(of_span) | _changes(levels))
        track, level = of_span[first], levels[first]
    counts = np.diff(np.append(first, size))
    block, warp = tracks.block[track], tracks.warp[track]
    lane, begin = lanes.of_block[block], blocks["start_ns"].to_numpy()[block]
    sorting = np.lexsort((begin, level, warp, lane))
    first, lane, warp, level, counts, block = (v[sorting] for v in (first, lane, warp, level, counts, block))
    begins = np.flatnonzero(_changes(lane) | _changes(warp) | _changes(level))
    segments = np.diff(np.append(begins, len(lane)))
    return Rows(order, first, block, counts, lane[begins], warp[begins], level[begins], segments)


def _apart(start: I64, duration: I64, first: I64) -> bool:
    """Whether every span of a track begins at or after the end of the one before it."""
    begins = np.zeros(len(start) + 1, np.bool_)
    begins[first] = True
    for low in range(0, len(start) - 1, PIECE):
        high = min(low + PIECE, len(start) - 1)
        late = start[low + 1 : high + 1] < start[low:high] + duration[low:high] - ROUNDING_NS
        if (late & ~begins[low + 1 : high + 1]).any():
            return False
    return True


def distinct(*columns: I64) -> tuple[list[I64], I64]:
    """The different rows of the columns in order, and of each row its place among them.

    Sorts one number a row: numpy's own way for several columns takes many times as long. Values are small.
    """
    least = [int(column.min(initial=0)) for column in columns]
    sizes = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, least, strict=True)]
    key = np.zeros(len(columns[0]), np.int64)
    for column, low, size in zip(columns, least, sizes, strict=True):
        key = key * size + (column - low)
    keys, place = np.unique(key, return_inverse=True)
    out: list[I64] = []
    for low, size in zip(reversed(least), reversed(sizes), strict=True):
        out.insert(0, keys % size + low)
        keys = keys // size
    return out, place.reshape(-1).astype(np.int64)


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True where a value differs from the one before, and at the first."""
    out = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def ranges(first: I64, counts: I64) -> I64:
    """first[0], first[0] + 1, ... (counts[0] of them), first[1], ..."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(first - (ends - counts), counts))
