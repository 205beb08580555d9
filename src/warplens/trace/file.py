"""The `.wlens` file: the one reader and the one writer.

In: a manifest, record chunks, tables as Parquet bytes, source texts; or a path. Out: a file, written whole or not at
all; or `FileContents`, whose members are read and checked when asked for. Must not import Polars (the traced process
uses it), must not trust anything in a file, and raises only `FileError`s about one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.decode.chunks import in_order
from warplens.decode.last import with_last
from warplens.decode.manifest import check
from warplens.errors import FileError, FormatError, VersionError
from warplens.trace.part import MAX_SOURCES_BYTES, assemble, choose_sources
from warplens.trace.recover import Member, recover_members
from warplens.whole import whole_file

U32 = npt.NDArray[np.uint32]
T = TypeVar("T")

MAX_MANIFEST_BYTES: Final = 64 << 20
MAX_MEMBER_BYTES: Final = 16 << 30
FREE_EXPANSION_BYTES: Final = 64 << 20
DEFLATED_TABLE_BYTES: Final = 1 << 16
"""Small tables are mostly Parquet footer, which shrinks to a fifth; large ones are stored, being packed inside."""
RECORDS_LEVEL: Final = 4
"""Of zlib. Level 6 takes 0.8 to 2.0 % less room and 1.2 to 1.5 times as long (benchmarks/results/pack.json)."""
MAX_EXPANSION: Final = 200
"""A member larger than FREE_EXPANSION_BYTES may not expand more than this: records shrink 3 to 20 times, bombs 1000."""

_MANIFEST: Final = "manifest.json"
_RECORDS: Final = re.compile(r"records/\d{1,9}\.u32")
_TABLE: Final = re.compile(r"tables/(launches|blocks|spans|sites|problems|audit|clocks)\.parquet")
_SOURCE: Final = re.compile(r"source/\d{1,6}\.txt")
_UNREADABLE: Final = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,  # among them JSONDecodeError and UnicodeDecodeError
    RuntimeError,  # an encrypted member, an unknown compression, too deep a nesting
    LookupError,
    OverflowError,
    MemoryError,
    TypeError,
    AttributeError,
)
"""What zipfile, zlib and json raise on damaged input."""


class Members(Mapping[str, T], Generic[T]):
    """Members of a file by name, read at each access; `FormatError` when one is damaged."""

    def __init__(self, names: list[str], read: Callable[[str], T]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass
class FileContents:
    """What a file holds: the checked manifest, and members that are read when asked for."""

    manifest: dict[str, Any]
    records: Mapping[str, U32] = field(default_factory=dict)
    """Chunks by member name ("records/000000.u32"), uint32 of shape (n, 32)."""
    tables: Mapping[str, bytes] = field(default_factory=dict)
    """Parquet bytes by table name ("spans")."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source text by the path that the sites name."""


def write_file(
    path: str | os.PathLike[str],
    manifest: dict[str, Any],
    *,
    records: Mapping[str, U32] | None = None,
    tables: Mapping[str, bytes] | None = None,
    sources: Mapping[str, str] | None = None,
    pack: bool = True,
) -> None:
    """Writes a `.wlens` file whole: into a temporary file beside it, which then takes its place.

    `records` maps member names ("records/000000.u32") to uint32 of shape (n, 32), `tables` names to Parquet bytes,
    `sources` paths to texts; sources beyond 1 MB are left out, and the manifest says which. Chunks are put in the order
    in which they pack best; without `pack` records are stored as they are, which takes more room and less time. Raises
    `FileError` when the place cannot be written and `FormatError` when the manifest is not one that `read_file` would
    accept.
    """
    path = Path(path)
    kept, left_out = choose_sources(sources or {})
    facts = {**manifest, "sources": [{"path": p, "member": f"source/{i}.txt"} for i, p in enumerate(kept)]}
    if left_out:
        facts["sources_left_out"] = left_out
    check(facts, str(path))
    with whole_file(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_members(archive, facts, records or {}, tables or {}, kept, pack)


def read_file(path: str | os.PathLike[str]) -> FileContents:
    """Opens a `.wlens` file (or a `.wlens.part`, as far as it got): checks its manifest and lists its members.

    Raises `FileError` when it cannot be read, `FormatError` when it is no `.wlens` file or is damaged, `VersionError`
    when a newer warplens wrote it. Members that format 1 does not know are ignored.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise FormatError(f"{path}: expected a .wlens file, found a device or a pipe")
    read, names = _members(path)
    if _MANIFEST not in names:
        raise FormatError(f"{path}: expected a .wlens file with a {_MANIFEST}, found a zip without one")
    manifest = _manifest(path, read(_MANIFEST, MAX_MANIFEST_BYTES))
    if path.suffix == ".part":
        manifest = _checked(path, assemble(manifest, names, read))
        manifest["launches"] = [own for own in manifest["launches"] if own["records"] in {None, *names}]
    records = sorted(name for name in names if _RECORDS.fullmatch(name))
    tables = {match[1]: name for name in names if (match := _TABLE.fullmatch(name))}
    sources = _listed_sources(path, manifest, names)
    chunks = Members(records, lambda name: _chunks(path, name, read(name, MAX_MEMBER_BYTES)))
    with contextlib.suppress(FileError):  # of a member that is damaged, which is told when it is read
        manifest = with_last(manifest, chunks)
    return FileContents(
        manifest=manifest,
        records=chunks,
        tables=Members(sorted(tables), lambda name: read(tables[name], MAX_MEMBER_BYTES)),
        sources=Members(sorted(sources), lambda p: read(sources[p], MAX_SOURCES_BYTES).decode("utf-8", "replace")),
    )


def _write_members(
    archive: zipfile.ZipFile,
    facts: dict[str, Any],
    records: Mapping[str, U32],
    tables: Mapping[str, bytes],
    sources: Mapping[str, str],
    pack: bool,
) -> None:
    archive.writestr(_entry(_MANIFEST), json.dumps(facts, ensure_ascii=False, indent=1).encode("utf-8", "replace"))
    for name, chunks in records.items():
        if not _RECORDS.fullmatch(name) or chunks.ndim != 2 or chunks.shape[1] != layout.CHUNK_WORDS:
            raise ValueError(f"not a records member: {name!r} of shape {chunks.shape}")
        entry = _entry(name, zipfile.ZIP_DEFLATED if pack else zipfile.ZIP_STORED)
        ordered = np.ascontiguousarray(in_order(chunks) if pack else chunks, "<u4")
        archive.writestr(entry, ordered.reshape(-1).view(np.uint8).data, compresslevel=RECORDS_LEVEL)
    for name, data in tables.items():
        member = f"tables/{name}.parquet"
        if not _TABLE.fullmatch(member):
            raise ValueError(f"not a table of a .wlens file: {name!r}")
        how = zipfile.ZIP_STORED if len(data) > DEFLATED_TABLE_BYTES else zipfile.ZIP_DEFLATED
        archive.writestr(_entry(member, how), data)
    for index, text in enumerate(sources.values()):
        archive.writestr(_entry(f"source/{index}.txt"), text.encode("utf-8", "replace"))


def _entry(name: str, how: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    """A member with a fixed date: the same trace gives the same bytes."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = how
    entry.external_attr = 0o644 << 16
    return entry


Read = Callable[[str, int], bytes]


def _members(path: Path) -> tuple[Read, set[str]]:
    """A function that reads a member up to a limit, and the names of all members."""
    try:
        with path.open("rb") as stream:
            head = stream.read(4)
            whole = zipfile.is_zipfile(stream)
        if not head:
            raise FormatError(f"{path}: expected a .wlens file, found an empty file")
        if head != b"PK\x03\x04":
            raise FormatError(f"{path}: expected a .wlens file (a zip), found a file that begins with {head!r}")
        if not whole or path.suffix == ".part":
            return _recovered(path)
        with zipfile.ZipFile(path) as archive:
            return _reader(path, archive.NameToInfo), set(archive.namelist())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise FormatError(f"{path}: expected a .wlens file, found a damaged zip: {error}") from error


def _recovered(path: Path) -> tuple[Read, set[str]]:
    """Members of a file whose directory is missing: a part gives those that are whole, any other is refused."""
    if path.suffix != ".part":
        raise FormatError(f"{path}: the file is truncated: its directory, the end of a .wlens file, is missing")
    members = recover_members(path, MAX_MEMBER_BYTES)

    def read(name: str, limit: int) -> bytes:
        member = members[name]
        _refuse_bomb(path, name, member.size_bytes, member.stored_bytes, limit)
        return member.read(path)

    return _guarded(path, read), set(members)


def _reader(path: Path, entries: dict[str, zipfile.ZipInfo]) -> Read:
    """By the directory, which is read once: of a file with many launches it is long."""

    def read(name: str, limit: int) -> bytes:
        entry = entries[name]
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FormatError(f"{path}: member {name} is packed by method {entry.compress_type}, expected 0 or 8")
        _refuse_bomb(path, name, entry.file_size, entry.compress_size, limit)
        return Member.of(path, entry).read(path)

    return _guarded(path, read)


def _guarded(path: Path, read: Read) -> Read:
    def run(name: str, limit: int) -> bytes:
        try:
            return read(name, limit)
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from error
        except _UNREADABLE as error:
            raise FormatError(f"{path}: member {name} is damaged: {error}") from error

    return run


def _refuse_bomb(path: Path, name: str, size_bytes: int, stored_bytes: int, limit_bytes: int) -> None:
    limit_bytes = min(limit_bytes, max(FREE_EXPANSION_BYTES, MAX_EXPANSION * stored_bytes))
    if size_bytes > limit_bytes:
        found = f"{size_bytes} bytes out of {stored_bytes}"
        raise FormatError(f"{path}: member {name} would unpack to {found}, expected at most {limit_bytes}")


def _manifest(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {_MANIFEST} is no JSON: {error}") from error
    return _checked(path, value)


def _checked(path: Path, value: Any) -> dict[str, Any]:
    try:
        return check(value)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    except VersionError as error:
        raise VersionError(f"{path}: {error}") from error


def _chunks(path: Path, name: str, data: bytes) -> U32:
    if len(data) % layout.CHUNK_BYTES:
        found = f"{len(data)} bytes"
        raise FormatError(f"{path}: member {name}: expected a multiple of {layout.CHUNK_BYTES} bytes, found {found}")
    return np.frombuffer(data, "<u4").reshape(-1, layout.CHUNK_WORDS)


def _listed_sources(path: Path, manifest: dict[str, Any], names: set[str]) -> dict[str, str]:
    """Member of each embedded source, by the source's path."""
    listed = manifest.get("sources", [])
    if not isinstance(listed, list):
        raise FormatError(f"{path}: manifest.sources: expected a list, found {type(listed).__name__}")
    out: dict[str, str] = {}
    for entry in listed:
        if not (
            isinstance(entry, dict) and isinstance(entry.get("path"), str) and isinstance(entry.get("member"), str)
        ):
            raise FormatError(f"{path}: manifest.sources: expected entries with path and member, found {entry!r:.60}")
        if entry["member"] in names and _SOURCE.fullmatch(entry["member"]):
            out[entry["path"]] = entry["member"]
    return out
