"""A trace as a notebook shows it: its summary, the warps of one block, and the way to the whole page.

In: a Trace. Out: HTML without scripts, at most MAX_BYTES; names of strangers are escaped.
"""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from warplens.errors import WarplensError
from warplens.render.plots import plot
from warplens.render.text import summary

if TYPE_CHECKING:
    from warplens.trace import Trace

MAX_BYTES: Final = 1_000_000
_COLUMNS: Final = 120
_TEXT: Final = '<pre style="line-height:1.25;font-size:12px;overflow-x:auto">{code}</pre>'
_NEXT: Final = '<p>The whole trace as a page: <code>warplens.report(trace, "report.html")</code></p>'


def html(trace: Trace) -> str:
    """HTML of the summary and, where there are spans to draw and it fits, a picture."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_jupyter=False, markup=False, emoji=False)
    console.print(summary(trace))
    text = console.export_html(inline_styles=True, code_format=_TEXT)
    if len(text) > MAX_BYTES // 2:
        text = f"<p>The summary has {len(text):,} characters: <code>warplens summary</code> prints it.</p>"
    picture = _picture(trace)
    return f"<div>{text}{picture if len(text) + len(picture) < MAX_BYTES else ''}{_NEXT}</div>"


def _picture(trace: Trace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = plot(trace, "warps", Path(folder, "warps.png"))
        except WarplensError:  # nothing to draw
            return ""
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<img style="max-width:100%" alt="the warps of one block" src="data:image/png;base64,{data}">'
