"""Line information of what marks add to a module, and of modules that have none of their own.

In: a module, pieces of text. Out: `.file` and `.loc` lines, by which the audit tells marks from the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from warplens import layout
from warplens.instrument.read import Module

Piece = tuple[int, int, str]


def marks_file(module: Module) -> int:
    """The number by which line information names what marks are made of; the next one is the PTX itself."""
    return max(module.files, default=0) + 1


def lines_of_files(module: Module) -> list[str]:
    """What names both."""
    number = marks_file(module)
    return [f'.file {number} "{layout.MARKS_FILE}"', f'.file {number + 1} "{layout.PTX_FILE}"']


def own_place(module: Module) -> str:
    """Ends a piece in a function that has no lines: `moved_down` fills in the number."""
    return f".loc {marks_file(module) + 1} 0 0"


def own_place_from(module: Module, start: int) -> str:
    """In front of a statement that is moved up, and stood at `start`: as `own_place`, with that line in place of 0."""
    return f".loc {marks_file(module) + 1} {module.line(start)} 0"


def place_callees(module: Module) -> Iterator[Piece]:
    """In a module without lines also functions that are called get theirs, else they had those of the last mark."""
    if module.files:
        return
    for own in module.functions:
        if not own.is_entry and own.first < own.last:
            start = module.statements[own.first].start
            yield start, start, as_lines([own_place(module)])


def moved_down(module: Module, pieces: list[Piece]) -> Iterator[Piece]:
    """The pieces in the order of the text; where one ends with `own_place`, by how many lines what follows moves."""
    place = re.compile(rf"(\.loc {marks_file(module) + 1}) (\d+) 0")
    moved = line = at = 0
    for start, end, new in sorted(pieces, key=lambda piece: piece[:2]):  # as `splice` has it
        line += module.text.count("\n", at, start)
        at, first = start, line + moved + 1
        moved += new.count("\n") - module.text.count("\n", start, end)

        def filled(found: re.Match[str], first: int = first, moved: int = moved) -> str:
            here = first + found.string.count("\n", 0, found.end()) + 1  # of what follows
            return f"{found[1]} {(here - int(found[2])) % layout.PTX_LINES if int(found[2]) else moved} 0"

        yield start, end, place.sub(filled, new) if new else new


def as_lines(own: list[str]) -> str:
    """The text of a piece."""
    return "".join(f"\n\t{line}" for line in own) + "\n\t" if own else ""
