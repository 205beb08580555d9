"""Members of a zip one by one, also of one whose directory is missing or stale, as a recording that was killed leaves.

In: the path of a `.wlens`, with an entry of its directory, or of a `.wlens.part`. Out: that member; those that are
whole, found by walking the local headers from the front.
Must stop at the first header that does not hold, and must not read what a header claims without checking it.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_MAGIC: Final = b"PK\x03\x04"
_HAS_DESCRIPTOR: Final = 8  # sizes follow the data: not written by us, and not safe to skip
_ENCRYPTED: Final = 1
_UTF8: Final = 0x800
_ZIP64: Final = 1
_FULL: Final = 0xFFFFFFFF


@dataclass(frozen=True)
class Member:
    """Where a member's packed bytes lie, and what they should become."""

    offset_bytes: int
    stored_bytes: int
    size_bytes: int
    method: int
    crc: int

    @classmethod
    def of(cls, path: Path, entry: zipfile.ZipInfo) -> Member:
        """That of an entry of the file's directory; BadZipFile where something else stands there."""
        if entry.flag_bits & _ENCRYPTED:
            raise zipfile.BadZipFile("it is encrypted")
        with path.open("rb") as stream:
            stream.seek(entry.header_offset)
            magic, *_, name_length, extra_length = _LOCAL.unpack(stream.read(_LOCAL.size))
            name = stream.read(name_length)
        if magic != _MAGIC or name != entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF8 else "cp437"):
            raise zipfile.BadZipFile("the directory names something else")
        offset = entry.header_offset + _LOCAL.size + name_length + extra_length
        return cls(offset, entry.compress_size, entry.file_size, entry.compress_type, entry.CRC)

    def read(self, path: Path) -> bytes:
        """The member's bytes; zlib.error or BadZipFile when they are not what the header says."""
        with path.open("rb") as stream:
            stream.seek(self.offset_bytes)
            packed = stream.read(self.stored_bytes)
        data = packed
        if self.method == zipfile.ZIP_DEFLATED:
            data = zlib.decompressobj(-15).decompress(packed, self.size_bytes + 1)
        if len(data) != self.size_bytes or zlib.crc32(data) != self.crc:
            raise zipfile.BadZipFile("wrong size or checksum")
        return data


def recover_members(path: Path, limit_bytes: int) -> dict[str, Member]:
    """Whole members by name, in the file's order; the last of a name wins. `limit_bytes` bounds a member's size."""
    out: dict[str, Member] = {}
    end = path.stat().st_size
    with path.open("rb") as stream:
        while True:
            head = stream.read(_LOCAL.size)
            if len(head) < _LOCAL.size:
                return out
            magic, _, flags, method, _, _, crc, stored, size, name_length, extra_length = _LOCAL.unpack(head)
            if magic != _MAGIC or flags & (_HAS_DESCRIPTOR | _ENCRYPTED) or method not in (0, zipfile.ZIP_DEFLATED):
                return out
            name = stream.read(name_length)
            extra = stream.read(extra_length)
            stored, size = _zip64_sizes(extra, stored, size)
            offset = stream.tell()
            if len(extra) < extra_length or size > limit_bytes or offset + stored > end:
                return out
            out[name.decode("utf-8", "replace")] = Member(offset, stored, size, method, crc)
            stream.seek(stored, os.SEEK_CUR)


def _zip64_sizes(extra: bytes, stored: int, size: int) -> tuple[int, int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        values = extra[at + 4 : at + 4 + length]
        if kind == _ZIP64:
            if size == _FULL and len(values) >= 8:
                size, values = int.from_bytes(values[:8], "little"), values[8:]
            if stored == _FULL and len(values) >= 8:
                stored = int.from_bytes(values[:8], "little")
        at += 4 + length
    return stored, size
