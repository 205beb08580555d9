"""Kernels that Python packages launch (Triton, CuPy, Numba), recorded as the program runs them, its source unchanged.

In: what to mark, and the doors of the packages (doors.py), which give kernels their marks as they are loaded and see
their launches. Out: `Recording` of the launches that were made meanwhile. Chooses launches, keeps their memory, and
reads it. Adds no launch, waits for none, and never lets the user's program fail: what cannot be recorded is told by one
line and runs clean (docs/adr/0013-triton.md). The packages are the user's own, and are not imported before they are
joined.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from warplens import __version__
from warplens.capture import driver
from warplens.capture.forked import process
from warplens.capture.python_manifest import Kernel, Launch, Loaded, make_recording, make_unfinished
from warplens.capture.python_memory import Memory, is_captured
from warplens.capture.recording import Recording
from warplens.capture.request import Asked
from warplens.capture.tell import one_line, tell
from warplens.errors import KernelWarning, UsageError
from warplens.instrument import Budget, Selection
from warplens.instrument.recorder import MOST_CHUNKS_A_SLAB

_OF_OTHERS: Final = {
    "policy": ("auto", "stream"),
    "keep": ("oldest",),
    "cold_l2": (False,),
    "replay": (False,),
    "nvtx_include": (None,),
}
"""Options of `warplens record` that such kernels do not have, and what asks for nothing special."""

_BUSY_S: Final = 0.3
"""A GPU that has not ended its work by then is taken to be at work."""


class Door(Protocol):
    """Where kernels of one package get their marks, and where their launches are seen.

    `package`: as its users name it; `warning`: what its lines are shown as.
    """

    package: str
    warning: type[KernelWarning]

    def start(self) -> None:
        """Kernels loaded from now on are marked. Where the package cannot be recorded: one line."""

    def put_back(self) -> None:
        """Leaves the package as it was."""

    def loaded(self, kernel: Any) -> Loaded | None:
        """What is needed of a kernel of its own that is launched for the first time; None for one without marks."""


@dataclass(frozen=True)
class PythonOptions:
    """What is recorded of the kernels that Python packages launch.

    - kernels: regular expression that a kernel's name must hold; None for all. selection: which marks.
    - capacity_bytes: device memory for records; what does not fit is counted as lost. slab_chunks: chunks (26 events
      each) that a warp takes at once, at first; more where it, or a warp of its number before, has written much.
    - every_block, warp_mask, blocks: record every n-th block, these warps, these blocks alone.
    - launch_skip, launch_count: which launches of such kernels; of a CUDA graph which replays; None is all. grids:
      launches with one of these grids alone. each_config: also what Triton's autotuner tries and does not choose.
    - paused: record nothing until `on` is set. switch: a file that is there while launches are to be recorded.
    - source: keep the texts that sites stand in. staged: records of loops may wait in shared memory, which costs less,
      but is lost where a kernel hangs. ignored: what was asked for and is not done for such kernels, which is told.
    """

    kernels: str | None = None
    selection: Selection = field(default_factory=Selection)
    capacity_bytes: int = 256 << 20
    slab_chunks: int = 8
    every_block: int = 1
    warp_mask: int = 0xFFFFFFFF
    blocks: tuple[int, ...] | None = None
    launch_skip: int = 0
    launch_count: int | None = None
    grids: tuple[tuple[int, ...], ...] | None = None
    each_config: bool = False
    paused: bool = False
    switch: str | None = None
    source: bool = True
    staged: bool = True
    ignored: tuple[str, ...] = ()
    note: str | None = None
    host: str | None = None
    command: list[str] | None = None

    def __post_init__(self) -> None:
        for name in ("capacity_bytes", "every_block"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r:.60}: a whole number of at least 1 was expected")
        for name in ("kernels", "note"):
            if not isinstance(getattr(self, name), str | None):
                raise UsageError(f"{name} is {getattr(self, name)!r:.60}: a text was expected, or None")
        try:
            re.compile(self.kernels or "")
        except re.error as error:
            raise UsageError(f"kernels: {self.kernels!r} is no regular expression: {error}") from error
        if not 1 <= self.slab_chunks <= MOST_CHUNKS_A_SLAB:
            raise UsageError(f"slab_chunks: expected 1 to {MOST_CHUNKS_A_SLAB}, found {self.slab_chunks}")
        if self.launch_skip < 0 or (self.launch_count is not None and self.launch_count < 1):
            raise UsageError("launch_skip is 0 or more, launch_count 1 or more or None")

    @classmethod
    def of(cls, asked: Asked) -> PythonOptions:
        """What `warplens record` or `warplens.record` asks for, as far as it concerns such kernels.

        `counts` is the file that `warplens record` has made of the first run's trace.
        """
        request = asked.request
        budget = None
        if request.budget is not None and request.counts is not None:
            budget = Budget.of(request.budget, json.loads(Path(request.counts).read_text(encoding="utf-8")))
        ignored = [name for name, usual in _OF_OTHERS.items() if getattr(request, name, usual[0]) not in usual]
        return cls(
            kernels=request.kernels,
            selection=Selection(request.auto, request.sites, budget=budget),
            capacity_bytes=request.capacity_bytes,
            every_block=request.every_block,
            warp_mask=request.warp_mask,
            blocks=request.blocks,
            launch_skip=request.launch_skip,
            launch_count=request.launch_count,
            grids=getattr(request, "grids", None),
            paused=request.paused,
            switch=os.path.join(asked.folder, "on") if getattr(asked, "switched", False) else None,  # noqa: PTH118
            source=getattr(request, "source", True),
            staged=request.policy not in ("stream", "live") and not getattr(asked, "at_once", False),
            ignored=tuple(ignored),
            note=request.note,
            host=asked.host,
            command=asked.command,
        )

    @property
    def key(self) -> str:
        """Names everything that shapes the machine code: kernels of different keys never share a cache."""
        facts = (__version__, self.kernels, self.selection, self.staged)
        return "warplens-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


COUNTED: Final = 100
"""Launches that are counted of a kernel of which none is recorded. Those behind them are not seen, and cost nothing."""

Made = tuple[Kernel, tuple[Any, ...], tuple[Any, ...] | None, int | None, int, bool, bool]
"""As Launch, which is dearer to make."""


@dataclass
class _Seen:
    """A kernel that was launched: how often, how often recorded, and what it records with; None for a clean one.

    `settled`: no more of its launches are counted.
    """

    name: str
    kernel: Kernel | None
    launches: int = 0
    recorded: int = 0
    settled: bool = False


class PythonCapture:
    """Records kernels that the program launches through the doors that were joined, until `stop`.

    One at a time in a process and package. `notes`: what was not recorded or not marked, a line each; `told`: those of
    them that the user was told at once. `quiet` keeps these from being shown as warnings. `seen`: is called behind the
    first launch of each kernel. `forked`: is called in a child of fork that uses a package, for this capture records
    none of it. `done`: gets the recording as soon as `launch_count` launches have ended, in a thread of its own.
    `outlives`: what was recorded can be had while a kernel hangs (`unfinished`).
    """

    def __init__(
        self,
        options: PythonOptions | None = None,
        *,
        quiet: bool = False,
        seen: Callable[[], None] = lambda: None,
        forked: Callable[[], None] | None = None,
        done: Callable[[Recording], None] | None = None,
        outlives: bool = False,
    ) -> None:
        self.options = own = options or PythonOptions()
        self._pattern = re.compile(own.kernels or "")
        self.notes: list[str] = []
        self.told: list[str] = []
        self.on = not own.paused and own.switch is None
        self._looked_s = 0.0
        self.pid = process()
        self._quiet, self._on_first, self._forked, self._done = quiet, seen, forked, done
        self._doors: list[Door] = []
        self._seen: dict[int, _Seen] = {}
        self._kept: list[Any] = []  # compiled kernels, so that no other gets the id of one that is gone
        self._kernels: list[Kernel] = []
        self._launches: list[Made] = []
        self._made_s: list[float] = []  # when each was made
        self._outlives = outlives
        self._graphs = False
        self._last = own.launch_skip + (own.launch_count or 1 << 62)
        self._matched = 0
        self._gpu: Memory | None = None
        self._first = threading.RLock()
        self._reader: threading.Thread | None = None
        self._over = False  # nothing more is recorded
        self._recording: Recording | None = None

    def join(self, door: Callable[[PythonCapture], Door]) -> None:
        """Has kernels of one package recorded from here on."""
        own = door(self)
        self._doors.append(own)
        own.start()

    def takes(self, name: str) -> bool:
        """Whether a kernel of this name is wanted."""
        return self._pattern.search(name) is not None

    @property
    def packages(self) -> str:
        """Those that were joined, in words."""
        return " and ".join(door.package for door in self._doors)

    @property
    def marks(self) -> bool:
        """Whether kernels that are loaded now are to have marks."""
        return not self._over and process() == self.pid

    def records(self, kernel: Any) -> bool:
        """Whether launches of a kernel that was launched before are to be of the one with marks."""
        own = self._seen.get(id(kernel))
        return own is not None and own.kernel is not None and self.marks

    @property
    def is_due(self) -> bool:
        """Whether there is something on the GPU that is to be read."""
        return self._gpu is not None

    @property
    def ran(self) -> dict[str, tuple[int, int]]:
        """Launches, and recorded ones, by a kernel's name. See `uncounted`."""
        out: dict[str, tuple[int, int]] = {}
        for own in self._seen.values():
            launches, recorded = out.get(own.name, (0, 0))
            out[own.name] = launches + own.launches, recorded + own.recorded
        return out

    @property
    def uncounted(self) -> set[str]:
        """Names of kernels that were perhaps launched more often than `ran` says."""
        return {own.name for own in self._seen.values() if own.settled}

    def left_to_parent(self) -> bool:
        """In a child of fork, once: whether another capture may have taken this one's place."""
        if self._forked is None or process() == self.pid:
            return False
        forked, self._forked = self._forked, None
        forked()
        return True

    def put_back(self) -> None:
        """Leaves the packages as they were."""
        for door in self._doors:
            door.put_back()

    def stop(self) -> None:
        """Waits for the launches that were made, reads what they wrote, and leaves the packages as they were."""
        self.put_back()
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if self._gpu is not None and not self._over and process() == self.pid:
            try:
                self._gpu.enter()  # the launches may have been another thread's
                driver.call("cuCtxSynchronize", doing="waiting for recorded launches")
                self._read(self._gpu, 0)
            except Exception as error:  # the GPU stopped, and the program knows
                self.tell(f"what was recorded could not be read: {one_line(error)}")
        self._over = True

    def recording(self) -> Recording | None:
        """What was recorded; None before `stop`, and when no kernel with marks was launched."""
        return self._recording

    def tell(self, line: str, warning: type[KernelWarning] = KernelWarning) -> None:
        """One line of what is not recorded, once: in `told`, else as `remark`."""
        if line not in self.notes:
            self.told.append(line)
            self.remark(line, warning)

    def remark(self, line: str, warning: type[KernelWarning] = KernelWarning) -> None:
        """One line for the user, once: as a warning, and in `notes`."""
        if line in self.notes:
            return
        self.notes.append(line)
        if self._quiet:
            return
        try:
            warnings.warn(f"warplens: {line}", warning, stacklevel=3)
        except KernelWarning:  # warnings are errors in the program, and this one would be
            tell(line)

    def about_to_launch(
        self,
        door: Door,
        kernel: Any,
        grid: tuple[Any, ...],
        stream: int,
        block: tuple[Any, ...] | None = None,
        shared_bytes: int | None = None,
        *,
        wanted: bool = True,
    ) -> bool:
        """A launch of `kernel`, which has a `name` and lives as long as its machine code, is about to be made.

        grid, block: one to three numbers; block and shared_bytes: None where each launch has what the kernel says.
        wanted: False for one that is not to be recorded, whatever the options say.
        Returns whether no more launches of this kernel need be told: none will be recorded, and enough were counted.
        """
        if process() != self.pid:
            return False
        own = self._seen.get(id(kernel))
        if own is None:
            with self._first:  # of several threads at once: one memory for all, an index for each kernel
                own = self._seen.get(id(kernel)) or self._first_launch(door, kernel, block, shared_bytes, stream)
        own.launches += 1
        if own.kernel is None or self._over:
            own.settled = own.launches >= COUNTED
            return own.settled
        try:
            self._choose(own, own.kernel, grid, stream, wanted, block, shared_bytes)
        except Exception as error:  # recording must not harm the program
            self.tell(f"a launch of {own.name} is not recorded: {one_line(error)}", door.warning)
        return False

    def _choose(
        self,
        own: _Seen,
        kernel: Kernel,
        grid: tuple[Any, ...],
        stream: int,
        wanted: bool,
        block: tuple[Any, ...] | None,
        shared_bytes: int | None,
    ) -> None:
        """Has one launch recorded, or not."""
        memory = self._gpu
        assert memory is not None
        if self.options.switch is not None:
            self._look(self.options.switch)
        wanted = wanted and self.on
        if wanted and self.options.grids is not None:
            wanted = (*grid, 1, 1)[:3] in self.options.grids
        if is_captured(stream):
            memory.switch(self.on, memory.own_stream)
            if wanted:
                self._graphs = True
                self._launches.append((kernel, grid, block, shared_bytes, stream, True, True))
                self._made_s.append(time.monotonic())
            return
        self._matched += wanted
        wanted = wanted and self.options.launch_skip < self._matched <= self._last
        on = wanted or (self._graphs and self.on)  # of graphs it is not seen when they are replayed
        if on is not memory.on:
            memory.switch(on, stream)
        if on:
            self._launches.append((kernel, grid, block, shared_bytes, stream, False, wanted))
            self._made_s.append(time.monotonic())
            own.recorded += wanted
        if self._matched > self._last:
            self._read_early(stream)

    def _look(self, switch: str) -> None:
        """Ten times a second at most."""
        now_s = time.monotonic()
        if now_s >= self._looked_s + 0.1:
            self._looked_s, self.on = now_s, os.path.exists(switch)  # noqa: PTH110

    def _read_early(self, stream: int) -> None:
        """All launches that were asked for are made: their records are read in a thread, when they have ended."""
        if self._done is None or self._reader is not None or self._graphs:
            return
        events = []
        for used in {stream, *(made[4] for made in self._launches)}:
            events.append(driver.call("cuEventCreate", 0))
            driver.call("cuEventRecord", events[-1], used)
        memory, done = self._gpu, self._done
        assert memory is not None
        self._over = True

        def read() -> None:
            try:
                memory.enter()
                for event in events:
                    driver.call("cuEventSynchronize", event)
                self._read(memory, memory.own_stream)
                if self._recording is not None:
                    done(self._recording)
            except Exception as error:
                self.tell(f"what was recorded could not be read: {one_line(error)}")

        self._reader = threading.Thread(target=read, name="warplens", daemon=True)
        self._reader.start()

    def _first_launch(
        self, door: Door, kernel: Any, block: tuple[Any, ...] | None, shared_bytes: int | None, stream: int
    ) -> _Seen:
        """Points a kernel with marks at the memory for records."""
        name = str(getattr(kernel, "name", "a kernel"))
        own = _Seen(name, None)
        try:
            loaded = None if self._over else door.loaded(kernel)
            if loaded is not None:
                own.kernel = self._point(door, loaded.launched_with(block, shared_bytes), stream)
        except Exception as error:  # recording must not harm the program
            self.tell(f"{name} is not recorded: {one_line(error)}", door.warning)
        self._seen[id(kernel)] = own
        self._kept.append(kernel)
        self._on_first()
        return own

    def _point(self, door: Door, loaded: Loaded, stream: int) -> Kernel:
        for name in self.options.ignored:
            line = f"{name} is not obeyed for {door.package}'s kernels: they are recorded without"
            self.remark(line, door.warning)
        if self._gpu is None:
            if is_captured(stream):
                raise UsageError("the first launch of all is being captured in a CUDA graph: launch one before")
            own = self.options
            self._gpu = Memory(
                own.capacity_bytes,
                stream,
                slab_chunks=own.slab_chunks,
                every_block=own.every_block,
                warp_mask=own.warp_mask,
                on=self.on and own.launch_skip == 0,
            )
            if self._outlives:
                self._gpu.prepare()
        elif driver.ensure_context() != self._gpu.device:
            raise UsageError("it runs on another GPU than the first kernel: one GPU is recorded")
        self._gpu.point(driver.bindings().CUmodule(loaded.module))
        self.notes += [line for line in loaded.left_out if line not in self.notes]
        found = Kernel.of(loaded, self._kernels)
        now, before = (own and own["resident_blocks"] for own in (found.entry["traced"], found.entry["clean"]))
        if before is not None and now < before:
            self.remark(f"{loaded.name}: its marks leave {now} blocks on an SM instead of {before}", door.warning)
        self._kernels.append(found)
        return found

    def is_idle(self, wait_s: float) -> bool:
        """Whether all launches have ended, or do within so many seconds."""
        if self._reader is not None:
            self._reader.join(wait_s)
            return not self._reader.is_alive()
        memory = self._gpu
        return memory is None or os.getpid() != self.pid or memory.is_idle(wait_s)

    def unfinished(self, why: str) -> Recording | None:
        """What was recorded until now, from any thread, while the GPU may hang; None where there is nothing.

        Where a launch has not ended it is the last one, and `stopped` says `why`. The capture goes on.
        """
        memory, launches = self._gpu, list(self._launches)
        if memory is None or not launches:
            return None

        def stop(number: int) -> dict[str, Any] | None:
            if memory.is_idle(_BUSY_S):
                return None
            now_s = time.monotonic()
            passed_s = now_s - (self._made_s[number] if number < len(self._made_s) else now_s)
            now_ns = memory.clock[0] + round((now_s - memory.clock[1]) * 1e9)
            facts = {"why": why, "after_s": round(passed_s, 6), "last": [], "from": "records"}
            return facts | {"globaltimer_ns": now_ns}

        made = [Launch.of(*own) for own in launches]
        return make_unfinished(memory, list(self._kernels), made, self.options, list(self.notes), stop)

    def _read(self, memory: Memory, stream: int) -> None:
        self._gpu, self._over = None, True
        if self._launches:
            made = [Launch.of(*own) for own in self._launches]
            self._recording = make_recording(memory, stream, self._kernels, made, self.options, self.notes)
        else:
            memory.drain(stream)
