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
from rich.terminal_theme import TerminalTheme

from warplens.errors import WarplensError
from warplens.render.plots import plot
from warplens.render.text import summary

if TYPE_CHECKING:
    from warplens.trace import Trace

MAX_BYTES: Final = 1_000_000
_COLUMNS: Final = 120
_FONTS: Final = "Menlo,Consolas,'DejaVu Sans Mono','Courier New',monospace"
"""Said here, for not every notebook gives `pre` a font whose characters are equally wide."""
_TEXT: Final = f'<pre style="font-family:{_FONTS};line-height:1.25;font-size:12px;overflow-x:auto">{{code}}</pre>'
_GREY: Final = (128, 128, 128)
_INK: Final = (1, 2, 3)
_COLORS: Final = (_GREY, (205, 60, 60), (40, 150, 70), (176, 130, 0), (70, 120, 220), (170, 80, 170), (0, 145, 160))
_THEME: Final = TerminalTheme(_GREY, _INK, [*_COLORS, _GREY])
"""Colours that are read on a light and on a dark notebook; dim text is mixed with grey."""
_OWN: Final = {"#010203": "inherit", "#404141": "#808080"}
"""_INK stands for the notebook's own colour of text; mixed with grey it would be too dark on a dark one."""
_NEXT: Final = '<p>The whole trace as a page: <code>warplens.report(trace, "report.html")</code></p>'


def html(trace: Trace) -> str:
    """HTML of the summary and, where there are spans to draw and it fits, a picture."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_jupyter=False, markup=False, emoji=False)
    console.print(summary(trace))
    text = console.export_html(theme=_THEME, inline_styles=True, code_format=_TEXT)
    for ink, color in _OWN.items():
        text = text.replace(f"color: {ink}", f"color: {color}")
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
