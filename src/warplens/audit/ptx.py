"""Which site a clock read records, from the PTX that a cubin built with -lineinfo carries.

In: the lines of that PTX, the line of a clock read. Out: the codes of sites (layout.py) that stand beside the clock.
The inlining that ptxas notes cannot tell two calls of one function apart when their code is interleaved (the .loc of a
caller is written once); the number that the recorder keeps with the time can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

_FUNCTION: Final = re.compile(r"(?:^|\s)\.(?:entry|func)\s")
_STATEMENT: Final = re.compile(r"(?:@!?(%?\w+)\s+)?([a-z][\w.]*)\s+(.+)")
_REGISTER: Final = re.compile(r"%\w+|(?<![\w%.])[a-z]\w*(?![\w.])")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)U?")
_COMBINES: Final = ("or.", "add.", "lop3.", "mad.", "bfi.", "mov.", "sub.")
_CARRIES: Final = (*_COMBINES, "shl.", "shr.", "cvt.", "prmt.", "shf.", "selp.", "and.")
_DEPTH: Final = 6
"""Instructions between the clock and the number that it is joined with."""
_MOST: Final = 64


class _Statement(NamedTuple):
    opcode: str
    target: str
    sources: tuple[str, ...]


class Ptx:
    """The PTX of a module by its lines, numbered from 1 as nvdisasm -gp does."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._functions: dict[int, _Function] = {}

    @cached_property
    def _begins(self) -> list[int]:
        return [n for n, line in enumerate(self._lines, 1) if _FUNCTION.search(line)]

    def constants(self, line: int) -> set[int]:
        """Numbers that the clock read on this line is kept with: of its own statement, or joined with the clock."""
        begin = max((n for n in self._begins if n <= line), default=0)
        if not 1 <= line <= len(self._lines) or begin == 0 or "%clock" not in self._lines[line - 1]:
            return set()
        if begin not in self._functions:
            end = min((n for n in self._begins if n > begin), default=len(self._lines) + 1)
            self._functions[begin] = _Function(self._lines[begin - 1 : end - 1])
        return self._functions[begin].constants(self._lines[line - 1])


class _Function:
    """Definitions and uses of a function's registers."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._defined: dict[str, list[_Statement]] = {}
        self._used: dict[str, list[_Statement]] = {}
        for line in lines:
            for statement in _statements(line):
                self._defined.setdefault(statement.target, []).append(statement)
                for source in statement.sources:
                    self._used.setdefault(source, []).append(statement)

    def constants(self, line: str) -> set[int]:
        found: set[int] = set()
        clocks: list[str] = []
        for statement in _statements(line):
            if any(source.startswith("%clock") for source in statement.sources):
                clocks.append(statement.target)
            elif statement.opcode.startswith("mov."):  # kept beside the clock, under the same predicate
                found |= self._values(statement.sources)
        seen = set(clocks)
        level = clocks
        for _ in range(_DEPTH):
            following = []
            for register in level:
                for statement in self._used.get(register, [])[:_MOST]:
                    if statement.opcode.startswith(_COMBINES):
                        found |= self._values(statement.sources)
                    if statement.opcode.startswith(_CARRIES) and statement.target not in seen:
                        seen.add(statement.target)
                        following.append(statement.target)
            level = following
        return found

    def _values(self, sources: Sequence[str]) -> set[int]:
        """Numbers among the operands, and those of registers that are set once, to a number."""
        values = set()
        for source in sources:
            defined = self._defined.get(source, [])
            text = source
            if len(defined) == 1 and defined[0].opcode.startswith("mov.") and len(defined[0].sources) == 1:
                text = defined[0].sources[0]
            if _NUMBER.fullmatch(text):
                values.add(int(text.rstrip("U"), 0) if "0x" in text else int(text.rstrip("U")))
        return values


def _statements(line: str) -> Iterator[_Statement]:
    for part in line.strip().strip("{}").split(";"):
        found = _STATEMENT.match(part.strip())
        if found is None or found[2].startswith((".", "bra", "call", "ret")):
            continue
        operands = [piece.strip() for piece in found[3].split(",")]
        if operands:
            yield _Statement(found[2], operands[0], tuple(operands[1:]))
