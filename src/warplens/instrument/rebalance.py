"""Registers moved between the roles of a kernel with `setmaxnreg`, so that its marks find some.

In: what the kernel asks for, the registers of a thread at launch. Out: other numbers to ask for. A block has what it
was launched with; a warp that asks for more than is left waits. Which warps have which role is not known and need not
be: numbers are taken only where each way in which a block's warps can hold them fits as it fitted before, so that none
waits for ever (docs/adr/0012-instrumenting-ptx.md has the proof).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from warplens.instrument.flow import Flow, reach
from warplens.instrument.head import sizes
from warplens.instrument.read import integer

_STEP: Final = 8
_LEAST: Final = 24
_MOST: Final = 256
_MOST_VALUES: Final = 3
"""Numbers that a kernel asks for, beside which the ways to hold them are too many to look at."""
_MOST_WARPS: Final = 32
_GIVEN: Final = (8, 16, 32)
"""What roles with few registers get, tried in turn; these are about what a mark has in use, and more."""
_GIVEN_TO_LARGE: Final = (8, 16)


@dataclass(frozen=True)
class Asked:
    """What a kernel's `setmaxnreg` ask for: each number once, in order. `warps`: how many a block may have.

    `once`: a warp asks once, if at all. `unknown`: why this is not known, "" where it is.
    """

    values: tuple[int, ...]
    warps: range
    once: bool = False
    unknown: str = ""

    @classmethod
    def by(cls, flow: Flow) -> Asked | None:
        """None for a kernel without `setmaxnreg`."""
        asks = [number for number, own in enumerate(flow.code) if own.name == "setmaxnreg"]
        numbers = [integer(flow.code[ask].operands) for ask in asks]
        if not numbers:
            return None
        head = flow.module.bare(flow.function.head)
        required = sizes(head, "reqntid")
        threads = required or sizes(head, "maxntid")
        most = -(-math.prod(threads) // 32) if threads else 0
        values = tuple(sorted({number for number in numbers if number is not None}))
        blocks = [flow.block_of[ask] for ask in asks]
        again = len(set(blocks)) < len(blocks) or any(
            not reach(flow, flow.blocks[block].after, -1).isdisjoint(blocks) for block in blocks
        )
        unknown = ""
        if any(number is None or number % _STEP or not _LEAST <= number <= _MOST for number in numbers):
            unknown = "it asks for what is no multiple of 8 from 24 to 256"
        elif len(values) > _MOST_VALUES:
            unknown = f"it asks for more than {_MOST_VALUES} different numbers"
        elif not 0 < most <= _MOST_WARPS:
            unknown = "it does not say how large its blocks are"
        elif any("setmaxnreg" in own for own in _functions(flow)):
            unknown = "a function that it may call asks for registers too"
        return cls(values, range(most if required else 1, most + 1), not again, unknown)

    def moves(self, registers: int) -> Iterator[dict[int, int]]:
        """Other numbers for `values`, in the order to try: first those with which small roles have more.

        registers: of a thread at launch, in the clean build. Nothing where it is not known that all fits as before.
        """
        if not self.unknown and (at_launch := pool_registers(registers)):
            yield from self._moves(at_launch, _GIVEN, to_small=True)
            yield from self._moves(at_launch, _GIVEN_TO_LARGE, to_small=False)

    def _moves(self, registers: int, given: tuple[int, ...], *, to_small: bool) -> Iterator[dict[int, int]]:
        """For each number given to roles of one side the least that must be taken from the other's."""
        small = [value for value in self.values if value < registers]
        large = [value for value in self.values if value > registers]
        if not (small if to_small else large):
            return
        sign = 1 if to_small else -1
        for more in given:
            for less in range(0, _MOST, _STEP):
                up, down = (more, less) if to_small else (less, more)
                moved = {value: value + sign * up for value in small} | {value: value - sign * down for value in large}
                if _in_order(moved, registers) and self.fits_as_before(moved, registers):
                    yield moved
                    break

    def fits_as_before(self, moved: Mapping[int, int], registers: int) -> bool:
        """Whether each way in which a block's warps can hold these numbers, or what they were launched with, fits into
        what the block has where it fitted before; and nowhere else, but where a warp asks once and all that ask for
        more than at launch ask for one number.

        Each warp counts by itself, since of those that wait one may be given before another. moved: new numbers for
        some of `values`.
        """
        held = [(0, 0), *((value - registers, moved.get(value, value) - registers) for value in self.values)]
        freely = self.once and sum(value > registers for value in self.values) <= 1
        for warps in self.warps:
            for split in itertools.combinations_with_replacement(held, warps):
                before, now = (sum(one[at] for one in split) <= 0 for at in (0, 1))
                if (before and not now) or (now and not before and not freely):
                    return False
        return True

    def pieces(self, flow: Flow, moved: Mapping[int, int]) -> list[tuple[int, int, str]]:
        """What changes in the kernel's text."""
        out = []
        for own in flow.code:
            value = integer(own.operands) if own.name == "setmaxnreg" else None
            if value is not None and value in moved:
                _, start, end = flow.module.statements[own.statement]
                last = own.opcode.rpartition(".")[2]  # there may be blanks in an opcode
                behind = flow.module.plain.index(last, start, end) + len(last)
                out.append((behind, end, f" {moved[value]};"))
        return out


def pool_registers(registers: int) -> int:
    """What a thread brings into its block's pool, of what ptxas says that it uses at launch; 0 where that is not known.

    Warps get registers in eights, and 255 is what ptxas says of 256.
    """
    whole = registers + (registers == _MOST - 1)
    return 0 if whole % _STEP else whole


def told(moved: Mapping[int, int]) -> str:
    """As a user reads it: what is asked for now, and before."""
    now, before = (" and ".join(map(str, numbers)) for numbers in (moved.values(), moved))
    return f"setmaxnreg {now} in place of {before}"


def _in_order(moved: Mapping[int, int], registers: int) -> bool:
    """Whether who asked for less than at launch, or for more, does so still, and all numbers are such as can be asked
    for."""
    return all(
        _LEAST <= now <= _MOST and (now < registers) == (value < registers) and (now > registers) == (value > registers)
        for value, now in moved.items()
    )


def _functions(flow: Flow) -> Iterator[str]:
    module = flow.module
    for own in module.functions:
        if not own.is_entry:
            yield module.plain[module.statements[own.head].end : module.statements[own.last].start]
