"""One recording of a kernel: its launches, clean and traced in turn, and what is made of them.

In: a compiled kernel, a launch shape, options, arguments. Out: `Recording`, or StoppedError with what there was. Must
not compile anything itself.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from warplens import __version__, layout
from warplens.capture import driver, machine
from warplens.capture.arena import Arena, Drained
from warplens.capture.arguments import Arguments
from warplens.capture.audited import not_audited
from warplens.capture.builds import Build
from warplens.capture.calibrate import Calibrator
from warplens.capture.compile import tells_constants
from warplens.capture.corrections import Launcher, corrections
from warplens.capture.library import Dim3
from warplens.capture.options import RecordOptions, stream_handle
from warplens.capture.recording import Recording
from warplens.capture.stopped import Stop, mark_stopped, wait_for_stream
from warplens.errors import DeviceError, SitesError, StoppedError, UsageError

if TYPE_CHECKING:
    from warplens.capture.cuda import CudaKernel

_LONG_MS = 1000.0
"""A launch that lasts longer may outlast 2^32 cycles under other conditions."""
_TRIALS = 5
"""Launches of each of two builds that are compared; the first of each warms up."""


class Session:
    """One call of `CudaKernel.capture`: its launches, and the recording that they make."""

    def __init__(self, kernel: CudaKernel, shape: tuple[Dim3, Dim3], options: RecordOptions) -> None:
        self.kernel, self.options = kernel, options
        self.grid, self.block = shape
        self.stream = stream_handle(options.stream)
        self.live = options.policy == "live"
        self.kept: list[Drained] = []
        wanted = options.capacity_bytes, self.live, options.keep == "newest"
        arena = kernel._arena
        if arena is None or (arena.capacity_bytes, arena.mapped, arena.newest) != wanted:
            sm_count = driver.attribute(kernel._device, "MULTIPROCESSOR_COUNT")
            arena = Arena(wanted[0], mapped=wanted[1], newest=wanted[2], sm_count=sm_count)
        self.arena = kernel._arena = arena
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        if options.blocks and max(options.blocks) >= blocks:
            raise UsageError(f"block {max(options.blocks)} is to be recorded: the grid {self.grid} has {blocks} blocks")
        self.traced, self.entry = kernel.traced_build(*shape, options, self.arena)
        self.clean = kernel._build(kernel.clean, ()) if kernel.clean else None
        for build in filter(None, (self.clean, self.traced)):
            build.function.allow_shared_bytes(options.shared_bytes)
        kernel._calibrator = kernel._calibrator or Calibrator(kernel._device, kernel.arch)
        self.calibrator = kernel._calibrator
        self.calibration: list[dict[str, Any]] = []
        self.facts = machine.device_facts(kernel._device)
        self.state_before = machine.clock_state(kernel._device)
        self.step_ns: int | None = None
        l2_bytes = driver.attribute(kernel._device, "L2_CACHE_SIZE")
        self.flush = driver.DeviceMemory(2 * l2_bytes) if options.cold_l2 else None

    def _point(self, build: Build) -> None:
        """Let a build find the arena."""
        symbol = build.library.symbol(layout.DESCRIPTOR_SYMBOL)
        driver.copy_to_device(int(symbol or 0), self.arena.descriptor().reshape(1), self.stream)

    def _switch_on(self) -> None:
        options = self.options
        self._point(self.traced)
        self.arena.choose(
            self.stream,
            blocks=options.blocks,
            every_block=options.every_block,
            warp_mask=options.warp_mask,
            every_iteration=options.every_iteration,
        )

    def _launch(self, build: Build, parameters: Arguments) -> None:
        options = self.options
        build.function.launch(
            self.grid,
            self.block,
            parameters.table,
            options.shared_bytes,
            self.stream,
            options.cluster,
            options.cooperative,
        )

    def _timed(self, build: Build, parameters: Arguments) -> tuple[Any, Any]:
        """One launch between two events."""
        self._make_room(build)
        self._flush_l2()
        events = [driver.call("cuEventCreate", 0) for _ in range(2)]
        driver.call("cuEventRecord", events[0], self.stream)
        self._launch(build, parameters)
        driver.call("cuEventRecord", events[1], self.stream)
        self._outlive(build)
        return events[0], events[1]

    def _make_room(self, build: Build) -> None:
        """Let a launch that is not kept write over what those before it wrote."""
        if build is not self.traced:
            return
        if self.live:  # it may be the one that hangs, and then all that lies there is read
            self.arena.clear(self.stream)
        else:
            self.arena.clear_cursors(self.stream)

    def _flush_l2(self) -> None:
        if self.flush is not None:
            driver.call("cuMemsetD8Async", self.flush.address, 0, self.flush.size_bytes, self.stream)

    def _rounds(self, parameters: Arguments) -> None:
        """Time clean and traced launches in turn; sets the entry's times in ns."""
        builds = [build for build in (self.clean, self.traced) if build is not None]
        for _ in range(self.options.warmup):
            for build in builds:
                self._make_room(build)
                self._launch(build, parameters)
                self._outlive(build)
        events: dict[int, list[tuple[Any, Any]]] = {id(build): [] for build in builds}
        for number in range(self.options.rounds):
            for timed in builds if number % 2 == 0 else builds[::-1]:
                events[id(timed)].append(self._timed(timed, parameters))
        driver.call("cuStreamSynchronize", self.stream, doing=f"running {self.kernel.name}")
        for key, of in (("clean_ns", self.clean), ("traced_ns", self.traced)):
            if of is not None and self.options.rounds:
                pairs = events[id(of)]
                self.entry[key] = [float(driver.call("cuEventElapsedTime", *pair)) * 1e6 for pair in pairs]
        for pair in (pair for pairs in events.values() for pair in pairs):
            for event in pair:
                driver.call("cuEventDestroy", event)
        if self.clean is None:
            self.entry["not_measured"] = "no clean kernel was named"
        elif not self.options.rounds:
            self.entry["not_measured"] = "rounds=0"

    def _choose_build(self, parameters: Arguments) -> None:
        """Whether to build for marks in loops.

        For kernels of seconds, whose times it tells beyond any doubt; and where NVRTC does not say which marks are in
        loops, if it is the faster one of two builds, by the median launch.
        """
        asked = self.options.loops is not None
        if asked or self.entry["policy"] != "packed" or self.options.rounds < _TRIALS:
            return
        lasts_ms = self._time_once(self.traced, parameters)
        if lasts_ms < _LONG_MS and tells_constants():
            return
        other = self.kernel.traced_build(self.grid, self.block, self.options, self.arena, loops=True)
        if lasts_ms >= _LONG_MS:
            self.traced, self.entry = other
            return
        first = self.traced, self.entry
        times: list[list[float]] = [[], []]
        for number in range(2 * _TRIALS):
            build, _ = (first, other)[number % 2]
            times[number % 2].append(self._time_once(build, parameters))
        fewer = other[1]["traced"]["resident_blocks"] < first[1]["traced"]["resident_blocks"]
        self.traced, self.entry = first if fewer or median(times[0][1:]) <= median(times[1][1:]) else other

    def _time_once(self, build: Build, parameters: Arguments) -> float:
        """Milliseconds of one launch of a traced build; it is the one that is switched on from now on."""
        self.traced = build
        build.function.allow_shared_bytes(self.options.shared_bytes)
        self._switch_on()
        begin, end = self._timed(build, parameters)
        driver.call("cuStreamSynchronize", self.stream, doing=f"running {self.kernel.name}")
        lasted_ms = float(driver.call("cuEventElapsedTime", begin, end))
        for event in (begin, end):
            driver.call("cuEventDestroy", event)
        return lasted_ms

    def _keep(self, parameters: Arguments) -> Drained:
        """One traced launch between two calibrations, with nothing of the host's in between."""
        self.arena.clear(self.stream)
        before = self.calibrator.begin(self.stream)
        self._flush_l2()
        self._launch(self.traced, parameters)
        after = self.calibrator.begin(self.stream)
        driver.call("cuStreamSynchronize", self.stream, doing=f"running {self.kernel.name}")
        self.calibration.append(self.calibrator.read(before, "before", self.stream))
        self.calibration.append(self.calibrator.read(after, "after", self.stream))
        return self.arena.drain(self.stream)

    def _record(self, build: Build, parameters: Arguments) -> Drained:
        """One launch under the conditions of `_keep`, and what it wrote."""
        self.arena.clear(self.stream)
        pairs = self.calibrator.begin(self.stream)
        self._flush_l2()
        self._launch(build, parameters)
        driver.call("cuStreamSynchronize", self.stream, doing=f"running {self.kernel.name}")
        del pairs  # its memory may go only now
        return self.arena.drain(self.stream)

    def _start(self, build: Build, parameters: Arguments) -> None:
        """Let one more build record, and warm it up."""
        build.function.allow_shared_bytes(self.options.shared_bytes)
        self._point(build)
        for _ in range(self.options.warmup):
            self.arena.clear_cursors(self.stream)
            self._launch(build, parameters)

    def _correct(self, parameters: Arguments) -> None:
        """Measure what marks cost, or say why not, in the kernel's entry of the manifest."""
        manifest = {**self._manifest(self.kept), "clock_state": None, "globaltimer_step_ns": None, "calibration": []}
        launcher = Launcher(
            compile=self.kernel.compiler(),
            start=lambda build: self._start(build, parameters),
            record=lambda build: self._record(build, parameters),
            launched=self.kernel.launched(self.block, self.options),
        )
        self.entry["corrections"] = found = corrections(launcher, self.traced, manifest, self.options)
        if found.get("mark_cycles") is not None:
            self.entry["mark_cost_cycles"] = found["mark_cycles"]["p50"]

    def _keep_live(self, parameters: Arguments) -> Drained:
        """As `_keep`, but all that a launch that hangs could hold up is done before it."""
        self.arena.clear(self.stream)
        room = self.calibrator.allocate()
        before = self.calibrator.begin(self.stream)
        self.calibration.append(self.calibrator.read(before, "before", self.stream))
        self._flush_l2()
        self._launch(self.traced, parameters)
        self._outlive(self.traced, lambda: self.calibrator.begin(self.stream, room))
        self.calibration.append(self.calibrator.read(room, "after", self.stream))
        return self.arena.drain(self.stream)

    def _outlive(self, build: Build, first: Callable[[], object] | None = None) -> None:
        """With policy live, wait for the launch of `build`; StoppedError where it does not end."""
        if not self.live:
            return
        stop = wait_for_stream(self.kernel.name, self.stream, self.options.timeout_s, first)
        if stop is None:
            return
        if build is self.traced:
            recording, name = self._stopped(stop, *self.arena.look()), self.kernel.name
        else:
            stop = Stop(f"its clean build, which records nothing, was running: {stop.why}", stop.after_s, stop.cause)
            recording, name = self._stopped(stop), str(self.kernel.clean)
        error = StoppedError(f"{name} was stopped after {stop.after_s:.3g} s: {stop.why}", recording)
        error.where = self.kernel._where(recording)
        raise error from stop.cause

    def _stopped(self, stop: Stop, chunks: Any = None, last: Any = None) -> Recording:
        """What was recorded until `stop`: the launches before, and this one where it is given."""
        kept = self.kept if chunks is None else [*self.kept, Drained(chunks, 0, 0)]
        if self.entry["clean_ns"] is None:
            self.entry["not_measured"] = "the kernel was stopped before" if self.clean else "no clean kernel was named"
        recording = self._recording(kept, state_after=None)
        return mark_stopped(recording, stop, np.zeros((0, 4), np.uint32) if last is None else last)

    def run(self, parameters: Arguments) -> Recording:
        """All launches; the recording."""
        if self.live:
            self.step_ns = self.calibrator.step_ns(self.stream)
        try:
            self._choose_build(parameters)
            self._switch_on()
            if not self.live:
                self._rounds(parameters)
            for _ in range(self.options.launches):
                self.kept.append(self._keep_live(parameters) if self.live else self._keep(parameters))
            if self.live:
                self._rounds(parameters)
            if not self.options.narrowed and not any(len(own.chunks) or own.lost_events for own in self.kept):
                raise SitesError(
                    f"{self.kernel.name} in {self.kernel.filename} ran and no warp of it recorded anything: has it a "
                    "Recorder, and is the argument set that switches it on?"
                )
            if not self.live:
                self._correct(parameters)
        finally:
            with contextlib.suppress(DeviceError):  # after a failed launch every call fails: the first error counts
                self.arena.switch_off(self.stream)
        self.step_ns = self.step_ns or self.calibrator.step_ns(self.stream)
        return self._recording(self.kept, machine.clock_state(self.kernel._device))

    def _recording(self, kept: list[Drained], state_after: dict[str, Any] | None) -> Recording:
        manifest = self._manifest(kept)
        manifest["clock_state"] = {"before": self.state_before, "after": state_after}
        manifest["calibration"] = list(self.calibration)
        manifest["globaltimer_step_ns"] = self.step_ns
        records = {f"records/{i:06d}.u32": drained.chunks for i, drained in enumerate(kept)}
        return Recording(manifest, records, {self.kernel.filename: self.kernel.source})

    def _site_set(self, kept: list[Drained]) -> str:
        """Name of the set that the kernel's recorder was made with: blocks write its hash."""
        names = {site_set["hash"]: str(site_set["name"]) for site_set in self.kernel.site_sets}
        word = layout.BLOCK_RECORD_WORD + layout.BLOCK_SITES_HASH
        flag = np.uint32(layout.ChunkFlag.BLOCK_RECORD << layout.META_FLAGS_SHIFT)
        for drained in kept:
            written = drained.chunks[drained.chunks[:, layout.WORD_META] & flag != 0, word]
            if len(written) and int(written[0]) in names:
                return names[int(written[0])]
        return next(iter(names.values()))

    def _manifest(self, kept: list[Drained]) -> dict[str, Any]:
        options = self.options
        self.entry["site_set"] = self._site_set(kept)
        if options.audit:
            self.entry["audit"] = self.kernel.audited(self.traced, self.entry["site_set"])
        else:
            self.entry["audit"] = not_audited("audit=False")
        launches = []
        for number, drained in enumerate(kept):
            grids = np.unique(drained.chunks[drained.chunks[:, layout.WORD_META] != 0, layout.WORD_GRID])
            launches.append(
                {
                    "kernel": 0,
                    "grid": list(self.grid),
                    "block": list(self.block),
                    "cluster": list(options.cluster or (1, 1, 1)),
                    "shared_bytes": options.shared_bytes,
                    "stream": self.stream,
                    "rank": int(os.environ.get("RANK", "0")) if os.environ.get("RANK", "0").isdigit() else 0,
                    "replay": 0,
                    "grid_id": int(grids[0]) if len(grids) == 1 else None,
                    "records": f"records/{number:06d}.u32",
                    "lost_events": drained.lost_events,
                    "lost_chunks": drained.lost_chunks,
                    "every": options.every_block,
                    "warp_mask": options.warp_mask,
                    "blocks": None if options.blocks is None else sorted(set(options.blocks)),
                    "cold_l2": options.cold_l2,
                }
            )
        return {
            "format": "wlens",
            "version": list(layout.FORMAT_VERSION),
            "warplens": __version__,
            "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "complete": True,
            "note": options.note,
            "host": platform.node() if options.host else None,
            "command": sys.argv if options.command else None,
            "policy": self.entry["policy"],
            "keep": options.keep,
            "capacity_bytes": options.capacity_bytes,
            "device": self.facts,
            "site_sets": self.kernel.site_sets,
            "kernels": [self.entry],
            "launches": launches,
        }
