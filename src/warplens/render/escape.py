"""Text of strangers, made safe to print.

In: any string out of a file (site names, kernel names, notes). Out: the same string with every character
that could move the cursor, hide text or reverse it written as an escape (`\\x1b`, `\\u202e`).
Must not change ordinary text in any script, and knows nothing of terminals or rich.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

# Cc control, Cf format (bidi overrides, zero width), Cs surrogates, Co private, Cn unassigned, Zl and Zp separators
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_FILE: Final = re.compile(r"[^:\s]+(?=:\d)")
"""The source file that names of automatic marks begin with: `matmul.py:29 wait wgmma`."""
_FORMULA: Final = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""What makes a spreadsheet take a cell of CSV for a formula, the full-width forms too."""


def visible(text: object, *, limit: int = 200) -> str:
    """`text` with control, format and separator characters escaped, cut with an ellipsis after `limit` characters."""
    value = str(text)
    if not (value.isascii() and value.isprintable()):
        value = "".join(_escape(c) if unicodedata.category(c) in _HIDDEN else c for c in value[: limit + 1])
    return value if len(value) <= limit else value[: limit - 1] + "…"


def visible_site(name: object, *, limit: int) -> str:
    """`visible` for a site's name. Of an automatic mark's name the file gives way first.

    What tells such names apart stands behind it: at 30 characters `specialized_matmul.py:52 wait barrier 1 (3)` is
    `special…:52 wait barrier 1 (3)`.
    """
    whole = visible(name)
    file = _FILE.match(whole)
    if len(whole) <= limit or file is None:
        return visible(name, limit=limit)
    rest = whole[file.end() :]
    return visible(whole[: max(limit - len(rest) - 1, 0)] + "…" + rest, limit=limit)


def visible_cell(text: object) -> str:
    """`visible` for a cell of CSV: what a spreadsheet would take for a formula gets an apostrophe in front.

    OWASP, "CSV Injection". Programs that read the file see the apostrophe.
    """
    value = visible(text, limit=10_000)
    return f"'{value}" if _FORMULA.match(value) else value


def visible_lines(text: object) -> str:
    """Like `visible`, but keeps line ends and has no limit: for our own messages that quote names."""
    return "\n".join(visible(line, limit=len(line) * 10 + 1) for line in str(text).split("\n"))


def visible_tree(value: Any) -> Any:
    """A JSON-like value with every string in it made visible."""
    if isinstance(value, str):
        return visible(value, limit=10_000)
    if isinstance(value, dict):
        return {visible(k): visible_tree(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [visible_tree(v) for v in value]
    return value


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
