"""Which builds of a kernel are tried for a launch, and in what order.

In: threads of a block, the blocks that an SM holds of the clean build, a way to compile. Out: the traced build that
keeps as many resident, or an error. Must not launch anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from warplens.capture.arguments import Arguments
from warplens.capture.compile import Compiled
from warplens.capture.library import Dim3, Function, Library
from warplens.capture.options import RecordOptions, stream_handle
from warplens.errors import CompileError, DisturbanceError

LIMIT_OPTION = "--maxrregcount="
OVERRIDE_OPTION = "--ptxas-options=--override-directive-values"
"""A kernel with __launch_bounds__ takes a limit only with this, which CUDA before 12.8 lacks."""


@dataclass
class Build:
    """One compiled and loaded form of the kernel."""

    library: Library
    function: Function
    compiled: Compiled
    options: tuple[str, ...]

    def launch(self, shape: tuple[Dim3, Dim3], options: RecordOptions, given: Arguments) -> None:
        """One launch of it. Raises DeviceError."""
        if options.shared_bytes:
            self.function.allow_shared_bytes(options.shared_bytes)
        stream = stream_handle(options.stream)
        more = options.cluster, options.cooperative
        self.function.launch(*shape, given.table, options.shared_bytes, stream, *more)

    @property
    def register_limit(self) -> int | None:
        """The most registers of a thread that it was compiled with; None without a limit."""
        limits = [option.removeprefix(LIMIT_OPTION) for option in self.options if option.startswith(LIMIT_OPTION)]
        return int(limits[-1]) if limits else None


@dataclass
class Launched:
    """What decides how many blocks an SM holds: threads of a block, its dynamic shared memory, the SM's registers."""

    threads: int
    shared_bytes: int
    sm_registers: int

    def resources(self, build: Build) -> dict[str, int]:
        """Registers, memory and resident blocks of a build, which gets its dynamic shared memory: or none would be."""
        build.function.allow_shared_bytes(self.shared_bytes)
        return build.function.resources(self.threads, self.shared_bytes)

    def register_limit(self, resident_blocks: int) -> int:
        """The most registers of a thread with which an SM holds so many blocks."""
        # Warps are dealt to the four quarters of an SM, each with a quarter of its registers, in units of eight.
        warps_of_quarter = max(-(-resident_blocks * -(-self.threads // 32) // 4), 1)
        return self.sm_registers // 4 // (warps_of_quarter * 32) // 8 * 8


Compile = Callable[[tuple[str, ...]], Build]


def policies(threads: int) -> list[str]:
    """Storage policies that take such a block, the cheapest first."""
    return ["packed", "stream", "staged"] if threads % 32 == 0 else ["staged"]


def policy_options(policy: str, threads: int) -> list[str]:
    """What compiles a kernel with a policy that it does not name itself."""
    warps = [f"-DWARPLENS_MAX_WARPS={(threads + 31) // 32}"] if policy == "staged" else []
    return [f"-DWARPLENS_POLICY={policy}", *warps]


def limited(options: tuple[str, ...], limit: int) -> Iterator[tuple[str, ...]]:
    """`options` as they are, then with a limit of registers that kernels with bounds of their own may not take, then
    with one that they take."""
    yield options
    if limit >= 16:
        yield (*options, f"{LIMIT_OPTION}{limit}")
        yield (*options, f"{LIMIT_OPTION}{limit}", OVERRIDE_OPTION)


def fitting(
    build: Compile, options: tuple[str, ...], launched: Launched, resident_blocks: int
) -> tuple[Build, dict[str, int]] | None:
    """The first build with these options, limited where need be, of which as many blocks are resident; or None."""
    for number, wanted in enumerate(limited(options, launched.register_limit(resident_blocks))):
        # Without a limit it must compile; a compiler may lack the options of the others.
        with contextlib.suppress(CompileError) if number else contextlib.nullcontext():
            made = build(wanted)
            resources = launched.resources(made)
            if resources["resident_blocks"] >= resident_blocks:
                return made, resources
    return None


def choose(
    name: str,
    build: Compile,
    candidates: dict[str, tuple[str, ...]],
    launched: Launched,
    clean: dict[str, int] | None,
    *,
    allow_fewer_blocks: bool = False,
) -> tuple[str, Build, dict[str, int]]:
    """The policy, the traced build and its resources, of `candidates` (options by policy, in the order to try).

    Each policy is tried as it is and then with fewer registers, until as many blocks are resident as of the clean
    build and no more is spilled. Where all that keep the blocks spill, the one that spills least is taken. Raises
    DisturbanceError when none keeps them, unless `allow_fewer_blocks`: then the first one is taken.
    """
    wanted_blocks = 0 if clean is None else clean["resident_blocks"]
    spilling: list[tuple[str, Build, dict[str, int]]] = []
    for policy, options in candidates.items():
        found = fitting(build, options, launched, wanted_blocks)
        if found is None:
            continue
        if clean is None or found[1]["local_bytes"] <= clean["local_bytes"]:
            return policy, *found
        spilling.append((policy, *found))
    if spilling:
        return min(spilling, key=lambda tried: tried[2]["local_bytes"])
    policy, options = next(iter(candidates.items()))
    first = build(options)
    traced = launched.resources(first)
    if allow_fewer_blocks:
        return policy, first, traced
    raise _too_large(name, traced, clean or {}, list(candidates))


def _too_large(name: str, traced: dict[str, int], clean: dict[str, Any], tried: list[str]) -> DisturbanceError:
    return DisturbanceError(
        f"{name}: an SM holds {clean['resident_blocks']} blocks of the clean build and only "
        f"{traced['resident_blocks']} of the traced one ({traced['registers']} registers and "
        f"{traced['shared_bytes']:,} bytes of shared memory, clean {clean['registers']} and "
        f"{clean['shared_bytes']:,}); the trace would show another kernel. Fewer registers, and the policies "
        f"{' and '.join(tried)}, did not help. Record fewer values across marks, or pass allow_fewer_blocks=True"
    )
