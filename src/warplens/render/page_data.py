"""What a page knows of a trace: tables as JSON-able facts, spans and blocks as packed columns.

In: a Trace and which launch and blocks of it. Out: `PageData`. Times are ns from `origin_ns`, cycles from the first
of their SM in the launch; both come out of the page exactly as they stand in the trace (a test compares them).
Must not write files or know HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.errors import UsageError
from warplens.render.colors import WAITING_KINDS, ink_on, site_colors
from warplens.render.escape import visible, visible_tree
from warplens.render.page_pack import Packer
from warplens.render.page_rows import SM_UNKNOWN, Rows, lanes_of, rows_of
from warplens.render.phases import launch_groups, phase_table
from warplens.render.pick import number_ranges, pick_launch
from warplens.render.trust import trust_lines

if TYPE_CHECKING:
    from warplens.trace import Trace

I64 = npt.NDArray[np.int64]

MAX_SPANS: Final = 12_000_000
"""More than the 10^7 that a page is measured to carry; beyond, blocks are sampled and the page says so."""
MAX_PROBLEMS: Final = 5000
MAX_NAME: Final = 20_000
MAX_SOURCE_CHARACTERS: Final = 1 << 20


@dataclass(frozen=True)
class PageData:
    """`facts` is JSON; `columns` says how `streams` hold the numbers; `shown` of `held` spans; `sampled` in words."""

    facts: dict[str, Any]
    columns: dict[str, dict[str, Any]]
    streams: list[str]
    shown: int
    held: int
    sampled: str


def page_data(
    trace: Trace, *, launch: int | None = None, blocks: Sequence[int] | None = None, max_spans: int = MAX_SPANS
) -> PageData:
    """The data of a page over the whole trace, one launch, or some blocks.

    Raises UsageError for a launch or blocks that the trace does not hold.
    """
    if launch is not None:
        pick_launch(trace, launch)
    spans, rows, held, sampled = _chosen(trace, launch, blocks, max_spans)
    packer = Packer()
    origin_ns, extent_ns = _extent(spans, rows)
    kinds = trace.sites["kind"].to_list()
    with ThreadPoolExecutor(1) as pool:  # the phase table is Polars' work, packing numpy's: neither holds the lock
        told = pool.submit(_facts, trace, launch)
        clocks = _pack_spans(packer, spans, rows, kinds, origin_ns)
        facts = told.result()
    facts |= {
        "origin_ns": str(trace.origin_ns + origin_ns),
        "since_trace_ns": str(origin_ns),
        "extent_ns": extent_ns,
        "clocks": clocks,
        "spans": len(spans),
        "held": held,
        "sampled": sampled,
        "window": _window(launch, blocks),
    }
    return PageData(facts, packer.columns, packer.streams(), len(spans), held, sampled)


def _extent(spans: pl.DataFrame, blocks: pl.DataFrame) -> tuple[int, int]:
    """The first instant of the page, since the trace's origin, and how long the page lasts."""
    first, last = [], []
    if len(spans):
        start_ns = spans["start_ns"].to_numpy()
        first.append(int(start_ns.min()))
        last.append(int((start_ns + spans["duration_ns"].to_numpy()).max()))
    if len(blocks):
        first.append(int(blocks["start_ns"].to_numpy().min()))
        last.append(int(blocks["end_ns"].to_numpy().max()))
    return (min(first), max(last) - min(first)) if first else (0, 0)


def _window(launch: int | None, blocks: Sequence[int] | None) -> str:
    parts = [] if launch is None else [f"launch {launch}"]
    parts += [] if blocks is None else [f"blocks {number_ranges(sorted(set(blocks)), limit=12)}"]
    return ", ".join(parts)


def _chosen(
    trace: Trace, launch: int | None, wanted: Sequence[int] | None, max_spans: int
) -> tuple[pl.DataFrame, pl.DataFrame, int, str]:
    """Spans and their blocks (sorted by launch and block), how many spans there were, and what was left out."""
    spans, blocks = trace.spans, trace.blocks.sort("launch", "block")
    if launch is not None and trace.launches.height > 1:
        spans, blocks = (frame.filter(pl.col("launch") == launch) for frame in (spans, blocks))
    if wanted is not None:
        known = set(blocks["block"].unique().to_list())
        unknown = sorted(set(wanted) - known)
        if unknown:
            there = number_ranges(sorted(known), limit=6) or "none"
            raise UsageError(f"blocks {number_ranges(unknown)} were not recorded: there are {there}")
        chosen = pl.Series(sorted(set(wanted)), dtype=pl.UInt32).implode()
        spans, blocks = (frame.filter(pl.col("block").is_in(chosen)) for frame in (spans, blocks))
    if len(spans) <= max_spans:
        return spans, blocks, len(spans), ""
    return _sampled(spans, blocks, max_spans)


def _sampled(spans: pl.DataFrame, blocks: pl.DataFrame, max_spans: int) -> tuple[pl.DataFrame, pl.DataFrame, int, str]:
    """Whole blocks, evenly taken by their index, until the page can carry them."""
    held = len(spans)
    counts = spans.group_by("block").agg(pl.len().alias("n")).sort("block")
    every = -(-held // max_spans)
    while (kept := counts.gather_every(every))["n"].sum() > max_spans:
        if kept.height == 1:
            raise UsageError(
                f"block {kept['block'][0]} alone has {kept['n'][0]:,} spans and a page carries {max_spans:,}: "
                "choose a launch, or record fewer iterations"
            )
        every += 1
    chosen = kept["block"].implode()
    spans, blocks = (frame.filter(pl.col("block").is_in(chosen)) for frame in (spans, blocks))
    text = f"sampled: {len(spans):,} of {held:,} spans, one block in {every}"
    return spans, blocks, held, f"{text}; --launch and --blocks choose a part that is shown whole"


def _pack_spans(
    packer: Packer, spans: pl.DataFrame, blocks: pl.DataFrame, kinds: list[str], origin_ns: int
) -> list[dict[str, Any]]:
    """Adds all columns of blocks, rows and spans; returns the clock line of each launch and SM."""
    block_row = _block_rows(spans, blocks)
    lanes = lanes_of(blocks)
    rows = rows_of(spans, block_row, blocks, lanes, kinds)
    base = _first_cycles(spans["start_cycles"].to_numpy(), block_row, len(blocks))
    lines, clock, since = _clock_lines(spans, blocks, block_row, base, origin_ns)
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
    _pack_times(packer, spans, rows, lines, clock, since, base, origin_ns)
    return [
        {"launch": int(a), "sm": int(b), "base_cycles": str(c), "offset_ns": float(d), "ns_per_cycle": float(e)}
        for a, b, c, d, e in zip(*lines, strict=True)
    ]


Lines = tuple[I64, I64, I64, npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""launch, sm, base_cycles, offset_ns, ns_per_cycle of each clock line."""


def _pack_times(
    packer: Packer, spans: pl.DataFrame, rows: Rows, lines: Lines, clock: I64, since: I64, base: I64, origin_ns: int
) -> None:
    """Adds what is said of each span: what the one before it and the clock line do not already tell."""

    def column(name: str) -> npt.NDArray[Any]:
        values = spans[name].to_numpy()
        return values if rows.order is None else values[rows.order]

    first = np.cumsum(rows.segment_spans) - rows.segment_spans
    block = np.repeat(rows.segment_block, rows.segment_spans)
    duration, site = column("duration_cycles"), column("site")
    start = column("start_cycles") - base[block]
    gap = start.copy()
    gap[1:] -= start[:-1] + duration[:-1]
    gap[first] = start[first]
    start += since[block]
    line = clock[block]
    offset_ns, ns_per_cycle = lines[3][line], lines[4][line]
    start_ns = column("start_ns") - origin_ns
    told_ns = _on_line(start, offset_ns, ns_per_cycle)
    packer.add("gap", gap)
    packer.add("site", site)
    packer.add("duration", duration[np.argsort(site, kind="stable")])  # like beside like: a fifth smaller
    packer.add("start_ns", start_ns - told_ns)
    follows = np.zeros(len(gap), np.bool_)
    follows[:-1] = gap[1:] == 0
    follows[first[1:] - 1] = False
    told_end = _on_line(start + duration, offset_ns, ns_per_cycle)
    told_end[:-1] = np.where(follows[:-1], start_ns[1:], told_end[:-1])
    told_end = np.where(duration == 0, start_ns, told_end)
    packer.add("duration_ns", start_ns + column("duration_ns") - told_end)
    step = column("sequence").astype(np.int64)
    step[1:] -= step[:-1].copy() + 1
    step[first] = column("sequence")[first]
    packer.add("sequence", step)
    packer.add("depth", column("depth"))
    packer.add("flags", column("flags"))
    for name in ("payload", "id"):
        valid = spans[name].is_not_null()
        if valid.any():
            order = slice(None) if rows.order is None else rows.order
            packer.add(f"{name}_valid", valid.to_numpy().astype(np.uint8)[order])
            packer.add(name, spans[name].fill_null(0).to_numpy()[order])


def _on_line(cycles: I64, offset_ns: npt.NDArray[np.float64], ns_per_cycle: npt.NDArray[np.float64]) -> I64:
    """The same float64 operations as model.js: what both get alike needs no byte."""
    return np.floor(offset_ns + cycles * ns_per_cycle + 0.5).astype(np.int64)


def _block_rows(spans: pl.DataFrame, blocks: pl.DataFrame) -> I64:
    """Row of `blocks` of each span; both are ordered by launch and block."""
    launch, block = spans["launch"].to_numpy(), spans["block"].to_numpy()
    change = np.ones(len(block), np.bool_)
    change[1:] = (block[1:] != block[:-1]) | (launch[1:] != launch[:-1])
    first = np.flatnonzero(change)
    keys = blocks["launch"].to_numpy().astype(np.int64) << 32 | blocks["block"].to_numpy()
    wanted = launch[first].astype(np.int64) << 32 | block[first]
    found = np.searchsorted(keys, wanted)
    return np.repeat(found, np.diff(np.append(first, len(block))))


def _first_cycles(start: I64, block_row: I64, blocks: int) -> I64:
    """The lowest start of each block's spans; 0 for blocks without any."""
    base = np.zeros(blocks, np.int64)
    if len(start):
        first = np.flatnonzero(np.append(True, np.diff(block_row) != 0))
        base[block_row[first]] = np.minimum.reduceat(start, first)
    return base


def _clock_lines(
    spans: pl.DataFrame, blocks: pl.DataFrame, block_row: I64, base: I64, origin_ns: int
) -> tuple[Lines, I64, I64]:
    """A straight line for each launch and SM through its first and last span; line and cycles since its base of each
    block. It need not be the decoder's: what it misses is packed beside it."""
    sm = blocks["sm_end"].fill_null(blocks["sm_begin"]).cast(pl.Int64).fill_null(SM_UNKNOWN).to_numpy()
    key, line = np.unique(np.stack([blocks["launch"].to_numpy().astype(np.int64), sm]), axis=1, return_inverse=True)
    line = line.reshape(-1).astype(np.int64)
    count = key.shape[1]
    lowest, ns_at, rate = np.zeros(count, np.int64), np.zeros(count), np.full(count, 0.5)
    if len(spans):
        place = np.flatnonzero(np.append(True, np.diff(block_row) != 0))  # the first span of each block
        row, cycles = block_row[place], spans["start_cycles"].to_numpy()[place]
        ns = (spans["start_ns"].to_numpy()[place] - origin_ns).astype(np.float64)
        last = np.append(place[1:], len(spans)) - 1
        row, cycles = np.tile(row, 2), np.append(cycles, spans["start_cycles"].to_numpy()[last])
        ns = np.append(ns, spans["start_ns"].to_numpy()[last] - origin_ns)
        order = np.lexsort((cycles, line[row]))
        begin = np.flatnonzero(np.append(True, np.diff(line[row][order]) != 0))
        low, high = order[begin], order[np.append(begin[1:], len(order)) - 1]
        which = line[row][low]
        length = (cycles[high] - cycles[low]).astype(np.float64)
        with np.errstate(all="ignore"):
            slope = np.where(length > 0, (ns[high] - ns[low]) / length, 0.5)
        rate[which] = np.where(np.isfinite(slope) & (slope > 0), slope, 0.5)
        lowest[which] = cycles[low]
        missed = ns - (cycles - lowest[line[row]]) * rate[line[row]]
        ns_at = np.bincount(line[row], missed, count) / np.maximum(np.bincount(line[row], minlength=count), 1)
    return (key[0], key[1], lowest, ns_at, rate), line, base - lowest[line]


def _filled(values: pl.Series, nothing: int) -> I64:
    return values.cast(pl.Int64).fill_null(nothing).to_numpy()


def _facts(trace: Trace, launch: int | None) -> dict[str, Any]:
    """Everything but spans and blocks, its strings made visible."""
    sites = trace.sites
    colors = site_colors(sites["name"].to_list(), sites["kind"].to_list())
    launches = trace.launches if launch is None else trace.launches.filter(pl.col("launch") == launch)
    problems = trace.problems
    if launch is not None:
        problems = problems.filter((pl.col("launch") == launch) | pl.col("launch").is_null())
    files = set(sites["file"].to_list())
    return {
        "note": None if trace.note is None else visible(trace.note, limit=2000),
        "created": visible(trace.manifest.get("created")),
        "device": visible((trace.manifest.get("device") or {}).get("name"), limit=100),
        "sites": [
            {key: visible(row[key], limit=MAX_NAME) for key in ("name", "kind", "resource", "file", "site_set")}
            | {"line": row["line"], "color": color, "ink": ink_on(color), "waits": row["kind"] in WAITING_KINDS}
            for row, color in zip(sites.iter_rows(named=True), colors, strict=True)
        ],
        "launches": [_plain(row) for row in launches.to_dicts()],
        "trust": [
            {"label": t.label, "level": t.level, "text": t.text, "brief": t.brief} for t in trust_lines(trace, launch)
        ],
        "groups": _groups(trace, launch),
        "problems": [_plain(row) for row in problems.head(MAX_PROBLEMS).to_dicts()],
        "problem_rows": problems.height,
        "flags": {flag.name: flag.value for flag in SpanFlag},
        "sources": {
            visible(name, limit=MAX_NAME): [visible(line, limit=2000) for line in text.expandtabs(4).splitlines()]
            for name, text in trace.sources.items()
            if name in files and len(text) <= MAX_SOURCE_CHARACTERS
        },
    }


def _groups(trace: Trace, launch: int | None) -> list[dict[str, Any]]:
    """The phase table of each group of launches."""
    out = []
    for group in launch_groups(trace, launch):
        rows = phase_table(trace, group, by_role=False).to_dicts()
        roles = {str(warp): role for warp, role in group.roles.items()}
        kernel = visible(group.first["kernel"], limit=MAX_NAME)
        out.append({"kernel": kernel, "launches": list(group.launches), "roles": roles, "rows": visible_tree(rows)})
    return out


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose strings are visible and whose integers JavaScript can hold, or are text."""
    wide = {k: str(v) for k, v in row.items() if isinstance(v, int) and abs(v) >= 1 << 53}
    return {**visible_tree(row), **wide}
