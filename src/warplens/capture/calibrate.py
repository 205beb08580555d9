"""Pairs of globaltimer and clock64 of every SM, before and after a recording.

In: the device. Out: a `calibration` entry of the manifest. The kernel is include/warplens/calibrate.cu.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from warplens.capture import driver
from warplens.capture.compile import compile_cubin, get_include
from warplens.capture.library import Library

_EDGES = 8
_PAIR = np.dtype([("globaltimer_ns", "<u8"), ("clock_cycles", "<u8"), ("sm", "<u8")])


class Calibrator:
    """Takes pairs on one device."""

    def __init__(self, device: int, arch: str) -> None:
        source = Path(get_include(), "warplens", "calibrate.cu").read_text(encoding="utf-8")
        self._library = Library(compile_cubin(source, [], arch=arch, filename="calibrate.cu").cubin)
        self._function = self._library.function("calibrate")
        self._sm_count = driver.attribute(device, "MULTIPROCESSOR_COUNT")
        self._shared_bytes = driver.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - 1024
        self._function.allow_shared_bytes(self._shared_bytes)
        self.step_ns: int | None = None

    def take(self, when: str, stream: int) -> dict[str, Any]:
        """Pairs of all SMs now; `when` is "before" or "after". Also sets `step_ns`, the globaltimer's step."""
        memory = driver.DeviceMemory(self._sm_count * _EDGES * _PAIR.itemsize)
        table = (np.array(memory.address, np.uint64), np.array(_EDGES, np.uint32))
        pointers = np.array([value.ctypes.data for value in table], np.uint64)
        self._function.launch((self._sm_count, 1, 1), (32, 1, 1), int(pointers.ctypes.data), self._shared_bytes, stream)
        pairs = driver.copy_from_device(memory.address, (self._sm_count, _EDGES), _PAIR, stream)
        steps = np.diff(pairs["globaltimer_ns"].astype(np.int64), axis=1)
        self.step_ns = int(np.median(steps))
        return {
            "when": when,
            "sm": pairs["sm"].ravel().tolist(),
            "globaltimer_ns": pairs["globaltimer_ns"].ravel().tolist(),
            "clock_cycles": pairs["clock_cycles"].ravel().tolist(),
        }
