"""PTX as no compiler writes it, and ptxas takes it: comments between all tokens, numbers in other bases; and PTX as
compilers write it that are not asked for lines."""

from __future__ import annotations

import re
from itertools import cycle
from typing import Final

_TOKEN: Final = re.compile(r'(\s*)("[^"]*"|\.version\s+\d+\.\d+|[a-z]\w*(?:\.[\w:]+)+|[@!]|[.%$]?[\w$]+(?:::\w+)*|\S)')
_NUMBER: Final = re.compile(r"(?<![\w.$%])(\d+)(?![\w.])")
REMARKS: Final = ("/**/", '/* ; } { ret; // " */', '// " /* ; {\n', "/*\n.loc 9 9 9 \t*/ ")


def without_its_comments(text: str) -> str:
    """What Triton says in comments is not there either."""
    return re.sub(r"//.*", "", text)


def without_lines(text: str) -> str:
    """As a compiler writes it that is not asked for them."""
    return re.sub(r"(?s)\n\s*\.section\s.*", "\n", re.sub(r"(?m)^\s*\.(?:loc|file)\s.*\n", "", text))


def commented(text: str) -> str:
    """A comment in front of each token, opcodes whole, in place of all white space; numbers of `.loc` and `.file` are
    hexadecimal."""
    text = re.sub(r"(?m)^\s*\.(?:loc|file)\s.*", _with_hex, text)
    remarks = cycle(REMARKS)
    return "".join(f"{next(remarks)}{found[2]}" for found in _TOKEN.finditer(text))


def _with_hex(found: re.Match[str]) -> str:
    directive, quote, rest = found[0].partition('"')
    return _NUMBER.sub(lambda own: f"{int(own[1]):#x}", directive) + quote + rest
