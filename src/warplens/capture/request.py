"""What `warplens record` and `warplens.record` ask of a process, and the environment variable that carries it.

In: keyword arguments or the variable's text. Out: a checked `Request`, or the text. Processes read the same text in C++
(include/warplens/detail/host_options.hpp): a key added here wants a reader there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote_plus, urlencode

from warplens.capture.options import KEEPS, POLICIES
from warplens.errors import UsageError
from warplens.instrument import Budget, Selection

VARIABLE: Final = "WARPLENS_RECORD"
VERSION: Final = 1
SWITCH: Final = "on"
"""A file in the folder of the run, which is there while a signal has recording switched on."""
MAX_TEXT_BYTES: Final = 64 << 10
"""Linux takes 128 KiB for one variable."""
LEAST_CAPACITY_BYTES: Final = 1 << 20
MOST_CAPACITY_BYTES: Final = 16 << 30
_LEAST: Final = {"launch_skip": 0, "launch_count": 1, "rounds": 0, "every_block": 1}
_WORDS: Final = {"policy": POLICIES, "keep": KEEPS, "signal": (None, "USR1", "USR2")}
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
"""Bytes that are not UTF-8, as Python has them in arguments and names: a trace holds text alone."""
_NO_TEXT: Final = "\N{REPLACEMENT CHARACTER}"
_NOT_POSIX: Final = re.compile(r"\(\?|[*+?}][?+]|\\[dDsSwWAZ]")


@dataclass(frozen=True)
class Request:
    """Options of `warplens record` and `warplens.record`. Words that `RecordOptions` has too mean the same there.

    - kernels: a POSIX extended regular expression that is searched for in a kernel's name; None is all.
    - grids: launches with one of these grids (x, y, z) only; None is all.
    - nvtx_include: launches within an NVTX range alone, pushed by their thread or started by any, in whose name this
      expression is found. Of the command alone.
    - launch_skip: launches of such kernels, in each process, that are left out first.
    - launch_count: launches that are recorded then, in each process.
    - rounds: launches of each kernel and shape that run the build without marks, in turn with recorded ones, to compare
      times; as many recorded ones are timed. 0 times nothing.
    - capacity_bytes: memory for records, on each device. What does not fit is counted as lost.
    - every_block: record every n-th block only.
    - blocks: record these blocks only, by linear index; None is all.
    - warps: record these warps of a block only; None is all.
    - policy: "auto", or record only with this one (see `RecordOptions`). Code that nvcc built has the one that it was
      compiled with; where it is another, its launches are left out and counted.
    - keep: "oldest" or "newest" records, where they do not all fit; "newest" for `warplens.Kernel` alone.
    - cold_l2: put other data into the L2 cache before each launch that is recorded or timed.
    - replay: take the times of clean and traced launches by making the first recorded launch of each kernel and shape
      again, `rounds` times each, with the memory that its arguments point to saved and put back.
    - paused: record nothing until the program says so: `warplens::start_recording()` in C++, `rec.start()` in Python.
    - signal: record nothing until the command is sent this signal, "USR1" or "USR2"; the next one ends it. Of the
      command alone.
    - timeout_s: stop the program after so many seconds; None waits for ever. Of the command alone.
    - source: put the texts that sites stand in into the trace, 1 MB at most.
    - note: text that is kept in the trace and shown.
    - host, command: say in the trace on which host, or with which command, it was made.
    - auto: marks of kernels that have none in CUDA C++, those of Triton, CuPy and Numba: "off" (those of their
      source alone), "coarse" (waits outside of loops too), "waits", "all" (arrivals, issues and fences too).
    - sites: a regular expression that must be found in the name of such a mark's site; None is all.
    - budget, counts: leave out those sites that the first run, whose trace is `counts`, passed most often: so that a
      launch makes at most so many events ("20000"), or such a part of the first run's ("25%"). Of the command alone.
    """

    kernels: str | None = None
    launch_skip: int = 0
    launch_count: int = 100
    rounds: int = 10
    capacity_bytes: int = 256 << 20
    every_block: int = 1
    blocks: tuple[int, ...] | None = None
    warps: tuple[int, ...] | None = None
    grids: tuple[tuple[int, int, int], ...] | None = None
    nvtx_include: str | None = None
    policy: str = "auto"
    keep: str = "oldest"
    cold_l2: bool = False
    replay: bool = False
    paused: bool = False
    signal: str | None = None
    timeout_s: float | None = None
    source: bool = True
    note: str | None = None
    host: bool = False
    command: bool = False
    auto: str = "waits"
    sites: str | None = None
    budget: str | None = None
    counts: str | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is {value!r}: a whole number of at least {least} was expected")
        for name in ("kernels", "nvtx_include", "sites", "note", "budget", "counts"):
            if not isinstance(getattr(self, name), str | None):
                raise UsageError(f"{name} is {getattr(self, name)!r:.60}: a text was expected, or None")
        Selection(self.auto, self.sites)  # raises UsageError for what cannot be meant
        if (self.budget is None) != (self.counts is None):
            raise UsageError("budget and counts: a budget goes by what a first run counted, and both are needed")
        if self.budget is not None:
            Budget.of(self.budget, {})
        if not isinstance(self.capacity_bytes, int):
            raise UsageError(f"capacity_bytes is {self.capacity_bytes!r:.60}: a whole number of bytes was expected")
        if not LEAST_CAPACITY_BYTES <= self.capacity_bytes <= MOST_CAPACITY_BYTES:
            raise UsageError(f"a capacity of {self.capacity_bytes:,} bytes: expected 1 MiB to 16 GiB")
        if self.every_block >= 1 << 32:
            raise UsageError(f"every_block is {self.every_block}: below 2^32 was expected")
        _check_pattern("kernels", self.kernels)
        _check_pattern("nvtx_include", self.nvtx_include)
        if self.nvtx_include == "":
            raise UsageError("nvtx_include is empty: '.' is found in every range that has a name")
        for name, below in (("blocks", 1 << 26), ("warps", 32)):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            if not isinstance(numbers, Iterable):
                raise UsageError(f"{name} is {numbers!r}: expected numbers, such as (0, 1)")
            object.__setattr__(self, name, tuple(numbers))
            if not getattr(self, name):
                raise UsageError(f"{name} names none: None is all of them")
            if not all(isinstance(number, int) and 0 <= number < below for number in getattr(self, name)):
                raise UsageError(f"{name} are numbered 0 to {below - 1}, not {numbers!r:.60}")
        self._check_grids()
        for name, known in _WORDS.items():
            if getattr(self, name) not in known:
                said = ", ".join(str(word) for word in known)
                raise UsageError(f"{name} is {getattr(self, name)!r}: expected one of {said}")
        if self.timeout_s is not None and not 0 < self.timeout_s < 1e9:
            raise UsageError(f"timeout_s is {self.timeout_s!r}: expected a number of seconds above 0, or None")

    def _check_grids(self) -> None:
        if self.grids is None:
            return
        if not isinstance(self.grids, Iterable) or not self.grids:
            raise UsageError(f"grids is {self.grids!r:.60}: expected grids, such as [(528, 1, 1)]; None is all of them")
        grids = tuple(tuple(grid) if isinstance(grid, Iterable) else (grid,) for grid in self.grids)
        for grid in grids:
            if not 1 <= len(grid) <= 3 or not all(isinstance(size, int) and 0 < size < 1 << 31 for size in grid):
                raise UsageError(f"grids is {self.grids!r:.60}: expected one to three sizes each, such as (528, 1, 1)")
        object.__setattr__(self, "grids", tuple((*grid, 1, 1)[:3] for grid in grids))

    @classmethod
    def of(cls, options: dict[str, Any]) -> Request:
        """Options by name. Raises UsageError for a name that does not exist."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r} of record(): expected one of {', '.join(known)}")
        return cls(**options)

    @property
    def warp_mask(self) -> int:
        """Bit w: warp w of a block is recorded."""
        return 0xFFFFFFFF if self.warps is None else sum(1 << warp for warp in set(self.warps))


def _check_pattern(name: str, pattern: str | None) -> None:
    if pattern is None:
        return
    found = _NOT_POSIX.search(pattern)
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{name} is {pattern!r}, which is no regular expression: {error}") from error
    if found:
        raise UsageError(
            f"{name} is {pattern!r}: {found[0]!r} is not known to POSIX extended expressions, which programs in C++ "
            "read too; write [0-9] for \\d and a plain group for (?:"
        )


def to_text(request: Request, folder: str, *, host: str | None = None, command: list[str] | None = None) -> str:
    """The variable's text. `folder`: where processes leave their files, absolute. UsageError when it is too long."""
    keys: dict[str, Any] = {"version": VERSION, "folder": folder, "kernels": request.kernels or ""}
    keys["nvtx_include"] = request.nvtx_include or ""
    keys |= {name: getattr(request, name) for name in ("launch_skip", "launch_count", "rounds", "capacity_bytes")}
    keys |= {"every_block": request.every_block, "warp_mask": request.warp_mask, "paused": int(request.paused)}
    if request.signal is not None:
        keys["paused"] = 1
    keys |= {"switched": int(request.signal is not None), "source": int(request.source)}
    keys |= {"policy": request.policy, "keep": request.keep}
    keys["at_once"] = int(request.timeout_s is not None)
    keys |= {"cold_l2": int(request.cold_l2), "replay": int(request.replay)}
    keys["grids"] = ",".join("x".join(map(str, grid)) for grid in request.grids or ())
    keys["blocks"] = ",".join(map(str, sorted(set(request.blocks or ()))))
    for name, value in (("note", request.note), ("host", host), ("command", command)):
        if value is not None:
            keys[name] = _SURROGATES.sub(_NO_TEXT, json.dumps(value, ensure_ascii=False))
    keys |= {"auto": request.auto, "sites": request.sites or ""}
    keys |= {"budget": request.budget or "", "counts": request.counts or ""}
    text = urlencode(keys, errors="surrogateescape")  # paths and names need not be UTF-8
    if len(text) > MAX_TEXT_BYTES:
        longest = max(_SHORTER, key=lambda name: len(quote_plus(str(keys.get(name, "")), errors="surrogateescape")))
        raise UsageError(
            f"the options take {len(text):,} bytes on their way to the program: {MAX_TEXT_BYTES:,} fit; {longest} "
            f"takes most of them: {_SHORTER[longest]}"
        )
    return text


_SHORTER: Final = {
    "blocks": "name fewer, or record every n-th",
    "note": "shorten it",
    "kernels": "shorten the expression",
    "nvtx_include": "shorten the expression",
    "command": "do not ask for it, or shorten the program's arguments",
    "folder": "choose a place with a shorter path",
}
"""What to do where a key is too long."""


@dataclass(frozen=True)
class Asked:
    """What a process reads from the variable."""

    request: Request
    folder: str
    host: str | None = None
    command: list[str] | None = None
    switched: bool = False
    """Whether the file SWITCH in `folder` says from when to when is recorded."""
    at_once: bool = False
    """Whether what a warp records is to be in memory at once: with a time-out a kernel is expected to hang."""


def from_text(text: str) -> Asked | None:
    """The other way; None for a text of another version, or one that was not written by `to_text`."""
    keys = dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))
    try:
        if int(keys["version"]) != VERSION:
            return None
        mask = int(keys["warp_mask"])
        request = Request(
            auto=keys["auto"],
            sites=keys["sites"] or None,
            budget=keys["budget"] or None,
            counts=keys["counts"] or None,
            kernels=keys["kernels"] or None,
            launch_skip=int(keys["launch_skip"]),
            launch_count=int(keys["launch_count"]),
            rounds=int(keys["rounds"]),
            capacity_bytes=int(keys["capacity_bytes"]),
            every_block=int(keys["every_block"]),
            blocks=tuple(map(int, keys["blocks"].split(","))) if keys["blocks"] else None,
            warps=None if mask == 0xFFFFFFFF else tuple(warp for warp in range(32) if mask >> warp & 1),
            grids=_grids(keys["grids"]),
            nvtx_include=keys["nvtx_include"] or None,
            policy=keys["policy"],
            keep=keys["keep"],
            cold_l2=bool(int(keys["cold_l2"])),
            replay=bool(int(keys["replay"])),
            paused=bool(int(keys["paused"])),
            source=bool(int(keys["source"])),
            note=json.loads(keys["note"]) if "note" in keys else None,
        )
        switched, at_once = bool(int(keys["switched"])), bool(int(keys["at_once"]))
        host, command = (json.loads(keys[name]) if name in keys else None for name in ("host", "command"))
    except (KeyError, ValueError, TypeError, UsageError):
        return None
    return Asked(request, keys["folder"], host, command, switched, at_once)


def below_record(environment: Mapping[str, str]) -> bool:
    """Whether a `record` that is still running asks for this process's launches."""
    asked = from_text(environment.get(VARIABLE, ""))
    return asked is not None and Path(asked.folder).is_dir()


def _grids(text: str) -> tuple[tuple[int, int, int], ...] | None:
    grids = [tuple(map(int, grid.split("x"))) for grid in text.split(",") if grid]
    return tuple((x, y, z) for x, y, z in grids) or None


def rank_of(environment: dict[str, str]) -> int | None:
    """The process's rank as torchrun, MPI or Slurm name it; None where none does. host_writer.hpp asks the same."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        if re.fullmatch("[0-9]{1,9}", environment.get(name, "")):
            return int(environment[name])
    return None
