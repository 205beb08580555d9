"""The picture of one phase over SMs and time.

In: a Trace, a launch and a site. Out: a matplotlib figure: a heat map with a row an SM, its colour how many of the
SM's warps are in the phase, and above it the share of all resident warps that is. Writes no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.errors import UsageError
from warplens.render.colors import site_colors
from warplens.render.coverage import F64, I64, Covered
from warplens.render.escape import visible
from warplens.render.phases import launch_groups, phase_table
from warplens.render.pick import pick_launch
from warplens.render.plots import drawable_site, title_facts
from warplens.render.sheet import RIGHT_IN, WIDTH_IN, label_step, sheet, write_titles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from warplens.trace import Trace

_STEPS: Final = 480
_SCALE_IN: Final = 0.75
"""To the right, for the scale of colours."""
_EMPTY: Final = "#e9ecef"


def sm_figure(trace: Trace, launch: int | None, site: str | None) -> Figure:
    """The figure; UsageError for a site that the launch did not record, and when no block has times and an SM."""
    launch = pick_launch(trace, launch)
    chosen = _pick_site(trace, launch, site)
    name = drawable_site(trace.sites["name"][chosen], limit=40)
    known = pl.col("start_ns").is_not_null() & pl.col("sm_begin").is_not_null()
    blocks = trace.blocks.filter((pl.col("launch") == launch) & known)
    if blocks.is_empty():
        raise UsageError(f"launch {launch} has no block with times and an SM: `warplens summary` says why")
    sms = np.unique(blocks["sm_begin"].to_numpy())
    origin, length = int(blocks["start_ns"].min()), 0  # type: ignore[arg-type]
    length = max(int(blocks["end_ns"].max()) - origin, 1)  # type: ignore[arg-type]
    steps = min(_STEPS, length)
    inside, resident = _warps(trace, launch, chosen, blocks, sms, origin, length / steps, steps)
    height = float(np.clip(len(sms) * 0.05, 1.6, 8.0))
    figure, (above, axes) = sheet([0.62, height], [0.1, 0.14, 0.5], [], right_in=RIGHT_IN + _SCALE_IN)
    scale, unit = (1000.0, "us") if length >= 20_000 else (1.0, "ns")
    _share(above, inside.sum(axis=0), resident.sum(axis=0), length / scale, _color(trace, chosen))
    shown = np.ma.masked_where(resident <= 1e-6, inside)
    picture = axes.imshow(
        shown, aspect="auto", interpolation="nearest", cmap="YlGnBu", extent=(0, length / scale, len(sms), 0), vmin=0
    )
    axes.set_facecolor(_EMPTY)
    box = ((WIDTH_IN - RIGHT_IN - _SCALE_IN + 0.14) / WIDTH_IN, axes.get_position().y0)
    bar = figure.add_axes((*box, 0.16 / WIDTH_IN, axes.get_position().height))
    figure.colorbar(picture, cax=bar).set_label(f"warps in {name}", fontsize=8)
    bar.tick_params(labelsize=8, length=0)
    _dress(axes, sms, label_step(len(sms), height), unit)
    title, facts = title_facts(trace, launch, f"site {name}")
    step = f"mean over {length / steps:,.3g} ns"
    write_titles(
        figure, title, facts, f"a row is an SM, its colour how many of its warps are in {name} ({step}); grey: no block"
    )
    return figure


def _pick_site(trace: Trace, launch: int, site: str | None) -> int:
    """The site called `site`; without one, the phase, wait or range with the largest share of block time."""
    (group,) = launch_groups(trace, launch)
    table = phase_table(trace, group, by_role=False).filter(pl.col("role").is_null() & pl.col("share").is_not_null())
    if table.is_empty():
        raise UsageError(f"launch {launch} recorded no spans of a phase, wait or range: `warplens summary` says why")
    phases = table.filter(pl.col("kind").is_in(["phase", "wait"]))
    if site is None:
        return int((phases if phases.height else table).sort("share", descending=True)["site"][0])
    found = table.filter(pl.col("name") == site)["site"].to_list()
    if not found:
        held = ", ".join(visible(name, limit=40) for name in table["name"].to_list()[:12])
        raise UsageError(f"launch {launch} recorded no site {visible(site)!r} with a length: there are {held}")
    return int(found[0])


def _warps(
    trace: Trace,
    launch: int,
    site: int,
    blocks: pl.DataFrame,
    sms: npt.NDArray[np.uint16],
    origin: int,
    step_ns: float,
    steps: int,
) -> tuple[F64, F64]:
    """Warps in the site and resident warps, means over each step: shape (SMs, steps)."""

    def place(times: pl.Series) -> F64:
        return np.clip((times.to_numpy() - origin) / step_ns, 0, steps)

    def row(frame: pl.DataFrame) -> I64:
        return np.searchsorted(sms, frame["sm_begin"].to_numpy())

    resident = Covered(len(sms), steps + 1)
    resident.add(
        row(blocks), place(blocks["start_ns"]), place(blocks["end_ns"]), blocks["warps"].to_numpy().astype(np.int64)
    )
    wanted = (pl.col("launch") == launch) & (pl.col("site") == site)
    spans = (
        trace.spans.lazy()
        .filter(wanted & (pl.col("flags") & int(SpanFlag.CROSS_WARP) == 0))
        .join(blocks.lazy().select("block", "sm_begin"), on="block")
        .select("sm_begin", "start_ns", end_ns=pl.col("start_ns") + pl.col("duration_ns"))
        .collect()
    )
    inside = Covered(len(sms), steps + 1)
    inside.add(row(spans), place(spans["start_ns"]), place(spans["end_ns"]))
    return inside.total()[:, :-1].clip(0), resident.total()[:, :-1]


def _color(trace: Trace, site: int) -> str:
    return site_colors(trace.sites["name"].to_list(), trace.sites["kind"].to_list())[site]


def _share(axes: Axes, inside: F64, resident: F64, length: float, color: str) -> None:
    """The share of all resident warps, over time."""
    share = 100 * inside / np.maximum(resident, 1e-9) * (resident > 1e-6)
    edges = np.linspace(0, length, len(share) + 1)
    axes.fill_between(edges, np.append(share, share[-1]), step="post", color=color, linewidth=0)
    axes.set_ylabel("% of resident\nwarps", fontsize=8)
    axes.tick_params(labelbottom=False, labelsize=8)
    axes.set_xlim(0, length)
    axes.set_ylim(0, None)


def _dress(axes: Axes, sms: npt.NDArray[np.uint16], every: int, unit: str) -> None:
    shown = range(0, len(sms), every)
    axes.set_yticks([index + 0.5 for index in shown], [str(sms[index]) for index in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("SM")
    axes.set_xlabel(f"time since the first block began ({unit})")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
