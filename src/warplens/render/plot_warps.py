"""The picture of one block's warps.

In: a Trace, a launch and a block. Out: a matplotlib figure: a row a warp, cycles below, ns above, instants as ticks,
waits hatched, spans without an end torn, losses marked. Writes no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from warplens.decode.flags import SpanFlag
from warplens.render.colors import ALARM, WAITING_KINDS, site_colors
from warplens.render.pick import block_spans, block_title, last_cycle, median_of, per_site, pick_block, pick_launch
from warplens.render.plots import drawable_site, title_facts
from warplens.render.sheet import LEGEND_ENTRIES, boxes, sheet, write_legend, write_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure

    from warplens.trace import Trace

I64 = npt.NDArray[np.int64]

_CAPTION: Final = (
    "a row is a warp; hatched: waits; lengths in the legend: medians in this block; one SM's clock throughout"
)
_MAX_LEVELS: Final = 5  # of ranges in a row; deeper ones share the last
_TEETH: Final = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
_MANY: Final = 2000  # bars of a site from which they become a picture inside an SVG
_HATCHED: Final = 150  # of so many bars of a wait only those at least this part of the block: 0.5 ms each


def warps_figure(trace: Trace, launch: int | None, block: int | None) -> Figure:
    """The figure; raises UsageError for a launch or block that the trace does not hold."""
    launch = pick_launch(trace, launch)
    block = pick_block(trace, launch, block)
    spans = block_spans(trace, launch, block)
    spans, levels = _with_tracks(spans, trace.sites)
    warps = spans["warp"].unique().sort().to_list()
    row = np.zeros(256, np.int64)
    row[warps] = np.arange(len(warps))
    length = last_cycle(spans)
    bars, handles = _sites(trace, spans, row, length)
    doubts = _doubts(spans, row, length)
    handles = handles[:LEGEND_ENTRIES] + [Line2D([], [], label=label, **_DOUBT, marker=m) for m, label, _, _ in doubts]
    height = float(np.clip((0.25 + 0.08 * levels) * len(warps), 0.8, 12.0))
    figure, (axes,) = sheet([height], [0.5, 0.5], [str(h.get_label()) for h in handles])
    for bar in bars:
        axes.add_collection(bar)
    for marker, _, x, y in doubts:
        axes.plot(x, y, marker=marker, clip_on=False, zorder=6, **_DOUBT)
    _dress(axes, spans, warps, length)
    title, facts = title_facts(trace, launch, block_title(trace, launch, block))
    write_titles(figure, title, facts, _CAPTION + ("; thin bars: ranges" if levels else ""))
    write_legend(figure, handles)
    return figure


_DOUBT: Final[dict[str, Any]] = {
    "color": ALARM,
    "linestyle": "none",
    "markersize": 6.5,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
}


def _sites(trace: Trace, spans: pl.DataFrame, row: I64, length: int) -> tuple[list[Collection], list[Any]]:
    """The collections of all sites, and the legend's entries."""
    names, kinds = trace.sites["name"].to_list(), trace.sites["kind"].to_list()
    colors = site_colors(names, kinds)
    bars: list[Collection] = []
    handles: list[Any] = []
    for site, group in per_site(spans):
        label, color = f" {drawable_site(names[site], limit=32)}", colors[site]
        instant = group["flags"].to_numpy() & SpanFlag.INSTANT != 0
        if instant.any():
            at, y = group["start_cycles"].to_numpy()[instant], row[group["warp"].to_numpy()[instant]]
            ticks = np.stack([np.stack([at, at], 1), np.stack([y + 0.04, y + 0.96], 1)], axis=2)
            for shade, width in (("white", 3.4), (color, 1.6)):  # a rim keeps a tick apart from the bar under it
                bars.append(LineCollection(list(ticks), colors=shade, linewidths=width, zorder=5))
            style: dict[str, Any] = {"marker": "|", "markersize": 10, "markeredgewidth": 1.8, "linestyle": "none"}
            handles.append(Line2D([], [], color=color, label=f"{label}  {int(instant.sum()):,} instants", **style))
        if instant.all():
            continue
        long = group.filter(~pl.Series(instant))
        wait = kinds[site] in WAITING_KINDS
        look: dict[str, Any] = {"facecolor": color, "hatch": "/////" if wait else None, "edgecolor": "white"}
        bars += _bars(long, row, length, look)
        text = f"{label}  {median_of(long['duration_cycles']):,.0f} cycles"
        handles.append(Patch(linewidth=0, label=text, **look))
    return bars, handles


def _bars(spans: pl.DataFrame, row: I64, length: int, look: dict[str, Any]) -> list[Collection]:
    """The bars of one site; where there are many, narrow ones are not hatched."""
    many = spans.height >= _MANY
    wide = pl.col("duration_cycles") * _HATCHED >= length if many and look["hatch"] else pl.lit(True)
    bars: list[Collection] = []
    for part, hatch in ((spans.filter(wide), look["hatch"]), (spans.filter(~wide), None)):
        if part.height:
            edge: dict[str, Any] = {"linewidth": 0.0 if many else 0.4, "zorder": 2, "rasterized": many}
            bars.append(PolyCollection(_shapes(part, row, length), **{**look, "hatch": hatch}, **edge))
    return bars


def _with_tracks(spans: pl.DataFrame, sites: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The spans with `top` and `height`, fractions of their row, and the number of levels that ranges take.

    Ranges lie above the phases, the outer ones highest; those that cross others have the last level to themselves.
    """
    phases = sites.filter(pl.col("kind").is_in(["phase", "wait"]))["site"].to_list()
    phase = spans["site"].is_in(phases).to_numpy()
    flags = spans["flags"].to_numpy()
    ranged = ~phase & (flags & SpanFlag.INSTANT == 0)
    crossing = flags & SpanFlag.OVERLAPPING != 0
    found, level = np.unique(spans["depth"].to_numpy()[ranged] + 256 * crossing[ranged], return_inverse=True)
    levels = min(len(found), _MAX_LEVELS)
    room = 0.0 if not levels else min(0.6, 0.18 * levels) if phase.any() else 0.84
    top = np.full(spans.height, 0.11 if not levels else 0.09 + room)
    height = np.full(spans.height, 0.78 if not levels else 0.84 - room)
    top[ranged] = 0.07 + np.minimum(level, _MAX_LEVELS - 1) * (room / max(levels, 1))
    height[ranged] = room / max(levels, 1) * 0.86
    return spans.with_columns(top=pl.Series(top), height=pl.Series(height)), levels


def _shapes(spans: pl.DataFrame, row: I64, length: int) -> Any:
    """Boxes, and for spans without an end polygons with a torn right edge."""
    begin = spans["start_cycles"].to_numpy()
    end = begin + spans["duration_cycles"].to_numpy()
    low, height = row[spans["warp"].to_numpy()] + spans["top"].to_numpy(), spans["height"].to_numpy()
    torn = spans["flags"].to_numpy() & SpanFlag.UNENDED != 0
    whole = boxes(begin[~torn], end[~torn], low[~torn], low[~torn] + height[~torn])
    if not torn.any():
        return whole
    tooth = length / 120
    polygons = list(whole)
    for left, right, bottom, tall in zip(begin[torn], end[torn], low[torn], height[torn], strict=True):
        edge = np.where(np.arange(len(_TEETH)) % 2 == 0, right, right + tooth)
        corners = [(left, bottom), *zip(edge, bottom + _TEETH * tall, strict=True), (left, bottom + tall)]
        polygons.append(np.array(corners, np.float64))
    return polygons


def _doubts(spans: pl.DataFrame, row: I64, length: int) -> list[tuple[Any, str, Any, Any]]:
    """(marker, legend label, x, y) for spans without an end and for places where events were lost."""
    flags, y = (
        spans["flags"].to_numpy(),
        row[spans["warp"].to_numpy()] + spans["top"].to_numpy() + spans["height"].to_numpy() / 2,
    )
    begin = spans["start_cycles"].to_numpy()
    end = begin + spans["duration_cycles"].to_numpy()
    found = []
    for flag, marker, label, x in (
        (SpanFlag.UNENDED, 5, " end not seen", end + length / 75),
        (SpanFlag.AFTER_GAP, "X", " events lost before", begin.astype(np.float64)),
    ):
        chosen = flags & flag != 0
        if chosen.any():
            found.append((marker, label, x[chosen], y[chosen]))
    return found


def _dress(axes: Axes, spans: pl.DataFrame, warps: list[int], length: int) -> None:
    axes.set_xlim(0, length * 1.012)
    axes.set_ylim(len(warps), 0)
    axes.set_yticks(np.arange(len(warps)) + 0.5, [f"w{w}" for w in warps])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_xlabel("cycles since the block's first mark")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", color="#adb5bd", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    length_ns = int((spans["start_ns"] + spans["duration_ns"]).to_numpy().max() - spans["start_ns"].to_numpy().min())
    if length_ns > 0:  # both axes are those of the spans table, so that nothing is converted here
        to_ns = (lambda x: x * (length_ns / length), lambda x: x * (length / length_ns))
        above = axes.secondary_xaxis("top", functions=to_ns)
        above.set_xlabel("ns", color="#343a40")
        above.tick_params(colors="#495057")
        above.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        above.spines["top"].set_color("#6c757d")
