"""Where marks stand in the source.

In: the tables `sites` and `audit`. Out: for each site the file and line of the marks that begin its spans, as the
machine code names them. `sites` itself knows where a site was declared: one line for all sites of a set in CUDA C++.
Where nothing was audited, what `sites` says is all that is known.
"""

from __future__ import annotations

import polars as pl

_NO_BEGIN = ("end", "landed", "range_end")
"""Verbs of the audit after which none of their site's spans begins."""


def mark_places(sites: pl.DataFrame, audit: pl.DataFrame) -> list[list[tuple[str, int]]]:
    """By row of `sites`: file and line of its marks, each once, in the order of the source; empty when not known."""
    begins = audit.filter(
        pl.col("site").is_not_null() & (pl.col("file") != "") & (pl.col("line") > 0) & ~pl.col("verb").is_in(_NO_BEGIN)
    )
    found: dict[int, list[tuple[str, int]]] = {}
    for site, file, line in begins.select("site", "file", "line").unique().sort("file", "line").iter_rows():
        found.setdefault(site, []).append((file, line))
    return [found.get(site, []) for site in sites["site"].to_list()]


def sites_at_marks(sites: pl.DataFrame, audit: pl.DataFrame) -> pl.DataFrame:
    """`sites` with the file and line of each one's first mark, where that is known."""
    declared = zip(sites["file"].to_list(), sites["line"].to_list(), strict=True)
    first = [marks[0] if marks else own for marks, own in zip(mark_places(sites, audit), declared, strict=True)]
    return sites.with_columns(
        pl.Series("file", [file for file, _ in first], dtype=sites.schema["file"]),
        pl.Series("line", [line for _, line in first], dtype=sites.schema["line"]),
    )
