"""Triton kernels, recorded as the program runs them, with no change to their source.

In: what to mark. Out: `Recording` of the launches that were made meanwhile. Each kernel gets marks in its PTX as Triton
loads it (triton_builds.py), whoever compiled it. Adds no launch, waits for none, and never lets the user's program
fail: what cannot be recorded is told by one line and runs clean (docs/adr/0013-triton.md). Triton is the user's own,
and is not imported before `start`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warplens import __version__, layout
from warplens.capture import driver, triton_inductor
from warplens.capture.modules import read_site_sets
from warplens.capture.recording import Recording
from warplens.capture.request import Asked
from warplens.capture.tell import tell
from warplens.capture.triton_builds import Choice, assembler, mark
from warplens.capture.triton_hooks import Hooks, unfit
from warplens.capture.triton_manifest import Kernel, Launch, make_recording
from warplens.capture.triton_memory import Memory, is_captured
from warplens.errors import UsageError
from warplens.instrument import Budget, Selection

_OF_OTHERS: Final = {
    "policy": ("auto", "stream"),
    "keep": ("oldest",),
    "cold_l2": (False,),
    "replay": (False,),
    "nvtx_include": (None,),
}
"""Options of `warplens record` that Triton's kernels do not have, and what asks for nothing special."""


class TritonWarning(UserWarning):
    """Something of a program's Triton kernels is not recorded; the program itself goes on."""


@dataclass(frozen=True)
class TritonOptions:
    """What is recorded of a program's Triton kernels.

    - kernels: regular expression that a kernel's name must hold; None for all. selection: which marks.
    - capacity_bytes: device memory for records; what does not fit is counted as lost. slab_chunks: chunks (26 events
      each) that a warp takes at once.
    - every_block, warp_mask, blocks: record every n-th block, these warps, these blocks alone.
    - launch_skip, launch_count: which launches of such kernels; of a CUDA graph which replays; None is all. grids:
      launches with one of these grids alone.
    - each_config: record what an autotuner tries, too, and not the configuration alone that it chose.
    - paused: record nothing until `on` is set. switch: a file that is there while launches are to be recorded.
    - source: keep the texts that sites stand in.
    - ignored: what was asked for and is not done for Triton's kernels, which is told.
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
        if self.slab_chunks < 1:
            raise UsageError("slab_chunks is 1 or more")
        if self.launch_skip < 0 or (self.launch_count is not None and self.launch_count < 1):
            raise UsageError("launch_skip is 0 or more, launch_count 1 or more or None")

    @classmethod
    def of(cls, asked: Asked) -> TritonOptions:
        """What `warplens record` or `warplens.record` asks for, as far as it concerns Triton's kernels.

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
            ignored=tuple(ignored),
            note=request.note,
            host=asked.host,
            command=asked.command,
        )

    @property
    def key(self) -> str:
        """Names everything that shapes the machine code: kernels of different keys never share a cache."""
        facts = (__version__, self.kernels, self.selection)
        return "warplens-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@dataclass
class _Seen:
    """A kernel that was launched: how often, how often recorded, and what it records with; None for a clean one."""

    name: str
    kernel: Kernel | None
    launches: int = 0
    recorded: int = 0


class TritonCapture:
    """Records the Triton kernels that the program launches between `start` and `stop`; a context manager too.

    One at a time in a process. `notes`: what was not recorded or not marked, a line each; `told`: those of them that
    the user was told at once. `quiet` keeps these from being shown as warnings. `seen`: is called behind the first
    launch of each kernel. `forked`: is called in a child of fork that uses Triton, for this capture records none of it.
    `done`: gets the recording as soon as `launch_count` launches have ended, in a thread of its own.
    """

    def __init__(
        self,
        options: TritonOptions | None = None,
        *,
        quiet: bool = False,
        seen: Callable[[], None] = lambda: None,
        forked: Callable[[], None] | None = None,
        done: Callable[[Recording], None] | None = None,
    ) -> None:
        self.options = own = options or TritonOptions()
        self.notes: list[str] = []
        self.told: list[str] = []
        self.on = not own.paused and own.switch is None
        self._looked_s = 0.0
        self.pid = os.getpid()
        self._quiet, self._on_first, self._forked, self._done = quiet, seen, forked, done
        self._choice = Choice(own.kernels, own.selection, own.key, self.tell, self.notes)
        self._hooks = Hooks(own.key, self.tell)
        self._undo = self._hooks.undo
        self._seen: dict[int, _Seen] = {}
        self._kept: list[Any] = []  # compiled kernels, so that no other gets the id of one that is gone
        self._kernels: list[Kernel] = []
        self._launches: list[tuple[Kernel, tuple[Any, ...], int, bool, bool]] = []  # as Launch, which is dearer to make
        self._graphs = False
        self._last = own.launch_skip + (own.launch_count or 1 << 62)
        self._matched = 0
        self._gpu: Memory | None = None
        self._first = threading.RLock()
        self._reader: threading.Thread | None = None
        self._over = False  # nothing more is recorded
        self._recording: Recording | None = None

    def __enter__(self) -> TritonCapture:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def takes(self, name: str) -> bool:
        """Whether a kernel of this name is wanted."""
        return self._choice.takes(name)

    @property
    def is_due(self) -> bool:
        """Whether there is something on the GPU that is to be read."""
        return self._gpu is not None

    @property
    def ran(self) -> dict[str, tuple[int, int]]:
        """Launches, and recorded ones, by a kernel's name."""
        out: dict[str, tuple[int, int]] = {}
        for own in self._seen.values():
            launches, recorded = out.get(own.name, (0, 0))
            out[own.name] = launches + own.launches, recorded + own.recorded
        return out

    def start(self) -> None:
        """Kernels loaded from now on are marked. Where Triton is not there or cannot be recorded: one line."""
        try:
            triton: Any = importlib.import_module("triton")
        except ImportError as error:
            self.tell(f"Triton cannot be imported ({error}): none of its kernels is recorded")
            return
        why = unfit(triton)
        if why is not None:
            self.tell(why)
            return
        hooks = self._hooks
        hooks.begin(triton, each_config=self.options.each_config)
        compiled = importlib.import_module("triton.compiler.compiler").CompiledKernel
        load, metadata = compiled._init_handles, compiled.launch_metadata

        @functools.wraps(load)
        def init_handles(kernel: Any) -> Any:
            if self._left_to_parent():
                return compiled._init_handles(kernel)
            if kernel.module is None and not self._hooks.trying and not self._over and os.getpid() == self.pid:
                try:
                    self._mark(kernel)
                except Exception as error:  # recording must not harm the program
                    self.tell(f"{getattr(kernel, 'name', 'a kernel')} is not marked: {error}")
            return load(kernel)

        @functools.wraps(metadata)
        def launch_metadata(kernel: Any, grid: Any, stream: Any, *arguments: Any) -> Any:
            if self._left_to_parent():
                return compiled.launch_metadata(kernel, grid, stream, *arguments)
            self._about_to_launch(kernel, grid, stream)
            return metadata(kernel, grid, stream, *arguments)

        hooks.patch(compiled, "_init_handles", init_handles)
        hooks.patch(compiled, "launch_metadata", launch_metadata)
        self._undo += triton_inductor.prepare()

    def _left_to_parent(self) -> bool:
        """In a child of fork, once: whether another capture may have taken this one's place."""
        if self._forked is None or os.getpid() == self.pid:
            return False
        forked, self._forked = self._forked, None
        forked()
        return True

    def put_back(self) -> None:
        """Leaves Triton as it was."""
        while self._undo:
            self._undo.pop()()

    def stop(self) -> None:
        """Waits for the launches that were made, reads what they wrote, and leaves Triton as it was."""
        self.put_back()
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if self._gpu is not None and not self._over and os.getpid() == self.pid:
            try:
                self._gpu.enter()  # the launches may have been another thread's
                driver.call("cuCtxSynchronize", doing="waiting for recorded launches")
                self._read(self._gpu, 0)
            except Exception as error:  # the GPU stopped, and the program knows
                self.tell(f"what was recorded could not be read: {error}")
        self._over = True

    def recording(self) -> Recording | None:
        """What was recorded; None before `stop`, and when no kernel with marks was launched."""
        return self._recording

    def tell(self, line: str) -> None:
        """One line for the user, once: as a warning, and in `notes`."""
        if line in self.notes:
            return
        self.notes.append(line)
        self.told.append(line)
        if self._quiet:
            return
        try:
            warnings.warn(f"warplens: {line}", TritonWarning, stacklevel=3)
        except TritonWarning:  # warnings are errors in the program, and this one would be
            tell(line)

    def _mark(self, kernel: Any) -> None:
        """Gives a kernel that is about to be loaded its marks."""
        self._undo += triton_inductor.join(self._hooks.set_aside)
        if layout.DESCRIPTOR_SYMBOL in str(kernel.asm.get("ptx")):
            return
        before = len(self.notes)
        marked = mark(kernel, self._choice, lambda text: assembler(kernel)(text))
        if marked is not None:
            kernel.warplens_notes = self.notes[before:]  # for a later recording that meets it loaded
            kernel.asm["ptx"], kernel.asm["cubin"], kernel.kernel = marked.ptx, marked.cubin, marked.cubin

    def _about_to_launch(self, kernel: Any, grid: Any, stream: Any) -> None:
        if os.getpid() != self.pid:
            return
        own = self._seen.get(id(kernel))
        if own is None:
            with self._first:  # of several threads at once: one memory for all, an index for each kernel
                own = self._seen.get(id(kernel)) or self._first_launch(kernel, int(stream))
        own.launches += 1
        if own.kernel is not None and not self._over:
            try:
                self._choose(own, own.kernel, grid, int(stream))
            except Exception as error:  # recording must not harm the program
                self.tell(f"a launch of {own.name} is not recorded: {error}")

    def _choose(self, own: _Seen, kernel: Kernel, grid: Any, stream: int) -> None:
        """Has one launch recorded, or not."""
        memory = self._gpu
        assert memory is not None
        if self.options.switch is not None:
            self._look(self.options.switch)
        wanted = self.on and not self._hooks.trying
        if wanted and self.options.grids is not None:
            wanted = (*grid, 1, 1)[:3] in self.options.grids
        if is_captured(stream):
            memory.switch(self.on, memory.own_stream)
            if wanted:
                self._graphs = True
                self._launches.append((kernel, tuple(grid), stream, True, True))
            return
        self._matched += wanted
        wanted = wanted and self.options.launch_skip < self._matched <= self._last
        on = wanted or (self._graphs and self.on)  # of graphs it is not seen when they are replayed
        if on is not memory.on:
            memory.switch(on, stream)
        if on:
            self._launches.append((kernel, tuple(grid), stream, False, wanted))
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
        for used in {stream, *(used for _, _, used, *_ in self._launches)}:
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
                self.tell(f"what was recorded could not be read: {error}")

        self._reader = threading.Thread(target=read, name="warplens", daemon=True)
        self._reader.start()

    def _first_launch(self, kernel: Any, stream: int) -> _Seen:
        """Points a kernel with marks at the memory for records."""
        name = str(getattr(kernel, "name", "a kernel"))
        own = _Seen(name, None)
        try:
            if not self._over:
                kernel._init_handles()
                own.kernel = self._point(kernel, stream)
        except Exception as error:  # recording must not harm the program
            self.tell(f"{name} is not recorded: {error}")
        self._seen[id(kernel)] = own
        self._kept.append(kernel)
        self._on_first()
        return own

    def _point(self, kernel: Any, stream: int) -> Kernel | None:
        sets = read_site_sets(kernel.asm["cubin"]) if layout.DESCRIPTOR_SYMBOL in kernel.asm["ptx"] else []
        if not sets:
            return None
        for name in self.options.ignored:
            self.tell(f"{name} is not obeyed for Triton's kernels: they are recorded without")
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
        elif driver.ensure_context() != self._gpu.device:
            raise UsageError("it runs on another GPU than the first kernel: one GPU is recorded")
        self._gpu.point(driver.bindings().CUmodule(kernel.module))
        self.notes += [line for line in getattr(kernel, "warplens_notes", []) if line not in self.notes]
        found = Kernel.of(kernel, sets[0], self._kernels, self.options.selection.level)
        self._kernels.append(found)
        return found

    def _read(self, memory: Memory, stream: int) -> None:
        self._gpu, self._over = None, True
        if self._launches:
            made = [Launch.of(*own) for own in self._launches]
            self._recording = make_recording(memory, stream, self._kernels, made, self.options, self.notes)
        else:
            memory.drain(stream)
