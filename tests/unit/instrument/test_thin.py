"""A budget of events: which sites go, by the counts of a first run that the CPU makes (tests/ptx_machine.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.instrument.test_recorder import run
from warplens.analyze.events import events_by_site
from warplens.errors import UsageError
from warplens.instrument import Budget, Selection, instrument

KERNEL = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n)
.reqntid 64
{
	.reg .b32 %r<4>;
	.reg .pred %p1;
	ld.param.u32 %r1, [n];
	mov.u32 %r2, 0;
	bar.sync 0;
	st.global.u32 [1024], %r2;
$again:
	bar.sync 1;
	st.global.u32 [1024], %r2;
	cp.async.wait_all;
	bar.sync 2;
	st.global.u32 [1024], %r2;
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $again;
	bar.sync 0;
	st.global.u32 [1024], %r2;
	ret;
}
"""
TURNS = 10
BEGIN, FIRST, AFTER = "ptx:10", "ptx:12 wait barrier 0", "ptx:13 store"
LAST, END = "ptx:23 wait barrier 0", "ptx:24 store"
ONE, COPIES, TWO = "ptx:15 wait barrier 1", "ptx:17 wait cp.async", "ptx:18 wait barrier 2"


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    """Of a run of two warps: 20 events of each site in the loop, 2 of each other."""
    return dict(events_by_site(run(KERNEL, turns=TURNS).trace))


def thinned(budget: str, counts: dict[str, Any], text: str = KERNEL, **selection: Any) -> tuple[list[str], list[str]]:
    """Names of the sites that stay, and what is said."""
    (kernel,) = instrument(text, Selection(budget=Budget.of(budget, counts), **selection)).kernels
    assert kernel.site_set is not None
    return [site["name"] for site in kernel.site_set["sites"]], kernel.left_out


def test_a_trace_is_counted_by_set_and_site(counts: dict[str, Any]) -> None:
    launches, events = counts["k"]
    assert launches == 1
    assert events == {
        **dict.fromkeys((BEGIN, FIRST, AFTER, LAST, END), 2),
        **dict.fromkeys((ONE, "ptx:16 store", COPIES, TWO, "ptx:19 store"), 20),
    }


@pytest.mark.parametrize(
    ("budget", "gone", "stay"),
    [
        ("100%", [], 110),
        ("110", [], 110),
        ("80%", [ONE], 70),  # its phase goes with it
        ("50", [ONE, COPIES], 50),  # the phase behind the copies had been counted to the next wait
        ("30", [ONE, COPIES, TWO], 10),
        ("9", [ONE, COPIES, TWO, FIRST], 6),  # out of loops, when nothing else is left
    ],
)
def test_sites_with_most_events_in_loops_go_first(
    budget: str, gone: list[str], stay: int, counts: dict[str, Any]
) -> None:
    names, told = thinned(budget, counts)
    assert [line for line in told if "left out for the budget" in line] == [
        f"left out for the budget: {name}: {counts['k'][1][name]} events a launch" for name in gone
    ]
    assert told[-1] == f"{stay} of 110 events a launch stay, by the counts of the first run"
    assert set(names).isdisjoint(gone)
    waits = [name for name in (FIRST, ONE, COPIES, TWO, LAST) if name not in gone]
    assert [name for name in names if " wait " in name] == waits  # as the first run called them


def test_a_run_of_what_stays_makes_as_many_events_as_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = events_by_site(run(KERNEL, turns=TURNS).trace)
    limit = Budget.of("50", counts)
    monkeypatch.setattr("tests.unit.instrument.test_recorder.Selection", lambda level: Selection(level, budget=limit))
    trace = run(KERNEL, turns=TURNS).trace
    assert trace.spans.height == 50
    assert trace.problems.filter(trace.problems["severity"] != "note").is_empty()


def test_a_budget_that_cannot_be_kept_is_told(counts: dict[str, Any]) -> None:
    names, told = thinned("1", counts)
    assert len(names) == 1
    assert told[-1] == "2 of 110 events a launch stay, by the counts of the first run: the budget of 1 cannot be kept"


def test_what_the_first_run_did_not_mark_stays_and_is_told(counts: dict[str, Any]) -> None:
    names, told = thinned("10%", counts, also=("stores",))
    assert "ptx:16 store (2)" in names  # the mark; the phase has the plain name
    assert told[-1].startswith("not counted in the first run, and not left out: ptx:")
    for other in ({}, {"other": counts["k"]}):
        assert thinned("10%", other)[1] == ["no budget is kept: the first run did not count it"]
    assert thinned("10%", {"k": [1, {"k.cu:7": 3}]})[1] == ["no budget is kept: the first run counted other sites"]


def test_marks_of_the_source_stay(counts: dict[str, Any]) -> None:
    text = KERNEL.replace("\tbar.sync 1;", "\t// warplens.mark mark 6d696e65\n\tbar.sync 1;")
    first = {"k": [1, dict.fromkeys([*counts["k"][1], "mine"], 20)]}
    names, told = thinned("1%", first, text)
    assert "mine" in names
    assert not any("mine" in line for line in told)


def test_instants_and_lines_of_the_source_go_by_themselves(counts: dict[str, Any]) -> None:
    (kernel,) = instrument(KERNEL, Selection("all", also=("stores", "loops"))).kernels
    assert kernel.site_set is not None
    every = [site["name"] for site in kernel.site_set["sites"]]
    turn = "ptx:22 next turn"
    first = {"k": [1, dict.fromkeys(every, 2) | {turn: 1000}]}
    names, told = thinned("10%", first, level="all", also=("stores", "loops"))
    assert turn not in names
    assert set(names) == set(every) - {turn}
    assert told[0] == f"left out for the budget: {turn}: 1,000 events a launch"
    assert counts


def test_sets_of_several_builds_of_a_kernel_count_together() -> None:
    own = {"k": [1, {"a": 10}], "k_0123abcd": [3, {"a": 30, "b": 4}], "k_2": [1, {"a": 5}], "kk": [1, {"a": 7}]}
    assert Budget.of("5", own).of_kernel("k") == {"a": 9.0, "b": 0.8}
    assert Budget.of("5", {"k_x": [1, {"a": 3}]}).of_kernel("k.x") == {"a": 3.0}
    assert Budget.of("5", {"k": [0, {}]}).of_kernel("k") == {}


@pytest.mark.parametrize("text", ["", "half", "-3", "101%", "5 %", "1e3"])
def test_a_budget_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a part of the first run's events"):
        Budget.of(text, {})
