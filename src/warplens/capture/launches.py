"""Launches of `warplens.Kernel` in a program of the user's, of which some are recorded.

In: each launch as the program makes it, a `Request`. Out: chunks and entries, one launch after the other, to a `Keep`.
Adds no launch and, where recording fails, makes the launch without it. A thread reads what a launch wrote; the
program waits for that only where the memory is wanted for the next one. Another stream may be captured at any time:
what is asked of the driver meanwhile must not end that.
"""

from __future__ import annotations

import datetime
import os
import queue
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warplens import __version__, layout
from warplens.capture import driver, machine
from warplens.capture.arena import Arena
from warplens.capture.arguments import Arguments
from warplens.capture.audited import not_audited
from warplens.capture.builds import Build
from warplens.capture.calibrate import Calibrator
from warplens.capture.cuda import CudaKernel
from warplens.capture.forked import process
from warplens.capture.halt import Saver
from warplens.capture.keep import Keep
from warplens.capture.library import Dim3
from warplens.capture.nvtx import range_question
from warplens.capture.options import RecordOptions, stream_handle
from warplens.capture.pinned import Pinned
from warplens.capture.replay import Saved
from warplens.capture.request import SWITCH, Asked, Request, rank_of
from warplens.capture.timed import Pending, Spare, elapsed, free, launch_timed, wait_for
from warplens.capture.unfinished import launch_entry, save_unfinished
from warplens.errors import DeviceError, WarplensError

_HEAD_START: Final = 8
"""Memsets a round that keep the GPU busy while launches of a replay are handed over."""


_BESIDE: Final = "launches of warplens.Kernel while another thread made one that is recorded"


@dataclass
class _Room:
    """The memory for records of one GPU, which all kernels and shapes share: a program may have hundreds.

    `busy` is held while a launch is made with it; `last`: whose launch wrote there and has not been read; `read` is set
    where there is none, or it could not be: `error`. `cleared`: it is as it was before the first
    launch. `under_way`: the launch that is being waited for; `pinned`: how to look at what it writes meanwhile.
    """

    arena: Arena
    cleared: bool = False
    busy: threading.Lock = field(default_factory=threading.Lock)
    last: _Group | None = None
    read: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    under_way: tuple[_Group, Pending] | None = None
    pinned: Pinned | None = None

    def __post_init__(self) -> None:
        self.read.set()


@dataclass
class _Group:
    """Launches of one kernel and shape: the builds, and the memory that its traced build writes to.

    `context`: where the builds are loaded, so that it is current at each launch; `spare`: its events.
    """

    kernel: CudaKernel
    shape: tuple[Dim3, Dim3]
    options: RecordOptions
    room: _Room
    traced: Build
    clean: Build | None
    entry: dict[str, Any]
    index: int
    context: Any = None
    spare: Spare = field(default_factory=list)
    turn: int = 0
    timed_traced: int = 0
    replayed: bool = False
    pending: Pending | None = None
    timed: list[Pending] = field(default_factory=list)


class LaunchRecorder:
    """The recorder of one process, or of one `with warplens.record(...)`."""

    def __init__(self, asked: Asked, keep: Keep) -> None:
        self.asked, self.request, self.keep = asked, asked.request, keep
        self.pid = process()
        self.on = not asked.request.paused
        self._looked_s, self._switched_on = -1.0, False
        self._flushes: dict[int, driver.DeviceMemory] = {}
        self._sources: dict[str, str] = {}
        self.other_grids: set[str] = set()
        self.other_ranges: set[str] = set()
        self._in_range = None if asked.request.nvtx_include is None else range_question()
        self.left_out: dict[str, int] = {}
        self.ran: dict[str, list[int]] = {}
        self._pattern = re.compile(asked.request.kernels or "")
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._refused: dict[tuple[Any, ...], tuple[CudaKernel, str]] = {}  # it stays, so that no other has its id
        self._rooms: dict[int, _Room] = {}
        self._calibrators: dict[int, Calibrator] = {}
        self._calibration: list[dict[str, Any]] = []
        self._site_sets: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, Any] | None = None
        self._step_ns: int | None = None
        self._copying: dict[int, int] = {}  # of each GPU, the stream in which records are read and forgotten
        self._to_read: queue.SimpleQueue[tuple[_Room, Any] | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._matched = self._kept = 0
        self._fits: dict[str, bool] = {}
        self._spare: dict[int, Spare] = {}  # by context
        self._rank = rank_of(dict(os.environ)) or 0
        self._making = threading.Lock()
        self._clocks: dict[int, tuple[int, float]] = {}  # of each GPU: globaltimer, and the host's clock then
        self._saver: Saver | None = None
        if asked.folder:  # below the command, which may ask
            self._saver = Saver(asked.folder, f"{self.pid}-kernel", self.save_unfinished)

    def launch(self, kernel: CudaKernel, shape: tuple[Dim3, Dim3], options: RecordOptions, given: Arguments) -> None:
        """Make one launch of the program, recorded or not."""
        name = kernel.name
        seen = self.ran.get(name)
        if seen is None:
            self._fits[name] = self._pattern.search(name) is not None
            seen = self.ran.setdefault(name, [0, 0])
        seen[0] += 1
        group = self._wanted(kernel, shape, options) if self._fits[name] else None
        if group is not None and not group.room.busy.acquire(blocking=False):  # to wait might be for ever
            self._leave_out(_BESIDE)
            group = None
        if group is None:
            return kernel.plain_build().launch(shape, options, given)
        try:
            seen[1] += self._launch_of(group, options, given)
        finally:
            group.room.busy.release()
        return None

    def _launch_of(self, group: _Group, options: RecordOptions, given: Arguments) -> bool:
        """Make a launch of a group, timed or recorded; whether it is recorded."""
        rounds, by_replay, stream = self.request.rounds, self.request.replay, stream_handle(options.stream)
        group.turn += 1
        alternates = group.clean is not None and len(group.timed) < rounds and not by_replay
        if alternates and group.turn % 2 == 0:
            assert group.clean is not None
            group.timed.append(self._made(group, group.clean, options, given, stream, by_time=True))
            return False
        room = group.room
        if not self._make_room(room, stream):
            group.kernel.plain_build().launch(group.shape, options, given)
            return False
        if by_replay and not group.replayed:
            with driver.relaxed():
                self._replay(group, options, given)
        by_time = group.timed_traced < rounds and not by_replay
        room.cleared = False
        group.pending = self._made(group, group.traced, options, given, stream, by_time=by_time)
        group.timed_traced += by_time
        room.last, room.under_way = group, (group, group.pending)
        self._kept += 1
        self._have_read(room, group.context)
        return True

    def _made(
        self, group: _Group, build: Build, options: RecordOptions, given: Arguments, stream: int, *, by_time: bool
    ) -> Pending:
        """Make a launch. Most ask nothing of the driver that ends another stream's capture, and have it told nothing:
        a launch, and an event behind it, go into their own stream."""
        if group.spare and not by_time and not self.request.cold_l2:
            return launch_timed(build, group.shape, options, given, group.spare, by_time=False)
        with driver.relaxed():
            self._flush_l2(group.kernel._device, stream)
            return launch_timed(build, group.shape, options, given, group.spare, by_time=by_time)

    def _have_read(self, room: _Room, context: Any) -> None:
        """By a thread, as soon as the launch has ended: to copy and to write takes longer than the launch may.

        Comes last: it wakes the thread, which would get Python's lock at the next call of the driver.
        """
        if self._reader is None:
            if self._saver is not None:
                self._saver.start()
            self._reader = threading.Thread(target=self._read, name="warplens", daemon=True)
            self._reader.start()
        room.read.clear()
        self._to_read.put((room, context))

    def _read(self) -> None:
        """The thread, until it gets None."""
        while (asked := self._to_read.get()) is not None:
            room, context = asked
            try:
                driver.call("cuCtxSetCurrent", context)
                with driver.relaxed():
                    self._drain(room)
            except Exception as error:  # the program's threads go on
                room.error = error
            finally:
                room.under_way = None
                room.read.set()

    def _wanted(self, kernel: CudaKernel, shape: tuple[Dim3, Dim3], options: RecordOptions) -> _Group | None:
        """What is to record or time this launch; None for one that is to run without."""
        if self.asked.switched:
            self._watch_switch()
        if not self.on or process() != self.pid:
            return None
        if self.request.grids is not None and shape[0] not in self.request.grids:
            self.other_grids.add(kernel.name)
            return None
        if self._in_range is not None and not self._in_range():
            self.other_ranges.add(kernel.name)
            return None
        self._matched += 1
        if self._matched <= self.request.launch_skip or self._kept >= self.request.launch_count:
            return None
        stream = stream_handle(options.stream)
        if int(driver.call("cuStreamIsCapturing", stream or None)) != 0:
            self._leave_out("launches of warplens.Kernel that were captured in a graph")
            return None
        key = id(kernel), shape, options.shared_bytes, options.cluster, options.cooperative
        if key in self._refused:
            self._leave_out(self._refused[key][1])
            return None
        if key not in self._groups:
            if not self._making.acquire(blocking=False):
                self._leave_out(_BESIDE)
                return None
            try:
                with driver.relaxed():
                    self._groups[key] = self._group(kernel, shape, options, stream)
            except WarplensError as error:
                why = f"launches of {kernel.name}, which cannot be recorded: {error}"
                self._refused[key] = kernel, why
                self._leave_out(why)
                return None
            finally:
                self._making.release()
        return self._groups[key]

    def _leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def _group(self, kernel: CudaKernel, shape: tuple[Dim3, Dim3], options: RecordOptions, stream: int) -> _Group:
        for own in kernel.site_sets:
            known = self._site_sets.setdefault(own["name"], own)
            if known != own:
                raise DeviceError(f"another set of sites is called {own['name']} too")
        request = self.request
        chosen = {name: getattr(request, name) for name in ("every_block", "blocks", "warps", "policy", "keep")}
        wanted = RecordOptions(**{**vars(options), **chosen, "capacity_bytes": request.capacity_bytes})
        room = self._room(kernel._device, wanted, stream)
        traced, entry = kernel.traced_build(*shape, wanted, room.arena)
        clean = kernel.plain_build() if kernel.clean else None
        for build in filter(None, (traced, clean)):
            build.function.allow_shared_bytes(options.shared_bytes)
        symbol = traced.library.symbol(layout.DESCRIPTOR_SYMBOL)
        driver.copy_to_device(int(symbol or 0), room.arena.descriptor().reshape(1), stream)
        entry |= {"audit": not_audited("recorded in a program"), "site_set": kernel.site_sets[0]["name"]}
        entry |= {"clean_ns": [], "traced_ns": []}
        if request.source:
            self._sources[kernel.filename] = kernel.source
        self._calibrate(kernel, stream)
        context = driver.call("cuCtxGetCurrent")
        spare = self._spare.setdefault(int(context), [])
        return _Group(kernel, shape, wanted, room, traced, clean, entry, len(self.entries()), context, spare)

    def _room(self, device: int, wanted: RecordOptions, stream: int) -> _Room:
        """That of a GPU, which records what `wanted` says."""
        if device not in self._rooms:
            sm_count = driver.attribute(device, "MULTIPROCESSOR_COUNT")
            mapped, newest = wanted.policy == "live", wanted.keep == "newest"
            arena = Arena(wanted.capacity_bytes, mapped=mapped, newest=newest, sm_count=sm_count)
            arena.choose(stream, blocks=wanted.blocks, every_block=wanted.every_block, warp_mask=wanted.warp_mask)
            self._rooms[device] = _Room(arena, pinned=None if mapped or self._saver is None else Pinned())
        return self._rooms[device]

    def _calibrate(self, kernel: CudaKernel, stream: int) -> None:
        device = kernel._device
        if device in self._calibrators:
            return
        self._facts = self._facts or machine.device_facts(device)
        self._calibrators[device] = calibrator = Calibrator(device, kernel.arch)
        pairs = calibrator.read(calibrator.begin(stream), "before", stream)
        self._clocks[device] = max(pairs["globaltimer_ns"], default=0), time.monotonic()
        self._calibration.append({**pairs, "device": device})
        self._step_ns = calibrator.step_ns(stream)
        nonblocking = driver.bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
        self._copying[device] = int(driver.call("cuStreamCreate", nonblocking))

    def _make_room(self, room: _Room, stream: int) -> bool:
        """Wait until what the launch before left in the memory has been read and forgotten."""
        try:
            self._settled(room)
            if not room.cleared:
                with driver.relaxed():
                    room.arena.clear(stream)
        except DeviceError as error:
            self._leave_out(f"launches whose memory for records could not be made ready: {error}")
            return False
        return True

    def _watch_switch(self) -> None:
        """Obey the file that `warplens record` makes and removes; looked for ten times a second at most."""
        now_s = time.monotonic()
        if now_s < self._looked_s + 0.1:
            return
        self._looked_s = now_s
        asked = os.path.exists(os.path.join(self.asked.folder, SWITCH))  # noqa: PTH110, PTH118  (at every launch)
        if asked != self._switched_on:
            self.on = self._switched_on = asked

    def _flush_l2(self, device: int, stream: int, *, always: bool = False) -> None:
        if not (self.request.cold_l2 or always):
            return
        if device not in self._flushes:
            self._flushes[device] = driver.DeviceMemory(2 * driver.attribute(device, "L2_CACHE_SIZE"))
        memory = self._flushes[device]
        driver.call("cuMemsetD8Async", memory.address, 0, memory.size_bytes, stream)

    def _replay(self, group: _Group, options: RecordOptions, given: Arguments) -> None:
        """Time `rounds` launches of each build that are added, with the memory as it was before each."""
        group.replayed = True
        if group.clean is None:
            return
        device, pairs, stream = group.kernel._device, [], stream_handle(options.stream)
        try:
            saved = Saved(given, device, stream)
            for _ in range(_HEAD_START * (1 + self.request.rounds)):
                self._flush_l2(device, stream, always=True)
            times = {id(group.clean): 0, id(group.traced): 0}
            for number in range(8 * self.request.rounds):
                build = group.traced if (number + number // 2) % 2 else group.clean
                if times[id(build)] >= self.request.rounds:
                    continue
                saved.restore()
                self._flush_l2(device, stream)
                if build is group.traced:
                    group.room.arena.clear_cursors(stream)
                pairs.append((build, launch_timed(build, group.shape, options, given, group.spare)))
                times[id(build)] += pairs[-1][1].timed
            saved.restore()
            driver.call("cuStreamSynchronize", stream)
        except WarplensError as error:
            self._leave_out(f"replays of {group.kernel.name}: {error}")
        for build, pending in pairs:
            group.entry["traced_ns" if build is group.traced else "clean_ns"] += elapsed(pending)
        group.room.arena.clear(stream)

    @staticmethod
    def _settled(room: _Room) -> None:
        """Returns when nothing is to be read any more. Raises what stopped the reading."""
        if not room.read.is_set():
            room.read.wait()
        error, room.error = room.error, None
        if error is not None:
            raise error if isinstance(error, DeviceError) else DeviceError(f"{type(error).__name__}: {error}")

    def _drain(self, room: _Room) -> None:
        group, room.last = room.last, None
        if group is None or group.pending is None:
            return
        pending, group.pending = group.pending, None
        wait_for(pending.stop)
        room.under_way = None  # it has ended, though it is not read yet
        copying = self._copying.get(group.kernel._device, 0)
        drained = room.arena.drain(copying)
        room.arena.clear_drained(drained, copying)
        driver.call("cuStreamSynchronize", copying, doing="clearing the arena")
        room.cleared = True
        group.entry["traced_ns"] += elapsed(pending)
        launch = launch_entry(group, pending, drained, rank=self._rank, cold_l2=self.request.cold_l2)
        self.keep.add(self.manifest, launch, group.entry, drained)

    def is_read(self) -> bool:
        """Whether all that was recorded has been read."""
        return all(room.read.is_set() for room in self._rooms.values())

    def save_unfinished(self, why: str) -> tuple[bool, str]:
        """See `unfinished.save_unfinished`: in a thread of its own, or at the end."""
        return save_unfinished(self, why)

    def finish(self, wait_s: float | None = None) -> dict[str, Any]:
        """Read what is outstanding; the manifest, without launches, which `keep` got. Its `sources`: texts by path.

        `wait_s`: for launches that have not ended; where one has not by then nothing is asked of the GPU any more.
        """
        if self._saver is not None:
            self._saver.close()
        if all(room.read.wait(wait_s) for room in self._rooms.values()):
            self._finish()
        else:
            self._leave_out("launch that had not ended when the program had")
        for group in self._groups.values():
            self._settle(group)
        return {**self.manifest(), "complete": True, "kernels": self.entries(), "sources": self._sources}

    def _finish(self) -> None:
        for room in self._rooms.values():
            try:
                self._settled(room)
                room.arena.switch_off(0)
            except DeviceError as error:
                self._leave_out(f"launch, the last one: {error}")
        if self._reader is not None:
            self._to_read.put(None)
            self._reader.join()
            self._reader = None
        for group in self._groups.values():
            try:
                for pending in group.timed:
                    driver.call("cuEventSynchronize", pending.stop)
                    group.entry["clean_ns"] += elapsed(pending)
            except DeviceError as error:
                self._leave_out(f"times of launches of {group.kernel.name}: {error}")
        for spare in self._spare.values():
            free(spare)
        try:
            for device, calibrator in self._calibrators.items():
                self._calibration.append({**calibrator.read(calibrator.begin(0), "after", 0), "device": device})
        except DeviceError as error:
            self._leave_out(f"calibration at the end: {error}")

    def _settle(self, group: _Group) -> None:
        entry = group.entry
        if entry["clean_ns"] and entry["traced_ns"]:
            return
        entry["not_measured"] = "no clean kernel was named"
        if group.clean is not None:
            entry["not_measured"] = "the program launched it too seldom, or with an idle GPU, which times the host"
        entry |= {name: entry[name] or None for name in ("clean_ns", "traced_ns")}

    def entries(self) -> list[dict[str, Any]]:
        """The manifest's `kernels`, in the order of their indices."""
        return [group.entry for group in self._groups.values()]

    def manifest(self) -> dict[str, Any]:
        """All facts but launches and kernels."""
        return {
            "format": "wlens",
            "version": list(layout.FORMAT_VERSION),
            "warplens": __version__,
            "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "complete": False,
            "note": self.request.note,
            "host": self.asked.host,
            "command": self.asked.command,
            "policy": self.request.policy,
            "keep": self.request.keep,
            "capacity_bytes": self.request.capacity_bytes,
            "device": self._facts,
            "clock_state": None,
            "globaltimer_step_ns": self._step_ns,
            "calibration": list(self._calibration),
            "site_sets": list(self._site_sets.values()),
            "kernels": [],
            "launches": [],
            "process": {"pid": self.pid, "rank": self._rank, "program": program()},
        }

    def note(self) -> dict[str, Any]:
        """What ran, for the list that is shown where nothing was recorded."""
        kernels = [
            {
                "name": name,
                "launches": seen,
                "recorded": kept,
                "matches": bool(self._pattern.search(name)),
                "other_grid": name in self.other_grids,
                "other_range": name in self.other_ranges,
            }
            for name, (seen, kept) in self.ran.items()
        ]
        left_out = [f"{count:,} {why}" for why, count in self.left_out.items()]
        return {"process": self.manifest()["process"], "kernels": kernels, "left_out": left_out}


def program() -> str:
    """The name of what this process runs."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


def asked_in_process(request: Request) -> Asked:
    """For a recording that the program itself asks for."""
    return Asked(request, "")
