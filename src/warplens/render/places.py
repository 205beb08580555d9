"""Where sites stand in the source: at their marks, where the audit of the machine code saw these.

In: a Trace. Out: its table `sites`, with other lines. A declaration stands far from the code that a span is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from warplens.trace import Trace


def placed_sites(trace: Trace) -> pl.DataFrame:
    """`sites`, with the line of the mark for that of the declaration.

    The declaration's stays where the audit has no mark of a site, marks in several lines, or one in another file.
    """
    at = pl.col("line").unique()
    marks = trace.audit.filter(pl.col("line") > 0).group_by("site").agg(pl.col("file").unique(), at.alias("mark"))
    one = marks.filter(pl.col("file").list.len() == 1, pl.col("mark").list.len() == 1).explode("file", "mark")
    found = trace.sites.join(one, on=["site", "file"], how="left", maintain_order="left")
    return found.with_columns(line=pl.coalesce("mark", "line")).drop("mark")
