"""The picture of all blocks of a launch on one time axis.

In: a Trace and a launch. Out: a matplotlib figure: a lane an SM, sub-lanes for blocks resident at the same time,
and above it the number of resident blocks by wave. A block's bar takes at each moment the colour of the phase
that most of its warps are in. Writes no file.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from warplens.decode.flags import SpanFlag
from warplens.errors import UsageError
from warplens.render.colors import INK, site_colors
from warplens.render.pick import counted, pick_launch
from warplens.render.plots import drawable_site, title_facts
from warplens.render.sheet import LEGEND_ENTRIES, boxes, label_step, sheet, write_legend, write_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from warplens.trace import Trace

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_CAPTION: Final = "a bar is a block, its colour the phase that most of its warps are in, pale where no mark covers them"
_PALE: Final = "#f3f4f6"
_GAP: Final = 0.08  # between lanes, where they are thick enough to tell apart
_MAX_CELLS: Final = 8_000_000  # of the events x sites matrix of one batch: 32 MB
_WAVE_GREYS: Final = ("#d5dae0", "#6c7a89", "#343f4b", "#98a6b5")


def blocks_figure(trace: Trace, launch: int | None) -> Figure:
    """The figure; raises UsageError when the launch has no blocks with times."""
    launch = pick_launch(trace, launch)
    blocks = trace.blocks.filter((pl.col("launch") == launch) & pl.col("start_ns").is_not_null()).sort("start_ns")
    if blocks.is_empty():
        raise UsageError(f"launch {launch} has no block with times: `warplens summary` says why")
    blocks = blocks.with_columns(sm=pl.col("sm_begin").fill_null(0).cast(pl.Int64))
    origin = int(blocks["start_ns"][0])
    begin = blocks["start_ns"].to_numpy() - origin
    end = blocks["end_ns"].to_numpy() - origin
    lane, lanes, middles = _lanes(blocks["sm"].to_numpy(), begin, end)
    scale, unit = (1000.0, "us") if end.max() >= 20_000 else (1.0, "ns")
    begin, end = begin / scale, end / scale
    wave = blocks["wave"].to_numpy()
    bars, handles = _phases(trace, launch, blocks, lane, origin, scale)
    if wave.max() > 0:
        handles.append(Patch(facecolor=INK, label=" later wave begins"))
    height = float(np.clip(lanes * 0.02, 1.6, 9.0))
    figure, (above, axes) = sheet([0.62, height], [0.1, 0.14, 0.5], [h.get_label() for h in handles])
    _residency(above, begin, end, wave)
    gap = _GAP if height / lanes > 0.03 else 0.0
    shapes = boxes(begin, end, lane + gap, lane + 1 - gap)
    axes.add_collection(PolyCollection(shapes, facecolor=_PALE, linewidth=0, rasterized=True))
    for color, left, right, row in bars:
        shapes = boxes(left, right, row + gap, row + 1 - gap)
        axes.add_collection(PolyCollection(shapes, facecolor=color, linewidth=0, rasterized=True))
    later, edge = wave > 0, end.max() / 450
    shapes = boxes(begin[later] - edge / 2, begin[later] + edge / 2, lane[later], lane[later] + 1)
    axes.add_collection(PolyCollection(shapes, facecolor=INK, linewidth=0, rasterized=True))
    for each in (above, axes):
        each.set_xlim(0, max(end.max(), 1) * 1.005)
    _dress(axes, lanes, middles[:: label_step(len(middles), height)], unit)
    waves = int(wave.max()) + 1
    grid = trace.launches.filter(pl.col("launch") == launch).select(pl.col("^grid_[xyz]$").cast(pl.Int64)).row(0)
    part = f"{blocks.height:,} of " if blocks.height < prod(grid) else ""
    facts = f"{part}{counted(prod(grid), 'block')} in {counted(waves, 'wave')}"
    title, facts = title_facts(trace, launch, facts)
    write_titles(figure, title, facts, _CAPTION)
    write_legend(figure, handles)
    return figure


def _lanes(sm: I64, begin: I64, end: I64) -> tuple[I64, int, list[tuple[float, str]]]:
    """Lane of each block (sorted by begin), number of lanes, and of each SM the middle of its lanes and its number."""
    sub, free = np.zeros(len(sm), np.int64), dict[int, list[int]]()
    for index, (where, start, stop) in enumerate(zip(sm.tolist(), begin.tolist(), end.tolist(), strict=True)):
        slots = free.setdefault(where, [])
        slot = next((i for i, busy in enumerate(slots) if busy <= start), len(slots))
        slots[slot : slot + 1] = [stop]
        sub[index] = slot
    used = np.array(sorted(free))
    counts = np.array([len(free[s]) for s in used.tolist()])
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lane = first[np.searchsorted(used, sm)] + sub
    middles = [(first[i] + counts[i] / 2, str(used[i])) for i in range(len(used))]
    return lane, int(counts.sum()), middles


def _residency(axes: Axes, begin: F64, end: F64, wave: I64) -> None:
    """Stacked steps: blocks resident over time, one grey a wave (those beyond the third together)."""
    times = np.unique(np.concatenate([begin, end]))
    waves = min(int(wave.max()) + 1, len(_WAVE_GREYS))
    below = np.zeros(len(times))
    for index in range(waves):
        chosen = wave >= index if index == waves - 1 else wave == index
        started = np.searchsorted(np.sort(begin[chosen]), times, side="right")
        ended = np.searchsorted(np.sort(end[chosen]), times, side="right")
        top = below + started - ended
        axes.fill_between(times, below, top, step="post", color=_WAVE_GREYS[index], linewidth=0)
        widest = int(np.argmax(top - below))
        name = f"wave {index + 1}" if index < waves - 1 or waves == wave.max() + 1 else f"waves {index + 1} and on"
        ink = INK if index == 0 else "white"
        if (top - below)[widest] > 0.3 * max(top.max(), 1):
            middle = (begin[chosen].mean() + end[chosen].mean()) / 2
            at = int(np.searchsorted(times, middle, side="right")) - 1
            axes.text(middle, (below[at] + top[at]) / 2, name, ha="center", va="center", color=ink, fontsize=8)
        below = top
    axes.set_ylabel("resident\nblocks", fontsize=8)
    axes.tick_params(labelbottom=False, labelsize=8)
    axes.margins(x=0)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))


def _phases(
    trace: Trace, launch: int, blocks: pl.DataFrame, lane: I64, origin: int, scale: float
) -> tuple[list[tuple[str, F64, F64, I64]], list[Any]]:
    """For each site its colour, begins, ends and lanes; and the legend entries, the sites with most time first kept."""
    names, kinds = trace.sites["name"].to_list(), trace.sites["kind"].to_list()
    colors = site_colors(names, kinds)
    segments = majority_segments(trace, launch)
    row_of = np.full(int(blocks["block"].to_numpy().max()) + 1, -1, np.int64)
    row_of[blocks["block"].to_numpy()] = lane
    known = segments["block"] < len(row_of)
    segments = {k: v[known] for k, v in segments.items()}
    row = row_of[segments["block"]]
    begin, end = ((segments[k] - origin) / scale for k in ("begin_ns", "end_ns"))
    bars, entries = [], []
    for site in np.unique(segments["site"]).tolist():
        mine = (segments["site"] == site) & (row >= 0)
        bars.append((colors[site], begin[mine], end[mine], row[mine]))
        label = " " + drawable_site(names[site], limit=32)
        entries.append((float((end - begin)[mine].sum()), Patch(facecolor=colors[site], label=label)))
    least = sorted((time for time, _ in entries), reverse=True)[:LEGEND_ENTRIES][-1] if entries else 0.0
    handles: list[Any] = [patch for time, patch in entries if time >= least][:LEGEND_ENTRIES]
    return bars, handles


def majority_segments(trace: Trace, launch: int) -> dict[str, I64]:
    """Stretches in which one site holds most warps of a block: arrays `block`, `site`, `begin_ns`, `end_ns`.

    A phase or wait counts for as long as it lasts in each warp (ranges where a trace has neither). At equal
    counts the site with the lower number wins. Every stretch is exact: it begins and ends where some span does.
    """
    kinds = trace.sites["kind"]
    wanted = trace.sites.filter(kinds.is_in(["phase", "wait"]))["site"].to_list()
    wanted = wanted or trace.sites["site"].to_list()
    spans = (
        trace.spans.lazy()
        .filter((pl.col("launch") == launch) & pl.col("site").is_in(wanted) & (pl.col("duration_ns") > 0))
        .filter(pl.col("flags") & int(SpanFlag.CROSS_WARP) == 0)
        .select("block", "site", begin=pl.col("start_ns"), end=pl.col("start_ns") + pl.col("duration_ns"))
        .collect()
    )
    block, site = (np.concatenate([spans[n].to_numpy()] * 2).astype(np.int64) for n in ("block", "site"))
    time = np.concatenate([spans["begin"].to_numpy(), spans["end"].to_numpy()])
    step = np.repeat(np.array([1, -1], np.int32), spans.height)
    order = np.lexsort((time, block))
    block, time, step = block[order], time[order], step[order]
    present, column = np.unique(site[order], return_inverse=True)
    pieces = []
    for low, high in _batches(block, max(_MAX_CELLS // max(len(present), 1), 1)):
        pieces.append(_majority(block[low:high], time[low:high], step[low:high], column[low:high], present))
    keys = ("block", "site", "begin_ns", "end_ns")
    return {k: np.concatenate([p[i] for p in pieces]) if pieces else np.zeros(0, np.int64) for i, k in enumerate(keys)}


def _batches(block: I64, rows: int) -> list[tuple[int, int]]:
    """Ranges of about `rows` rows that never cut a block in two."""
    if not len(block):
        return []
    edges = np.concatenate([[0], np.flatnonzero(np.diff(block)) + 1, [len(block)]])
    out, low = [], 0
    for edge, following in zip(edges[1:].tolist(), [*edges[2:].tolist(), None], strict=True):
        if following is None or following - low > rows:
            out.append((low, edge))
            low = edge
    return out


def _majority(block: I64, time: I64, step: npt.NDArray[np.int32], column: I64, present: I64) -> list[I64]:
    inside = np.zeros((len(block), len(present)), np.int32)
    inside[np.arange(len(block)), column] = step
    np.cumsum(inside, axis=0, out=inside)  # every block's spans end within it: the counts return to zero by themselves
    best = inside.argmax(axis=1)
    site = np.where(inside[np.arange(len(block)), best] > 0, present[best], -1)
    last = np.concatenate([(time[1:] != time[:-1]) | (block[1:] != block[:-1]), [True]])  # last row of each moment
    block, time, site = block[last], time[last], site[last]
    change = np.concatenate([[True], (site[1:] != site[:-1]) | (block[1:] != block[:-1])])
    block, time, site = block[change], time[change], site[change]
    begin, end = time[:-1], time[1:]
    keep = (site[:-1] >= 0) & (block[1:] == block[:-1])
    return [block[:-1][keep], site[:-1][keep], begin[keep], end[keep]]


def _dress(axes: Axes, lanes: int, ticks: list[tuple[float, str]], unit: str) -> None:
    axes.set_ylim(lanes, 0)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("SM")
    axes.set_xlabel(f"time since the first block began ({unit})")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(axis="x", color="#adb5bd", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
