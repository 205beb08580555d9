"""Memory for the records of the kernels that Python packages launch, and which launch each record is of.

In: kernels as they are loaded, launches as they are made. Out: chunks by launch. One arena holds the records of all
launches; grid ids tell them apart, and the clock tells replays of a CUDA graph apart, which share one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import clock, layout
from warplens.capture import driver, machine
from warplens.capture.arena import Arena
from warplens.capture.calibrate import Calibrator
from warplens.capture.pinned import Pinned
from warplens.errors import DeviceError

U32 = npt.NDArray[np.uint32]
_SAME_QUESTION_S: Final = 1.0
"""An answer to an earlier question that nobody has taken counts so long: more may have been launched since."""
_AT_ONCE: Final = 1 << 16
"""Chunks that are cleared in one go, so that it takes little memory."""
_META_WARP: Final = (1 << layout.META_WARP_BITS) - 1


class Memory:
    """The arena on one GPU, its switch, and the GPU's clocks.

    The switch is thrown by copies on the device, in the stream of a launch: nothing is waited for.
    """

    def __init__(
        self, capacity_bytes: int, stream: int, *, slab_chunks: int, every_block: int, warp_mask: int, on: bool
    ) -> None:
        self.device = driver.ensure_context()
        self._context = driver.call("cuCtxGetCurrent")
        self.facts = machine.device_facts(self.device)
        self.state_before = machine.clock_state(self.device)
        self.own_stream = int(driver.call("cuStreamCreate", driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.arena = Arena(capacity_bytes, pool=False)
        major, minor = (driver.attribute(self.device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self._calibrator = Calibrator(self.device, f"sm_{major}{minor}")
        self.step_ns = self._calibrator.step_ns(stream)
        self.calibration: list[dict[str, Any]] = []
        self._descriptors: list[int] = []
        self._words: dict[bool, driver.DeviceMemory] = {}
        for state in (not on, on):
            mask = warp_mask if state else 0
            self.arena.choose(stream, slab_chunks=slab_chunks, every_block=every_block, warp_mask=mask)
            self._words[state] = driver.DeviceMemory(layout.CONTROL_FRESH)
            driver.call(
                "cuMemcpyDtoDAsync", self._words[state].address, self.arena.address, layout.CONTROL_FRESH, stream
            )
        self.on = on
        self._pinned: Pinned | None = None
        self._idle: threading.Event | None = None  # set when all that was launched has ended
        self._asked_s = 0.0  # when that was asked last
        self.calibrate("before", stream)
        self.clock = max(self.calibration[0]["globaltimer_ns"], default=0), time.monotonic()
        """globaltimer, and the host's clock then."""

    def point(self, module: Any) -> None:
        """Leads a module's kernels to the memory. Also while a stream is captured, which does not see it."""
        address, _ = driver.call("cuModuleGetGlobal", module, layout.DESCRIPTOR_SYMBOL.encode())
        self._write(int(address), self.arena.descriptor().reshape(1))
        self._descriptors.append(int(address))

    def _write(self, address: int, value: npt.NDArray[Any]) -> None:
        with driver.relaxed():
            driver.copy_to_device(address, value, self.own_stream)

    def switch(self, on: bool, stream: int) -> None:
        """Have launches from here on, in the order of `stream`, recorded or not."""
        if on == self.on:
            return
        with driver.relaxed():
            driver.call("cuMemcpyDtoDAsync", self.arena.address, self._words[on].address, layout.CONTROL_FRESH, stream)
        self.on = on

    def calibrate(self, when: str, stream: int) -> None:
        """Pairs of both clocks, now."""
        self.calibration.append(self._calibrator.read(self._calibrator.begin(stream), when, stream))

    def enter(self) -> None:
        """Makes the GPU that of the calling thread."""
        driver.call("cuCtxSetCurrent", self._context)

    def prepare(self) -> None:
        """Make what `peek` needs, while no kernel hangs."""
        self._pinned = Pinned()

    def peek(self) -> tuple[U32, int, int, bool]:
        """As `drain`, of what was written until now, and the GPU goes on; and whether warps may have found no space.
        Raises DeviceError where it gives nothing out."""
        if self._pinned is None:
            raise DeviceError("nothing was made ready to look at the GPU's memory")
        drained = self.arena.peek(self._pinned)
        written = drained.chunks[drained.chunks[:, layout.WORD_META] != 0]
        return written, drained.lost_events, drained.lost_chunks, drained.full

    def is_idle(self, wait_s: float) -> bool:
        """Whether all that was launched has ended, or does within so many seconds."""
        done = self._idle
        is_old = time.monotonic() > self._asked_s + _SAME_QUESTION_S
        if done is None or (is_old and done.is_set()):
            done = self._idle = threading.Event()
            threading.Thread(target=self._wait, args=[done], name="warplens-idle", daemon=True).start()
        ended = done.wait(wait_s)
        self._asked_s = time.monotonic()
        if ended:
            self._idle = None  # who asks again means what was launched since then, too
        return ended

    def _wait(self, done: threading.Event) -> None:
        with contextlib.suppress(DeviceError):  # the program meets it itself
            self.enter()
            driver.call("cuCtxSynchronize")
        done.set()

    def drain(self, stream: int) -> tuple[U32, int, int]:
        """Chunks that were written, and the losses, after all that is in `stream`; then nothing more is written."""
        self.calibrate("after", stream)
        drained = self.arena.drain(stream)
        self.arena.switch_off(stream)
        nothing = np.zeros(1, layout.DESCRIPTOR)
        for address in self._descriptors:  # the program may launch its marked kernels again
            self._write(address, nothing)
        written = drained.chunks[drained.chunks[:, layout.WORD_META] != 0]
        clear_rests(written)
        return written, drained.lost_events, drained.lost_chunks


def clear_rests(chunks: U32) -> None:
    """Sets the slots that no record is in to 0, in place: a warp's slot in shared memory goes out with what was in it
    before, which a file would have to keep (of a matmul's waits 291 MB in place of 279, at a site a step none:
    benchmarks/results/triton_record_rests.json, triton_record_cleared.json).

    chunks: of warps that have ended, uint32 (n, 32). Those that do not say how many records they have stay as they are.
    """
    for begin in range(0, len(chunks), _AT_ONCE):
        _clear_rests(chunks[begin : begin + _AT_ONCE])


def _clear_rests(chunks: U32) -> None:
    meta = chunks[:, layout.WORD_META]
    flags = meta >> layout.META_FLAGS_SHIFT & ((1 << layout.META_FLAGS_BITS) - 1)
    count = meta >> layout.META_COUNT_SHIFT & ((1 << layout.META_COUNT_BITS) - 1)
    room = np.where(flags & layout.ChunkFlag.BLOCK_RECORD, layout.BLOCK_RECORD_SLOTS, layout.RECORD_SLOTS)
    is_told = (meta >> layout.META_MARKER_SHIFT == layout.META_MARKER) & (flags & layout.ChunkFlag.STREAM == 0)
    at = np.flatnonzero(is_told & (count < room))
    slot = np.arange(layout.RECORD_SLOTS)
    rows = chunks[at]
    rows[:, layout.HEADER_WORDS :][(slot >= count[at, None]) & (slot < room[at, None])] = 0
    chunks[at] = rows


def is_captured(stream: int) -> bool:
    """Whether launches in `stream` go into a CUDA graph. Asked at each launch: by the shortest way."""
    success, asks, nothing = _capturing()
    status, state = asks(stream)
    if status is not success and status != success:
        raise DeviceError(f"cuStreamIsCapturing failed: {status.name}")
    return bool(state != nothing)


@functools.cache
def _capturing() -> tuple[Any, Any, Any]:
    native = driver.bindings()
    nothing = native.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return native.CUresult.CUDA_SUCCESS, native.cuStreamIsCapturing, nothing


@dataclass(frozen=True)
class Made:
    """A launch that was made, or captured, while recording was on. `hash`: of the kernel's site set; `blocks`: of its
    grid."""

    hash: int
    captured: bool
    blocks: int = 1 << 32


@dataclass(frozen=True)
class Found:
    """What was written by a launch: its number among those that were `Made`, which replay, its grid id and chunks."""

    made: int
    replay: int
    grid_id: int
    chunks: U32


def divide(chunks: U32, made: list[Made], calibration: list[dict[str, Any]], step_ns: int | None) -> list[Found]:
    """Chunks by launch, in the order of their grids; those that no launch can be told for are left out.

    A grid in which a warp begins more than once is a captured launch's: each time is a replay.
    """
    if not len(chunks):
        return []
    grids = chunks[:, layout.WORD_GRID]
    order = np.argsort(grids, kind="stable")
    sorted_grids = grids[order]
    starts = np.flatnonzero(np.r_[True, sorted_grids[1:] != sorted_grids[:-1]])
    groups = [
        (int(sorted_grids[begin]), chunks[order[begin:end]])
        for begin, end in zip(starts, [*starts[1:], len(order)], strict=True)
    ]
    repeated = [is_replayed(rows) for _, rows in groups]
    hashes = [_hash_of(rows) for _, rows in groups]
    captured = any(own.captured for own in made)
    plain = [n for n in range(len(groups)) if not (captured and repeated[n])]
    again = [n for n in range(len(groups)) if captured and repeated[n]]
    ordinary = [n for n, own in enumerate(made) if not own.captured]
    rest = [n for n, own in enumerate(made) if own.captured]
    pairs = _match([hashes[n] for n in plain], [made[n].hash for n in ordinary])
    out = [Found(ordinary[launch], 0, *groups[plain[group]]) for group, launch in pairs]
    taken = {plain[group] for group, _ in pairs}
    left = [n for n in plain if n not in taken] if captured else []  # graphs that were replayed once
    last = sorted([*again, *left])
    for group, launch in _match([hashes[n] for n in last], [made[n].hash for n in rest]):
        grid_id, rows = groups[last[group]]
        out += [Found(rest[launch], k, grid_id, part) for k, part in enumerate(replays(rows, calibration, step_ns))]
    fits = [own for own in out if int(own.chunks[:, layout.WORD_BLOCK].max()) < made[own.made].blocks]
    return sorted(fits, key=lambda own: (own.made, own.replay))


def is_replayed(chunks: U32) -> bool:
    """Whether a warp's first chunk is there more than once among chunks of one grid."""
    first = chunks[chunks[:, layout.WORD_SEQUENCE] == 0]
    key = first[:, layout.WORD_BLOCK].astype(np.uint64) << np.uint64(32) | (
        first[:, layout.WORD_META] & np.uint32(_META_WARP)
    ).astype(np.uint64)
    return len(np.unique(key)) < len(key)


def replays(chunks: U32, calibration: list[dict[str, Any]], step_ns: int | None) -> list[U32]:
    """Chunks of one grid by replay: in the order of time each first chunk of a warp begins another."""
    if not is_replayed(chunks):
        return [chunks]
    sm = (chunks[:, layout.WORD_META] >> layout.META_SM_SHIFT & ((1 << layout.META_SM_BITS) - 1)).astype(np.int64)
    cycles = chunks[:, layout.WORD_BASE_LOW : layout.WORD_BASE_HIGH + 1].copy().view("<u8")[:, 0].view("<i8")
    lines = clock.fit([], [], [], step_ns=step_ns, calibration=calibration, wanted_sms=np.unique(sm))
    ns = lines.to_ns(sm, cycles)
    block = chunks[:, layout.WORD_BLOCK]
    warp = chunks[:, layout.WORD_META] & np.uint32(_META_WARP)
    order = np.lexsort((chunks[:, layout.WORD_SEQUENCE], ns, warp, block))
    begins = chunks[order, layout.WORD_SEQUENCE] == 0
    another = np.r_[True, (np.diff(block[order].astype(np.int64)) != 0) | (np.diff(warp[order].astype(np.int64)) != 0)]
    count = np.cumsum(begins)
    number = count - count[np.maximum.accumulate(np.where(another, np.arange(len(order)), 0))]
    return [chunks[order[number == k]] for k in range(int(number.max()) + 1)]


def _hash_of(chunks: U32) -> int | None:
    """The hash of the site set that a grid's blocks told; None where none ended."""
    flag = np.uint32(layout.ChunkFlag.BLOCK_RECORD << layout.META_FLAGS_SHIFT)
    ended = np.flatnonzero(chunks[:, layout.WORD_META] & flag)
    return int(chunks[ended[0], layout.BLOCK_RECORD_WORD + layout.BLOCK_SITES_HASH]) if len(ended) else None


def _match(grids: list[int | None], launches: list[int]) -> list[tuple[int, int]]:
    """Pairs (grid, launch): grids in ascending order go to launches in theirs, whose site set they wrote.

    Where a kernel has more grids than launches it is not known which are whose: then none of its grids is given away.
    """
    written, made = Counter(grids), Counter(launches)
    odd = {own for own, count in written.items() if own is not None and count > made[own]}
    out = []
    at = 0
    for number, own in enumerate(grids):
        if own in odd:
            continue
        nearest = at
        while nearest < len(launches) and (launches[nearest] in odd or own not in (None, launches[nearest])):
            nearest += 1
        if nearest == len(launches):
            break
        out.append((number, nearest))
        at = nearest + 1
    return out
