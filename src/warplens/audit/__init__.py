"""The audit: what each mark measures, proved from the machine code.

In: the text of nvdisasm for the traced build, and for the clean one where there is one; the sites. Out: `Audit`, plain
columns and facts: one row a clock read or pin. Pure: runs no tool, reads no file, imports neither Polars nor numpy, for
it works in the traced process. What the machine code does not tell is said to be unknown (docs/adr/0006-audit.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from warplens.audit import findings
from warplens.audit.builds import Build
from warplens.audit.findings import Finding, Traced
from warplens.audit.marks import Pin, find_marks, find_pins, is_clock_read, is_ours
from warplens.audit.names import Mark, Texts
from warplens.audit.paths import preceding
from warplens.audit.places import is_unlined, place_clean, place_marked
from warplens.audit.ptx import Ptx
from warplens.audit.sass import Frame, Section, read_sass
from warplens.audit.waiting import last_part, words_of_issues, words_of_waits
from warplens.errors import UsageError

__all__ = ["COLUMNS", "MAX_INSTRUCTIONS", "Audit", "audit", "has_marks", "pick_section", "read_sass"]

COLUMNS: Final = (
    "site",
    "verb",
    "file",
    "line",
    "address",
    "outstanding_loads",
    "bulk_loads",
    "waits_on",
    "finding",
    "severity",
)
MAX_INSTRUCTIONS: Final = 200_000
"""Of a kernel: one with more is not audited, for it would hold a recording up."""


@dataclass
class Audit:
    """`columns`: lists of one length, by the names in COLUMNS; `site` counts from 0 in the set, None for none.

    `facts`: `traced` and `clean` (None without one) with `instructions`, `loads` and `loads_in_flight`.
    """

    columns: dict[str, list[Any]]
    facts: dict[str, Any]


def pick_section(sections: Sequence[Section], name: str) -> Section:
    """The kernel of this mangled name. Raises UsageError that lists those that are there."""
    for section in sections:
        if section.name == name:
            return section
    there = ", ".join(section.name for section in sections[:8]) or "none"
    raise UsageError(f"no kernel {name!r} in the machine code: there are {there}")


def has_marks(section: Section) -> bool:
    """Whether a build reads clocks for marks, as far as its lines tell: it is then no clean one."""
    return any(is_clock_read(own) and is_ours(own) for own in section.code)


def audit(
    traced: Section,
    sites: Sequence[dict[str, Any]],
    texts: Texts,
    *,
    ptx: Sequence[str] = (),
    clean: Section | None = None,
) -> Audit:
    """The audit of a traced build.

    `sites`: of the kernel's set, as the manifest lists them. `texts`: gives the text of a source by the path that the
    machine code names, or None. `ptx`: the lines of the PTX that the traced build was made of. Raises UsageError for a
    kernel of more than MAX_INSTRUCTIONS.
    """
    for section in filter(None, (traced, clean)):
        if len(section.code) > MAX_INSTRUCTIONS:
            size = f"{len(section.code):,} instructions"
            raise UsageError(f"{section.name} has {size}: at most {MAX_INSTRUCTIONS:,} are audited")
    if is_unlined(traced):
        clean = clean and place_clean(clean)
    traced = place_marked(traced)
    build = Build(traced)
    marks = find_marks(build.flow, sites, texts, Ptx(ptx))
    own = Traced(build, marks, find_pins(build.flow), sites, Build(clean) if clean is not None else None)
    facts = {"traced": build.facts(), "clean": own.clean.facts() if own.clean is not None else None}
    return Audit(_Rows(own, texts).columns(), facts)


class _Rows:
    """The rows of the table, in the order of their addresses."""

    def __init__(self, traced: Traced, texts: Texts) -> None:
        self._traced, self._texts = traced, texts
        self._parted = findings.parted(traced)
        self._stops = {mark.index for mark in traced.marks}

    def columns(self) -> dict[str, list[Any]]:
        traced = self._traced
        rows = [(mark.index, self._mark(mark)) for mark in traced.marks]
        rows += [(pin.indices[-1], self._pin(pin)) for pin in traced.pins]
        ordered = [row for _, row in sorted(rows, key=lambda pair: pair[0])] + self._lost_pins()
        return {name: [row[name] for row in ordered] for name in COLUMNS}

    def _mark(self, mark: Mark) -> dict[str, Any]:
        found = [*findings.of_mark(self._traced, mark), *self._parted.get(mark.index, [])]
        waits = ""
        if mark.frames:
            stretch = preceding(self._traced.build.flow, mark.index, self._stops)
            waits = words_of_waits(self._traced.build, sorted({*stretch.code, mark.index}), mark.frames)
        return self._row(mark.index, mark.verb, mark.site, mark.place, waits, found, mark.frames)

    def _pin(self, pin: Pin) -> dict[str, Any]:
        found = [*findings.of_pin(self._traced, pin), *self._parted.get(pin.indices[-1], [])]
        place = pin.frames[0] if pin.frames else Frame("", 0)
        waits = words_of_waits(self._traced.build, pin.indices, pin.frames)
        return self._row(pin.indices[-1], "landed", None, place, waits, found, pin.frames)

    def _row(
        self,
        index: int,
        verb: str,
        site: int | None,
        place: Frame,
        waits: str,
        found: list[Finding],
        frames: tuple[Frame, ...],
    ) -> dict[str, Any]:
        severities = {finding.severity for finding in found}
        return {
            "site": site,
            "verb": verb,
            "file": self._shown(place.file),
            "line": place.line,
            "address": self._traced.build.code[index].address,
            "outstanding_loads": self._outstanding(index),
            "bulk_loads": self._bulk_loads(index, frames),
            "waits_on": waits,
            "finding": "; ".join(finding.text for finding in found),
            "severity": next((s for s in ("warning", "note") if s in severities), ""),
        }

    def _outstanding(self, index: int) -> int | None:
        """Loads under way there; None when it depends on the path, or not every path could be followed."""
        build = self._traced.build
        state = build.boards.at(index)
        if state is None or not build.boards.readable:
            return None
        must, may, more = build.loads(state)
        return len(must) if must == may and not more else None

    def _bulk_loads(self, index: int, frames: tuple[Frame, ...]) -> str | None:
        """Copies by TMA that no wait can have been for; None when that cannot be told."""
        issued = self._traced.build.bulk.at(index)
        return None if issued is None else words_of_issues(self._traced.build, issued, frames)

    def _shown(self, file: str) -> str:
        """A path as the sites name it, else its last part: folders of the machine stay out of the trace."""
        named = [str(site["file"]) for site in self._traced.sites]
        return next((n for n in named if n and (file == n or file.endswith(("/" + n, "\\" + n)))), last_part(file))

    def _lost_pins(self) -> list[dict[str, Any]]:
        """Pins that stand in the source between the kernel's marks, and of which no instruction is left."""
        lines: dict[str, list[int]] = {}
        for mark in self._traced.marks:
            if mark.place.line:
                lines.setdefault(mark.place.file, []).append(mark.place.line)
        left = {pin.frames[0] for pin in self._traced.pins if pin.frames}
        rows = []
        for file, own in lines.items():
            text = (self._texts(file) or "").splitlines()
            for number in range(min(own), max(own)):
                written = text[number - 1].partition("//")[0] if number <= len(text) else ""
                if re.search(r"[.>]\s*landed\s*\(", written) and Frame(file, number) not in left:
                    rows.append(
                        {
                            "site": None,
                            "verb": "landed",
                            "file": self._shown(file),
                            "line": number,
                            "address": None,
                            "outstanding_loads": None,
                            "bulk_loads": None,
                            "waits_on": "",
                            "finding": "no instruction of this pin is left: it pins nothing",
                            "severity": "warning",
                        }
                    )
        return rows
