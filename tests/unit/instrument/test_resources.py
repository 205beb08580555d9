"""What waits, arrivals and issues of PTX name as their resource, for who draws arrows between them."""

from __future__ import annotations

import pytest

from warplens.instrument import Selection, instrument

KERNEL = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 n) .maxntid 128, 1, 1
{{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.reg .pred %p<9>;
	.shared .align 8 .b64 full;
	.shared .align 8 .b8 _ZZ1kPfE5empty[32];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, full;
	mov.u32 %r3, _ZZ1kPfE5empty;
	shl.b32 %r4, %r1, 3;
	add.s32 %r5, %r3, %r4;
	setp.lt.u32 %p1, %r1, 40;
	{body}
	bar.sync 0;
	ret;
}}
"""


def sites(body: str) -> list[tuple[str, str]]:
    """Kind and resource of what is marked but for begin and barrier."""
    (kernel,) = instrument(KERNEL.format(body=body), Selection("all")).kernels
    assert kernel.site_set is not None
    found = [(site["kind"], site["resource"]) for site in kernel.site_set["sites"] if site["kind"] != "phase"]
    return [own for own in found if own != ("wait", "barrier 0")]


COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r2];", ("arrive", "mbarrier full")),
        ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5+16], 64;", ("arrive", "mbarrier empty+16[]")),
        ("@%p1 mbarrier.arrive.shared.b64 _, [%r2];", ("arrive", "mbarrier full")),
        ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];", ("mark", "mbarrier full")),
        (f"{COPY} [%r4], [%rd1], 64, [%r2];", ("mark", "mbarrier full")),
        (f"{COPY}.multicast::cluster [%r4], [%rd1], 64, [%r2], 3;", ("mark", "remote mbarrier full")),
        (
            "mapa.shared::cluster.u32 %r6, %r2, 1;\n\tmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];",
            ("arrive", "remote mbarrier full"),
        ),
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];", ("arrive", "remote mbarrier")),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];", ("mark", "mbarrier full")),
    ],
)
def test_who_arrives_where(body: str, found: tuple[str, str]) -> None:
    assert sites(body) == [found]


MADE = "mbarrier.init.shared.b64 [%r3], {};\n\tmbarrier.init.shared.b64 [%r3+8], {};\n\t"
WAIT = "$ask:\n\tmbarrier.try_wait.parity.shared.b64 %p2, [%r5], %r1;\n\t@!%p2 bra $ask;"


@pytest.mark.parametrize(("counts", "stages"), [((2, 2), "4"), ((2, 1), ""), ((2, "%r4"), "")])
def test_how_many_barriers_a_ring_has_is_told_where_all_wait_for_as_many_arrivals(
    counts: tuple[object, object], stages: str
) -> None:
    assert sites(MADE.format(*counts) + WAIT) == [("wait", f"mbarrier empty[{stages}]")]
    assert sites(WAIT) == [("wait", "mbarrier empty[]")]  # made elsewhere


def test_copies_for_two_barriers_in_a_row_are_two_issues() -> None:
    own, other = f"{COPY} [%r4], [%rd1], 64, [%r2];", f"{COPY} [%r4], [%rd1], 64, [%r3];"
    assert sites(f"{own}\n\t{own}\n\t{other}") == [("mark", "mbarrier full"), ("mark", "mbarrier empty")]


def test_two_variables_of_one_name_keep_their_whole_names() -> None:
    text = "mbarrier.arrive.shared.b64 _, [_ZZ1kPfE5empty];\n\tmbarrier.arrive.shared.b64 _, [_ZZ1jPfE5empty];"
    assert sites(text) == [("arrive", "mbarrier empty"), ("arrive", "mbarrier _ZZ1jPfE5empty")]


def arrivals(body: str) -> list[tuple[str, int | None]]:
    """Kind and arrivals of what is marked but for begin and barrier."""
    (kernel,) = instrument(KERNEL.format(body=body), Selection("all")).kernels
    assert kernel.site_set is not None
    found = [(site["kind"], site["arrivals"]) for site in kernel.site_set["sites"] if site["kind"] != "phase"]
    return found[:-1]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("mbarrier.arrive.shared.b64 _, [%r2];", 32),
        ("mbarrier.arrive.shared.b64 _, [%r2], 2;", 64),
        ("mbarrier.arrive.shared.b64 _, [%r2], %r1;", None),
        ("mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 4096;", None),  # what brings the bytes is not marked
        ("mbarrier.arrive_drop.shared.b64 _, [%r2];", None),
        ("@%p1 mbarrier.arrive.shared.b64 _, [%r2];", None),  # a warp has lanes below and above 40
        ("setp.eq.s32 %p2, %r1, 32;\n\t@%p2 mbarrier.arrive.shared.b64 _, [%r2];", 1),  # from any lane
        ("elect.sync %r7|%p2, -1;\n\t@%p2 mbarrier.arrive.shared.b64 _, [%r2];", 1),
        # Of one lane at first, and then of all.
        (
            "setp.eq.s32 %p2, %r1, 32;\n\tbar.red.or.pred %p2, 1, %p2;\n\t@%p2 mbarrier.arrive.shared.b64 _, [%r2];",
            None,
        ),
        ("setp.lt.u32 %p2, %r1, 64;\n\t@%p2 mbarrier.arrive.shared.b64 _, [%r2];", 32),  # whole warps
        ("@%p1 ret;\n\tmbarrier.arrive.shared.b64 _, [%r2];", None),
        ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];", 32),
        ("cp.async.mbarrier.arrive.shared.b64 [%r2];", 0),  # expects one more as it is asked for
        (f"{COPY} [%r4], [%rd1], 64, [%r2];", 0),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];", 32),
    ],
)
def test_how_many_arrivals_a_warp_makes(body: str, found: int | None) -> None:
    assert [own for kind, own in arrivals(body) if kind != "wait"] == [found]


def test_an_arrival_that_announces_bytes_is_counted_where_what_brings_them_is_marked() -> None:
    expect = "mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 64;"
    assert arrivals(f"{expect}\n\t{COPY} [%r4], [%rd1], 64, [%r2];") == [("arrive", 32), ("mark", 0)]
    assert arrivals(f"{expect}\n\t{COPY} [%r4], [%rd1], 64, [%r3];") == [("arrive", None), ("mark", 0)]
    alone = "mbarrier.expect_tx.relaxed.cta.shared.b64 [{}], 64;\n\tmbarrier.arrive.shared.b64 _, [%r2];"
    assert arrivals(alone.format("%r2")) == [("arrive", None)]
    assert arrivals(alone.format("%r3")) == [("arrive", 32)]  # for another barrier
    assert arrivals(f"{alone.format('%r2')}\n\t{COPY} [%r4], [%rd1], 64, [%r2];") == [("arrive", 32), ("mark", 0)]


def test_a_run_of_issues_makes_the_arrivals_of_all() -> None:
    issue = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];"
    assert arrivals(f"{issue}\n\t{issue}") == [("mark", 64)]
    assert arrivals(f"{issue}\n\t@%p1 {issue}") == [("mark", None)]


@pytest.mark.parametrize(
    ("made", "wait", "found"),
    [
        ("mbarrier.init.shared.b64 [%r2], 3;", "[%r2]", 3),
        ("mov.u32 %r6, 5;\n\tmbarrier.init.shared.b64 [%r2], %r6;", "[%r2]", 5),
        ("mbarrier.init.shared.b64 [%r2], %r1;", "[%r2]", None),
        ("mbarrier.init.shared.b64 [%r3], 3;\n\tmbarrier.init.shared.b64 [%r3+8], 1;", "[%r3+8]", 1),
        ("mbarrier.init.shared.b64 [%r3], 3;\n\tmbarrier.init.shared.b64 [%r3+8], 1;", "[%r5]", None),
        ("mbarrier.init.shared.b64 [%r3], 3;\n\tmbarrier.init.shared.b64 [%r3+8], 3;", "[%r5]", 3),
        ("mbarrier.init.shared.b64 [%r3], 3;\n\tmbarrier.init.shared.b64 [%r2], 1;", "[%r5]", 3),
        ("mbarrier.init.shared.b64 [%r2], 3;\n\tmbarrier.init.shared.b64 [%r4], 1;", "[%r2]", None),  # anywhere
        ("mbarrier.init.shared.b64 [%r2], 3;\n\tmbarrier.arrive_drop.shared.b64 _, [%r2];", "[%r2]", None),
        ("mbarrier.init.shared.b64 [%r2], 3;\n\tmbarrier.init.shared.b64 [%r2], 4;", "[%r2]", None),  # made anew
        ("", "[%r2]", None),
    ],
)
def test_how_many_arrivals_a_wait_is_for(made: str, wait: str, found: int | None) -> None:
    body = f"{made}\n$ask:\n\tmbarrier.try_wait.parity.shared.b64 %p2, {wait}, %r1;\n\t@!%p2 bra $ask;"
    assert [own for kind, own in arrivals(body) if kind == "wait"] == [found]
    (kernel,) = instrument(KERNEL.format(body=body), Selection("all")).kernels
    told = "1 waits at mbarriers get no arrows: how many arrivals end a phase is not known"
    assert (told in kernel.left_out) == (found is None)
    (kernel,) = instrument(KERNEL.format(body=body)).kernels
    assert told not in kernel.left_out  # no arrival is marked at this level


@pytest.mark.parametrize(
    ("callee", "found"),
    [
        (".func f () { mbarrier.init.shared.b64 [full], 7; ret; }", None),
        (".func f () { bar.sync 0; ret; }", 3),
        (".extern .func f ();", None),
    ],
)
def test_barriers_that_a_function_makes_may_be_those_that_a_kernel_waits_at(callee: str, found: int | None) -> None:
    body = "mbarrier.init.shared.b64 [%r3], 3;\n\tcall f, ();\n\t" + WAIT
    text = KERNEL.format(body=body).replace(".visible", callee + "\n.visible", 1)
    (kernel,) = instrument(text, Selection("all")).kernels
    assert kernel.site_set is not None
    assert [site["arrivals"] for site in kernel.site_set["sites"] if site["resource"].startswith("mbarrier")] == [found]
