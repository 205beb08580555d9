"""From a wait to the arrival that ended it, and from a range to the warp that ended it, as columns of a page.

In: `Arrivals`, spans and the page's rows. Out: columns in a `Packer`. An entry a wait in the order of the page: the
basis, how many arrivals the round has, and where the arrival stands: its row counted from the first of its lane (the
lane is the wait's own) and its place in that row less the wait's in its own. The warps of a block so tell the same
numbers again and again, which packs well. An entry a range that another warp ended: its place, and block, warp and row
of that warp. `page/arrivals.js` undoes this.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from warplens.analyze.arrivals import Arrivals
from warplens.render.page_pack import Packer
from warplens.render.page_rows import I64, Rows, ranges


def pack_arrows(packer: Packer, arrivals: Arrivals, spans: pl.DataFrame, blocks: pl.DataFrame, rows: Rows) -> None:
    """Adds the columns `arrow_*` and `ender_*`; those of which the page has none are left out."""
    joined = spans["end_warp"].null_count() < len(spans)
    if not (len(arrivals.wait) or joined):
        return
    of_page = ranges(rows.segment_first, rows.segment_spans)  # the row of the table of each span of the page
    if rows.order is not None:
        of_page = rows.order[of_page]
    if len(arrivals.wait):
        _pack_arrivals(packer, arrivals, rows, of_page)
    if joined:
        _pack_enders(packer, spans, blocks, rows, of_page)


def _pack_arrivals(packer: Packer, arrivals: Arrivals, rows: Rows, of_page: I64) -> None:
    size = len(of_page)
    entry = np.full(size, -1, np.int32)
    entry[arrivals.wait] = np.arange(len(arrivals.wait), dtype=np.int32)
    entry = entry[of_page]
    place = np.flatnonzero(entry >= 0)
    entry = entry[place]
    on_page = np.empty(size, np.int32)
    on_page[of_page] = np.arange(size, dtype=np.int32)
    first, row = _rows(rows, size)
    arrival = arrivals.arrival[entry]
    known = arrival >= 0
    target = on_page[np.where(known, arrival, 0)]
    lane_first = np.flatnonzero(np.append(True, np.diff(rows.row_lane) != 0))
    of_lane = np.repeat(lane_first, np.diff(np.append(lane_first, len(rows.row_lane))))
    packer.add("arrow_basis", arrivals.basis[entry])
    packer.add("arrow_of", arrivals.of[entry])
    packer.add("arrow_row", np.where(known, row[target] - of_lane[row[place]], 0))
    packer.add("arrow_place", np.where(known, (target - first[row[target]]) - (place - first[row[place]]), 0))


def _pack_enders(packer: Packer, spans: pl.DataFrame, blocks: pl.DataFrame, rows: Rows, of_page: I64) -> None:
    place = np.flatnonzero(spans["end_warp"].is_not_null().to_numpy()[of_page])
    some = spans[of_page[place]].select("launch", block="end_block", warp="end_warp").cast(pl.Int64)
    row_of_segment = np.repeat(np.arange(len(rows.row_segments)), rows.row_segments)
    numbers = blocks.select("launch", "block").cast(pl.Int64)[rows.segment_block]
    places = numbers.with_columns(warp=pl.Series(rows.row_warp[row_of_segment]), row=pl.Series(row_of_segment))
    first = places.group_by("launch", "block", "warp").agg(pl.col("row").min())
    row = some.join(first, on=["launch", "block", "warp"], how="left", maintain_order="left")["row"].fill_null(-1)
    packer.add("ender_span", place)
    packer.add("ender_row", row.to_numpy() + 1)  # 0 where that warp is not on the page
    packer.add("ender_block", some["block"].to_numpy())
    packer.add("ender_warp", some["warp"].to_numpy())


def _rows(rows: Rows, size: int) -> tuple[I64, I64]:
    """Per row its first span on the page; per span of the page its row."""
    begins = np.cumsum(rows.row_segments) - rows.row_segments
    spans = np.add.reduceat(rows.segment_spans, begins)
    first = np.cumsum(spans) - spans
    row = np.repeat(np.arange(len(spans)), spans)
    assert len(row) == size
    return first, row
