"""What lies between marks: the code that follows one up to the next, and what a barrier has let through.

In: a `Flow` and indices of instructions. Out: sets of indices. Every path counts, whatever its condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warplens.audit.flow import Flow
from warplens.audit.sass import SCOREBOARDS, Instruction

_BARRIER: Final = re.compile(r"BAR\.(?:SYNC|RED)")
_SHARED: Final = frozenset({"LDS", "LDSM", "ATOMS"})
"""Loads that go through the queue that a barrier goes through: one that has landed tells that the barrier is open."""


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
    """Whether a path leads from the barrier to one of `ends` on which nothing shows that it has opened.

    What shows it: a wait for a load of shared memory that was issued behind it, or for the barrier's own result.
    """
    code = flow.section.code
    own = code[barrier].control.write
    begin = frozenset({own}) if own < SCOREBOARDS else frozenset[int]()
    found = False

    def run(indices: range, pending: frozenset[int]) -> frozenset[int] | None:
        """The scoreboards that hold such loads behind `indices`; None when the path is done."""
        nonlocal found
        for index in indices:
            control = code[index].control
            if any(control.wait >> scoreboard & 1 for scoreboard in pending):
                return None
            if index in stops:
                found |= index in ends
                return None
            if code[index].name in _SHARED and not code[index].predicate and control.write < SCOREBOARDS:
                pending |= {control.write}
        return pending

    _spread(flow, barrier, begin, run)
    return found


def _spread(
    flow: Flow,
    start: int,
    begin: frozenset[int],
    run: Callable[[range, frozenset[int]], frozenset[int] | None],
) -> None:
    """Runs all paths behind `start`; a block is taken again with what all its ways in have in common."""
    block = flow.block_of[start]
    out = run(range(start + 1, flow.blocks[block].stop), begin)
    states: dict[int, frozenset[int]] = {}
    pending: list[tuple[int, frozenset[int]]] = [] if out is None else [(b, out) for b in flow.after[block]]
    while pending:
        block, state = pending.pop()
        if block in states:
            state &= states[block]
            if state == states[block]:
                continue
        states[block] = state
        out = run(flow.blocks[block], state)
        if out is not None:
            pending += [(b, out) for b in flow.after[block]]
