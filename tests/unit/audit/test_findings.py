"""Rows of the audit: which mark is which, and what is found wrong with it. Planted faults, derived by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.sass import LANDED, Ins, at, mark, section
from warplens.audit import COLUMNS, audit, pick_section
from warplens.errors import UsageError

HEADER = """\
  __device__ __forceinline__ void phase(Site site) { put(code(site, kVerbPhase)); }
  __device__ __forceinline__ void wait(Site site) { put(code(site, kVerbWait)); }
  __device__ __forceinline__ void end_phase() { put(kEndPhase); }
  __device__ __forceinline__ ~Recorder() { storage_.finish(waits_); }
"""
PHASE, WAIT, END_PHASE, END = 1, 2, 3, 4  # lines of HEADER
NAMES = ("load_x", "compute", "barrier", "store")
SITES = [{"id": n, "name": name, "kind": "phase", "file": "k.cu", "line": 1} for n, name in enumerate(NAMES, 1)]
# Line n of the source marks site n - 2: line 2 load_x, line 3 compute, line 4 barrier, line 5 store.
SOURCE = """\
#include <warplens/warplens.cuh>
  rec.phase(s::load_x);
  rec.phase(s::compute);
  rec.wait(s::barrier);
  rec.phase(s::store);
}
"""
LOAD = Ins("LDG.E R2, desc[UR4][R4.64]", write=0, places=at(12))
USE = Ins("FADD R8, R2, R2", wait=[0], places=at(13))
STORE = Ins("STG.E desc[UR4][R6.64], R8", read=1, places=at(14))
EXIT = Ins("EXIT", places=at(6))


def find(path: str) -> str | None:
    return {"/inc/warplens/warplens.cuh": HEADER, "/src/k.cu": SOURCE}.get(path)


def rows(*items: Ins | str, ptx: Sequence[str] = (), clean: Sequence[Ins | str] = ()) -> list[dict[str, Any]]:
    found = audit(section(items), SITES, find, ptx=ptx, clean=section(clean) if clean else None)
    assert tuple(found.columns) == COLUMNS
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(*found.columns.values(), strict=True)]


def load_x() -> Ins:
    return mark(2, verb_line=PHASE)


def compute() -> Ins:
    return mark(3, verb_line=PHASE)


def end() -> Ins:
    return mark(6, verb_line=END)


def test_a_load_phase_that_does_not_wait_is_found_with_the_line_of_its_load() -> None:
    first, second, last = rows(load_x(), LOAD, compute(), USE, end(), EXIT)
    assert (first["site"], first["verb"], first["file"], first["line"]) == (0, "phase", "k.cu", 2)
    assert first["severity"] == "warning"
    text = "1 load of line 12 is still under way at its end (line 3): its latency shows in the next phase"
    assert first["finding"] == text
    assert (second["site"], second["outstanding_loads"], second["waits_on"]) == (1, 1, "")
    assert (last["site"], last["verb"], last["outstanding_loads"], last["waits_on"]) == (None, "end", 0, "LDG line 12")
    assert (second["finding"], last["finding"]) == ("", "")


def test_a_load_phase_whose_values_are_used_in_it_is_right() -> None:
    first, second, _ = rows(load_x(), LOAD, USE, compute(), end(), EXIT)
    assert (first["finding"], first["severity"]) == ("", "")
    assert (second["outstanding_loads"], second["waits_on"]) == (0, "LDG line 12")


def test_a_load_that_only_one_path_waits_for_is_said_to_be_so() -> None:
    first, second, _ = rows(
        load_x(), LOAD, Ins("@P0 BRA `(.L_x_0)", places=at(13)), USE, ".L_x_0", compute(), USE, end(), EXIT
    )
    assert first["finding"].startswith("on some paths 1 load of line 12 is still under way at its end (line 3)")
    assert second["outstanding_loads"] is None


def test_a_load_phase_whose_loads_went_elsewhere_is_noted() -> None:
    first, *_ = rows(LOAD, load_x(), USE, compute(), end(), EXIT)
    assert (first["finding"], first["severity"]) == ("no load stands between this mark and the next", "note")
    assert first["outstanding_loads"] == 1


def test_copies_by_tma_are_said_to_be_issued_only() -> None:
    tma = Ins("UTMALDG.2D [UR8], [UR4]", places=at(12))
    first, *_ = rows(load_x(), tma, compute(), end(), EXIT)
    assert first["severity"] == "warning"
    assert "copies by TMA (line 12) are waited for at their mbarrier" in first["finding"]


def test_a_store_phase_is_labelled_issue() -> None:
    _, second, _ = rows(compute(), mark(5, verb_line=PHASE), STORE, end(), EXIT)
    assert second["finding"] == "issue: stores are not waited for, this is the time to issue them"
    assert second["severity"] == "note"


BARRIER = Ins("BAR.SYNC.DEFER_BLOCKING 0x0", places=at(10))
SETTLE = Ins("LDS R4, [UR4]", write=2, places=(("/inc/warplens/detail/device.cuh", 82), *at(3)))
UNIFORM = Ins("UMOV UR4, URZ", places=at(10))


def test_a_wait_that_an_instruction_settles_is_right() -> None:
    first, second, _ = rows(mark(4, verb_line=WAIT), BARRIER, UNIFORM, SETTLE, compute(), end(), EXIT)
    assert (first["verb"], first["finding"]) == ("wait", "")
    assert second["waits_on"] == "BAR.SYNC line 10"


@pytest.mark.parametrize("behind", [[], [UNIFORM], [".L_x_0"]])
def test_a_wait_whose_mark_is_taken_before_the_barrier_is_found(behind: list[Ins | str]) -> None:
    first, *_ = rows(mark(4, verb_line=WAIT), BARRIER, *behind, compute(), end(), EXIT)
    assert first["severity"] == "warning"
    assert first["finding"] == "the mark that ends it may be taken before the barrier of line 10 has opened"


def test_what_stands_before_the_barrier_settles_nothing() -> None:
    first, *_ = rows(mark(4, verb_line=WAIT), SETTLE, BARRIER, compute(), end(), EXIT)
    assert "may be taken before the barrier" in first["finding"]


def test_a_wait_in_which_nothing_waits_is_found() -> None:
    first, *_ = rows(mark(4, verb_line=WAIT), Ins("FADD R1, R1, R1", places=at(10)), compute(), end(), EXIT)
    assert (first["finding"], first["severity"]) == ("nothing in it waits", "warning")


@pytest.mark.parametrize("opcode", ["DEPBAR.LE SB0, 0x0", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2"])
def test_a_wait_for_copies_or_an_mbarrier_waits_by_itself(opcode: str) -> None:
    first, *_ = rows(mark(4, verb_line=WAIT), Ins(opcode, places=at(10)), compute(), end(), EXIT)
    assert first["finding"] == ""


def test_a_barrier_in_a_phase_is_noted_for_its_mark_does_not_wait() -> None:
    first, *_ = rows(mark(3, verb_line=PHASE), BARRIER, mark(5, verb_line=PHASE), STORE, end(), EXIT)
    assert first["severity"] == "note"
    assert first["finding"].endswith("before the barrier of line 10 has opened: mark it by wait")


def test_marks_that_part_loads_of_an_unrolled_loop_are_found() -> None:
    # Clean: four loads of line 12, then their uses. Traced: each is used before the next one is issued.
    clean = [Ins("LDG.E R2, desc[UR4][R4.64]", write=n, places=at(12)) for n in range(4)]
    clean += [Ins("FADD R8, R2, R2", wait=[n], places=at(13)) for n in range(4)]
    traced: list[Ins | str] = [compute()]
    for _ in range(4):
        traced += [LOAD, USE, mark(5, verb_line=PHASE, ptx_line=2)]
    found = rows(*traced, end(), EXIT, clean=[*clean, EXIT], ptx=ptx(4 << 5))
    (text,) = [row["finding"] for row in found if "schedule" in row["finding"]]
    assert text.startswith("marking changed the schedule: of the loads of line 12, ")
    assert text.endswith("up to 4 are under way together in the clean build, 1 here")


def test_loads_in_another_order_are_not_parted() -> None:
    other = Ins("LDG.E R3, desc[UR4][R6.64]", write=1, places=at(15))
    both = [USE, Ins("FADD R8, R3, R3", wait=[1], places=at(16))]
    found = rows(compute(), LOAD, other, *both, end(), EXIT, clean=[other, LOAD, *both, EXIT])
    assert [row["finding"] for row in found] == ["", ""]


def pinned(line: int) -> list[Ins]:
    places = ((LANDED, 40), ("/inc/warplens/warplens.cuh", 90), ("/src/k.cu", line))
    return [
        Ins("ISETP.NE.U32.AND P1, PT, R2, R5, PT", wait=[0], places=places),
        Ins("@!P1 LDS R5, [UR4]", write=3, places=places),
    ]


def test_a_pin_makes_a_load_phase_right_and_has_a_row() -> None:
    first, pin, second, _ = rows(load_x(), LOAD, *pinned(8), compute(), USE, end(), EXIT)
    assert first["finding"] == ""
    assert (pin["verb"], pin["site"], pin["line"], pin["address"]) == ("landed", None, 8, 0x30)
    assert (pin["outstanding_loads"], pin["waits_on"], pin["finding"]) == (0, "LDG line 12", "")
    assert second["outstanding_loads"] == 0


def test_a_pin_that_changes_the_schedule_says_so() -> None:
    other = Ins("LDG.E R3, desc[UR4][R6.64]", write=1, places=at(15))
    clean = [LOAD, other, USE, Ins("FADD R8, R3, R3", wait=[1], places=at(16)), EXIT]
    tail = [compute(), USE, other, Ins("FADD R8, R3, R3", wait=[1], places=at(16)), end(), EXIT]
    _, pin, *_ = rows(load_x(), LOAD, *pinned(8), *tail, clean=clean)
    assert pin["severity"] == "note"
    assert pin["finding"] == (
        "the pin changed the schedule: of the loads of lines 12 and 15, up to 2 are under way together in the clean "
        "build, 1 here"
    )


def test_a_pin_that_waits_for_nothing_is_noted() -> None:
    _, pin, *_ = rows(load_x(), LOAD, USE, *pinned(8), compute(), end(), EXIT)
    assert pin["finding"] == "the pin waits for nothing: its values had landed before, or are no loads"


def test_a_pin_of_which_no_instruction_is_left_is_found_in_the_source() -> None:
    source = SOURCE.replace("  rec.phase(s::compute);", "  rec.landed(x); rec.phase(s::compute);")
    found = audit(section([load_x(), LOAD, compute(), USE, end(), EXIT]), SITES, {"/src/k.cu": source}.get)
    assert found.columns["verb"][-1] == "landed"
    assert (found.columns["line"][-1], found.columns["address"][-1]) == (3, None)
    assert found.columns["finding"][-1] == "no instruction of this pin is left: it pins nothing"


def test_without_lines_nothing_is_named_and_the_way_out_is_told() -> None:
    (row,) = rows(Ins("LDG.E R2, desc[UR4][R4.64]", write=0), Ins("CS2R.32 R9, SR_CLOCKLO"), Ins("EXIT"))
    assert (row["site"], row["verb"], row["line"], row["outstanding_loads"]) == (None, "", 0, 1)
    assert row["finding"] == "no line information: compile with -lineinfo"


def test_a_clock_read_of_the_users_own_is_no_mark() -> None:
    own = Ins("CS2R R2, SR_CLOCKLO", places=at(11))
    assert [row["line"] for row in rows(load_x(), LOAD, USE, own, compute(), end(), EXIT)] == [2, 3, 6]


def ptx(*codes: int) -> list[str]:
    """PTX whose line n holds the mark of codes[n - 2], with the code beside the clock."""
    lines = [".visible .entry kernel()"]
    for n, code in enumerate(codes):
        lines.append(f"{{setp.ge.u32 p, %r1, {n + 7}; @p mov.u32 %r2, %clock; @p mov.u32 %r3, {code};}}")
    return lines


def test_the_number_kept_with_the_clock_tells_marks_whose_lines_are_mixed_up_apart() -> None:
    # Both reads have the lines of the mark of line 3; the PTX keeps site 1 (1 << 5) with the first one, site 2 with
    # the other.
    one, two = mark(3, verb_line=PHASE, ptx_line=2), mark(3, verb_line=PHASE, ptx_line=3)
    first, second, _ = rows(one, LOAD, two, USE, end(), EXIT, ptx=ptx(1 << 5, 2 << 5))
    assert (first["site"], first["line"]) == (0, 2)
    assert (second["site"], second["line"]) == (1, 3)


def test_the_number_of_a_first_mark_is_found_where_it_is_chosen_against_the_clock() -> None:
    # As NVRTC writes `packed` for sm_100: the clock's high half lies in a vector; 3 << 5 | 5 << 2 = 116: site 3, wait.
    lines = [
        ".visible .entry kernel()",
        "{.reg .pred p; .reg .u32 t; mov.u64 %rd3, %clock64; mov.u32 t, %globaltimer_lo; selp.u32 %r6, t, 0, p;}",
        "mov.b64 \t{_, %r8}, %rd3;",
        "mov.b32 \t%r9, 116;",
        "@%p1 bra \t$L__BB0_1;",
        "{.reg .pred p; setp.ne.u32 p, %r33, 0; selp.u32 %r11, %r8, %r9, p;}",
        "$L__BB0_1:",
        "ret;",
    ]
    first, *_ = rows(mark(9, verb_line=WAIT, ptx_line=2), BARRIER, SETTLE, end(), EXIT, ptx=lines)
    assert (first["verb"], first["site"]) == ("wait", 2)


def test_two_marks_of_one_line_are_two_marks_where_their_numbers_tell_so() -> None:
    # A read at another line of the header behind one of the same call may be the recorder's own, for a chunk.
    other = (("/inc/warplens/detail/device.cuh", 21), ("/inc/warplens/warplens.cuh", PHASE), ("/src/k.cu", 3))
    first = mark(3, verb_line=PHASE, ptx_line=2)
    second = Ins("CS2R R10, SR_CLOCKLO", places=other, ptx_line=3)
    last = mark(6, verb_line=END, ptx_line=9)
    both = rows(first, STORE, second, last, EXIT, ptx=ptx(1 << 5, 2 << 5))
    assert [row["site"] for row in both] == [0, 1, None]
    own = rows(first, STORE, second, last, EXIT, ptx=[*ptx(1 << 5), "mov.u64 %rd1, %clock64;"])
    assert [row["site"] for row in own] == [0, None]


def test_two_reads_with_one_place_and_no_number_are_not_named() -> None:
    first, second, _ = rows(compute(), LOAD, compute(), USE, end(), EXIT)
    assert [(row["site"], row["line"]) for row in (first, second)] == [(None, 0)] * 2
    assert first["finding"] == "which site it is cannot be told from the machine code"


def test_a_number_that_contradicts_the_source_leaves_the_number() -> None:
    # The text is not what was compiled: the line that says load_x now marked site 4, as phase.
    first, *_ = rows(mark(2, verb_line=PHASE, ptx_line=2), STORE, end(), EXIT, ptx=ptx(4 << 5))
    assert first["site"] == 3


def test_headers_of_another_version_name_no_verb() -> None:
    # By HEADER, line 2 is `wait`; the number says phase (verb 0). So `end` on line 4 is not believed either.
    last_read = mark(6, verb_line=END, ptx_line=9)
    first, last = rows(mark(3, verb_line=WAIT, ptx_line=2), STORE, last_read, EXIT, ptx=ptx(2 << 5))
    assert (first["verb"], first["site"]) == ("phase", 1)
    assert last["verb"] == ""


def test_a_load_in_a_device_function_counts_as_the_line_of_its_call() -> None:
    inner = Ins("LDG.E R2, desc[UR4][R4.64]", write=0, places=(("/src/k.cu", 40), ("/src/k.cu", 12)))
    first, *_ = rows(load_x(), inner, compute(), USE, end(), EXIT)
    assert "1 load of line 12 " in first["finding"]


def test_callers_that_may_be_anothers_are_not_named() -> None:
    # Line 40 is called from line 50, and that from 12 and from 13: which of the two, the table of lines cannot tell.
    far = [(("/src/k.cu", 40), ("/src/k.cu", 50), ("/src/k.cu", line)) for line in (12, 13)]
    loads = [Ins("LDG.E R2, desc[UR4][R4.64]", write=n, places=places) for n, places in enumerate(far)]
    first, *_ = rows(load_x(), *loads, compute(), USE, end(), EXIT)
    assert first["finding"].startswith("2 loads of line 50 are still under way")


def test_facts_count_instructions_loads_and_the_most_in_flight_without_the_recorders() -> None:
    own = Ins("LDS R4, [UR4]", write=5, places=(("/inc/warplens/detail/device.cuh", 82), *at(3)))
    other = Ins("LDG.E R3, desc[UR4][R6.64]", write=1, places=at(15))
    traced = section([load_x(), LOAD, own, other, USE, Ins("FADD R8, R3, R3", wait=[1], places=at(16)), end(), EXIT])
    found = audit(traced, SITES, find, clean=section([LOAD, USE, other, EXIT]))
    assert found.facts == {
        "traced": {"instructions": 8, "loads": 2, "loads_in_flight": 2, "bulk_loads": 0},
        "clean": {"instructions": 4, "loads": 2, "loads_in_flight": 1, "bulk_loads": 0},
    }


def test_a_kernel_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(UsageError, match="no kernel 'other' in the machine code: there are kernel"):
        pick_section([section([EXIT])], "other")


def test_a_kernel_without_marks_has_no_rows() -> None:
    assert rows(LOAD, USE, EXIT) == []


def test_folders_of_the_machine_stay_out_of_the_rows() -> None:
    places = (
        ("/inc/warplens/detail/device.cuh", 54),
        ("/inc/warplens/warplens.cuh", PHASE),
        ("/elsewhere/util.cuh", 9),
    )
    (first, *_) = rows(Ins("CS2R.32 R9, SR_CLOCKLO", places=places), LOAD, end(), EXIT)
    assert first["file"] == "util.cuh"
