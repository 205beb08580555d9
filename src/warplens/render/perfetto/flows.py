"""Arrows between arrivals and waits, where the marks themselves say that they belong together.

In: spans and sites. Out: pairs of an arrival and a wait of one block with the same resource and the same id. Infers
nothing: without an id on both sides there is no arrow, nor to an arrival that came after the wait was over.
Perfetto itself lets an arrow begin at the one of the two that began first.
A joined range needs none: it is one span, and its columns `end_block` and `end_warp` say which warp ended it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.render.perfetto.nesting import I64, Spans

MAX_PAIRS: Final = 1024
"""Of one block, resource and id: 32 warps that arrive for 32 that wait. With more the id does not tell rounds apart,
and there are no arrows."""


@dataclass(frozen=True)
class Flows:
    """Rows of the spans at either end of an arrow, ascending, and the number of the arrow."""

    rows: I64
    ids: npt.NDArray[np.uint64]

    def count(self, rows: slice | I64) -> I64:
        """How many arrows each of `rows` has."""
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        if not len(self.rows):
            return np.zeros(len(wanted), np.int64)
        return np.asarray(np.searchsorted(self.rows, wanted, side="right") - np.searchsorted(self.rows, wanted))

    def of(self, rows: I64, count: int) -> Iterator[npt.NDArray[np.uint64]]:
        """The first, second, ... arrow of `rows`, each of which has `count`."""
        first = np.searchsorted(self.rows, rows)
        for place in range(count):
            yield self.ids[first + place]


def find_flows(spans: Spans, sites: pl.DataFrame) -> Flows:
    """All arrows between the spans."""
    none = np.zeros(0, np.int64)
    of_kind = {kind: sites.filter(pl.col("kind") == kind, pl.col("resource") != "") for kind in ("arrive", "wait")}
    if spans.frame["id"].null_count() == len(spans) or any(part.is_empty() for part in of_kind.values()):
        return Flows(none, none.astype(np.uint64))
    key = ["launch", "block", "resource", "id"]
    rows = spans.frame.lazy().select("launch", "block", "id", "site", "start_ns").with_row_index("row")
    rows = rows.with_columns(end_ns=pl.Series(spans.end_ns)).filter(pl.col("id").is_not_null())
    sides = {
        kind: rows.join(some.lazy().select("site", "resource"), on="site", how="inner")
        for kind, some in of_kind.items()
    }
    members = {kind: side.group_by(key).agg(pl.len().cast(pl.UInt64)) for kind, side in sides.items()}
    few = members["arrive"].join(members["wait"], on=key, suffix="_wait")
    few = few.filter(pl.col("len") * pl.col("len_wait") <= MAX_PAIRS)  # before the join that makes the pairs
    pairs = sides["arrive"].join(few, on=key, how="semi").join(sides["wait"], on=key, how="inner", suffix="_wait")
    pairs = pairs.filter(pl.col("start_ns") <= pl.col("end_ns_wait")).select("row", "row_wait")
    found = pairs.sort("row", "row_wait").collect()
    both = np.concatenate([found[name].to_numpy().astype(np.int64) for name in ("row", "row_wait")])
    order = np.argsort(both, kind="stable")
    return Flows(both[order], (order % max(found.height, 1) + 1).astype(np.uint64))
