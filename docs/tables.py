"""Rewrites the tables of columns in the reference pages from `warplens.trace.tables`.

In: docs/reference/*.md with markers. Out: the same pages with current tables; nothing else in them is touched.
A test fails when a page differs from what `python docs/tables.py` would write.
"""

from __future__ import annotations

import re
from pathlib import Path

from warplens.trace.tables import CLOCKS, STORED_SPANS, TABLES, Column

PLACES = re.compile(r"<!-- columns of (\w+) -->\n.*?<!-- end of columns -->\n", re.DOTALL)
COLUMNS = {
    **TABLES,
    "clocks": CLOCKS,
    "stored_spans": {name: column for name, column in STORED_SPANS.items() if name not in TABLES["spans"]},
}


def pages() -> list[Path]:
    """The pages that hold tables of columns."""
    return [Path(__file__).parent / "reference" / name for name in ("tables.md", "file.md")]


def rewritten(text: str) -> str:
    """The page `text` with current tables between its markers."""
    return PLACES.sub(lambda place: block(place[1]), text)


def block(name: str) -> str:
    """Markers and table of the columns `name`."""
    rows = "\n".join(row(key, column) for key, column in COLUMNS[name].items())
    table = f"| column | type | holds |\n|---|---|---|\n{rows}"
    return f"<!-- columns of {name} -->\n\n{table}\n\n<!-- end of columns -->\n"


def row(name: str, column: Column) -> str:
    """One row of a table in Markdown."""
    return f"| `{name}` | {column.dtype}{' or null' if column.nullable else ''} | {column.meaning} |"


if __name__ == "__main__":
    for page in pages():
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
