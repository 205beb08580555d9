"""Times and ids of spans and blocks as columns of a page.

In: spans and blocks. Out: columns in a `Packer`, in the order of the page's rows, holding only what the span before
and the clock line of its SM do not already tell; and those lines. Works in pieces that stay in the cache.
`page/model.js` undoes this: each float64 operation here has its like there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.render.page_pack import Packer
from warplens.render.page_rows import PIECE, SM_UNKNOWN, Rows, Tracks, distinct, lanes_of, ranges, rows_of, tracks_of

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

Lines = tuple[I64, I64, I64, F64, F64]
"""launch, sm, base_cycles, offset_ns, ns_per_cycle of each clock line."""

_ANY_RATE: Final = 0.5
"""Nanoseconds a cycle of a line that one point alone is known of: any will do, what it misses is packed."""
_NARROW: Final = (np.int8, np.int16, np.int32, np.int64)


def pack_spans(
    packer: Packer, spans: pl.DataFrame, blocks: pl.DataFrame, kinds: list[str], origin_ns: int
) -> tuple[list[dict[str, Any]], list[int], Rows]:
    """Adds all columns of blocks, rows and spans.

    Returns the clock line of each launch and SM, how many spans each site has (one entry a kind), and the rows.
    """
    tracks = tracks_of(spans, blocks)
    lanes = lanes_of(blocks)
    rows = rows_of(spans, tracks, blocks, lanes, kinds)
    base = _first_cycles(spans["start_cycles"].to_numpy(), tracks, len(blocks))
    lines, clock, since = _clock_lines(spans, blocks, tracks, base, origin_ns)
    for name, values in {
        "lane_launch": lanes.launch,
        "lane_sm": lanes.sm,
        "lane_slot": lanes.slot,
        "row_lane": rows.row_lane,
        "row_warp": rows.row_warp,
        "row_level": rows.row_level,
        "row_segments": rows.row_segments,
        "segment_block": rows.segment_block,
        "segment_spans": rows.segment_spans,
        "block_lane": lanes.of_block,
        "block_clock": clock,
        "block_since": since,
        "block_start_ns": blocks["start_ns"].to_numpy() - origin_ns,
        "block_time_ns": (blocks["end_ns"] - blocks["start_ns"]).to_numpy(),
        **{f"block_{n}": _filled(blocks[n], SM_UNKNOWN) for n in ("block", "sm_begin", "sm_end", "cluster", "wave")},
    }.items():
        packer.add(name, values)
    counts = _Spans(spans, rows, base, since, origin_ns).pack(packer, lines[3][clock], lines[4][clock])
    clocks = [
        {"launch": int(a), "sm": int(b), "base_cycles": str(c), "offset_ns": float(d), "ns_per_cycle": float(e)}
        for a, b, c, d, e in zip(*lines, strict=True)
    ]
    return clocks, [*counts, *[0] * (len(kinds) - len(counts))], rows


class _Spans:
    """Goes over the spans in the order of the page, some whole segments at a time."""

    def __init__(self, spans: pl.DataFrame, rows: Rows, base: I64, since: I64, origin_ns: int) -> None:
        self.rows, self.base, self.since, self.origin_ns = rows, base, since, origin_ns
        names = ("start_cycles", "duration_cycles", "start_ns", "duration_ns", "site", "sequence", "depth", "flags")
        self.columns: dict[str, npt.NDArray[Any]] = {name: spans[name].to_numpy() for name in names}
        self.plain = ["site", "depth", "flags"]
        for name in ("payload", "id"):
            if spans[name].null_count() < len(spans):
                self.columns[name] = spans[name].fill_null(0).to_numpy()
                self.columns[f"{name}_valid"] = spans[name].is_not_null().to_numpy().view(np.uint8)
                self.plain += [name, f"{name}_valid"]
        if "corrected_ns" in spans.columns and spans["corrected_ns"].null_count() < len(spans):
            self._add_corrected(spans)
        self.sites = int(self.columns["site"].max(initial=0)) + 1
        if self.sites <= 256:
            self.columns["site"] = self.columns["site"].astype(np.uint8)

    def _add_corrected(self, spans: pl.DataFrame) -> None:
        """Corrected durations as what they differ by from the raw ones, which is little."""
        corrected = spans["corrected_ns"]
        within = spans["corrected_uncertainty_ns"].fill_null(0).cast(pl.Float64).ceil()
        self.columns |= {
            "corrected": (corrected.cast(pl.Int64) - spans["duration_ns"]).fill_null(0).to_numpy(),
            "corrected_valid": corrected.is_not_null().to_numpy().view(np.uint8),
            "corrected_uncertainty": within.cast(pl.Int64).to_numpy(),
        }
        self.plain += ["corrected", "corrected_valid", "corrected_uncertainty"]

    def pack(self, packer: Packer, offset_ns: F64, ns_per_cycle: F64) -> list[int]:
        """Adds a column of each name; `offset_ns` and `ns_per_cycle` are those of each block's line. Spans a site."""
        parts: dict[str, list[npt.NDArray[Any]]] = {}
        by_site: list[list[npt.NDArray[Any]]] = [[] for _ in range(self.sites)]
        for low, high in self._pieces():
            piece = self._piece(low, high, offset_ns, ns_per_cycle)
            duration, order = piece.pop("duration"), np.argsort(piece["site"], kind="stable")
            edges = np.cumsum(np.bincount(piece["site"], minlength=self.sites))[:-1]
            for site, values in enumerate(np.split(duration[order], edges)):
                if len(values):
                    by_site[site].append(_narrowed(values))
            for name, values in piece.items():
                parts.setdefault(name, []).append(_narrowed(values))
        counts = [sum(len(values) for values in parts_of_site) for parts_of_site in by_site]
        nothing = np.zeros(0, np.int8)
        packer.add("duration", np.concatenate([nothing, *(v for values in by_site for v in values)]))
        for name in ("gap", "start_ns", "duration_ns", "sequence", *self.plain):
            packer.add(name, np.concatenate([nothing, *parts.pop(name, [])]))
        return counts

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Ranges of whole segments, of about PIECE spans."""
        ends = np.cumsum(self.rows.segment_spans)
        if not len(ends):
            return iter(())
        edges = np.unique(np.searchsorted(ends, np.arange(0, ends[-1], PIECE), side="right"))
        return zip(edges.tolist(), [*edges[1:].tolist(), len(ends)], strict=True)

    def _piece(self, low: int, high: int, offset_ns: F64, ns_per_cycle: F64) -> dict[str, npt.NDArray[Any]]:
        rows = self.rows
        counts = rows.segment_spans[low:high]
        at = ranges(rows.segment_first[low:high], counts)
        if rows.order is not None:
            at = rows.order[at]
        column = {name: values[at] for name, values in self.columns.items()}
        first = np.cumsum(counts) - counts
        block = np.repeat(rows.segment_block[low:high], counts)
        duration = column["duration_cycles"]
        start = column["start_cycles"] - self.base[block]
        gap = start.copy()
        gap[1:] -= start[:-1] + duration[:-1]
        gap[first] = start[first]
        start += self.since[block]
        line = offset_ns[block], ns_per_cycle[block]
        start_ns = column["start_ns"] - self.origin_ns
        end_ns = _on_line(start + duration, *line)
        follows = gap[1:] == 0
        follows[first[1:] - 1] = False
        end_ns[:-1][follows] = start_ns[1:][follows]
        end_ns = np.where(duration == 0, start_ns, end_ns)
        sequence = column["sequence"].astype(np.int64)
        step = sequence.copy()
        step[1:] -= sequence[:-1] + 1
        step[first] = sequence[first]
        out = {"gap": gap, "duration": duration, "sequence": step, "start_ns": start_ns - _on_line(start, *line)}
        out["duration_ns"] = start_ns + column["duration_ns"] - end_ns
        return out | {name: column[name] for name in self.plain}


def _on_line(cycles: I64, offset_ns: F64, ns_per_cycle: F64) -> I64:
    """The same float64 operations as in model.js: what both get alike needs no byte."""
    return np.floor(offset_ns + cycles * ns_per_cycle + 0.5).astype(np.int64)


def _narrowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in the smallest type that holds them; unsigned ones stay as they are."""
    if values.dtype.kind == "u" or not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    dtype = next(t for t in _NARROW if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return values.astype(dtype)


def _first_cycles(start: I64, tracks: Tracks, blocks: int) -> I64:
    """The lowest start of each block's spans; 0 for blocks without any."""
    base = np.zeros(blocks, np.int64)
    if len(start):
        first = _first_of_blocks(tracks)
        base[tracks.block[first]] = np.minimum.reduceat(start, tracks.first[first])
    return base


def _first_of_blocks(tracks: Tracks) -> I64:
    """The first track of each block that has any."""
    return np.flatnonzero(np.append(True, np.diff(tracks.block) != 0))


def _clock_lines(
    spans: pl.DataFrame, blocks: pl.DataFrame, tracks: Tracks, base: I64, origin_ns: int
) -> tuple[Lines, I64, I64]:
    """A straight line for each launch and SM through its first and last span; line and cycles since its base of each
    block. It need not be the decoder's: what it misses is packed beside it."""
    sm = blocks["sm_end"].fill_null(blocks["sm_begin"]).cast(pl.Int64).fill_null(SM_UNKNOWN).to_numpy()
    key, line = distinct(blocks["launch"].to_numpy().astype(np.int64), sm)
    count = len(key[0])
    lowest, ns_at, rate = np.zeros(count, np.int64), np.zeros(count), np.full(count, _ANY_RATE)
    if len(spans):
        track = _first_of_blocks(tracks)
        first = tracks.first[track]
        place = np.append(first, np.append(first[1:], len(spans)) - 1)  # the first and the last span of each block
        mine = np.tile(line[tracks.block[track]], 2)
        cycles = spans["start_cycles"].to_numpy()[place]
        ns = (spans["start_ns"].to_numpy()[place] - origin_ns).astype(np.float64)
        order = np.lexsort((cycles, mine))
        begin = np.flatnonzero(np.append(True, np.diff(mine[order]) != 0))
        low, high = order[begin], order[np.append(begin[1:], len(order)) - 1]
        length = (cycles[high] - cycles[low]).astype(np.float64)
        with np.errstate(all="ignore"):
            slope = (ns[high] - ns[low]) / length
        rate[mine[low]] = np.where(np.isfinite(slope) & (slope > 0), slope, _ANY_RATE)
        lowest[mine[low]] = cycles[low]
        missed = ns - (cycles - lowest[mine]) * rate[mine]
        ns_at = np.bincount(mine, missed, count) / np.maximum(np.bincount(mine, minlength=count), 1)
    return (key[0], key[1], lowest, ns_at, rate), line, base - lowest[line]


def _filled(values: pl.Series, nothing: int) -> I64:
    return values.cast(pl.Int64).fill_null(nothing).to_numpy()
