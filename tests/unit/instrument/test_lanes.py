"""Where the lanes of a warp are held to be together, and where not."""

from __future__ import annotations

import pytest

from warplens.instrument import instrument

KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .align 8 .b8 n[16]) .reqntid 384
{{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.reg .pred %p<9>;
	mov.u32 %r1, %tid.x;
	{asks}
	@%p1 bra $skip;
	bar.warp.sync -1;
	bar.sync 0;
$skip:
	bar.sync 1;
	ret;
}}
"""
ASKS_AGAIN = """{{
	.reg .pred P1;
	mbarrier.try_wait.parity.shared::cta.b64 P1, [{bar}], 0;
	selp.b32 {out}, 1, 0, P1;
	}}
"""
APART = "setp.lt.u32 %p2, %r1, 7; @%p2 bra $apart; " + ASKS_AGAIN.format(bar="%r1", out="%r3") + "$apart: "


def waits(asks: str) -> bool:
    """Whether the barrier is marked that comes where %p1 does not hold."""
    (kernel,) = instrument(KERNEL.format(asks=asks)).kernels
    assert kernel.site_set is not None
    marked = any(site["name"].endswith("wait barrier 0") for site in kernel.site_set["sites"])
    assert marked != any("only some lanes" in line for line in kernel.left_out)
    return marked


@pytest.mark.parametrize(
    "asks",
    [
        "ld.param.u32 %r2, [n+4]; setp.eq.u32 %p1, %r2, 0;",
        "mov.b64 %rd1, n; ld.param.u32 %r2, [%rd1+4]; setp.eq.u32 %p1, %r2, 0;",  # as nvcc writes large parameters
        "mov.b64 %rd1, n; ld.param.v2.u32 {%r2, %r3}, [%rd1+8]; setp.eq.u32 %p1, %r3, 0;",
        # Registers of other braces that have the same name.
        APART + ASKS_AGAIN.format(bar="8", out="%r2") + "setp.ne.s32 %p1, %r2, 0;",
        APART.replace("P1", "%q<3>", 1).replace("P1", "%q1")
        + ASKS_AGAIN.format(bar="8", out="%r2").replace("P1", "%q1").replace(".pred %q1", ".pred %q<2>")
        + "setp.ne.s32 %p1, %r2, 0;",
        # Of the thread's number what a warp has once, as CUTLASS asks for it.
        "setp.gt.u32 %p1, %r1, 31;",
        "setp.le.s32 %p1, %r1, 63;",
        "and.b32 %r2, %r1, 255; add.s32 %r3, %r2, 31; setp.gt.u32 %p1, %r3, 62;",
        "and.b32 %r2, %r1, 127; setp.lt.u32 %p1, %r2, 32;",
        "add.s32 %r2, %r1, 32; shr.u32 %r3, %r2, 5; setp.eq.u32 %p1, %r3, 2;",
        "ld.param.u32 %r2, [n]; setp.ne.u32 %p2, %r2, 0; setp.gt.and.u32 %p1, %r1, 31, !%p2;",
        "setp.eq.u32 %p2, %r1, 0; bar.red.or.pred %p1, 2, %p2;",
        "mov.u32 %v.x, %ctaid.x; setp.eq.u32 %p1, %v.x, 0;",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;",
    ],
)
def test_what_is_the_same_in_all_lanes_parts_none(asks: str) -> None:
    assert waits(asks)


@pytest.mark.parametrize(
    "asks",
    [
        "setp.lt.u32 %p1, %r1, 7;",
        "setp %p1, %r1, 32;",  # no comparison: damage
        "setp.eq %p1, %r1, 0, %p2;",  # nor how they are joined
        "setp.gt.u32 %p1, %r1, 32;",
        "setp.eq.u32 %p1, %r1, 32;",
        "and.b32 %r2, %r1, 255; add.s32 %r3, %r2, 31; setp.gt.u32 %p1, %r3, 63;",
        "add.s32 %r2, %r1, 1; shr.u32 %r3, %r2, 5; setp.eq.u32 %p1, %r3, 2;",
        "add.s32 %r2, %r1, -31; setp.lt.u32 %p1, %r2, 33;",
        "mov.u32 %r2, %r1; @%p3 mov.u32 %r2, 5; setp.lt.u32 %p1, %r2, 32;",
        "setp.lt.u32 %p2, %r1, 7; setp.gt.and.u32 %p1, %r1, 31, %p2;",
        "setp.lt.u32 %p2, %r1, 7; setp.gt.or.u32 %p1, %r1, 31, !%p2;",
        (
            "mov.b64 %rd1, n; cvt.u64.u32 %rd2, %r1; add.s64 %rd1, %rd1, %rd2; ld.param.u32 %r2, [%rd1]; "
            "setp.eq.u32 %p1, %r2, 0;"
        ),
        "ld.param.u32 %r2, [given]; setp.eq.u32 %p1, %r2, 0;",  # what a call gave back
        "call (%r2), lane, (%r3); setp.eq.u32 %p1, %r2, 0;",
        "call (%r3, %r2), lane, (%r3); setp.eq.u32 %p1, %r2, 0;",
        "multimem.ld_reduce.relaxed.gpu.global.add.u32 %r2, [%rd1]; setp.eq.u32 %p1, %r2, 0;",
        # A part of a vector that is written whole, and the other way about.
        "cvt.u64.u32 %rd1, %r1; ld.global.v4.b32 %v, [%rd1]; setp.eq.u32 %p1, %v.x, 0;",
        "mov.u32 %v.y, %tid.x; mov.b64 %rd1, %v; setp.eq.u64 %p1, %rd1, 0;",
        "mov.u32 %v.g, %tid.x; mov.b64 %rd1, %v; setp.eq.u64 %p1, %rd1, 0;",
        "mov.u32 %v.x, %tid.x; shfl.sync.idx.b32 %r2, %r3, %v.x, 31, -1; setp.eq.u32 %p1, %r2, 0;",
        # Some lanes keep what they had.
        "setp.lt.u32 %p2, %r1, 7; @%p2 activemask.b32 %r2; setp.eq.u32 %p1, %r2, 0;",
        "setp.lt.u32 %p2, %r1, 7; @%p2 ld.param.u32 %r2, [n]; setp.eq.u32 %p1, %r2, 0;",
        "setp.lt.u32 %p2, %r1, 7; @%p2 vote.sync.any.pred %p1, %p3, -1;",
        "setp.lt.u32 %p2, %r1, 7; @%p2 shfl.sync.idx.b32 %r2, %r3, 0, 31, -1; setp.eq.u32 %p1, %r2, 0;",
        APART + "setp.ne.s32 %p1, %r3, 0;",
        ASKS_AGAIN.format(bar="%r1", out="%r2") + "setp.ne.s32 %p1, %r2, 0;",
        # Of the braces round it, not of those before.
        (
            "{ .reg .pred P1; setp.lt.u32 P1, %r1, 7; { .reg .pred P2; setp.ne.u32 P2, %r2, 0; } "
            "selp.b32 %r3, 1, 0, P1; } setp.ne.s32 %p1, %r3, 0;"
        ),
    ],
)
def test_what_differs_between_lanes_parts_them(asks: str) -> None:
    assert not waits(asks)


def test_lanes_part_in_a_loop_without_an_exit_too() -> None:
    text = KERNEL.replace("	bar.sync 1;\n	ret;", "	bar.sync 1;\n	bra $begin;").replace(
        "	{asks}", "$begin:\n	{asks}"
    )
    for asks, marked in (("setp.lt.u32 %p1, %r1, 7;", [1]), ("setp.lt.u32 %p1, %r1, 32;", [0, 1])):
        (kernel,) = instrument(text.format(asks=asks)).kernels
        assert kernel.site_set is not None
        found = [site["resource"] for site in kernel.site_set["sites"] if site["kind"] == "wait"]
        assert found == [f"barrier {number}" for number in marked]


SOME_LEAVE = """
	ld.param.u32 %r2, [n];
	setp.eq.u32 %p3, %r2, 0;
$turn:
	bar.sync 2;
	@%p1 bra $skip;
	bar.sync 0;
	{leave}
	bar.sync 3;
$skip:
	bar.sync 1;
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p2, %r2, 9;
	@%p2 bra $turn;
{end}
	ret;
}}
"""


@pytest.mark.parametrize(
    ("leave", "end"),
    [
        ("@%p3 bra $end;", "$end:"),
        ("@!%p3 bra $on; bra.uni $end; $on:", "$end:"),
        ("@%p3 bra $end;", "bar.sync 4; $end:"),
        ("@%p3 ret;", ""),
        ("@!%p3 bra $on; trap; $on:", ""),
        ("@%p3 bra $fails;", "ret; $fails: st.global.u32 [%rd1], %r2; trap;"),
    ],
)
@pytest.mark.parametrize(("asks", "marked"), [("setp.lt.u32 %p1, %r1, 7;", [2, 1]), ("", [2, 0, 3, 1])])
def test_some_lanes_that_may_leave_on_the_way_are_parted_from_the_others(
    leave: str, end: str, asks: str, marked: list[int]
) -> None:
    text = KERNEL[: KERNEL.index("	@%p1 bra $skip")] + SOME_LEAVE
    (kernel,) = instrument(text.format(asks=asks, leave=leave, end=end)).kernels
    assert kernel.site_set is not None
    found = [site["resource"] for site in kernel.site_set["sites"] if site["kind"] == "wait"]
    assert [own for own in found if own != "barrier 4"] == [f"barrier {number}" for number in marked]


def test_lanes_that_go_to_the_end_are_gone() -> None:
    text = KERNEL.replace("$skip:\n	bar.sync 1;", "	bar.sync 1;\n$skip:")
    (kernel,) = instrument(text.format(asks="setp.lt.u32 %p1, %r1, 7;")).kernels
    assert kernel.site_set is not None
    found = [site["resource"] for site in kernel.site_set["sites"] if site["kind"] == "wait"]
    assert found == ["barrier 0", "barrier 1"]
