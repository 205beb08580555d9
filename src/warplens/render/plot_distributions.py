"""The picture of how long the spans of each site last.

In: a Trace and a launch. Out: a matplotlib figure: a row a site (a row a role where warps differ) with a histogram of
the durations on one axis for all, the span from p10 to p90 under it, the median, and the figures beside it.
The axis is logarithmic where durations span decades. Writes no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import LogLocator

from warplens.errors import UsageError
from warplens.render.colors import INK, WAITING_KINDS, site_colors
from warplens.render.durations import PERCENTS, Durations, durations, pick_group
from warplens.render.pick import counted
from warplens.render.plots import drawable_site, title_facts
from warplens.render.sheet import LEFT_IN, WIDTH_IN, sheet, write_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from warplens.trace import Trace

F64 = npt.NDArray[np.float64]

_CAPTION: Final = (
    "a row is a site, its height how many spans last that long (each row by itself); bar: p10 to p90; tick: median"
)
MAX_ROWS: Final = 40
_ROW_IN: Final = 0.5
_NAMES_IN: Final = 2.4
_COLUMNS: Final = ("spans", *(f"p{percent}" for percent in PERCENTS), "share")
_COLUMN_IN: Final = 0.56
_BINS: Final = 240
_DECADES: Final = 1.5
"""Of the durations from which the axis is logarithmic."""


def distributions_figure(trace: Trace, launch: int | None) -> Figure:
    """The figure; UsageError when no span has a length."""
    group = pick_group(trace, launch)
    rows = durations(trace, group)
    if not rows:
        raise UsageError(f"launch {group.launches[0]} has no span with both ends: `warplens summary` says why")
    left_out = len(rows) - MAX_ROWS
    if left_out > 0:
        least = sorted((_time(row) for row in rows), reverse=True)[MAX_ROWS - 1]
        rows = [row for row in rows if _time(row) >= least][:MAX_ROWS]
    right_in = _COLUMN_IN * len(_COLUMNS) + 0.3
    figure, (axes,) = sheet([_ROW_IN * len(rows)], [0.32, 0.5], [], left_in=_NAMES_IN, right_in=right_in)
    edges, logarithmic = _edges(rows)
    colors = site_colors(trace.sites["name"].to_list(), trace.sites["kind"].to_list())
    for place, row in enumerate(rows):
        _draw(axes, place, row, edges, colors[row.site])
        _write(axes, place, row, again=place > 0 and rows[place - 1].site == row.site)
    _dress(axes, len(rows), edges, logarithmic=logarithmic)
    spans = counted(sum(len(row.cycles) for row in rows), "span")
    more = f" of {len(group.launches):,} launches" if len(group.launches) > 1 else ""
    zeros = "; 0 cycles stand at 1" if logarithmic and any(row.cycles.min() == 0 for row in rows) else ""
    title, facts = title_facts(trace, group.launches[0], spans + more)
    note = f"; the {left_out} rows with least time are left out" if left_out > 0 else ""
    write_titles(figure, title, facts, _CAPTION + zeros + note)
    return figure


def _time(row: Durations) -> int:
    return int(row.cycles.sum())


def _edges(rows: list[Durations]) -> tuple[F64, bool]:
    """Edges of the bins, and whether they are even on a logarithmic axis."""
    most = max(max(int(row.cycles.max()) for row in rows), 1)  # type: ignore[arg-type]
    lows = [max(row.percentile(10), 1) for row in rows]
    highs = [max(row.percentile(90), 1) for row in rows]
    if np.log10(max(highs) / min(lows)) < _DECADES and most < 3 * max(highs):
        return np.linspace(0, most * 1.02 + 1, _BINS + 1), False
    least = max(min(int(row.cycles.min()) for row in rows), 1)  # type: ignore[arg-type]
    return np.geomspace(least * 0.9, most * 1.15 + 1, _BINS + 1), True


def _draw(axes: Axes, place: int, row: Durations, edges: F64, color: str) -> None:
    """Histogram, p10 to p90, median of one row, which lies between `place` and `place` + 1."""
    values = np.maximum(row.cycles.to_numpy(), edges[0])
    heights = np.histogram(values, edges)[0]
    floor = place + 0.80
    top = floor - 0.70 * heights / max(int(heights.max()), 1)
    look: dict[str, Any] = {"hatch": "/////", "edgecolor": "white"} if row.kind in WAITING_KINDS else {}
    axes.fill_between(edges, np.append(top, floor), floor, step="post", facecolor=color, linewidth=0, **look)
    low, middle, high = (max(row.percentile(percent), edges[0]) for percent in (10, 50, 90))
    axes.plot([low, high], [place + 0.88] * 2, color=color, linewidth=3, solid_capstyle="butt", zorder=3)
    axes.plot([middle] * 2, [place + 0.80, place + 0.96], color=INK, linewidth=1.6, solid_capstyle="butt", zorder=4)


def _write(axes: Axes, place: int, row: Durations, *, again: bool) -> None:
    """The name to the left of a row and its figures to the right."""
    width_in = WIDTH_IN - _NAMES_IN - _COLUMN_IN * len(_COLUMNS) - 0.3
    across = axes.get_yaxis_transform()
    write_name(axes, (LEFT_IN - _NAMES_IN) / width_in, place, row, again=again)
    share = "" if row.share is None else f"{100 * row.share:.1f} %"
    figures = [len(row.cycles), *(row.percentile(percent) for percent in PERCENTS)]
    for column, text in enumerate([*(f"{figure:,}" for figure in figures), share]):
        x = 1 + (column + 1) * _COLUMN_IN / width_in
        axes.text(x, place + 0.52, text, transform=across, fontsize=8, va="center", ha="right", color=INK)
        if place == 0:
            style: dict[str, Any] = {"fontsize": 8, "color": "#5c636a", "ha": "right", "va": "bottom"}
            axes.text(x, -0.12, _COLUMNS[column], transform=across, **style)


def write_name(axes: Axes, left: float, place: int, row: Durations, *, again: bool) -> None:
    """Site and role of a row, at `left` of the axes; `again` when the row above is of the same site."""
    style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    if not again:
        name = drawable_site(row.name, limit=25)
        size = 9 if len(name) <= 22 else 8  # the column holds 22 characters in 9 pt, 25 in 8
        axes.text(left, place + (0.36 if row.role else 0.5), name, fontsize=size, color=INK, **style)
    axes.text(left, place + (0.5 if again else 0.7), row.role, fontsize=8, color="#5c636a", **style)


def _dress(axes: Axes, rows: int, edges: F64, *, logarithmic: bool) -> None:
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for place in range(1, rows):
        axes.axhline(place + 0.0, color="#dee2e6", linewidth=0.5, zorder=0)
    axes.set_xlabel("duration of a span (cycles" + (", logarithmic)" if logarithmic else ")"))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", color="#adb5bd", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
