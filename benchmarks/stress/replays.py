"""Graphs of programmatic launches, replayed a thousand times; two processes on one GPU.

In: nothing. Out: rows. A launch of a graph's replay is told by its number, which the device counts.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from canaries import BUILDS, SOURCE
from launching import INT, POINTER, count_events, launch, point, row

from warplens import layout
from warplens.capture import driver
from warplens.capture.arena import Arena, Window
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions
from warplens.errors import DeviceError

NODES, BLOCKS, WARPS, NODE_EVENTS, REPLAYS = 2, 64, 4, 3, 1000
WINDOW = Window(first=1001, launches=6)
CODE_BITS = layout.code_bits(3)
WORKER_S = 3.0


class Chain:
    """A captured graph of two kernels, the second launched programmatically: it may begin while the first runs."""

    def __init__(self, build_name: str, *, waits_first: bool, chunks: int) -> None:
        policy, options = BUILDS[build_name]
        name = f"node<true, {'true' if waits_first else 'false'}>"
        kernel = CudaKernel(SOURCE, name, clean=None, filename="kernels.cu")
        self.arena = Arena(layout.CONTROL_BYTES + chunks * layout.CHUNK_BYTES)
        shape = (BLOCKS, 1, 1), (WARPS * 32, 1, 1)
        wanted = RecordOptions(policy=policy, loops=bool(options), blocks=tuple(range(BLOCKS)))
        self.build, _ = kernel.traced_build(*shape, wanted, self.arena)
        point(self.build, self.arena)
        self.times = driver.DeviceMemory(16 * NODES)
        self.stream = driver.call("cuStreamCreate", 1)
        native = driver.bindings()
        driver.call("cuStreamBeginCapture", self.stream, native.CUstreamCaptureMode(2))
        for number in range(NODES):
            self._launch(native, number, programmatic=number > 0)
        graph = driver.call("cuStreamEndCapture", self.stream)
        self.programmatic_edges = _programmatic_edges(graph)
        self.graph = driver.call("cuGraphInstantiate", graph, 0)

    def _launch(self, native: Any, number: int, *, programmatic: bool) -> None:
        config = native.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = BLOCKS, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = WARPS * 32, 1, 1
        config.hStream = self.stream
        attributes = []
        if programmatic:
            attribute = native.CUlaunchAttribute()
            attribute.id = native.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        values = (self.times.address, number), (ctypes.c_void_p, ctypes.c_int)
        driver.call("cuLaunchKernelEx", config, self.build.function.handle, values, 0)

    def replay(self, times: int) -> None:
        """Launch the graph so often, and wait."""
        for _ in range(times):
            driver.call("cuGraphLaunch", self.graph, self.stream)
        driver.call("cuStreamSynchronize", self.stream, doing="replaying a graph")

    def overlap_ns(self) -> int:
        """How long before the first kernel's end the second began, in one replay; below 0 when it waited."""
        driver.copy_to_device(self.times.address, np.array([2**64 - 1, 0] * NODES, np.uint64), int(self.stream))
        self.replay(1)
        times = driver.copy_from_device(self.times.address, (NODES, 2), np.uint64, int(self.stream)).astype(np.int64)
        return int(times[0, 1] - times[1, 0])


def _programmatic_edges(graph: Any) -> int | None:
    """Edges of the graph that are programmatic; None where the driver does not tell."""
    native = driver.bindings()
    try:
        edges = driver.call("cuGraphGetEdges", graph, NODES)[2]
    except (TypeError, IndexError, DeviceError):
        return None
    programmatic = int(native.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return sum(int(edge.type) == programmatic for edge in list(edges)[: NODES - 1])


def graphs() -> Iterator[dict[str, Any]]:
    """All events of 1,000 replays are kept or counted; of a window, its launches alone."""
    for name, (policy, _) in BUILDS.items():
        if policy == "live":
            continue
        for waits_first in (False, True):
            where = f"{name}, recorder {'behind' if waits_first else 'in front of'} the wait"
            yield _all_counted(where, Chain(name, waits_first=waits_first, chunks=5000))
            chain = Chain(name, waits_first=waits_first, chunks=40_000)
            yield _window_alone(where, chain, promised=waits_first or policy == "packed")


def _all_counted(where: str, chain: Chain) -> dict[str, Any]:
    overlap_ns = chain.overlap_ns()  # switched off until here
    chain.arena.choose(int(chain.stream))
    chain.replay(REPLAYS)
    drained = chain.arena.drain(int(chain.stream))
    kept, total = count_events(drained.chunks, CODE_BITS), REPLAYS * NODES * BLOCKS * WARPS * NODE_EVENTS
    return row(
        f"{REPLAYS} replays with PDL, {where}",
        kept + drained.lost_events == total and drained.lost_events > 0 and overlap_ns > 0,
        total=total,
        events=kept,
        lost_events=drained.lost_events,
        programmatic_edges=chain.programmatic_edges,
        second_began_before_end_of_first_ns=overlap_ns,
    )


def _window_alone(where: str, chain: Chain, *, promised: bool) -> dict[str, Any]:
    """A recorder that asks in front of the wait can take an overlapping launch for the one before it."""
    chain.arena.choose(int(chain.stream), window=WINDOW)
    chain.replay(REPLAYS)
    drained = chain.arena.drain(int(chain.stream))
    launches, chunks = np.unique(drained.chunks[:, layout.WORD_GRID], return_counts=True)
    counted = dict(zip(launches.tolist(), chunks.tolist(), strict=True))
    wanted = {WINDOW.first + i: BLOCKS * WARPS for i in range(WINDOW.launches)}
    exact = counted == wanted and drained.lost_events == 0
    return row(
        f"window of {WINDOW.launches} launches, {where}",
        exact if promised else None,
        exact=exact,
        chunks_by_launch=counted,
        lost_events=drained.lost_events,
    )


def worker() -> None:
    """Launch and count for some seconds, when told to; the totals as JSON on standard output."""
    kernel = CudaKernel(SOURCE, "loops<true>", clean=None, filename="kernels.cu")
    arena, memory = Arena(1 << 20), driver.DeviceMemory(4)
    shape = (500, 1, 1), (192, 1, 1)
    turns, each = 100, sum(4 * (100 + w % 3) for w in range(6)) * 500
    builds = []
    for policy, options in BUILDS.values():
        if policy != "live":
            wanted = RecordOptions(policy=policy, loops=bool(options))
            builds.append(kernel.traced_build(*shape, wanted, arena)[0])
    for build in builds:
        point(build, arena)
    arena.choose(0)
    print("ready", flush=True)
    sys.stdin.readline()
    begin, launches, wrong, kept, lost = time.time(), 0, 0, 0, 0
    while time.time() - begin < WORKER_S:
        arena.clear(0)
        launch(builds[launches % len(builds)], *shape, (memory.address, turns), (POINTER, INT))
        drained = arena.drain(0)
        events = count_events(drained.chunks, CODE_BITS)
        wrong += events + drained.lost_events != each
        kept, lost, launches = kept + events, lost + drained.lost_events, launches + 1
    found = {"launches": launches, "wrong": wrong, "events": kept, "lost_events": lost}
    print(json.dumps({**found, "begin": begin, "end": time.time()}), flush=True)


def processes() -> Iterator[dict[str, Any]]:
    """Two processes at the same time, each with an arena of its own."""
    command = [sys.executable, str(Path(__file__).parents[1] / "stress.py"), "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for child in children:
            if child.stdout.readline().strip() != "ready":
                raise RuntimeError("a process did not come up")
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        found = [json.loads(child.communicate(timeout=40)[0].strip().splitlines()[-1]) for child in children]
    finally:
        for child in children:
            child.kill()
    together_s = min(own["end"] for own in found) - max(own["begin"] for own in found)
    exact = all(own["wrong"] == 0 and own["launches"] > 0 for own in found)
    yield row("two processes at once", exact and together_s > WORKER_S / 2, together_s=together_s, processes=found)
