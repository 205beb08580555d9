"""Where control can go from each instruction: basic blocks of a kernel and of the functions that it calls.

In: a `Section`. Out: `Flow`. Takes every branch as possible; where a target cannot be read (an indirect branch without
a list of targets) the block is in `unreadable`, and nothing that depends on paths may then be claimed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from warplens.audit.sass import Instruction, Section

_LISTED: Final = re.compile(r"BRANCH_TARGETS\s+([^\"*]*)")
_ADDRESS: Final = re.compile(r"0x([0-9a-f]{1,8})$")
_BRANCHES: Final = frozenset({"BRA", "JMP", "BRX", "JMX", "BRXU", "JMXU"})
_ENDS: Final = frozenset({"EXIT", "RET", "KILL"})
_LAST_OF_BLOCK: Final = _BRANCHES | _ENDS | {"CALL", "BSYNC", "WARPSYNC", "BSSY"}

Targets = dict[str, frozenset[int]]
"""Barrier register -> indices that a BSYNC of it may go to."""


class Pending:
    """Blocks to look at again, in the order of their addresses: a state then comes round a loop as seldom as can be."""

    def __init__(self, blocks: Iterable[int]) -> None:
        self._heap = sorted(blocks)
        self._there = set(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, block: int) -> None:
        """Adds a block that is not there already."""
        if block not in self._there:
            self._there.add(block)
            heapq.heappush(self._heap, block)

    def pop(self) -> int:
        """Takes the first one."""
        block = heapq.heappop(self._heap)
        self._there.discard(block)
        return block


class Flow:
    """Blocks are ranges of instruction indices; `after[b]` are the blocks that may follow block b, calls aside.

    `calls[b]` is the index of the function that the last instruction of b calls, or None when it cannot be told.
    `returns` are blocks that end with RET.
    """

    def __init__(self, section: Section) -> None:
        self.section = section
        code = section.code
        self.starts = sorted(_starts(section))
        self.blocks = [
            range(low, high) for low, high in zip(self.starts, [*self.starts[1:], len(code)], strict=True) if low < high
        ]
        self.block_of = [number for number, block in enumerate(self.blocks) for _ in block]
        self.calls: dict[int, int | None] = {}
        self.returns: set[int] = set()
        self.unreadable: set[int] = set()
        self.after: list[set[int]] = [set() for _ in self.blocks]
        self._syncs: dict[int, str] = {}
        for number, block in enumerate(self.blocks):
            self._link(number, code[block[-1]], block[-1] + 1)
        self._link_syncs()

    def region(self, entry: int) -> set[int]:
        """Blocks that control may reach from the block `entry` without being called."""
        seen, pending = {entry}, [entry]
        while pending:
            for block in self.after[pending.pop()] - seen:
                seen.add(block)
                pending.append(block)
        return seen

    @cached_property
    def before(self) -> list[set[int]]:
        """The blocks that may come right before each."""
        out: list[set[int]] = [set() for _ in self.blocks]
        for number, followers in enumerate(self.after):
            for follower in followers:
                out[follower].add(number)
        return out

    def _link(self, number: int, last: Instruction, following: int) -> None:
        code = self.section.code
        falls = True
        if last.name in _BRANCHES:
            indices, readable = _targets(self.section, last)
            falls = _is_conditional(last)
            self.after[number] |= {self.block_of[index] for index in indices}
            if not readable:
                self.unreadable.add(number)
        elif last.name == "WARPSYNC" and last.targets:
            indices, _ = _targets(self.section, last)
            self.after[number] |= {self.block_of[index] for index in indices}
        elif last.name in _ENDS:
            falls = last.predicate not in ("", "PT", "UPT")
            if last.name == "RET":
                self.returns.add(number)
        elif last.name == "CALL":
            indices, _ = _targets(self.section, last)
            if any(name.startswith(".L") for name in last.targets):  # within the function: a jump (seen for sm_80)
                self.after[number] |= {self.block_of[index] for index in indices}
            else:
                self.calls[number] = next(iter(indices)) if len(indices) == 1 else None
        elif last.name == "BSYNC":
            self._syncs[number] = _barrier(last)
            falls = last.predicate not in ("", "PT", "UPT")
        if falls and following < len(code):
            self.after[number].add(self.block_of[following])

    def _link_syncs(self) -> None:
        """A BSYNC goes on where the BSSY of its register said that lanes meet: finds which of them can reach it."""
        entries = {0, *(self.block_of[index] for index in self.calls.values() if index is not None)}
        states: dict[int, Targets] = {block: {} for block in entries if block < len(self.blocks)}
        pending = Pending(states)
        while pending:
            number = pending.pop()
            state = self._past(number, states[number])
            if number in self._syncs:
                met = state.get(self._syncs[number], frozenset())
                self.after[number] |= {self.block_of[index] for index in met}
            for follower in self.after[number]:
                joined = _join(states[follower], state) if follower in states else state
                if joined != states.get(follower):
                    states[follower] = joined
                    pending.add(follower)
        self.unreadable |= {n for n, name in self._syncs.items() if n in states and name not in states[n]}

    def _past(self, number: int, state: Targets) -> Targets:
        last = self.section.code[self.blocks[number][-1]]
        if last.name != "BSSY":
            return state
        indices, readable = _targets(self.section, last)
        return {**state, _barrier(last): frozenset(indices)} if readable else state


def _starts(section: Section) -> set[int]:
    size = len(section.code)
    found = {0, *(index for index in section.labels.values() if index < size)}
    for index, instruction in enumerate(section.code):
        if instruction.name in _LAST_OF_BLOCK:
            found.add(index + 1)
            found |= set(_targets(section, instruction)[0])
    return {index for index in found if index < size}


def _targets(section: Section, branch: Instruction) -> tuple[list[int], bool]:
    """Indices that a branch may go to, and whether that is all of them."""
    names = branch.targets
    listed = _LISTED.search(branch.operands)
    if listed:
        names = [name.strip() for name in listed[1].split(",") if name.strip()]
    if not names and (address := _ADDRESS.search(branch.operands)) and branch.name in ("BRA", "CALL", "BSSY", "JMP"):
        index, odd = divmod(int(address[1], 16), 16)
        return ([index], True) if index < len(section.code) and not odd else ([], False)
    indices = [section.labels.get(name, len(section.code)) for name in names]
    known = [index for index in indices if index < len(section.code)]
    return known, bool(names) and len(known) == len(names)


def _is_conditional(branch: Instruction) -> bool:
    if branch.predicate not in ("", "PT", "UPT"):
        return True
    if branch.name != "BRA":
        return False
    others = [part.strip() for part in branch.operands.split(",") if "`(" not in part and "0x" not in part]
    return ".DIV" in branch.opcode or any(part not in ("", "PT", "UPT") for part in others)


def _barrier(instruction: Instruction) -> str:
    return instruction.operands.partition(",")[0].strip()


def _join(one: Targets, other: Targets) -> Targets:
    names: Iterable[str] = one.keys() | other.keys()
    return {name: one.get(name, frozenset()) | other.get(name, frozenset()) for name in names}
