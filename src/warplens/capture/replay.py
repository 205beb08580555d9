"""`--replay`: a launch made again and again, with the memory that its arguments point to saved before and put back.

In: the arguments of a launch, its stream. Out: copies in that stream. Sees the pointers that stand in the arguments
themselves; one that stands in memory is not followed. Refuses what another GPU or the host may read meanwhile: a
collective that waits for its partners would never end. The C++ one is include/warplens/detail/host_replay.hpp.
"""

from __future__ import annotations

from typing import Any

from warplens.capture import driver
from warplens.capture.arguments import Arguments
from warplens.errors import DeviceError, UsageError


class Saved:
    """Copies of what `given` points to on `device`. Raises UsageError or DeviceError where there can be none."""

    def __init__(self, given: Arguments, device: int, stream: int) -> None:
        self.stream = stream
        self._ranges: list[tuple[int, int, driver.DeviceMemory]] = []
        sizes = {}
        for word in given.words():
            found = _range_of(word, device)
            if found is not None:
                sizes[found[0]] = found[1]
        for begin, size in sizes.items():
            try:
                copy = driver.DeviceMemory(size)
            except DeviceError as error:
                raise UsageError(f"no memory is left to save the {size:,} bytes that an argument points to") from error
            driver.call("cuMemcpyDtoDAsync", copy.address, begin, size, stream)
            self._ranges.append((begin, size, copy))

    def restore(self) -> None:
        """Put back what was there."""
        for begin, size, copy in self._ranges:
            driver.call("cuMemcpyDtoDAsync", begin, copy.address, size, self.stream)


def _range_of(word: int, device: int) -> tuple[int, int] | None:
    """Begin and size of the allocation that `word` points into; None where it is no address."""
    native = driver.bindings()
    kinds = native.CUpointer_attribute

    def ask(name: str) -> Any:
        status, value = native.cuPointerGetAttribute(getattr(kinds, f"CU_POINTER_ATTRIBUTE_{name}"), word)
        return value if status == native.CUresult.CUDA_SUCCESS else None

    kind = ask("MEMORY_TYPE") if word else None
    if kind is None:
        return None
    if int(kind) != int(native.CUmemorytype.CU_MEMORYTYPE_DEVICE) or ask("IS_MANAGED"):
        raise UsageError("an argument points to memory of the host")
    if ask("DEVICE_ORDINAL") != device:
        raise UsageError("an argument points to memory of another GPU, as those of collectives do")
    begin, size = driver.call("cuMemGetAddressRange", word)
    return int(begin), int(size)
