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
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from warplens import __version__, layout
from warplens.capture import driver, triton_inductor
from warplens.capture.modules import read_site_sets
from warplens.capture.recording import Recording
from warplens.capture.request import Asked
from warplens.capture.triton_builds import Choice, KeyHook, assembler, mark
from warplens.capture.triton_manifest import Kernel, Launch, make_recording
from warplens.capture.triton_memory import Memory, is_captured
from warplens.errors import UsageError
from warplens.instrument import Selection
from warplens.instrument.source import marker

_LEAST_VERSION: Final = (3, 6)
_KEY_FROM_HOOK: Final = (3, 7)
"""From here on Triton asks the hook of its stages for a key of its caches."""


class TritonWarning(UserWarning):
    """Something of a program's Triton kernels is not recorded; the program itself goes on."""


@dataclass(frozen=True)
class TritonOptions:
    """What is recorded of a program's Triton kernels.

    `kernels`: regular expression that a kernel's name must hold; None for all. `selection`: which marks.
    `capacity_bytes`: device memory for records; what does not fit is counted as lost. `slab_chunks`: chunks (26 events
    each) that a warp takes at once. `every_block`, `warp_mask`, `blocks`: record every n-th block, these warps, these
    blocks alone. `launch_skip`, `launch_count`: which launches of such kernels; of a CUDA graph which replays; None is
    all. `each_config`: record what an autotuner tries, too, and not the configuration alone that it chose. `paused`:
    record nothing until `on` is set.
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
    each_config: bool = False
    paused: bool = False
    note: str | None = None
    host: str | None = None
    command: list[str] | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.kernels or "")
        except re.error as error:
            raise UsageError(f"kernels: {self.kernels!r} is no regular expression: {error}") from error
        if self.every_block < 1 or self.slab_chunks < 1:
            raise UsageError("every_block and slab_chunks are 1 or more")
        if self.launch_skip < 0 or (self.launch_count is not None and self.launch_count < 1):
            raise UsageError("launch_skip is 0 or more, launch_count 1 or more or None")

    @classmethod
    def of(cls, asked: Asked) -> TritonOptions:
        """What `warplens record` or `warplens.record` asks for, as far as it concerns Triton's kernels."""
        request = asked.request
        return cls(
            kernels=request.kernels,
            capacity_bytes=request.capacity_bytes,
            every_block=request.every_block,
            warp_mask=request.warp_mask,
            blocks=request.blocks,
            launch_skip=request.launch_skip,
            launch_count=request.launch_count,
            paused=request.paused,
            note=request.note,
            host=asked.host,
            command=asked.command,
        )

    @property
    def key(self) -> str:
        """Keeps kernels that are compiled while recording apart from others: marks in their source are in them."""
        facts = (__version__, self.kernels, self.selection.level, self.selection.sites, self.selection.kinds)
        return "warplens-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


_active: TritonCapture | None = None


def emits_marks() -> bool:
    """Whether a kernel that is compiled now is to have the marks of its source in it."""
    return _active is not None and _active.emits


@dataclass
class _Seen:
    """A kernel that was launched: how often, how often recorded, and what it records with; None for a clean one."""

    name: str
    kernel: Kernel | None
    launches: int = 0
    recorded: int = 0


class TritonCapture:
    """Records the Triton kernels that the program launches between `start` and `stop`; a context manager too.

    One at a time in a process. `notes`: what was not recorded, a line each. `quiet` keeps them from being shown as
    warnings. `done`: gets the recording as soon as `launch_count` launches have ended, in a thread of its own.
    """

    def __init__(
        self,
        options: TritonOptions | None = None,
        *,
        quiet: bool = False,
        done: Callable[[Recording], None] | None = None,
    ) -> None:
        self.options = own = options or TritonOptions()
        self.notes: list[str] = []
        self.on = not own.paused
        self.pid = os.getpid()
        self._quiet, self._done = quiet, done
        self._choice = Choice(own.kernels, own.selection, own.key, self.tell, self.notes)
        self._undo: list[Callable[[], None]] = []
        self._aside: list[tuple[Any, str, Any]] = []
        self._trying = 0
        self._seen: dict[int, _Seen] = {}
        self._kept: list[Any] = []  # compiled kernels, so that no other gets the id of one that is gone
        self._kernels: list[Kernel] = []
        self._launches: list[Launch] = []
        self._matched = 0
        self._memory: Memory | None = None
        self._reader: threading.Thread | None = None
        self._over = False  # nothing more is recorded
        self._recording: Recording | None = None

    def __enter__(self) -> TritonCapture:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def emits(self) -> bool:
        """Whether kernels compiled now are recorded; false while an autotuner tries clean ones."""
        return not self._trying

    def takes(self, name: str) -> bool:
        """Whether a kernel of this name is wanted."""
        return self._choice.takes(name)

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
        global _active
        try:
            triton: Any = importlib.import_module("triton")
        except ImportError as error:
            self.tell(f"Triton cannot be imported ({error}): none of its kernels is recorded")
            return
        why = _unfit(triton)
        if _active is not None:
            why = "another recording of Triton kernels is under way in this process: this one records none"
        if why is not None:
            self.tell(why)
            return
        _active = self
        self._keep_apart(triton)
        compiled = importlib.import_module("triton.compiler.compiler").CompiledKernel
        load, metadata = compiled._init_handles, compiled.launch_metadata

        @functools.wraps(load)
        def init_handles(kernel: Any) -> None:
            if kernel.module is None and not self._trying and not self._over and os.getpid() == self.pid:
                try:
                    self._mark(kernel)
                except Exception as error:  # recording must not harm the program
                    self.tell(f"{getattr(kernel, 'name', 'a kernel')} is not marked: {error}")
            load(kernel)

        @functools.wraps(metadata)
        def launch_metadata(kernel: Any, grid: Any, stream: Any, *arguments: Any) -> Any:
            self._about_to_launch(kernel, grid, stream)
            return metadata(kernel, grid, stream, *arguments)

        self._patch(compiled, "_init_handles", init_handles)
        self._patch(compiled, "launch_metadata", launch_metadata)
        self._join_autotuner()
        self._join_proton()
        self._undo += triton_inductor.prepare()

    def _keep_apart(self, triton: Any) -> None:
        """While recording Triton's caches have a key of their own, and a place that can be written."""
        runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
        if _version(triton) >= _KEY_FROM_HOOK:
            hook = KeyHook(self.options.key, runtime.add_stages_inspection_hook)
            self._patch(runtime, "add_stages_inspection_hook", hook, aside=True)
        else:
            self._patch(compilation, "instrumentation_mode", self.options.key, aside=True)
        cache = getattr(triton.knobs, "cache", None)
        place = getattr(cache, "dir", None)
        if place and not _writable(str(place)):
            folder = triton_inductor.temporary_folder()
            self._patch(cache, "dir", folder)
            self.tell(f"Triton's cache {place} cannot be written: recorded kernels are compiled into {folder}")

    def _join_autotuner(self) -> None:
        """What an autotuner tries runs clean, as it would without recording; then its choice is recorded."""
        if self.options.each_config:
            return
        try:
            tuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
            bench = tuner._bench
        except (ImportError, AttributeError) as error:
            self.tell(f"what Triton's autotuner tries is recorded too, for it is not where it was expected: {error}")
            return

        @functools.wraps(bench)
        def tried(*arguments: Any, **named: Any) -> Any:
            with self._set_aside():
                return bench(*arguments, **named)

        self._patch(tuner, "_bench", tried)

    def _join_proton(self) -> None:
        """Proton's scopes become ranges of ours, unless Proton itself instruments."""
        try:
            language: Any = importlib.import_module("triton.profiler.language")
            flags: Any = importlib.import_module("triton.profiler.flags").flags
            record = language.record
        except Exception:  # an older one, or one that was built without Proton
            return

        @functools.wraps(record)
        def ranges(is_start: Any, scope_name: Any, semantic: Any) -> Any:
            if flags.instrumentation_on:
                return record(is_start, scope_name, semantic)
            name = str(getattr(scope_name, "value", scope_name))
            begins = bool(getattr(is_start, "value", is_start))
            return emit("range_push" if begins else "range_pop", name, semantic)

        self._patch(language, "record", ranges)

    def _patch(self, owner: Any, name: str, value: Any, *, aside: bool = False) -> None:
        """Sets an attribute until `stop`, which leaves it alone when somebody else has set it since.

        `aside`: it goes back while an autotuner tries kernels.
        """
        before = getattr(owner, name)

        def undo() -> None:
            now = getattr(owner, name)
            if now is value or now == value:
                setattr(owner, name, before)
            else:
                self.tell(f"{name} was set by somebody else meanwhile, and stays as it is")

        setattr(owner, name, value)
        self._undo.append(undo)
        if aside:
            self._aside.append((owner, name, before))

    @contextmanager
    def _set_aside(self) -> Iterator[None]:
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in self._aside]
        self._trying += 1
        try:
            for owner, name, value in self._aside if self._trying == 1 else ():
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
            self._trying -= 1

    def stop(self) -> None:
        """Waits for the launches that were made, reads what they wrote, and leaves Triton as it was."""
        global _active
        while self._undo:
            self._undo.pop()()
        if _active is self:
            _active = None
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if self._memory is not None and not self._over and os.getpid() == self.pid:
            try:
                driver.call("cuCtxSynchronize", doing="waiting for recorded launches")
                self._read(self._memory, 0)
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
        if self._quiet:
            return
        try:
            warnings.warn(f"warplens: {line}", TritonWarning, stacklevel=3)
        except TritonWarning:  # warnings are errors in the program, and this one would be
            sys.stderr.write(f"warplens: {line}\n")

    def _mark(self, kernel: Any) -> None:
        """Gives a kernel that is about to be loaded its marks."""
        self._undo += triton_inductor.join(self._set_aside)
        if layout.DESCRIPTOR_SYMBOL in str(kernel.asm.get("ptx")):
            return
        marked = mark(kernel, self._choice, lambda text: assembler(kernel)(text))
        if marked is not None:
            kernel.asm["ptx"], kernel.asm["cubin"], kernel.kernel = marked.ptx, marked.cubin, marked.cubin

    def _about_to_launch(self, kernel: Any, grid: Any, stream: Any) -> None:
        own = self._seen.get(id(kernel))
        if own is None:
            own = self._first_launch(kernel, int(stream))
        own.launches += 1
        if own.kernel is not None and not self._over and os.getpid() == self.pid:
            try:
                self._choose(own, own.kernel, grid, int(stream))
            except Exception as error:  # recording must not harm the program
                self.tell(f"a launch of {own.name} is not recorded: {error}")

    def _choose(self, own: _Seen, kernel: Kernel, grid: Any, stream: int) -> None:
        """Has one launch recorded, or not."""
        memory = self._memory
        assert memory is not None
        wanted = self.on and not self._trying
        captured = is_captured(stream)
        if captured:
            memory.switch(self.on, memory.own_stream)
        else:
            self._matched += wanted
            last = self.options.launch_skip + (self.options.launch_count or 1 << 62)
            wanted = wanted and self.options.launch_skip < self._matched <= last
            memory.switch(wanted, stream)
            if self._matched > last:
                self._read_early(stream)
        if wanted:
            size = (*(int(n) for n in grid), 1, 1)[:3]
            self._launches.append(Launch(kernel, size, stream, captured))  # type: ignore[arg-type]
            own.recorded += 1

    def _read_early(self, stream: int) -> None:
        """All launches that were asked for are made: their records are read in a thread, when they have ended."""
        if self._done is None or self._reader is not None or any(own.captured for own in self._launches):
            return
        events = []
        for used in {stream, *(own.stream for own in self._launches)}:
            events.append(driver.call("cuEventCreate", 0))
            driver.call("cuEventRecord", events[-1], used)
        memory, done = self._memory, self._done
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
            if not self._over and os.getpid() == self.pid:
                kernel._init_handles()
                own.kernel = self._point(kernel, stream)
        except Exception as error:  # recording must not harm the program
            self.tell(f"{name} is not recorded: {error}")
        self._seen[id(kernel)] = own
        self._kept.append(kernel)
        return own

    def _point(self, kernel: Any, stream: int) -> Kernel | None:
        sets = read_site_sets(kernel.asm["cubin"]) if layout.DESCRIPTOR_SYMBOL in kernel.asm["ptx"] else []
        if not sets:
            return None
        if self._memory is None:
            if is_captured(stream):
                raise UsageError("the first launch of all is being captured in a CUDA graph: launch one before")
            own = self.options
            self._memory = Memory(
                own.capacity_bytes,
                stream,
                slab_chunks=own.slab_chunks,
                every_block=own.every_block,
                warp_mask=own.warp_mask,
                on=self.on and own.launch_skip == 0,
            )
        elif driver.ensure_context() != self._memory.device:
            raise UsageError("it runs on another GPU than the first kernel: one GPU is recorded")
        self._memory.point(driver.bindings().CUmodule(kernel.module))
        found = Kernel.of(kernel, sets[0], self._kernels, self.options.selection.level)
        self._kernels.append(found)
        return found

    def _read(self, memory: Memory, stream: int) -> None:
        self._memory, self._over = None, True
        if self._launches:
            self._recording = make_recording(memory, stream, self._kernels, self._launches, self.options, self.notes)
        else:
            memory.drain(stream)


def emit(verb: str, name: str, semantic: Any) -> None:
    """Leaves a mark in the kernel that is being compiled: a comment in its PTX, which nothing is moved across."""
    core: Any = importlib.import_module("triton.language.core")
    core.inline_asm_elementwise(marker(verb, name), "=r", [], core.int32, False, 1, _semantic=semantic)


def _writable(place: str) -> bool:
    """Whether files can be made in a folder, or in the nearest one above that is there."""
    while not os.path.isdir(place):  # noqa: PTH112
        above = os.path.dirname(place)  # noqa: PTH120
        if above == place:
            return False
        place = above
    try:
        with tempfile.TemporaryFile(dir=place):  # permissions say little to root, and of a mount that is read-only
            return True
    except OSError:
        return False


def _version(triton: Any) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", str(getattr(triton, "__version__", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _unfit(triton: Any) -> str | None:
    """Why Triton kernels cannot be recorded here; None when they can. Does not ask for a GPU, for that would begin its
    use in a program that may yet fork, or choose another."""
    if _version(triton) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        return (
            f"Triton {getattr(triton, '__version__', '?')} is not supported, {least} or newer is: nothing is recorded"
        )
    if triton.knobs.runtime.interpret:
        return "Triton interprets its kernels (TRITON_INTERPRET): nothing runs on the GPU, and nothing is recorded"
    mode = triton.knobs.compilation.instrumentation_mode
    if mode:
        return f"Triton's kernels are instrumented by something else already ({mode}): nothing is recorded"
    return None
