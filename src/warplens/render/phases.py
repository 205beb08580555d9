"""The numbers behind the phase table.

In: a Trace. Out: launch groups, roles of warps, and polars frames of counts, shares and percentiles.
Draws nothing. All grouping happens in polars: a million spans take a fraction of a second.

**Share of block time** of a row: the time its spans took, over the time of all blocks multiplied by the row's
warps. A block's time runs from the first begin to the last end that any of its warps recorded. A phase that
every warp of a role is in from begin to end of its block has 100 %. Cut spans count towards the share alone:
their true length is not known, so mean and percentiles leave them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens import clock
from warplens.decode.corrected import mean_half_widths, measured
from warplens.decode.flags import SpanFlag
from warplens.decode.roles import MAX_ROLES, find_roles
from warplens.render.pick import number_ranges

if TYPE_CHECKING:
    from warplens.trace import Trace

ROLE_DIFFERENCE: Final = 1.25
"""A site's row is split by role where the roles' p50 differ by more than this factor."""
ALL_WARPS: Final = "all"


@dataclass(frozen=True)
class LaunchGroup:
    """Launches of one kernel, shape and rank, whose spans are pooled in one table."""

    launches: tuple[int, ...]
    first: dict[str, object]  # the row of the first launch
    roles: dict[int, str]  # warp -> label, such as "w0" or "w1-19"; empty when all warps are alike

    @property
    def role_names(self) -> list[str]:
        """Labels of the roles in the order of their first warp."""
        return list(dict.fromkeys(self.roles[w] for w in sorted(self.roles)))


def launch_groups(trace: Trace, launch: int | None = None) -> list[LaunchGroup]:
    """Groups in the order of their first launch; with `launch`, that one alone."""
    shape = ["kernel", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes", "rank", "cold_l2"]
    launches = trace.launches.sort("launch")
    if launch is not None:
        launches = launches.filter(pl.col("launch") == launch)
    members = launches.group_by(shape, maintain_order=True).agg(pl.col("launch"))["launch"].to_list()
    rows = {row["launch"]: row for row in launches.iter_rows(named=True)}
    return [LaunchGroup(tuple(m), rows[m[0]], _roles(trace, m)) for m in members]


def spans_of(trace: Trace, group: LaunchGroup) -> pl.LazyFrame:
    """The spans of a group's launches."""
    spans = trace.spans.lazy()
    if len(group.launches) == trace.launches.height:
        return spans
    return spans.filter(pl.col("launch").is_in(list(group.launches)))


def phase_table(trace: Trace, group: LaunchGroup, *, by_role: bool) -> pl.DataFrame:
    """One row a site (and role): `site`, `name`, `kind`, `warps`, `count`, `cut`, `share`, then mean, p50, p90 and
    p99 in cycles and ns, and of corrected durations mean, p50 and the half width of the mean's 90 % interval in ns.

    With `by_role` every site is split; without it only sites whose roles' p50 differ by more than ROLE_DIFFERENCE.
    `share` is null for spans that cross warps, the statistics are null for instants, and those of corrected durations
    where not all of the row's are corrected.
    """
    spans = spans_of(trace, group)
    capacity = _capacity(spans, group)
    certainty = _certainty(trace, group)
    tally = _tally(spans, group)
    whole = _statistics(tally, certainty, by_role=False)
    certainty = certainty.with_columns(role=_role_of(group))
    roles = _statistics(tally, certainty, by_role=True) if group.roles else whole.clear()
    total = int(capacity["cycles"].sum())
    shares = dict(zip(capacity["role"], capacity["cycles"], strict=True))
    rows = []
    for row in whole.sort("site").iter_rows(named=True):
        parts = roles.filter(pl.col("site") == row["site"]).to_dicts()
        parts.sort(key=lambda r: group.role_names.index(r["role"]))
        for part in parts:
            part |= {"warps": part["role"], "cycles": shares[part["role"]]}
        if len(parts) in (0, len(group.role_names)):
            row |= {"warps": ALL_WARPS, "cycles": total}
        else:  # warps that never come here do not count
            seen = sorted(warp for warp, role in group.roles.items() if role in {p["role"] for p in parts})
            row |= {"warps": "w" + number_ranges(seen, limit=3), "cycles": sum(p["cycles"] for p in parts)}
        split = len(parts) > 1 and (by_role or _differ(parts))
        rows += parts if split and by_role else [row, *parts] if split else [row]
    table = pl.DataFrame(rows, schema={**whole.schema, "warps": pl.String, "cycles": pl.Int64}, orient="row")
    crossing = pl.col("crossing") > 0
    share = pl.when(crossing | (pl.col("instants") == pl.col("count"))).then(None)
    table = table.with_columns(share=share.otherwise(pl.col("sum_cycles") / pl.col("cycles")))
    sites = trace.sites.select("site", "name", "kind")
    if by_role and group.roles:
        order = {name: place for place, name in enumerate(group.role_names)}
        table = table.sort(pl.col("warps").replace_strict(order, default=len(order), return_dtype=pl.Int64), "site")
    columns = ["site", "name", "kind", "warps", "role", "count", "cut", "share", *_STATISTICS, *_CORRECTED]
    return table.join(sites, on="site", how="left", maintain_order="left").select(columns)


def place_table(trace: Trace, group: LaunchGroup, by: str) -> pl.DataFrame:
    """One row for each `by` ("sm", "block" or "launch"), slowest first.

    Keys `sm`, or `launch` and `block` (with its `sm` and `wave`), or `launch`; `start_ns`; `time_ns` from the first
    begin to the last end; `blocks`, `waves`, and block times `mean_ns`, `p50_ns`, `max_ns`; and `top`, the three
    phases or waits with the most time as structs (name, share of such time in the row).
    """
    keys = {"sm": ["sm"], "block": ["launch", "block"], "launch": ["launch"]}[by]
    blocks = trace.blocks.filter(pl.col("launch").is_in(list(group.launches))).with_columns(
        sm=pl.col("sm_begin"), block_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    time = pl.col("block_ns")
    table = blocks.group_by(keys).agg(
        *([] if by == "sm" else [pl.col("start_ns").min()]),
        *([] if by == "sm" else [(pl.col("end_ns").max() - pl.col("start_ns").min()).alias("time_ns")]),
        *([pl.col("sm").first(), pl.col("wave").first() + 1] if by == "block" else [pl.len().alias("blocks")]),
        *([] if by == "block" else [(pl.col("wave").max() + 1).alias("waves"), time.mean().alias("mean_ns")]),
        *([] if by == "block" else [time.quantile(0.5, "nearest").cast(pl.Int64, strict=False).alias("p50_ns")]),
        *([] if by == "block" else [time.max().alias("max_ns")]),
    )
    slowness = "mean_ns" if by == "sm" else "time_ns"
    table = table.join(_most_time(trace, group, blocks, keys), on=keys, how="left")
    return table.sort(slowness, *keys, descending=[True, *[False] * len(keys)], nulls_last=True)


def _most_time(trace: Trace, group: LaunchGroup, blocks: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """`keys` and `top`; phases and waits count, ranges and marks only where a trace has neither."""
    plain = pl.col("flags") & int(SpanFlag.CROSS_WARP | SpanFlag.INSTANT) == 0
    chosen = trace.sites.filter(pl.col("kind").is_in(["phase", "wait"]))
    chosen = chosen if chosen.height else trace.sites
    return (
        spans_of(trace, group)
        .filter(plain & pl.col("site").is_in(chosen["site"].to_list()))
        .group_by("launch", "block", "site")
        .agg(pl.col("duration_cycles").sum().alias("cycles"))
        .collect()
        .join(blocks.select("launch", "block", "sm"), on=["launch", "block"], how="left")
        .group_by([*keys, "site"])
        .agg(pl.col("cycles").sum())
        .with_columns(share=pl.col("cycles") / pl.col("cycles").sum().over(keys))
        .join(trace.sites.select("site", "name"), on="site", how="left")
        .sort("share", "site", descending=[True, False])
        .group_by(keys, maintain_order=True)
        .agg(pl.struct("name", "share").head(3).alias("top"))
    )


_STATISTICS: Final = [f"{s}_{u}" for u in ("cycles", "ns") for s in ("mean", "p50", "p90", "p99")]


_CORRECTED: Final = ["corrected_mean_ns", "corrected_p50_ns", "corrected_uncertainty_ns"]


def _tally(spans: pl.LazyFrame, group: LaunchGroup) -> pl.DataFrame:
    """How often (`n`) spans of a `site` and a `role` have the same flags of COUNTED and the same durations.

    Ten million spans so become some ten thousand rows, which all statistics are made of: the spans are gone over once.
    """
    names = [*group.role_names, None]
    role_of = np.full(256, len(names) - 1, np.uint8)
    for warp, role in group.roles.items():
        role_of[warp] = names.index(role)
    counted = pl.col("flags") & int(SpanFlag.UNENDED | SpanFlag.INSTANT | SpanFlag.CROSS_WARP)
    place = pl.lit(pl.Series(role_of)).gather(pl.col("warp")).cast(pl.UInt64)
    # One key of three numbers: grouping by it takes a third of the time.
    key = pl.col("site").cast(pl.UInt64) * (1 << 24) + place * (1 << 16) + counted
    durations = ("duration_cycles", "duration_ns", "corrected_ns")
    tally = spans.group_by(key.alias("key"), *durations).agg(pl.len().cast(pl.Int64).alias("n")).collect()
    return tally.with_columns(
        site=(pl.col("key") // (1 << 24)).cast(pl.UInt16),
        role=pl.lit(pl.Series(names, dtype=pl.String)).gather(pl.col("key") // (1 << 16) % (1 << 8)),
        flags=(pl.col("key") % (1 << 16)).cast(pl.UInt16),
    )


def _statistics(tally: pl.DataFrame, certainty: pl.DataFrame, *, by_role: bool) -> pl.DataFrame:
    """A row a site (and role): counts and sums of all spans, mean and percentiles of the complete ones with a length.

    The role is null without `by_role`.
    """
    keys = ["site", "role"] if by_role else ["site"]
    flags, n = pl.col("flags"), pl.col("n")
    table = tally.group_by(keys).agg(
        n.sum().alias("count"),
        *(n.filter(flags & int(bit) != 0).sum().alias(name) for name, bit in _COUNTED.items()),
        (pl.col("duration_cycles") * n).sum().alias("sum_cycles"),
    )
    complete = tally.filter(flags & int(SpanFlag.UNENDED | SpanFlag.INSTANT) == 0)
    for unit in ("cycles", "ns"):
        table = table.join(_spread(complete, keys, f"duration_{unit}", "{}_" + unit, (50, 90, 99)), on=keys, how="left")
    table = table.with_columns(pl.col(f"p{q}_{unit}").cast(pl.Int64) for unit in ("cycles", "ns") for q in (50, 90, 99))
    # Of all spans of a row, or of none: those of a few warps would stand beside the raw times of all.
    corrected = complete.filter(pl.col("corrected_ns").is_not_null().all().over(keys))
    table = table.join(_spread(corrected, keys, "corrected_ns", "corrected_{}_ns", (50,)), on=keys, how="left")
    mean = (pl.col("half_width_ns") * pl.col("spans")).sum() / pl.col("spans").sum()
    certain = certainty.group_by(keys).agg(mean.alias("corrected_uncertainty_ns"))
    shown = pl.when(pl.col("corrected_mean_ns").is_not_null()).then(pl.col("corrected_uncertainty_ns"))
    table = table.join(certain, on=keys, how="left").with_columns(corrected_uncertainty_ns=shown)
    return table if by_role else table.with_columns(role=pl.lit(None, pl.String))


def _spread(tally: pl.DataFrame, keys: list[str], column: str, name: str, percents: tuple[int, ...]) -> pl.DataFrame:
    """Mean and percentiles (the nearest rank, as Polars takes it) of a column that is there `n` times in each row."""
    value, n = pl.col(column), pl.col("n")
    upto, last = n.cum_sum(), n.sum() - 1
    return (
        tally.sort(column)
        .group_by(keys)
        .agg(
            ((value.cast(pl.Float64) * n).sum() / n.sum()).alias(name.format("mean")),
            *(
                value.filter(upto > (last * (q / 100) + 0.5).floor()).first().alias(name.format(f"p{q}"))
                for q in percents
            ),
        )
    )


def _certainty(trace: Trace, group: LaunchGroup) -> pl.DataFrame:
    """By site and warp: `half_width_ns` of what a mean is corrected by, and the `spans` there; empty without any."""
    manifest, launch = trace.manifest, group.launches[0]
    columns: dict[str, Any] = {"site": pl.UInt16, "warp": pl.UInt8, "half_width_ns": pl.Float64}
    kernel = manifest["launches"][launch]["kernel"] if launch < len(manifest["launches"]) else None
    rate = trace.launches.filter(pl.col("launch").is_in(list(group.launches)))["cycles_per_ns"].mean()
    if kernel is None or not isinstance(rate, float) or measured(manifest["kernels"][kernel]) is None:
        return pl.DataFrame(schema=columns | {"spans": pl.UInt32})
    half_width = mean_half_widths(manifest)[kernel]
    site, warp = np.nonzero(np.isfinite(half_width))
    half_width_ns = clock.cycles_to_ns(half_width[site, warp], np.full(len(site), rate))
    table = pl.DataFrame({"site": site, "warp": warp, "half_width_ns": half_width_ns}, schema=columns)
    visits = spans_of(trace, group).group_by("site", "warp").agg(pl.len().alias("spans")).collect()
    return table.join(visits, on=["site", "warp"])


_COUNTED: Final = {"cut": SpanFlag.UNENDED, "instants": SpanFlag.INSTANT, "crossing": SpanFlag.CROSS_WARP}


def _capacity(spans: pl.LazyFrame, group: LaunchGroup) -> pl.DataFrame:
    """Cycles that each role had: the time of each block times the role's warps in it."""
    # One key of two numbers: grouping by it takes a third of the time.
    place = (pl.col("launch").cast(pl.UInt64) * (1 << 32) + pl.col("block")).alias("place")
    end = pl.col("start_cycles") + pl.col("duration_cycles")
    lengths = spans.group_by(place).agg((end.max() - pl.col("start_cycles").min()).alias("cycles"))
    # Spans come in the order launch, block, warp: most rows can be dropped before the costly unique().
    changes = pl.any_horizontal(pl.col(k) != pl.col(k).shift() for k in ("launch", "block", "warp")).fill_null(True)
    warps = spans.filter(changes).select(place, "warp").unique().with_columns(role=_role_of(group))
    each = warps.group_by("place", "role").agg(pl.len().cast(pl.Int64).alias("warps")).join(lengths, on="place")
    return each.group_by("role").agg((pl.col("cycles") * pl.col("warps")).sum().alias("cycles")).collect()


def _roles(trace: Trace, launches: list[int]) -> dict[int, str]:
    """Warp to role label: warps (by index, over all blocks) that visit the same sites for about the same time.

    Marks of single lanes depend on data: they count in warps alone that have nothing else.
    """
    spans = trace.spans.lazy()
    if len(launches) != trace.launches.height:
        spans = spans.filter(pl.col("launch").is_in(launches))
    keys = ["warp", "site"]
    lone = pl.col("flags") & int(SpanFlag.DETACHED) != 0
    if spans.select(lone.any()).collect().item():
        spans = spans.filter(~lone | lone.all().over("warp"))
    visits = spans.group_by(keys).agg(pl.len().alias("n"), pl.col("duration_cycles").median().alias("p50")).collect()
    roles = find_roles(visits.select("site", "warp", "n", "p50").iter_rows())
    if not 1 < len(roles) <= MAX_ROLES:
        return {}
    return {w: "w" + number_ranges(warps, limit=3) for warps in roles for w in warps}


def _role_of(group: LaunchGroup) -> pl.Expr:
    if not group.roles:
        return pl.lit(None, pl.String)
    return pl.col("warp").replace_strict(group.roles, default=None, return_dtype=pl.String)


def _differ(parts: list[dict[str, int | None]]) -> bool:
    medians = [p["p50_cycles"] for p in parts if p["p50_cycles"] is not None]
    return len(medians) > 1 and max(medians) > ROLE_DIFFERENCE * max(min(medians), 1)
