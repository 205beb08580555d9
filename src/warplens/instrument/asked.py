"""Marks that are made on request alone: loads until they have landed, stores, atomics, turns of loops, lines of source.

In: a `Flow`. Out: places, by the index of their instructions. Each costs more than it tells in most kernels, and a load
that is waited for no longer hides behind what follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from warplens.instrument.flow import Flow
from warplens.instrument.instruction import Instruction
from warplens.instrument.waits import Instant, is_idle

_LOAD: Final = re.compile(r"ldu?\.(?:\S+\.)?global\S*\.[busf](?:32|64)\Z")
_VECTOR: Final = re.compile(r"\.v[248]\.")
_STORE: Final = re.compile(r"st(?:\.\w+)*\.global|cp\.reduce|multimem\.st")
_ATOMIC: Final = re.compile(r"(?:atom|red)\.(?!(?:\S*\.)?shared)|multimem\.(?:red|ld_reduce)")


@dataclass(frozen=True)
class Landing:
    """Loads `first` to `last`, of which none is used in between. `values`: a register and its bits, of each that can be
    named behind them: registers of braces cannot, and `_` is none."""

    first: int
    last: int
    values: tuple[tuple[str, int], ...]


def landings(flow: Flow) -> Iterator[Landing]:
    """Runs of loads of global memory in one block, with nothing between them but the arithmetic of their addresses."""
    for block in flow.blocks:
        first, last = -1, -1
        values: list[tuple[str, int]] = []
        loaded: set[str] = set()
        for number in range(block.start, block.stop):
            own = flow.code[number]
            found = _LOAD.match(own.opcode)
            uses = not loaded.isdisjoint(own.sources) or not loaded.isdisjoint(own.targets)
            if loaded and (uses or not (found or is_idle(own))):
                yield Landing(first, last, tuple(values))
                values, loaded = [], set()
            targets = [name for name in own.targets if name != "_"] if found else []
            if targets:
                first = first if loaded else number
                last = number
                values += _value(flow, number, targets[0])
                loaded.update(targets)
        if loaded:
            yield Landing(first, last, tuple(values))


def _value(flow: Flow, number: int, name: str) -> Iterator[tuple[str, int]]:
    """A loaded register, which may be wider than what is loaded."""
    own = flow.code[number]
    bits = flow.bits(number, name)
    if bits in (32, 64):
        whole = _VECTOR.search(own.opcode) and not own.operands.startswith("{")
        yield f"{name}.x" if whole else name, bits


def instants(flow: Flow, also: tuple[str, ...]) -> Iterator[Instant]:
    """Stores, atomics and turns of loops; of stores or atomics that follow each other the first."""
    before = (-2, "")
    for number, own in enumerate(flow.code):
        what = _what(own, also)
        if what and not (before == (number - 1, what) and flow.block_of[number - 1] == flow.block_of[number]):
            yield Instant(number, "mark", what, "")
        before = number, what
    if "loops" in also:
        for loop in flow.loops:
            for block in sorted(loop.blocks):
                if loop.header in flow.blocks[block].after:
                    yield Instant(flow.blocks[block].stop - 1, "mark", "next turn", "")


def _what(own: Instruction, also: tuple[str, ...]) -> str:
    if "stores" in also and _STORE.match(own.opcode):
        return "store"
    return "atomic" if "atomics" in also and _ATOMIC.match(own.opcode) else ""


def lines(flow: Flow) -> Iterator[int]:
    """Instructions that are the first of another line of the source than the one before them in their block."""
    for block in flow.blocks:
        here = flow.code[block.start].place[:2]
        for number in range(block.start + 1, block.stop):
            place = flow.code[number].place[:2]
            if place[1] and place != here:
                yield number
                here = place
