"""Arrows from waits to arrivals, payloads, corrected times and the audit, worked in Chromium."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import warplens
from tests import synthesis
from tests.browser.conftest import Open
from tests.browser.driving import choose, fields, place_of, span, view
from tests.unit.render import fake
from warplens.trace import Trace

pytestmark = pytest.mark.browser

RECORDING = Path(__file__).parents[2] / "recordings" / "rmsnorm_528x5120_h200.wlens"
PIPE = [("work", "phase", ""), ("full", "wait", "full"), ("filled", "arrive", "full"), ("sync", "wait", "bar")]


def pipeline() -> Any:
    """Warp 0 waits for a stage that warps 1 and 2 fill (id 7), then both wait for warp 2 at a barrier."""
    rows = [{"warp": 0, "site": 1, "start": 0, "end": 250, "id": 7}, {"warp": 0, "site": 3, "start": 250, "end": 600}]
    rows += [
        {"warp": 1, "site": 2, "start": 100, "end": 100, "id": 7},
        {"warp": 1, "site": 3, "start": 300, "end": 600},
    ]
    rows += [
        {"warp": 2, "site": 2, "start": 200, "end": 200, "id": 7},
        {"warp": 2, "site": 0, "start": 210, "end": 550},
    ]
    rows += [{"warp": 2, "site": 3, "start": 550, "end": 600}]
    trace = fake.of_spans(rows, PIPE)
    return replace(trace, launches=trace.launches.with_columns(warps_per_block=pl.lit(3, pl.UInt16)))


def of(tab: Any, warp: int, site: int) -> int:
    """The first span of a warp at a site."""
    where = "([w, s]) => warplens.model.site.findIndex((x, i) => x === s && warplens.model.span(i).warp === w)"
    return int(tab.evaluate(where, [warp, site]))


def dashes(tab: Any) -> list[bool]:
    """Whether each line of the last drawing of arrows was dashed."""
    return list(
        tab.evaluate(
            """() => {
              const context = warplens.contexts.strokes, seen = [], stroke = context.stroke;
              const lineTo = context.lineTo; let lines = 0;
              context.lineTo = function (...a) { lines++; return lineTo.apply(this, a); };
              const begin = context.beginPath;
              context.beginPath = function () { lines = 0; return begin.call(this); };
              context.stroke = function () {
                if (lines === 1) seen.push(this.getLineDash().length > 0);
                return stroke.call(this);
              };
              warplens.drawNow();
              delete context.stroke; delete context.lineTo; delete context.beginPath;
              return seen;
            }"""
        )
    )


def test_a_recorded_arrival_is_a_whole_line_and_an_inferred_one_is_dashed(opened: Open) -> None:
    tab = opened(pipeline())
    choose(tab, of(tab, 0, 1))
    assert fields(tab)["ended by"] == (
        "recorded (id 7): warp 2, filled, the last of 2 to arrive, 50 cycles before the end"
    )
    assert set(dashes(tab)) == {False}
    choose(tab, of(tab, 1, 3))
    assert fields(tab)["ended by"] == (
        "inferred from the order of rounds: warp 2, sync, the last of 3 to arrive, 50 cycles before the end"
    )
    assert set(dashes(tab)) == {True}
    choose(tab, of(tab, 2, 3))
    assert fields(tab)["ended by"] == "inferred from the order of rounds: its own warp, the last of 3 to arrive"
    assert dashes(tab) == []
    assert not tab.locator("#arrival").is_visible()
    choose(tab, of(tab, 2, 0))
    assert "ended by" not in fields(tab)


def test_a_click_on_the_head_the_button_and_j_go_to_the_arrival(opened: Open) -> None:
    tab = opened(pipeline())
    wait, arrival = of(tab, 0, 1), of(tab, 2, 2)
    tab.locator("#stage").focus()
    choose(tab, wait)
    tab.keyboard.press("j")
    assert view(tab)["selected"] == arrival
    tab.keyboard.press("j")
    assert view(tab)["selected"] == wait
    tab.click("#arrival")
    assert view(tab)["selected"] == arrival
    choose(tab, wait)
    tab.evaluate("warplens.drawNow()")
    x, y = tab.evaluate("[warplens.heads[0].x, warplens.heads[0].y]")
    box = tab.locator("#stage").bounding_box()
    tab.mouse.move(box["x"] + x + 2, box["y"] + y)
    assert tab.locator("#tip").inner_text() == "the arrival: filled, warp 2\nclick to go there"
    tab.mouse.click(box["x"] + x + 2, box["y"] + y)
    assert view(tab)["selected"] == arrival
    choose(tab, of(tab, 2, 0))
    tab.keyboard.press("j")
    assert (
        tab.locator("#status").inner_text()
        == "no arrival to go to: this span neither waits nor was ended by another warp"
    )


def test_a_range_that_another_warp_ended_has_a_whole_arrow_to_that_warp(opened: Open) -> None:
    sites = [("work", "phase", ""), ("copy", "range", "")]
    joined = {"id": 9, "flags": 16}
    rows = [{"warp": 0, "site": 1, "start": 100, "end": 400, "end_block": 0, "end_warp": 1, **joined}]
    rows += [{"warp": 0, "site": 0, "start": 0, "end": 500}, {"warp": 1, "site": 0, "start": 0, "end": 300}]
    rows += [{"warp": 1, "site": 0, "start": 300, "end": 600}]
    rows += [{"warp": 2, "site": 1, "start": 200, "end": 450, "end_block": 7, "end_warp": 3, **joined}]
    tab = opened(fake.of_spans(rows, sites))
    choose(tab, of(tab, 0, 1))
    assert fields(tab)["ended by"] == "recorded (id 9): warp 1"
    assert set(dashes(tab)) == {False}
    tab.keyboard.press("j")
    assert span(tab, view(tab)["selected"])["startNs"] == "300"  # what warp 1 was in at 400
    tab.keyboard.press("r")
    choose(tab, of(tab, 2, 1))
    assert fields(tab)["ended by"] == "recorded (id 9): warp 3 of block 7, which this page does not show"
    assert len(dashes(tab)) == 2  # the one of warp 0 alone, over its line of the page's colour


def test_r_draws_the_arrows_of_all_waits_in_view_where_they_are_few_enough(opened: Open) -> None:
    trace = warplens.open(RECORDING)
    tab = opened(trace)
    tab.keyboard.press("r")
    assert tab.get_attribute("#arrows", "aria-pressed") == "true"
    tab.evaluate("warplens.drawNow()")
    assert tab.evaluate("warplens.heads.length") == 0  # a launch has thousands: it says so
    tab.fill("#filter-block", "400")
    tab.evaluate("warplens.drawNow()")
    assert tab.evaluate("warplens.heads.length") == 2 * 19  # of 20 warps at two barriers all but the last to come
    shown = "(s, i) => s === 3 && warplens.shown(i) && warplens.model.arrivals.of(i).arrival !== i"
    choose(tab, tab.evaluate(f"warplens.model.site.findIndex({shown})"))
    assert len(dashes(tab)) == 2 * 39  # a line of the page's colour below each
    tab.wait_for_timeout(600)
    other = opened(trace, hash_=tab.evaluate("location.hash"))
    assert other.get_attribute("#arrows", "aria-pressed") == "true"
    tab.click("#arrows")
    tab.evaluate("warplens.drawNow()")
    assert tab.evaluate("warplens.heads.length") == 1


def test_every_wait_of_a_real_recording_shows_the_arrival_that_the_tables_give(opened: Open) -> None:
    trace = warplens.open(RECORDING)
    tab = opened(trace)
    for warp in (0, 7, 19):
        index = tab.evaluate(
            "w => warplens.model.site.findIndex((x, i) => x === 3 && warplens.model.span(i).warp === w)", warp
        )
        seen = span(tab, index)
        waits = trace.spans.filter((pl.col("site") == 3) & (pl.col("block") == seen["block"])).sort("start_cycles")
        last = waits.row(-1, named=True)
        told = tab.evaluate("i => warplens.model.arrivals.of(i)", index)
        assert (told["basis"], told["of"]) == ("INFERRED", 20)
        assert span(tab, told["arrival"])["warp"] == last["warp"]
        assert span(tab, told["arrival"])["startCycles"] == str(last["start_cycles"])


def test_a_withheld_arrow_says_why(opened: Open) -> None:
    trace = pipeline()
    lost = trace.spans.filter((pl.col("warp") != 2) | (pl.col("site") != 3))
    cut = pl.when(pl.col("site") == 0).then(2).otherwise(0).cast(pl.UInt16)
    tab = opened(replace(trace, spans=lost.with_columns(flags=cut)))
    choose(tab, of(tab, 0, 3))
    assert fields(tab)["ended by"].startswith("not known: records of this block are missing or in doubt")
    assert dashes(tab) == []
    tab.keyboard.press("j")
    assert "records of this block are missing" in tab.locator("#status").inner_text()


def test_a_filter_of_payloads_leaves_their_spans_alone(opened: Open) -> None:
    trace = Trace.from_recording(synthesis.nested_recording(blocks=2, warps=4, iterations=6, distinct=3))
    tab = opened(trace)
    assert tab.locator("#payload-label").is_visible()
    tab.fill("#filter-payload", "3,0xf-0x10")
    wanted = trace.spans.filter(pl.col("payload").is_in([3, 15, 16])).height
    assert tab.evaluate("warplens.strips.passing.reduce((a, b) => a + b)") == wanted
    seen = [i for i in range(trace.spans.height) if tab.evaluate("i => warplens.shown(i)", i)]
    assert {tab.evaluate("i => warplens.model.span(i).payload", i) for i in seen} <= {3, 15, 16}
    assert len(seen) == wanted
    payload = "warplens.model.payloadValid(i) && warplens.model.payload(i) === 0"
    other = tab.evaluate(f"warplens.model.site.findIndex((_, i) => {payload})")
    tab.mouse.click(*place_of(tab, other))
    assert view(tab)["selected"] != other
    tab.mouse.click(*place_of(tab, seen[0]))
    assert view(tab)["selected"] == seen[0]
    tab.fill("#filter-payload", "x")
    assert not tab.evaluate("document.getElementById('filter-payload').checkValidity()")
    tab.click("#clear")
    assert tab.evaluate("warplens.strips.passing") is None
    tab.mouse.click(*place_of(tab, other))
    assert view(tab)["selected"] == other


def test_a_trace_without_payloads_and_waits_has_no_controls_for_them(opened: Open) -> None:
    tab = opened(fake.of_spans([{"start": 0, "end": 50}]))
    assert not tab.locator("#payload-label").is_visible()
    assert not tab.locator("#arrows").is_visible()


def test_the_panel_shows_the_corrected_duration_with_its_uncertainty_or_that_there_is_none(opened: Open) -> None:
    trace = fake.of_spans([{"start": 0, "end": 25}, {"start": 25, "end": 60}])
    tab = opened(trace)
    choose(tab, 0)
    assert fields(tab)["corrected"] == "not corrected"
    columns = {"corrected_ns": pl.Series([21, None]), "corrected_uncertainty_ns": pl.Series([1.2, None])}
    tab = opened(replace(trace, spans=trace.spans.with_columns(**columns)))
    choose(tab, 0)
    assert fields(tab)["corrected"] == "21 ± 2 ns"
    assert fields(tab)["duration"] == "25 cycles · 25 ns"
    choose(tab, 1)
    assert fields(tab)["corrected"] == "not corrected"


def test_the_audit_of_the_marks_is_a_table_that_leads_to_the_sites(opened: Open) -> None:
    rows: list[dict[str, Any]] = [
        {"site": 0, "verb": "phase", "file": "rmsnorm.cu", "line": 31, "address": 0x1A0, "outstanding_loads": 4},
        {"site": 3, "verb": "wait", "finding": "<b>loads land behind it</b>", "severity": "warning", "waits_on": "SB0"},
        {"site": None, "verb": "end", "address": None, "outstanding_loads": None},
    ]
    trace = replace(fake.rmsnorm(blocks=1, sms=1, warps=2, resident=1), audit=fake.audit_frame(rows))
    tab = opened(trace)
    assert tab.locator("#audit-count").inner_text() == "audit of the marks in the machine code: 3 marks, 1 finding"
    first, second, third = tab.locator("#audit tr").all()
    assert third.locator("td, th").all_inner_texts() == ["-", "-", "end", "-", "-", "-", "-", "-"]
    assert first.locator("td, th").all_inner_texts() == (
        ["warning", "barrier_sum", "wait", "-", "-", "-", "SB0", "<b>loads land behind it</b>"]
    )
    assert second.locator("td, th").all_inner_texts() == (
        ["-", "load_sumsq", "phase", "rmsnorm.cu:31", "0x1a0", "4", "-", "-"]
    )
    first.locator("button").click()
    assert view(tab)["site"] == 3
    assert not opened(fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)).locator("#marks").is_visible()
