"""Marks that stand in the source: `warplens.triton.phase` and its like leave a line of comment in the PTX.

In: a `Flow`. Out: where those marks stand among the instructions, and what the compiler has moved away from them. A
comment makes no instruction; what stands behind its name is hexadecimal, for LLVM reads other characters as its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from warplens.instrument.flow import Flow
from warplens.instrument.instruction import Place
from warplens.instrument.read import LINE, file_name
from warplens.instrument.waits import notable

VERBS: Final = ("phase", "mark", "range_push", "range_pop")
_MARKER: Final = re.compile(rf"//[ \t]*warplens\.mark ({'|'.join(VERBS)}) ([0-9a-f]*)")


def marker(verb: str, name: str) -> str:
    """The comment that stands for a mark in PTX."""
    assert verb in VERBS
    return f"// warplens.mark {verb} {name.encode('utf-8', 'replace').hex()}"


@dataclass(frozen=True)
class SourceMark:
    """A mark in front of instruction `index`, or behind it. `verb`: one of VERBS; `line`: of the source, (0, 0, 0) for
    none; `at`: its place in the text. `is_alone`: branches lead to a label in front of it and to one behind it,
    with no instruction between, so that neither place is its own."""

    index: int
    behind: bool
    verb: str
    name: str
    line: Place
    at: int
    is_alone: bool = False


def source_marks(flow: Flow) -> list[SourceMark]:
    """In the order of the text."""
    module = flow.module
    begin, end = (module.statements[n].start for n in (flow.function.first - 1, flow.function.last))
    found = list(_MARKER.finditer(module.text, begin, end))
    if not found or not flow.code:
        return []
    starts = [module.statements[own.statement].start for own in flow.code]
    labels = flow.led_to
    places = list(_places(flow))
    out = []
    for own in found:
        index = bisect_left(starts, own.start())
        next_label = bisect_left(labels, own.start())
        stop = starts[index] if index < len(starts) else len(module.text)
        is_behind = next_label < len(labels) and labels[next_label] < stop
        is_alone = is_behind and next_label > 0 and (index == 0 or labels[next_label - 1] > starts[index - 1])
        behind = index == len(starts) or (is_behind and index > 0)
        place = places[bisect_left(places, (own.start(), (0, 0, 0))) - 1][1] if places else (0, 0, 0)
        name = bytes.fromhex(own[2]).decode("utf-8", "replace") if len(own[2]) % 2 == 0 else own[2]
        out.append(SourceMark(index - behind, behind, own[1], name, place, own.start(), is_alone))
    return out


def _places(flow: Flow) -> Iterator[tuple[int, Place]]:
    """Where in the text which line of the source begins."""
    module = flow.module
    place: Place = (0, 0, 0)
    yield 0, place
    for index in range(flow.function.first, flow.function.last):
        kind, start, _ = module.statements[index]
        if kind == LINE:
            place = flow.place(index, place)
            yield start, place


def moved(flow: Flow, marks: list[SourceMark]) -> list[str]:
    """What stands between two marks in the source, and elsewhere in the PTX: a line for each phase and range.

    A compiler that pipelines a loop issues the loads of later turns early; what the mark tells is then not their time.
    """
    out: dict[str, None] = {}
    regions = {(own.name, own.line[:2], end) for own in marks if (end := _source_end(own, marks)) is not None}
    for name, (number, first), last in sorted(regions):
        stretches = [
            (own.at, _text_end(own, marks, len(flow.module.text))) for own in marks if own.name == name and _opens(own)
        ]
        outside = []
        for own in flow.code:
            if own.place[0] != number or not first < own.place[1] <= last:
                continue
            at = flow.module.statements[own.statement].start
            if not any(begin < at < end for begin, end in stretches):
                outside += [f"{word} of line {own.place[1]}" for word in notable([own])]
        if outside:
            file = file_name(flow.module.files.get(number, ""))
            what = ", ".join(dict.fromkeys(outside))
            out[f"{name!r} ({file}:{first}): the compiler has moved {what} out of it: their time is not in it"] = None
    return list(out)


def _opens(own: SourceMark) -> bool:
    return own.verb in ("phase", "range_push")


def _ends(own: SourceMark, other: SourceMark) -> bool:
    """Whether `other` ends what `own` began, wherever it stands."""
    if own.verb == "phase":
        return other.verb == "phase"
    return other.verb == "range_pop" and other.name == own.name


def _source_end(own: SourceMark, marks: list[SourceMark]) -> int | None:
    """The last line of the source that belongs to it; None for what is not told by lines.

    Where a `with` ends is told by its last line (Triton 3.6) or by its first (3.9): then up to the next mark.
    """
    number, line, _ = own.line
    if not _opens(own) or not line:
        return None
    later = [other for other in marks if other.line[0] == number and other.line[1] > line]
    pops = [other.line[1] for other in later if own.verb == "range_push" and _ends(own, other)]
    return min(pops) if pops else min((other.line[1] - 1 for other in later), default=None)


def _text_end(own: SourceMark, marks: list[SourceMark], end: int) -> int:
    return min((other.at for other in marks if other.at > own.at and _ends(own, other)), default=end)
