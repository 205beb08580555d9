"""Which part of a trace a page shows.

In: a Trace, a `Selection`, and how many spans a page may carry. Out: `Part`. Spans are kept whole or left out. Where
they are more than a page carries, whole blocks are sampled, and the part says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import UsageError
from warplens.render.pick import number_ranges
from warplens.render.selection import Selection, choose, spans_in_window

if TYPE_CHECKING:
    from warplens.trace import Trace


@dataclass(frozen=True)
class Part:
    """Spans in the trace's order and blocks by launch and index.

    `whole` has all spans of these blocks and `kept` says which of them are `spans`, None for all: what is counted
    from the begin of a block is counted there. `held` is how many spans there were before `sampled` (in words) left
    some out; `window` says in words what was asked for.
    """

    spans: pl.DataFrame
    blocks: pl.DataFrame
    whole: pl.DataFrame
    kept: npt.NDArray[np.bool_] | None
    held: int
    sampled: str
    window: str


def part_of(trace: Trace, selection: Selection, max_spans: int) -> Part:
    """What `selection` and `max_spans` leave of `trace`.

    UsageError for what the trace does not hold, when no span is left, and when a block alone has too many spans.
    """
    narrowed = selection.from_ns is not None or selection.to_ns is not None or selection.min_duration_ns > 0
    chosen = choose(trace, selection)
    blocks = chosen.blocks.sort("launch", "block")
    spans = whole = chosen.spans
    kept = None
    if narrowed:
        of_blocks = replace(selection, from_ns=None, to_ns=None, min_duration_ns=0)
        whole = choose(trace, of_blocks).spans.join(blocks, on=["launch", "block"], how="semi", maintain_order="left")
        kept = whole.select(spans_in_window(selection)).to_series().to_numpy()
    held, sampled = len(spans), ""
    if held > max_spans:
        some, every = _sample(spans, max_spans)
        if kept is not None:
            kept = kept[whole["block"].is_in(some).to_numpy()]
        blocks, spans, whole = (frame.filter(pl.col("block").is_in(some)) for frame in (blocks, spans, whole))
        sampled = f"sampled: {len(spans):,} of {held:,} spans, one block in {every}; "
        sampled += "--launch, --sms, --blocks, --from and --to choose a part that is shown whole"
    return Part(spans, blocks, whole, kept, held, sampled, _said(selection))


def _sample(spans: pl.DataFrame, max_spans: int) -> tuple[pl.Series, int]:
    """Blocks evenly taken by their index until a page can carry them (a list in one row); one in how many."""
    counts = spans.group_by("block").agg(pl.len().alias("n")).sort("block")
    every = -(-len(spans) // max_spans)
    while (kept := counts.gather_every(every))["n"].sum() > max_spans:
        if kept.height == 1:
            raise UsageError(
                f"block {kept['block'][0]} alone has {kept['n'][0]:,} spans and a page carries {max_spans:,}: "
                "choose a launch (--launch), a time (--from, --to) or longer spans (--min-duration)"
            )
        every += 1
    return kept["block"].implode(), every


def _said(selection: Selection) -> str:
    parts = [] if selection.launch is None else [f"launch {selection.launch}"]
    for noun, numbers in (("SMs", selection.sms), ("blocks", selection.blocks)):
        parts += [] if numbers is None else [f"{noun} {number_ranges(sorted(set(numbers)), limit=12)}"]
    parts += [] if selection.from_ns is None else [f"from {selection.from_ns:,} ns"]
    parts += [] if selection.to_ns is None else [f"to {selection.to_ns:,} ns"]
    parts += [f"spans of {selection.min_duration_ns:,} ns or longer"] if selection.min_duration_ns else []
    return ", ".join(parts)
