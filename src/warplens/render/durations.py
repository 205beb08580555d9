"""The durations behind a picture: all complete spans of a site, by role where warps differ.

In: a Trace and which launches. Out: rows with the durations in cycles and their percentiles. Draws nothing.
Percentiles are those of the phase table (the nearest rank), so that a picture and a summary agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.render.phases import LaunchGroup, launch_groups, phase_table, spans_of
from warplens.render.pick import pick_launch

if TYPE_CHECKING:
    from warplens.trace import Trace

PERCENTS: Final = (10, 50, 90, 99)


@dataclass(frozen=True)
class Durations:
    """Durations of the complete spans of one site, or of one role in it."""

    site: int
    name: str
    kind: str
    role: str
    """`w1-19`; empty where all warps stand together."""
    share: float | None
    """Of the time of all blocks, or of those of the role; None for spans that cross warps."""
    cut: int
    """Spans left out, for their end was not seen."""
    cycles: pl.Series

    def percentile(self, percent: int) -> int:
        """A percentile in cycles."""
        value: Any = self.cycles.quantile(percent / 100, "nearest")
        return int(value)


def pick_group(trace: Trace, launch: int | None) -> LaunchGroup:
    """`launch` alone; without one, all launches like the first that recorded something."""
    number = pick_launch(trace, launch)
    groups = launch_groups(trace, None if launch is None else number)
    return next(group for group in groups if number in group.launches)


def durations(trace: Trace, group: LaunchGroup) -> list[Durations]:
    """A row a site, in the order of the sites; a row a role where the roles' medians differ."""
    table = phase_table(trace, group, by_role=False)
    split = set(table.filter(pl.col("role").is_not_null())["site"].to_list())
    flags = pl.col("flags") & int(SpanFlag.UNENDED | SpanFlag.INSTANT) == 0
    spans = spans_of(trace, group).filter(flags).select("site", "warp", "duration_cycles").collect()
    parts = {key[0]: part for key, part in spans.partition_by("site", as_dict=True).items()}
    rows = []
    for row in table.iter_rows(named=True):
        part, role = parts.get(row["site"]), row["role"]
        if part is None or (role is None and row["site"] in split):
            continue
        if role is not None:
            part = part.filter(pl.col("warp").is_in([warp for warp, name in group.roles.items() if name == role]))
        if part.height:
            place = (row["site"], row["name"], row["kind"], role or "", row["share"], row["cut"])
            rows.append(Durations(*place, part["duration_cycles"]))
    return rows
