"""Which launch and block a picture shows, and that block's spans.

In: a Trace and what the user asked for. Out: checked numbers and polars rows of one block.
Refuses what the trace does not hold with a UsageError that names what it does hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from warplens.decode.wording import counted as counted
from warplens.decode.wording import number_ranges as number_ranges
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.trace import Trace


def pick_launch(trace: Trace, launch: int | None) -> int:
    """`launch` if the trace holds it; without one, the first launch that has spans (else the first)."""
    held = trace.launches["launch"].to_list()
    if not held:
        raise UsageError("the file holds no launch: nothing was recorded")
    if launch is None:
        recorded = trace.spans["launch"].to_numpy()
        return int(recorded.min()) if len(recorded) else int(held[0])
    if launch not in held:
        raise UsageError(f"the file holds no launch {launch}: it has {_span_of(held)}")
    return launch


def pick_block(trace: Trace, launch: int, block: int | None) -> int:
    """`block` if it was recorded in `launch`; without one, the first block of the second wave, else the first.

    "First" is by start time; a launch of one wave gives its lowest block index.
    """
    spans = trace.spans.lazy().filter(pl.col("launch") == launch).select(pl.col("block").unique()).collect()
    held = sorted(spans["block"].to_list())
    if not held:
        raise UsageError(f"launch {launch} recorded no spans: `warplens summary` says why")
    if block is not None:
        if block not in held:
            raise UsageError(f"block {block} of launch {launch} was not recorded: there are {_span_of(held)}")
        return block
    second = trace.blocks.filter((pl.col("launch") == launch) & (pl.col("wave") == 1) & pl.col("block").is_in(held))
    return int(second.sort("start_ns", "block")["block"][0]) if second.height else held[0]


def block_spans(trace: Trace, launch: int, block: int) -> pl.DataFrame:
    """Spans of one block with `start_cycles` counted from the block's first one, sorted by warp and sequence."""
    spans = trace.spans.lazy().filter((pl.col("launch") == launch) & (pl.col("block") == block)).collect()
    origin = spans["start_cycles"].min()
    return spans.with_columns(start_cycles=pl.col("start_cycles") - origin).sort("warp", "sequence")


def per_site(spans: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """The spans of each site, by ascending site."""
    return [(int(part["site"][0]), part) for part in spans.sort("site", maintain_order=True).partition_by("site")]


def last_cycle(spans: pl.DataFrame) -> int:
    """The end of the latest span in cycles, at least 1."""
    return max(int((spans["start_cycles"] + spans["duration_cycles"]).to_numpy().max(initial=1)), 1)


def median_of(values: pl.Series) -> float:
    """The median of a series of numbers that is not empty."""
    return float(np.median(values.to_numpy()))


def block_title(trace: Trace, launch: int, block: int) -> str:
    """`block 396 (396,0,0) on SM 17, wave 2, 4.43 us`; without a row in the blocks table, the number alone."""
    rows = trace.blocks.filter((pl.col("launch") == launch) & (pl.col("block") == block)).to_dicts()
    if not rows:
        return f"block {block}"
    at = rows[0]
    first_sm = at["sm_end"] if at["sm_begin"] is None else at["sm_begin"]
    sm = "on an SM not known" if first_sm is None else f"on SM {first_sm}"
    if None not in (at["sm_begin"], at["sm_end"]) and at["sm_end"] != at["sm_begin"]:
        sm += f" (moved to SM {at['sm_end']}: its cycles cannot be compared)"
    title = f"block {block} ({at['x']},{at['y']},{at['z']}) {sm}, wave {(at['wave'] or 0) + 1}"
    if at["end_ns"] is None or at["start_ns"] is None:
        return title
    return f"{title}, {nanoseconds(at['end_ns'] - at['start_ns'])}"


def shape(row: dict[str, Any], name: str) -> str:
    """`528` or `16x8` or `4x1x2` from the columns `name`_x, _y and _z of a launch's row."""
    axes = [row[f"{name}_{axis}"] for axis in "xyz"]
    while len(axes) > 1 and axes[-1] == 1:
        axes.pop()
    return "x".join(str(a) for a in axes)


def nanoseconds(value_ns: float) -> str:
    """A time for reading: `812 ns`, `5.21 us`, `3.40 ms`, four digits at most."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(value_ns) >= scale:
            value = value_ns / scale
            return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f} {unit}"
    return f"{value_ns:.0f} ns"


def byte_size(value_bytes: int) -> str:
    """A size for reading: `812 B`, `4.2 MB`, in powers of 1000."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if value_bytes >= scale:
            return f"{value_bytes / scale:.1f} {unit}"
    return f"{value_bytes} B"


def _span_of(held: list[int]) -> str:
    return number_ranges(held, limit=6)
