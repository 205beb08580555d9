"""The recorder's own headers, compiled for the CPU: programs of marks in, chunks out.

device.h stands for the GPU, warps.cpp runs 32 lanes as fibers. Needs a C++ compiler, no GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.synthesis import BlockRecord, Clock, Event, Warp, calibration, detached, encode_warp, manifest
from warplens import layout
from warplens.capture.arena import ring_chunks, ring_cursors
from warplens.capture.compile import get_include
from warplens.decode import Decoded, decode
from warplens.decode.arrays import U32
from warplens.decode.manifest import check
from warplens.layout import Control, Verb

HERE = Path(__file__).parent
FULL = 0xFFFFFFFF
CLOCK = Clock(offset_cycles=8_000_000_000_000, cycles_per_ns=1.98)
SITES = [(name, "phase", "") for name in "abcdefgh"]
CODE_BITS = layout.code_bits(len(SITES))
NEWEST = "-DWARPLENS_KEEP_NEWEST"
POLICIES = {
    "packed": ["-DWARPLENS_POLICY=packed"],
    "counted": ["-DWARPLENS_POLICY=packed", "-DCOUNTED"],
    "untold": ["-DWARPLENS_POLICY=packed", "-DUNTOLD"],
    "mixed": ["-DWARPLENS_POLICY=packed", "-DMIXED"],
    "staged": ["-DWARPLENS_POLICY=staged"],
    "stream": ["-DWARPLENS_POLICY=stream"],
    "live": ["-DWARPLENS_POLICY=live"],
}
VERBS: dict[str, tuple[Any, str]] = {
    "p": (Verb.PHASE, ""),
    "P": (Verb.PHASE, "payload"),
    "e": (Control.PHASE_END, ""),
    "m": (Verb.MARK, ""),
    "M": (Verb.MARK, "payload"),
    "l": (Verb.MARK, "detached"),
    "L": (Verb.MARK, "detached payload"),
    "f": (Verb.MARK, "detached"),
    "F": (Verb.MARK, "detached payload"),
    "(": (Verb.RANGE_PUSH, ""),
    "[": (Verb.RANGE_PUSH, "payload"),
    ")": (Control.RANGE_POP, ""),
    "s": (Verb.RANGE_START, "token"),
    "t": (Control.TOKEN_END, "end"),
    "j": (Verb.RANGE_START, "id"),
    "k": (Verb.RANGE_END, "id"),
    "w": (Verb.WAIT, ""),
    "W": (Verb.WAIT, "payload"),
    "x": (Verb.WAIT, "id"),
    "a": (Verb.ARRIVE, ""),
    "y": (Verb.ARRIVE, "id"),
}


ITERATION = "i"
"""The begin of a loop's iteration: no event."""
DETACHED = frozenset(verb for verb, (_, takes) in VERBS.items() if takes.startswith("detached"))
"""Behind a step of these all lanes that are left come together again, as the hardware has them do behind a branch."""


@dataclass
class Step:
    """What the lanes of a mask do; verb "X": they leave."""

    verb: str
    site: int = 1
    value: int = 0
    lanes: int = FULL
    clock: int = 0


@dataclass
class Case:
    """One launch: a program for each warp of each block, in their order."""

    programs: list[list[Step]]
    blocks: int = 1
    threads: tuple[int, int, int] = (32, 1, 1)
    chunks: int = 3000
    shared_chunks: int = 2048
    every: int = 1
    every_iteration: int = 1
    warp_mask: int = FULL
    seed: int = 1
    sms: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    newest: bool = False
    stuck: int = 0
    """Chunks of a ring that others have open all the time, at most: some may be chosen twice."""

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-int(np.prod(self.threads)) // 32)

    def ringed(self) -> Case:
        """As rings, with the cursors that the host gives them."""
        self.newest, self.shared_chunks = True, ring_cursors(self.chunks)
        return self

    def timed(self, step_cycles: int = 1000) -> Case:
        """Sets clocks that go up step by step, a thousand cycles apart, and an SM a block."""
        for number, program in enumerate(self.programs):
            begin = CLOCK.offset_cycles + 100_000 + 37 * number
            for index, step in enumerate(program):
                step.clock = begin + (index + 1) * step_cycles
            self.ends.append(begin + (len(program) + 1) * step_cycles)
            self.sms.append(number // self.warps % 8)
        return self


@dataclass
class Result:
    """What a launch left: chunks (uint32, shape (n, 32)), lost events, and what must not happen."""

    chunks: U32
    lost_events: int
    faults: list[str]


def build(
    policy: str, folder: Path, marks: int = 1, *, newest: bool = False, every: int = 0, all_recorded: bool = False
) -> Path:
    """The program for a storage policy, which takes each mark but a warp's first `marks` times.

    With `newest` the chunks are a ring; with `every` the compiler knows that every n-th block is recorded, with
    `all_recorded` that all warps are.

    "counted" is `packed` where the compiler counts the records, "untold" where it cannot say whether it does, "mixed"
    where it counts those of the first three steps alone.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler was found: apt install g++"
    kind = f"{'-newest' if newest else ''}{f'-every{every}' if every else ''}{'-all' if all_recorded else ''}"
    program = folder / f"emulation-{policy}-{marks}{kind}"
    include = [f"-I{get_include()}", "-include", str(HERE / "device.h")]
    frames = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]  # operate() asks who called its caller
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-frame-address"]
    chosen = [*POLICIES[policy], f"-DWARPLENS_MARKS={marks}", *([NEWEST] if newest else [])]
    chosen += [f"-DWARPLENS_EVERY={every}u"] if every else []
    chosen += ["-DWARPLENS_ALL_RECORDED"] if all_recorded else []
    options = ["-std=c++17", "-O0", *frames, *warnings, *chosen, *include]
    subprocess.run([compiler, *options, "-o", program, HERE / "warps.cpp"], check=True)
    return program


def run(program: Path, cases: list[Case]) -> list[Result]:
    """Runs the cases, one after the other."""
    lines = [str(len(cases))]
    for case in cases:
        choice = layout.choice(every_block=case.every, warp_mask=case.warp_mask, every_iteration=case.every_iteration)
        head = case.seed, case.chunks, case.shared_chunks, case.stuck, *choice, case.blocks
        lines.append(" ".join(map(str, (*head, *case.threads, len(case.programs)))))
        for steps, sm, end in zip(case.programs, case.sms, case.ends, strict=True):
            lines.append(f"{len(steps)} {sm}")
            lines += [f"{s.lanes} {s.verb} {s.site} {s.value} {s.clock}" for s in steps]
            lines.append(str(end))
    out = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=300)
    text = iter(out.stdout.splitlines())
    results = []
    for case in cases:
        count, lost, faults = map(int, next(text).split())
        told = [next(text) for _ in range(faults)]
        words = np.array([next(text).split() for _ in range(count)], np.uint32).reshape(-1, 33)
        chunks = words[:, :32]
        results.append(Result(ring_chunks(chunks, words[:, 32]) if case.newest else chunks, lost, told))
    return results


def facts(case: Case, lost_events: int = 0) -> dict[str, Any]:
    """A manifest for the case."""
    launch = {"grid": [case.blocks, 1, 1], "block": list(case.threads), "lost_events": lost_events}
    launch |= {"every": case.every, "warp_mask": case.warp_mask, "lost_chunks": min(lost_events, 1)}
    made = manifest(launches=[launch], sites=SITES, sm_count=8, set_name="emulation")
    after_ns = 20_000_000 + int((max(case.ends) - CLOCK.offset_cycles) / CLOCK.cycles_per_ns)
    around = [("before", 0), ("after", after_ns)]
    made["keep"] = "newest" if case.newest else "oldest"
    return check({**made, "calibration": [calibration([CLOCK] * 8, when, t_ns) for when, t_ns in around]})


def decoded(case: Case, result: Result) -> Decoded:
    """The launch as a user sees it."""
    return decode(facts(case, result.lost_events), {"records/000000.u32": result.chunks})


def events(steps: list[Step], end: int, marks: int = 1) -> list[Event]:
    """What all lanes of a warp record together, each but the first `marks` times, and its end."""
    out: list[Event] = []
    sequence, tokens = 0, {}
    for step in steps:
        if step.verb in DETACHED or step.verb == ITERATION:
            continue
        verb, takes = VERBS[step.verb]
        if takes == "token":
            tokens[step.value % 16] = sequence
        number = {"end": tokens.get(step.value % 16, 0), "id": step.value}.get(takes)
        site = 0 if isinstance(verb, Control) else step.site
        event = Event(verb, step.clock, site, id=number, payload=step.value if takes == "payload" else None)
        copies = marks if out else 1
        out += [event] * copies
        sequence += event.words * copies
    return [*out, Event(Control.END, end)]


def reference(case: Case, marks: int = 1) -> Result:
    """The chunks that the tests' own encoder makes of the case's warps, uniform but for their detached marks."""
    made = []
    for number, (steps, sm, end) in enumerate(zip(case.programs, case.sms, case.ends, strict=True)):
        block, warp = divmod(number, case.warps)
        if block % case.every or not case.warp_mask >> warp & 1:
            continue
        begin = next((step.clock for step in steps if step.verb not in DETACHED | {ITERATION}), end)
        record = BlockRecord(begin, sm, layout.sites_hash("emulation")) if warp == 0 else None
        where = Warp(block=block, warp=warp, sm=sm, code_bits=CODE_BITS, clock=CLOCK)
        made.append(encode_warp(events(steps, end, marks), where, block_record=record))
        for step in steps:
            if step.verb in DETACHED and step.lanes and marks:
                payload = step.value if step.verb in "LF" else None
                made.append(detached(Event(Verb.MARK, step.clock, step.site, payload=payload), where, step.lanes))
    return Result(np.concatenate(made) if made else np.zeros((0, 32), np.uint32), 0, [])
