"""The part of a trace that an export or a page holds.

In: a Trace and a `Selection`. Out: its launches, blocks and spans as Polars tables, rows in the trace's order.
Spans are kept whole or left out, never cut. Refuses launches, SMs and blocks that the trace does not hold.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from warplens.errors import UsageError
from warplens.render.pick import number_ranges, pick_launch

if TYPE_CHECKING:
    from warplens.trace import Trace


@dataclass(frozen=True)
class Selection:
    """Which launches, SMs, blocks and times an export or a page holds; by default all.

    `sms` and `blocks` are numbers, `launch` is one launch. `from_ns` and `to_ns` count from the trace's origin: a span
    or block is kept, whole, when it lies in that window at least in part. `min_duration_ns` leaves out shorter spans,
    and with them all instants; it leaves out no block.
    """

    launch: int | None = None
    sms: Collection[int] | None = None
    blocks: Collection[int] | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    min_duration_ns: int = 0


@dataclass(frozen=True)
class Chosen:
    """Tables with the columns of the trace's own; `blocks` also has `sm`, on which the block is shown, or null."""

    launches: pl.DataFrame
    blocks: pl.DataFrame
    spans: pl.DataFrame


def choose(trace: Trace, selection: Selection) -> Chosen:
    """What `selection` leaves of `trace`; UsageError for what it does not hold, and when nothing is left."""
    launches, blocks, spans = trace.launches, trace.blocks, trace.spans
    blocks = blocks.with_columns(sm=pl.coalesce("sm_begin", "sm_end").cast(pl.Int64))
    if selection == Selection():
        return Chosen(launches, blocks, spans)
    if selection.from_ns is not None and selection.to_ns is not None and selection.from_ns > selection.to_ns:
        raise UsageError(f"the time from {selection.from_ns} to {selection.to_ns} ns ends before it begins")
    if selection.launch is not None:
        launch = pick_launch(trace, selection.launch)
        launches, blocks, spans = (t.filter(pl.col("launch") == launch) for t in (launches, blocks, spans))
    of_sms = _held(blocks, "sm", selection.sms, "SM")
    of_numbers = _held(blocks, "block", selection.blocks, "block")
    blocks = blocks.filter(of_sms & of_numbers)
    if selection.sms is not None or selection.blocks is not None:
        kept = blocks.select("launch", "block")
        spans = spans.join(kept, on=["launch", "block"], how="semi", maintain_order="left")
    spans = spans.filter(spans_in_window(selection))
    window = _window(selection, pl.col("start_ns"), pl.col("end_ns"))
    blocks = _filtered(blocks, window, spans, ["launch", "block"])
    launches = _filtered(launches, window, spans, ["launch"])
    if spans.is_empty() and not trace.spans.is_empty():
        raise UsageError(f"no span is left: {_where(trace)}")
    return Chosen(launches, blocks, spans)


def _filtered(frame: pl.DataFrame, window: pl.Expr, spans: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Rows in the window, and those of which spans are left: where times are in doubt, both may differ."""
    left = spans.select(*keys, left=pl.lit(True)).unique()
    joined = frame.join(left, on=keys, how="left", maintain_order="left")
    return joined.filter(window | pl.col("left").is_not_null()).drop("left")


def spans_in_window(selection: Selection) -> pl.Expr:
    """A condition on rows of spans: those of its blocks that `selection` keeps by their times."""
    window = _window(selection, pl.col("start_ns"), pl.col("start_ns") + pl.col("duration_ns"))
    return window & (pl.col("duration_ns") >= selection.min_duration_ns)


def _held(blocks: pl.DataFrame, column: str, wanted: Collection[int] | None, noun: str) -> pl.Expr:
    """A condition on rows: `column` is one of `wanted`, all of which must be there."""
    if wanted is None:
        return pl.lit(True)
    held = set(blocks[column].drop_nulls().to_list())
    missing = sorted(set(wanted) - held)
    if missing or not wanted:
        found = f"there are {number_ranges(sorted(held), limit=6)}" if held else "there is none"
        asked = f"{noun} {number_ranges(missing)}" if missing else f"no {noun}"
        raise UsageError(f"{asked} was not recorded: {found}")
    return pl.col(column).is_in(list(wanted))


def _window(selection: Selection, begin: pl.Expr, end: pl.Expr) -> pl.Expr:
    """A condition on rows: in part inside of [from_ns, to_ns); what has no length, when it begins there."""
    condition = pl.lit(True)
    if selection.to_ns is not None:
        condition &= begin < selection.to_ns
    if selection.from_ns is not None:
        condition &= (end > selection.from_ns) | (begin >= selection.from_ns)
    return condition


def _where(trace: Trace) -> str:
    ends = trace.spans.select(
        first=pl.col("start_ns").min(),
        last=(pl.col("start_ns") + pl.col("duration_ns")).max(),
        longest=pl.col("duration_ns").max(),
    ).row(0)
    return "the trace has {:,} spans from {} to {} ns, the longest of {} ns".format(trace.spans.height, *ends)
