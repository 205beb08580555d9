"""Which builds of a Triton kernel are tried, and which one is taken: by registers, blocks and what ptxas says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.capture import triton_stand_in as stand_in
from tests.unit.capture.test_triton import loaded
from tests.unit.capture.triton_stand_in import WAITS, Fake
from warplens.capture import triton_builds
from warplens.capture.triton import TritonCapture, TritonWarning
from warplens.instrument import Selection


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake().install(monkeypatch)


def test_marks_that_spill_give_way_to_fewer_and_in_the_end_to_none(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda own: (40, 8 * own.count(b"wait barrier 0")))
    monkeypatch.setattr(triton_builds, "instrument", instrument_stand_in)
    told = "k has no registers for all of its marks: it gets begin and end$"
    with pytest.warns(TritonWarning, match=told), TritonCapture() as capture:
        fewer, _ = loaded()
    assert fewer.startswith("// off ()")
    assert capture.notes[:4] == [
        "k: the marks asked for: 8 bytes spill",
        "k: the marks asked for, 40 registers at most: 8 bytes spill",
        "k: marks outside of loops: 8 bytes spill",
        "k: marks outside of loops, 40 registers at most: 8 bytes spill",
    ]
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda own: (40, 8 * (b"//" in own)))
    with (
        pytest.warns(TritonWarning, match="k is not marked: its marks would change it, even if.*8 bytes spill"),
        TritonCapture(),
    ):
        none, _ = loaded()
    assert none == WAITS


def instrument_stand_in(text: str, selection: Selection, *, most_registers: int | None = None) -> Any:
    """Says in the text what was asked for."""
    waits = "" if selection.kinds == () else "wait barrier 0"
    head = f"// {selection.level} {selection.kinds} {waits} {most_registers}\n"
    return SimpleNamespace(text=head + text, kernels=[SimpleNamespace(name="k", takes_limit=True, left_out=[])])


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
        "k: it gets the marks asked for, 40 registers at most",
    ]
    registers[True] = 50
    with pytest.warns(TritonWarning, match="its marks leave 4 blocks on an SM instead of 6"), TritonCapture():
        wide, _ = loaded(text)
    assert ".maxnreg" not in wide


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
