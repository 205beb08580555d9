"""The recording that launches of kernels of Python packages make.

In: kernels with their entries, launches, memory. Out: `Recording`: a member of records for each launch.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from warplens import __version__, layout
from warplens.capture import driver, machine
from warplens.capture.library import Dim3, Function
from warplens.capture.python_memory import U32, Found, Made, Memory, divide
from warplens.capture.python_unfinished import under_way
from warplens.capture.recording import Recording
from warplens.capture.request import rank_of
from warplens.capture.residency import Launch as Residency
from warplens.instrument.staged import records_held

if TYPE_CHECKING:
    from warplens.capture.python import PythonOptions

_MAX_SOURCE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Loaded:
    """A kernel with marks, as its package has loaded it.

    - name: as users know it; symbol: as its machine code `cubin` names it. module, function: the driver's handles.
    - site_set: as the manifest lists it; level: which marks; left_out: what is not marked, a line each.
    - launch: what a launch asks of an SM beside registers, with the static shared memory alone; threads is 0 where
      each launch says it. shared_bytes: dynamic ones of each launch.
    - clean: registers of a thread and bytes of local memory of the clean build; None where they are not known.
    - state_bytes: of the static shared memory, what the marks keep their state in, or records that wait there; policy:
      "staged" for such.
    - target: the GPU that its PTX is for. texts: sources that are no files, by the names that sites have.
    """

    name: str
    symbol: str
    module: int
    function: int
    cubin: bytes
    site_set: dict[str, Any]
    level: str
    launch: Residency
    shared_bytes: int = 0
    state_bytes: int = 0
    policy: str = "stream"
    cluster: tuple[int, ...] = (1, 1, 1)
    clean: tuple[int, int] | None = None
    target: str = ""
    left_out: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)

    def launched_with(self, block: tuple[Any, ...] | None, shared_bytes: int | None) -> Loaded:
        """With what its first launch says, where each launch says it."""
        if block is None:
            return self
        launch = replace(self.launch, threads=math.prod(int(size) for size in block))
        return replace(self, launch=launch, shared_bytes=int(shared_bytes or 0))

    def of_function(self, function: int) -> Loaded:
        """With the function's handle, which is known later than the module's."""
        return replace(self, function=function)

    @property
    def records_held(self) -> int:
        """Records that a warp may keep before they go to memory."""
        return records_held(self.state_bytes, self.launch.threads) if self.policy == "staged" else 0

    @property
    def resources(self) -> tuple[dict[str, int], dict[str, int] | None]:
        """Of the traced build as the driver tells it, and of the clean one; None where an SM's blocks cannot be told as
        the driver does."""
        native = Function(driver.bindings().CUfunction(self.function), self.name)
        traced = native.resources(self.launch.threads, self.shared_bytes)
        launch = replace(self.launch, shared_bytes=self.launch.shared_bytes + self.shared_bytes)
        if self.clean is None or launch.blocks(traced["registers"]) != traced["resident_blocks"]:
            return traced, None
        registers, frame = self.clean
        blocks = replace(launch, shared_bytes=launch.shared_bytes - self.state_bytes).blocks(registers)
        clean = {"registers": registers, "local_bytes": frame, "resident_blocks": blocks}
        return traced, {**traced, **clean, "shared_bytes": traced["shared_bytes"] - self.state_bytes}


@dataclass
class Kernel:
    """A kernel that has marks, and its entry in the manifest."""

    loaded: Loaded
    entry: dict[str, Any]
    site_set: dict[str, Any]
    number: int

    @classmethod
    def of(cls, loaded: Loaded, known: list[Kernel]) -> Kernel:
        """`known`: those before it, from whose names its own is told apart."""
        traced, clean = loaded.resources
        site_set = loaded.site_set
        if any(own.site_set["name"] == site_set["name"] for own in known):  # the same source, compiled otherwise
            site_set = {**site_set, "name": f"{site_set['name']}_{len(known)}"}
        entry = {
            "name": loaded.name,
            "site_set": site_set["name"],
            "policy": loaded.policy,
            "clean": clean,
            "traced": traced,
            "clean_ns": None,
            "traced_ns": None,
            "not_measured": "the launches are the program's own: none was added to compare with",
            "mark_cost_cycles": None,
            "audit": None,
            "instrumented": {
                "from": "ptx",
                "level": loaded.level,
                "ptx_target": loaded.target,
                "records_held": loaded.records_held,
                "left_out": list(loaded.left_out),
            },
        }
        return cls(loaded, entry, site_set, len(known))


@dataclass(frozen=True)
class Launch:
    """A launch of the program's that was recorded, or captured in a graph."""

    kernel: Kernel
    grid: Dim3
    block: Dim3
    shared_bytes: int
    stream: int
    captured: bool
    kept: bool = True
    """False for one that was not asked for, and made while recording was on for the replays of a graph."""

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        grid: tuple[Any, ...],
        block: tuple[Any, ...] | None,
        shared_bytes: int | None,
        stream: int,
        captured: bool,
        kept: bool,
    ) -> Launch:
        """grid, block: one to three numbers. block and shared_bytes: None for what the kernel says."""
        own = kernel.loaded
        if block is None:
            block = (-(-own.launch.threads // 32) * 32,)
        shared = own.shared_bytes if shared_bytes is None else int(shared_bytes)
        return cls(kernel, _dim3(grid), _dim3(block), shared, stream, captured, kept)


def _dim3(sizes: tuple[Any, ...]) -> Dim3:
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z


def make_recording(
    memory: Memory, stream: int, kernels: list[Kernel], launches: list[Launch], options: PythonOptions, notes: list[str]
) -> Recording | None:
    """All that was recorded; None where nothing of it is left. Adds what is left out to `notes`."""
    return _make(memory, memory.drain(stream), kernels, launches, options, notes)


def make_unfinished(
    memory: Memory,
    kernels: list[Kernel],
    launches: list[Launch],
    options: PythonOptions,
    notes: list[str],
    stop: Callable[[int], dict[str, Any] | None],
) -> Recording | None:
    """As `make_recording`, while the GPU may be at work: with the launch that has not ended as the last one.

    `stop`: the manifest's `stopped` for the launch of this number; None where it has ended. Makes no call that could
    wait for the GPU.
    """
    chunks, lost_events, lost_chunks, full = memory.peek()
    return _make(memory, (chunks, lost_events, lost_chunks), kernels, launches, options, notes, stop, full=full)


def _make(
    memory: Memory,
    drained: tuple[U32, int, int],
    kernels: list[Kernel],
    launches: list[Launch],
    options: PythonOptions,
    notes: list[str],
    stop: Callable[[int], dict[str, Any] | None] | None = None,
    *,
    full: bool = False,
) -> Recording | None:
    chunks, lost_events, lost_chunks = drained
    if options.blocks is not None:  # the recorder in PTX takes every n-th block, and no list
        chunks = chunks[np.isin(chunks[:, layout.WORD_BLOCK], np.array(options.blocks, np.int64))]
    made = [Made(own.kernel.site_set["hash"], own.captured, math.prod(own.grid)) for own in launches]
    found = divide(chunks, made, memory.calibration, memory.step_ns)
    strange = len(chunks) - sum(len(own.chunks) for own in found)
    if strange:
        notes.append(f"{strange:,} chunks of records are left out: it is not known which launch wrote them")
    open_one = under_way(found, launches, options) if stop is not None else None
    listed = _listed(_chosen(found, launches, options), launches, open_one)
    if not listed:
        notes.append("launches were captured in CUDA graphs, and none of the replays that were asked for was made")
        return None
    records: dict[str, U32] = {}
    entries: list[dict[str, Any]] = []
    for own in listed:
        member = f"records/{len(records):06d}.u32" if len(own.chunks) else None
        if member:
            records[member] = own.chunks
        entries.append(_entry(launches[own.made], own, member, options))
    entries[-1] |= {"lost_events": lost_events, "lost_chunks": lost_chunks}  # counted over all: the last found no space
    for kernel in kernels:
        kernel.entry["audit"] = _audited(kernel, stopped=stop is not None)
    manifest = _manifest(memory, kernels, entries, options)
    if stop is not None:
        is_listed = open_one == (listed[-1].made, listed[-1].replay)
        stopped = stop(listed[-1].made) if is_listed else None
        behind = len(launches) - 1 - listed[-1].made
        if stopped is not None and full:
            entries[-1]["full"] = True
        if stopped is not None and behind and (full or lost_events):
            stopped["behind"] = behind
        manifest |= {"complete": False, "stopped": stopped}
    return Recording(manifest, records, _sources(kernels) if options.source else {})


def _listed(found: list[Found], launches: list[Launch], open_one: tuple[int, int] | None) -> list[Found]:
    """Launches that the manifest lists, in their order; one that has not ended is the last, and those that were made
    behind it and wrote nothing have not begun."""
    wrote: dict[int, list[Found]] = {}
    for own in found:
        wrote.setdefault(own.made, []).append(own)
    nothing = np.zeros((0, layout.CHUNK_WORDS), np.uint32)
    out = []
    for number, launch in enumerate(launches):
        if not launch.kept:
            continue
        begun = open_one is None or launch.captured or number <= open_one[0] or number in wrote
        out += wrote.get(number) or ([] if launch.captured or not begun else [Found(number, 0, -1, nothing)])
    return sorted(out, key=lambda own: (own.made, own.replay) == open_one)


def _chosen(found: list[Found], launches: list[Launch], options: PythonOptions) -> list[Found]:
    """Of replays those that were asked for; ordinary launches were chosen as they were made."""
    first, count = options.launch_skip, options.launch_count
    last = first + count if count is not None else 1 << 62
    return [own for own in found if not launches[own.made].captured or first <= own.replay < last]


def _entry(launch: Launch, found: Found, member: str | None, options: PythonOptions) -> dict[str, Any]:
    own = launch.kernel
    return {
        "kernel": own.number,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(own.loaded.cluster),
        "shared_bytes": launch.shared_bytes,
        "stream": launch.stream,
        "rank": rank_of(dict(os.environ)) or 0,
        "replay": found.replay,
        "grid_id": found.grid_id if found.grid_id >= 0 else None,
        "records": member,
        "lost_events": 0,
        "lost_chunks": 0,
        "every": options.every_block,
        "warp_mask": options.warp_mask,
        "blocks": None if options.blocks is None else sorted(set(options.blocks)),
        "cold_l2": False,
    }


def _manifest(
    memory: Memory, kernels: list[Kernel], launches: list[dict[str, Any]], options: PythonOptions
) -> dict[str, Any]:
    program = Path(sys.argv[0]).name if getattr(sys, "argv", None) and sys.argv[0] else "python"
    return {
        "format": "wlens",
        "version": list(layout.FORMAT_VERSION),
        "warplens": __version__,
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "complete": True,
        "note": options.note,
        "host": options.host,
        "command": options.command,
        "policy": "stream",
        "keep": "oldest",
        "capacity_bytes": options.capacity_bytes,
        "device": memory.facts,
        "clock_state": {"before": memory.state_before, "after": machine.clock_state(memory.device)},
        "globaltimer_step_ns": memory.step_ns,
        "calibration": memory.calibration,
        "site_sets": [own.site_set for own in kernels],
        "kernels": [own.entry for own in kernels],
        "launches": launches,
        "process": {"pid": os.getpid(), "rank": rank_of(dict(os.environ)) or 0, "program": program},
        "python": platform.python_version(),
        **{name: getattr(sys.modules.get(name), "__version__", None) for name in ("triton", "cupy", "numba_cuda")},
    }


def _audited(kernel: Kernel, *, stopped: bool) -> dict[str, Any]:
    """The audit of the traced build alone: the clean one is not kept. It may not harm the program either."""
    from warplens.capture import audited  # a process that records nothing does without

    if stopped:
        return audited.not_audited("the program was being stopped")
    try:
        return audited.audit_builds((kernel.loaded.cubin, kernel.loaded.symbol), None, kernel.site_set["sites"], {})
    except Exception as error:
        return audited.not_audited(f"the audit failed: {error}")


def _sources(kernels: list[Kernel]) -> dict[str, str]:
    """Texts that sites stand in: of the package, or of files, where they can be read."""
    texts = {name: text for own in kernels for name, text in own.loaded.texts.items()}
    out = {}
    for path in sorted({site["file"] for own in kernels for site in own.site_set["sites"] if site["file"]}):
        if path in texts:
            out[path] = texts[path]
            continue
        with contextlib.suppress(OSError, ValueError):
            if Path(path).stat().st_size <= _MAX_SOURCE_BYTES:
                out[path] = Path(path).read_text(encoding="utf-8", errors="replace")
    return out
