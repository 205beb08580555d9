"""Copies of device memory while a kernel hangs.

In: addresses. Out: numpy arrays, or DeviceError when the copy does not come in time. All that could wait for the kernel
is made beforehand: the memory, which is pinned, and a stream that waits for no other. Nothing here synchronises.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warplens.capture import driver
from warplens.errors import DeviceError

PIECE_BYTES: Final = 8 << 20
LONGEST_S: Final = 5.0
"""Of all copies together."""


class Pinned:
    """Pinned memory of the current context, and a stream of its own."""

    def __init__(self) -> None:
        self._context = driver.call("cuCtxGetCurrent")
        self._host = driver.HostMemory(PIECE_BYTES)
        self._stream = int(driver.call("cuStreamCreate", driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._end_s = math.inf

    def begin(self) -> None:
        """Copies by this thread from now on: LONGEST_S for all of them."""
        driver.call("cuCtxSetCurrent", self._context)
        self._end_s = time.monotonic() + LONGEST_S

    def copy(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Device memory as it is now, in a new array. DeviceError where it does not come."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        out = np.empty(size, np.uint8)
        staging = self._host.words.view(np.uint8)
        for at in range(0, size, PIECE_BYTES):
            piece = min(PIECE_BYTES, size - at)
            driver.call("cuMemcpyDtoHAsync", self._host.host, address + at, piece, self._stream, doing="looking")
            while not driver.is_done(self._stream):
                if time.monotonic() > self._end_s:
                    raise DeviceError(f"the GPU did not give out what was recorded within {LONGEST_S:g} s")
                time.sleep(1e-4)
            out[at : at + piece] = staging[:piece]
        found: NDArray[Any] = out.view(dtype).reshape(shape)
        return found
