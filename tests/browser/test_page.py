"""Every control of the page, worked on real recordings in Chromium."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest

import warplens
from tests import synthesis
from tests.browser.conftest import Open
from tests.browser.driving import choose, fields, middle, place_of, span, view
from tests.unit.render import fake
from warplens.trace import Trace

pytestmark = pytest.mark.browser

RECORDINGS = Path(__file__).parents[2] / "recordings"
SOURCE = (files("warplens") / "demo" / "rmsnorm.cu").read_text(encoding="utf-8").splitlines()
SITES = ["load_sumsq", "warp_reduce", "block_reduce", "barrier", "cross_reduce", "barrier_2", "normalize", "store"]


@pytest.fixture(scope="module", params=["rmsnorm_432x5120_h200.wlens", "rmsnorm_528x5120_h200.wlens"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return warplens.open(RECORDINGS / request.param)


def test_trust_phases_and_problems_stand_in_real_tables(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    assert {"kernel time", "correction"} <= set(tab.locator("#trust tr th").all_inner_texts())
    rows = tab.locator("table.phases tbody tr:not(.part) th").all_inner_texts()
    assert [text.strip() for text in rows] == SITES
    problems = {0: "no problems", 1: "1 problem"}[trace.problems.height]
    assert tab.locator("#problem-count").inner_text() == problems
    counts = tab.locator("table.phases tbody tr:not(.part) td.number:nth-child(5)").all_inner_texts()
    assert {int(c.replace(",", "")) for c in counts} == {trace.spans.height // 8}


def test_bars_behind_the_shares_are_as_long_as_the_shares(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    cells = tab.locator("table.phases tbody td.share")
    shares = [float(text.split()[0]) for text in cells.all_inner_texts()]
    bars = [cell.evaluate("e => parseFloat(getComputedStyle(e).backgroundSize)") for cell in cells.all()]
    assert bars == pytest.approx([100 * share / max(shares) for share in shares], abs=0.2)


def test_wheel_and_keys_zoom_and_pan_and_f_fits(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    whole = view(tab)
    tab.mouse.move(*middle(tab))
    tab.mouse.wheel(0, -400)
    tab.wait_for_timeout(50)
    assert tab.evaluate("warplens.view.span") < 0.7 * (whole["to"] - whole["from"])
    for key, moves in {"w": (1, -1), "s": (-1, 1), "a": (-1, -1), "d": (1, 1)}.items():
        before = view(tab)
        tab.keyboard.press(key)
        after = view(tab)
        assert (after["from"] - before["from"]) * moves[0] > 0, key
        assert (after["to"] - before["to"]) * moves[1] > 0, key
    tab.keyboard.press("f")
    assert view(tab) == whole
    tab.locator("#stage").focus()
    tab.keyboard.press("PageDown")
    assert view(tab)["y"] > 0
    for button, sign in (("#taller", 1), ("#shorter", -1)):
        before = view(tab)["rowHeight"]
        tab.click(button)
        assert (view(tab)["rowHeight"] - before) * sign > 0
    tab.keyboard.press("w")
    tab.click("#fit")
    assert view(tab)["to"] - view(tab)["from"] == whole["to"] - whole["from"]


def test_dragging_pans_time_and_rows(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.keyboard.press("w")
    before = view(tab)
    x, y = middle(tab)
    tab.mouse.move(x, y)
    tab.mouse.down()
    tab.mouse.move(x - 60, y - 50, steps=4)
    tab.mouse.up()
    after = view(tab)
    width = tab.evaluate("warplens.width")
    assert after["from"] - before["from"] == pytest.approx(60 / width * (before["to"] - before["from"]), rel=1e-3)
    assert after["y"] - before["y"] == 50
    assert after["selected"] == -1


def test_a_click_on_a_span_shows_its_fields_as_the_table_has_them(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    for index in (3, 20_011, trace.spans.height - 1):
        tab.mouse.click(*place_of(tab, index))
        assert view(tab)["selected"] == index
        seen = span(tab, index)
        where = [pl.col(k) == seen[k] for k in ("block", "warp", "sequence")]
        (row,) = trace.spans.filter(*where).to_dicts()
        block = trace.blocks.filter(pl.col("block") == row["block"]).to_dicts()[0]
        shown = fields(tab)
        assert shown["duration"] == f"{row['duration_cycles']:,} cycles · {row['duration_ns']:,} ns"
        assert shown["start"] == f"{row['start_ns']:,} ns"
        assert shown["start (clock64)"] == f"{row['start_cycles']:,}"
        assert shown["block"] == f"{row['block']} ({block['x']},{block['y']},{block['z']}), wave {block['wave'] + 1}"
        assert shown["warp"].split()[0] == str(row["warp"])
        assert shown["SM"] == str(block["sm_begin"])
        assert shown["sequence"] == str(row["sequence"])
        assert shown["flags"] == "none"
        assert shown["uncertainty"].endswith("ns against other SMs")
        assert tab.locator("#span-name").inner_text() == SITES[row["site"]]
        assert tab.locator("#warp tr").count() == 8
        assert tab.locator("#warp tr[aria-current] bdi").inner_text() == SITES[row["site"]]
        assert f"::{SITES[row['site']]});" in tab.locator("#source-text mark").inner_text()
        line = next(i for i, text in enumerate(SOURCE, start=1) if f"::{SITES[row['site']]});" in text)
        assert tab.locator("#source").inner_text() == f"rmsnorm.cu:{line}"


def test_the_panel_tells_the_place_of_a_span_among_its_like(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.mouse.click(*place_of(tab, 500))
    seen = span(tab, 500)
    of_site = trace.spans.filter(pl.col("site") == seen["site"])["duration_cycles"]
    share = 100 * (of_site < seen["durationCycles"]).sum() / len(of_site)
    p50 = of_site.quantile(0.5, "nearest")
    text = tab.locator("#place").inner_text()
    assert text.startswith(f"longer than {share:.1f} % of {len(of_site):,} spans")
    assert text.endswith(f"median {p50:,.0f} cycles")


def test_a_row_of_the_phase_table_steps_through_the_sites_spans(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.click("button[data-choose='6']")
    assert view(tab)["site"] == 6
    assert tab.locator("#site-count").inner_text() == f"{trace.spans.height // 8:,} spans"
    durations = trace.spans.filter(pl.col("site") == 6)["duration_cycles"].sort(descending=True)
    for rank, press in enumerate(["#slowest", "l", "l"]):
        tab.click(press) if press.startswith("#") else tab.keyboard.press(press)
        assert span(tab, view(tab)["selected"])["durationCycles"] == durations[rank]
    tab.keyboard.press("Escape")
    starts = trace.spans.filter(pl.col("site") == 6)["start_ns"].sort()
    order = [(press, starts[k]) for press, k in (("#next", 0), ("n", 1), ("n", 2), ("#previous", 1), ("p", 0))]
    for press, wanted in order:
        tab.click(press) if press.startswith("#") else tab.keyboard.press(press)
        assert int(span(tab, view(tab)["selected"])["startNs"]) == wanted
    tab.keyboard.press("p")
    assert tab.locator("#status").inner_text() == "no further span of this site"
    tab.click("#site-clear")
    assert view(tab)["site"] is None


def test_a_site_that_is_not_shown_cannot_be_clicked(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    site = span(tab, 100)["site"]
    tab.uncheck(f"input[data-hide='{site}']")
    tab.mouse.click(*place_of(tab, 100))
    assert view(tab)["selected"] == -1
    tab.click("#clear")
    assert tab.is_checked(f"input[data-hide='{site}']")
    tab.mouse.click(*place_of(tab, 100))
    assert view(tab)["selected"] == 100


def test_slash_finds_a_site_by_a_part_of_its_name(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.keyboard.press("/")
    tab.keyboard.type("norma")
    tab.keyboard.press("Enter")
    assert view(tab)["site"] == 6
    assert span(tab, view(tab)["selected"])["site"] == 6
    tab.keyboard.press("/")
    tab.keyboard.type("nothing of that name")
    assert view(tab)["site"] is None
    assert not tab.evaluate("document.getElementById('search').checkValidity()")


def test_m_measures_in_cycles_and_ns(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    x, y = middle(tab)
    tab.keyboard.press("m")
    tab.mouse.move(x - 100, y)
    tab.mouse.down()
    tab.mouse.move(x + 100, y, steps=3)
    tab.mouse.up()
    text = tab.locator("#status").inner_text()
    cycles, ns = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:cycles|ns)", text))
    rate = trace.launches["cycles_per_ns"][0]
    assert ns == pytest.approx(200 * tab.evaluate("warplens.view.span / warplens.width"), abs=1)
    assert cycles == pytest.approx(ns * rate, abs=2)
    assert view(tab)["selected"] == -1
    tab.keyboard.press("Escape")
    assert tab.evaluate("warplens.view.measure") is None


def test_m_measures_from_one_chosen_span_to_another(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.locator("#stage").focus()
    tab.keyboard.press("ArrowRight")
    first = view(tab)["selected"]
    tab.keyboard.press("m")
    tab.keyboard.press("ArrowRight")
    second = view(tab)["selected"]
    assert second == first + 1
    low, high = tab.evaluate("warplens.view.measure")
    assert low == tab.evaluate("i => warplens.model.start[i]", first)
    assert high == tab.evaluate("i => warplens.model.end[i]", second)


def test_the_keyboard_alone_reaches_the_timeline_and_walks_its_spans(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    for _ in range(80):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.id") == "stage":
            break
    assert tab.evaluate("document.activeElement.id") == "stage"
    tab.keyboard.press("ArrowRight")
    one = view(tab)["selected"]
    tab.keyboard.press("ArrowDown")
    other = view(tab)["selected"]
    assert span(tab, other)["warp"] == (span(tab, one)["warp"] + 1) % 20
    tab.keyboard.press("ArrowLeft")
    assert view(tab)["selected"] == other - 1
    wide = tab.evaluate("warplens.view.span")
    tab.keyboard.press("Enter")
    assert tab.evaluate("warplens.view.span") < wide
    assert tab.locator("#status").inner_text().startswith(SITES[span(tab, other - 1)["site"]])
    tab.keyboard.press("Escape")
    assert view(tab)["selected"] == -1


def test_help_opens_and_closes(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    before = view(tab)
    tab.keyboard.press("w")
    assert view(tab) == before
    tab.keyboard.press("Escape")
    assert not tab.locator("#help").is_visible()
    tab.click("#help-open")
    tab.click("#help button")
    assert not tab.locator("#help").is_visible()


def test_filters_by_sm_block_and_warp_leave_their_rows(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.fill("#filter-sm", "3,5-6")
    assert set(tab.evaluate("warplens.layout.lane.map(l => warplens.model.lanes.sm[l])")) == {3, 5, 6}
    tab.fill("#filter-warp", "0-1")
    assert set(tab.evaluate("warplens.layout.row.map(r => warplens.model.rows.warp[r])")) == {0, 1}
    tab.fill("#filter-sm", "")
    tab.fill("#filter-block", "400")
    sm = trace.blocks.filter(pl.col("block") == 400)["sm_begin"][0]
    assert set(tab.evaluate("warplens.layout.lane.map(l => warplens.model.lanes.sm[l])")) == {sm}
    tab.keyboard.press("Escape")
    tab.click("button[data-choose='0']")
    tab.keyboard.press("n")
    assert span(tab, view(tab)["selected"])["block"] == 400
    tab.keyboard.press("n")
    tab.keyboard.press("n")
    assert span(tab, view(tab)["selected"])["block"] == 400
    tab.fill("#filter-block", "x")
    assert not tab.evaluate("document.getElementById('filter-block').checkValidity()")
    tab.fill("#filter-block", "99999")
    assert tab.locator("#empty").is_visible()
    tab.click("#clear")
    assert not tab.locator("#empty").is_visible()


def test_a_role_of_the_phase_table_shows_its_warps_alone(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    role = tab.locator("table.phases tr.part td button").first
    assert role.inner_text() == "w0"
    role.click()
    assert tab.input_value("#filter-warp") == "0"
    assert set(tab.evaluate("warplens.layout.row.map(r => warplens.model.rows.warp[r])")) == {0}
    assert view(tab)["site"] is None
    role.click()
    assert tab.input_value("#filter-warp") == ""


def test_the_url_holds_the_view(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    tab.click("button[data-choose='3']")
    tab.keyboard.press("l")
    tab.keyboard.press("w")
    tab.fill("#filter-warp", "0-18")
    tab.wait_for_timeout(600)  # the URL is written a moment after the last change
    before, url = view(tab), tab.evaluate("location.hash")
    other = opened(trace, hash_=url)
    after = view(other)
    assert after == {k: pytest.approx(v, abs=1) if isinstance(v, float) else v for k, v in before.items()}
    assert other.input_value("#filter-warp") == "0-18"
    assert other.locator("#span-name").inner_text() == "barrier"


def test_a_url_of_another_trace_does_no_harm(opened: Open, trace: Trace) -> None:
    tab = opened(trace, hash_="#t=9e99,1e100&y=1e9&span=123456789&site=77&hide=99&launch=5&sm=abc&h=nan")
    tab.keyboard.press("f")
    assert view(tab)["to"] > view(tab)["from"]


def test_dark_and_light_follow_the_system_and_the_switch(opened: Open, trace: Trace) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = opened(trace, dark=True)
    assert dark.evaluate(paper) == "rgb(20, 23, 28)"
    assert dark.evaluate("warplens.theme.page") == "#14171c"
    dark.keyboard.press("t")
    assert dark.evaluate(paper) == "rgb(255, 255, 255)"
    light = opened(trace)
    assert light.evaluate(paper) == "rgb(255, 255, 255)"
    light.click("#theme")
    assert light.evaluate(paper) == "rgb(20, 23, 28)"
    color = light.evaluate("warplens.theme.siteColor(0)")
    assert color == dark.evaluate("warplens.theme.siteColor(0)") == "#0077bb"


def test_the_tip_says_for_how_many_spans_a_pixel_stands(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    while view(tab)["rowHeight"] > 0.25:
        tab.keyboard.press("-")
    x, y = middle(tab)
    found = ""
    for step in range(0, 300, 3):
        tab.mouse.move(x - step, y + step % 30)  # past the bar of an SM's blocks, wherever it lies
        found = tab.locator("#tip").inner_text() if tab.locator("#tip").is_visible() else ""
        if "stands for" in found:
            break
    assert re.search(r"this pixel stands for [\d,]+ spans of \d+ rows", found)


def test_the_overview_moves_the_window(opened: Open, trace: Trace) -> None:
    tab = opened(trace)
    box = tab.locator("#overview").bounding_box()
    tab.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + 20)
    low, high = tab.evaluate("warplens.view.limits")
    state = view(tab)
    assert (state["from"] + state["to"]) / 2 == pytest.approx(low + 0.75 * (high - low), rel=0.02)


def test_problems_are_listed_and_lead_to_their_place(opened: Open) -> None:
    tab = opened(fake.doubtful())
    rows = tab.locator("#problems tr")
    assert rows.count() == 3
    assert rows.first.locator("td").all_inner_texts()[:6] == ["loss", "gap", "5", "0", "0", "3"]
    assert tab.locator("#trust tr").first.locator("td.level").inner_text() == "BAD"
    marks = tab.evaluate("warplens.marks.map(m => [warplens.model.rows.warp[m.row], m.severe])")
    assert marks == [[3, True], [2, True]]
    rows.nth(1).locator("button").click()
    state = view(tab)
    time = tab.evaluate("warplens.marks[1].time")
    assert state["from"] <= time <= state["to"]
    torn = tab.evaluate("warplens.model.flags.findIndex(f => f & 2)")
    tab.mouse.click(*place_of(tab, torn))
    assert fields(tab)["flags"] == "no end was seen: cut at the warp's last event"


def test_nested_ranges_and_payloads_are_shown(opened: Open) -> None:
    trace = Trace.from_recording(synthesis.nested_recording(blocks=2, warps=4, iterations=3, distinct=3))
    tab = opened(trace)
    index = tab.evaluate("warplens.model.site.findIndex((_, i) => warplens.model.payloadValid(i))")
    choose(tab, index)
    payload = tab.evaluate("i => warplens.model.span(i).payload", index)
    assert fields(tab)["payload"] == f"{payload} (0x{payload:x})"
    assert max(tab.evaluate("[...warplens.model.rows.level]")) >= 1
    block, warp = tab.evaluate("i => [warplens.model.span(i).block, warplens.model.span(i).warp]", index)
    around = trace.spans.filter((pl.col("block") == block) & (pl.col("warp") == warp))
    assert tab.locator("#warp tr").count() == around.height  # on all levels


def test_brackets_and_the_list_go_from_launch_to_launch(opened: Open) -> None:
    tab = opened(fake.rmsnorm(blocks=4, sms=2, warps=2, resident=1, launches=3))
    assert tab.input_value("#launch") == "0"
    tab.keyboard.press("]")
    assert tab.input_value("#launch") == "1"
    assert view(tab)["from"] > 40_000
    tab.keyboard.press("[")
    assert tab.input_value("#launch") == "0"
    tab.select_option("#launch", "all")
    assert tab.evaluate("warplens.layout.heads.map(h => h[1])") == [0, 1, 2]
