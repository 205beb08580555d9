"""Marks that no level has: each on request alone."""

from __future__ import annotations

import re

import pytest

from tests.unit.instrument.test_marks import names, sites_of
from warplens.errors import UsageError
from warplens.instrument import Instrumented, Selection, instrument

KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 n)
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.reg .f32 %f<9>;
	.reg .pred %p<9>;
	.loc 1 10 0
	ld.param.u64 %rd1, [n];
	mov.u32 %r1, 0;
$turn:
	.loc 1 11 0
	ld.global.f32 %f1, [%rd1];
	add.s64 %rd2, %rd1, 4;
	ld.global.nc.v2.u64 {%rd3, %rd4}, [%rd2];
	add.s64 %rd3, %rd3, 1;
	.loc 1 12 0
	st.global.f32 [%rd1], %f1;
	st.global.u64 [%rd2], %rd3;
	red.global.add.u32 [%rd1], 1;
	atom.shared.add.u32 %r2, [%r1], 1;
	add.s32 %r1, %r1, 1;
	setp.lt.s32 %p1, %r1, 9;
	@%p1 bra $turn;
	ret;
}
.file 1 "k.cu"
"""


def marked(*also: str, sites: str | None = None) -> Instrumented:
    return instrument(KERNEL, Selection("all", sites, also=also))


@pytest.mark.parametrize(
    ("also", "found"),
    [
        ((), ["k.cu:10-12 load, store, atomic"]),
        (("stores",), ["k.cu:10-12 load, store, atomic", "k.cu:12 store"]),  # two in a row are one mark
        (("atomics",), ["k.cu:10-12 load, store, atomic", "k.cu:12 atomic"]),  # none of shared memory
        (("loops",), ["k.cu:10-12 load, store, atomic", "k.cu:12 next turn"]),
        (("lines",), ["k.cu:10-11 issue load", "k.cu:12 store, atomic"]),
        (("loads",), ["k.cu:10-11 issue load", "k.cu:11 wait load", "k.cu:11-12 store, atomic"]),
    ],
)
def test_what_is_asked_for_is_marked_and_nothing_else(also: tuple[str, ...], found: list[str]) -> None:
    assert names(marked(*also)) == found


def test_a_phase_that_reads_nothing_of_what_it_loads_issues_the_load() -> None:
    """Nothing in it waits for that; the latency shows where the value is read."""
    (apart, _), (together,) = names(marked("lines")), names(marked())
    assert (apart, together) == ("k.cu:10-11 issue load", "k.cu:10-12 load, store, atomic")


def test_behind_loads_the_clock_waits_for_each_value_of_the_run() -> None:
    text = marked("loads").text
    pinned = text[text.index("ld.global.nc.v2") : text.index("add.s64 %rd3, %rd3, 1;")]
    assert "mov.b32 %wl_r3, %f1;" in pinned
    assert "mov.b64 {%wl_r3, %wl_r6}, %rd3;" in pinned
    assert pinned.index("%rd3;") < pinned.rindex("%clock")
    assert pinned.count("%clock") == 2  # where it begins to wait, and when all is there


def test_a_load_that_is_used_before_the_next_one_is_waited_for_by_itself() -> None:
    text = KERNEL.replace(
        "ld.global.nc.v2.u64 {%rd3, %rd4}, [%rd2];", "add.f32 %f1, %f1, %f1;\n\tld.global.u64 %rd3, [%rd2];"
    )
    waits = [site for site in sites_of(instrument(text, Selection(also=("loads",)))) if site["kind"] == "wait"]
    assert [site["resource"] for site in waits] == ["loads", "loads"]


def test_names_and_kinds_choose_among_them() -> None:
    assert names(marked("stores", "atomics", sites="atomic")) == ["k.cu:10-12 load, store, atomic", "k.cu:12 atomic"]
    assert len(sites_of(instrument(KERNEL, Selection("all", kinds=("wait",), also=("loads", "stores"))))) == 3
    with pytest.raises(UsageError, match="also 'line': expected some of loads, stores, atomics, loops, lines"):
        Selection(also=("line",))


@pytest.mark.parametrize(
    ("loads", "pins"),
    [
        ("ld.global.s32 %rd5, [%rd1];", ["mov.b64 {%wl_r3, %wl_r6}, %rd5;"]),  # wider than what is loaded
        ("ld.global.v4.b32 {_, %r3, _, _}, [%rd1];", ["mov.b32 %wl_r3, %r3;"]),
        (".reg .v4 .b32 %v; ld.global.v4.b32 %v, [%rd1];", ["mov.b32 %wl_r3, %v.x;"]),
        ("{ .reg .b32 own; ld.global.b32 own, [%rd1]; }", []),
        ("{ .reg .b64 %rd5; ld.global.b64 %rd5, [%rd1]; }", []),  # it is not the %rd5 that can be named behind
        ("ld .global .s32 %r3, [%rd1];", ["mov.b32 %wl_r3, %r3;"]),
        ("ld.volatile.global.s32 %r3, [%rd1];", ["mov.b32 %wl_r3, %r3;"]),
    ],
)
def test_what_is_waited_for_is_named_as_it_was_declared(loads: str, pins: list[str]) -> None:
    before, _, behind = KERNEL.partition("	ld.global.f32")
    found = instrument(f"{before}{loads}{behind[behind.index('add.s64 %rd3') :]}", Selection(also=("loads",)))
    text = found.text[found.text.index(loads) :]
    assert [line.strip() for line in text.splitlines() if re.match(r"\s*mov.b\d\d \{?%wl_r3", line)] == pins
    assert bool(pins) != ("1 loads not marked: what they load cannot be named there" in found.kernels[0].left_out)
