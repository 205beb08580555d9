"""The summary of a trace, for a terminal.

In: a Trace. Out: a rich renderable that fits the window it is printed in, and the same facts as a JSON-able dict.
Prints nothing itself. Trust comes first; names of strangers become `Text` (never markup) through `visible`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from warplens.errors import UsageError
from warplens.render.colors import site_colors
from warplens.render.escape import visible, visible_site, visible_tree
from warplens.render.phases import LaunchGroup, launch_groups, phase_table, place_table
from warplens.render.pick import nanoseconds, number_ranges, pick_launch, shape
from warplens.render.stopped import last_sites, last_sites_table
from warplens.render.trust import Level, TrustLine, trust_lines

if TYPE_CHECKING:
    import polars as pl

    from warplens.trace import Trace

By = Literal["site", "role", "sm", "block", "launch"]
BY: Final = ("site", "role", "sm", "block", "launch")
WIDE_COLUMNS: Final = 104
"""A window at least this wide shows mean and percentiles in ns as well as in cycles; a narrower one only p50."""
CORRECTED_COLUMNS: Final = 18
"""What corrected durations need more."""
LEAST_NAME: Final = 20
"""Site names get this many columns, or as many as the longest has, before figures get theirs."""
_WIDE_ALONE: Final = ("mean_ns", "p90_ns", "p99_ns", "corrected_mean_ns", "corrected_uncertainty_ns")
_GIVE_WAY: Final = ("p50_ns", "corrected_p50_ns", "p99_cycles", "p90_cycles", "mean_cycles", "count", "kind")
"""Columns of the phase table that a narrow window goes without, in this order."""
PLACES_SHOWN: Final = 16
_CORRECTED: Final = {
    "corrected_mean_ns": "ns mean",
    "corrected_uncertainty_ns": "±",
    "corrected_p50_ns": "ns p50",
}
_STYLES: Final[dict[Level, str]] = {"ok": "green", "note": "yellow", "BAD": "bold red"}
_SHARE: Final = (
    "share: time of the row's spans over the time of all blocks times the row's warps; a block lasts from the first "
    "begin to the last end recorded in it. Cut spans (no end seen) count in share, not in mean and percentiles."
)


def summary(trace: Trace, *, by: By = "site", launch: int | None = None) -> RenderableType:
    """Trust lines, then a table for each group of launches of one kernel and shape.

    `by` chooses the rows: "site" (split by role where roles differ), "role" (every site split), "sm", "block",
    "launch". `launch` keeps one launch. Raises UsageError for a launch that the trace does not hold.
    """
    groups = _groups(trace, by, launch)
    parts: list[RenderableType] = [_Trust(trust_lines(trace, launch))]
    places = last_sites_table(trace)
    if places is not None:
        parts += [Text(), places]
    if trace.note:
        parts.insert(0, Text(f"note: {visible(trace.note)}", style="italic"))
    for group in groups:
        parts += [Text(), _heading(group)]
        if by in ("site", "role"):
            parts.append(_PhaseTable(trace, group, phase_table(trace, group, by_role=by == "role")))
        else:
            parts.append(_places(place_table(trace, group, by), by))
    if by in ("site", "role"):
        parts.append(Text(_SHARE, style="dim"))
    return Group(*parts)


def summary_facts(trace: Trace, *, by: By = "site", launch: int | None = None) -> dict[str, Any]:
    """What `summary` shows, as a JSON-able dict: `note`, `trust` (label, level, text), `stopped` and `groups`.

    `stopped` is None, or `why`, `after_s` and `last_sites` of a kernel that was stopped (`stopped.last_sites`).

    Each group has `kernel`, `launches`, `grid`, `block`, `roles` and `rows`; rows are those of
    `phases.phase_table` or `phases.place_table`, all of them, with units in their names.
    """
    groups = []
    for group in _groups(trace, by, launch):
        if by in ("site", "role"):
            rows = phase_table(trace, group, by_role=by == "role").drop("role")
        else:
            rows = place_table(trace, group, by)
        first = group.first
        shape = {name: [first[f"{name}_{axis}"] for axis in "xyz"] for name in ("grid", "block")}
        facts = {"kernel": first["kernel"], "launches": list(group.launches), **shape, "roles": group.role_names}
        groups.append(visible_tree(facts | {"rows": rows.to_dicts()}))
    trust = [{"label": t.label, "level": t.level, "text": t.text} for t in trust_lines(trace, launch)]
    note = None if trace.note is None else visible(trace.note)
    return {"note": note, "by": by, "trust": trust, "stopped": _stopped_facts(trace), "groups": groups}


def _stopped_facts(trace: Trace) -> dict[str, Any] | None:
    stopped = trace.manifest.get("stopped")
    if not stopped:
        return None
    return {"why": visible(stopped["why"]), "after_s": stopped["after_s"], "last_sites": last_sites(trace)}


def _groups(trace: Trace, by: str, launch: int | None) -> list[LaunchGroup]:
    if by not in BY:
        raise UsageError(f"summary by {by!r}: expected one of {', '.join(BY)}")
    if launch is not None:
        pick_launch(trace, launch)
    return launch_groups(trace, launch)


class _Trust:
    """Bad lines, then notes, each on its own line; all that is well shares the last one."""

    def __init__(self, lines: list[TrustLine]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        order: tuple[Level, ...] = ("BAD", "note", "ok")
        for line in sorted(self.lines, key=lambda line: order.index(line.level)):
            if line.level == "ok" and line.brief:
                continue
            style = _STYLES[line.level]
            body = Text(line.text, style=style if line.level == "BAD" else "")
            table.add_row(Text(line.level, style=style), Text(line.label), body)
        fine = [line.brief for line in self.lines if line.level == "ok" and line.brief]
        if fine:
            table.add_row(
                Text("ok", style=_STYLES["ok"]), Text("all else" if len(table.rows) else "all"), Text("; ".join(fine))
            )
        yield Text("TRUST", style="bold")
        yield table


def _heading(group: LaunchGroup) -> Text:
    first = group.first
    text = Text(visible(first["kernel"], limit=80), style="bold")
    shapes = (f"{name} {shape(first, name)}" for name in ("grid", "block"))
    facts = [*shapes, f"{'launches' if len(group.launches) > 1 else 'launch'} {number_ranges(list(group.launches))}"]
    if len(group.launches) > 1:
        facts.append(f"{len(group.launches)} pooled (--launch N or --by launch take them apart)")
    else:
        facts.append(nanoseconds(float(str(first["duration_ns"] or 0))))
    if first["cold_l2"]:
        facts.append("cold L2")
    if group.roles:
        facts.append("roles inferred: " + " ".join(group.role_names))
    return text.append("  " + " · ".join(facts), style="not bold")


@dataclass(frozen=True)
class _Column:
    """A column of figures: the head above those that belong together, its own head, its cells."""

    unit: str
    head: str
    cells: list[Text]
    style: str = ""

    @property
    def width(self) -> int:
        return max(len(self.unit), len(self.head), *(cell.cell_len for cell in self.cells))


class _PhaseTable:
    """The phase table in as many columns as the window holds."""

    def __init__(self, trace: Trace, group: LaunchGroup, table: pl.DataFrame) -> None:
        self.table, self.group = table, group
        names, kinds = trace.sites["name"].to_list(), trace.sites["kind"].to_list()
        self.colors = dict(zip(trace.sites["site"].to_list(), site_colors(names, kinds), strict=True))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names, columns = [self._name(row) for row in self.table.iter_rows(named=True)], self._columns()
        least = min(LEAST_NAME, max((name.cell_len for name in names), default=0))
        corrected = CORRECTED_COLUMNS * ("corrected_p50_ns" in columns)
        if options.max_width < WIDE_COLUMNS + corrected:
            columns = {key: column for key, column in columns.items() if key not in _WIDE_ALONE}
        for key in _GIVE_WAY:
            if least + sum(1 + column.width for column in columns.values()) <= options.max_width:
                break
            columns.pop(key, None)
        out = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
        out.add_column("site", overflow="fold", min_width=min(least, 8))  # the one column that gives way
        unit = ""
        for key, column in columns.items():
            head = f"{column.unit if column.unit != unit else ''}\n{column.head}" if column.unit else column.head
            unit = column.unit
            out.add_column(
                head, justify="left" if key in ("kind", "warps") else "right", no_wrap=True, style=column.style
            )
        for name, *cells in zip(names, *(column.cells for column in columns.values()), strict=True):
            out.add_row(name, *cells)
        yield out
        if self.table["cut"].sum() and "count" in columns:
            yield Text("+n in count: cut spans, whose end was not seen", style="dim")

    def _name(self, row: dict[str, Any]) -> Text:
        part = row["role"] is not None and row["warps"] == row["role"]
        mark = Text("  " if part else "▪ ", style=self.colors[row["site"]])
        return mark.append(visible_site(row["name"], limit=48), style="dim" if part else "default")

    def _columns(self) -> dict[str, _Column]:
        """All columns but the names, by the key of what they show, from left to right."""
        rows = self.table.to_dicts()
        columns = {"kind": _Column("", "kind", [Text(visible(row["kind"], limit=10)) for row in rows])}
        if self.group.roles:
            columns["warps"] = _Column("", "warps", [Text(row["warps"]) for row in rows])
        columns["count"] = _Column("", "count", [self._count(row) for row in rows])
        shares = [Text("-" if row["share"] is None else f"{100 * row['share']:.1f} %") for row in rows]
        columns["share"] = _Column("", "share", shares)
        heads = {f"{name}_{unit}": (unit, name) for unit in ("cycles", "ns") for name in ("mean", "p50", "p90", "p99")}
        if self.table["corrected_p50_ns"].count():
            heads |= {key: ("corrected", head) for key, head in _CORRECTED.items()}
        for key, (unit, head) in heads.items():
            cells = [Text("-" if row[key] is None else f"{row[key]:,.0f}") for row in rows]
            columns[key] = _Column(unit, head, cells, "dim" if unit == "ns" else "")
        return columns

    def _count(self, row: dict[str, Any]) -> Text:
        text = Text(f"{row['count'] - row['cut']:,}")
        return text.append(f"+{row['cut']:,}" if row["cut"] else "", style="yellow")


def _places(table: pl.DataFrame, by: str) -> RenderableType:
    keys = {"sm": ("sm", "blocks", "waves"), "block": ("launch", "block", "sm", "wave")}
    times = {
        "sm": ("mean", "p50", "max"),
        "block": ("start", "time"),
        "launch": ("start", "time", "mean", "p50", "max"),
    }
    out = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    numbers = keys.get(by, ("launch", "blocks", "waves"))
    for name in (*numbers, *times[by]):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("most time in", overflow="fold")
    for row in table.head(PLACES_SHOWN).iter_rows(named=True):
        cells = ["?" if row[k] is None else f"{row[k]:,}" for k in numbers]
        cells += ["?" if row[f"{t}_ns"] is None else nanoseconds(row[f"{t}_ns"]) for t in times[by]]
        top = ", ".join(f"{visible_site(t['name'], limit=32)} {100 * t['share']:.0f} %" for t in row["top"] or [])
        out.add_row(*(Text(c) for c in cells), Text(top))
    caption = "mean, p50 and max: block times. " if by != "block" else ""
    caption += "Slowest first" + (
        f"; {table.height - PLACES_SHOWN} more rows in --json" if len(table) > PLACES_SHOWN else ""
    )
    return Group(out, Text(caption, style="dim"))
