"""The reader of nvdisasm's text: real excerpts of four architectures, and text that nobody should send."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sass import Ins, at, section, text
from warplens.audit.sass import Control, Frame, control_of, read_sass
from warplens.errors import FormatError

EXCERPTS = Path(__file__).parent / "excerpts"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")


def excerpt(arch: str) -> str:
    return (EXCERPTS / f"rmsnorm_{arch}.sass").read_text(encoding="utf-8")


def test_control_bits_stand_at_bit_105_of_the_instruction() -> None:
    # stall 5, no yield (bit 1), write barrier 2, read barrier 7 (none), wait for 0 and 3, reuse of the first operand:
    # 5 | 1 << 4 | 2 << 5 | 7 << 8 | 0b001001 << 11 | 1 << 17 = 0x24f55, from bit 41 of the upper half on
    assert control_of(0x24F55 << 41 | 0x1FF) == Control(5, False, 2, 7, 0b001001, 1)


def test_s2r_of_the_sm_80_excerpt_sets_scoreboard_1_and_the_shift_behind_it_waits_for_another() -> None:
    # 0x000e220000002100 >> 41 = 0x711: stall 1, yield bit 1, write barrier 0, read barrier 7, no wait
    # (the words of S2R R26, SR_TID.X); 0x000e620000002500: write barrier 1 (S2R R9, SR_CTAID.X)
    (found,) = read_sass(excerpt("sm_80"))
    assert [(i.address, i.opcode, i.operands) for i in found.code[:4]] == [
        (0x00, "IMAD.MOV.U32", "R1, RZ, RZ, c[0x0][0x28]"),
        (0x10, "S2R", "R26, SR_TID.X"),
        (0x20, "ULDC.64", "UR6, c[0x0][0x118]"),
        (0x30, "S2R", "R9, SR_CTAID.X"),
    ]
    assert found.code[1].control == Control(1, False, 0, 7, 0, 0)
    assert found.code[3].control.write == 1
    shift = found.code[4]
    assert shift.opcode == "SHF.R.U32.HI"
    assert shift.control.wait == 0b000001  # for R26


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_excerpts_of_four_architectures_are_read_with_lines_and_inlining(arch: str) -> None:
    (found,) = read_sass(excerpt(arch))
    assert found.name.startswith("_Z11rmsnorm_fwd")
    assert len(found.code) in (20, 24)
    clock = next(i for i in found.code if "SR_CLOCKLO" in i.operands)
    assert [frame.file.rpartition("/")[2] for frame in clock.frames] == [
        "device.cuh",
        "packed.cuh",
        "packed.cuh",
        "warplens.cuh",
        "warplens.cuh",
        "rmsnorm.cu",
    ]
    assert clock.frames[-1] == Frame("/src/rmsnorm.cu", 72)
    assert clock.ptx_line > 0


def test_a_place_holds_until_the_next_and_a_new_line_of_the_ptx_does_not_end_it() -> None:
    found = section([Ins("NOP", places=at(3)), Ins("NOP"), Ins("NOP", ptx_line=8), Ins("NOP", places=at(4))])
    assert [i.frames[0].line for i in found.code] == [3, 3, 3, 4]
    assert [i.ptx_line for i in found.code] == [0, 0, 8, 8]
    assert [i.own_place for i in found.code] == [True, False, False, True]


def test_a_statement_whose_place_is_missing_takes_that_of_its_other_instruction() -> None:
    # The second clock read belongs to line 9, but the table of lines did not change: its PTX line is told below.
    first, second = (("/h.cuh", 1), ("/src/k.cu", 5)), (("/h.cuh", 1), ("/src/k.cu", 9))
    found = section(
        [
            Ins("CS2R R0, SR_CLOCKLO", places=first, ptx_line=10),
            Ins("CS2R R1, SR_CLOCKLO", ptx_line=20),
            Ins("FADD R2, R2, R2", places=at(7), ptx_line=15),
            Ins("SEL R3, R3, 0x40, P0", places=second, ptx_line=20),
        ]
    )
    assert [i.frames[-1].line for i in found.code] == [5, 9, 7, 9]


def test_predicates_opcodes_operands_and_targets_are_told_apart() -> None:
    found = section([".L_x_0", Ins("@!P0 BRA `(.L_x_0)"), Ins("@UP1 ULDC UR4, c[0x0][0x28]"), Ins("EXIT")])
    assert [(i.predicate, i.name, i.targets) for i in found.code] == [
        ("!P0", "BRA", [".L_x_0"]),
        ("UP1", "ULDC", []),
        ("", "EXIT", []),
    ]
    assert found.labels[".L_x_0"] == 0


def test_several_kernels_of_one_text_are_kept_apart() -> None:
    both = read_sass(text([Ins("EXIT")], "one") + text([Ins("NOP"), Ins("EXIT")], "two"))
    assert [(own.name, len(own.code)) for own in both] == [("one", 1), ("two", 2)]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (text([Ins("EXIT")]).replace("/* 0x0000000000000000 */", ""), "without its encoding: run nvdisasm with -hex"),
        (text([Ins("EXIT")]).rpartition("/* 0x")[0], "expected the upper half"),
        ("\n".join(text([Ins("EXIT")]).splitlines()[:-1]), "ends within an instruction"),
        (text([Ins("EXIT")]).replace("/*0000*/", "/*0040*/"), "expected the instruction at 0x0000, found 0x0040"),
        ("        /*0000*/  EXIT ;   /* 0x0000000000000000 */", "outside of any .text section"),
    ],
)
def test_damaged_text_is_refused_with_the_line(bad: str, says: str) -> None:
    with pytest.raises(FormatError, match=r"line \d+") as refused:
        read_sass(bad)
    assert says in str(refused.value)


def test_text_without_code_holds_no_kernel() -> None:
    assert read_sass("") == []
    assert read_sass("no machine code\n\x00\x1b[31m") == []


@given(st.data())
def test_damage_anywhere_gives_sections_or_an_error_of_ours(data: st.DataObject) -> None:
    whole = excerpt("sm_80")
    low = data.draw(st.integers(0, len(whole)))
    high = data.draw(st.integers(low, min(low + 400, len(whole))))
    damaged = whole[:low] + data.draw(st.text(max_size=40)) + whole[high:]
    with contextlib.suppress(FormatError):
        assert all(own.code for own in read_sass(damaged))
