"""The picture of two traces side by side: before and after.

In: two Traces. Out: a matplotlib figure: for each site that both have, the median duration before and after with
the span from p10 to p90, and the ratio. It says no more than that: a ratio is pale where each median lies within the
other's p10 to p90, a site that only one trace has is named, and what else differs between the two stands above.
Writes no file.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from warplens.errors import UsageError
from warplens.render.colors import INK, WAITING_KINDS, site_colors
from warplens.render.durations import Durations, durations, pick_group
from warplens.render.facts import mapping
from warplens.render.pick import nanoseconds, shape
from warplens.render.plot_distributions import write_name
from warplens.render.plots import drawable, drawable_site
from warplens.render.sheet import LEFT_IN, WIDTH_IN, sheet, write_legend, write_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from warplens.render.phases import LaunchGroup
    from warplens.trace import Trace

_CAPTION: Final = (
    "medians of the spans of each site; line: p10 to p90; pale: each median lies within the other's p10 to p90"
)
MAX_ROWS: Final = 40
_ROW_IN: Final = 0.52
_NAMES_IN: Final = 2.4
_FIGURES_IN: Final = 2.5
_DECADES: Final = 2.0
_REMARK_CHARACTERS: Final = 150
_BEFORE: Final = "#adb5bd"
_PALE: Final = "#868e96"


@dataclass(frozen=True)
class Pair:
    """A site, or a role in it, in both traces."""

    before: Durations
    after: Durations

    @property
    def apart(self) -> bool:
        """Whether a median lies outside of the other trace's p10 to p90."""
        return _outside(self.before, self.after) or _outside(self.after, self.before)


def diff_figure(before: Trace, after: Trace, launch: int | None) -> Figure:
    """The figure; UsageError when the traces have no site in common that has spans with both ends."""
    groups = pick_group(before, launch), pick_group(after, launch)
    rows = durations(before, groups[0]), durations(after, groups[1])
    pairs = pair_up(*rows)
    if not pairs:
        raise UsageError("the two traces have no site of the same name and kind: nothing can be compared")
    left_out = len(pairs) - MAX_ROWS
    if left_out > 0:
        least = sorted((_time(pair) for pair in pairs), reverse=True)[MAX_ROWS - 1]
        pairs = [pair for pair in pairs if _time(pair) >= least][:MAX_ROWS]
    legend = [
        Patch(facecolor=_BEFORE, label=" before"),
        Patch(facecolor=INK, label=" after, in the colour of the site"),
    ]
    legend.append(Line2D([], [], color=INK, linewidth=1.2, label=" p10 to p90"))  # type: ignore[arg-type]
    remarks = _remarks((before, after), groups, rows)
    heights, labels = [_ROW_IN * len(pairs)], [str(handle.get_label()) for handle in legend]
    figure, (axes,) = sheet(heights, [0.1 + 0.18 * len(remarks), 0.5], labels, left_in=_NAMES_IN, right_in=_FIGURES_IN)
    floor = _floor(pairs)
    colors = site_colors(after.sites["name"].to_list(), after.sites["kind"].to_list())
    for place, pair in enumerate(pairs):
        _draw(axes, place, pair, colors[pair.after.site], floor)
        _write(axes, place, pair, again=place > 0 and pairs[place - 1].after.site == pair.after.site)
    _dress(axes, pairs, floor)
    note = f"; the {left_out} rows with least time are left out" if left_out > 0 else ""
    facts = _times(before, groups[0]), _times(after, groups[1])
    title = f"before and after: {drawable(groups[1].first['kernel'])}"
    write_titles(figure, title, f"{facts[0]}  →  {facts[1]}", _CAPTION + note)
    x, y = LEFT_IN / WIDTH_IN, 1 - 0.84 / figure.get_figheight()
    figure.text(x, y, "\n".join(remarks), fontsize=8.5, color="#5c636a", va="top")
    write_legend(figure, legend)
    return figure


def pair_up(before: list[Durations], after: list[Durations]) -> list[Pair]:
    """Rows of sites that both have, in the order of `after`, by role where both have the same roles there."""
    known = {(row.name, row.kind, row.role): row for row in before}
    roles = [_roles(rows) for rows in (before, after)]
    pairs = []
    for row in after:
        key = row.name, row.kind
        if roles[0].get(key) == roles[1][key]:
            pairs.append(Pair(known[*key, row.role], row))
        elif key in roles[0] and row.role == roles[1][key][0]:
            pairs.append(Pair(_pooled(before, key), _pooled(after, key)))
    return pairs


def _roles(rows: list[Durations]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((row.name, row.kind), []).append(row.role)
    return found


def _pooled(rows: list[Durations], key: tuple[str, str]) -> Durations:
    """All roles of a site as one row."""
    parts = [row for row in rows if (row.name, row.kind) == key]
    cycles = pl.concat([row.cycles for row in parts])
    return Durations(parts[0].site, *key, "", None, sum(row.cut for row in parts), cycles)


def _outside(one: Durations, other: Durations) -> bool:
    return not other.percentile(10) <= one.percentile(50) <= other.percentile(90)


def _time(pair: Pair) -> int:
    return int(pair.before.cycles.sum()) + int(pair.after.cycles.sum())


def _floor(pairs: list[Pair]) -> float:
    """Where the axis begins: 0, or on a logarithmic axis a place below all that is drawn."""
    medians = [max(row.percentile(50), 1) for pair in pairs for row in (pair.before, pair.after)]
    least = min(max(row.percentile(10), 1) for pair in pairs for row in (pair.before, pair.after))
    return 0.0 if np.log10(max(medians) / min(medians)) < _DECADES else 10 ** np.floor(np.log10(least))


def _draw(axes: Axes, place: int, pair: Pair, color: str, floor: float) -> None:
    look: dict[str, Any] = {"hatch": "/////", "edgecolor": "white"} if pair.after.kind in WAITING_KINDS else {}
    for row, y, style in ((pair.before, 0.3, {"facecolor": _BEFORE}), (pair.after, 0.66, {"facecolor": color, **look})):
        low, middle, high = (max(row.percentile(percent), floor) for percent in (10, 50, 90))
        axes.barh(place + y, middle - floor, 0.32, left=floor, linewidth=0, **style)
        axes.plot([low, high], [place + y] * 2, color="white", linewidth=3.2, solid_capstyle="butt", zorder=3)
        axes.plot([low, high], [place + y] * 2, color=INK, linewidth=1.2, solid_capstyle="butt", zorder=4)


def _write(axes: Axes, place: int, pair: Pair, *, again: bool) -> None:
    """The name to the left of a row, medians and their ratio to the right."""
    width_in = WIDTH_IN - _NAMES_IN - _FIGURES_IN
    across = axes.get_yaxis_transform()
    write_name(axes, (LEFT_IN - _NAMES_IN) / width_in, place, pair.after, again=again)
    style: dict[str, Any] = {"transform": across, "va": "center"}
    before, after = pair.before.percentile(50), pair.after.percentile(50)
    ratio = f"{100 * (after / before - 1):+.0f} %" if before else "from 0"
    bold: dict[str, Any] = {"fontweight": "bold", "color": INK} if pair.apart else {"color": _PALE}
    right = 1 + (_FIGURES_IN - 0.3) / width_in
    axes.text(
        right - 0.75 / width_in, place + 0.5, f"{before:,} → {after:,}", fontsize=8, ha="right", color=INK, **style
    )
    axes.text(right, place + 0.5, ratio.replace("-", "\u2212"), fontsize=9, ha="right", **bold, **style)


def _dress(axes: Axes, pairs: list[Pair], floor: float) -> None:
    most = max(row.percentile(90) for pair in pairs for row in (pair.before, pair.after))
    if floor:
        axes.set_xscale("log")
    axes.set_xlim(floor, max(most, 1) * (1.3 if floor else 1.03))
    axes.set_ylim(len(pairs), 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("duration of a span (cycles" + (", logarithmic)" if floor else ")"))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="x", color="#adb5bd", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)


def _times(trace: Trace, group: LaunchGroup) -> str:
    """How long a launch took: timed from outside, clean and traced; else from its first mark to the last."""
    parts = [f"grid {shape(group.first, 'grid')}"]
    kernels = trace.manifest.get("kernels")
    for kernel in kernels if isinstance(kernels, list) else []:
        if mapping(kernel).get("name") != group.first["kernel"]:
            continue
        for word in ("clean", "traced"):
            measured = mapping(kernel).get(f"{word}_ns")
            if isinstance(measured, list) and measured:
                parts.append(f"{word} {nanoseconds(float(np.median(measured)))}")
    launches = trace.launches.filter(trace.launches["launch"].is_in(group.launches))
    marked = launches["duration_ns"].drop_nulls()
    if len(parts) == 1 and len(marked):  # shorter than a time from outside: never beside one
        parts.append(f"{nanoseconds(float(np.median(marked.to_numpy())))} from the first mark to the last")
    return ", ".join(parts)


def _remarks(
    traces: tuple[Trace, Trace], groups: tuple[LaunchGroup, LaunchGroup], rows: tuple[list[Durations], list[Durations]]
) -> list[str]:
    """What else differs: sites that only one has, kernels, devices, shapes, losses."""
    found = []
    keys = [{(row.name, row.kind): row.name for row in side} for side in rows]
    for word, here, there in (("before", keys[0], keys[1]), ("after", keys[1], keys[0])):
        names = [drawable_site(name, limit=24) for key, name in here.items() if key not in there]
        if names:
            found.append(f"only {word}: " + ", ".join(names[:6]) + (f" and {len(names) - 6} more" if names[6:] else ""))
    facts: dict[str, list[Any]] = {
        "kernel": [group.first["kernel"] for group in groups],
        "device": [mapping(trace.manifest.get("device")).get("name") for trace in traces],
        "threads a block": [shape(group.first, "block") for group in groups],
        "cold L2": [group.first["cold_l2"] for group in groups],
    }
    for word, both in facts.items():
        if both[0] != both[1]:
            found.append(f"{word} " + " → ".join(drawable(each, limit=40) for each in both))
    for word, trace in zip(("before", "after"), traces, strict=True):
        lost = int(trace.launches["lost_events"].sum())
        if lost:
            found.append(f"{lost:,} events lost {word}")
    return textwrap.wrap("also different: " + "; ".join(found), _REMARK_CHARACTERS) if found else []
