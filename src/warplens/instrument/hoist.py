"""Which arithmetic goes ahead of a wait, where ptxas would have it if no clock were read in between.

In: a `Flow` and the marks that it gets. Out: instructions of loops, each with the mark that it is to stand in front of.
ptxas moves nothing across a clock read: what stands behind a wait in the text would run behind it, while the clean
kernel does it beside a product, or before it waits. Changes no text. Must not move what touches memory, waits, reads a
special register or is predicated, nor what reads or writes a register that is written or read in between.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from warplens.instrument.flow import Flow
from warplens.instrument.instruction import Instruction
from warplens.instrument.scopes import Scopes
from warplens.layout import Control, Verb

if TYPE_CHECKING:
    from warplens.instrument.sites import Mark

_PURE: Final = frozenset(
    {"mov", "add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "shl", "shr", "shf", "and", "or", "xor"}
    | {"not", "lop3", "bfe", "bfi", "prmt", "setp", "selp", "cvt", "cvta"}
)
_OF_WARPS: Final = re.compile(
    r"(?:elect\.sync|shfl\.sync\.\w+)\b.*,\s*(?:-1|0xffffffff|4294967295)\Z", re.I | re.DOTALL
)
"""Made of what the lanes of a whole warp have in registers, and so the same wherever all of them come."""
_MAY_FUSE: Final = re.compile(r"(?:add|sub|mul)\.(?!r[nzmp]\b)\S*f(?:16|32|64)")
"""Without a rounding of its own ptxas may make one instruction of a product and a sum, with other bits."""
_PRODUCT: Final = re.compile(r"wgmma\.mma_async|w?mma\.")
_COPY: Final = re.compile(r"cp\.async\.c[ag]\.")
_CUT: Final = re.compile(r"(?:call|setmaxnreg)\b|.*%(?:clock|globaltimer)", re.DOTALL)
"""Nothing is moved across these: what they use is not all in their operands, or they tell the time."""
_NAME: Final = re.compile(r"[%A-Za-z_$][\w$%]*")
_BRACES: Final = re.compile(r"\{[^{}]*\}")
_ASM: Final = re.compile(r"//[ \t]*(begin|end) inline asm")


class Hoister:
    """Finds the moves in one function. `marks`: in the order of the text; `fixed`: sites of those that nothing is moved
    across; `over_scopes`: but where they end a product's scope."""

    def __init__(self, flow: Flow, marks: Sequence[Mark], fixed: Collection[int], *, over_scopes: bool = True) -> None:
        self._flow, self._marks, self._fixed, self._over_scopes = flow, marks, fixed, over_scopes
        self._scopes = Scopes(flow)
        self._marked = {flow.block_of[mark.index] for mark in marks}
        self._first = [_first(own) for own in flow.code]
        self._written = set().union(*self._first)
        # What a product reads or writes in its own time is in use up to the wait for it, which does not name it.
        products = [own for own in flow.code if own.name in ("wgmma", "tcgen05")]
        named = [text for own in products for text in (*_BRACES.findall(own.operands), _written(own))]
        self._in_flight = {name for text in named for name in _NAME.findall(text)}
        begin, end = (flow.module.statements[at].start for at in (flow.function.first - 1, flow.function.last))
        found = [*_ASM.finditer(flow.module.text, begin, end)]
        self._asm = [own.start() for own in found], [own[1] == "begin" for own in found]

    def moves(self) -> dict[int, Mark]:
        """The mark that each moved instruction goes in front of, in the order of the text."""
        out: dict[int, Mark] = {}
        looped = {block for loop in self._flow.loops for block in loop.blocks}
        for first, last in self._stretches():
            start, stop = self._flow.blocks[first].start, self._flow.blocks[last].stop
            marks = [mark for mark in self._marks if start <= mark.index < stop] if first in looped else []
            if marks:
                out |= self._in_stretch(start, stop, marks)
        return out

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """The first and last of blocks that whoever comes to one of them passes one after the other, each once but for
        what asks again and again."""
        first = 0
        for number in range(len(self._flow.blocks)):
            if number + 1 == len(self._flow.blocks) or not self._leads_on(number):
                yield first, number
                first = number + 1

    def _leads_on(self, number: int) -> bool:
        """Whether who passes a block passes the next one, and nobody else does. One of both may ask in turns."""
        blocks, following = self._flow.blocks, number + 1
        turns = {own for own in (number, following) if own in blocks[own].after}
        jumps = self._flow.is_behind_jump(blocks[number].stop - 1, behind=True)
        if not turns.isdisjoint(self._marked) or (jumps and number not in turns):
            return False
        return {*blocks[number].after} - turns <= {following} and {*blocks[following].before} - turns <= {number}

    def _in_stretch(self, start: int, stop: int, marks: list[Mark]) -> dict[int, Mark]:
        """Takes the instructions in turn. A place is the number of the instruction that stands there; what goes in
        front of the mark in front of instruction n has the place n - 0.5, one behind the other."""
        places = [_at(mark) for mark in marks]
        ends = {at for at in range(len(marks)) if self._ends_scope_of_product(at, start, marks, places)}
        fit = self._fit(start, marks, places, ends)
        worth = self._worth_moving(start, stop, places)
        pins = {_at(mark): {name for name, _ in mark.pins} for mark in marks}
        fixed = {
            place
            for at, (mark, place) in enumerate(zip(marks, places, strict=True))
            if at not in ends and self._is_of_source(mark)
        }
        least: float = start
        written: dict[str, float] = {}  # where a register was written last, and where it was read or written last
        used: dict[str, float] = {}
        out: dict[int, Mark] = {}
        for number in range(start, stop):
            own = self._flow.code[number]
            targets = self._first[number]
            names = _names(own)
            place: float = number
            used.update(dict.fromkeys(pins.get(number, ()), place))
            if number in fixed or _CUT.match(f"{own.opcode} {own.operands}"):
                least = place + 0.5
            if number in worth and self._may_move(number, targets, names):
                behind = [written[name] for name in names if name in written]
                behind += [used[name] for name in targets if name in used]
                nearest, hidden = fit[bisect_right(places, number)]
                first = max([least, *(own + 0.5 for own in behind)])
                at = next((own for own in (hidden, nearest) if own >= 0 and places[own] >= first), -1)
                if at >= 0:
                    out[number] = marks[at]
                    place = places[at] - 0.5
            written |= {name: max(written.get(name, place), place) for name in targets}
            used |= {name: max(used.get(name, place), place) for name in names}
        return out

    def _fit(self, start: int, marks: list[Mark], places: list[int], ends: set[int]) -> list[tuple[int, int]]:
        """Behind so many marks, which one an instruction can go in front of: the nearest of a wait that is not right
        behind another, and the nearest of those behind a product; -1 for none."""
        out = [(-1, -1)]
        for at, mark in enumerate(marks):
            nearest, hidden = out[-1]
            follows = at > 0 and _waits(marks[at - 1])
            if at in ends and self._is_hidden(at, start, places):
                nearest = hidden = at  # its wait has no mark
            elif _waits(mark) and not follows and not self._flow.is_behind_jump(mark.index, mark.behind):
                nearest, hidden = at, at if self._is_hidden(at, start, places) else hidden
            out.append((nearest, hidden))
        return out

    def _is_hidden(self, at: int, start: int, places: list[int]) -> bool:
        """Whether a product stands between a mark and the one before it."""
        code = self._flow.code[places[at - 1] if at else start : places[at]]
        return any(_PRODUCT.match(own.opcode) for own in code)

    def _ends_scope_of_product(self, at: int, start: int, marks: list[Mark], places: list[int]) -> bool:
        """Whether a mark of the source ends a range behind a product: what follows is done beside the product, as
        ptxas has it without the mark."""
        mark = marks[at]
        if (
            not self._over_scopes
            or mark.site
            or mark.verb != Control.RANGE_POP
            or self._flow.is_behind_jump(mark.index, mark.behind)
        ):
            return False
        before = next((n for n in range(at - 1, -1, -1) if self._is_of_source(marks[n])), -1)
        return any(self._is_hidden(n, start, places) for n in range(before + 1, at + 1))

    def _is_of_source(self, mark: Mark) -> bool:
        return mark.site in self._fixed or not mark.site

    def _worth_moving(self, start: int, stop: int, places: list[int]) -> set[int]:
        """All between two marks; where a product stands there, only what it waits for: it hides the rest; where copies
        to shared memory do, only what these wait for: the next turn's addresses would need registers beside theirs."""
        code = self._flow.code
        out: set[int] = set()
        for first, last in pairwise([start, *places, stop]):
            wait = [n for n in range(first, last) if _PRODUCT.match(code[n].opcode)][:1]
            wait = wait or [n for n in range(first, last) if _COPY.match(code[n].opcode)]
            if not wait:
                out.update(range(first, last))
                continue
            needed: set[str] = set()
            for number in range(wait[-1], first - 1, -1):
                if number in wait or not needed.isdisjoint(self._first[number]):
                    out.add(number)
                    needed |= _names(code[number])
        return out

    def _may_move(self, number: int, targets: set[str], names: set[str]) -> bool:
        """Whether an instruction computes the same wherever its registers are the same, and no more than that."""
        own, block = self._flow.code[number], self._flow.block_of[number]
        if own.predicate or not targets or self._scopes.depth(own.statement) or ".cc" in own.opcode:
            return False
        if _MAY_FUSE.match(own.opcode):
            return False
        if own.name not in _PURE and not (
            _OF_WARPS.match(f"{own.opcode} {own.operands}") and not self._flow.is_in_part(number, False)
        ):
            return False
        if block in self._flow.blocks[block].after and block not in self._marked:
            return False  # it asks in turns
        if any(name in self._in_flight or (name[0] == "%" and name not in self._written) for name in names):
            return False
        starts, begins = self._asm
        at = bisect_left(starts, self._flow.module.statements[own.statement].start)
        return not (at and begins[at - 1])


def _waits(mark: Mark) -> bool:
    return mark.site != 0 and mark.verb == Verb.WAIT


def _at(mark: Mark) -> int:
    """The instruction that a mark stands in front of."""
    return mark.index + mark.behind


def _names(own: Instruction) -> set[str]:
    """Registers and symbols of an instruction, its predicate's too."""
    return {*_NAME.findall(own.operands), *([own.predicate] if own.predicate else [])}


def _first(own: Instruction) -> set[str]:
    """Registers that an instruction may write: those of its first operand, unless that is an address."""
    return {*_NAME.findall(_written(own))}


def _written(own: Instruction) -> str:
    """As text."""
    return "" if own.operands.startswith("[") else own.written
