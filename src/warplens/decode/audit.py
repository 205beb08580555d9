"""What a launch should have given and did not: losses, absent warps, foreign sites, sites never reached.

In: ordered chunks, block records, the spans' sites and the manifest. Out: problem rows. Must not change a table.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from warplens import layout
from warplens.decode.arrays import I64
from warplens.decode.chunks import Chunks
from warplens.decode.manifest import chosen_blocks, chosen_warps, overwrites
from warplens.decode.problems import Problem, Problems
from warplens.decode.times import BlockRecords
from warplens.layout import ChunkFlag

Severity = Literal["loss", "error", "note"]


def tell_launches(
    chunks: Chunks, records: BlockRecords, manifest: dict[str, Any], problems: Problems, alone: Chunks
) -> None:
    """Problems of whole launches, and of warps by the flags of their chunks; `alone` are those of detached events."""
    launches = len(manifest["launches"])
    arrived = np.bincount(chunks.launch[chunks.first_of_warp], minlength=launches)
    detached = np.bincount(alone.launch, minlength=launches)
    stopped = manifest["stopped"]
    if stopped is not None:
        text = f"{stopped['why']} (after {stopped['after_s']:.3g} s): what was lost, if anything, could not be counted"
        problems.add(Problem("stopped", 1, "loss", text))
    elif not manifest["complete"]:
        text = "the recording did not end in order (crash, time-out or kill): only whole launches are here"
        problems.add(Problem("incomplete_file", 1, "loss", text))
    newest = manifest["keep"] == "newest"
    for launch, entry in enumerate(manifest["launches"]):
        if entry["lost_events"]:
            lost, in_chunks = entry["lost_events"], entry["lost_chunks"]
            how = "were overwritten (keep=newest) or found no space" if newest else "found no space"
            text = f"{lost} records in {in_chunks} chunks {how}: raise the capacity or record fewer blocks"
            problems.add(Problem("lost_events", lost, "loss", text, launch))
        # Where nothing else came and nothing was lost the kernel has no recorder: no warp must leave anything.
        without_recorder = not arrived[launch] and detached[launch] and not entry["lost_events"]
        expected = 0 if without_recorder else expected_warps(entry)
        if int(arrived[launch]) < expected:
            missing = expected - int(arrived[launch])
            severity: Severity = "loss"
            text = f"{missing} of {expected} warps left no record{_first_missing(chunks, launch, entry)}"
            if overwrites(manifest, launch):
                text += ", or all of theirs were overwritten (keep=newest)"
            if stopped is not None and launch == len(manifest["launches"]) - 1:
                severity, text = "note", f"{text}: they had not begun, or had come to no mark"
            problems.add(Problem("missing_warp", missing, severity, text, launch))
    _tell_flag(
        chunks, ChunkFlag.PARTIAL, "partial_warp", "note", "marks of a warp that ran with lanes missing", problems
    )
    text = "lanes of the warp disagreed about its marks: they are not warp-uniform, its times are not to be trusted"
    _tell_flag(chunks, ChunkFlag.NONUNIFORM, "nonuniform_marks", "error", text, problems)
    _tell_moved(chunks, records, problems)
    _tell_unknown_sm(chunks, problems)
    _tell_hash(chunks, records, manifest, problems)


def tell_sites(reached: I64, base: list[int], events: I64, manifest: dict[str, Any], problems: Problems) -> None:
    """Sites of recorded kernels that no span `reached`; `base`, the first site of its set, is per launch."""
    first, seen = 0, set(reached.tolist())
    for entry in manifest["site_sets"]:
        ran = any(b == first and count for b, count in zip(base, events.tolist(), strict=True))
        names = [s["name"] for i, s in enumerate(entry["sites"]) if first + i not in seen]
        if ran and names:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            text = f"sites of {entry['name']} that no warp reached: {shown}"
            problems.add(Problem("site_never_reached", len(names), "note", text))
        first += len(entry["sites"])


def expected_warps(entry: dict[str, Any]) -> int:
    """Warps that the launch should have recorded; 0 when it was off."""
    if entry["every"] == 0:
        return 0
    return int(len(chosen_blocks(entry)) * len(chosen_warps(entry)))


def _first_missing(chunks: Chunks, launch: int, entry: dict[str, Any]) -> str:
    """Where the first absent warp is, as the end of a sentence."""
    warps = chosen_warps(entry)
    low, high = np.searchsorted(chunks.launch, [launch, launch + 1])
    at = slice(int(low), int(high))
    here = chunks.first_of_warp[at]
    block, warp = chunks.block[at][here], chunks.warp[at][here]
    rank = np.searchsorted(warps, warp)
    blocks = chosen_blocks(entry)
    arrived = np.searchsorted(blocks, block) * len(warps) + rank  # ascends, and is 0, 1, 2 ... while none is absent
    absent = np.flatnonzero(arrived != np.arange(len(arrived)))
    first = int(absent[0]) if len(absent) else len(arrived)
    return f" (the first: block {blocks[first // len(warps)]} warp {warps[first % len(warps)]})"


def _tell_flag(chunks: Chunks, flag: ChunkFlag, kind: str, severity: Severity, text: str, problems: Problems) -> None:
    at = np.flatnonzero(chunks.has(flag))
    if not len(at):
        return
    problems.places(
        kind,
        severity,
        text,
        launch=chunks.launch[at],
        block=chunks.block[at],
        warp=chunks.warp[at],
        sequence=chunks.sequence[at],
        count=chunks.count[at],
    )


def _tell_moved(chunks: Chunks, records: BlockRecords, problems: Problems) -> None:
    """Warps seen on two SMs: preempted and resumed elsewhere, where another clock runs."""
    moved = ~chunks.first_of_warp
    moved[1:] &= chunks.sm[1:] != chunks.sm[:-1]
    moved[records.chunk] |= records.sm != chunks.sm[records.chunk]
    at = np.flatnonzero(moved)
    problems.places(
        "sm_changed",
        "error",
        "the warp changed its SM (preempted?): its times before and after cannot be compared to the cycle",
        launch=chunks.launch[at],
        block=chunks.block[at],
        warp=chunks.warp[at],
        sequence=chunks.sequence[at],
    )


def _tell_unknown_sm(chunks: Chunks, problems: Problems) -> None:
    """Warps whose SM only the block record could tell, and that is missing."""
    at = np.flatnonzero((chunks.sm == layout.META_SM_UNKNOWN) & chunks.first_of_warp)
    problems.places(
        "sm_unknown",
        "error",
        "the block's record is missing: neither its SM nor its SM's clock is known, its times are a guess",
        launch=chunks.launch[at],
        block=chunks.block[at],
        warp=chunks.warp[at],
    )


def _tell_hash(chunks: Chunks, records: BlockRecords, manifest: dict[str, Any], problems: Problems) -> None:
    by_name = {entry["name"]: entry["hash"] for entry in manifest["site_sets"]}
    names = [manifest["kernels"][entry["kernel"]]["site_set"] for entry in manifest["launches"]]
    launch = chunks.launch[records.chunk]
    expected = np.array([by_name[name] for name in names], np.int64)[launch]
    at = records.chunk[records.sites_hash != expected]
    problems.places(
        "sites_disagree",
        "error",
        "the block was recorded with another site table than the file's: its sites may be misnamed",
        launch=chunks.launch[at],
        block=chunks.block[at],
        warp=chunks.warp[at],
    )
