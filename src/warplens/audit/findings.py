"""What is wrong with a mark: where its name says more than the machine code lets it measure.

In: the marks and pins of a traced build, the clean build. Out: for each a list of `Finding`s. A rule speaks of what
holds on all paths, or says "on some paths"; where paths cannot be followed it says that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from warplens.audit.builds import Build
from warplens.audit.marks import ENDS_A_PHASE, Pin
from warplens.audit.names import Mark
from warplens.audit.paths import Stretch, following, is_barrier, unsettled
from warplens.audit.waiting import waits_itself, words_of_lines

Severity = Literal["", "note", "warning"]

_NAMED_LOAD: Final = re.compile(r"(?i)(?<![a-z])(?:load|fetch|read)")
_NAMED_ISSUE: Final = re.compile(r"(?i)issue|async|prefetch")
_ISSUES_COPIES: Final = re.compile(r"issue bulk load(?:, |$)")
"""What a phase of instrumented PTX is named after; what else its name says is judged as ever."""
_NAMED_STORE: Final = re.compile(r"(?i)(?<![a-z])(?:store|write)")
_NAMED_WAIT: Final = re.compile(r"(?i)barrier|sync|(?<![a-z])wait")
_STORES: Final = re.compile(r"ST|STG|STS|STL|RED|REDG|REDS|UTMASTG|UTMAREDG|STAS|STSM|UBLKRED|SUST|SURED")
_COPIES_BY_TMA: Final = re.compile(r"UTMALDG|UBLKCP|UTMALST")


class Finding(NamedTuple):
    """One thing to know about a mark."""

    text: str
    severity: Severity


@dataclass
class Traced:
    """The traced build with its marks and pins, and the clean build where there is one."""

    build: Build
    marks: list[Mark]
    pins: list[Pin]
    sites: Sequence[dict[str, Any]]
    clean: Build | None = None
    phase_ends: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.phase_ends = {mark.index for mark in self.marks if mark.verb in ENDS_A_PHASE}
        self._unnamed = {mark.index for mark in self.marks if not mark.verb}

    def stretch(self, mark: Mark) -> Stretch:
        """The code of the phase that a mark begins.

        Where a mark may be the first of its warp, two reads under two predicates take its time: one ends not the other.
        """
        code, block_of = self.build.code, self.build.flow.block_of
        twins = {
            other.index
            for other in self.marks
            if (other.verb, other.site) == (mark.verb, mark.site)
            and block_of[other.index] == block_of[mark.index]
            and other.index > mark.index
            and len({code[other.index].predicate, code[mark.index].predicate, ""}) == 3
        }
        return following(self.build.flow, mark.index, self.phase_ends - twins)

    def knows_ends(self, stretch: Stretch) -> bool:
        """Whether all marks that end it are named."""
        return not stretch.ends & self._unnamed

    def name(self, mark: Mark) -> str:
        """The site's name, "" without one."""
        return "" if mark.site is None else str(self.sites[mark.site]["name"])


def of_mark(traced: Traced, mark: Mark) -> list[Finding]:
    """All findings about a mark."""
    found = [Finding(mark.doubt, "note")] if mark.doubt else []
    if mark.verb not in ("phase", "wait"):
        return found
    stretch = traced.stretch(mark)
    if not traced.build.boards.readable or stretch.unsure:
        return [*found, Finding("unknown: not every path from here could be followed", "note")]
    for rule in (_of_loads, _of_stores, _of_waits):
        found += rule(traced, mark, stretch)
    return found


def _of_loads(traced: Traced, mark: Mark, stretch: Stretch) -> list[Finding]:
    """A phase named after loads must end when they have landed."""
    name, build = traced.name(mark), traced.build
    claims, issues_copies = _ISSUES_COPIES.subn("", name)
    if mark.verb != "phase" or not _NAMED_LOAD.search(claims) or _NAMED_ISSUE.search(claims):
        return []
    found = []
    copies = {i for i in stretch.code if _COPIES_BY_TMA.match(build.code[i].name)}
    if copies and not issues_copies:
        lines = _lines(build, copies, mark)
        text = f"copies by TMA ({lines}) are waited for at their mbarrier: here stands the time to issue them"
        found.append(Finding(text, "warning"))
    sure: set[int] = set()
    possible: set[int] = set()
    ends: set[int] = set()
    for end in stretch.ends:
        state = build.boards.at(end)
        if state is None:
            continue
        must, may, _ = build.loads(state)
        sure |= must & stretch.code
        possible |= may & stretch.code
        if may & stretch.code:
            ends.add(end)
    if possible:
        under_way = sure or possible
        some = "" if sure else "on some paths "
        verb = "is" if len(under_way) == 1 else "are"
        where = _lines(build, under_way, mark)
        at = _lines_of_ends(traced, ends)
        loads = f"{some}{_counted(len(under_way), 'load')}{' of ' if where else ''}{where}"
        latency = "its latency shows" if len(under_way) == 1 else "their latency shows"
        text = f"{loads} {verb} still under way at its end{at}: {latency} in the next phase"
        found.append(Finding(text, "warning"))
    elif not copies and not _issued(build) & stretch.code and traced.knows_ends(stretch):
        found.append(Finding("no load stands between this mark and the next", "note"))
    return found


def _of_stores(traced: Traced, mark: Mark, stretch: Stretch) -> list[Finding]:
    """Stores are not waited for by anybody: their phase is the time to issue them."""
    build = traced.build
    stores = [i for i in stretch.code if _STORES.fullmatch(build.code[i].name) and not build.is_ours(i)]
    if mark.verb == "phase" and _NAMED_STORE.search(traced.name(mark)) and stores:
        return [Finding("issue: stores are not waited for, this is the time to issue them", "note")]
    return []


def _of_waits(traced: Traced, mark: Mark, stretch: Stretch) -> list[Finding]:
    """The clock behind a wait must be read when what was waited for has happened."""
    build = traced.build
    barriers = sorted(i for i in stretch.code if is_barrier(build.code[i]) and not build.is_ours(i))
    early = [i for i in barriers if unsettled(build.flow, i, stretch.ends, traced.phase_ends)]
    claims = mark.verb == "wait" or _NAMED_WAIT.search(traced.name(mark)) is not None
    if early:
        where = _lines(build, early, mark)
        text = f"the mark that ends it may be taken before the barrier{' of ' if where else ''}{where} has opened"
        mend = "" if mark.verb == "wait" else ": mark it by wait"
        return [Finding(text + mend, "warning" if claims else "note")]
    if mark.verb == "wait" and not _waits_for_anything(build, stretch) and traced.knows_ends(stretch):
        return [Finding("nothing in it waits", "warning")]
    return []


def _waits_for_anything(build: Build, stretch: Stretch) -> bool:
    if any(waits_itself(build.code[index].opcode) and not build.is_ours(index) for index in stretch.code):
        return True
    # What waits for the kernel's may be the recorder's: the NOP in front of a clock, the clock itself.
    waited = frozenset[int]().union(*(build.boards.waits(index) for index in stretch.code | stretch.ends))
    return any(token < 0 or not build.is_ours(token // 2) for token in waited)


def of_pin(traced: Traced, pin: Pin) -> list[Finding]:
    """A pin that waits for nothing does nothing."""
    if not any(traced.build.boards.waits(index) for index in pin.indices):
        return [Finding("the pin waits for nothing: its values had landed before, or are no loads", "note")]
    return []


def parted(traced: Traced) -> dict[int, list[Finding]]:
    """Loads that overlap in the clean build and no longer do, by the first mark or pin behind one of them."""
    if traced.clean is None or not (traced.clean.boards.readable and traced.build.boards.readable):
        return {}
    build, clean = traced.build, traced.clean
    here = {build.place(index): index for index in sorted(_issued(build), reverse=True)}
    lost = sorted(pair for pair in clean.together - build.together if pair[0] in here and pair[1] in here)
    behind = {mark.index: mark.frames for mark in traced.marks} | {pin.indices[-1]: pin.frames for pin in traced.pins}
    by_pin = {pin.indices[-1] for pin in traced.pins}
    places: dict[int, set[tuple[Any, ...]]] = {}
    for pair in lost:
        ends = following(build.flow, here[pair[0]], set(behind)).ends
        if ends:
            places.setdefault(min(ends), set()).update(pair)
    out: dict[int, list[Finding]] = {}
    for end, own in places.items():
        which = words_of_lines(own, behind[end])
        most = sorted(own)
        before, after = clean.most_of(most), build.most_of(most)
        counts = f"up to {before} are under way together in the clean build, {after} here"
        if before <= after:
            counts = "some that are under way together in the clean build are not here"
        what = "the pin" if end in by_pin else "marking"
        severity: Severity = "note" if end in by_pin else "warning"
        out[end] = [
            Finding(f"{what} changed the schedule: of the loads{' of ' if which else ''}{which}, {counts}", severity)
        ]
    return out


def _lines(build: Build, indices: Iterable[int], mark: Mark) -> str:
    return words_of_lines((build.place(index) for index in indices), mark.frames)


def _issued(build: Build) -> set[int]:
    return {index for index, _ in build.in_flight}


def _lines_of_ends(traced: Traced, ends: set[int]) -> str:
    lines = sorted({mark.place.line for mark in traced.marks if mark.index in ends} - {0})
    return f" (line {lines[0]})" if len(lines) == 1 else ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
