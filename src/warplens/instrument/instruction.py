"""One instruction of PTX: its parts, and which registers it reads and writes.

In: what `Flow` has cut out of a statement. Must not know what an opcode does but for whether
it writes its first operand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

Place = tuple[int, int, int]
"""File number, line and column of a `.loc`."""

_REGISTER: Final = re.compile(r"([%A-Za-z_$][\w$%]*)(?:\.[xyzwrgba]\b)?")  # a vector's name for one of its parts
_ODD_BLANKS: Final = re.compile(r"(?<!,)\s|,\s\s|[\t\r\n]")
_ROUND_MARKS: Final = re.compile(r" ?([^\w\s$%]) ?")
_CALLED: Final = re.compile(r"(?:\([^()]*\)\s*,\s*)?([\w$%.]+)")


@dataclass(eq=False)
class Instruction:
    """`statement`: its index in the module. `name`: the opcode up to its first dot. `place`: where the innermost `.loc`
    before it stands, in the kernel. `targets`: registers that it writes; `sources`: registers, symbols and special
    registers that it reads, its predicate among them; `%tid` for `%tid.x`."""

    statement: int
    predicate: str
    negated: bool
    opcode: str
    name: str
    operands: str
    place: Place
    targets: list[str] = field(init=False)
    sources: list[str] = field(init=False)

    def __post_init__(self) -> None:
        written = "" if self._writes_none else self.written
        self.targets = _REGISTER.findall(written)
        self.sources = _REGISTER.findall(self.operands[len(written) :])
        if self.predicate:
            self.sources.append(self.predicate)

    @property
    def _writes_none(self) -> bool:
        if self.name in _TELLS:
            return _TELLS[self.name] not in self.opcode
        if self.name == "call":
            return not self.operands.startswith("(")
        return self.name in _NO_TARGET or self.operands.startswith("[")  # an address, as of mbarrier.arrive

    @property
    def written(self) -> str:
        """The first operand, `{%r1,%r2}|%p1`, `%p1|%p2` and `(%r1,%r2)` whole, and that of `tcgen05.ld.red` for what is
        reduced."""
        text = self.operands
        end = text.find(",", text.find(_CLOSES[text[0]]) + 1 if text[:1] in _CLOSES else 0)
        if end >= 0 and self.opcode.startswith("tcgen05.ld.red"):
            end = text.find(",", end + 1)
        return text if end < 0 else text[:end]

    @property
    def called(self) -> str:
        """Of a call the name of the function, or the register with its address; "" where neither stands there."""
        found = _CALLED.match(self.operands)
        return found[1] if found else ""


def squeezed(operands: str) -> str:
    """Operands as compilers write them: no blanks but behind commas."""
    if not _ODD_BLANKS.search(operands):
        return operands
    return _ROUND_MARKS.sub(r"\1", " ".join(operands.split())).replace(",", ", ")


_NO_TARGET: Final = frozenset(
    {"st", "red", "bra", "ret", "exit", "trap", "membar", "fence", "brx", "prefetch", "nanosleep"}
    | {"cp", "stmatrix", "griddepcontrol", "discard", "setmaxnreg", "pmevent", "brkpt"}
)
_TELLS: Final = {"bar": ".red", "barrier": ".red", "multimem": ".ld_reduce"}
"""Opcodes that write a register in this form alone."""
_CLOSES: Final = {"{": "}", "(": ")"}
