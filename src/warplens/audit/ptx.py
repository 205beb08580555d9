"""Which site a clock read records, from the PTX that a cubin built with -lineinfo carries.

In: the lines of that PTX, the line of a clock read. Out: the codes of sites (layout.py) that are kept with the clock.
The inlining that ptxas notes cannot tell two calls of one function apart when their code is interleaved (the .loc of a
caller is written once); the number that the recorder keeps with the time can. It is looked for along every path from
the clock read up to the next one: where a value made of the clock is joined with a number, chosen against one, or
kept by a statement that keeps a number too.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

_FUNCTION: Final = re.compile(r"(?:^|\s)\.(?:entry|func)\s")
_LABEL: Final = re.compile(r"(\$?\w+):\s*$")
_STATEMENT: Final = re.compile(r"(?:@(!?)(%?\w+)\s+)?([a-z][\w.]*)(?:\s+(.+))?$")
_NUMBER: Final = re.compile(r"(-?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0([0-7]+)|([0-9]+))U?")
_BASES: Final = (16, 2, 8, 10)
_JOINS: Final = ("or.", "add.", "lop3.", "mad.", "bfi.", "selp.")
_CARRIES: Final = (*_JOINS, "and.", "mov.", "shl.", "shr.", "cvt.", "prmt.", "shf.")
_ENDS: Final = ("ret", "exit", "trap", "brx")
_MOST_STEPS: Final = 20_000
"""Lines looked at for one clock read: more than a mark takes by far."""

Fits = Callable[[int], bool]
"""Whether a number can be the code of a mark."""


class _Statement(NamedTuple):
    opcode: str
    target: str
    sources: tuple[str, ...]


@dataclass
class _Line:
    statements: list[_Statement] = field(default_factory=list)
    jump: str = ""  # label of a branch
    falls: bool = True

    @property
    def reads_clock(self) -> bool:
        return any(source.startswith("%clock") for s in self.statements for source in s.sources)


class Ptx:
    """The PTX of a module by its lines, numbered from 1 as nvdisasm -gp does."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._functions: dict[int, _Function] = {}
        self._found: dict[int, set[int]] = {}

    @cached_property
    def _begins(self) -> list[int]:
        return [n for n, line in enumerate(self._lines, 1) if _FUNCTION.search(line)]

    def codes(self, line: int, fits: Fits) -> set[int]:
        """Numbers that fit and are kept with the clock that is read on this line; none when there is no such read."""
        at = bisect_right(self._begins, line)
        if at == 0 or not 1 <= line <= len(self._lines) or "%clock" not in self._lines[line - 1]:
            return set()
        begin = self._begins[at - 1]
        if begin not in self._functions:
            end = self._begins[at] if at < len(self._begins) else len(self._lines) + 1
            self._functions[begin] = _Function(self._lines[begin - 1 : end - 1])
        return self._functions[begin].codes(line - begin, fits)


class _Function:
    """The statements of a function, and where control goes from each line."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._lines = [_read(text) for text in texts]
        self._labels = {found[1]: n for n, text in enumerate(texts) if (found := _LABEL.match(text.strip()))}
        self._defined: dict[str, list[_Statement]] = {}
        for line in self._lines:
            for statement in line.statements:
                self._defined.setdefault(statement.target, []).append(statement)

    def codes(self, start: int, fits: Fits) -> set[int]:
        found: set[int] = set()
        states: dict[int, frozenset[str]] = {start: frozenset()}
        pending = [start]
        for _ in range(_MOST_STEPS):
            if not pending:
                break
            at = pending.pop()
            line = self._lines[at]
            if at != start and line.reads_clock:
                continue
            here, of_clock = self._pass(line, states[at], fits)
            found |= here
            if here or not of_clock:
                continue
            for follower in self._after(at, line):
                known = states.get(follower)
                merged = of_clock if known is None else of_clock | known
                if merged != known:
                    states[follower] = merged
                    pending.append(follower)
        return found

    def _after(self, at: int, line: _Line) -> list[int]:
        out = [self._labels[line.jump]] if line.jump in self._labels else []
        if line.falls and at + 1 < len(self._lines):
            out.append(at + 1)
        return out

    def _pass(self, line: _Line, of_clock: frozenset[str], fits: Fits) -> tuple[set[int], frozenset[str]]:
        """Codes found on the line, and the registers that hold something of the clock behind it."""
        found: set[int] = set()
        now = set(of_clock)
        keeps = False
        numbers: set[int] = set()
        for statement in line.statements:
            tainted = any(source in now or source.startswith("%clock") for source in statement.sources)
            if statement.opcode.startswith("mov."):
                keeps |= tainted
                numbers |= self._values(statement.sources) if not tainted else set()
            elif tainted and statement.opcode.startswith(_JOINS):
                found |= self._values(statement.sources)
            if tainted and statement.opcode.startswith(_CARRIES):
                now.add(statement.target)
            else:
                now.discard(statement.target)
        if keeps and len(line.statements) > 1:
            found |= numbers
        return {value for value in found if fits(value)}, frozenset(now)

    def _values(self, sources: Sequence[str]) -> set[int]:
        """Numbers among the operands, and those of registers that are set once, to a number."""
        values = set()
        for source in sources:
            defined = self._defined.get(source, [])
            text = source
            if len(defined) == 1 and defined[0].opcode.startswith("mov.") and len(defined[0].sources) == 1:
                text = defined[0].sources[0]
            if found := _NUMBER.fullmatch(text):
                sign, *digits = found.groups()
                values |= {int(sign + own, base) for own, base in zip(digits, _BASES, strict=True) if own}
        return values


def _read(text: str) -> _Line:
    line = _Line()
    for predicate, opcode, operands in _statements(text):
        if opcode.startswith("bra"):
            line.jump, line.falls = operands[-1] if operands else "", predicate != ""
        elif opcode.startswith(_ENDS):
            line.falls = predicate != ""
        elif operands and not opcode.startswith(("st.", "call", "bar", "red")):
            targets, sources = _sides(operands)
            if opcode.startswith("setp"):  # its target holds no number
                sources = ()
            line.statements += [_Statement(opcode, target, sources) for target in targets]
    return line


def _sides(operands: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Targets and sources; a vector `{%r1, %r2}` in front is as many targets."""
    last = 0
    if operands[0].startswith("{"):
        last = next((n for n, operand in enumerate(operands) if operand.endswith("}")), 0)
    bare = [operand.strip("{} ") for operand in operands]
    return bare[: last + 1], tuple(bare[last + 1 :])


def _statements(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Predicate, opcode and operands of each statement on a line; several stand in inline assembly."""
    for part in text.strip().strip("{}").split(";"):
        found = _STATEMENT.match(part.strip())
        if found is not None:
            operands = [piece.strip() for piece in (found[4] or "").split(",")]
            yield found[2] or "", found[3], [piece for piece in operands if piece]
