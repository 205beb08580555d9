"""Which marks kernels of a module get, by what a stand-in for ptxas says of them."""

from __future__ import annotations

import re

import pytest

from tests.full_kernels import BOUNDS, roles
from warplens.capture.chosen import Built, choose
from warplens.errors import PtxError
from warplens.instrument import Selection

MODULE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry one() .maxntid 512, 1, 1 { bar.sync 0; ret; }
.visible .entry other() { $turn: bar.sync 0; bra $turn; }
"""


def log(registers: int, spills: int = 0, more: str = "", name: str = "one") -> str:
    return f"""ptxas info    : Compiling entry function '{name}' for 'sm_90'
ptxas info    : Function properties for {name}
    {spills} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads
{more}ptxas info    : Used {registers} registers, used 1 barriers, 64 bytes smem
"""


class Assembler:
    """Says of each text in turn what `logs` holds, and again the last."""

    def __init__(self, *logs: str) -> None:
        self.logs = list(logs)
        self.texts: list[str] = []

    def __call__(self, text: str) -> str:
        self.texts.append(text)
        return self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]


def test_the_log_of_ptxas_is_read_by_kernel() -> None:
    other = "ptxas info : (C7510) Potential Performance Loss: wgmma is serialized in the function 'other'\n"
    built = Built.of(log(40) + log(80, 12, other, name="other"))
    assert (built.registers, built.spills) == ({"one": 40, "other": 80}, {"one": 0, "other": 12})
    assert built.shared["one"] == 64
    assert dict(built.complaints) == {("other", "C7510"): 1}


def test_marks_that_cost_nothing_are_taken_at_once() -> None:
    assembler = Assembler(log(32) + log(20, name="other"))
    found = choose(MODULE, Selection(), assembler)
    assert len(assembler.texts) == 2
    assert found.lines == []
    assert [kernel.site_set is not None for kernel in found.kernels] == [True, True]


def test_what_spills_is_tried_with_fewer_marks_and_each_try_is_told() -> None:
    fine = log(32) + log(20, name="other")
    spills = log(32) + log(20, 8, name="other")
    assembler = Assembler(fine, *[spills] * 10, fine)
    found = choose(MODULE.replace("{ $turn:", "{ bar.sync 1; $turn:"), Selection(), assembler)
    assert found.lines == [
        "other: the marks asked for: 8 bytes spill",
        "other: the marks asked for, a recorder with fewer registers, 64 registers at most: 8 bytes spill",
        "other: the marks asked for, 64 registers at most: 8 bytes spill",
        "other: the marks asked for, state in local memory: 8 bytes spill",
        "other: the marks asked for, state in local memory, 64 registers at most: 8 bytes spill",
        "other: marks outside of loops: 8 bytes spill",
        "other: marks outside of loops, a recorder with fewer registers, 64 registers at most: 8 bytes spill",
        "other: marks outside of loops, 64 registers at most: 8 bytes spill",
        "other: marks outside of loops, state in local memory: 8 bytes spill",
        "other: marks outside of loops, state in local memory, 64 registers at most: 8 bytes spill",
        "other: it gets begin and end",
    ]
    assert [len(kernel.site_set["sites"]) for kernel in found.kernels if kernel.site_set] == [3, 1]


@pytest.mark.parametrize("code", ["C7508", "C7514"])
def test_a_complaint_that_the_clean_build_has_not_is_as_bad_as_a_spill(code: str) -> None:
    says = f"ptxas info    : ({code}) something about registers\n"
    found = choose(MODULE, Selection(), Assembler(log(32), log(32, 0, says), log(32)), kernels="one")
    assert found.lines[0] == f"one: the marks asked for: ptxas says {code}"
    same = choose(MODULE, Selection(), Assembler(log(32, 0, says)), kernels="one")
    assert same.lines == []


SPECIALISED = MODULE.replace("bar.sync 0; ret;", "setmaxnreg.dec.sync.aligned.u32 24; bar.sync 0; ret;")


def test_what_ptxas_says_without_a_name_is_laid_to_kernels_that_can_be_meant() -> None:
    says = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine ...\n"
    fine = log(32) + log(20, name="other")
    found = choose(SPECIALISED, Selection(), Assembler(fine, *[says + fine] * 3, fine))
    assert found.lines[:5] == [
        "one: the marks asked for: ptxas says C7508",
        "one: registers cannot be moved between roles: no other numbers are known to fit wherever these do",
        "one: the marks asked for, a recorder with fewer registers: ptxas says C7508",
        "one: the marks asked for, state in local memory: ptxas says C7508",
        "one: the marks asked for, on fewer blocks: ptxas says C7508",
    ]
    assert found.lines[-1] == "one: it gets begin and end"
    assert choose(SPECIALISED, Selection(), Assembler(says + fine)).lines == []  # the clean build has it too
    found = choose(MODULE, Selection(), Assembler(fine, says + fine, fine))  # nobody can be meant: it may be anyone
    assert {line.partition(":")[0] for line in found.lines} == {"one", "other"}


def test_a_kernel_with_setmaxnreg_is_given_no_limit_of_registers() -> None:
    assembler = Assembler(log(32), *[log(40)] * 6, log(32))
    found = choose(SPECIALISED, Selection(), assembler, kernels="one")
    assert not any(".maxnreg" in text for text in assembler.texts)
    assert found.lines[-1] == "one: it gets the marks asked for, on fewer blocks"


def test_what_roles_ask_for_is_moved_in_steps_until_nothing_spills() -> None:
    clean, spills = log(168, name="roles"), log(168, 8, name="roles")
    assembler = Assembler(clean, *[spills] * 5, clean)
    found = choose(roles(4, 8), Selection(), assembler)
    assert found.lines == [
        "roles: the marks asked for: 8 bytes spill",
        "roles: the marks asked for, a recorder with fewer registers: 8 bytes spill",
        "roles: the marks asked for, arithmetic left behind waits: 8 bytes spill",
        "roles: the marks asked for, a recorder with fewer registers, arithmetic left behind waits: 8 bytes spill",
        "roles: the marks asked for, setmaxnreg 32 and 232 in place of 24 and 240: 8 bytes spill",
        "roles: it gets the marks asked for, setmaxnreg 40 and 232 in place of 24 and 240",
    ]
    assert found.text is not None
    assert re.findall(r"setmaxnreg\S+ (\d+);", found.text) == ["40", "232"]


@pytest.mark.parametrize(
    ("text", "registers", "more", "why"),
    [
        (BOUNDS, 168, "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored\n", "ptxas ignores"),
        (BOUNDS, 166, "", "166 registers at launch are no multiple of 8"),
        (".maxnreg 168", 168, "", "it does not say how large its blocks are"),
    ],
)
def test_why_registers_are_not_moved_is_told(text: str, registers: int, more: str, why: str) -> None:
    clean, spills = (more + log(registers, own, name="roles") for own in (0, 8))
    found = choose(roles(4, 8, bounds=text), Selection(), Assembler(clean, spills, clean))
    assert f"roles: registers cannot be moved between roles: {why}" in found.lines[1]
    assert not any("in place of 24" in line for line in found.lines)


def test_a_move_that_changes_the_registers_at_launch_is_not_taken() -> None:
    clean, spills, other = log(168, name="roles"), log(168, 8, name="roles"), log(176, name="roles")
    found = choose(roles(4, 8), Selection(), Assembler(clean, *[spills] * 4, other, clean))
    assert found.lines[4].endswith("240: 176 registers at launch in place of 168")


def test_the_state_stays_in_registers_where_the_launch_decides_on_shared_memory() -> None:
    assembler = Assembler(log(32), *[log(32, 8)] * 20)
    choose(MODULE, Selection(), assembler, kernels="one")
    assert not any("warplens_state" in text for text in assembler.texts)


def test_too_few_registers_for_an_instruction_is_a_mode_that_fails_and_no_failure() -> None:
    fatal = "ptxas fatal   : (C7602) Insufficient registers (24) to compile instruction at line 9 in function one. Try"
    answers = [log(32), fatal, log(32)]

    def assemble(_: str) -> str:
        answer = answers.pop(0)
        if "fatal" in answer:
            raise PtxError(answer)
        return answer

    found = choose(MODULE, Selection(), assemble, kernels="one")
    assert found.lines == [
        "one: the marks asked for: ptxas says C7602",
        "one: it gets the marks asked for, a recorder with fewer registers, 32 registers at most",
    ]


def test_for_as_many_blocks_on_an_sm_registers_are_limited_and_if_that_spills_there_are_fewer() -> None:
    assembler = Assembler(log(32), log(40), log(32))
    found = choose(MODULE, Selection(), assembler, kernels="one")
    assert ".maxnreg 32" in assembler.texts[-1]
    assert found.lines == [
        "one: the marks asked for: 3 blocks fit on an SM in place of 4",
        "one: it gets the marks asked for, a recorder with fewer registers, 32 registers at most",
    ]
    assembler = Assembler(log(32), log(40), log(32, 4), log(40))
    found = choose(MODULE, Selection(), assembler, kernels="one")
    assert found.lines[-1] == "one: it gets the marks asked for, on fewer blocks"
    assert found.text is not None
    assert ".maxnreg" not in found.text


def test_the_same_text_is_assembled_once() -> None:
    """On fewer blocks it is the first one, and in a kernel without loops so are all marks outside of them."""
    assembler = Assembler(log(32), *[log(40, 8)] * 20)
    found = choose(MODULE, Selection(), assembler, kernels="one")
    assert found.text is None
    assert {line for line in found.lines if "fewer blocks" in line or "outside" in line} >= {
        "one: the marks asked for, on fewer blocks: 8 bytes spill",
        "one: marks outside of loops: 8 bytes spill",
    }
    assert len(found.lines) == 19
    assert len(set(assembler.texts)) == len(assembler.texts) == 11


def test_where_arithmetic_ahead_of_waits_takes_registers_it_is_left_in_place() -> None:
    behind = "{ .reg .b32 %r1; $turn: bar.sync 0; add.u32 %r1, %r1, 1; st.global.u32 [%r1], 0; bra $turn; }"
    module = MODULE.replace("{ bar.sync 0; ret; }", behind)
    assembler = Assembler(log(32), log(40), log(32, 4), log(32, 4), log(32))
    found = choose(module, Selection(), assembler, kernels="one")
    assert found.lines[:4] == [
        "one: the marks asked for: 3 blocks fit on an SM in place of 4",
        "one: the marks asked for, a recorder with fewer registers, 32 registers at most: 4 bytes spill",
        "one: the marks asked for, 32 registers at most: 4 bytes spill",
        "one: it gets the marks asked for, arithmetic left behind waits, 32 registers at most",
    ]
    clock, add = (assembler.texts[-1].index(own) for own in ("%clock", "add.u32 %r1"))
    assert clock < assembler.texts[-1].index("bar.sync 0") < add
    assert assembler.texts[1].index("add.u32 %r1") < assembler.texts[1].index("bar.sync 0")


def test_a_kernel_without_any_room_stays_as_it_is() -> None:
    assembler = Assembler(log(20, name="other"), log(20, 8, name="other"))
    found = choose(MODULE, Selection(), assembler, kernels="other")
    assert found.text is None
    last = "other: begin and end, state in local memory, 64 registers at most: 8 bytes spill"
    assert found.lines[-2:] == [last, "other: it gets no marks"]


def test_what_ptxas_refuses_is_an_error() -> None:
    def refuse(_: str) -> str:
        raise PtxError("ptxas refuses it")

    with pytest.raises(PtxError, match="refuses"):
        choose(MODULE, Selection(), refuse)


@pytest.mark.parametrize(("clean", "marked", "most"), [(40, 64, None), (40, 65, 64), (72, 80, 72), (100, 112, None)])
def test_a_kernel_that_does_not_say_its_blocks_size_can_have_the_largest_as_before(
    clean: int, marked: int, most: int | None
) -> None:
    """64 registers leave room for 1024 threads, 72 for 896, 104 and 112 for 512."""
    logs = [log(registers, name="other") for registers in (clean, marked, clean)]
    assembler = Assembler(*logs)
    found = choose(MODULE, Selection(), assembler, kernels="other")
    assert (f".maxnreg {most}" in assembler.texts[-1]) == (most is not None)
    threads = {64: 1024, 72: 896}.get(most or 0)
    told = (
        []
        if most is None
        else [
            f"other: the marks asked for: a block of {threads} threads would not fit on an SM any more",
            f"other: it gets the marks asked for, a recorder with fewer registers, {most} registers at most",
        ]
    )
    assert found.lines == told


def test_a_block_that_would_not_fit_is_worse_than_fewer_marks() -> None:
    found = choose(
        MODULE, Selection(), Assembler(*(log(n, name="other") for n in (64, *[70] * 6, 64))), kernels="other"
    )
    assert (
        found.lines[-1]
        == "other: it gets marks outside of loops, a recorder with fewer registers, 64 registers at most"
    )
    assert not any("fewer blocks" in line for line in found.lines)
