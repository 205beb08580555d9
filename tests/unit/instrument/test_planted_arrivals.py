"""Each kind of arrival at an mbarrier, planted in a kernel that the CPU runs: which waits get an arrow, and why not.

Warp 0 arrives three times and then warp 1 waits three times (tests/ptx_machine.py runs one warp after the other, so all
arrivals are in time). Where a parity lets a wait pass for the phase before its own, the warp that waits arrives too.
"""

from __future__ import annotations

import pytest

from tests.unit.instrument.test_recorder import run
from warplens.analyze.arrivals import Basis, find_arrivals

KERNEL = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n)
.reqntid 64
{{
	.reg .b32 %r<9>;
	.reg .pred %p<9>;
	.shared .align 8 .b64 bar;
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x;
	shr.u32 %r3, %r2, 5;
	mbarrier.init.shared.b64 [bar], {count};
	mov.u32 %r4, 0;
	setp.ne.u32 %p1, %r3, 0;
	@%p1 bra $waits;
$again:
	{arrives}
	st.global.u32 [1024], %r4;
	add.u32 %r4, %r4, 1;
	setp.lt.u32 %p2, %r4, %r1;
	@%p2 bra $again;
	ret;
$waits:
	and.b32 %r5, %r4, 1;
$ask:
	mbarrier.try_wait.parity.shared.b64 %p3, [bar], %r5;
	@!%p3 bra $ask;
	st.global.u32 [1024], %r4;
	add.u32 %r4, %r4, 1;
	setp.lt.u32 %p2, %r4, %r1;
	@%p2 bra $waits;
	ret;
}}
"""
ARRIVE = "mbarrier.arrive.shared.b64 _, [bar];"
REMOTE = "mapa.shared::cluster.u32 %r6, bar, 1;\n\tmbarrier.arrive.shared::cluster.b64 _, [%r6];"
FROM_LANE = "setp.ne.u32 %p4, %r2, {};\n\t@%p4 bra $over;\n\t" + ARRIVE + "\n$over:"

WAITS_FIRST = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n)
.reqntid 64
{
	.reg .b32 %r<9>;
	.reg .pred %p<9>;
	.shared .align 8 .b64 bar;
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x;
	setp.ge.u32 %p1, %r2, 32;
	@%p1 ret;
	mbarrier.init.shared.b64 [bar], 32;
	mov.u32 %r4, 0;
$waits:
	not.b32 %r5, %r4;
	and.b32 %r5, %r5, 1;
$ask:
	mbarrier.try_wait.parity.shared.b64 %p3, [bar], %r5;
	@!%p3 bra $ask;
	st.global.u32 [1024], %r4;
	mbarrier.arrive.shared.b64 _, [bar];
	add.u32 %r4, %r4, 1;
	setp.lt.u32 %p2, %r4, %r1;
	@%p2 bra $waits;
	ret;
}
"""
"""As a producer waits for a stage that is free at first: the first wait asks for the parity of no phase yet."""


def told(arrives: str, count: object) -> tuple[Basis, list[int]]:
    """How the arrivals of warp 1's three waits are known, and which span of warp 0's events each is."""
    trace = run(KERNEL.format(arrives=arrives, count=count), turns=3).trace
    found = find_arrivals(trace.spans, trace.blocks, trace.launches, trace.sites)
    assert len(found.wait) == 3
    (basis,) = set(found.basis.tolist())
    rows = trace.spans.with_row_index()
    resource = trace.sites["resource"].gather(trace.spans["site"])
    there = rows.filter((rows["warp"] == 0) & resource.str.ends_with("mbarrier bar"))["index"].to_list()
    return Basis(basis), [-1 if own < 0 else there.index(own) for own in found.arrival.tolist()]


@pytest.mark.parametrize(
    ("arrives", "count"),
    [
        (ARRIVE, 32),  # each lane of the warp
        (ARRIVE.replace(";", ", 2;"), 64),
        (FROM_LANE.format(0), 1),
        ("elect.sync %r6|%p4, -1;\n\t@%p4 " + ARRIVE, 1),
        ("setp.eq.u32 %p4, %r2, 0;\n\t@%p4 " + ARRIVE, 1),
        ("setp.lt.u32 %p4, %r2, 32;\n\t@%p4 " + ARRIVE, 32),  # by the warp's number
    ],
)
def test_arrivals_that_are_as_many_as_the_barrier_was_made_for_give_arrows(arrives: str, count: int) -> None:
    assert told(arrives, count) == (Basis.INFERRED, [0, 1, 2])


@pytest.mark.parametrize(
    ("arrives", "count", "basis"),
    [
        (ARRIVE, 64, Basis.COUNT_DISAGREES),
        (ARRIVE, "%r1", Basis.COUNT_UNKNOWN),
        (FROM_LANE.format(5), 1, Basis.NO_ARRIVAL),  # no mark stands there
        (FROM_LANE.format(5) + "\n\t" + ARRIVE, 33, Basis.COUNT_DISAGREES),
        ("setp.lt.u32 %p4, %r2, 20;\n\t@%p4 " + ARRIVE, 20, Basis.COUNT_UNKNOWN),
        (REMOTE, 32, Basis.REMOTE),
        (
            ARRIVE.replace("arrive.", "arrive.expect_tx.").replace(";", ", 64;"),
            32,
            Basis.COUNT_UNKNOWN,
        ),  # st.async, say
    ],
)
def test_any_other_arrivals_give_none_and_the_reason(arrives: str, count: object, basis: Basis) -> None:
    assert told(arrives, count) == (basis, [-1, -1, -1])


def test_copies_that_hardware_ends_are_bounded_by_their_issue() -> None:
    own = "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];"
    assert told(own, 32) == (Basis.HARDWARE, [0, 1, 2])
    assert told(own, 1) == (Basis.COUNT_DISAGREES, [-1, -1, -1])
    beside = f"cp.async.mbarrier.arrive.shared.b64 [bar];\n\t{ARRIVE}"  # expects one more, and makes it
    assert told(beside, 32) == (Basis.HARDWARE, [0, 2, 4])
    assert told(beside, 64) == (Basis.COUNT_DISAGREES, [-1, -1, -1])


def test_where_parity_lets_the_first_wait_pass_each_later_one_is_for_the_phase_before() -> None:
    trace = run(WAITS_FIRST, turns=3).trace
    found = find_arrivals(trace.spans, trace.blocks, trace.launches, trace.sites)
    assert [Basis(own) for own in found.basis] == [Basis.OPEN, Basis.INFERRED, Basis.INFERRED]
    arrives = trace.sites.with_row_index().filter(trace.sites["kind"] == "arrive")["index"][0]
    there = trace.spans.with_row_index().filter(trace.spans["site"] == arrives)["index"].to_list()
    assert found.arrival.tolist() == [-1, there[0], there[1]]  # the third arrival ends no wait
