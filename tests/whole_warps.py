"""Runs PTX as whole warps: all lanes of each, which wait for each other at votes and barriers of the warp, in blocks
and grids of any shape.

In: a module's text, a launch shape. Out: memory, as tests/ptx_machine.py says, and what each lane passed. A vote of all
lanes fails where one of them has come to another vote: those that have ended are not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.ptx_machine import ACT, END, JOIN, MASK32, Machine, _Lane, _Program, _program
from warplens import layout

Shape = tuple[int, int, int]
FULL = "0xffffffff"


class _Member(_Lane):
    """A lane of a warp: `steps` stops at each barrier of the warp, and in front of each vote, which `voted` answers."""

    voted = 0

    def steps(self) -> Iterator[tuple[int, bool]]:
        """Yields which instruction the vote is, and whether it is one of all lanes."""
        at = 0
        machine, program, thread = self.machine, self.program, self.special["thread"]
        steps, registers, executed, cycles = program.steps, self.registers, machine.executed, machine.step
        for _ in range(machine.most_steps):
            if at >= len(steps):
                return
            predicate, negated, what, action, parts, kind, targets = steps[at] or program.step(at)
            machine.clock += cycles
            taken = not predicate or bool(registers[predicate]) != negated
            executed(thread, at, taken)
            if not taken:
                at += 1
            elif what == ACT:
                action(self, parts, kind)
                at += 1
            elif what == JOIN:
                yield at, parts[-1] == FULL
                if kind[0] == "vote":
                    registers[parts[0]] = self.voted
                at += 1
            elif what == END:
                return
            else:
                at = targets[self.value(parts[0]) if kind[0] == "brx" else 0]
        raise AssertionError("the kernel does not end")

    def vote(self, at: int) -> int:
        """What it says; nothing at a barrier of the warp."""
        own = self.program.flow.code[at]
        return int(own.name == "vote" and bool(self.value(own.operands.split(",")[1].strip())))


@dataclass
class Warps(Machine):
    """`grid_shape`, `block_shape`: in three dimensions; None for x alone. `passed`: of each lane, by block and thread,
    what it executed and whether it was taken; `own_stores`: what it stored where marks store nothing."""

    grid_shape: Shape | None = None
    block_shape: Shape | None = None
    passed: dict[tuple[int, int], list[tuple[int, bool]]] = field(default_factory=dict)
    own_stores: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    block: int = 0
    thread: int = -1
    _passed: list[tuple[int, bool]] = field(default_factory=list)

    def executed(self, thread: int, at: int, taken: bool) -> None:
        if thread != self.thread:
            self.thread = thread
            self._passed = self.passed.setdefault((self.block, thread), [])
        self._passed.append((at, taken))

    def store(self, address: int, value: int) -> None:
        if address < layout.CONTROL_ALIGNMENT:
            self.own_stores.setdefault((self.block, self.thread), []).append((address, value & MASK32))
        super().store(address, value)

    def run(
        self,
        text: str,
        *,
        grid: int,
        threads: int,
        grid_id: int,
        arguments: dict[str, int] | None = None,
        kernel: str | None = None,
    ) -> None:
        """Runs a kernel of the module, the first by default, warp after warp."""
        program = _program(text, kernel)
        grids, blocks = self.grid_shape or (grid, 1, 1), self.block_shape or (threads, 1, 1)
        assert (math.prod(grids), math.prod(blocks)) == (grid, threads)
        self.own_stores.clear()
        for block in range(grid):
            self.block, self.thread = block, -1
            for warp in range(-(-threads // 32)):
                numbers = range(warp * 32, min(warp * 32 + 32, threads))
                special = [_special(block, thread, grids, blocks, grid_id) for thread in numbers]
                self._run(program, [_Member(self, program, own, arguments or {}) for own in special])

    def _run(self, program: _Program, members: list[_Member]) -> None:
        begin = self.clock
        live: dict[int, Any] = {number: member.steps() for number, member in enumerate(members)}
        clocks = dict.fromkeys(live, begin)
        waiting: dict[int, tuple[int, bool]] = {}
        longest = begin
        while live:
            for number, steps in [*live.items()]:
                if number in waiting:
                    continue
                self.clock = clocks[number]
                try:
                    waiting[number] = next(steps)
                except StopIteration:
                    del live[number]
                clocks[number] = self.clock
                longest = max(longest, self.clock)
            if not waiting:
                break
            places = sorted(set(waiting.values()), key=lambda own: own[1])  # of some lanes first
            at, is_full = places[0]
            assert not is_full or len(places) == 1, f"lanes are at votes {places}: {program.flow.code[at]}"
            there = [number for number, place in waiting.items() if place == (at, is_full)]
            found = int(any(members[number].vote(at) for number in there))
            latest = max(clocks[number] for number in there)
            for number in there:
                members[number].voted = found
                clocks[number] = latest
                del waiting[number]
        self.clock = longest


def _special(block: int, thread: int, grid: Shape, threads: Shape, grid_id: int) -> dict[str, int]:
    out = {"thread": thread, "%laneid": thread % 32, "%smid": block % 132, "%gridid": grid_id, "block": block}
    for name, number, shape in (("tid", thread, threads), ("ctaid", block, grid)):
        for axis, size in zip("xyz", shape, strict=True):
            out |= {f"%{name}.{axis}": number % size, f"%n{name}.{axis}": size}
            number //= size
    return out
