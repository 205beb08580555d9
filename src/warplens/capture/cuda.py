"""Kernels from CUDA C++ source: compiled clean and traced, launched, timed, recorded.

In: source, the kernel's name, launch arguments. Out: `Recording`. Adds launches of the kernel, so it must be one that
may be launched again with the same arguments.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from warplens.capture import driver
from warplens.capture.arena import Arena
from warplens.capture.arguments import Arguments
from warplens.capture.audited import audit_builds, line_options
from warplens.capture.builds import Build, Compile, Launched, choose, policies, policy_options
from warplens.capture.calibrate import Calibrator
from warplens.capture.compile import compile_cubin
from warplens.capture.library import Dim3, Library
from warplens.capture.modules import read_site_sets
from warplens.capture.options import RecordOptions
from warplens.capture.recording import Recording
from warplens.capture.session import Session
from warplens.errors import FileError, SitesError, UsageError

_OFF = "-DWARPLENS_ON=false"
"""For the clean build: marks in functions that are no templates do not name a switch."""


def dim3(value: int | Sequence[int], what: str) -> Dim3:
    """Three positive numbers of one, two or three, of Python or numpy. Raises UsageError."""
    if type(value) is int and value > 0:  # as most launches have it
        return value, 1, 1
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
        self._plain: Build | None = None
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
            off = [_OFF] if name == self.clean else []
            options = [*self.options, *extra, *off, *line_options(self.options)]
            compiled = compile_cubin(self.source, [name], arch=self.arch, options=options, filename=self.filename)
            library = Library(compiled.cubin)
            self._builds[key] = Build(library, library.function(compiled.names[name], shown=name), compiled, extra)
        return self._builds[key]

    def traced_build(
        self, grid: Dim3, block: Dim3, options: RecordOptions, arena: Arena, *, loops: bool | None = None
    ) -> tuple[Build, dict[str, Any]]:
        """The build for this launch shape and arena, and the `kernels` entry of the manifest with both builds'
        resources. `loops`: in place of the options', None for theirs."""
        loops = bool(options.loops if loops is None else loops)
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
        in_clusters = options.cluster is not None or self._build(self.name, ()).function.needs_cluster()
        more += [] if in_clusters else ["-DWARPLENS_NO_CLUSTER"]
        more += arena.compile_options(
            narrowed=options.narrowed, listed=options.blocks is not None, every=options.known_step
        )
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

    def plain_build(self) -> Build:
        """What a program launches: the clean kernel, or the only one."""
        if self._plain is None:
            self._plain = self._build(self.clean or self.name, ())
        return self._plain

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

    def _where(self, recording: Recording) -> tuple[str, ...]:  # noqa: ARG002  (Kernel's uses it)
        """Where the warps of a kernel that was stopped last were, as lines; decoding them is a later stage's."""
        return ()

    def capture(self, grid: int | Sequence[int], block: int | Sequence[int], *args: Any, **options: Any) -> Recording:
        """Launch the kernel, clean and traced in turn, and record it.

        grid, block: one to three numbers each. args: the kernel's arguments: arrays of torch or CuPy, DLPack,
        `__cuda_array_interface__`, numpy arrays (copied to the GPU and back), numpy scalars, numbers. options: see
        `RecordOptions`. The kernel runs `2 * (warmup + rounds) + launches` times with the same arguments; with five
        rounds or more once or eleven times besides, to choose a build; and with `correct` and 4 rounds or more
        `2 * warmup + 3 * min(rounds, 8)` times more.

        With policy "live" a launch that hangs or crashes, or that is interrupted, is a StoppedError, which holds what
        was recorded until then.

        Raises UsageError, DeviceError (a launch failed), StoppedError, DisturbanceError (fewer resident blocks).
        """
        wanted = RecordOptions.of(options)
        shape = (dim3(grid, "grid"), dim3(block, "block"))
        session = Session(self, shape, wanted)
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
