"""Pages of odd traces in Chromium: names of strangers, nothing, one of each, very many, very late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests import page as pages
from tests.browser.conftest import Open
from tests.browser.driving import choose, fields, place_of, span, view
from tests.unit.render import fake
from warplens.render.report import report

pytestmark = pytest.mark.browser


def test_names_of_strangers_are_text(opened: Open) -> None:
    trace = fake.renamed(fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1), pages.HOSTILE)
    trace = replace(trace, note=pages.HOSTILE[1], sources={"rmsnorm.cu": "\n" * 12 + pages.HOSTILE[0]})
    trace = replace(trace, launches=trace.launches.with_columns(kernel=pl.lit(pages.HOSTILE[0])))
    tab = opened(trace)
    for index in range(8):
        choose(tab, index)
    tab.keyboard.press("+")
    tab.wait_for_timeout(200)
    assert tab.title() == "trace - warplens"
    assert tab.locator("table.phases th bdi").first.inner_text() == pages.HOSTILE[0]
    assert tab.locator("img").count() == 0
    assert tab.evaluate("document.scripts.length") == 1
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_long_name_of_an_automatic_mark_is_cut_in_its_file(opened: Open) -> None:
    names = [f"a_file_with_a_very_long_name.py:{line} wait barrier 1 (3)" for line in range(51, 59)]
    tab = opened(fake.renamed(fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1), names))
    parts = tab.locator("table.phases tbody tr").nth(1).locator("bdi.at span")
    assert parts.all_inner_texts() == ["a_file_with_a_very_long_name.py", ":52 wait barrier 1 (3)"]
    cut = [part.evaluate("e => e.scrollWidth > e.clientWidth") for part in parts.all()]
    assert cut == [True, False]


def test_markup_cannot_be_made_from_text_on_the_page(chromium: Any, tmp_path: Path) -> None:
    path = report(fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1), tmp_path / "page.html").path
    tab = chromium.new_page()
    tab.goto(path.as_uri())
    refused = tab.evaluate("() => { try { document.body.innerHTML = '<p>'; } catch (e) { return e.name; } }")
    tab.close()
    assert refused == "TypeError"


@pytest.mark.parametrize("shape", ["no span", "one span", "no cycles", "far"])
def test_odd_traces_are_drawn(opened: Open, shape: str) -> None:
    trace = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    if shape == "no span":
        trace = replace(trace, spans=trace.spans.clear(), blocks=trace.blocks.clear())
    elif shape == "one span":
        trace = replace(trace, spans=trace.spans.head(1))
    elif shape == "no cycles":
        zero = pl.lit(0, pl.Int64)
        trace = replace(trace, spans=trace.spans.with_columns(duration_cycles=zero, duration_ns=zero))
    else:
        later = pl.col("start_ns") + (1 << 61)
        ends = pl.col("start_ns", "end_ns") + (1 << 61)
        trace = replace(trace, spans=trace.spans.with_columns(later), blocks=trace.blocks.with_columns(ends))
    tab = opened(trace)
    for key in ("w", "d", "f", "n", "l", "ArrowRight", "Enter", "m", "f", "+", "Escape"):
        tab.locator("#stage").focus()
        tab.keyboard.press(key)
    assert tab.locator("#empty").is_visible() == (shape == "no span")
    if shape == "far":
        tab.evaluate("warplens.view.selected = 0; warplens.view.changed('select')")
        assert fields(tab)["start"] == f"{trace.spans['start_ns'][0]:,} ns"


def many_warps(blocks: int, warps: int) -> Any:
    """`blocks` blocks of `warps` warps of two spans each on 132 SMs; in warp w the second lasts w + 1."""
    base = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    block, warp = (v.ravel() for v in np.mgrid[0:blocks, 0:warps])
    begin = block // 132 * 2000
    columns = {name: np.repeat(v, 2) for name, v in (("block", block), ("warp", warp))}
    start = np.stack([begin, begin + 500], 1).ravel()
    time = np.stack([np.full(len(block), 500), 1 + warp], 1).ravel()
    columns |= {"sequence": np.tile([0, 1], len(block)), "site": np.tile([0, 6], len(block)), "launch": 0 * start}
    columns |= {"start_ns": start, "start_cycles": start, "duration_ns": time, "duration_cycles": time}
    spans = pl.DataFrame({**columns, "depth": 0 * start, "flags": 0 * start}).with_columns(
        payload=None, id=None, end_block=None, end_warp=None, corrected_ns=None, corrected_uncertainty_ns=None
    )
    order = base.spans.columns
    number = np.arange(blocks)
    table = pl.DataFrame(
        {"launch": 0 * number, "block": number, "x": number, "y": 0 * number, "z": 0 * number}
        | {"sm_begin": number % 132, "sm_end": number % 132, "start_ns": number // 132 * 2000}
        | {"end_ns": number // 132 * 2000 + 500 + warps, "warps": 0 * number + warps, "wave": number // 132}
    ).with_columns(cluster=None)
    return replace(
        base,
        spans=spans.select(order).cast(dict(base.spans.schema)),
        blocks=table.select(base.blocks.columns).cast(dict(base.blocks.schema)),
    )


def test_a_hundred_thousand_warps_are_drawn_and_each_can_be_reached(opened: Open) -> None:
    trace = many_warps(3125, 32)
    tab = opened(trace)
    assert tab.evaluate("warplens.model.rows.warp.length") == 132 * 32
    assert tab.evaluate("new Set(Array.from(warplens.model.segmentBlock)).size") == 3125
    tab.fill("#filter-block", "3124")
    tab.click("button[data-choose='6']")
    tab.keyboard.press("l")
    seen = span(tab, view(tab)["selected"])
    assert (seen["block"], seen["warp"], seen["durationCycles"]) == (3124, 31, 32)
    tab.click("#clear")
    tab.mouse.click(*place_of(tab, 199_999))
    assert view(tab)["selected"] == 199_999


def test_one_warp_of_one_block_fills_the_window(opened: Open) -> None:
    trace = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    tab = opened(trace)
    assert tab.evaluate("warplens.layout.row.length") == 1
    for index in range(trace.spans.height):
        tab.mouse.click(*place_of(tab, index))
        assert view(tab)["selected"] == index
        assert int(span(tab, index)["startNs"]) == trace.spans["start_ns"][index]


def test_a_span_of_no_cycles_can_be_clicked(opened: Open) -> None:
    rows = [{"start": 0, "end": 50}, {"start": 50, "end": 50}, {"start": 60, "end": 100}]
    tab = opened(fake.of_spans(rows))
    tab.mouse.click(*place_of(tab, 1))
    assert fields(tab)["duration"] == "0 cycles · 0 ns"


def test_a_sampled_page_says_so_above_all_else(opened: Open) -> None:
    trace = fake.rmsnorm(blocks=8, sms=2, warps=2, resident=1)
    tab = opened(trace, max_spans=trace.spans.height // 3)
    first = tab.locator("#trust tr").first
    assert first.locator("td.level").inner_text() == "BAD"
    assert first.locator("td").last.inner_text().startswith("sampled: 30 of 120 spans, one block in 4")
    assert tab.locator("#about").inner_text().count("30 spans") == 1


def test_a_span_beyond_what_a_double_holds_is_chosen_to_the_ns(opened: Open) -> None:
    far = (1 << 61) + 1
    rows = [
        {"start": far, "end": far + 3},
        {"start": far + 3, "end": far + 8},
        {"start": far + (1 << 33), "end": far + (1 << 33) + 1},
    ]
    tab = opened(fake.of_spans(rows))
    for index, row in enumerate(rows):
        choose(tab, index)
        assert fields(tab)["start"] == f"{row['start']:,} ns"
        assert fields(tab)["start (clock64)"] == f"{row['start']:,}"
        assert fields(tab)["duration"] == f"{row['end'] - row['start']} cycles · {row['end'] - row['start']} ns"
