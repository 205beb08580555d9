"""Pairs of globaltimer and clock64 of every SM, before and after a recording.

In: the device. Out: a `calibration` entry of the manifest. The kernel is include/warplens/calibrate.cu.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from warplens.capture import driver
from warplens.capture.compile import compile_cubin, get_include
from warplens.capture.library import Dim3, Function, Library

_EDGES = 9
_GAP_NS = 4_000  # the pairs of one SM span 32 us, so that their rate is known to about 1e-4; before to after to 1e-5
_SAMPLES = 8192
_PAIR = np.dtype([("globaltimer_ns", "<u8"), ("clock_cycles", "<u8"), ("sm", "<u8")])


class Calibrator:
    """Takes pairs on one device, in a stream, right before and after a launch: an idle GPU changes its clocks."""

    def __init__(self, device: int, arch: str) -> None:
        source = Path(get_include(), "warplens", "calibrate.cu").read_text(encoding="utf-8")
        self._library = Library(compile_cubin(source, [], arch=arch, filename="calibrate.cu").cubin)
        self._function = self._library.function("calibrate")
        self._sampler = self._library.function("sample_globaltimer")
        self._sm_count = driver.attribute(device, "MULTIPROCESSOR_COUNT")
        self._shared_bytes = driver.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - 1024
        self._function.allow_shared_bytes(self._shared_bytes)

    def allocate(self) -> driver.DeviceMemory:
        """Room for the pairs of all SMs."""
        return driver.DeviceMemory(self._sm_count * _EDGES * _PAIR.itemsize)

    def begin(self, stream: int, memory: driver.DeviceMemory | None = None) -> driver.DeviceMemory:
        """Take pairs of all SMs, in the stream's order; `read` gets them when the stream has come so far.

        With `memory`, of `allocate`, it does not wait for a kernel that hangs, as allocating may.
        """
        memory = memory or self.allocate()
        arguments = memory.address, _EDGES, _GAP_NS
        _run(self._function, (self._sm_count, 1, 1), (32, 1, 1), arguments, self._shared_bytes, stream)
        return memory

    def read(self, memory: driver.DeviceMemory, when: str, stream: int) -> dict[str, Any]:
        """The pairs that `begin` asked for; `when` is "before" or "after"."""
        pairs = driver.copy_from_device(memory.address, (self._sm_count * _EDGES,), _PAIR, stream)
        return {"when": when, **{name: pairs[name].tolist() for name in ("sm", "globaltimer_ns", "clock_cycles")}}

    def step_ns(self, stream: int) -> int | None:
        """The globaltimer's step, the median of what lies between its successive values; None where it stood still."""
        memory = driver.DeviceMemory(8 * _SAMPLES)
        for _ in range(2):  # the first time the code is not in the caches
            _run(self._sampler, (1, 1, 1), (1, 1, 1), (memory.address, _SAMPLES), 0, stream)
        values = driver.copy_from_device(memory.address, (_SAMPLES,), np.uint64, stream).astype(np.int64)
        steps = np.diff(values[np.flatnonzero(np.diff(values)) + 1])
        return int(np.median(steps)) if len(steps) else None


def _run(
    function: Function, grid: Dim3, block: Dim3, arguments: tuple[int, ...], shared_bytes: int, stream: int
) -> None:
    """Launch with a pointer first and 32-bit numbers behind it."""
    values = [np.array(value, np.uint32 if i else np.uint64) for i, value in enumerate(arguments)]
    pointers = np.array([value.ctypes.data for value in values], np.uint64)
    function.launch(grid, block, int(pointers.ctypes.data), shared_bytes, stream)
