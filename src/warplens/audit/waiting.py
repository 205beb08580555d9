"""What a warp waits for in a stretch of code, in words.

In: a `Build`, indices of instructions, the mark that they are seen from. Out: texts such as "2 LDG line 41".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from warplens.audit.builds import Build
from warplens.audit.marks import place_apart
from warplens.audit.sass import Frame

MOST_SHOWN: Final = 12
_WAITS_ITSELF: Final = re.compile(
    r"BAR\.(?:SYNC|RED)|DEPBAR|WARPGROUP\.DEPBAR|SYNCS\.PHASECHK|UCGABAR_WAIT|ACQBULK|NANOSLEEP|UTCATOMSWS|CCTL\.IVALL"
)
"""Opcodes that wait by what they do, not by a scoreboard alone."""


def waits_itself(opcode: str) -> bool:
    """Whether an instruction waits by what it does: a barrier, an mbarrier, a group of copies or of MMAs."""
    return _WAITS_ITSELF.match(opcode) is not None


def words_of_waits(build: Build, indices: Iterable[int], seen_from: tuple[Frame, ...]) -> str:
    """What the instructions wait for on some path, with the lines that it comes from; "" for nothing.

    What the recorder waits for within itself is left out.
    """
    found: Counter[tuple[Frame, str]] = Counter()
    counted: set[int] = set()
    for index in indices:
        instruction = build.code[index]
        if waits_itself(instruction.opcode) and not build.is_ours(index):
            label = ".".join(instruction.opcode.split(".")[:2])
            found[place_apart(build.place(index), seen_from), label] = 1
        for token in build.boards.waits(index):
            if token < 0 or token in counted or build.is_ours(token // 2):
                continue
            counted.add(token)
            cause = build.code[token // 2].name
            label = f"operands of {cause}" if token % 2 else cause
            found[place_apart(build.place(token // 2), seen_from), label] += 1
    return _words(found, seen_from)


def words_of_issues(build: Build, indices: Iterable[int], seen_from: tuple[Frame, ...]) -> str:
    """The instructions by their names, with the lines that they come from; "" for none."""
    places = ((place_apart(build.place(index), seen_from), build.code[index].name) for index in indices)
    return _words(Counter(places), seen_from)


def _words(found: Counter[tuple[Frame, str]], seen_from: tuple[Frame, ...]) -> str:
    items = [
        " ".join([*([str(count)] if count > 1 else []), label, *([_line(place, seen_from)] if place.line else [])])
        for (place, label), count in sorted(found.items())
    ]
    more = [f"and {len(items) - MOST_SHOWN} more"] if len(items) > MOST_SHOWN else []
    return ", ".join(items[:MOST_SHOWN] + more)


def words_of_lines(places: Iterable[tuple[Frame, ...]], seen_from: tuple[Frame, ...]) -> str:
    """ "line 41" or "lines 41 and 47", or "" where no line is known."""
    apart = sorted({place_apart(place, seen_from) for place in places} - {Frame("", 0)})
    if not apart:
        return ""
    if len(apart) == 1:
        return _line(apart[0], seen_from)
    shown = [_line(place, seen_from).removeprefix("line ") for place in apart[:8]]
    last = "others" if len(apart) > 8 else shown.pop()
    return f"lines {', '.join(shown)} and {last}"


def _line(place: Frame, seen_from: tuple[Frame, ...]) -> str:
    """A line, with the last part of its file's path where that is not the mark's file."""
    if not seen_from or place.file == seen_from[0].file:
        return f"line {place.line}"
    return f"line {place.line} of {last_part(place.file) or 'the PTX'}"


def last_part(path: str) -> str:
    """The file's name: folders of the machine stay out of a trace."""
    return re.split(r"[/\\]", path)[-1]
