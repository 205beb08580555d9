"""Marks in PTX: what the table of lines has wrong beside them, or lacks. Frames derived by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.sass import Ins, section
from warplens import layout
from warplens.audit import COLUMNS, audit
from warplens.audit.places import is_unlined, place_clean, place_marked
from warplens.audit.sass import Frame
from warplens.layout import Verb

SITES = [
    {"id": 1, "name": "ptx:10", "kind": "phase", "file": "", "line": 10},
    {"id": 2, "name": "ptx:12 wait tensor memory loads", "kind": "wait", "file": "", "line": 12},
    {"id": 3, "name": "ptx:13 issue bulk load, load", "kind": "phase", "file": "", "line": 13},
]
EXIT = Ins("EXIT", places=((layout.PTX_FILE, 9),), ptx_line=29)


def marks(code: int) -> tuple[tuple[str, int], ...]:
    return ((layout.MARKS_FILE, layout.MARKS_LINES + code),)


def clock(site: int, verb: Verb, wait: Sequence[int] = ()) -> Ins:
    code = site << layout.CODE_SITE_SHIFT | verb << layout.CODE_VERB_SHIFT
    return Ins("CS2R.32 R9, SR_CLOCKLO", places=marks(code), wait=wait, ptx_line=15)


def kernels(line: int, moved: int) -> dict[str, Any]:
    """Of an instruction on a line of the PTX as it was, which marks moved down."""
    return {"places": ((layout.PTX_FILE, moved),), "ptx_line": line + moved}


def rows(*items: Ins, clean: Sequence[Ins] = ()) -> list[dict[str, Any]]:
    found = audit(section(items), SITES, lambda _: None, clean=section(clean) if clean else None)
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(*found.columns.values(), strict=True)]


def test_without_lines_of_a_source_an_instruction_has_its_line_in_the_ptx_as_it_was() -> None:
    load = Ins("LDG.E R2, desc[UR4][R4.64]", write=0, **kernels(12, 9))
    unknown = Ins("MOV R1, R2", places=((layout.PTX_FILE, 9),))
    marked = section([unknown, clock(1, Verb.PHASE), load, EXIT])
    assert is_unlined(marked)
    frames = [own.frames for own in place_marked(marked).code]
    assert (frames[0], frames[2:]) == ((), [(Frame("", 12),), (Frame("", 20),)])
    clean = section([Ins("LDG.E R2, desc[UR4][R4.64]", write=0, ptx_line=12), Ins("EXIT", ptx_line=20)])
    assert [own.frames for own in place_clean(clean).code] == [(Frame("", 12),), (Frame("", 20),)]


def test_loads_that_marks_part_are_told_by_their_lines_in_the_ptx() -> None:
    first, second = ("LDG.E R2, desc[UR4][R4.64]", "LDG.E R3, desc[UR4][R6.64]")
    use = "FADD R8, R2, R3"
    clean = [Ins(first, write=0, ptx_line=12), Ins(second, write=1, ptx_line=13), Ins(use, wait=[0, 1], ptx_line=14)]
    *_, end = rows(
        clock(1, Verb.PHASE),
        Ins(first, write=0, **kernels(12, 9)),
        clock(3, Verb.PHASE, wait=[0]),
        Ins(second, write=1, **kernels(13, 15)),
        Ins(use, wait=[1], **kernels(14, 15)),
        EXIT,
        clean=[*clean, Ins("EXIT", ptx_line=20)],
    )[:2]
    assert end["waits_on"] == "LDG line 12"
    assert (
        "of the loads of lines 12 and 13, up to 2 are under way together in the clean build, 1 here" in end["finding"]
    )


def test_loads_that_were_parted_and_stand_several_times_now_are_not_counted_as_fewer() -> None:
    first, second, use = ("LDG.E R2, desc[UR4][R4.64]", "LDG.E R3, desc[UR4][R6.64]", "FADD R8, R2, R3")
    clean = [Ins(first, write=0, ptx_line=12), Ins(second, write=1, ptx_line=13), Ins(use, wait=[0, 1], ptx_line=14)]
    thrice = [Ins(first, write=own, **kernels(12, 9)) for own in (0, 2, 3)]
    marked = [
        clock(1, Verb.PHASE),
        *thrice,
        clock(3, Verb.PHASE, wait=[0, 2, 3]),
        Ins(second, write=1, **kernels(13, 9)),
    ]
    _, other = rows(*marked, Ins(use, wait=[1], **kernels(14, 9)), EXIT, clean=[*clean, Ins("EXIT", ptx_line=20)])
    assert "lines 12 and 13, some that are under way together in the clean build are not here" in other["finding"]


def inlined(line: int, file: str, caller: str) -> Ins:
    places = ((file, line), (caller, 124))
    return Ins("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R17+URZ], R16", write=1, places=places)


def test_beside_marks_the_caller_of_an_inlined_line_has_the_only_file_that_there_is() -> None:
    wrong = [inlined(74, "k.cu", layout.MARKS_FILE), inlined(74, layout.MARKS_FILE, layout.MARKS_FILE)]
    only = place_marked(section([clock(1, Verb.PHASE), *wrong, Ins("EXIT", places=(("k.cu", 6),))])).code
    assert [own.frames for own in only[1:3]] == [(Frame("k.cu", 74), Frame("k.cu", 124))] * 2
    assert only[0].frames[0].file == layout.MARKS_FILE


def test_of_several_files_none_is_guessed() -> None:
    wrong = [inlined(74, "k.cu", layout.MARKS_FILE), inlined(74, layout.MARKS_FILE, layout.MARKS_FILE)]
    code = place_marked(section([clock(1, Verb.PHASE), *wrong, Ins("EXIT", places=(("other.cu", 6),))])).code
    assert [own.frames for own in code[1:3]] == [(Frame("k.cu", 74),), ()]


def test_what_waits_in_an_inlined_function_is_not_taken_for_the_recorders() -> None:
    wait, _ = rows(clock(2, Verb.WAIT), inlined(74, "k.cu", layout.MARKS_FILE), clock(1, Verb.PHASE), EXIT)
    assert (wait["verb"], wait["finding"]) == ("wait", "")


LOADED = Ins("LDTM.x64 R28, tmem[UR4]", write=1, **kernels(11, 9))
FENCE = Ins("NOP", **kernels(12, 12))


def test_tensor_memory_that_the_next_clock_is_not_held_back_for_is_not_waited_for() -> None:
    use = Ins("FADD R8, R28, R29", wait=[1], **kernels(13, 15))
    _, wait, _ = rows(clock(1, Verb.PHASE), LOADED, clock(2, Verb.WAIT), FENCE, clock(1, Verb.PHASE), use, EXIT)
    assert (wait["finding"], wait["severity"]) == ("nothing in it waits", "warning")


def test_the_recorders_own_instruction_may_be_what_waits() -> None:
    settle = Ins("NOP", wait=[1], places=marks(1))
    _, wait, phase = rows(clock(1, Verb.PHASE), LOADED, clock(2, Verb.WAIT), FENCE, settle, clock(1, Verb.PHASE), EXIT)
    assert (wait["finding"], phase["waits_on"]) == ("", "LDTM line 11")
    _, wait, phase = rows(
        clock(1, Verb.PHASE), LOADED, clock(2, Verb.WAIT), FENCE, clock(1, Verb.PHASE, wait=[1]), EXIT
    )
    assert (wait["finding"], phase["waits_on"]) == ("", "LDTM line 11")


def test_a_phase_that_is_named_after_issuing_copies_is_judged_by_what_else_it_names() -> None:
    copy = Ins("UBLKCP.S.G [UR6], [UR10], UR5", **kernels(13, 9))
    load = Ins("LDG.E R2, desc[UR4][R4.64]", write=0, **kernels(14, 9))
    issue, _ = rows(clock(3, Verb.PHASE), copy, load, clock(1, Verb.PHASE), EXIT)
    assert (
        issue["finding"]
        == "1 load of line 14 is still under way at its end (line 10): its latency shows in the next phase"
    )
