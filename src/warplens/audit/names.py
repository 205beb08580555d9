"""The verb, site and line of a mark.

In: clock reads with the lines that they were inlined from, the sites, source texts, the PTX. Out: `Mark`s. What the PTX
keeps beside the clock decides. The lines decide where it keeps nothing, and only for a read that no other shares its
lines with: ptxas gives an inlined line the callers that stand last in the PTX, which may be those of another mark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from warplens import layout
from warplens.audit.ptx import Ptx
from warplens.audit.sass import Frame, Instruction

Texts = Callable[[str], str | None]
"""The text of a source file by the path that the machine code names, or None."""

_METHOD: Final = re.compile(r"__device__ __forceinline__ (?:constexpr )?(?:void |Token )?(~?\w+)\(")
_STORES_EVENT: Final = re.compile(r"put\(|with_payload\(|with_id\(|\.finish\(|\.begin_iteration\(")
"""What stands in a line of warplens.cuh that a clock read was inlined from."""
_CALL: Final = re.compile(
    r"(?:[.>]|warplens\s*::)\s*(phase|end_phase|mark|range_push|range_pop|range_start|range_end|wait|arrive)"
    r"(?:_lane|\s*<[^()]*>)?\s*\(\s*"  # rec.mark_lane(s::a), warplens::mark<s>(s::a)
    r"(?:(?:\w+\s*::\s*)*(\w+))?\s*[,)]"
)
_OF_SITE: Final = {verb.value: verb.name.lower() for verb in layout.Verb if verb != layout.Verb.SPARE}
_OF_NONE: Final = {
    layout.Control.RANGE_POP.value: "range_pop",
    layout.Control.TOKEN_END.value: "range_end",
    layout.Control.PHASE_END.value: "end_phase",
    layout.Control.END.value: "end",
    layout.Control.GAP.value: "gap",
}
_VERBS: Final = frozenset({*_OF_SITE.values(), *_OF_NONE.values()}) - {"gap", "end"}
_GAP: Final = {(None, "gap")}
_UNKNOWN: Final = "which site it is cannot be told from the machine code"


@dataclass(frozen=True)
class Mark:
    """A clock read: its index in the code, verb, site (from 0 in the kernel's set, None for none or not known).

    `verb` is "end" for the recorder's destructor and "" when it is not known. `frames` lead from the line of the mark
    (0 when it is not known) out to the kernel.
    """

    index: int
    verb: str
    site: int | None
    frames: tuple[Frame, ...]
    doubt: str = ""

    @property
    def place(self) -> Frame:
        """The line of the mark in the user's source; ("", 0) when it is not known."""
        return self.frames[0] if self.frames else Frame("", 0)


def decoded(value: int, sites: int) -> tuple[int | None, str] | None:
    """Site (from 0, None for none) and verb of a code, where there are so many sites; None for what is no code."""
    site = value >> layout.CODE_SITE_SHIFT
    kind = value >> layout.CODE_VERB_SHIFT & ((1 << layout.CODE_VERB_BITS) - 1)
    name = _OF_SITE.get(kind) if site else _OF_NONE.get(kind)
    if name is None or not 0 <= site <= sites:
        return None
    return (site - 1 if site else None), name


class Names:
    """Names the marks of one kernel."""

    def __init__(
        self,
        sites: Sequence[dict[str, Any]],
        texts: Texts,
        calls: Sequence[tuple[Instruction, tuple[Frame, ...]]],
        ptx: Ptx,
    ) -> None:
        self._sites = sites
        self._texts = cache(texts)
        self._ptx = ptx
        self._sharing = Counter(read.frames for read, _ in calls)
        self._numbers_of: dict[str, dict[str, int]] = {}
        self._codes: dict[int, set[tuple[int | None, str]]] = {}
        self._headers_fit = True
        self._strangers: set[str] = set()
        self._compare_texts(calls)

    def _compare_texts(self, calls: Sequence[tuple[Instruction, tuple[Frame, ...]]]) -> None:
        """Drops texts that are not those that were compiled: edited since, or of another version of the headers."""
        headers_fit, strangers = True, set()
        for read, call in calls:
            text = self._lines(call[0].file)
            headers_fit &= call[0].line <= len(text) and _STORES_EVENT.search(text[call[0].line - 1]) is not None
            kept = self._kept(read, "")
            if len(kept) != 1 or kept == _GAP or self._sharing[read.frames] > 1:
                continue
            site, verb = next(iter(kept))
            headers_fit &= self._method(call) in ("", verb)
            written = self._written(call[1])
            if written and (written[0] != verb or self._numbers(call[1].file).get(written[1], site) != site):
                strangers.add(call[1].file)
        self._headers_fit, self._strangers = headers_fit, strangers

    def is_no_mark(self, read: Instruction, within_another: bool) -> bool:
        """Whether the recorder reads the clock for itself: for a gap, or for a chunk within another mark.

        The header says so; else a read that is kept with the code of a mark is one, and where it stands tells.
        """
        if self._headers_fit and len(read.frames) >= 2:
            lines = self._lines(read.frames[1].file)[read.frames[1].line - 1 :][:1]
            if lines and "// not a mark" in lines[0]:
                return True
        kept = self._kept(read, "")
        return kept == _GAP if kept else within_another

    def mark(self, index: int, read: Instruction, call: tuple[Frame, ...]) -> Mark:
        """The mark of a clock read; `call` leads from the line in warplens.cuh through the user's out to the kernel."""
        alone = self._sharing[read.frames] == 1
        verb = self._method(call)
        if verb == "end":  # no other verb shares a line of a header with it
            return Mark(index, verb, None, call[1:])
        kept = self._kept(read, verb if alone else "")
        written = self._written(call[1])
        if len(kept) == 1:
            site, verb = next(iter(kept))
            return Mark(index, verb, site, (self._line(call[1], verb, site, alone), *call[2:]))
        if not alone:
            return Mark(index, "", None, (Frame(call[1].file, 0), *call[2:]), _UNKNOWN)
        if not verb and written:
            verb = written[0]
        site = self._numbers(call[1].file).get(written[1]) if written and written[0] == verb else None
        has_none = verb in ("end_phase", "range_pop") or (verb == "range_end" and (not written or not written[1]))
        return Mark(index, verb, site, call[1:], "" if site is not None or has_none else _UNKNOWN)

    def _lines(self, file: str) -> list[str]:
        return [] if file in self._strangers else (self._texts(file) or "").splitlines()

    def _method(self, call: tuple[Frame, ...]) -> str:
        """The method of Recorder that the line stands in, "" when the header's text cannot be had."""
        if not self._headers_fit:
            return ""
        for line in reversed(self._lines(call[0].file)[: call[0].line]):
            if found := _METHOD.search(line):
                verb = found[1].removesuffix("_lane")
                return "end" if verb == "~Recorder" else verb if verb in _VERBS else ""
        return ""

    def _kept(self, read: Instruction, verb: str) -> set[tuple[int | None, str]]:
        """Site and verb of the codes that the PTX keeps with the clock; with `verb`, those of it alone."""
        if read.ptx_line not in self._codes:
            codes = self._ptx.codes(read.ptx_line, lambda value: self._decoded(value) is not None)
            self._codes[read.ptx_line] = {found for value in codes if (found := self._decoded(value)) is not None}
        return {found for found in self._codes[read.ptx_line] if verb in ("", found[1])}

    def _decoded(self, value: int) -> tuple[int | None, str] | None:
        return decoded(value, len(self._sites))

    def _written(self, place: Frame) -> tuple[str, str] | None:
        """Verb and site as the line names them; None when it calls no verb, or several."""
        lines = self._lines(place.file)[max(place.line - 1, 0) : place.line + 2]
        if not lines or len(_CALL.findall(lines[0])) > 1:
            return None
        found = _CALL.search("\n".join(lines))
        return (found[1], found[2] or "") if found and found.start() < len(lines[0]) else None

    def _line(self, place: Frame, verb: str, site: int | None, alone: bool) -> Frame:
        """The line that marks this site: the given one where its text says so, else the only one that does."""
        lines = self._lines(place.file)
        if not lines:
            return place if alone else Frame(place.file, 0)
        numbers = self._numbers(place.file)
        fits = []
        for number, line in enumerate(lines, 1):
            calls = [c for c in _CALL.findall(line.partition("//")[0]) if c[0] == verb and numbers.get(c[1]) == site]
            if calls and number == place.line:
                return place
            fits += [number] * bool(calls)
        if len(fits) == 1:
            return Frame(place.file, fits[0])
        return place if alone and not fits else Frame(place.file, 0)

    def _numbers(self, file: str) -> dict[str, int]:
        """Sites by the name that code calls them by: in the long form it is not the one that is shown."""
        if file not in self._numbers_of:
            text = "\n".join(self._lines(file))
            numbers: dict[str, int] = {}
            for number, site in enumerate(self._sites):
                pairs = re.findall(rf'\(\s*(\w+)\s*,\s*"{re.escape(str(site["name"]))}"', text)
                numbers |= dict.fromkeys(pairs or [str(site["name"])], number)
            self._numbers_of[file] = numbers
        return self._numbers_of[file]
