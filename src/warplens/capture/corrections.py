"""What marks cost in this kernel, measured by launches of a build that takes each mark twice, and of one that takes a
warp's first mark and its end alone.

In: the traced build, a way to launch a build and drain what it wrote, the facts of the launch. Out: the manifest's
`kernels[i].corrections`, plain data; a reason in place of it where nothing can be said. The estimate itself is
decode/corrections.py's: pure, without Polars.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warplens import layout
from warplens.capture.arena import Drained
from warplens.capture.builds import Build, Compile, Launched, fitting, policies, policy_options
from warplens.capture.options import RecordOptions
from warplens.decode import corrections as estimation
from warplens.errors import CompileError

COPIES: Final = 2
TWO_MARKS: Final = 0
"""Copies of each mark but a warp's first, in the build that tells how long it lives without them."""
MOST_LAUNCHES: Final = 8
"""Of each build: the half width of an interval from 8 is 1.3 times that from 20."""
MOST_CHUNKS: Final = 1 << 13
"""Chunks of a launch that are looked at: 0.2 million events."""


def launches_of(options: RecordOptions) -> int:
    """Launches of each build that corrections take with these options; 0 when there are none."""
    wanted = min(options.rounds, MOST_LAUNCHES) if options.correct else 0
    return wanted if wanted >= estimation.LEAST_LAUNCHES else 0


def marks_option(copies: int) -> str:
    """What compiles a kernel so that each mark but a warp's first is taken `copies` times."""
    return f"-DWARPLENS_MARKS={copies}"


def multiple_build(
    build: Compile, options: tuple[str, ...], resources: dict[str, int], launched: Launched, copies: int = COPIES
) -> tuple[Build, dict[str, int]]:
    """The build by these options with other copies of each mark, resident and spilling as the traced one, which has
    `resources`. Raises UnfitError."""
    what = "the two-mark build" if copies == TWO_MARKS else f"the build with {copies} of each mark"
    try:
        found = fitting(build, (*options, marks_option(copies)), launched, resources["resident_blocks"])
    except CompileError as error:
        raise estimation.UnfitError(f"{what} does not compile: {error}") from error
    wanted = resources["resident_blocks"]
    if found is None:
        raise estimation.UnfitError(f"an SM does not hold {wanted} blocks of {what}")
    if found[1]["resident_blocks"] != wanted:
        holds = f"an SM holds {found[1]['resident_blocks']} blocks"
        raise estimation.UnfitError(f"{holds} of {what}, and {wanted} of the traced one")
    if found[1]["local_bytes"] > resources["local_bytes"]:
        raise estimation.UnfitError(f"{what} spills registers")
    return found


def anchor_options(own: tuple[str, ...], threads: int) -> list[tuple[str, ...]]:
    """Options of the two-mark build, in the order to try, where nobody asked for a policy.

    First by `packed`, which waits for no memory at a warp's first mark and does nothing in front of the clock of its
    end; then by `own`, those of the traced build.
    """
    others = tuple(o for o in own if not o.startswith(("-DWARPLENS_POLICY=", "-DWARPLENS_MAX_WARPS=")))
    packed = tuple(policy_options("packed", threads))
    if "packed" not in policies(threads) or len(others) == len(own) or set(packed) <= set(own):
        return [own]
    return [(*packed, *others), own]


def two_mark_build(
    launcher: Launcher, traced: Build, resources: dict[str, int], *, any_policy: bool = True
) -> tuple[Build, dict[str, int]]:
    """The build that anchors corrections, and its resources; unless `any_policy`, of the traced build's policy. Raises
    UnfitError where none is like the traced one."""
    *before, last = anchor_options(traced.options, launcher.launched.threads) if any_policy else [traced.options]
    for tried in before:
        with contextlib.suppress(estimation.UnfitError):
            return multiple_build(launcher.compile, tried, resources, launcher.launched, TWO_MARKS)
    return multiple_build(launcher.compile, last, resources, launcher.launched, TWO_MARKS)


def some_blocks(chunks: NDArray[np.uint32], share: float) -> NDArray[np.uint32]:
    """The chunks of about that share of the blocks: the same blocks each time, spread over the grid."""
    if share >= 1:
        return chunks
    spread = chunks[:, layout.WORD_BLOCK] * np.uint32(2654435761)  # Knuth's multiplicative hash
    return chunks[spread < np.uint32(share * 2**32)]


@dataclass
class Launcher:
    """How a session launches: `start` lets a build record and warms it up, `record` launches it and drains it."""

    compile: Compile
    start: Callable[[Build], None]
    record: Callable[[Build], Drained]
    launched: Launched


def corrections(launcher: Launcher, traced: Build, manifest: dict[str, Any], options: RecordOptions) -> dict[str, Any]:
    """The manifest's `corrections` of its one kernel; `traced` is the build that it was recorded with."""
    launches = launches_of(options)
    try:
        if not launches:
            least = f"rounds={options.rounds}, and {estimation.LEAST_LAUNCHES} are needed"
            raise estimation.UnfitError(least if options.correct else "correct=False")
        resources = manifest["kernels"][0]["traced"]
        doubled, its_resources = multiple_build(launcher.compile, traced.options, resources, launcher.launched)
        launcher.start(doubled)
        builds, anchor = {1: traced, COPIES: doubled}, dict[str, Any]()
        try:
            builds[TWO_MARKS], anchor["resources"] = two_mark_build(
                launcher, traced, resources, any_policy=options.policy == "auto"
            )
            launcher.start(builds[TWO_MARKS])
        except estimation.UnfitError as reason:  # what the marks cost directly can still be told
            anchor["not_measured"] = str(reason)
        found = _measured(launcher.record, builds, manifest, launches, anchor)
    except estimation.UnfitError as reason:
        return {"not_measured": str(reason)}
    return {"not_measured": None, "doubled": its_resources, **found, "anchor": found["anchor"] | anchor}


def _measured(
    record: Callable[[Build], Drained],
    builds: dict[int, Build],
    manifest: dict[str, Any],
    launches: int,
    anchor: dict[str, Any],
) -> dict[str, Any]:
    """Launches of each of the builds, by copies, in turn. Where the two-mark build does not tell lives it is launched
    no more, and `anchor` says why."""
    times: dict[int, list[estimation.LaunchTimes]] = {1: [], COPIES: [], TWO_MARKS: []}
    share = 1.0
    for number in range(launches):
        turn = list(builds.items())
        for copies, build in turn if number % 2 == 0 else turn[::-1]:
            drained = record(build)
            if drained.lost_events:
                raise estimation.UnfitError("records found no space: raise capacity_bytes")
            if not times[1]:
                share = MOST_CHUNKS / max(len(drained.chunks), 1)
            try:
                times[copies].append(measured_launch(drained, manifest, max(copies, 1), share))
            except estimation.UnfitError as reason:
                if copies != TWO_MARKS:
                    raise
                anchor["not_measured"] = f"the two-mark build: {reason}"
                del builds[TWO_MARKS], anchor["resources"]
    bare = times[TWO_MARKS] if TWO_MARKS in builds else []
    why = anchor.get("not_measured", "")
    return estimation.estimate(times[1], times[COPIES], bare, copies=COPIES, not_anchored=why)


def measured_launch(
    drained: Drained, manifest: dict[str, Any], copies: int, share: float = 1.0
) -> estimation.LaunchTimes:
    """Durations in a launch of the shape of the manifest's first one, in about that share of its blocks."""
    entry = manifest["launches"][0] | {"grid_id": None, "records": "records/000000.u32"}
    facts = {**manifest, "launches": [entry], "calibration": []}
    return estimation.measure(some_blocks(drained.chunks, share), facts, copies=copies)
