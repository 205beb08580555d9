"""The device memory that recorders write to, and its draining.

In: a module's descriptor symbol, a capacity. Out: chunks as uint32 arrays of shape (n, 32), exact loss counts.
The layout is layout.py's; the device side is include/warplens/detail/arena.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warplens import layout
from warplens.capture import driver
from warplens.errors import UsageError


@dataclass(frozen=True)
class Drained:
    """What was in the arena. `chunks`: uint32 (n, 32); all-zero rows were reserved and never written."""

    chunks: NDArray[np.uint32]
    lost_events: int
    lost_chunks: int


def divide(capacity_bytes: int) -> tuple[int, int]:
    """Chunks that the cursors hand out, and all chunks, that fit `capacity_bytes` beside the control block.

    Half of the chunks are handed out by the cursors, so that warps need not meet; the rest is for those whose cursor
    is at its end. Raises UsageError below the size of the control block or above 2^31 chunks.
    """
    chunks = (capacity_bytes - layout.ARENA_OFFSET) // layout.CHUNK_BYTES
    if chunks < 0:
        raise UsageError(f"a capacity of {capacity_bytes:,} bytes: at least {layout.ARENA_OFFSET:,} are needed")
    most = 1 << 31
    if chunks >= most:
        raise UsageError(f"a capacity of {capacity_bytes:,} bytes: at most {most * layout.CHUNK_BYTES:,} can be used")
    return chunks // 2 // layout.CURSOR_COUNT * layout.CURSOR_COUNT, chunks


class Arena:
    """Control block and chunks in device memory."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.shared_chunks, self.chunks = divide(capacity_bytes)
        self._memory = driver.DeviceMemory(capacity_bytes + layout.CONTROL_ALIGNMENT)
        self.address = -(-self._memory.address // layout.CONTROL_ALIGNMENT) * layout.CONTROL_ALIGNMENT
        fresh = np.zeros(layout.ARENA_OFFSET, np.uint8)
        fresh[layout.CONTROL_POOL_CURSOR :][:4].view("<u4")[0] = self.shared_chunks
        cursors = fresh[layout.CONTROL_CURSORS :].view("<u4")[:: layout.CURSOR_STRIDE // 4]
        cursors[: layout.CURSOR_COUNT] = np.arange(layout.CURSOR_COUNT)
        self._fresh = driver.DeviceMemory(layout.ARENA_OFFSET)
        driver.copy_to_device(self._fresh.address, fresh)
        self.clear(0)

    def descriptor(self, mode: layout.Mode, *, every: int = 1, warp_mask: int = 0xFFFFFFFF) -> NDArray[Any]:
        """Value of the module's descriptor symbol."""
        value = np.zeros((), layout.DESCRIPTOR)
        for name, content in {
            "control": self.address,
            "shared_chunks": self.shared_chunks,
            "chunks": self.chunks,
            "mode": int(mode),
            "every": every,
            "warp_mask": warp_mask,
        }.items():
            value[name] = content
        return value

    def compile_options(self) -> tuple[str, ...]:
        """Options that compile a kernel for this arena alone, recording every warp: arena.cuh says what that saves."""
        return f"-DWARPLENS_ARENA={self.address:#x}ull", f"-DWARPLENS_SHARED_CHUNKS={self.shared_chunks}u"

    def clear(self, stream: int) -> None:
        """Forget everything, ordered in `stream`."""
        driver.call("cuMemsetD8Async", self.address, 0, self.capacity_bytes, stream, doing="clearing the arena")
        self.clear_cursors(stream)

    def clear_cursors(self, stream: int) -> None:
        """Start again at the first chunk, ordered in `stream`; what was written stays until it is written over."""
        addresses = self.address, self._fresh.address
        driver.call("cuMemcpyDtoDAsync", *addresses, layout.ARENA_OFFSET, stream, doing="clearing the arena")

    def drain(self, stream: int) -> Drained:
        """Copy out what was written, after all that is in `stream`."""
        control = driver.copy_from_device(self.address, (layout.ARENA_OFFSET,), np.uint8, stream)
        lost_events, lost_chunks = (
            int(control[at : at + 8].view("<u8")[0]) for at in (layout.CONTROL_LOST_EVENTS, layout.CONTROL_LOST_CHUNKS)
        )
        at = layout.CONTROL_POOL_CURSOR
        rest = min(int(control[at : at + 4].view("<u4")[0]), self.chunks) - self.shared_chunks
        cursors = control[layout.CONTROL_CURSORS :].view("<u4")[:: layout.CURSOR_STRIDE // 4][: layout.CURSOR_COUNT]
        taken = np.minimum(cursors // layout.CURSOR_COUNT, self.shared_chunks // layout.CURSOR_COUNT)
        depth = int(taken.max(initial=0))
        start = self.address + layout.ARENA_OFFSET
        shared_out = driver.copy_from_device(start, (depth, layout.CURSOR_COUNT, layout.CHUNK_WORDS), "<u4", stream)
        others = driver.copy_from_device(
            start + self.shared_chunks * layout.CHUNK_BYTES, (rest, layout.CHUNK_WORDS), "<u4", stream
        )
        written = np.arange(depth)[:, None] < taken[None, :]
        return Drained(np.concatenate([shared_out[written], others]), lost_events, lost_chunks)
