"""Blocks that one lane of a warp comes to alone, and what is taken for none."""

from __future__ import annotations

import pytest

from warplens.instrument import Selection, instrument

KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 n) .maxntid {threads}
{{
	.reg .b32 %r<9>;
	.reg .pred %p<9>;
	mov.u32 %r1, %tid.x;
	{asks}
	@%p1 bra $skip;
	mbarrier.arrive.shared.b64 _, [bar];
$skip:
	bar.sync 0;
	ret;
}}
"""
ELECTED = "elect.sync %r2|%p2, -1; not.pred %p1, %p2;"
AS_A_NUMBER = "mov.u32 %r3, 0; elect.sync %r2|%p2, -1; @%p2 mov.u32 %r3, 1; setp.eq.s32 %p1, %r3, 0;"


def arrives(asks: str, threads: str = "384, 1, 1") -> bool:
    """Whether the arrival that comes where %p1 does not hold is marked."""
    (kernel,) = instrument(KERNEL.format(asks=asks, threads=threads), Selection("all")).kernels
    assert kernel.site_set is not None
    marked = any(site["kind"] == "arrive" for site in kernel.site_set["sites"])
    assert marked != any("only some lanes" in line for line in kernel.left_out)
    return marked


@pytest.mark.parametrize(
    "asks",
    [
        "setp.ne.s32 %p1, %r1, 0;",
        "and.b32 %r2, %r1, 127; setp.ne.s32 %p1, %r2, 0;",
        "add.s32 %r2, %r1, -128; setp.ne.s32 %p1, %r2, 0;",
        "add.s32 %r2, %r1, 4; setp.ne.s32 %p1, %r2, 36;",  # thread 32
        "mov.u32 %r2, %laneid; setp.ne.s32 %p1, %r2, 0;",
        "setp.eq.s32 %p2, %r1, 0; not.pred %p1, %p2;",
        "setp.ne.s32 %p2, %r1, 0; ld.param.u32 %r2, [n]; setp.ne.or.s32 %p1, %r2, 3, %p2;",
        "setp.ne.s32 %p2, %r1, 0; setp.lt.u32 %p3, %r1, 64; or.pred %p1, %p3, %p2;",
        ELECTED,
        AS_A_NUMBER,
        "elect.sync %r2|%p2, -1; selp.b32 %r3, 1, 0, %p2; setp.eq.s32 %p1, %r3, 0;",
        AS_A_NUMBER.replace("mov.u32 %r3, 0;", "mov.u32 %r4, 0; mov.u32 %r3, %r4;"),  # as nvcc writes CUTLASS's
    ],
)
def test_behind_a_question_that_one_lane_passes_marks_stand(asks: str) -> None:
    assert arrives(asks)


@pytest.mark.parametrize(
    "asks",
    [
        "setp.ne.s32 %p1, %r1, 1;",  # another lane than the one that writes
        "setp.eq.s32 %p1, %r1, 0;",  # all but one
        "setp.gt.u32 %p1, %r1, 3;",
        "and.b32 %r2, %r1, 15; setp.ne.s32 %p1, %r2, 0;",  # two lanes
        "shr.u32 %r2, %r1, 1; setp.ne.s32 %p1, %r2, 0;",
        "setp.ne.s32 %p2, %r1, 0; ld.param.u32 %r2, [n]; setp.ne.and.s32 %p1, %r2, 3, %p2;",
        "elect.sync %r2|%p1, -1;",
        "elect.sync %r2|%p2, -1; setp.ne.s32 %p1, %r2, %r1;",
        "mov.u32 %r3, 0; elect.sync %r2|%p2, -1; @!%p2 mov.u32 %r3, 1; setp.eq.s32 %p1, %r3, 0;",
        "setp.ne.s32 %p1, %r1, 0; @%p3 setp.ne.s32 %p1, %r1, 5;",
        AS_A_NUMBER.replace("mov.u32 %r3, 0;", "mov.u32 %r4, %r1; mov.u32 %r3, %r4;"),
        AS_A_NUMBER.replace("mov.u32 %r3, 0;", "mov.u32 %r4, 0; @%p3 mov.u32 %r4, 1; mov.u32 %r3, %r4;"),
    ],
)
def test_behind_any_other_question_none_stand(asks: str) -> None:
    assert not arrives(asks)


def test_in_blocks_of_more_than_one_row_thread_0_of_a_row_is_not_lane_0() -> None:
    assert not arrives("setp.ne.s32 %p1, %r1, 0;", "16, 4, 1")
    assert arrives("mov.u32 %r2, %laneid; setp.ne.s32 %p1, %r2, 0;", "16, 4, 1")


def test_what_other_ways_lead_to_is_not_of_one_lane() -> None:
    text = KERNEL.format(asks="setp.ne.s32 %p1, %r1, 0; setp.lt.u32 %p2, %r1, 5; @%p2 bra $in;", threads="32")
    (kernel,) = instrument(text.replace("mbarrier", "$in:\n\tmbarrier"), Selection("all")).kernels
    assert any("only some lanes" in line for line in kernel.left_out)
