"""Columns of integers as small as a page can carry them.

In: numpy arrays of integers. Out: byte planes (all lowest bytes, then all second bytes, ...) as zlib streams in
base64, and the few facts that `page/codec.js` needs to undo it. Knows nothing of spans.
"""

from __future__ import annotations

import base64
import os
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

PIECE_BYTES: Final = 4 << 20
"""A stream holds at most this many bytes of a plane: pieces are packed and unpacked side by side."""
QUICK_SPANS: Final = 600_000
"""Beyond so many spans (8 MB of planes) speed counts: level 1 takes a third of the time of level 6 and 3 % more space
on planes of times, which are close to noise."""


class Packer:
    """Packs columns in threads while more are added; `streams` waits for them."""

    def __init__(self, spans: int) -> None:
        self.columns: dict[str, dict[str, Any]] = {}
        """What the page is told: per column `n`, `signed`, and `planes`: a byte where it is constant, else streams."""
        self._level = 6 if spans <= QUICK_SPANS else 1
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 8))  # zlib gives up the lock
        self._streams: list[Future[str]] = []

    def add(self, name: str, values: npt.NDArray[Any]) -> None:
        """Adds integers; nothing of 64 bits is lost. Signed ones wider than a byte are folded (0, -1, 1, -2, ...)."""
        values = np.ascontiguousarray(values)
        low, highest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        signed = low < 0
        if signed and low >= -128 and highest < 128:
            values, highest = values.astype(np.int8, copy=False).view(np.uint8), 255
        elif signed:
            bits = 8 * values.dtype.itemsize
            values = ((values << 1) ^ (values >> (bits - 1))).view(f"u{bits // 8}")
            highest = max(2 * highest, -2 * low - 1)
        width = max((highest.bit_length() + 7) // 8, 1)
        narrow = values.astype(next(t for t, bits in _TYPES if bits >= 8 * width), copy=False)
        planes = narrow.view(np.uint8).reshape(len(narrow), narrow.dtype.itemsize)
        column = [self._plane(np.ascontiguousarray(planes[:, k])) for k in range(width)]
        self.columns[name] = {"n": len(values), "signed": signed, "planes": column}

    def streams(self) -> list[str]:
        """The base64 text of each stream, in the order of their numbers."""
        with self._pool:
            return [stream.result() for stream in self._streams]

    def _plane(self, plane: npt.NDArray[np.uint8]) -> int | list[int]:
        """The value of a constant plane, or the numbers of its streams."""
        if not len(plane) or (plane[0] == plane).all():
            return int(plane[0]) if len(plane) else 0
        first = len(self._streams)
        for at in range(0, len(plane), PIECE_BYTES):
            self._streams.append(self._pool.submit(_packed, plane[at : at + PIECE_BYTES], self._level))
        return list(range(first, len(self._streams)))


def _packed(plane: npt.NDArray[np.uint8], level: int) -> str:
    return base64.b64encode(zlib.compress(plane.data, level)).decode("ascii")


_TYPES: Final = ((np.dtype("<u1"), 8), (np.dtype("<u2"), 16), (np.dtype("<u4"), 32), (np.dtype("<u8"), 64))
