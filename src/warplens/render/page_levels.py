"""Which level of its warp each span stands on, so that no two spans of a level overlap.

In: columns of spans and the kinds of sites. Out: a level a span: phases and waits on 0, ranges and instants above, as
low as they can be. Nested ranges are settled by counting; only tracks whose ranges cross are gone through, all of
them at once, span by span.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

MAX_LEVELS: Final = 64
"""Deeper spans share the last level: the row would be taller than a screen."""
ROUNDING_NS: Final = 2
"""Spans that overlap by no more still share a row: begin and duration are each rounded to whole ns."""
_BASE_KINDS: Final = ("phase", "wait")
_FEW: Final = 24
"""Tracks below which a step over all of them in numpy takes longer than one after the other in Python."""
_NEVER: Final = np.iinfo(np.int64).min


def levels_of(track: I64, start: I64, end: I64, site: npt.NDArray[Any], kinds: list[str]) -> I64:
    """The level of each span; `track` ascends."""
    base = np.isin(np.array(kinds), _BASE_KINDS)[site]
    level = np.zeros(len(track), np.int64)
    above = ~base
    level[above] = _open_before(track[above], start[above], end[above]) + int(base.any())
    order = np.lexsort((start, level, track))
    same = (np.diff(track[order]) == 0) & (np.diff(level[order]) == 0)
    crossing = np.unique(track[order][1:][same & (start[order][1:] < end[order][:-1] - ROUNDING_NS)])
    if len(crossing):
        lowest = np.full(int(track[-1]) + 1, int(base.any()))
        chosen = np.isin(track, crossing)
        for part, first in ((base, None), (above, lowest)):
            some = np.flatnonzero(chosen & part)
            some = some[np.lexsort((start[some], track[some]))]
            level[some] = lowest_free(track[some], start[some], end[some])
            if first is None:
                np.maximum.at(lowest, track[some], level[some] + 1)
            else:
                level[some] += first[track[some]]
    return np.minimum(level, MAX_LEVELS - 1)


def lowest_free(track: I64, start: I64, end: I64) -> I64:
    """The lowest level that is free when each span begins; spans are ordered by track and begin.

    Goes to the next span of all tracks at once, and through the last few tracks one after the other.
    """
    level = np.zeros(len(track), np.int64)
    if not len(track):
        return level
    begins = np.flatnonzero(np.append(True, np.diff(track) != 0))
    counts = np.diff(np.append(begins, len(track)))
    longest = np.argsort(-counts, kind="stable")
    begins, counts = begins[longest], counts[longest]
    busy = np.full((len(begins), 4), _NEVER)  # until when each level of each track is
    step = 0
    while (open_ := int(np.searchsorted(-counts, -step))) >= _FEW:  # tracks with more than `step` spans come first
        at = begins[:open_] + step
        free = busy[:open_] <= start[at, None] + ROUNDING_NS
        chosen, track_ = free.argmax(axis=1), np.arange(open_)
        full = ~free[track_, chosen]
        if full.any():
            width = busy.shape[1]
            chosen[full] = min(width, MAX_LEVELS - 1)
            if width < MAX_LEVELS:
                busy = np.concatenate([busy, np.full_like(busy, _NEVER)], axis=1)
        busy[track_, chosen] = np.maximum(busy[track_, chosen], end[at])
        level[at] = chosen
        step += 1
    for one in range(open_):
        rest = slice(begins[one] + step, begins[one] + counts[one])
        level[rest] = _of_track(busy[one].tolist(), start[rest].tolist(), end[rest].tolist())
    return level


def _of_track(busy: list[int], start: list[int], end: list[int]) -> list[int]:
    """The same for the spans of one track, after those that left its levels `busy`."""
    out = []
    for begin, stop in zip(start, end, strict=True):
        begin += ROUNDING_NS
        level = next((i for i, until in enumerate(busy) if until <= begin), len(busy))
        if level < MAX_LEVELS:
            busy[level : level + 1] = [stop]
        else:
            level = MAX_LEVELS - 1
            busy[level] = max(busy[level], stop)
        out.append(level)
    return out


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
