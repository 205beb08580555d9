"""Protobuf's wire format, against numbers from its specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.perfetto_reader import fields
from warplens.render.perfetto.wire import (
    Digits,
    blob,
    length,
    message,
    number,
    numbers,
    pack,
    text,
    varint,
    width_of,
    words,
)


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, b"\x00"), (1, b"\x01"), (127, b"\x7f"), (128, b"\x80\x01"), (150, b"\x96\x01"), (-1, b"\xff" * 9 + b"\x01")],
)
def test_a_varint_is_as_the_specification_has_it(value: int, data: bytes) -> None:
    assert varint(value) == data


def test_fields_have_their_number_and_their_wire_type() -> None:
    assert number(1, 150) == b"\x08\x96\x01"
    assert text(2, "testing") == b"\x12\x07testing"
    assert blob(16, b"x") == b"\x82\x01\x01x"


def test_text_without_utf8_gets_question_marks() -> None:
    assert text(1, "a\ud800b") == b"\x0a\x03a?b"


@pytest.mark.parametrize(
    ("largest", "width"), [(0, 1), (127, 1), (128, 2), (16383, 2), (16384, 3), ((1 << 64) - 1, 10)]
)
def test_the_width_of_a_column_holds_its_largest_value(largest: int, width: int) -> None:
    assert width_of(largest) == width
    assert len(varint(largest)) == width


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int64])
def test_a_column_of_varints_reads_back_at_any_width(dtype: type) -> None:
    info = np.iinfo(dtype)
    values: npt.NDArray[Any] = np.array([0, 1, 127, int(info.max) // 3, int(info.max)], dtype)
    for width in range(width_of(int(info.max)), 11):
        data = pack(numbers(5, values, width), len(values))
        assert [dict(fields(row.tobytes()))[5] for row in data] == values.tolist()


def test_messages_in_messages_have_the_length_of_their_parts() -> None:
    parts = message(1, [number(2, 7), *message(3, [Digits(np.array([12, 99]), 2)])])
    data = pack([*parts, *words(4, np.array([1, 1 << 63], np.uint64))], 2)
    assert data.shape == (2, length(parts) + 9)
    for row, digits, word in zip(data, (b"12", b"99"), (1, 1 << 63), strict=True):
        found = dict(fields(row.tobytes()))
        assert dict(fields(found[1])) == {2: 7, 3: digits}
        assert int.from_bytes(found[4], "little") == word


def test_a_long_message_has_a_length_of_two_bytes() -> None:
    data = pack(message(1, [bytes(200)]), 1)
    assert data.shape == (1, 203)
    assert dict(fields(data.tobytes())) == {1: bytes(200)}
