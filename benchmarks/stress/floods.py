"""More events than there is room for, and more sites than anyone declares.

In: nothing. Out: rows: 10^9 events into 1 MB, 300 and 1,023 sites with their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from canaries import BUILDS, SOURCE
from launching import INT, count_events, launch, point, row

import warplens
from warplens import layout
from warplens.capture import driver
from warplens.capture.arena import Arena
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions

BLOCKS, WARPS, TURNS = 1000, 8, 125_000
CAPACITY_BYTES = 1 << 20
MANY_BLOCKS, MANY_THREADS = 3, 64


def billion() -> Iterator[dict[str, Any]]:
    """10^9 events into 1 MB, by each policy that writes to the GPU's memory."""
    kernel = CudaKernel(SOURCE, "flood<true>", clean=None, filename="kernels.cu")
    arena = Arena(CAPACITY_BYTES)
    shape = (BLOCKS, 1, 1), (WARPS * 32, 1, 1)
    total = BLOCKS * WARPS * TURNS
    for name, (policy, options) in BUILDS.items():
        if policy == "live":  # writes each event over PCIe and waits for it: hours
            continue
        build, _ = kernel.traced_build(*shape, RecordOptions(policy=policy, loops=bool(options)), arena)
        point(build, arena)
        arena.clear(0)
        arena.choose(0)
        events = [driver.call("cuEventCreate", 0) for _ in range(2)]
        driver.call("cuEventRecord", events[0], 0)
        launch(build, *shape, (TURNS,), (INT,))
        driver.call("cuEventRecord", events[1], 0)
        drained = arena.drain(0)
        lasted_ms = float(driver.call("cuEventElapsedTime", *events))
        kept = count_events(drained.chunks, layout.code_bits(3))
        yield row(
            f"10^9 events into 1 MB, {name}",
            kept + drained.lost_events == total == 10**9 and 0 < kept <= CAPACITY_BYTES // 4,
            total=total,
            events=kept,
            lost_events=drained.lost_events,
            lost_chunks=drained.lost_chunks,
            kernel_ms=lasted_ms,
        )


def many_sites_source(count: int, *, line: bool) -> str:
    """A kernel that passes each of `count` sites once, in a straight line or in a loop."""
    names = [f"site_{i:04d}" for i in range(count)]
    marks = "".join(f"  rec.phase(many::{name});\n" for name in names)
    if not line:
        marks = f"""#pragma unroll 1
  for (unsigned i = 1; i <= {count}u; ++i) rec.phase(static_cast<many::Site>(i));
"""
    return f"""#include <warplens/warplens.cuh>
WARPLENS_SITES(many, {", ".join(names)});
template <bool kTrace> __global__ void pass() {{
  warplens::Recorder<many, kTrace> rec;
{marks}}}
"""


def many_sites() -> Iterator[dict[str, Any]]:
    """All sites are recorded, in their order, under their names, and once a warp."""
    policies = ("packed", "staged", "stream", "live")
    yield from _many_sites(300, ("packed",), line=True)  # compiling it takes seconds
    yield from _many_sites(300, policies, line=False)
    yield from _many_sites(1023, policies, line=False)


def _many_sites(count: int, policies: tuple[str, ...], *, line: bool) -> Iterator[dict[str, Any]]:
    kernel = warplens.Kernel(many_sites_source(count, line=line), "pass<true>", clean=None)
    for policy in policies:
        trace = kernel.record(MANY_BLOCKS, MANY_THREADS, policy=policy, rounds=0, warmup=0, audit=False)
        names = dict(zip(trace.sites["site"].to_list(), trace.sites["name"].to_list(), strict=True))
        spans = trace.spans.sort("block", "warp", "sequence")
        found = [names[site] for site in spans["site"].to_list()]
        wanted = [f"site_{i:04d}" for i in range(count)] * (MANY_BLOCKS * MANY_THREADS // 32)
        losses = trace.problems.filter(trace.problems["severity"] == "loss")["text"].to_list()
        where = "a straight line" if line else "a loop"
        name = f"{count} sites in {where}, {policy}"
        yield row(name, found == wanted and not losses, spans=len(found), losses=losses)
