"""One page that shows a trace: a file that any browser opens from disk, with no network.

In: a Trace, a path, and which part of the trace. Out: one HTML file, written whole or not at all. The page's own code
lies in `page/`: ES modules that are put one after the other here. Its content security policy names the hashes of
that one script and that one style sheet and forbids all else; what comes out of the trace is data, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.render.escape import visible
from warplens.render.page_data import MAX_SPANS, page_data
from warplens.render.selection import Selection
from warplens.whole import whole_file

if TYPE_CHECKING:
    from warplens.trace import Trace

PAGE: Final = Path(__file__).parent / "page"
SUFFIXES: Final = (".html", ".htm")
_IMPORT: Final = re.compile(r'^import (?:\{[^}]*\} from )?"\./([\w-]+\.js)";\n', re.MULTILINE)
_DOCUMENTATION: Final = re.compile(r"/\*\*.*?\*/[ \t]*\n?", re.DOTALL)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?function|class|const|let)", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """The page that was written, how many spans it shows of how many, and what was left out, in words."""

    path: Path
    spans: int
    held: int
    sampled: str


def report(trace: Trace, path: str | Path, *, selection: Selection | None = None, max_spans: int = MAX_SPANS) -> Report:
    """Write a page that shows `trace` in a browser to `path` (`.html`): one file, offline.

    `selection` chooses a part of it. A page carries 12 million spans, or `max_spans`; of more, one block in so many is
    shown, and `Report.sampled` and the page say so. Raises UsageError for another suffix, for a part that the trace
    does not hold and for a block with more spans than that, FileError when `path` cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a report is a page: the name {visible(target.name)!r} must end in {' or '.join(SUFFIXES)}")
    data = page_data(trace, selection=selection, max_spans=max_spans)
    source = getattr(trace, "path", None)
    name = source.name if source is not None else "trace"
    facts = data.facts | {"file": visible(name, limit=400), "columns": data.columns}
    with whole_file(target) as stream:
        stream.writelines(piece.encode() for piece in page_text(f"{visible(name)} - warplens", facts, data.streams))
    return Report(target, data.shown, data.held, data.sampled)


def page_text(title: str, facts: dict[str, Any], streams: list[str]) -> list[str]:
    """The page in pieces: markup, one element with the facts, one a stream, and the script."""
    template = (PAGE / "page.html").read_text(encoding="utf-8")
    script, style = bundle(), (PAGE / "page.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    known = {"title": html.escape(title), "policy": policy, "style": style}
    head, tail = re.sub(r"\{\{(\w+)\}\}", lambda m: known.get(m[1], m[0]), template).split("{{data}}")
    text = json.dumps(_finite(facts), separators=(",", ":"), allow_nan=False)
    # The facts travel as a stream too: small, and no text of a stranger stands in the markup.
    packed = base64.b64encode(zlib.compress(text.encode(), 6)).decode()
    data = [f'<script type="text/plain" id="facts-data">{packed}</script>\n']
    data += [f'<script type="text/plain" class="stream">{stream}</script>\n' for stream in streams]
    return [head, *data, tail.replace("{{script}}", script)]


def bundle() -> str:
    """All modules as one: in the order of their imports, without `import`, `export` and documentation.

    Top-level names are therefore unique over all modules, and an import never renames.
    """
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        text = (PAGE / name).read_text(encoding="utf-8")
        done[name] = ""
        for needed in _IMPORT.findall(text):
            visit(needed)
        del done[name]
        done[name] = _EXPORT.sub("", _DOCUMENTATION.sub("", _IMPORT.sub("", text)))

    visit("main.js")
    return "\n".join(["", *done.values()])


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _finite(value: Any) -> Any:
    """The value with null for what JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
