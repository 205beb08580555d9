"""The device memory that recorders write to, and its draining.

In: a module's descriptor symbol, a capacity. Out: chunks as uint32 arrays of shape (n, 32), exact loss counts.
The layout is layout.py's; the device side is include/warplens/detail/arena.cuh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warplens import layout
from warplens.capture import driver
from warplens.capture.pinned import Pinned
from warplens.errors import UsageError

Copy = Callable[[int, tuple[int, ...], Any], NDArray[Any]]
"""Of device memory at an address, with a shape and a dtype, into a new array."""


@dataclass(frozen=True)
class Window:
    """Launches `first` to `first + launches - 1`, counted from 0 by the blocks that have ended."""

    first: int
    launches: int


@dataclass(frozen=True)
class Drained:
    """What was in the arena. `chunks`: uint32 (n, 32); all-zero rows were reserved and never written. `full`: a warp
    may have found no space, and count that at its end. `taken`: how many chunks may have been written to, at the begin
    and behind those of the cursors; None where it can be any."""

    chunks: NDArray[np.uint32]
    lost_events: int
    lost_chunks: int
    full: bool = False
    taken: tuple[int, int] | None = None


def divide(capacity_bytes: int, *, pool: bool = True) -> tuple[int, int]:
    """Chunks that the cursors hand out, and all chunks, that fit `capacity_bytes` beside the control block.

    Half of the chunks are handed out by the cursors, so that warps need not meet; the rest is for those whose cursor
    is at its end. Without `pool` the cursors hand out all of them: instrumented PTX asks nobody else. Raises UsageError
    below the size of the control block or above 2^31 chunks.
    """
    chunks = (capacity_bytes - layout.CONTROL_BYTES) // layout.CHUNK_BYTES
    if chunks < 0:
        raise UsageError(f"a capacity of {capacity_bytes:,} bytes: at least {layout.CONTROL_BYTES:,} are needed")
    most = 1 << 31
    if chunks >= most:
        raise UsageError(f"a capacity of {capacity_bytes:,} bytes: at most {most * layout.CHUNK_BYTES:,} can be used")
    shared = (chunks // 2 if pool else chunks) // layout.CURSOR_COUNT * layout.CURSOR_COUNT
    return shared, chunks if pool else shared


def divide_ring(capacity_bytes: int) -> tuple[int, int]:
    """Chunks of a ring, and the bytes of their states, that fit `capacity_bytes` beside the control block.

    Raises UsageError as `divide` does.
    """
    divide(capacity_bytes)
    room = capacity_bytes - layout.CONTROL_BYTES
    chunks = room // (layout.CHUNK_BYTES + layout.STATE_BYTES)
    if chunks * layout.CHUNK_BYTES + _states_bytes(chunks) > room:  # by less than a chunk
        chunks -= 1
    return chunks, _states_bytes(chunks)


def ring_cursors(chunks: int) -> int:
    """Cursors of a ring of so many chunks: a power of two.

    A cursor keeps the last chunks that it gave out. Warps come to cursors as chance will have it, so that with few
    chunks a cursor much would go that is newer than what others keep.
    """
    return min(1 << max((chunks // layout.RING_LEAST).bit_length() - 1, 0), layout.CURSOR_COUNT)


def _states_bytes(chunks: int) -> int:
    """Whole chunks, so that those behind stay aligned."""
    return -(-chunks * layout.STATE_BYTES // layout.CHUNK_BYTES) * layout.CHUNK_BYTES


def ring_chunks(chunks: NDArray[np.uint32], states: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What a ring holds after its launch: of `chunks` (n, 32) those that were ever used, by the state of each.

    One that is still open was not written to its end: its warp did not end. What it holds is the warp's own with the
    policies `stream` and `live`; of the others it is what stood there before, and was counted as lost: zeros then.
    """
    used = states != layout.STATE_FREE
    out: NDArray[np.uint32] = chunks[used]
    stream = np.uint32(layout.ChunkFlag.STREAM << layout.META_FLAGS_SHIFT)
    unwritten = (states[used] == layout.STATE_OPEN) & (out[:, layout.WORD_META] & stream == 0)
    out[unwritten] = 0
    return out


def whole_chunks(chunks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A copy of those of `chunks` (n, 32) that have a header, while a kernel may write them.

    A chunk of a ring loses its header before its records go, and gets the next one after they went. So one that has
    the same header behind the copy as in front of it, but for flags, was not written over in between.
    """
    same = np.full(layout.HEADER_WORDS, 0xFFFFFFFF, np.uint32)
    same[layout.WORD_META] = ~np.uint32(((1 << layout.META_FLAGS_BITS) - 1) << layout.META_FLAGS_SHIFT)
    at = np.flatnonzero(chunks[:, layout.WORD_META])
    before = chunks[at, : layout.HEADER_WORDS]
    out = chunks[at]
    changed = (before ^ chunks[at, : layout.HEADER_WORDS]) & same
    whole: NDArray[np.uint32] = out[~changed.any(axis=1)]
    return whole


class Arena:
    """Control block in device memory, and chunks there or, with `mapped`, in host memory that the device writes to.

    Mapped, the host sees what is written at once (`look`), and a table of where warps last were follows the chunks.
    With `newest` the chunks are rings in which the oldest events make room; without, later events are lost. Without
    `pool` it is for instrumented PTX, whose warps take several chunks at once.
    """

    def __init__(
        self,
        capacity_bytes: int,
        *,
        mapped: bool = False,
        newest: bool = False,
        sm_count: int = 0,
        pool: bool = True,
    ) -> None:
        self.capacity_bytes, self.mapped, self.newest = capacity_bytes, mapped, newest
        self.states_bytes = 0
        if newest:
            self.chunks, self.states_bytes = divide_ring(capacity_bytes)
            self.shared_chunks = ring_cursors(self.chunks)
        else:
            self.shared_chunks, self.chunks = divide(capacity_bytes, pool=pool)
        chunk_bytes = self.chunks * layout.CHUNK_BYTES
        room = layout.CONTROL_ALIGNMENT + layout.CONTROL_STATES + self.states_bytes
        self._memory = driver.DeviceMemory(room if mapped else room + chunk_bytes)
        self.address = -(-self._memory.address // layout.CONTROL_ALIGNMENT) * layout.CONTROL_ALIGNMENT
        self._host = None
        self.chunks_address = self.address + layout.CONTROL_STATES + self.states_bytes
        if mapped:
            self._host = driver.HostMemory(chunk_bytes + sm_count * layout.LAST_WARPS * layout.LAST_BYTES)
            self.chunks_address = self._host.address
        fresh = np.zeros(layout.CONTROL_BYTES - layout.CONTROL_FRESH, np.uint8)
        fresh[layout.CONTROL_POOL_CURSOR - layout.CONTROL_FRESH :][:4].view("<u4")[0] = self.shared_chunks
        cursors = fresh[layout.CONTROL_CURSORS - layout.CONTROL_FRESH :].view("<u4")[:: layout.CURSOR_STRIDE // 4]
        cursors[: layout.CURSOR_COUNT] = np.arange(layout.CURSOR_COUNT)
        self._fresh = driver.DeviceMemory(len(fresh))
        driver.copy_to_device(self._fresh.address, fresh)
        self._list: driver.DeviceMemory | None = None
        self.switch_off(0)
        self.clear(0)

    def descriptor(self) -> NDArray[Any]:
        """Value of the module's descriptor symbol."""
        value = np.zeros((), layout.DESCRIPTOR)
        value["control"], value["arena"] = self.address, self.chunks_address
        value["shared_chunks"], value["chunks"] = self.shared_chunks, self.chunks
        return value

    def choose(
        self,
        stream: int,
        *,
        blocks: Sequence[int] | None = None,
        window: Window | None = None,
        slab_chunks: int = 0,
        **step: int,
    ) -> None:
        """Say what is recorded from now on, ordered in `stream`; kernels that are captured in a graph see it too.

        `step`: as `layout.choice` takes it. `blocks`: these alone, by linear index. `window`: launches alone, counted
        from here; then a chunk names the launch by its number instead of its grid id. `slab_chunks`: what a warp of
        instrumented PTX takes at once; it knows neither lists nor windows.
        """
        words = np.zeros(layout.CONTROL_FRESH // 8, "<u8")
        words.view("<u4")[layout.CONTROL_SLAB // 4] = slab_chunks
        more = 0
        if blocks is not None:
            more |= layout.CHOICE_LIST
            bits = np.zeros(max(blocks, default=0) // 32 + 1, "<u4")
            np.bitwise_or.at(bits, np.array(blocks, np.int64) // 32, np.uint32(1) << np.array(blocks, np.uint32) % 32)
            driver.call("cuStreamSynchronize", stream)  # a kernel may still read the list before
            self._list = driver.DeviceMemory(bits.nbytes)
            driver.copy_to_device(self._list.address, bits, stream)
            words[layout.CONTROL_LIST_ADDRESS // 8] = self._list.address
            words[layout.CONTROL_LIST_BLOCKS // 8] = bits.size * 32
        if window is not None:
            more |= layout.CHOICE_WINDOW
            words[layout.CONTROL_WINDOW_FIRST // 8] = window.first
            words[layout.CONTROL_WINDOW_LAUNCHES // 8] = window.launches
        chosen = layout.choice(**step)
        words[layout.CONTROL_CHOICE // 8 :][:2] = np.array([*chosen[:3], chosen[3] | more], "<u4").view("<u8")
        driver.copy_to_device(self.address, words, stream)

    def switch_off(self, stream: int) -> None:
        """Record nothing from now on, ordered in `stream`."""
        self.choose(stream, warp_mask=0)

    def compile_options(self, *, narrowed: bool, listed: bool = False, every: int = 1) -> tuple[str, ...]:
        """Options that compile a kernel for this arena alone: arena.cuh says what that saves.

        Without `narrowed` every warp is recorded, and no choice can be made later; without `listed` none by a list of
        blocks or a window of launches. With `every` above 1 every n-th block is, and no choice can be made later.
        """
        options: tuple[str, ...] = (
            f"-DWARPLENS_ARENA={self.address:#x}ull",
            f"-DWARPLENS_CHUNKS={self.chunks_address:#x}ull",
            f"-DWARPLENS_SHARED_CHUNKS={self.shared_chunks}u",
        )
        if self.newest:
            options = (*options, "-DWARPLENS_KEEP_NEWEST", f"-DWARPLENS_RING_CHUNKS={self.chunks}u")
        if not narrowed:
            return *options, "-DWARPLENS_ALL_RECORDED"
        if every > 1:
            return *options, f"-DWARPLENS_EVERY={every}u"
        return options if listed else (*options, "-DWARPLENS_STEPS_ONLY")

    def clear(self, stream: int) -> None:
        """Forget everything that was recorded, ordered in `stream`."""
        if self._host is not None:
            driver.call("cuStreamSynchronize", stream, doing="clearing the arena")
            self._host.words[:] = 0
        elif self.chunks:
            size = self.chunks * layout.CHUNK_BYTES
            driver.call("cuMemsetD8Async", self.chunks_address, 0, size, stream, doing="clearing the arena")
        self.clear_cursors(stream)

    def clear_drained(self, drained: Drained, stream: int) -> None:
        """As `clear`, right behind the `drain` that found `drained`: of the chunks those that were taken alone."""
        if drained.taken is None:
            self.clear(stream)
            return
        rows, others = drained.taken
        for first, chunks in ((0, rows), (self.shared_chunks, others)):
            if self._host is not None:
                self._host.words[first * layout.CHUNK_WORDS :][: chunks * layout.CHUNK_WORDS] = 0
            elif chunks:
                address, size = self.chunks_address + first * layout.CHUNK_BYTES, chunks * layout.CHUNK_BYTES
                driver.call("cuMemsetD8Async", address, 0, size, stream, doing="clearing the arena")
        if self._host is not None:
            self._host.words[self.chunks * layout.CHUNK_WORDS :] = 0  # where warps last were
        self.clear_cursors(stream)

    def clear_cursors(self, stream: int) -> None:
        """Start again at the first chunk, ordered in `stream`; what was written stays until it is written over."""
        if self.states_bytes:
            states = self.address + layout.CONTROL_STATES
            driver.call("cuMemsetD8Async", states, 0, self.states_bytes, stream, doing="clearing the arena")
        size = layout.CONTROL_BYTES - layout.CONTROL_FRESH
        address = self.address + layout.CONTROL_FRESH
        driver.call("cuMemcpyDtoDAsync", address, self._fresh.address, size, stream, doing="clearing the arena")

    def drain(self, stream: int) -> Drained:
        """Copy out what was written, after all that is in `stream`."""
        return self._drain(lambda address, shape, dtype: driver.copy_from_device(address, shape, dtype, stream))

    def peek(self, pinned: Pinned) -> Drained:
        """What was written until now, while a kernel may hang. Raises DeviceError where the GPU does not give it out.

        Mapped chunks are read without a call to the driver, and losses are not known.
        """
        if self.mapped:
            return Drained(self.look()[0], 0, 0)
        pinned.begin()
        return self._drain(pinned.copy)

    def _drain(self, copy: Copy) -> Drained:
        control = copy(self.address, (layout.CONTROL_BYTES,), np.uint8)
        if self.newest:
            return self._drain_ring(control, copy)
        lost_events, lost_chunks = (
            int(control[at : at + 8].view("<u8")[0]) for at in (layout.CONTROL_LOST_EVENTS, layout.CONTROL_LOST_CHUNKS)
        )
        at = layout.CONTROL_POOL_CURSOR
        pool = int(control[at : at + 4].view("<u4")[0])
        rest = min(pool, self.chunks) - self.shared_chunks
        cursors = control[layout.CONTROL_CURSORS :].view("<u4")[:: layout.CURSOR_STRIDE // 4][: layout.CURSOR_COUNT]
        taken = np.minimum(cursors // layout.CURSOR_COUNT, self.shared_chunks // layout.CURSOR_COUNT)
        depth = int(taken.max(initial=0))
        shape = (depth, layout.CURSOR_COUNT, layout.CHUNK_WORDS)
        if self._host is not None:
            everything = self._host.words[: self.chunks * layout.CHUNK_WORDS].reshape(-1, layout.CHUNK_WORDS)
            shared_out = everything[: depth * layout.CURSOR_COUNT].reshape(shape)
            others = everything[self.shared_chunks : self.shared_chunks + rest]
        else:
            shared_out = copy(self.chunks_address, shape, "<u4")
            behind = self.chunks_address + self.shared_chunks * layout.CHUNK_BYTES
            others = copy(behind, (rest, layout.CHUNK_WORDS), "<u4")
        written = np.arange(depth)[:, None] < taken[None, :]
        full = pool >= self.chunks and bool((cursors >= self.shared_chunks).any())
        taken = depth * layout.CURSOR_COUNT, rest
        return Drained(np.concatenate([shared_out[written], others]), lost_events, lost_chunks, full, taken)

    def _drain_ring(self, control: NDArray[np.uint8], copy: Copy) -> Drained:
        size = layout.CURSOR_COUNT * layout.CURSOR_STRIDE
        beside = control[layout.CONTROL_CURSORS :][:size].view("<u8").reshape(layout.CURSOR_COUNT, -1)
        lost_events, lost_chunks = (
            int(beside[:, at // 8].sum()) for at in (layout.CURSOR_LOST_EVENTS, layout.CURSOR_LOST_CHUNKS)
        )
        states = copy(self.address + layout.CONTROL_STATES, (self.chunks,), "<u4")
        depth = int(np.flatnonzero(states)[-1]) + 1 if states.any() else 0
        if self._host is not None:
            chunks = self._host.words[: depth * layout.CHUNK_WORDS].reshape(-1, layout.CHUNK_WORDS)
        else:
            chunks = copy(self.chunks_address, (depth, layout.CHUNK_WORDS), "<u4")
        return Drained(ring_chunks(chunks, states[:depth]), lost_events, lost_chunks)

    def look(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """What mapped chunks hold at this moment, (n, 32), and where warps last were, (warps, 4): layout.py says how.

        Makes no call to the driver: it works while a kernel hangs, and after the GPU has stopped.
        """
        if self._host is None:
            raise UsageError("only an arena in mapped host memory (policy live) can be looked at while a kernel runs")
        split = self.chunks * layout.CHUNK_WORDS
        chunks = self._host.words[:split].reshape(-1, layout.CHUNK_WORDS)
        last = self._host.words[split:].reshape(-1, layout.LAST_BYTES // 4).copy()
        found = whole_chunks(chunks) if self.newest else chunks[chunks[:, layout.WORD_META] != 0].copy()
        return found, last[last[:, 0] != 0]
