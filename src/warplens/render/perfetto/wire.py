"""Protobuf's wire format: single fields as bytes, and whole columns of messages of one width at once.

In: field numbers with values, or with numpy columns. Out: bytes, or an array with one message a row.
Knows nothing of traces. A column's varints all take the width of its largest value: a varint may end in groups of
zeros that add nothing, so that every row has the same layout and numpy writes all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_SHORT: Final = [bytes([value]) for value in range(0x80)]


class Varints(NamedTuple):
    """A column of varints, one a row, of `width` bytes each; `values` are integers that are not negative."""

    values: npt.NDArray[Any]
    width: int


class Digits(NamedTuple):
    """A column of decimal numbers as text, all of `width` digits."""

    values: npt.NDArray[Any]
    width: int


class Words(NamedTuple):
    """A column of eight bytes a row, uint64 in little endian."""

    values: npt.NDArray[np.uint64]
    width: int = 8


Part = bytes | Varints | Digits | Words


def varint(value: int) -> bytes:
    """The shortest varint of `value`, taken modulo 2^64."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer field."""
    return varint(field << 3 | _VARINT) + varint(value)


def blob(field: int, data: bytes) -> bytes:
    """A field of bytes or of a message."""
    return varint(field << 3 | _LENGTH) + varint(len(data)) + data


def text(field: int, value: str) -> bytes:
    """A string field; what has no UTF-8 (a lone surrogate) becomes a question mark."""
    return blob(field, value.encode("utf-8", "replace"))


def numbers(field: int, values: npt.NDArray[Any], width: int) -> list[Part]:
    """An integer field that has one of `values` in each row."""
    return [varint(field << 3 | _VARINT), Varints(values, width)]


def words(field: int, values: npt.NDArray[np.uint64]) -> list[Part]:
    """A field fixed64 that has one of `values` in each row."""
    return [varint(field << 3 | _FIXED64), Words(values)]


def message(field: int, parts: Sequence[Part]) -> list[Part]:
    """A message field of `parts`, which have the same length in all rows."""
    return [varint(field << 3 | _LENGTH) + varint(length(parts)), *parts]


def length(parts: Sequence[Part]) -> int:
    """Bytes of one row."""
    return sum(len(part) if isinstance(part, bytes) else part.width for part in parts)


def width_of(largest: int) -> int:
    """Bytes of a varint that holds `largest`."""
    return max(1, -(-int(largest).bit_length() // 7))


def pack(parts: Sequence[Part], rows: int) -> U8:
    """All rows of a message, shape (rows, length(parts))."""
    template = b"".join(part if isinstance(part, bytes) else bytes(part.width) for part in parts)
    out = np.empty((rows, len(template)), np.uint8)
    out[:] = np.frombuffer(template, np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            at += len(part)
            continue
        column = out[:, at : at + part.width]
        if isinstance(part, Varints):
            _fill_varints(column, part.values)
        elif isinstance(part, Digits):
            _fill_digits(column, part.values)
        else:
            column[:] = np.ascontiguousarray(part.values, "<u8").view(np.uint8).reshape(rows, 8)
        at += part.width
    return out


def _fill_varints(out: U8, values: npt.NDArray[Any]) -> None:
    width = out.shape[1]
    for place in range(width):
        group = (values >> values.dtype.type(7 * place) if place else values).astype(np.uint8)
        out[:, place] = group & 0x7F if place == width - 1 else group | 0x80


def _fill_digits(out: U8, values: npt.NDArray[Any]) -> None:
    width = out.shape[1]
    for place in range(width):
        out[:, place] = values // 10 ** (width - 1 - place) % 10 + ord("0")
