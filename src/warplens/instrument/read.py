"""The text of a PTX module, cut into statements, and which function each stands in.

In: text. Out: `Module`: statements as (kind, start, end) that tile the text but for white space and comments, and
functions. What is not known passes through as it stands: nothing here makes text, and writing is splicing into the
original (`splice`). Must not know what an instruction does: that is flow.py and sites.py.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from warplens.errors import PtxError

# Reading takes time in proportion to the text: what is repeated begins with another character than what follows, and
# what is never closed ends with the text. Single characters are repeated possessively; groups are not, since Python
# before 3.11.5 matches those wrongly (https://github.com/python/cpython/issues/106052).
_STRING: Final = r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'
_REMARK: Final = r"(?://[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*(?:\*/|\Z))"
_GAP: Final = rf"\s*+(?:{_REMARK}\s*+)*"
_REST: Final = rf'[^;/"]*+(?:(?:{_STRING}|{_REMARK}|/)[^;/"]*+)*'
_UNTIL_BODY: Final = rf'[^{{;/"]*+(?:(?:{_STRING}|{_REMARK}|/)[^{{;/"]*+)*'
_TOKEN: Final = re.compile(
    rf"\s*+(?:(?P<comment>{_REMARK})"
    r"|(?P<line>\.loc\s++\d++\s++\d++\s++\d++"
    r"(?:\s*+,\s*+function_name\s++[\w$.]++(?:\s*+\+\s*+\d++)?\s*+,\s*+inlined_at\s++\d++\s++\d++\s++\d++)?"
    rf"|\.file\s++\d++\s++{_STRING}(?:\s*+,\s*+\d++\s*+,\s*+\d++)?"
    r"|\.version\s++\d+\.\d++|\.target\s++\w++(?:\s*+,\s*+\w++)*|\.address_size\s++\d++)"
    rf'|(?P<section>\.section\s++[\w.$]++\s*+\{{[^{{}}"]*+(?:{_STRING}[^{{}}"]*+)*\}})'
    rf"|(?P<label>[A-Za-z_$%][\w$]*+{_GAP}:(?!:))"
    rf"|(?P<head>(?:\.(?:visible|weak|extern|common)\b{_GAP})*\.(?:entry|func)\b{_UNTIL_BODY}(?=[{{;]|\Z))"
    rf"|(?P<statement>[^\s{{}}/;]{_REST}(?:;|\Z)|;)"
    r"|(?P<open>\{)|(?P<close>\})|(?P<other>\S))|\s++",
    re.DOTALL,
)
_KINDS: Final = sorted(_TOKEN.groupindex, key=_TOKEN.groupindex.__getitem__)
COMMENT, LINE, SECTION, LABEL, HEAD, STATEMENT, OPEN, CLOSE, OTHER = range(1, len(_KINDS) + 1)
_NAME: Final = re.compile(rf"\.(entry|func)\b{_GAP}(?:\([^()]*+(?:\([^()]*+\)[^()]*+)*\){_GAP})?([\w$%.]+)")
_INTEGER: Final = re.compile(
    r"(-?)(?:0[xX]([0-9a-fA-F]{1,16})|0[bB]([01]{1,64})|0([0-7]{1,22})|(0|[1-9][0-9]{0,19}))U?"
)
_COMMENT: Final = re.compile(rf"({_STRING})|{_REMARK}", re.DOTALL)


_DEEPEST: Final = 256
"""Braces within each other: more are damage, and each instruction knows those that it is within."""
_FILE: Final = re.compile(r'\.file\s++([0-9]{1,9}+)\s++"((?:[^"\\]|\\.)*)"')


class Statement(NamedTuple):
    """A piece of the text: `kind` is one of the numbers above."""

    kind: int
    start: int
    end: int


@dataclass
class Function:
    """An entry or a `.func` with a body: statements `first` to `last - 1` stand between its braces."""

    name: str
    is_entry: bool
    head: int
    """Index of the statement that holds its name, parameters and directives."""
    first: int
    last: int


@dataclass
class Module:
    """A PTX module. `statements` leave out white space and comments; `functions` are those with a body."""

    text: str
    statements: list[Statement]
    functions: list[Function] = field(default_factory=list)

    def source(self, index: int) -> str:
        """The text of a statement, as it stands."""
        _, start, end = self.statements[index]
        return self.text[start:end]

    def bare(self, index: int) -> str:
        """The text of a statement without comments."""
        text = self.source(index)
        return without_comments(text) if "/" in text else text

    @property
    def entries(self) -> list[Function]:
        """The kernels, in the order of the text."""
        return [function for function in self.functions if function.is_entry]

    @cached_property
    def files(self) -> dict[int, str]:
        """Paths of source files by the number that `.loc` calls them by, as they stand."""
        pairs = (_FILE.match(self.text, start) for kind, start, _ in self.statements if kind == LINE)
        return {int(found[1]): found[2] for found in pairs if found}

    @cached_property
    def _ends_of_lines(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self.text)]

    def line(self, at: int) -> int:
        """The number of the line, from 1, that the character `at` stands in."""
        return bisect_left(self._ends_of_lines, at) + 1

    def directive(self, name: str) -> str | None:
        """What stands behind `.version`, `.target` or `.address_size`; None when it is not there."""
        for kind, start, end in self.statements[:64]:
            if kind == LINE and self.text.startswith(f".{name}", start):
                return without_comments(self.text[start:end]).split(None, 1)[1].strip()
        return None


def without_comments(text: str) -> str:
    """The text with a blank for each comment; strings stay."""
    return _COMMENT.sub(lambda found: found[1] or " ", text)


def integer(text: str) -> int | None:
    """The value of an integer as PTX writes it (decimal, `0x`, `0b`, octal `0`, each with a sign or `U` if need be).

    None for what is none, and for one of more digits than 64 bits have.
    """
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits, base = found[1], found[found.lastindex or 0], {2: 16, 3: 2, 4: 8, 5: 10}[found.lastindex or 0]
    return int(sign + digits, base)


def without_remarks(text: str) -> str:
    """The text with a blank for each comment and each string."""
    return _COMMENT.sub(" ", text)


def read(text: str) -> Module:
    """Cuts PTX into statements.

    Raises PtxError where braces do not match or a function has no name: with the line. An instruction, directive or
    section that is not known is a statement as any other.
    """
    statements: list[Statement] = []
    append = statements.append
    make = tuple.__new__
    at = 0
    for found in _TOKEN.finditer(text):
        kind = found.lastindex
        if kind is not None and kind != COMMENT:
            append(make(Statement, (kind, *found.span(kind))))
        at = found.end()
    assert at == len(text)
    return Module(text, statements, list(_functions(text, statements)))


def _functions(text: str, statements: list[Statement]) -> Iterable[Function]:
    depth = 0
    head = opened = -1
    for index, (kind, start, _) in enumerate(statements):
        if kind < HEAD or kind == STATEMENT:
            continue
        if kind == HEAD:
            if depth:
                raise PtxError(f"line {line_of(text, start)}: a function begins within another: a brace is missing")
            head = index
        elif kind == OPEN:
            depth += 1
            if depth > _DEEPEST:
                raise PtxError(f"line {line_of(text, start)}: more than {_DEEPEST} braces within each other")
            if depth == 1:
                opened = index
        elif kind == CLOSE:
            depth -= 1
            if depth < 0:
                raise PtxError(f"line {line_of(text, start)}: a closing brace without an opening one")
            if depth == 0 and head >= 0:
                yield _function(text, statements, head, opened, index)
                head = -1
    if depth:
        raise PtxError(f"line {line_of(text, statements[opened].start)}: this brace is never closed")


def _function(text: str, statements: list[Statement], head: int, opened: int, closed: int) -> Function:
    _, start, end = statements[head]
    found = _NAME.search(without_comments(text[start:end]))
    if found is None:
        raise PtxError(f"line {line_of(text, start)}: a function without a name")
    return Function(found[2], found[1] == "entry", head, opened + 1, closed)


def file_name(path: str) -> str:
    """The last part of a path of any system."""
    return path.replace("\\", "/").rpartition("/")[2]


def line_of(text: str, at: int) -> int:
    """The number of the line, from 1, that the character `at` stands in."""
    return text.count("\n", 0, at) + 1


def splice(text: str, insertions: Iterable[tuple[int, int, str]]) -> str:
    """The text with pieces exchanged: (start, end, new) each; of those at one place the first given comes first, and
    what is put in front of text that is exchanged comes before it."""
    out = []
    at = 0
    for start, end, new in sorted(insertions, key=lambda piece: piece[:2]):
        out += [text[at:start], new]
        at = end
    return "".join([*out, text[at:]])
