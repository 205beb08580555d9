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
from warplens.instrument.instruction import Place

# Reading takes time in proportion to the text: what is repeated begins with another character than what follows, and
# what is never closed ends with the text. Single characters are repeated possessively; groups are not, since Python
# before 3.11.5 matches those wrongly (https://github.com/python/cpython/issues/106052).
_STRING: Final = r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'
_REMARK: Final = re.compile(rf"{_STRING}|/(?:/[^\n]*+|\*[^*]*+(?:\*(?!/)[^*]*+)*(?:\*/|\Z))", re.DOTALL)
_REST: Final = rf'[^;"]*+(?:{_STRING}[^;"]*+)*'
_UNTIL_BODY: Final = rf'[^{{;"]*+(?:{_STRING}[^{{;"]*+)*'
_IN_BRACES: Final = rf'\{{[^{{}}"]*+(?:{_STRING}[^{{}}"]*+)*\}}'
_INT: Final = r"[0-9][0-9A-Za-z]*+"
_THREE: Final = rf"{_INT}\s++{_INT}\s++{_INT}"
_LINKED: Final = r"\.(?:visible|weak|extern|common)\b"
_ENDED: Final = (
    r"(?:reg|sreg|local|shared|global|const|param|tex|surf|visible|weak|extern|common|pragma|alias|branchtargets|"
    r"calltargets|callprototype)\b"
)
"""Directives that a semicolon ends, wherever it stands."""
_TOKEN: Final = re.compile(
    rf"\s*+(?:(?P<line>\.loc\s++{_THREE}"
    rf"(?:\s*+,\s*+function_name\s++[\w$.]++(?:\s*+\+\s*+{_INT})?\s*+,\s*+inlined_at\s++{_THREE})?(?!\s*+,)"
    rf"|\.file\s++{_INT}\s*+{_STRING}(?:\s*+,\s*+{_INT}\s*+,\s*+{_INT})?(?!\s*+,)"
    rf"|\.version\s++\d+\.\d++|\.target\s++\w++(?:\s*+,\s*+\w++)*|\.address_size\s++{_INT}|#[^\n]*+)"
    rf"|(?P<section>\.section\s++[\w.$]++\s*+{_IN_BRACES})"
    r"|(?P<label>[A-Za-z_$%][\w$]*+\s*+:(?!:))"
    rf"|(?P<head>(?:{_LINKED}\s*+)*\.(?:entry|func)\b{_UNTIL_BODY}(?=[{{;]|\Z))"
    rf'|(?P<unknown>\.(?!{_ENDED})[A-Za-z_][^;\n{{}}"]*+(?:(?:{_STRING}|{_IN_BRACES})[^;\n{{}}"]*+)*;?)'
    rf"|(?P<statement>[^\s{{}}/;]{_REST}(?:;|\Z)|;)"
    r"|(?P<open>\{)|(?P<close>\})|(?P<other>\S))|\s++",
    re.DOTALL,
)
_KINDS: Final = sorted(_TOKEN.groupindex, key=_TOKEN.groupindex.__getitem__)
LINE, SECTION, LABEL, HEAD, UNKNOWN, STATEMENT, OPEN, CLOSE, OTHER = range(1, len(_KINDS) + 1)
_NAME: Final = re.compile(r"\.(entry|func)\b\s*+(?:\([^()]*+(?:\([^()]*+\)[^()]*+)*\)\s*+)?([\w$%.]+)")
_INTEGER: Final = re.compile(
    r"(-?)(?:0[xX]([0-9a-fA-F]{1,16})|0[bB]([01]{1,64})|0([0-7]{1,22})|(0|[1-9][0-9]{0,19}))U?"
)
_NOT_BLANK: Final = re.compile(r"[^\n]")


_DEEPEST: Final = 256
"""Braces within each other: more are damage, and each instruction knows those that it is within."""
_LARGEST: Final = 999_999_999
"""Numbers of files, lines and columns above it are damage."""
_FILE: Final = re.compile(rf'\.file\s++({_INT})\s*+"((?:[^"\\]|\\.)*)"')
_LOC: Final = re.compile(
    r"\.loc\s++(\w++)\s++(\w++)\s++(\w++)(?:\s*+,.*\binlined_at\s++(\w++)\s++(\w++)\s++(\w++))?", re.DOTALL
)


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
    """A PTX module. `statements` leave out white space and comments; `functions` are those with a body.

    `plain`: the text with blanks in place of comments, so that what stands anywhere stands at the same place in both.
    """

    text: str
    plain: str
    statements: list[Statement]
    functions: list[Function] = field(default_factory=list)

    def source(self, index: int) -> str:
        """The text of a statement, as it stands."""
        _, start, end = self.statements[index]
        return self.text[start:end]

    def bare(self, index: int) -> str:
        """The text of a statement, with blanks in place of comments."""
        _, start, end = self.statements[index]
        return self.plain[start:end]

    @property
    def entries(self) -> list[Function]:
        """The kernels, in the order of the text."""
        return [function for function in self.functions if function.is_entry]

    @cached_property
    def files(self) -> dict[int, str]:
        """Paths of source files by the number that `.loc` calls them by, as they stand."""
        out = {}
        for kind, start, _ in self.statements:
            found = _FILE.match(self.plain, start) if kind == LINE else None
            number = _small(found[1]) if found else None
            if found and number is not None:
                out[number] = found[2]
        return out

    def loc(self, index: int) -> tuple[Place, Place | None] | None:
        """What a `.loc` says: its place, and the place that it says that it was inlined at; None for what is none."""
        kind, start, end = self.statements[index]
        found = _LOC.match(self.plain, start, end) if kind == LINE else None
        if found is None:
            return None
        numbers = [_small(own) for own in found.groups() if own is not None]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        return (known[0], known[1], known[2]), (known[3], known[4], known[5]) if known[3:] else None

    @cached_property
    def _ends_of_lines(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self.text)]

    def line(self, at: int) -> int:
        """The number of the line, from 1, that the character `at` stands in."""
        return bisect_left(self._ends_of_lines, at) + 1

    def directive(self, name: str) -> str | None:
        """What stands behind `.version`, `.target` or `.address_size`; None when it is not there."""
        for kind, start, end in self.statements[:64]:
            if kind == LINE and self.plain.startswith(f".{name}", start):
                return self.plain[start:end].split(None, 1)[1]
        return None


def without_comments(text: str) -> str:
    """The text with blanks in place of comments, of the same length and with the same lines; strings stay."""
    return _REMARK.sub(_blanks, text) if "/" in text else text


def _blanks(found: re.Match[str]) -> str:
    own = found[0]
    if own[0] == '"':
        return own
    return _NOT_BLANK.sub(" ", own) if "\n" in own else " " * len(own)


def integer(text: str) -> int | None:
    """The value of an integer as PTX writes it (decimal, `0x`, `0b`, octal `0`, each with a sign or `U` if need be).

    None for what is none, and for one of more digits than 64 bits have.
    """
    if text.isdecimal() and text.isascii() and text[0] != "0" and len(text) < 20:  # nearly all, and sooner read
        return int(text)
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits, base = found[1], found[found.lastindex or 0], {2: 16, 3: 2, 4: 8, 5: 10}[found.lastindex or 0]
    return int(sign + digits, base)


def _small(text: str) -> int | None:
    value = integer(text)
    return value if value is not None and value <= _LARGEST else None


def without_remarks(text: str) -> str:
    """The text with a blank for each comment and each string."""
    return _REMARK.sub(" ", text)


def read(text: str) -> Module:
    """Cuts PTX into statements.

    Raises PtxError where braces do not match or a function has no name: with the line. An instruction that is not known
    is a statement as any other; a directive that is not known ends with its line, or at a semicolon before.
    """
    plain = without_comments(text)
    statements: list[Statement] = []
    append = statements.append
    make = tuple.__new__
    at = 0
    for found in _TOKEN.finditer(plain):
        kind = found.lastindex
        if kind is not None:
            append(make(Statement, (kind, *found.span(kind))))
        at = found.end()
    assert at == len(text) == len(plain)
    return Module(text, plain, statements, list(_functions(plain, statements)))


def _functions(text: str, statements: list[Statement]) -> Iterable[Function]:
    depth = 0
    head = opened = -1
    for index, (kind, start, _) in enumerate(statements):
        if kind < HEAD or kind in (UNKNOWN, STATEMENT):
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
    found = _NAME.search(text, start, end)
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
