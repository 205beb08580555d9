"""Bulk copies into shared memory (TMA) that may be under way: no scoreboard counts them, an mbarrier does.

In: a `Flow`. Out: `BulkLoads`. Which mbarrier a copy arrives at, and which one is asked, stands in registers and is not
in the machine code. So what is told is what some way to a place issues behind the warp's last question to any mbarrier:
nobody can have waited for that. What was issued before may be under way as well.
"""

from __future__ import annotations

import re
from typing import Final

from warplens.audit.flow import Flow, Pending
from warplens.audit.sass import Instruction

_ISSUES: Final = re.compile(r"UTMALDG|UBLKCP\.S\.G")
_ASKS: Final = re.compile(r"SYNCS\.PHASECHK")
_NOTHING: Final[frozenset[int]] = frozenset()


def is_bulk_load(instruction: Instruction) -> bool:
    """Whether it has the TMA copy into shared memory: `cp.async.bulk` with an mbarrier, tensors or not."""
    return _ISSUES.match(instruction.opcode) is not None


class BulkLoads:
    """Of one kernel. `readable`: False where some way could not be followed, or a function that is called copies or
    asks too: then nothing is known."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._code = flow.section.code
        self._acting = [[n for n in block if self._acts(n)] for block in flow.blocks]
        self._states: dict[int, frozenset[int]] = {}
        if any(self._acting):
            self._solve()
        callees = {index for block, index in flow.calls.items() if block in self._states}
        called = {b for index in callees if index is not None for b in flow.region(flow.block_of[index])}
        self.readable = not (
            self._states.keys() & flow.unreadable or None in callees or any(self._acting[block] for block in called)
        )

    def at(self, index: int) -> frozenset[int] | None:
        """Indices of the copies that some way to this instruction issues behind the last question; None: not known."""
        if not any(self._acting):
            return _NOTHING
        block = self._flow.block_of[index]
        if not self.readable or block not in self._states:
            return None
        return self._past(block, self._states[block], before=index)

    def _acts(self, index: int) -> bool:
        return is_bulk_load(self._code[index]) or _ASKS.match(self._code[index].opcode) is not None

    def _solve(self) -> None:
        self._states[0] = _NOTHING
        pending = Pending([0])
        while pending:
            block = pending.pop()
            left = self._past(block, self._states[block])
            for follower in self._flow.after[block]:
                known = self._states.get(follower)
                merged = left if known is None else known | left
                if merged != known:
                    self._states[follower] = merged
                    pending.add(follower)

    def _past(self, block: int, state: frozenset[int], before: int | None = None) -> frozenset[int]:
        for index in self._acting[block]:
            if before is not None and index >= before:
                break
            state = state | {index} if is_bulk_load(self._code[index]) else _NOTHING
        return state
