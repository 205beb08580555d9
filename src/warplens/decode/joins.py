"""Ranges that cross warps or each other: the pass over all runs once their spans stand in one table.

In: the whole spans table and the loose starts and ends of every run. Out: the same table, in place: ends filled in,
flags CROSS_WARP and OVERLAPPING set; which warps ended ranges of others; leftovers are problems. Must do nothing for
kernels without start/end ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warplens.decode.arrays import I64, Bool
from warplens.decode.chunks import Chunks
from warplens.decode.flags import SpanFlag
from warplens.decode.problems import Problems
from warplens.decode.ranges import crossing, join_ids
from warplens.decode.spans import F64, Loose
from warplens.decode.table import SpanTable

_FAR = 2.0**62  # cycles: beyond, times are damaged and only must not overflow
_ENDED = np.uint16(0xFFFF ^ SpanFlag.UNENDED)


@dataclass
class Enders:
    """Rows of `spans` that another warp ended, and that warp."""

    row: I64
    block: I64
    warp: I64


def join(spans: SpanTable, loose: Loose, chunks: Chunks, ns_per_cycle: F64, problems: Problems) -> Enders:
    """Ends the ranges in `spans` that an end of the same site and id ends, first inside a block, then in the launch.

    `loose` has rows of `spans` and indices of `chunks`, all runs joined; `ns_per_cycle` is per chunk.
    """
    is_end = loose.row < 0
    launch = chunks.launch[loose.chunk]
    open_ = np.arange(len(loose.row))
    enders = []
    ranges = [(loose.range_row, loose.range_gwarp, loose.range_begin, loose.range_end, loose.range_pushed)]
    for group in (chunks.block[loose.chunk] | launch << 32, launch):
        start, end = join_ids(group[open_], loose.key[open_], loose.t_ns[open_], is_end[open_], loose.sequence[open_])
        start, end = open_[start], open_[end]
        ranges.append(_end_spans(spans, loose, chunks, ns_per_cycle, start, end))
        enders.append((loose.row[start], loose.chunk[start], loose.chunk[end]))
        open_ = np.setdiff1d(open_, np.concatenate([start, end]))
    for which, kind, text in (
        (open_[~is_end[open_]], "unmatched_start", "a range_start that no end of its site and id ends"),
        (open_[is_end[open_]], "unmatched_end", "a range_end with no start of its site and id before it"),
    ):
        at = loose.chunk[which]
        problems.places(
            kind,
            "error",
            text,
            launch=chunks.launch[at],
            block=chunks.block[at],
            warp=chunks.warp[at],
            sequence=loose.sequence[which],
        )
    row, gwarp, begin, stop, pushed = (np.concatenate(parts) for parts in zip(*ranges, strict=True))
    _flag_crossing(spans, row, gwarp, begin, stop, pushed.astype(np.bool_), problems)
    row, one, two = (np.concatenate(parts) for parts in zip(*enders, strict=True))
    other = chunks.gwarp[one] != chunks.gwarp[two]
    return Enders(row[other], chunks.block[two[other]], chunks.warp[two[other]])


def _end_spans(
    spans: SpanTable, loose: Loose, chunks: Chunks, ns_per_cycle: F64, start: I64, end: I64
) -> tuple[I64, I64, I64, I64, Bool]:
    """Fills in the ends; returns row, warp, begin, end and False for the ranges that stayed inside one warp."""
    row, one, two = loose.row[start], loose.chunk[start], loose.chunk[end]
    duration_ns = loose.t_ns[end] - loose.t_ns[start]
    # Clocks of two SMs have no common zero: there the cycles follow from the nanoseconds.
    same_sm = chunks.sm[one] == chunks.sm[two]
    from_ns = np.rint(np.clip(duration_ns / ns_per_cycle[one], -_FAR, _FAR)).astype(np.int64)
    of_clock = loose.t_cycles[end] - loose.t_cycles[start]
    spans.duration_cycles[row] = np.maximum(np.where(same_sm, of_clock, from_ns), 0)
    spans.duration_ns[row] = duration_ns
    spans.flags[row] &= _ENDED
    same_warp = chunks.gwarp[one] == chunks.gwarp[two]
    spans.flags[row[~same_warp]] |= np.uint16(SpanFlag.CROSS_WARP)
    inside = np.flatnonzero(same_warp & (loose.sequence[end] > loose.sequence[start]))
    begin, stop = loose.sequence[start[inside]], loose.sequence[end[inside]]
    return row[inside], chunks.gwarp[one[inside]], begin, stop, np.zeros(len(inside), np.bool_)


def _flag_crossing(
    spans: SpanTable, row: I64, gwarp: I64, begin: I64, end: I64, pushed: Bool, problems: Problems
) -> None:
    """Flags start/end ranges that cross another range; pushed ranges keep their place in the nesting."""
    crosses = row[crossing(gwarp, begin, end) & ~pushed]
    spans.flags[crosses] |= np.uint16(SpanFlag.OVERLAPPING)
    problems.places(
        "overlapping",
        "note",
        "a range that crosses another range of its warp: drawn on its own line",
        launch=spans.launch[crosses],
        block=spans.block[crosses],
        warp=spans.warp[crosses],
        sequence=spans.sequence[crosses],
    )
