"""Which clock reads are marks, and which instructions are pins; what is the recorder's and what the kernel's.

In: the flow of a kernel. Out: `Mark`s (named by names.py) and `Pin`s. A clock read is a mark when the lines that it was
inlined from lead through warplens.cuh into the user's source, and no other of the same call stands in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warplens import layout
from warplens.audit.flow import Flow
from warplens.audit.names import Mark, Names, Texts, decoded
from warplens.audit.ptx import Ptx
from warplens.audit.sass import Frame, Instruction

_IN_PTX: Final = re.compile(rf"(?:^|[/\\]){re.escape(layout.MARKS_FILE)}$")
_OURS: Final = re.compile(rf"(?:^|[/\\])warplens[/\\](?:warplens\.cuh|detail[/\\]\w+\.(?:cuh|h))$|{_IN_PTX.pattern}")
_RECORDER: Final = re.compile(r"[/\\]warplens\.cuh$")
_PIN: Final = re.compile(r"[/\\]detail[/\\]landed\.cuh$")
ENDS_A_PHASE: Final = frozenset({"phase", "wait", "end_phase", "end", ""})
"""Verbs that end the open phase or wait; "end" is the recorder's destructor, "" one that is not known."""


@dataclass(frozen=True)
class Pin:
    """A `landed` of the source: the indices of its instructions in one run of the code."""

    indices: tuple[int, ...]
    frames: tuple[Frame, ...]


def is_clock_read(instruction: Instruction) -> bool:
    """Whether it reads the SM's clock."""
    return "SR_CLOCK" in instruction.operands


def is_ours(instruction: Instruction) -> bool:
    """Whether it is of the recorder, not of the kernel."""
    return any(_OURS.search(frame.file) for frame in instruction.frames)


def user_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames outside of warplens' headers, the innermost first: where the user wrote it."""
    last = max((n for n, frame in enumerate(frames) if _OURS.search(frame.file)), default=-1)
    return tuple(frames[last + 1 :])


def place_apart(frames: Sequence[Frame], mark: Sequence[Frame]) -> Frame:
    """The line of an instruction in the function where its way parts from that to a mark; ("", 0) when not known.

    A load in a device function counts as its call, beside a mark of the kernel, and as itself beside a mark in it.
    """
    own, other = list(frames), list(mark)
    while len(own) > 1 and len(other) > 1 and own[-1] == other[-1]:
        own.pop()
        other.pop()
    return own[-1] if own else Frame("", 0)


def find_pins(flow: Flow) -> list[Pin]:
    """The pins, in the order of their addresses."""
    pins: list[tuple[tuple[Frame, ...], list[int]]] = []
    for index, instruction in enumerate(flow.section.code):
        if not any(_PIN.search(frame.file) for frame in instruction.frames):
            continue
        frames = user_frames(instruction.frames)
        block = flow.block_of[index]
        if pins and pins[-1][0] == frames and flow.block_of[pins[-1][1][-1]] == block:
            pins[-1][1].append(index)
        else:
            pins.append((frames, [index]))
    # What it computes may be moved away: the pin is where its load of shared memory stands.
    return [Pin(tuple(run), frames) for frames, run in pins if any(flow.section.code[i].name == "LDS" for i in run)]


def find_marks(flow: Flow, sites: Sequence[dict[str, Any]], texts: Texts, ptx: Ptx) -> list[Mark]:
    """The marks, in the order of their addresses. `sites` as the manifest lists those of one set."""
    code = flow.section.code
    reads = [index for index, instruction in enumerate(code) if is_clock_read(instruction)]
    if not flow.section.has_lines:
        why = "no line information: compile with -lineinfo"
        return [Mark(index, "", None, (), why) for index in reads]
    if any(_IN_PTX.search(frame.file) for index in reads for frame in code[index].frames):
        return list(_marks_in_ptx(code, reads, sites))
    calls = {index: _call_of(code[index]) for index in reads}
    own = set(_own_reads(flow, calls))
    names = Names(sites, texts, [(code[index], call) for index, call in calls.items() if call is not None], ptx)
    return [
        names.mark(index, code[index], call)
        for index, call in calls.items()
        if call is not None and not names.is_no_mark(code[index], index in own)
    ]


def _marks_in_ptx(code: Sequence[Instruction], reads: Sequence[int], sites: Sequence[dict[str, Any]]) -> Iterator[Mark]:
    """Marks of instrumented PTX: their lines are their codes."""
    for index in reads:
        lines = [frame.line - layout.MARKS_LINES for frame in code[index].frames if _IN_PTX.search(frame.file)]
        found = decoded(lines[0], len(sites)) if lines else None
        if found is not None:
            site, verb = found
            place = () if site is None else (Frame(str(sites[site]["file"]), int(sites[site]["line"])),)
            yield Mark(index, verb, site, place)


def _call_of(instruction: Instruction) -> tuple[Frame, ...] | None:
    """The line of the verb in warplens.cuh and where it was called from; None for a clock read of another kind."""
    outer = user_frames(instruction.frames)
    at = len(instruction.frames) - len(outer)
    if not outer or at == 0 or not _RECORDER.search(instruction.frames[at - 1].file):
        return None
    return instruction.frames[at - 1 :]


def _own_reads(flow: Flow, calls: dict[int, tuple[Frame, ...] | None]) -> Iterator[int]:
    """Clock reads that the recorder makes for itself, as it writes a chunk within a mark.

    Such a one is preceded, on every path, by the read of the same call that is the mark, at another line.
    """
    code = flow.section.code
    for index, call in calls.items():
        if call is None:
            continue
        ahead = _reads_ahead(flow, index, calls)
        if ahead and all(a is not None and calls[a] == call and code[a].frames != code[index].frames for a in ahead):
            yield index


def _reads_ahead(flow: Flow, index: int, calls: dict[int, Any]) -> set[int | None]:
    """The last clock reads on the paths that lead to `index`; None among them when a path has none."""
    found: set[int | None] = set()
    block = flow.block_of[index]
    pending = [(block, index)]
    seen: set[int] = set()
    while pending:
        block, end = pending.pop()
        reads = [at for at in range(flow.blocks[block].start, end) if at in calls]
        if reads:
            found.add(reads[-1])
            continue
        if not flow.before[block]:
            found.add(None)
        for earlier in flow.before[block] - seen:
            seen.add(earlier)
            pending.append((earlier, flow.blocks[earlier].stop))
    return found
