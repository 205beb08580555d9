"""One block's warps as a timeline of characters.

In: a Trace, a launch and a block. Out: a rich renderable as wide as the window: a cycle ruler, a row a warp, a legend.
Prints nothing itself. Every cell is the site that took most of its time; the letter alone carries the meaning,
colour only helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from warplens.decode.flags import SpanFlag
from warplens.render.colors import ink_on, site_colors, site_letters
from warplens.render.escape import visible, visible_site
from warplens.render.pick import block_spans, block_title, last_cycle, median_of, per_site, pick_block, pick_launch

if TYPE_CHECKING:
    from warplens.trace import Trace

_IDLE: Final = "·"
_INSTANT: Final = "|"
_TORN: Final = "~"
_LOST: Final = "!"
_MIN_CELLS: Final = 20


def show(
    trace: Trace, *, launch: int | None = None, block: int | None = None, width: int | None = None
) -> RenderableType:
    """The warps of one block over time, `width` characters wide (default: the window).

    Without `block` the first block of the second wave, or the first block of a launch with one wave.
    Raises UsageError when the trace does not hold the launch or block.
    """
    launch = pick_launch(trace, launch)
    return _Timeline(trace, launch, pick_block(trace, launch, block), width)


class _Timeline:
    def __init__(self, trace: Trace, launch: int, block: int, width: int | None) -> None:
        self.spans = block_spans(trace, launch, block)
        kernel = trace.launches.filter(pl.col("launch") == launch)["kernel"][0]
        where = block_title(trace, launch, block)
        self.title = Text.assemble((visible(kernel, limit=60), "bold"), f"  launch {launch} · {where}")
        self.width = width
        self.sites = trace.sites
        self.colors = site_colors(trace.sites["name"].to_list(), trace.sites["kind"].to_list())
        present = np.unique(self.spans["site"].to_numpy())
        self.letters = dict(
            zip(present.tolist(), site_letters([self.sites["name"][int(s)] for s in present]), strict=True)
        )
        self.length_cycles = last_cycle(self.spans)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        warps = self.spans["warp"].unique().sort().to_list()
        margin = len(f"w{warps[-1]}") + 1
        cells = max((self.width or options.max_width) - margin, _MIN_CELLS)
        yield self.title
        yield Text("\n").join(Text(" " * margin + line, style="dim") for line in cycle_ruler(self.length_cycles, cells))
        seen: set[int] = set()
        for warp in warps:
            spans = self.spans.filter(pl.col("warp") == warp)
            line, sites = self._row(spans, cells, colored=console.color_system is not None)
            seen |= sites
            yield Text(f"w{warp}".ljust(margin)).append_text(line)
        yield self._legend(seen)
        yield Text(self._scale(cells), style="dim")

    def _row(self, spans: pl.DataFrame, cells: int, *, colored: bool) -> tuple[Text, set[int]]:
        site_of_cell = _majority(spans, self.sites, self.length_cycles, cells)
        chars = [_IDLE if s < 0 else self.letters[s] for s in site_of_cell.tolist()]
        flags = spans["flags"].to_numpy()
        begin = (spans["start_cycles"] * cells // self.length_cycles).clip(0, cells - 1).to_numpy()
        end = ((spans["start_cycles"] + spans["duration_cycles"]) * cells // self.length_cycles).clip(0, cells - 1)
        for index in begin[flags & SpanFlag.INSTANT != 0]:
            chars[index] = _INSTANT
        for index in end.to_numpy()[flags & SpanFlag.UNENDED != 0]:
            chars[index] = _TORN
        for index in begin[flags & SpanFlag.AFTER_GAP != 0]:
            chars[index] = _LOST
        text = Text()
        for char, site in zip(chars, site_of_cell.tolist(), strict=True):
            text.append(char, style=self._style(char, site) if colored else "")
        return text, set(site_of_cell.tolist())

    def _style(self, char: str, site: int) -> Style | str:
        if char in (_TORN, _LOST):
            return "bold white on red"
        if site < 0:
            return "dim"
        return Style(color=ink_on(self.colors[site]), bgcolor=self.colors[site])

    def _legend(self, seen: set[int]) -> Table:
        total = max(int(self.spans["duration_cycles"].sum()), 1)
        legend = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "left", "left", "right", "right", "left"):
            legend.add_column(justify=justify, no_wrap=True)
        for site, letter in self.letters.items():
            spans = self.spans.filter(pl.col("site") == site)
            cycles, color = spans["duration_cycles"], self.colors[site]
            key = Text(f" {letter} ", style=Style(color=ink_on(color), bgcolor=color))
            instant = bool((spans["flags"] & int(SpanFlag.INSTANT) != 0).all())
            name = Text(visible_site(self.sites["name"][site], limit=40))
            length = f"{median_of(cycles):,.0f} cycles" if not instant else f"{spans.height} instants"
            share = f"{100 * int(cycles.sum()) / total:.1f} %" if not instant else ""
            unseen = "" if site in seen or instant else "fills no cell"
            cells = (name, Text(visible(self.sites["kind"][site], limit=10)), Text(length), Text(share))
            legend.add_row(key, *cells, Text(unseen, style="dim"))
        return legend

    def _scale(self, cells: int) -> str:
        flags = int(np.bitwise_or.reduce(self.spans["flags"].to_numpy()))
        notes = [f"a cell is {self.length_cycles / cells:,.0f} cycles and shows the site with most of it"]
        notes.append(f"{_IDLE} no mark covers it")
        notes.append("legend: median length and share of all span time in this block")
        for flag, note in (
            (1, f"{_INSTANT} instant"),
            (2, f"{_TORN} end not seen"),
            (4, f"{_LOST} events lost before"),
        ):
            if flags & flag:
                notes.append(note)
        return "; ".join(notes)


def nice_step(length: int, wanted: int) -> int:
    """A step of 1, 2 or 5 times a power of ten that divides `length` into about `wanted` parts, at least 1."""
    rough = max(length / max(wanted, 1), 1)
    power = 10 ** int(np.floor(np.log10(rough)))
    return int(next(f * power for f in (1, 2, 5, 10) if f * power >= rough))


def cycle_ruler(length_cycles: int, cells: int) -> list[str]:
    """Two lines: labels in cycles, and ticks under them."""
    step = nice_step(length_cycles, max(cells // 12, 1))
    labels, ticks = [" "] * (cells + 12), ["─"] * cells
    for cycles in range(0, length_cycles, step):
        at = cycles * cells // length_cycles
        label = f"{cycles:,}" + (" cycles" if cycles == 0 else "")
        if at + len(label) <= cells:
            labels[at : at + len(label)] = label
        ticks[at] = "┬"
    return ["".join(labels)[:cells].rstrip(), "".join(ticks)]


def _layers(spans: pl.DataFrame, sites: pl.DataFrame) -> list[pl.DataFrame]:
    """Phases and waits first, then the other spans, the innermost first: a layer shows where those before it do not."""
    phases = sites.filter(pl.col("kind").is_in(["phase", "wait"]))["site"].to_list()
    inside = pl.col("site").is_in(phases)
    ranges = spans.filter(~inside).sort("depth", descending=True, maintain_order=True)
    return [spans.filter(inside), *ranges.partition_by("depth")]


def _majority(spans: pl.DataFrame, sites: pl.DataFrame, length_cycles: int, cells: int) -> npt.NDArray[np.int64]:
    """Site of each cell, -1 where no span covers it: the site with most time, in the first layer that has one."""
    best_time = np.zeros(cells)
    best_site = np.full(cells, -1, np.int64)
    edges = np.linspace(0, length_cycles, cells + 1)
    for part in _layers(spans, sites):
        won = best_site >= 0
        for site, group in per_site(part):
            covered = np.diff(_covered(group, edges))
            better = (covered > best_time) & ~won
            best_time[better], best_site[better] = covered[better], site
        best_time[won] = np.inf
    return best_site


def _covered(spans: pl.DataFrame, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Time that `spans` cover before each edge: the sum over begins minus the sum over ends, no loop over spans."""
    total = np.zeros(len(edges))
    begin = spans["start_cycles"].to_numpy()
    for sign, points in ((1.0, begin), (-1.0, begin + spans["duration_cycles"].to_numpy())):
        points = np.sort(points).astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(points)])
        before = np.searchsorted(points, edges)
        total += sign * (before * edges - sums[before])
    return total
