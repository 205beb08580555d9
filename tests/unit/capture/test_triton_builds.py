"""Which builds of a Triton kernel are tried, and which one is taken: by registers, blocks and what ptxas says."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.full_kernels import roles
from tests.unit.capture import triton_stand_in as stand_in
from tests.unit.capture.test_triton import loaded
from tests.unit.capture.triton_stand_in import WAITS, Fake
from warplens import layout
from warplens.capture import triton_builds
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture, TritonWarning
from warplens.instrument import Mode, Selection, State


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(triton_builds, "shared_bytes", lambda own, _: 1024 * own.count(b"warplens_state["))
    return Fake().install(monkeypatch)


def test_marks_that_spill_give_way_to_fewer_and_in_the_end_to_none(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda own: (40, 8 * own.count(b"wait barrier 0")))
    monkeypatch.setattr(triton_builds, "instrument", instrument_stand_in)
    told = "k has no registers for all of its marks: it gets begin and end$"
    with pytest.warns(TritonWarning, match=told), TritonCapture() as capture:
        fewer, _ = loaded()
    assert fewer.startswith("// off ()")
    assert capture.notes[:10] == [
        f"k: {marks}{how}: 8 bytes spill"
        for marks in ("the marks asked for", "marks outside of loops")
        for how in (
            "",
            ", a recorder with fewer registers, 40 registers at most",
            ", 40 registers at most",
            ", state in shared memory",
            ", state in shared memory, 40 registers at most",
        )
    ]
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda own: (40, 8 * (b"//" in own)))
    with (
        pytest.warns(TritonWarning, match="k is not marked: its marks would change it, even if.*8 bytes spill"),
        TritonCapture(),
    ):
        none, _ = loaded()
    assert none == WAITS


def test_a_kernel_with_too_many_sites_gets_fewer_marks_which_is_told_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda _: (32, 0))
    step = "\tbar.sync 0;\n\tst.global.u32 [%r1], 1;\n"
    told = "k: 1,201 sites are too many to tell apart .at most 1,023.: it gets begin and end$"
    with pytest.warns(TritonWarning, match=told) as warned, TritonCapture() as capture:
        marked, _ = loaded(WAITS.replace(step, step * 600))
    assert "warplens_sites_k" in marked
    assert len(warned) == 1
    assert sum("too many" in note for note in capture.notes) == 1


def instrument_stand_in(
    text: str,
    selection: Selection | None = None,
    *,
    modes: dict[str, Mode] | None = None,
    state: State = State.REGISTERS,
) -> Any:
    """Says in the text what was asked for."""
    mode = Mode(selection, state=state) if modes is None else modes["k"]
    assert mode.selection is not None
    waits = "" if mode.selection.kinds == () else "wait barrier 0"
    memory = "warplens_state[" if mode.state is State.SHARED else ""
    head = f"// {mode.selection.level} {mode.selection.kinds} {waits} {mode.most_registers} {memory}\n"
    kernel = SimpleNamespace(name="k", takes_limit=True, left_out=[], asked=None, hoisted=0, staged_bytes=0)
    return SimpleNamespace(text=head + text, kernels=[kernel])


@pytest.mark.usefixtures("fake")
def test_marks_that_leave_fewer_blocks_are_tried_with_fewer_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 threads: six blocks with 40 registers, four with 50."""
    text = WAITS.replace(".visible .entry k(.param .u32 n)", ".visible .entry k(.param .u32 n)\n.reqntid 256")
    registers = {True: 40, False: 50}
    monkeypatch.setattr(
        triton_builds,
        "registers_and_frame",
        lambda own: (40 if b"warplens" not in own else registers[b".maxnreg 40" in own], 0),
    )
    with TritonCapture() as capture:
        limited, _ = loaded(text)
    assert ".maxnreg 40" in limited
    assert capture.notes == [
        "k: the marks asked for: 4 blocks fit on an SM in place of 6",
        "k: it gets the marks asked for, a recorder with fewer registers, 40 registers at most",
    ]
    registers[True] = 50
    with pytest.warns(TritonWarning, match="its marks leave 4 blocks on an SM instead of 6"), TritonCapture():
        wide, _ = loaded(text)
    assert ".maxnreg" not in wide


TURNS = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n)
.reqntid 256
{ $again: bar.sync 0; st.global.u32 [%r1], 1; @%p1 bra $again; ret; }
"""


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("registers", "slots", "staged", "gets"),
    [
        (90, 8192, True, "staged"),  # 38 to spare
        (112, 8192, True, "at once"),  # 16
        (64, 8192, True, "staged"),  # none, and records at once would take 72
        (90, 8192, False, "at once"),
        (90, 9216, True, "at once"),
    ],
)
def test_records_wait_in_shared_memory_where_registers_are_to_spare_or_lacking(
    registers: int, slots: int, staged: bool, gets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 threads: up to 128 registers leave two blocks, up to 64 four."""
    marked_takes = {64: 72}.get(registers, registers)

    def frame(own: bytes) -> tuple[int, int]:
        return (marked_takes if b"%wl_" in own and b"warplens_stage" not in own else registers, 0)

    monkeypatch.setattr(triton_builds, "registers_and_frame", frame)
    monkeypatch.setattr(triton_builds, "shared_bytes", lambda own, _: slots * (b"warplens_stage[" in own))
    with TritonCapture(PythonOptions(staged=staged), quiet=True) as capture:
        text, _ = loaded(TURNS)
    assert ("warplens_stage[8192]" in text) == (gets == "staged"), capture.notes


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("registers", "own_bytes", "spills", "slots"),
    [
        (130, 1024, 0, 35840),  # one block of eight warps, 4 KiB each and 3 KiB to begin where they are aligned
        (90, 1024, 0, 8192),  # two blocks
        (130, 20480, 0, 17408),  # of 48 KiB it has 20 itself: 2 KiB each
        (130, 36864, 0, 8192),
        (130, 1024, 8, 8192),  # large slots spill
    ],
)
def test_a_block_alone_on_its_sm_has_larger_slots(
    registers: int, own_bytes: int, spills: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f".reqntid 256\n{{ .shared .align 4 .b8 own[{own_bytes}];"
    is_large = re.compile(rb"warplens_stage\[(?!8192\])")

    def frame(text: bytes) -> tuple[int, int]:
        return (registers, spills * bool(is_large.search(text)))

    def shared(text: bytes, _: str) -> int:
        found = re.search(rb"warplens_stage\[([0-9]+)\]", text)
        return int(found[1]) if found else 0

    monkeypatch.setattr(triton_builds, "registers_and_frame", frame)
    monkeypatch.setattr(triton_builds, "shared_bytes", shared)
    with TritonCapture(quiet=True) as capture:
        text, _ = loaded(TURNS.replace(".reqntid 256\n{", own))
    assert f"warplens_stage[{slots}]" in text, capture.notes


@pytest.mark.parametrize("refuses", [False, True])
def test_what_ptxas_says_of_marks_alone_refuses_them(
    refuses: bool, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda _: (32, 0))
    says = "ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored"
    texts: list[str] = []

    def ptxas(text: str) -> bytes:
        texts.append(text)
        if "%wl_" in text and text.count("%clock") > 2:
            if refuses:
                raise RuntimeError(f"ptxas fatal : {says}")
            assert fake.knobs.nvidia.dump_ptxas_log
            print(says)  # as Triton does where it is asked to
        elif clean_too:
            print(says)
        return text.encode()

    fake.knobs.nvidia = SimpleNamespace(dump_ptxas_log=False)
    monkeypatch.setattr(stand_in.Backend, "assemble", staticmethod(ptxas))
    clean_too = False
    with pytest.warns(TritonWarning, match="it gets begin and end"), TritonCapture() as capture:
        loaded()
    assert capture.notes[0] == "k: the marks asked for: ptxas says C7508"
    assert fake.knobs.nvidia.dump_ptxas_log is False
    assert sum("%wl_" not in text for text in texts) == 1  # the clean kernel is asked about once
    clean_too = True
    with TritonCapture() as capture:
        loaded()
    assert capture.notes == []


def test_a_kernel_with_setmaxnreg_is_given_no_limit(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one ptxas ignores setmaxnreg; with one it would count, and a pool that is too small waits for ever."""
    del fake
    text = WAITS.replace("\tbar.sync 0;", "\tsetmaxnreg.dec.sync.aligned.u32 24;\n\tbar.sync 0;")
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda own: (40, 8 * (own.count(b"%clock") > 2)))
    with pytest.warns(TritonWarning, match="it gets begin and end"), TritonCapture() as capture:
        assert ".maxnreg" not in loaded(text)[0]
    assert not any("registers at most" in line for line in capture.notes)


@pytest.mark.usefixtures("fake")
def test_where_the_state_in_registers_spills_it_moves_to_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_builds, "registers_and_frame", spills_without_shared_state)
    with pytest.warns(TritonWarning, match="marks cost more there"), TritonCapture() as capture:
        text, _ = loaded()
    assert ".shared .align 8 .b8 warplens_state[1024];" in text
    assert capture.notes[:3] == [
        "k: the marks asked for: 8 bytes spill",
        "k: the marks asked for, a recorder with fewer registers, 40 registers at most: 8 bytes spill",
        "k: the marks asked for, 40 registers at most: 8 bytes spill",
    ]
    assert capture.notes[3].startswith("k: it gets the marks asked for, state in shared memory: ")
    assert capture.told == []


def spills_without_shared_state(cubin: bytes) -> tuple[int, int]:
    local = layout.LOCAL_STATE_BYTES * (b"$wl_state[" in cubin)
    return 40, local or 8 * (cubin.count(b"%clock") > 2 and b"warplens_state" not in cubin)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("shared", "why"),
    [
        (49_152, "1,024 bytes more than 49,152 a block would pass 49,152, and could not be launched"),
        (232_448, "1,024 bytes more 0 blocks fit on an SM in place of 1"),
        (115_712, "1,024 bytes more 1 block fits on an SM in place of 2"),
    ],
)
def test_the_state_stays_out_of_shared_memory_that_the_launch_needs(
    shared: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton asks the driver for more than 48 KiB only where the kernel itself needs more."""
    monkeypatch.setattr(triton_builds, "registers_and_frame", spills_without_shared_state)
    with pytest.warns(TritonWarning, match="it gets the marks asked for, state in local"), TritonCapture() as capture:
        text, _ = loaded(shared=shared)
    assert "warplens_state" not in text
    assert ".local .align 8 .b8 $wl_state[32];" in text
    assert f"k: state in shared memory is not tried: with {why}" in capture.notes


@pytest.mark.usefixtures("fake")
def test_shared_memory_that_would_move_by_another_size_refuses_the_state_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_builds, "registers_and_frame", spills_without_shared_state)
    monkeypatch.setattr(triton_builds, "shared_bytes", lambda own, _: 1040 * own.count(b"warplens_state["))
    with pytest.warns(TritonWarning, match="it gets begin and end"), TritonCapture() as capture:
        assert "warplens_state" not in loaded()[0]
    line = "k: the marks asked for, state in shared memory: shared memory moves by 1,040 bytes in place of 1,024"
    assert line in capture.notes


@pytest.mark.usefixtures("fake")
def test_what_roles_ask_for_is_moved_where_their_marks_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    at_launch = {b"u32 32;": 176}  # what ptxas would have at launch with one of the moves

    def found(cubin: bytes) -> tuple[int, int]:
        registers = next((own for ask, own in at_launch.items() if ask in cubin), 168)
        return registers, 8 * (b"%wl_" in cubin and b"u32 24;" in cubin)

    monkeypatch.setattr(triton_builds, "registers_and_frame", found)
    with TritonCapture() as capture:
        text, _ = loaded(roles(4, 8).replace("entry roles", "entry k"), shared=49_152)
    assert "setmaxnreg.dec.sync.aligned.u32 40;" in text
    assert "setmaxnreg.inc.sync.aligned.u32 232;" in text
    moved = "k: the marks asked for, setmaxnreg {} and 232 in place of 24 and 240"
    assert capture.notes[:5] == [
        "k: the marks asked for: 8 bytes spill",
        "k: the marks asked for, a recorder with fewer registers: 8 bytes spill",
        "k: the marks asked for, arithmetic left behind waits: 8 bytes spill",
        "k: the marks asked for, a recorder with fewer registers, arithmetic left behind waits: 8 bytes spill",
        f"{moved.format(32)}: 176 registers at launch in place of 168",
    ]
    assert capture.notes[-1] == "k: it gets the marks asked for, setmaxnreg 40 and 232 in place of 24 and 240"
