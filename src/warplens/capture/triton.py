"""Triton kernels, recorded as the program runs them, with no change to their source.

In: what to mark. Out: `Recording` of the launches that were made meanwhile. Each kernel that Triton compiles gets marks
in its PTX (warplens.instrument); in memory and on disk Triton keeps it apart from the clean one. Adds no launch, waits
for none, and never lets the user's program fail: what cannot be recorded is told by one line and runs clean
(docs/adr/0012-instrumenting-ptx.md). Triton is the user's own, and is not imported before `start`.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import importlib
import platform
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from warplens import __version__, layout
from warplens.capture import driver, machine
from warplens.capture.arena import Arena
from warplens.capture.audited import audit_builds, not_audited
from warplens.capture.calibrate import Calibrator
from warplens.capture.library import Function
from warplens.capture.modules import read_site_sets
from warplens.capture.recording import Recording
from warplens.capture.triton_builds import Choice, StagesHook, clean_resources, launch_of
from warplens.errors import UsageError
from warplens.instrument import Selection

_LEAST_VERSION: Final = (3, 6)
_KEY_FROM_HOOK: Final = (3, 7)
"""From here on Triton asks the hook itself for a key of its caches."""
_MAX_SOURCE_BYTES: Final = 1 << 20


class TritonWarning(UserWarning):
    """Something of a program's Triton kernels is not recorded; the program itself goes on."""


@dataclass(frozen=True)
class TritonOptions:
    """What is recorded of a program's Triton kernels.

    `kernels`: regular expression that a kernel's name must hold; None for all. `selection`: which marks.
    `capacity_bytes`: device memory for records; what does not fit is counted as lost. `slab_chunks`: chunks (26 events
    each) that a warp takes at once. `every_block`, `warp_mask`: record every n-th block, and these warps of it.
    """

    kernels: str | None = None
    selection: Selection = field(default_factory=Selection)
    capacity_bytes: int = 256 << 20
    slab_chunks: int = 8
    every_block: int = 1
    warp_mask: int = 0xFFFFFFFF
    note: str | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.kernels or "")
        except re.error as error:
            raise UsageError(f"kernels: {self.kernels!r} is no regular expression: {error}") from error
        if self.every_block < 1 or self.slab_chunks < 1:
            raise UsageError("every_block and slab_chunks are 1 or more")

    @property
    def key(self) -> str:
        """Names everything that shapes the machine code: kernels of different keys never share a cache."""
        facts = (__version__, self.kernels, self.selection)
        return "warplens-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@dataclass
class _Kernel:
    """A compiled kernel that has marks, and its entry in the manifest."""

    name: str
    entry: dict[str, Any]
    site_set: dict[str, Any]
    number: int
    warps: int
    shared_bytes: int
    cluster: tuple[int, int, int]
    cubin: bytes


class TritonCapture:
    """Records the Triton kernels that the program launches between `start` and `stop`; a context manager too.

    One at a time in a process. `notes`: what was not recorded, a line each.
    """

    def __init__(self, options: TritonOptions | None = None) -> None:
        self.options = options or TritonOptions()
        self.notes: list[str] = []
        own = self.options
        self._choice = Choice(own.kernels, own.selection, own.key, self.tell, self.notes)
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, _Kernel | None] = {}
        self._kept: list[Any] = []  # compiled kernels, so that no other gets the id of one that is gone
        self._kernels: list[_Kernel] = []
        self._launches: list[tuple[_Kernel, tuple[int, int, int], int]] = []
        self._gpu: _Gpu | None = None
        self._refused = False
        self._recording: Recording | None = None

    def __enter__(self) -> TritonCapture:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Kernels compiled from now on are marked. Where Triton is not there or cannot be recorded: one warning."""
        try:
            triton: Any = importlib.import_module("triton")
        except ImportError as error:
            self.tell(f"Triton cannot be imported ({error}): none of its kernels is recorded")
            return
        why = _unfit(triton)
        if why is not None:
            self.tell(why)
            return
        runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
        previous = runtime.add_stages_inspection_hook
        self._patch(runtime, "add_stages_inspection_hook", StagesHook(self._choice, previous))
        if _version(triton) < _KEY_FROM_HOOK:
            self._patch(compilation, "instrumentation_mode", self.options.key)
        compiled = importlib.import_module("triton.compiler.compiler").CompiledKernel
        original = compiled.launch_metadata

        @functools.wraps(original)
        def launch_metadata(kernel: Any, grid: Any, stream: Any, *arguments: Any) -> Any:
            self._about_to_launch(kernel, grid, stream)
            return original(kernel, grid, stream, *arguments)

        self._patch(compiled, "launch_metadata", launch_metadata)

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute until `stop`, which leaves it alone when somebody else has set it since."""
        before = getattr(owner, name)

        def undo() -> None:
            now = getattr(owner, name)
            if now is value or now == value:
                setattr(owner, name, before)
            else:
                self.tell(f"{name} was set by somebody else meanwhile, and stays as it is")

        setattr(owner, name, value)
        self._undo.append(undo)

    def stop(self) -> None:
        """Waits for the launches that were made, reads what they wrote, and leaves Triton as it was."""
        while self._undo:
            self._undo.pop()()
        if self._gpu is not None and self._recording is None:
            self._recording = self._read(self._gpu)
            self._gpu = None

    def recording(self) -> Recording | None:
        """What was recorded; None before `stop`, and when no kernel with marks was launched."""
        return self._recording

    def tell(self, line: str) -> None:
        """One line for the user, once: as a warning, and in `notes`."""
        if line not in self.notes:
            self.notes.append(line)
            warnings.warn(f"warplens: {line}", TritonWarning, stacklevel=3)

    def _about_to_launch(self, kernel: Any, grid: Any, stream: Any) -> None:
        own = self._seen.get(id(kernel), self)
        if own is self:
            own = self._first_launch(kernel, int(stream))
        if isinstance(own, _Kernel):
            size = tuple(int(n) for n in grid)
            self._launches.append((own, (*size, 1, 1)[:3], int(stream)))  # type: ignore[arg-type]

    def _first_launch(self, kernel: Any, stream: int) -> _Kernel | None:
        """Points a kernel with marks at the memory for records; None for one without marks."""
        own = None
        try:
            own = self._point(kernel, stream)
        except Exception as error:  # recording must not harm the program
            self.tell(f"{getattr(kernel, 'name', 'a kernel')} is not recorded: {error}")
        self._seen[id(kernel)] = own
        self._kept.append(kernel)
        return own

    def _point(self, kernel: Any, stream: int) -> _Kernel | None:
        sets = read_site_sets(kernel.asm["cubin"]) if layout.DESCRIPTOR_SYMBOL in kernel.asm["ptx"] else []
        if not sets:
            return None
        capturing = driver.call("cuStreamIsCapturing", stream)
        if int(capturing) != 0:
            raise UsageError("its first launch is being captured in a CUDA graph: launch it once before")
        kernel._init_handles()
        if self._gpu is None:
            self._gpu = _Gpu(self.options, stream)
        elif driver.ensure_context() != self._gpu.device:
            raise UsageError("it runs on another GPU than the first kernel: one GPU is recorded")
        module = driver.bindings().CUmodule(kernel.module)
        address, _ = driver.call("cuModuleGetGlobal", module, layout.DESCRIPTOR_SYMBOL.encode())
        driver.copy_to_device(int(address), self._gpu.arena.descriptor().reshape(1), stream)
        found = self._entry(kernel, sets[0])
        self._kernels.append(found)
        return found

    def _entry(self, kernel: Any, site_set: dict[str, Any]) -> _Kernel:
        facts = kernel.metadata
        launch = launch_of(kernel.asm["ptx"], {"num_warps": facts.num_warps, "shared": facts.shared})
        native = Function(driver.bindings().CUfunction(kernel.function), kernel.name)
        traced = native.resources(launch.threads, facts.shared)
        if any(
            own.site_set["name"] == site_set["name"] for own in self._kernels
        ):  # the same source, compiled otherwise
            site_set = {**site_set, "name": f"{site_set['name']}_{len(self._kernels)}"}
        entry = {
            "name": kernel.name,
            "site_set": site_set["name"],
            "clean": clean_resources(kernel.asm["ptx"], launch, traced),
            "traced": traced,
            "clean_ns": None,
            "traced_ns": None,
            "not_measured": "the launches are the program's own: none was added to compare with",
            "mark_cost_cycles": None,
            "audit": None,
            "instrumented": {"from": "ptx", "level": self.options.selection.level, "ptx_target": facts.arch},
        }
        cluster = tuple(getattr(facts, "cluster_dims", None) or (getattr(facts, "num_ctas", 1) or 1, 1, 1))
        return _Kernel(
            kernel.name,
            entry,
            site_set,
            len(self._kernels),
            launch.threads // 32,
            facts.shared,
            cluster,
            kernel.asm["cubin"],
        )

    def _read(self, gpu: _Gpu) -> Recording:
        chunks, lost_events, lost_chunks = gpu.drain()
        for own in self._kernels:
            own.entry["audit"] = _audited(own)
        launches = self._manifest_launches(chunks, lost_events, lost_chunks)
        manifest = {
            "format": "wlens",
            "version": list(layout.FORMAT_VERSION),
            "warplens": __version__,
            "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "complete": True,
            "note": self.options.note,
            "host": None,
            "command": None,
            "policy": "stream",
            "keep": "oldest",
            "capacity_bytes": self.options.capacity_bytes,
            "device": gpu.facts,
            "clock_state": {"before": gpu.state_before, "after": machine.clock_state(gpu.device)},
            "globaltimer_step_ns": gpu.step_ns,
            "calibration": gpu.calibration,
            "site_sets": [own.site_set for own in self._kernels],
            "kernels": [own.entry for own in self._kernels],
            "launches": launches,
            "python": platform.python_version(),
            "triton": getattr(sys.modules.get("triton"), "__version__", None),
        }
        return Recording(manifest, {_MEMBER: chunks}, _sources(self._kernels))

    def _manifest_launches(self, chunks: Any, lost_events: int, lost_chunks: int) -> list[dict[str, Any]]:
        grids = _launch_grids(chunks, [own.site_set["hash"] for own, _, _ in self._launches])
        out = []
        for (own, grid, stream), grid_id in zip(self._launches, grids, strict=True):
            out.append(
                {
                    "kernel": own.number,
                    "grid": list(grid),
                    "block": [own.warps * 32, 1, 1],
                    "cluster": list(own.cluster),
                    "shared_bytes": own.shared_bytes,
                    "stream": stream,
                    "rank": 0,
                    "replay": 0,
                    "grid_id": grid_id,
                    "records": _MEMBER if grid_id is not None else None,
                    "lost_events": 0,
                    "lost_chunks": 0,
                    "every": self.options.every_block,
                    "warp_mask": self.options.warp_mask,
                    "blocks": None,
                    "cold_l2": False,
                }
            )
        if out:  # they are counted over all launches: the last ones found no space
            out[-1] |= {"lost_events": lost_events, "lost_chunks": lost_chunks}
        return out


_MEMBER: Final = "records/000000.u32"


class _Gpu:
    """Memory for records on one GPU, and its clocks."""

    def __init__(self, options: TritonOptions, stream: int) -> None:
        self.device = driver.ensure_context()
        self.facts = machine.device_facts(self.device)
        self.state_before = machine.clock_state(self.device)
        self.arena = Arena(options.capacity_bytes, pool=False)
        major, minor = (driver.attribute(self.device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self._calibrator = Calibrator(self.device, f"sm_{major}{minor}")
        self.step_ns = self._calibrator.step_ns(stream)
        self.calibration: list[dict[str, Any]] = []
        self.arena.choose(
            stream,
            slab_chunks=options.slab_chunks,
            every_block=options.every_block,
            warp_mask=options.warp_mask,
        )
        self._calibrate("before", stream)

    def _calibrate(self, when: str, stream: int) -> None:
        self.calibration.append(self._calibrator.read(self._calibrator.begin(stream), when, stream))

    def drain(self) -> tuple[Any, int, int]:
        """Chunks that were written, and the losses, after all that the GPU has to do."""
        driver.call("cuCtxSynchronize", doing="waiting for recorded launches")
        self._calibrate("after", 0)
        drained = self.arena.drain(0)
        self.arena.switch_off(0)  # the program may launch its marked kernels again
        written = drained.chunks[drained.chunks[:, layout.WORD_META] != 0]
        return written, drained.lost_events, drained.lost_chunks


def _audited(kernel: _Kernel) -> dict[str, Any]:
    """The audit of the traced build alone: the clean one is not kept. It may not harm the program either."""
    try:
        return audit_builds((kernel.cubin, kernel.name), None, kernel.site_set["sites"], {})
    except Exception as error:
        return not_audited(f"the audit failed: {error}")


def _version(triton: Any) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", str(getattr(triton, "__version__", "")))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _unfit(triton: Any) -> str | None:
    """Why Triton kernels cannot be recorded here; None when they can."""
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
    try:
        backend = triton.runtime.driver.active.get_current_target().backend
    except Exception as error:  # no GPU, or no driver for it
        return f"Triton finds no GPU ({error}): nothing is recorded"
    return None if backend == "cuda" else f"Triton compiles for {backend}: only NVIDIA GPUs are recorded"


def _launch_grids(chunks: Any, hashes: list[int]) -> list[int | None]:
    """The grid id of each launch: grids in ascending order go to launches in theirs whose site set they wrote."""
    flag = np.uint32(layout.ChunkFlag.BLOCK_RECORD << layout.META_FLAGS_SHIFT)
    grids = np.unique(chunks[:, layout.WORD_GRID])
    ended = chunks[(chunks[:, layout.WORD_META] & flag) != 0]
    word = layout.BLOCK_RECORD_WORD + layout.BLOCK_SITES_HASH
    told = dict(zip(ended[:, layout.WORD_GRID].tolist(), ended[:, word].tolist(), strict=True))
    out: list[int | None] = [None] * len(hashes)
    at = 0
    for grid in grids.tolist():
        while at < len(hashes) and told.get(grid, hashes[at]) != hashes[at]:
            at += 1
        if at == len(hashes):
            break
        out[at] = grid
        at += 1
    return out


def _sources(kernels: list[_Kernel]) -> dict[str, str]:
    """Texts of the files that sites stand in, where they can be read."""
    out = {}
    for path in sorted({site["file"] for own in kernels for site in own.site_set["sites"] if site["file"]}):
        with contextlib.suppress(OSError, ValueError):
            if Path(path).stat().st_size <= _MAX_SOURCE_BYTES:
                out[path] = Path(path).read_text(encoding="utf-8", errors="replace")
    return out
