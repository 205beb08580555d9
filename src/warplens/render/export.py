"""Traces for other tools: a Perfetto file, Parquet tables, a CSV of the spans.

In: a Trace, a path, a format and a `Selection`. Out: a file or a folder at that path, written whole or not at all.
Names are data: they are written as they are, and quoted as the format asks for it. In CSV, which people open in
spreadsheets, they are made visible, and none is a formula.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import polars as pl

from warplens.errors import UsageError
from warplens.render.escape import visible_cell
from warplens.render.facts import mapping
from warplens.render.places import sites_at_marks
from warplens.render.selection import Chosen, Selection, choose
from warplens.trace.tables import TABLES
from warplens.whole import whole_file, whole_folder

if TYPE_CHECKING:
    from warplens.trace import Trace

FORMATS: Final = ("perfetto", "parquet", "csv")
GZIP_LEVEL: Final = 5
"""Of spans without arguments: where ranges nest, level 4 makes a seventh more bytes in three quarters of the time,
level 6 as many bytes as 5 in twice the time (benchmarks/results/perfetto.json)."""
GZIP_LEVEL_OF_ARGUMENTS: Final = 4
"""With arguments there is more to pack, and level 5 saves a thirtieth to a twelfth."""


def export(
    trace: Trace,
    path: str | Path,
    *,
    format: str = "perfetto",  # noqa: A002  (what users call it)
    selection: Selection | None = None,
    arguments: bool = True,
    gzip: bool = True,
) -> Path:
    """Write `trace` to `path` for other tools; returns the path.

    "perfetto": a file for https://ui.perfetto.dev with a row a warp, below the blocks, below the SMs. Its times are
    `trace.origin_ns` plus those of the tables, in ns. With `arguments` spans carry launch, block, warp, sequence,
    cycles, payload, id, flags and source line, and arrows join arrivals and waits of the same resource and id.
    With `gzip` it is packed, which Perfetto reads as well.
    "parquet": a folder with `launches.parquet`, `blocks.parquet`, `spans.parquet`, `sites.parquet`,
    `problems.parquet` (docs/reference/tables.md) and `manifest.json`, which has the origin.
    "csv": one file, a row a span, with SM, name, kind, resource, file and line beside its columns. Hidden characters of
    names are escaped, and one that a spreadsheet would take for a formula begins with an apostrophe.

    `selection` says which part; by default all. `UsageError` for an unknown format, launch, SM or block, and when no
    span is left; `FileError` when `path` cannot be written.

    >>> warplens.export(trace, "run.pftrace.gz", selection=warplens.Selection(sms=[0, 1]))   # doctest: +SKIP
    """
    target = Path(path)
    if format not in FORMATS:
        raise UsageError(f"no format {format!r}: there are {', '.join(FORMATS)}")
    chosen = choose(trace, selection or Selection())
    sites = sites_at_marks(trace.sites, trace.audit)
    if format == "perfetto":
        from warplens.render.perfetto import perfetto_bytes

        title = mapping(trace.manifest.get("device")).get("name") or "GPU"
        buffers = perfetto_bytes(chosen, sites, trace.origin_ns, title=str(title), arguments=arguments)
        with whole_file(target) as stream:
            level = GZIP_LEVEL_OF_ARGUMENTS if arguments else GZIP_LEVEL
            _write(stream, _packed(buffers, level) if gzip else buffers)
    elif format == "parquet":
        with whole_folder(target) as folder:
            _write_tables(folder, trace, chosen)
    else:
        with whole_file(target) as stream:
            spans_with_names(chosen, as_cells(sites)).write_csv(stream)
    return target


def _write(stream: BinaryIO, buffers: Iterable[Any]) -> None:
    for buffer in buffers:
        stream.write(buffer)


def _packed(buffers: Iterable[Any], level: int) -> Iterator[bytes]:
    """The buffers with gzip, packed in a thread while the next one is made: zlib holds no lock of Python's."""
    packer = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)  # a gzip header, without a date
    with ThreadPoolExecutor(1) as thread:
        before: Future[bytes] | None = None
        for buffer in buffers:
            packed, before = before, thread.submit(packer.compress, buffer)
            if packed is not None:
                yield packed.result()
        if before is not None:
            yield before.result()
    yield packer.flush()


def _write_tables(folder: Path, trace: Trace, chosen: Chosen) -> None:
    frames = {
        "launches": chosen.launches,
        "blocks": chosen.blocks.select(list(TABLES["blocks"])),
        "spans": chosen.spans,
        "sites": trace.sites,
        "problems": trace.problems,
        "audit": trace.audit,
    }
    for name, frame in frames.items():
        frame.write_parquet(folder / f"{name}.parquet", compression="zstd")
    facts = json.dumps(trace.manifest | {"origin_ns": trace.origin_ns}, ensure_ascii=False, indent=1)
    (folder / "manifest.json").write_bytes(facts.encode("utf-8", "replace"))


def as_cells(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with its strings as cells of CSV."""
    made = []
    for column in frame.iter_columns():
        if column.dtype == pl.String:
            cells = {value: visible_cell(value) for value in column.unique() if value is not None}
            made.append(column.replace(list(cells), list(cells.values())))
    return frame.with_columns(made)


def spans_with_names(chosen: Chosen, sites: pl.DataFrame) -> pl.DataFrame:
    """The spans, each with the SM that it is shown on and its site's name, kind, resource, file and line."""
    sms = chosen.blocks.select("launch", "block", "sm")
    named = sites.select("site", "name", "kind", "resource", "file", "line")
    joined = chosen.spans.join(sms, on=["launch", "block"], how="left", maintain_order="left")
    joined = joined.join(named, on="site", how="left", maintain_order="left")
    first = ["launch", "sm", "block", "warp", "sequence", "name"]
    return joined.select(*first, pl.exclude(first))
