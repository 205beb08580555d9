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
PIECE: Final = 1 << 16
"""Spans worked on at a time: their columns stay in the second-level cache, and no fresh memory is touched."""
ROUNDING_NS: Final = 2
"""Spans that overlap by no more still share a row: begin and duration are each rounded to whole ns."""
_BASE_KINDS: Final = ("phase", "wait")


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
    keys, of_block = np.unique(np.stack([launch, sm, place]), axis=1, return_inverse=True)
    return Lanes(keys[0], keys[1], keys[2], of_block.reshape(-1).astype(np.int64))


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
        levels = _levels(of_span, start_ns, start_ns + duration_ns, spans["site"].to_numpy(), kinds)
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


def _levels(track: I64, start: I64, end: I64, site: npt.NDArray[Any], kinds: list[str]) -> I64:
    """The level of each span: phases and waits on 0, ranges above; as low as it can be, without overlaps."""
    base = np.isin(np.array(kinds), _BASE_KINDS)[site]
    level = np.zeros(len(track), np.int64)
    above = ~base
    level[above] = _open_before(track[above], start[above], end[above]) + int(base.any())
    order = np.lexsort((start, level, track))
    same = (np.diff(track[order]) == 0) & (np.diff(level[order]) == 0)
    crossing = np.unique(track[order][1:][same & (start[order][1:] < end[order][:-1] - ROUNDING_NS)])
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
        level = next((i for i, busy in enumerate(ends) if busy <= begin + ROUNDING_NS), len(ends))
        ends[level : level + 1] = [stop]
        out.append(level)
    return out


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
