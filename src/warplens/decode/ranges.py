"""Who ends whom: pushes and pops, tokens, and starts and ends joined by site and id.

In: columns of events (kinds, segments, keys). Out: index pairs of matched events and the indices left over.
A segment is a stretch of one warp without lost records: pushes and pops match only inside it, for nothing in them
names its partner; tokens and ids do, so they match across stretches (and ids across warps).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from warplens.decode.arrays import I64, Bool
from warplens.decode.events import RANGE_POP, U8
from warplens.layout import Verb


@dataclass
class Pushes:
    """`begin[i]` ends at `end[i]`; `depth` is the number of open pushes before each event."""

    begin: I64
    end: I64
    depth: I64
    unmatched_pop: I64


def match_pushes(kind: U8, segment: I64) -> Pushes:
    """Matches RANGE_PUSH and RANGE_POP inside segments (numbers that never decrease along the events)."""
    push, pop = kind == Verb.RANGE_PUSH, kind == RANGE_POP
    level = np.cumsum(push.view(np.int8) - pop.view(np.int8), dtype=np.int64)
    first = np.flatnonzero(np.append(True, segment[1:] != segment[:-1]))
    before_segment = np.append(0, level)[first]
    level -= np.repeat(before_segment, np.diff(np.append(first, len(kind))))
    # A pop with nothing open takes the running minimum below zero: count from there on. Segments are set apart
    # by more than a level can fall, so that one running minimum serves all.
    apart = segment * (2 * len(kind) + 1)
    lowest = np.minimum(np.minimum.accumulate(level - apart) + apart, 0)
    open_after = level - lowest
    previous_lowest = np.append(0, lowest[:-1])
    previous_lowest[first] = 0
    spare = pop & (lowest < previous_lowest)
    pop &= ~spare
    depth = open_after - push + pop
    # Within one segment and one depth, pushes and pops alternate.
    which = np.flatnonzero(push | pop)
    at_depth = open_after[which] - push[which]
    narrow = at_depth.astype(np.uint16) if at_depth.max(initial=0) < 1 << 16 else at_depth
    which = which[np.argsort(narrow, kind="stable")]  # 16 bits: numpy sorts them by radix
    one, two = which[:-1], which[1:]
    pair = push[one] & pop[two] & (segment[one] == segment[two]) & (depth[two] == depth[one] + 1)
    return Pushes(one[pair], two[pair], depth, np.flatnonzero(spare))


def match_tokens(starts_key: I64, ends_key: I64) -> tuple[I64, I64]:
    """Pairs (start, end) of positions whose keys agree; `starts_key` ascends, and a start ends once, at the first."""
    if not len(starts_key) or not len(ends_key):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(starts_key, ends_key), len(starts_key) - 1)
    end = np.flatnonzero(starts_key[at] == ends_key)
    start, first = np.unique(at[end], return_index=True)
    return start, end[first]


def join_ids(group: I64, key: I64, t_ns: I64, is_end: Bool, order: I64) -> tuple[I64, I64]:
    """Pairs (start, end) of positions: each end takes the nearest start before it with the same group and key.

    `order` breaks ties of time. A start that another start follows before any end stays open.
    """
    by = np.lexsort((order, is_end, t_ns, key, group))
    one, two = by[:-1], by[1:]
    pair = ~is_end[one] & is_end[two] & (group[one] == group[two]) & (key[one] == key[two])
    return one[pair], two[pair]


def crossing(gwarp: I64, begin: I64, end: I64) -> Bool:
    """True for each interval [begin, end] (record numbers of its warp) that crosses another one of its warp.

    Each interval gets a random 64-bit mark at its begin and its end. Between the two ends of an interval that
    crosses none, all marks cancel; a false cancel has the chance 2^-64.
    """
    size = len(gwarp)
    mark = np.random.default_rng(0).integers(1, 1 << 63, size, dtype=np.int64)
    where = np.concatenate([begin, end])
    order = np.lexsort((where, np.concatenate([gwarp, gwarp])))
    prefix = np.bitwise_xor.accumulate(np.concatenate([mark, mark])[order])
    position = np.empty(2 * size, np.int64)
    position[order] = np.arange(2 * size)
    after_begin = prefix[position[:size]]
    before_end = prefix[position[size:]] ^ mark
    return np.asarray(after_begin != before_end)


def last_of_segment(fresh: Bool) -> tuple[npt.NDArray[np.int64], I64]:
    """Segment number of each event, and the index of the last event of each segment."""
    segment = np.cumsum(fresh, dtype=np.int64) - 1
    last = np.append(np.flatnonzero(fresh)[1:], len(fresh)) - 1
    return segment, last
