"""Marks that stand in the source of a kernel, as comments in its PTX."""

from __future__ import annotations

from tests.unit.instrument import test_recorder as recorder
from warplens.instrument import Selection, instrument
from warplens.instrument.source import marker

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 turns)
.reqntid 64
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.reg .pred %p<2>;
	.loc 1 10 1
	ld.param.u64 %rd1, [p];
	ld.param.u32 %r2, [turns];
	mov.u32 %r1, 0;
"""
TAIL = """	.loc 1 30 1
	st.global.u32 [%rd1], %r1;
	ret;
	.file 1 "/src/k.py"
}
"""
LOOP = f"""
	.loc 1 20 1
	cp.async.ca.shared.global [%r1], [%rd1], 4;
$L1:
	.loc 1 19 1
	{marker("range_push", "load")}
	.loc 1 20 1
	cp.async.ca.shared.global [%r1], [%rd1], 4;
	.loc 1 20 1
	{marker("range_pop", "load")}
	.loc 1 21 1
	// begin inline asm
	{marker("phase", "add ü")}
	// end inline asm
	.loc 1 22 1
	add.u32 %r1, %r1, 1;
	setp.lt.u32 %p1, %r1, %r2;
	{marker("mark", "turn")}
	@%p1 bra $L1;
	.loc 1 29 1
	{marker("phase", "store")}
"""


def sites(text: str, level: str = "off") -> tuple[list[tuple[str, str, int]], list[str]]:
    (kernel,) = instrument(text, Selection(level)).kernels
    assert kernel.site_set is not None
    return [(site["name"], site["kind"], site["line"]) for site in kernel.site_set["sites"]], kernel.left_out


def test_marks_of_the_source_are_sites_by_their_name_and_line() -> None:
    found, _ = sites(HEAD + LOOP + TAIL)
    assert found[1:] == [("load", "range", 19), ("add ü", "phase", 21), ("turn", "mark", 22), ("store", "phase", 29)]


def test_what_the_compiler_moved_out_of_a_mark_is_told() -> None:
    _, left_out = sites(HEAD + LOOP + TAIL)
    assert left_out == [
        "'load' (k.py:19): the compiler has moved cp.async of line 20 out of it: their time is not in it"
    ]
    _, none = sites(HEAD + LOOP.replace("\tcp.async.ca.shared.global [%r1], [%rd1], 4;\n$L1", "$L1", 1) + TAIL)
    assert none == []


def test_copies_of_a_mark_are_one_site() -> None:
    found, _ = sites(HEAD + LOOP + LOOP.replace("$L1", "$L2") + TAIL)
    assert [name for name, _, _ in found[1:]] == ["load", "add ü", "turn", "store"]


def test_a_selection_by_name_takes_marks_of_the_source_too() -> None:
    (kernel,) = instrument(HEAD + LOOP + TAIL, Selection("off", sites="store")).kernels
    assert kernel.site_set is not None
    assert [site["name"] for site in kernel.site_set["sites"]][1:] == ["store"]


def test_marks_where_only_some_lanes_come_are_left_out_and_told() -> None:
    text = (
        HEAD
        + f"""
	mov.u32 %r3, %tid.x;
	setp.eq.u32 %p1, %r3, 0;
	@%p1 bra $L2;
	{marker("mark", "some")}
	mov.u32 %r4, 1;
$L2:
	bar.sync 0;
"""
        + TAIL
    )
    found, left_out = sites(text)
    assert len(found) == 1
    assert left_out == ["1 marks 'some' not marked: only some lanes of a warp come there"]


def test_marks_of_the_source_run_on_the_cpu_and_are_decoded() -> None:
    body = f"""
	{marker("phase", "first")}
	mov.u32 %r1, 1;
	{marker("range_push", "inner")}
	mov.u32 %r1, 2;
	{marker("mark", "here")}
	mov.u32 %r1, 3;
	{marker("range_pop", "inner")}
"""
    text = recorder.STRAIGHT.format(threads=64)
    at = text.index("ret;")
    done = recorder.run(text[:at] + body.replace("%r1", "%r9") + text[at:], grid=2, turns=recorder.DESCRIPTOR + 64)
    names = done.trace.sites["name"]
    counts = {names[site]: count for site, count in done.trace.spans.group_by("site").len().iter_rows()}
    assert {name: counts[name] for name in ("first", "inner", "here")} == dict.fromkeys(("first", "inner", "here"), 4)
    assert not set(done.trace.problems["severity"]) & {"error", "loss"}


def test_marks_that_triton_compiled_are_found_and_its_pipelining_is_told(corpus: dict[str, str]) -> None:
    for version in ("3.6.0", "3.9.0"):
        found, left_out = sites(corpus[f"triton_{version}_marked_90"])
        assert [name for name, _, _ in found[1:]] == ["load", "multiply", "store"]
        assert [line.partition(":")[0] for line in left_out] == ["'load' (marked_matmul.py"]
        assert "moved cp.async of line" in left_out[0]


def test_a_kernel_of_specialised_warps_waits_for_barriers_in_both_roles(corpus: dict[str, str]) -> None:
    for version in ("3.6.0", "3.9.0"):
        (kernel,) = instrument(corpus[f"triton_{version}_hopper_90"]).kernels
        assert kernel.site_set is not None
        waits = {site["resource"] for site in kernel.site_set["sites"] if site["kind"] == "wait"}
        assert len({own for own in waits if own.startswith("mbarrier")}) == 2
        assert "wgmma" in waits


def test_labels_that_no_branch_leads_to_part_no_mark_from_its_block() -> None:
    """LLVM puts `$L__tmp7` wherever the line changes: behind a loop's label the mark is passed each turn."""
    text = recorder.LOOP.format(threads=32)
    for at in ("$again:\n{}\n$L__tmp3:\n", "$again:\n$L__tmp2:\n{}\n", "$L__tmp1:\n$again:\n{}\n$L__tmp4:\n"):
        done = recorder.run(text.replace("$again:\n", at.format(marker("phase", "turn"))), threads=32, turns=5)
        names = done.trace.sites["name"].to_list()
        assert done.trace.spans["site"].to_list().count(names.index("turn")) == 5


def test_a_mark_with_no_instruction_of_its_own_is_left_out_and_told() -> None:
    """In front of the one label come those of the other branch, behind the other one those of both."""
    mark = marker("phase", "otherwise")
    branches = f"	@%p1 bra $L1;\n	mov.u32 %r1, 1;\n	bra.uni $L2;\n$L1:\n{mark}\n$L2:\n"
    found, left_out = sites(HEAD + branches + TAIL)
    assert len(found) == 1
    assert left_out == ["1 marks 'otherwise' not marked: they stand between two labels, without an instruction"]
    found, left_out = sites(HEAD + branches.replace("$L2:\n", "	mov.u32 %r1, 2;\n$L2:\n") + TAIL)
    assert (len(found), left_out) == (2, [])
