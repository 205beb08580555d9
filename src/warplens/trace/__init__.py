"""A trace: the tables of one recording, their facts, and the file they live in.

In: a `.wlens` file or a recording. Out: `Trace`, whose Polars tables are decoded or read at first access. Must not
import Polars at import time, and must not analyse or draw: those are functions over a Trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from warplens.decode.manifest import check
from warplens.errors import FormatError, UsageError
from warplens.trace.file import U32, FileContents, read_file, write_file
from warplens.trace.tables import TABLES

if TYPE_CHECKING:
    import polars as pl

__all__ = ["TABLES", "Recorded", "Trace", "open"]


class Recorded(Protocol):
    """What a capture hands over: a manifest, chunks by member name, and source texts by path."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The facts of the recording."""

    @property
    def records(self) -> dict[str, U32]:
        """Chunks, uint32 of shape (n, 32), by member name."""

    @property
    def sources(self) -> dict[str, str]:
        """Source texts by path."""


class Trace:
    """The tables of one recording.

    `launches`, `blocks`, `spans`, `sites`, `problems` and `audit` are Polars data frames, made at first access;
    `warplens.trace.tables.TABLES` says what each column holds. Times count in ns from `origin_ns`.

    >>> trace = warplens.open("rmsnorm.wlens")                                             # doctest: +SKIP
    >>> trace.sql("select name, avg(duration_ns) from spans join sites using (site) group by name")  # doctest: +SKIP
    """

    def __init__(self, contents: FileContents, *, path: Path | None = None) -> None:
        self._contents = contents
        self._frames: dict[str, pl.DataFrame] = {}
        self._origin_ns: int | None = None
        self.path = path
        """The file it was opened from, or None."""

    @classmethod
    def from_recording(cls, recording: Recorded) -> Trace:
        """A trace of what a capture returned; `FormatError` when its manifest is not of format 1."""
        manifest = check(recording.manifest)
        return cls(FileContents(manifest, dict(recording.records), {}, dict(recording.sources)))

    @property
    def manifest(self) -> dict[str, Any]:
        """The facts of the recording, as docs/reference/file.md describes them; unknown keys are kept."""
        return self._contents.manifest

    @property
    def note(self) -> str | None:
        """The user's note."""
        note = self.manifest["note"]
        return None if note is None else str(note)

    @property
    def sources(self) -> Mapping[str, str]:
        """Source texts by the path that `sites.file` names."""
        return self._contents.sources

    @property
    def origin_ns(self) -> int:
        """globaltimer (ns) of the trace's first instant, from which all times of the tables count."""
        if self._origin_ns is None:
            self._load()
        assert self._origin_ns is not None
        return self._origin_ns

    @property
    def launches(self) -> pl.DataFrame:
        """One row a launch."""
        return self._table("launches")

    @property
    def blocks(self) -> pl.DataFrame:
        """One row a block that recorded."""
        return self._table("blocks")

    @property
    def spans(self) -> pl.DataFrame:
        """One row a phase, wait, range or instant, in the order launch, block, warp, sequence."""
        return self._table("spans")

    @property
    def sites(self) -> pl.DataFrame:
        """One row a declared site."""
        return self._table("sites")

    @property
    def problems(self) -> pl.DataFrame:
        """What is lost, wrong or in doubt; losses first."""
        return self._table("problems")

    @property
    def audit(self) -> pl.DataFrame:
        """What each mark measures, from the machine code; empty when it was not audited."""
        return self._table("audit")

    def _repr_html_(self) -> str:
        """What a notebook shows: summary, a picture, the way to the whole page."""
        from warplens.render.notebook import html

        return html(self)

    def sql(self, query: str) -> pl.DataFrame:
        """The result of a SQL query over the tables; `UsageError` when Polars refuses it, or it would read a file."""
        import polars as pl

        # Queries are passed on, and Polars reads what one names: `read_csv('/home/...')`, in quotes too, or a URL. A
        # string that holds such a name is refused with it: who reads strings otherwise than Polars would let one pass.
        readers = "|".join(name for name in dir(pl) if name.startswith(("read_", "scan_")))
        if found := re.search(rf"(?<!\w)(?:{readers})(?!\w)", query, re.IGNORECASE):
            why = f"{found[0]} would read another file"
            raise UsageError(f"the query was refused: {why}; the tables are {', '.join(TABLES)}")
        with pl.SQLContext({name: self._table(name) for name in TABLES}) as context:
            try:
                return context.execute(query, eager=True)
            except pl.exceptions.PolarsError as error:
                why = str(error).partition("\n\n")[0]  # Polars' own plan of the query follows
                raise UsageError(f"the query was refused: {why}; the tables are {', '.join(TABLES)}") from error

    def save(self, path: str | os.PathLike[str], *, records: bool = False, tables: bool = True) -> None:
        """Writes the trace as a `.wlens` file, whole or not at all.

        With `tables` (Parquet, absolute times), with `records` (as the GPU wrote them), or both. `UsageError` when
        neither is asked for, or records are and the trace came from a file without them.
        """
        from warplens.trace import frames

        if not (records or tables):
            raise UsageError("nothing to save: ask for tables, records or both")
        if records and not self._contents.records and self.manifest["launches"]:
            raise UsageError("this trace holds no records to save: its file has tables only")
        manifest = dict(self.manifest)
        packed: dict[str, bytes] = {}
        if tables:
            manifest["origin_ns"] = self.origin_ns
            every = {name: self._table(name) for name in (*TABLES, "clocks")}
            packed = frames.to_parquet(every, self.origin_ns)
        write_file(
            path,
            manifest,
            records=self._contents.records if records else {},
            tables=packed,
            sources=self.sources,
        )

    def _table(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            self._load(name)
        return self._frames[name]

    def _load(self, name: str | None = None) -> None:
        """Reads the table `name` from the file's tables where it has them, else decodes all records."""
        from warplens.trace import frames

        if not self._contents.tables:
            self._frames, self._origin_ns = frames.from_records(self.manifest, self._contents.records)
            return
        origin_ns = self.manifest.get("origin_ns")
        if not isinstance(origin_ns, int) or isinstance(origin_ns, bool) or abs(origin_ns) >= 1 << 63:
            raise FormatError(f"manifest.origin_ns: expected the origin of the tables in ns, found {origin_ns!r:.60}")
        self._origin_ns = origin_ns
        if name is not None:
            self._frames[name] = frames.from_parquet(name, self._contents.tables, self._table, self.manifest, origin_ns)


def open(path: str | os.PathLike[str]) -> Trace:  # noqa: A001  (warplens.open, as gzip.open)
    """Opens a `.wlens` file. Raises `FileError`, `FormatError` or `VersionError`; tables are read when used."""
    return Trace(read_file(path), path=Path(path))
