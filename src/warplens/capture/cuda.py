"""Kernels from CUDA C++ source: compiled clean and traced, launched, timed, recorded.

In: source, the kernel's name, launch arguments. Out: `Recording`. Adds launches of the kernel, so it must be one that
may be launched again with the same arguments.
"""

from __future__ import annotations

import contextlib
import datetime
import operator
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from warplens import __version__, layout
from warplens.capture import driver, machine
from warplens.capture.arena import Arena, Drained
from warplens.capture.arguments import Arguments
from warplens.capture.audited import audit_builds, line_options, not_audited
from warplens.capture.builds import Build, Compile, Launched, choose, policies, policy_options
from warplens.capture.calibrate import Calibrator
from warplens.capture.compile import compile_cubin, tells_constants
from warplens.capture.corrections import Launcher, corrections
from warplens.capture.library import Dim3, Library
from warplens.capture.modules import read_site_sets
from warplens.capture.options import RecordOptions, stream_handle
from warplens.capture.recording import Recording
from warplens.errors import DeviceError, FileError, SitesError, UsageError

_LONG_MS = 1000.0
"""A launch that lasts longer may outlast 2^32 cycles under other conditions."""
_TRIALS = 5
"""Launches of each of two builds that are compared; the first of each warms up."""


def dim3(value: int | Sequence[int], what: str) -> Dim3:
    """Three positive numbers of one, two or three, of Python or numpy. Raises UsageError."""
    try:
        numbers = tuple(operator.index(v) for v in (value if isinstance(value, Iterable) else (value,)))
    except TypeError as error:  # 1.5, "32", None
        raise UsageError(f"{what} is {value!r}: expected one to three positive numbers, whole ones") from error
    if not 1 <= len(numbers) <= 3 or any(n < 1 for n in numbers):
        raise UsageError(f"{what} is {value!r}: expected one to three positive numbers")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


class CudaKernel:
    """A marked kernel of a CUDA C++ source.

    name: the traced kernel as C++ names it, `"rmsnorm_fwd<true>"`. clean: the same kernel without marks; `"auto"`
    replaces the one template argument `true` in `name` by `false`; None means that there is none, and then nothing
    is said about disturbance. options: for NVRTC (`["-DTILE=64", "-Iinclude"]`). filename: the source's name in
    messages and in the trace.

    Raises CompileError, SitesError (the source declares no sites), DeviceError, MissingDependencyError.
    """

    def __init__(
        self,
        source: str,
        name: str,
        *,
        clean: str | None = "auto",
        options: Sequence[str] = (),
        filename: str = "kernel.cu",
    ) -> None:
        self.source, self.name, self.filename = source, name, filename
        self.options = tuple(options)
        self.clean = _clean_name(name) if clean == "auto" else clean
        self._device = driver.ensure_context()
        major, minor = (driver.attribute(self._device, f"COMPUTE_CAPABILITY_{n}") for n in ("MAJOR", "MINOR"))
        if (major, minor) < (8, 0):
            raise UsageError(f"this GPU has compute capability {major}.{minor}: warplens needs 8.0 or newer")
        self.arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
        self._builds: dict[tuple[str, tuple[str, ...]], Build] = {}
        self._arena: Arena | None = None
        self._calibrator: Calibrator | None = None
        self._audits: dict[tuple[str, ...], dict[str, Any]] = {}
        self._site_sets = read_site_sets(self._build(name, ()).compiled.cubin)
        if not self._site_sets:
            raise SitesError(
                f"{filename} declares no sites, so there is nothing to record: write "
                "WARPLENS_SITES(name, first, second) in it and put marks into the kernel (docs: mark your own kernel)"
            )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], name: str, **keywords: Any) -> Self:
        """A kernel of the source file at `path`; its folder is searched for includes. Raises FileError."""
        file = Path(path)
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{file} cannot be read as CUDA source: {error}") from error
        options = [*keywords.pop("options", ()), f"--include-path={file.resolve().parent}"]
        return cls(source, name, options=options, filename=keywords.pop("filename", file.name), **keywords)

    @property
    def site_sets(self) -> list[dict[str, Any]]:
        """The sites that the source declares, as the manifest lists them."""
        return self._site_sets

    def _build(self, name: str, extra: tuple[str, ...]) -> Build:
        key = (name, extra)
        if key not in self._builds:
            options = [*self.options, *extra, *line_options(self.options)]
            compiled = compile_cubin(self.source, [name], arch=self.arch, options=options, filename=self.filename)
            library = Library(compiled.cubin)
            self._builds[key] = Build(library, library.function(compiled.names[name], shown=name), compiled, extra)
        return self._builds[key]

    def traced_build(
        self, grid: Dim3, block: Dim3, options: RecordOptions, arena: Arena, *, loops: bool = False
    ) -> tuple[Build, dict[str, Any]]:
        """The build for this launch shape and arena, and the `kernels` entry of the manifest with both builds'
        resources. `loops`: for marks in loops, where NVRTC does not tell which ones are."""
        threads = block[0] * block[1] * block[2]
        most = driver.attribute(self._device, "MAX_THREADS_PER_BLOCK")
        if threads > most:
            raise UsageError(f"a block of {block} has {threads:,} threads: this GPU takes at most {most:,}")
        candidates = policies(threads) if options.policy == "auto" else [options.policy]
        if "packed" in candidates and threads % 32:
            raise UsageError(
                f"a block of {threads} threads is no multiple of 32, which the policy packed wants: say auto"
            )
        more = ["-DWARPLENS_1D"] if grid[1:] == (1, 1) and block[1:] == (1, 1) else []
        more += ["-DWARPLENS_LOOPS"] if loops else []
        more += arena.compile_options(narrowed=options.narrowed, listed=options.blocks is not None)
        launched = self.launched(block, options)
        clean = None if self.clean is None else launched.resources(self._build(self.clean, ()))
        policy, build, traced = choose(
            self.name,
            self.compiler(),
            {policy: (*policy_options(policy, threads), *more) for policy in candidates},
            launched,
            clean,
            allow_fewer_blocks=options.allow_fewer_blocks,
        )
        entry = {
            "name": self.name,
            "site_set": None,
            "policy": policy,
            "built_for_loops": loops,
            "register_limit": build.register_limit,
            "clean": clean,
            "traced": traced,
            "clean_ns": None,
            "traced_ns": None,
            "not_measured": None,
            "mark_cost_cycles": None,
            "corrections": None,
        }
        return build, entry

    def compiler(self) -> Compile:
        """What makes builds of the traced kernel, each once, from options."""
        return lambda options: self._build(self.name, options)

    def launched(self, block: Dim3, options: RecordOptions) -> Launched:
        """What decides how many such blocks an SM of this device holds."""
        registers = driver.attribute(self._device, "MAX_REGISTERS_PER_MULTIPROCESSOR")
        return Launched(block[0] * block[1] * block[2], options.shared_bytes, registers)

    def audited(self, traced: Build, site_set: str) -> dict[str, Any]:
        """The `audit` entry of the manifest for this traced build; one that was made before is kept."""
        key = (*traced.options, site_set)
        if key not in self._audits:
            builds = [(traced, self.name)]
            if self.clean is not None:
                builds.append((self._build(self.clean, ()), self.clean))
            code = [(build.compiled.cubin, build.compiled.names[name]) for build, name in builds]
            sites = next(own["sites"] for own in self.site_sets if own["name"] == site_set)
            self._audits[key] = audit_builds(
                code[0], code[1] if len(code) > 1 else None, sites, {self.filename: self.source}
            )
        return self._audits[key]

    def capture(self, grid: int | Sequence[int], block: int | Sequence[int], *args: Any, **options: Any) -> Recording:
        """Launch the kernel, clean and traced in turn, and record it.

        grid, block: one to three numbers each. args: the kernel's arguments: arrays of torch or CuPy, DLPack,
        `__cuda_array_interface__`, numpy arrays (copied to the GPU and back), numpy scalars, numbers. options: see
        `RecordOptions`. The kernel runs `2 * (warmup + rounds) + launches` times with the same arguments; with five
        rounds or more once or eleven times besides, to choose a build; and with `correct` and 4 rounds or more
        `warmup + 2 * min(rounds, 8)` times more.

        Raises UsageError, DeviceError (a launch failed), DisturbanceError (fewer resident blocks).
        """
        wanted = RecordOptions.of(options)
        shape = (dim3(grid, "grid"), dim3(block, "block"))
        session = _Session(self, shape, wanted)
        parameters = Arguments(args, session.traced.function.parameter_sizes())
        recording = session.run(parameters)
        parameters.copy_back()
        return recording


def _clean_name(name: str) -> str | None:
    head, bracket, arguments = name.partition("<")
    parts = [part.strip() for part in arguments.removesuffix(">").split(",")]
    if not bracket or parts.count("true") != 1:
        return None
    return f"{head}<{', '.join('false' if part == 'true' else part for part in parts)}>"


class _Session:
    """One call of `CudaKernel.capture`."""

    def __init__(self, kernel: CudaKernel, shape: tuple[Dim3, Dim3], options: RecordOptions) -> None:
        self.kernel, self.options = kernel, options
        self.grid, self.block = shape
        self.stream = stream_handle(options.stream)
        mapped = options.policy == "live"
        if kernel._arena is None or (kernel._arena.capacity_bytes, kernel._arena.mapped) != (
            options.capacity_bytes,
            mapped,
        ):
            sm_count = driver.attribute(kernel._device, "MULTIPROCESSOR_COUNT")
            kernel._arena = Arena(options.capacity_bytes, mapped=mapped, sm_count=sm_count)
        self.arena = kernel._arena
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
        if build is not self.clean:
            self.arena.clear_cursors(self.stream)
        self._flush_l2()
        events = [driver.call("cuEventCreate", 0) for _ in range(2)]
        driver.call("cuEventRecord", events[0], self.stream)
        self._launch(build, parameters)
        driver.call("cuEventRecord", events[1], self.stream)
        return events[0], events[1]

    def _flush_l2(self) -> None:
        if self.flush is not None:
            driver.call("cuMemsetD8Async", self.flush.address, 0, self.flush.size_bytes, self.stream)

    def _rounds(self, parameters: Arguments) -> None:
        """Time clean and traced launches in turn; sets the entry's times in ns."""
        builds = [build for build in (self.clean, self.traced) if build is not None]
        for _ in range(self.options.warmup):
            for build in builds:
                self.arena.clear_cursors(self.stream)
                self._launch(build, parameters)
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
        if self.entry["policy"] != "packed" or self.options.rounds < _TRIALS:
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

    def _correct(self, parameters: Arguments, manifest: dict[str, Any]) -> None:
        """Measure what marks cost, or say why not, in the kernel's entry of the manifest."""
        launcher = Launcher(
            compile=self.kernel.compiler(),
            start=lambda build: self._start(build, parameters),
            record=lambda build: self._record(build, parameters),
            launched=self.kernel.launched(self.block, self.options),
        )
        self.entry["corrections"] = found = corrections(launcher, self.traced, manifest, self.options)
        if found.get("mark_cycles") is not None:
            self.entry["mark_cost_cycles"] = found["mark_cycles"]["p50"]

    def run(self, parameters: Arguments) -> Recording:
        """All launches; the recording."""
        device = self.kernel._device
        state_before = machine.clock_state(device)
        try:
            self._choose_build(parameters)
            self._switch_on()
            self._rounds(parameters)
            kept = [self._keep(parameters) for _ in range(self.options.launches)]
            if not self.options.narrowed and not any(len(own.chunks) or own.lost_events for own in kept):
                raise SitesError(
                    f"{self.kernel.name} in {self.kernel.filename} ran and no warp of it recorded anything: has it a "
                    "Recorder, and is the argument set that switches it on?"
                )
            manifest = self._manifest(kept)
            self._correct(parameters, manifest)
        finally:
            with contextlib.suppress(DeviceError):  # after a failed launch every call fails: the first error counts
                self.arena.switch_off(self.stream)
        manifest["clock_state"] = {"before": state_before, "after": machine.clock_state(device)}
        manifest["calibration"] = self.calibration
        manifest["globaltimer_step_ns"] = self.calibrator.step_ns(self.stream)
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
            "capacity_bytes": options.capacity_bytes,
            "device": machine.device_facts(self.kernel._device),
            "clock_state": None,
            "globaltimer_step_ns": None,
            "calibration": [],
            "site_sets": self.kernel.site_sets,
            "kernels": [self.entry],
            "launches": launches,
        }
