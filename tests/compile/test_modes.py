"""What ptxas makes of marks whose state is in shared memory, and of roles with other registers.

Needs the ptxas of the wheel nvidia-cuda-nvcc, of CUDA 13.4 or newer for the newest PTX; no GPU.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.compile.test_instrument import FOLDER, FULL, NAMES, assembled, spills
from tests.full_kernels import roles
from tests.machine_code import disassemble, yields
from warplens import layout
from warplens.capture.audited import disassemble as disassemble_all
from warplens.capture.chosen import choose
from warplens.capture.modules import read_site_sets, registers_and_frame, shared_bytes
from warplens.capture.triton_builds import Choice, mark
from warplens.instrument import Mode, Selection, State, instrument
from warplens.instrument.shared_state import SHARED_STATE_BYTES

pytestmark = pytest.mark.compile
WITH_STATICS = """
.version 8.0
.target {target}
.address_size 64
.extern .shared .align 16 .b8 asked_for[];
.shared .align 4 .b8 small[100];
.shared .align 128 .b8 large[4224];
.visible .entry statics(.param .u64 out)
.reqntid 64
{{
	.reg .b32 %r<9>;
	.reg .b64 %rd1;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, asked_for;
	mov.u32 %r2, small;
	mov.u32 %r3, large;
	bar.sync 0;
	ld.shared.u32 %r4, [asked_for+4];
	ld.shared.u32 %r5, [small+4];
	ld.shared.u32 %r6, [large+4];
	st.global.v2.u32 [%rd1], {{%r1, %r2}};
	st.global.v4.u32 [%rd1+16], {{%r3, %r4, %r5, %r6}};
	ret;
}}
"""


def text_of(name: str) -> str:
    return gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()


def assembler(folder: Path) -> Callable[[str], str]:
    """As `choose` wants it."""

    return lambda text: assembled(text, folder, "chosen").log


@pytest.mark.parametrize("name", [name for name in NAMES if name != FULL and not name.startswith("cutlass")])
def test_with_the_state_in_shared_memory_a_kernel_assembles_and_shared_memory_moves_by_its_size(
    name: str, tmp_path: Path
) -> None:
    """CUTLASS's take longest, and what decides on shared memory when it launches has no state there."""
    text = text_of(name)
    clean = assembled(text, tmp_path, "clean")
    found = instrument(text, state=State.SHARED)
    marked = assembled(found.text, tmp_path, "marked")
    assert marked.warnings <= clean.warnings
    for kernel in found.kernels:
        moved = shared_bytes(marked.cubin, kernel.name) - shared_bytes(clean.cubin, kernel.name)
        # Behind arrays of 4 bytes there may be 4 more, where nothing of a launch's stands behind.
        padded = 0 if ".extern .shared" in text else moved % 8
        assert moved == SHARED_STATE_BYTES + padded, kernel.name
    sets = {own["name"]: own["sites"] for own in read_site_sets(marked.cubin)}
    assert sets == {own.site_set["name"]: own.site_set["sites"] for own in found.kernels if own.site_set}
    assert yields(marked.cubin) <= yields(clean.cubin) or name == "nvcc_sm_80"  # compiled with -G


@pytest.mark.parametrize(("name", "least"), [("matmul", 2), ("marked", 2), ("attention", 1)])
def test_a_recorder_with_fewer_registers_takes_fewer(name: str, least: int, tmp_path: Path) -> None:
    text = text_of(f"triton_3.6.0_{name}_90")
    found = {state: instrument(text, state=state) for state in (State.REGISTERS, State.FEWER_REGISTERS)}
    usual, fewer = (assembled(own.text, tmp_path, state.name).cubin for state, own in found.items())
    most, spilled = registers_and_frame(fewer)
    assert spilled == 0
    assert most <= registers_and_frame(usual)[0] - least


@pytest.mark.parametrize("name", ["triton_3.6.0_matmul_80", "triton_3.6.0_hopper_90", "triton_3.9.0_tma_100", FULL])
def test_with_the_state_in_local_memory_a_kernel_takes_so_much_of_it_and_nothing_spills(
    name: str, tmp_path: Path
) -> None:
    text = text_of(name)
    clean = assembled(text, tmp_path, "clean")
    marked = assembled(instrument(text, state=State.LOCAL).text, tmp_path, "marked")
    assert registers_and_frame(marked.cubin)[1] - registers_and_frame(clean.cubin)[1] == layout.LOCAL_STATE_BYTES
    assert not re.search(r"\b[1-9]\d* bytes spill", marked.log)
    assert marked.warnings <= clean.warnings
    assert yields(marked.cubin) <= yields(clean.cubin)


OWN_ARRAY = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
.reqntid 64
{{
	.local .align {align} .b8 own[{size}];
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [p];
	mov.u64 %rd2, own;
	cvta.local.u64 %rd2, %rd2;
	add.u64 %rd3, %rd2, %rd1;
	st.u8 [%rd3], %rd1;
	bar.sync 0;
	ld.u8 %r2, [%rd2+1];
	st.global.u32 [%rd1], %r2;
	ret;
}}
"""


@pytest.mark.parametrize(
    ("align", "size"), [(1, 3), (4, 4), (4, 12), (4, 20), (8, 8), (8, 24), (16, 16), (16, 40), (32, 32), (32, 40)]
)
def test_beside_a_kernels_own_arrays_its_state_takes_as_much_of_local_memory(
    align: int, size: int, tmp_path: Path
) -> None:
    """With 24 bytes it was 16 or 32 of them beside arrays aligned to 16, which was taken for what spills."""
    text = OWN_ARRAY.format(align=align, size=size)
    builds = text, instrument(text, state=State.LOCAL).text
    clean, marked = (registers_and_frame(assembled(own, tmp_path, "own").cubin)[1] for own in builds)
    assert marked - clean == layout.LOCAL_STATE_BYTES


@pytest.mark.parametrize("name", ["nvcc_sm_80", "nvcc_sm_90a", "nvcc_sm_100a"])
def test_the_yields_that_are_counted_are_those_that_nvdisasm_shows(name: str, tmp_path: Path) -> None:
    cubin = assembled(text_of(name), tmp_path, "clean").cubin
    assert yields(cubin) == len(re.findall(r"\bYIELD\b", disassemble_all(cubin))) > 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_beside_other_shared_memory_of_a_kernel_what_is_behind_stays_as_well_aligned(
    target: str, tmp_path: Path
) -> None:
    text = WITH_STATICS.format(target=target).replace(".version 8.0", ".version 8.7")
    clean = assembled(text, tmp_path, "clean").cubin
    marked = assembled(instrument(text, state=State.SHARED).text, tmp_path, "marked").cubin
    assert shared_bytes(marked, "statics") - shared_bytes(clean, "statics") == SHARED_STATE_BYTES


@pytest.mark.parametrize(
    ("level", "staged"), [("waits", True), ("all", True), ("waits", False), ("all", False)], ids=str
)
def test_a_kernel_with_all_registers_gets_its_marks_by_what_stands_in_shared_memory(
    level: str, staged: bool, tmp_path: Path
) -> None:
    """Its records and most of the state; or the state alone, where each record is to be in memory at once."""
    text = text_of(FULL)
    clean = assembled(text, tmp_path, "clean").cubin
    assert registers_and_frame(clean) == (255, 0)
    notes: list[str] = []
    told: list[str] = []
    kernel = SimpleNamespace(
        name="matmul_tma",
        asm={"ptx": text, "cubin": clean},
        metadata=SimpleNamespace(num_warps=4, shared=196_688, profile_scratch_size=0),
    )
    choice = Choice(None, Selection(level), "", told.append, notes, notes.append, staged)
    marked = mark(kernel, choice, lambda own: assembled(own, tmp_path, "marked").cubin)
    assert marked is not None
    assert registers_and_frame(marked.cubin) == (255, 0)
    tried = [line for line in notes if "matmul_tma: the marks" in line or "it gets" in line]
    assert told == []
    if staged:
        assert re.fullmatch(r"matmul_tma: the marks asked for: \d+ bytes spill", tried[0])
        lean = "records in shared memory, a recorder with fewer registers"
        assert tried[1:] == [f"matmul_tma: it gets the marks asked for, {lean}"]
        return
    fewer, in_place = "a recorder with fewer registers", "arithmetic left behind waits"
    for line, mode in zip(tried, ["", f", {fewer}", f", {in_place}", f", {fewer}, {in_place}"], strict=False):
        assert re.fullmatch(rf"matmul_tma: the marks asked for{mode}: \d+ bytes spill", line)
    assert "setmaxnreg" in tried[4]
    assert tried[-1].startswith("matmul_tma: it gets the marks asked for, state in shared memory: marks cost more")


@pytest.mark.parametrize("small", [10, 14, 18])
def test_a_full_role_with_24_registers_gets_some_of_those_with_240(small: int, tmp_path: Path) -> None:
    text = roles(small, 100)
    found = choose(text, Selection(), assembler(tmp_path))
    asked = [int(own) for own in re.findall(r"setmaxnreg\S+ (\d+);", found.text or "")]
    assert asked in ([32, 232], [40, 232])
    assert found.lines[0].endswith("bytes spill")
    assert found.lines[-1].startswith("roles: it gets the marks asked for, setmaxnreg ")
    cubin = assembled(found.text or "", tmp_path, "taken").cubin
    assert registers_and_frame(cubin) == (168, 0)
    assert [most < number for number, most in registers_by_role(cubin)] == [True, True]


def test_a_full_role_with_many_registers_gets_those_that_a_role_with_few_leaves(tmp_path: Path) -> None:
    found = choose(roles(4, 222, asked=(40, 232)), Selection(), assembler(tmp_path))
    assert found.lines[-1] == "roles: it gets the marks asked for, setmaxnreg 24 and 240 in place of 40 and 232"


def registers_by_role(cubin: bytes) -> list[tuple[int, int]]:
    """What each role asks for, and the highest register that it uses behind that."""
    out: list[tuple[int, int]] = []
    for line in disassemble(cubin, "roles"):
        if asked := re.search(r"USETMAXREG\.\w+\.CTAPOOL (?:UP\d, )?(0x[0-9a-f]+)", line):
            out.append((int(asked[1], 16), 0))
        elif out:
            out[-1] = out[-1][0], max([out[-1][1], *(int(own) for own in re.findall(r"\bR(\d+)\b", line))])
    return out


@pytest.mark.parametrize("name", ["triton_3.6.0_hopper_90", "triton_3.9.0_hopper_90", FULL])
def test_what_triton_asks_for_can_be_moved(name: str, tmp_path: Path) -> None:
    text = text_of(name)
    (kernel,) = instrument(text).kernels
    clean = assembled(text, tmp_path, "clean")
    assert kernel.asked is not None
    moves = list(kernel.asked.moves(registers_and_frame(clean.cubin)[0]))
    assert [next(iter(moved.values())) for moved in moves[:3]] == [32, 40, 56]
    for moved in moves[:3]:
        text_moved = instrument(text, modes={kernel.name: Mode(Selection(), setmaxnreg=moved)}).text
        marked = assembled(text_moved, tmp_path, "marked")
        assert marked.warnings <= clean.warnings
        assert registers_and_frame(marked.cubin)[0] == registers_and_frame(clean.cubin)[0]
        assert name == FULL or spills(marked.cubin) == 0
