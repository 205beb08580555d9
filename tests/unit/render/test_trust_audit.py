"""What the summary says about marks: of their audit one line, with the worst finding and the command for all; and what
automatic marks left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.render import fake
from warplens.render.trust import TrustLine, trust_lines

WARNING: dict[str, Any] = {"site": 0, "verb": "phase", "line": 12, "severity": "warning", "finding": "2 loads are late"}
NOTE: dict[str, Any] = {"site": 7, "verb": "phase", "line": 20, "severity": "note", "finding": "issue: ..."}
FINE: dict[str, Any] = {"site": 1, "verb": "phase", "line": 15, "severity": "", "finding": ""}


def marks(rows: list[dict[str, Any]], why: str | None = None, path: Path | None = None) -> list[TrustLine]:
    trace: Any = fake.rmsnorm(warps=2, blocks=2)
    facts = fake.manifest()
    facts["kernels"][0]["audit"] = {"columns": {}, "facts": None, "not_audited": why}
    trace = replace(trace, manifest=facts, audit=fake.audit_frame(rows), path=path)
    return [line for line in trust_lines(trace) if line.label == "marks"]


def test_a_warning_is_told_with_its_site_line_and_the_command_that_shows_all() -> None:
    (line,) = marks([FINE, WARNING, NOTE], path=Path("folder", "run.wlens"))
    assert line.level == "note"
    assert line.text == (
        "1 warning, 1 note, load_sumsq (line 12): 2 loads are late; all: warplens audit folder/run.wlens"
    )


def test_marks_that_measure_what_they_say_share_the_line_of_all_that_is_well() -> None:
    (line,) = marks([FINE, NOTE])
    assert (line.level, line.brief) == ("ok", "marks audited (1 note)")
    (line,) = marks([FINE])
    assert (line.level, line.brief) == ("ok", "marks audited")


def test_without_nvdisasm_one_line_says_so() -> None:
    (line,) = marks([], why="nvdisasm is not found, and the audit needs it\ninstall it")
    assert line.level == "note"
    assert line.text == "what they measure was not audited: nvdisasm is not found, and the audit needs it"


def test_a_file_from_before_there_was_an_audit_says_nothing_of_it() -> None:
    assert [line for line in trust_lines(fake.rmsnorm(warps=2, blocks=2)) if line.label == "marks"] == []


def test_hostile_names_and_findings_are_shown_as_text() -> None:
    (line,) = marks([WARNING | {"finding": "\x1b[31mred\n"}])
    assert "\x1b" not in line.text
    assert "\n" not in line.text


def test_what_automatic_marks_left_out_is_told_for_each_kernel() -> None:
    facts = fake.manifest()
    own = ["k: call of f (k.cu:7): what it does is not marked", *(f"{n} waits not marked: \x1b[1m" for n in range(4))]
    facts["kernels"][0] |= {"name": "k", "instrumented": {"left_out": own}}  # of Triton
    facts["kernels"].append(facts["kernels"][0] | {"name": "other", "instrumented": None, "site_set": "other"})
    facts["kernels"].append(facts["kernels"][0] | {"name": "by_hand", "instrumented": None})
    facts["site_sets"] = [{"name": "rmsnorm"}, {"name": "other", "left_out": ["call of g (k.cu:9)"]}]
    trace = replace(fake.rmsnorm(warps=2, blocks=2), manifest=facts)
    lines = [line for line in trust_lines(trace) if line.label == "marking"]
    assert [line.level for line in lines] == ["note", "note"]
    assert lines[0].text.startswith("k: call of f (k.cu:7): what it does is not marked; 0 waits not marked: ")
    assert lines[0].text.endswith("and 1 more (`warplens info --json`)")
    assert "\x1b" not in lines[0].text
    assert lines[1].text == "other: call of g (k.cu:9)"
