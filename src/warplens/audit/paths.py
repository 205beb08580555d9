"""What lies between marks: the code that follows one up to the next, and what a barrier has let through.

In: a `Flow` and indices of instructions. Out: sets of indices. Every path counts, whatever its condition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warplens.audit.flow import Flow
from warplens.audit.sass import Instruction

_BARRIER: Final = re.compile(r"BAR\.(?:SYNC|RED)")


@dataclass(frozen=True)
class Stretch:
    """Code between marks: its instructions, the marks that end it, and whether paths may lead elsewhere too."""

    code: frozenset[int]
    ends: frozenset[int]
    unsure: bool


def following(flow: Flow, start: int, stops: set[int]) -> Stretch:
    """What may run after instruction `start` up to the first of `stops`."""
    return _search(flow, start + 1, stops, forward=True)


def preceding(flow: Flow, end: int, stops: set[int]) -> Stretch:
    """What may run before instruction `end` since the last of `stops`."""
    return _search(flow, end, stops, forward=False)


def _search(flow: Flow, start: int, stops: set[int], *, forward: bool) -> Stretch:
    links = flow.after if forward else flow.before
    code: set[int] = set()
    ends: set[int] = set()
    unsure = False
    size = len(flow.section.code)
    inside = start < size if forward else start > 0
    first = flow.block_of[min(start, size - 1) if forward else max(start - 1, 0)]
    pending: list[tuple[int, int]] = []
    if forward and inside and start == flow.blocks[flow.block_of[start - 1]].stop:
        before = flow.block_of[start - 1]
        unsure |= _call_hides_a_stop(flow, before, stops) or before in flow.unreadable
        pending = [(block, flow.blocks[block].start) for block in flow.after[before]]
    elif not forward and start == flow.blocks[flow.block_of[min(start, size - 1)]].start:
        pending = [(block, flow.blocks[block].stop) for block in links[flow.block_of[start]]]
    elif inside:
        pending = [(first, start)]
    seen = {block for block, at in pending if at in (flow.blocks[block].start, flow.blocks[block].stop)}
    while pending:
        block, at = pending.pop()
        run = range(at, flow.blocks[block].stop) if forward else range(at - 1, flow.blocks[block].start - 1, -1)
        stopped = False
        for index in run:
            if index in stops:
                ends.add(index)
                stopped = True
                break
            code.add(index)
        if stopped:
            continue
        unsure |= block in flow.unreadable or _call_hides_a_stop(flow, block, stops)
        for other in links[block] - seen:
            seen.add(other)
            pending.append((other, flow.blocks[other].start if forward else flow.blocks[other].stop))
    return Stretch(frozenset(code), frozenset(ends), unsure)


def _call_hides_a_stop(flow: Flow, block: int, stops: set[int]) -> bool:
    if block not in flow.calls:
        return False
    callee = flow.calls[block]
    if callee is None:
        return True
    inner = {index for b in flow.region(flow.block_of[callee]) for index in flow.blocks[b]}
    return bool(inner & stops)


def is_barrier(instruction: Instruction) -> bool:
    """A barrier of the block that a warp waits at: BAR.SYNC, or BAR.RED with a result."""
    return _BARRIER.match(instruction.opcode) is not None


def unsettled(flow: Flow, barrier: int, ends: frozenset[int], stops: set[int]) -> bool:
    """Whether on some path one of `ends` stands right behind the barrier, with nothing in between but instructions of
    the uniform datapath: it is then taken before the barrier has opened (see settle in device.cuh)."""
    code = flow.section.code
    block = flow.block_of[barrier]
    pending = [range(barrier + 1, flow.blocks[block].stop)]
    seen: set[int] = set()
    while pending:
        run = pending.pop()
        first = next((index for index in run if index in stops or not _is_uniform(code[index])), None)
        if first in ends:
            return True
        if first is None:
            behind = flow.after[flow.block_of[run.start]] if run else flow.after[block]
            pending += [flow.blocks[other] for other in behind - seen]
            seen |= behind
    return False


def _is_uniform(instruction: Instruction) -> bool:
    return instruction.name.startswith("U")
