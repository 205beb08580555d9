"""Where instructions beside marks in PTX were written: what the table of lines has wrong, or lacks.

In: the machine code of marked PTX, and of clean PTX. Out: `Section`s with other frames. In the row that ptxas makes for
the caller of an inlined line it keeps the file of the row before (13.5; read in .debug_line): beside marks that is the
marks'. PTX that names no lines of a source has its own: frames of the file "" with the line of the clean PTX, by which
sites of such a kernel are named too. Marks say how far they have moved it down (instrument/insert.py), nvdisasm where
it now stands.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from warplens import layout
from warplens.audit.sass import Frame, Instruction, Section

_MARKS: Final = re.compile(rf"(?:^|[/\\]){re.escape(layout.MARKS_FILE)}$")
_UNLINED: Final = re.compile(rf"(?:^|[/\\]){re.escape(layout.PTX_FILE)}$")


def is_unlined(section: Section) -> bool:
    """Whether it is of marked PTX that named no lines of a source."""
    return any(_UNLINED.search(own.frames[-1].file) for own in section.code if own.frames)


def place_marked(section: Section) -> Section:
    """The kernel with frames that can be believed; in one without marks in PTX none change."""
    files = {frame.file for own in section.code for frame in own.frames if not _MARKS.search(frame.file)}
    only = next(iter(files)) if len(files) == 1 else None
    return replace(section, code=[_placed(own, only) for own in section.code])


def place_clean(section: Section) -> Section:
    """The clean kernel of PTX that names no lines, with the lines of its PTX."""
    code = [
        replace(own, frames=(Frame("", own.ptx_line),)) if own.ptx_line and not own.frames else own
        for own in section.code
    ]
    return replace(section, code=code)


def _placed(own: Instruction, only: str | None) -> Instruction:
    """`only`: the file that all else of the kernel is of, None where there are several."""
    frames = own.frames
    if len(frames) == 1 and _UNLINED.search(frames[0].file):
        place = (Frame("", (own.ptx_line - frames[0].line) % layout.PTX_LINES),) if own.ptx_line else ()
        return replace(own, frames=place)
    wrong = [n for n, frame in enumerate(frames) if _MARKS.search(frame.file)] if len(frames) > 1 else []
    if not wrong:  # marks are inlined nowhere
        return own
    if only is None:
        return replace(own, frames=frames[: wrong[0]])
    return replace(own, frames=tuple(Frame(only, f.line) if n in wrong else f for n, f in enumerate(frames)))
