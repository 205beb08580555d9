"""Driving traced kernels from outside of `Kernel.record`: guarded arenas, builds, launches, exact counts.

In: an arena's memory and its control block. Out: which chunks were handed out, how many events stand in them, and
what lies where nothing may have been written. Counts by the constants of layout.py, not by `Arena.drain`.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np

from warplens import layout
from warplens.capture import driver
from warplens.capture.arena import Arena
from warplens.decode import streams
from warplens.layout import ChunkFlag

GUARD_BYTES = 4096
PATTERN = 0x5C5C5C5C  # no chunk's marker
STREAM_FLAG = int(ChunkFlag.STREAM) << layout.META_FLAGS_SHIFT


def row(line: str, passed: bool | None, **numbers: Any) -> dict[str, Any]:
    """A line of the result. `passed` None: measured, with no bound that it must keep."""
    return {"line": line, "passed": None if passed is None else bool(passed), **numbers}


def handed_out(control: Any, shared_chunks: int, chunks: int) -> Any:
    """Which chunks the cursors of a control block (bytes) have handed out: bool (chunks,)."""
    cursors = control[layout.CONTROL_CURSORS :].view("<u4")[:: layout.CURSOR_STRIDE // 4][: layout.CURSOR_COUNT]
    index = np.arange(chunks)
    shared = index < np.minimum(cursors[index % layout.CURSOR_COUNT], shared_chunks)
    pool_cursor = int(control[layout.CONTROL_POOL_CURSOR :][:4].view("<u4")[0])
    return np.where(index < shared_chunks, shared, index < pool_cursor)


def count_events(chunks: Any, code_bits: int) -> int:
    """Events in chunks, uint32 (n, 32), of any policy. What says that a warp has ended is none."""
    meta = chunks[:, layout.WORD_META]
    words = chunks[meta >> layout.META_MARKER_SHIFT == layout.META_MARKER].copy()
    alone = streams.is_detached(words[:, layout.WORD_META])
    detached = int(np.count_nonzero(words[alone, layout.HEADER_WORDS]))  # one event each, where it was written
    words = words[~alone]
    direct = np.flatnonzero(words[:, layout.WORD_META] & STREAM_FLAG)
    words[direct] = streams.close(words[direct], np.full(len(direct), code_bits))
    count = words[:, layout.WORD_META] >> layout.META_COUNT_SHIFT & ((1 << layout.META_COUNT_BITS) - 1)
    position, events = np.zeros(len(words), np.int64), detached
    for _ in range(layout.RECORD_SLOTS):
        there = position < count
        events += int(there.sum())
        record = words[np.arange(len(words)), layout.HEADER_WORDS + np.minimum(position, layout.RECORD_SLOTS - 1)]
        position += 1 + (record & layout.CODE_PAYLOAD) + (record & layout.CODE_ID) // layout.CODE_ID
    return events


def lost_events(control: Any) -> int:
    """What a control block (bytes) counts as lost."""
    return int(control[layout.CONTROL_LOST_EVENTS :][:8].view("<u8")[0])


def changeable() -> Any:
    """Which bytes of a control block a kernel may change: bool (CONTROL_BYTES,)."""
    may = np.zeros(layout.CONTROL_BYTES, np.bool_)
    for at, size in (
        (layout.CONTROL_BLOCKS_ENDED, 8),
        (layout.CONTROL_LOST_EVENTS, 8),
        (layout.CONTROL_LOST_CHUNKS, 8),
        (layout.CONTROL_POOL_CURSOR, 4),
        *((layout.CONTROL_CURSORS + i * layout.CURSOR_STRIDE, 4) for i in range(layout.CURSOR_COUNT)),
    ):
        may[at : at + size] = True
    return may


class Guarded(Arena):
    """An arena between 4 KiB of canary words, its chunks full of them too where a policy does not want zeros."""

    def __init__(self, capacity_bytes: int, *, mapped: bool, sm_count: int) -> None:
        super().__init__(capacity_bytes, mapped=mapped, sm_count=sm_count)
        chunk_bytes = self.chunks * layout.CHUNK_BYTES
        inner = layout.CONTROL_BYTES + (0 if mapped else chunk_bytes)
        self._memory = driver.DeviceMemory(GUARD_BYTES + layout.CONTROL_ALIGNMENT + inner + GUARD_BYTES)
        lowest = self._memory.address + GUARD_BYTES
        self.address = -(-lowest // layout.CONTROL_ALIGNMENT) * layout.CONTROL_ALIGNMENT
        self.chunks_address = self.address + layout.CONTROL_BYTES
        if mapped:
            last_bytes = sm_count * layout.LAST_WARPS * layout.LAST_BYTES
            self.host = driver.HostMemory(2 * GUARD_BYTES + chunk_bytes + last_bytes)
            self.chunks_address = self.host.address + GUARD_BYTES
            inside = slice(GUARD_BYTES // 4, (GUARD_BYTES + chunk_bytes + last_bytes) // 4)
            self._host = SimpleNamespace(words=self.host.words[inside], address=self.chunks_address)

    def prepare(self, *, zeroed: bool) -> None:
        """Write canary words everywhere; zeros into the chunks where `zeroed`. Records nothing until `choose`."""
        size = self._memory.size_bytes
        driver.call("cuMemsetD32", self._memory.address, PATTERN, size // 4)
        if self._host is not None:
            self.host.words[:] = PATTERN
        if zeroed:
            self.clear(0)
        self.clear_cursors(0)
        self.switch_off(0)
        self._zeroed = zeroed

    def remember(self) -> None:
        """Keep the control block as it is before the launch."""
        self._before = driver.copy_from_device(self.address, (layout.CONTROL_BYTES,), np.uint8)

    def look_around(self, code_bits: int) -> tuple[dict[str, int], list[str]]:
        """Counts of what was written since `remember`, and a line for each thing that stands where it must not."""
        size = self._memory.size_bytes // 4 * 4
        memory = driver.copy_from_device(self._memory.address, (size,), np.uint8)
        begin = self.address - self._memory.address
        control, behind = memory[begin:][: layout.CONTROL_BYTES], memory[begin + layout.CONTROL_BYTES :].view("<u4")
        edges = {"before the control block": memory[:begin].view("<u4")}
        if self._host is not None:
            words = self._host.words[: self.chunks * layout.CHUNK_WORDS]
            guard = GUARD_BYTES // 4
            edges |= {"before the chunks": self.host.words[:guard], "behind the table": self.host.words[-guard:]}
        else:
            words, behind = np.split(behind, [self.chunks * layout.CHUNK_WORDS])
        edges["behind the arena"] = behind
        chunks = words.reshape(-1, layout.CHUNK_WORDS)
        out = handed_out(control, self.shared_chunks, self.chunks)
        edges["in chunks that were not handed out"] = chunks[~out] ^ np.uint32(PATTERN if self._zeroed else 0)
        faults = [f"{int((w != PATTERN).sum())} words {where}" for where, w in edges.items() if (w != PATTERN).any()]
        changed = (control != self._before) & ~changeable()
        if changed.any():
            faults.append(f"{int(changed.sum())} bytes of the control block")
        counts = {
            "events": count_events(chunks[out], code_bits),
            "lost_events": lost_events(control),
            "chunks_handed_out": int(out.sum()),
            "canary_words": sum(w.size for w in edges.values()),
        }
        return counts, faults


def point(build: Any, arena: Arena) -> None:
    """Let a build find the arena."""
    symbol = build.library.symbol(layout.DESCRIPTOR_SYMBOL)
    driver.copy_to_device(int(symbol or 0), arena.descriptor().reshape(1))


def launch(build: Any, grid: Any, block: Any, values: Any, types: Any, stream: int = 0) -> None:
    """Launch a build; `values` are of ctypes' `types`."""
    driver.call("cuLaunchKernel", build.function.handle, *grid, *block, 0, stream, (tuple(values), tuple(types)), 0)


POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
