"""Reads symbols out of a compiled module (an ELF file): the site sets that its source declared.

In: bytes of a cubin. Out: site sets as the manifest lists them. Needs no GPU. Every offset is checked: a cubin may
be damaged.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from warplens import layout
from warplens.errors import SitesError

_NO_CONTENT = 8  # SHT_NOBITS
_WITH_DATA = 4  # EIFMT_SVAL
_FRAME_SIZE = 0x11  # EIATTR_FRAME_SIZE
_STACK_SIZE = 0x12  # EIATTR_MIN_STACK_SIZE, with what is called
_REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT
_REQUIRED_BLOCK = 0x10  # EIATTR_REQNTID
_LARGEST_BLOCK = 0x05  # EIATTR_MAX_THREADS
_HAS_SYSTEM_SHARED = 90
_OF_SYSTEM = 1024
_ABI_OF_WIDE_FLAGS = 8
_KINDS = ("phase", "wait", "mark", "range", "arrive")


def _sections(elf: bytes) -> list[tuple[int, ...]]:
    if elf[:5] != b"\x7fELF\x02" or len(elf) < 64:
        raise SitesError("this module is not a 64-bit ELF file (a cubin): its sites cannot be read")
    offset, size, count = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 58)
    if size < 64 or offset + size * count > len(elf):
        raise SitesError("this module is damaged: its section table lies outside of it")
    return [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * size) for i in range(count)]


def _symbol_tables(elf: bytes, sections: list[tuple[int, ...]]) -> Iterator[tuple[range, bytes]]:
    """Of each symbol table where its entries lie, and the names that they point into."""
    for _, kind, _, _, offset, size, link, _, _, entry in sections:
        if kind != 2 or entry < 24:  # SHT_SYMTAB
            continue
        if link >= len(sections) or offset + size > len(elf):
            raise SitesError("this module is damaged: its symbol table lies outside of it")
        yield range(offset, offset + size - 23, entry), elf[sections[link][4] : sections[link][4] + sections[link][5]]


def read_symbols(elf: bytes, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each symbol whose name begins with `prefix` and that has initial content."""
    sections = _sections(elf)
    for places, names in _symbol_tables(elf, sections):
        for at in places:
            name_at, _, _, section, value, length = struct.unpack_from("<IBBHQQ", elf, at)
            name = names[name_at : names.find(b"\0", name_at)].decode(errors="replace")
            if not name.startswith(prefix) or not 0 < section < len(sections):
                continue
            start = sections[section][4] + value
            if sections[section][1] == _NO_CONTENT or start + length > len(elf):
                raise SitesError(f"this module is damaged: {name} has no content")
            yield name, elf[start : start + length]


def read_section(elf: bytes, name: str) -> bytes | None:
    """Content of the first section of this name; None when there is none. Raises SitesError for a damaged module."""
    for own, _, offset, size in _named_sections(elf):
        if own == name and offset + size <= len(elf):
            return elf[offset : offset + size]
    return None


def sections_of(elf: bytes, prefix: str) -> list[bytes]:
    """Content of all sections whose names begin so. Raises SitesError for a damaged module."""
    kept = [own for own in _named_sections(elf) if own[0].startswith(prefix) and own[1] != _NO_CONTENT]
    return [elf[offset : offset + size] for _, _, offset, size in kept if offset + size <= len(elf)]


def shared_bytes(elf: bytes, kernel: str) -> int:
    """Shared memory that a kernel declares with a size, without what the system has of it on sm_90 and newer.

    ptxas counts that in where a kernel has some of its own or names memory of the launch's, and there alone.
    """
    size = next((size for own, _, _, size in _named_sections(elf) if own == f".nv.shared.{kernel}"), 0)
    return size - _OF_SYSTEM if _arch_of(elf) >= _HAS_SYSTEM_SHARED and size >= _OF_SYSTEM else size


def _named_sections(elf: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Name, kind, offset and size of each section."""
    sections = _sections(elf)
    at = struct.unpack_from("<H", elf, 62)[0]  # number of the section that holds the names
    if at >= len(sections):
        raise SitesError("this module is damaged: its table of names lies outside of it")
    names = sections[at][4]
    for name_at, kind, _, _, offset, size, *_ in sections:
        begin = names + name_at
        yield elf[begin : elf.find(b"\0", begin)].decode(errors="replace"), kind, offset, size


def registers_and_frame(elf: bytes) -> tuple[int, int]:
    """Registers of a thread of the module's functions at most, and bytes of local memory, where registers spill to."""
    found = {_REGISTER_COUNT: 0, _FRAME_SIZE: 0}
    for attribute, values in _attributes(read_section(elf, ".nv.info") or b""):
        if attribute in found and len(values) == 2:  # symbol, value
            found[attribute] = max(found[attribute], values[1])
    return found[_REGISTER_COUNT], found[_FRAME_SIZE]


@dataclass(frozen=True)
class Resources:
    """What a kernel takes.

    `arch`: 90 for sm_90. `local_bytes`: its stack, where registers spill to. `shared_bytes`: what it declares with a
    size, without the system's. `block`: threads in x, y and z that a block has (`is_most`: at most), None where the
    kernel does not say.
    """

    arch: int
    registers: int
    local_bytes: int
    shared_bytes: int
    block: tuple[int, int, int] | None = None
    is_most: bool = False


def resources_of(elf: bytes, kernel: str) -> Resources:
    """Raises SitesError for a damaged module, and for a kernel whose registers are not told."""
    number = _number_of(elf, kernel)
    found = {
        attribute: values[1]
        for attribute, values in _attributes(read_section(elf, ".nv.info") or b"")
        if len(values) == 2 and values[0] == number
    }
    if number is None or _REGISTER_COUNT not in found:
        raise SitesError(f"this module does not tell what {kernel} takes: no entry of .nv.info is of it")
    of_block = {
        attribute: (values[0], values[1], values[2])
        for attribute, values in _attributes(read_section(elf, f".nv.info.{kernel}") or b"")
        if len(values) == 3 and all(values)
    }
    return Resources(
        _arch_of(elf),
        found[_REGISTER_COUNT],
        max(found.get(_FRAME_SIZE, 0), found.get(_STACK_SIZE, 0)),
        shared_bytes(elf, kernel),
        of_block.get(_REQUIRED_BLOCK) or of_block.get(_LARGEST_BLOCK),
        _REQUIRED_BLOCK not in of_block,
    )


def _arch_of(elf: bytes) -> int:
    """Compute capability, from the flags: their low byte, or from ABI version 8 on the one above."""
    flags = struct.unpack_from("<I", elf, 48)[0]
    return int(flags >> 8 & 0xFF if elf[8] >= _ABI_OF_WIDE_FLAGS else flags & 0xFF)


def _number_of(elf: bytes, kernel: str) -> int | None:
    """The number of a symbol."""
    for places, names in _symbol_tables(elf, _sections(elf)):
        for number, at in enumerate(places):
            begin = struct.unpack_from("<I", elf, at)[0]
            if names[begin : names.find(b"\0", begin)] == kernel.encode(errors="replace"):
                return number
    return None


def _attributes(info: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The entries of `.nv.info` that have words: a format and an attribute (one byte each), two bytes of length."""
    at = 0
    while at + 4 <= len(info):
        kind, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind != _WITH_DATA:
            continue
        if at + length <= len(info):
            yield attribute, struct.unpack_from(f"<{length // 4}I", info, at)
        at += length


def parse_sites(name: str, content: bytes) -> dict[str, Any]:
    """One site set of the manifest from the string that WARPLENS_SITES left in the module."""
    text = content.rstrip(b"\0").decode(errors="replace")
    parts = text.split(layout.TAIL_SEPARATOR)
    if len(parts) < 3 or not re.fullmatch("[0-9]{1,9}", parts[2]):
        raise SitesError(f"site set {name!r}: its table in the module cannot be read; was it made by WARPLENS_SITES?")
    listed, file, line = parts[0], parts[1], int(parts[2])
    rows: list[list[str]]
    if listed.startswith(layout.SITE_SEPARATOR):
        rows = [row.split(layout.FIELD_SEPARATOR) for row in listed.split(layout.SITE_SEPARATOR)[1:]]
    else:
        rows = [[site.strip(), "phase", ""] for site in listed.split(",") if site.strip()]
        odd = next((row[0] for row in rows if not row[0].isidentifier()), None)
        if odd is not None:  # `load = 5`: then the number on the device would not be that of the table
            raise SitesError(f"site {odd!r} of {name!r}: expected a plain name; WARPLENS_SITES_FROM takes other texts")
    sites = []
    for index, row in enumerate(rows, 1):
        if len(row) not in (3, 5, 6):
            raise SitesError(f"site set {name!r}: site {index} has {len(row)} fields, expected name, kind and resource")
        if row[1] not in _KINDS:
            raise SitesError(f"site {row[0]!r} of {name!r} has kind {row[1]!r}: expected one of {', '.join(_KINDS)}")
        place: dict[str, Any] = {"file": file, "line": line}
        if len(row) > 3:  # of instrumented PTX, whose sites stand anywhere
            if not re.fullmatch("[0-9]{1,9}", row[4]):
                raise SitesError(f"site {row[0]!r} of {name!r}: expected the number of a line, found {row[4]!r}")
            place = {"file": row[3], "line": int(row[4])}
        if len(row) > 5:
            if not re.fullmatch("[0-9]{0,9}", row[5]):
                raise SitesError(f"site {row[0]!r} of {name!r}: expected a number of arrivals, found {row[5]!r}")
            place["arrivals"] = int(row[5]) if row[5] else None
        sites.append({"id": index, "name": row[0], "kind": row[1], "resource": row[2], **place})
    left_out = {"left_out": parts[3:]} if len(rows[0]) > 5 else {}
    return {"name": name, "hash": layout.sites_hash(name), "sites": sites, **left_out}


def read_site_sets(cubin: bytes) -> list[dict[str, Any]]:
    """All site sets of a module, in the order of their names; empty when the source declares none."""
    prefix = layout.SITES_SYMBOL_PREFIX
    found = {name[len(prefix) :]: content for name, content in read_symbols(cubin, prefix)}
    return [parse_sites(name, found[name]) for name in sorted(found)]
