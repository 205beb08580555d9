"""The recording that launches of Triton kernels make.

In: kernels with their entries, launches, memory. Out: `Recording`: a member of records for each launch.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from warplens import __version__, layout
from warplens.capture import driver, machine
from warplens.capture.audited import audit_builds, not_audited
from warplens.capture.library import Dim3, Function
from warplens.capture.recording import Recording
from warplens.capture.request import rank_of
from warplens.capture.triton_builds import clean_resources, launch_of
from warplens.capture.triton_memory import U32, Found, Made, Memory, divide

if TYPE_CHECKING:
    from warplens.capture.triton import TritonOptions

_MAX_SOURCE_BYTES: Final = 1 << 20


@dataclass
class Kernel:
    """A compiled kernel that has marks, and its entry in the manifest."""

    name: str
    entry: dict[str, Any]
    site_set: dict[str, Any]
    number: int
    warps: int
    shared_bytes: int
    cluster: tuple[int, ...]
    cubin: bytes

    @classmethod
    def of(cls, kernel: Any, site_set: dict[str, Any], known: list[Kernel], level: str) -> Kernel:
        """From a loaded kernel of Triton's. `known`: those before it, from whose names its own is told apart."""
        facts = kernel.metadata
        launch = launch_of(kernel.asm["ptx"], facts)
        native = Function(driver.bindings().CUfunction(kernel.function), kernel.name)
        traced = native.resources(launch.threads, facts.shared)
        if any(own.site_set["name"] == site_set["name"] for own in known):  # the same source, compiled otherwise
            site_set = {**site_set, "name": f"{site_set['name']}_{len(known)}"}
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
            "instrumented": {
                "from": "ptx",
                "level": level,
                "ptx_target": str(getattr(facts, "arch", "")),
                "left_out": list(getattr(kernel, "warplens_notes", [])),
            },
        }
        cluster = tuple(getattr(facts, "cluster_dims", None) or (getattr(facts, "num_ctas", 1) or 1, 1, 1))
        warps = -(-launch.threads // 32)
        return cls(kernel.name, entry, site_set, len(known), warps, facts.shared, cluster, kernel.asm["cubin"])


@dataclass(frozen=True)
class Launch:
    """A launch of the program's that was recorded, or captured in a graph."""

    kernel: Kernel
    grid: Dim3
    stream: int
    captured: bool
    kept: bool = True
    """False for one that was not asked for, and made while recording was on for the replays of a graph."""

    @classmethod
    def of(cls, kernel: Kernel, grid: tuple[Any, ...], stream: int, captured: bool, kept: bool) -> Launch:
        """With a grid of one to three numbers."""
        x, y, z = (*(int(size) for size in grid), 1, 1)[:3]
        return cls(kernel, (x, y, z), stream, captured, kept)


def make_recording(
    memory: Memory, stream: int, kernels: list[Kernel], launches: list[Launch], options: TritonOptions, notes: list[str]
) -> Recording | None:
    """All that was recorded; None where nothing of it is left. Adds what is left out to `notes`."""
    chunks, lost_events, lost_chunks = memory.drain(stream)
    if options.blocks is not None:  # the recorder in PTX takes every n-th block, and no list
        chunks = chunks[np.isin(chunks[:, layout.WORD_BLOCK], np.array(options.blocks, np.int64))]
    made = [Made(own.kernel.site_set["hash"], own.captured, math.prod(own.grid)) for own in launches]
    found = divide(chunks, made, memory.calibration, memory.step_ns)
    strange = len(chunks) - sum(len(own.chunks) for own in found)
    if strange:
        notes.append(f"{strange:,} chunks of records are left out: it is not known which launch wrote them")
    found = _chosen(found, launches, options)
    entries: list[dict[str, Any]] = []
    records: dict[str, U32] = {}
    wrote: dict[int, list[Found]] = {}
    for own in found:
        wrote.setdefault(own.made, []).append(own)
    for number, launch in enumerate(launches):
        if not launch.kept:
            continue
        for own in wrote.get(number) or ([] if launch.captured else [Found(number, 0, -1, chunks[:0])]):
            member = f"records/{len(records):06d}.u32" if len(own.chunks) else None
            if member:
                records[member] = own.chunks
            entries.append(_entry(launch, own, member, options))
    if not entries:
        notes.append("launches were captured in CUDA graphs, and none of the replays that were asked for was made")
        return None
    entries[-1] |= {"lost_events": lost_events, "lost_chunks": lost_chunks}  # counted over all: the last found no space
    for kernel in kernels:
        kernel.entry["audit"] = _audited(kernel)
    manifest = _manifest(memory, kernels, entries, options)
    return Recording(manifest, records, _sources(kernels) if options.source else {})


def _chosen(found: list[Found], launches: list[Launch], options: TritonOptions) -> list[Found]:
    """Of replays those that were asked for; ordinary launches were chosen as they were made."""
    first, count = options.launch_skip, options.launch_count
    last = first + count if count is not None else 1 << 62
    return [own for own in found if not launches[own.made].captured or first <= own.replay < last]


def _entry(launch: Launch, found: Found, member: str | None, options: TritonOptions) -> dict[str, Any]:
    own = launch.kernel
    return {
        "kernel": own.number,
        "grid": list(launch.grid),
        "block": [own.warps * 32, 1, 1],
        "cluster": list(own.cluster),
        "shared_bytes": own.shared_bytes,
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
    memory: Memory, kernels: list[Kernel], launches: list[dict[str, Any]], options: TritonOptions
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
        "triton": getattr(sys.modules.get("triton"), "__version__", None),
    }


def _audited(kernel: Kernel) -> dict[str, Any]:
    """The audit of the traced build alone: the clean one is not kept. It may not harm the program either."""
    try:
        return audit_builds((kernel.cubin, kernel.name), None, kernel.site_set["sites"], {})
    except Exception as error:
        return not_audited(f"the audit failed: {error}")


def _sources(kernels: list[Kernel]) -> dict[str, str]:
    """Texts of the files that sites stand in, where they can be read."""
    out = {}
    for path in sorted({site["file"] for own in kernels for site in own.site_set["sites"] if site["file"]}):
        with contextlib.suppress(OSError, ValueError):
            if Path(path).stat().st_size <= _MAX_SOURCE_BYTES:
                out[path] = Path(path).read_text(encoding="utf-8", errors="replace")
    return out
