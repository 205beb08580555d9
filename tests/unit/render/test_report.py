"""The page: what it holds is what the trace holds; nothing in it runs but its own script."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import warplens
from tests import page as pages
from tests import synthesis
from tests.unit.render import fake
from warplens.errors import FileError, UsageError
from warplens.render import report as module
from warplens.render.page_data import page_data
from warplens.render.page_rows import distinct
from warplens.render.report import bundle, report
from warplens.render.selection import Selection
from warplens.trace import Trace

RECORDING = Path(__file__).parents[3] / "recordings" / "rmsnorm_432x5120_h200.wlens"


def written(trace: Any, folder: Path, **options: Any) -> str:
    return report(trace, folder / "page.html", **options).path.read_text(encoding="utf-8")


def shown(page: str) -> pl.DataFrame:
    return pages.spans_of(*pages.facts_and_streams(page))


def held(trace: Any) -> pl.DataFrame:
    spans: pl.DataFrame = trace.spans
    return spans.select(pl.col(c).cast(pl.Int64) for c in pages.COLUMNS).sort(*pages.KEYS, "start_ns")


def with_spans(trace: Any, *expressions: pl.Expr, **named: pl.Expr | pl.Series) -> Any:
    return replace(trace, spans=trace.spans.with_columns(*expressions, **named))


def empty() -> Any:
    trace = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    return replace(trace, spans=trace.spans.clear(), blocks=trace.blocks.clear())


def test_the_page_holds_every_field_of_every_span_of_a_real_recording(tmp_path: Path) -> None:
    trace = warplens.open(RECORDING)
    blocks = [0, 7, 396, 431]
    page = written(trace, tmp_path, selection=Selection(blocks=blocks))
    assert shown(page).equals(held(trace).filter(pl.col("block").is_in(blocks)))


def test_ranges_payloads_tokens_and_flags_come_through(tmp_path: Path) -> None:
    trace = Trace.from_recording(synthesis.nested_recording(blocks=3, warps=4, iterations=3, distinct=3))
    assert trace.spans["payload"].is_not_null().any()
    assert shown(written(trace, tmp_path)).equals(held(trace))


def test_losses_cut_spans_and_instants_come_through(tmp_path: Path) -> None:
    trace = fake.doubtful()
    page = written(trace, tmp_path)
    assert shown(page).equals(held(trace))
    facts, _ = pages.facts_and_streams(page)
    assert [p["kind"] for p in facts["problems"]] == ["gap", "no_end", "site_never_reached"]
    assert "BAD" in {line["level"] for line in facts["trust"]}


@pytest.mark.parametrize(("blocks", "warps"), [(0, 1), (1, 1), (5, 3)])
def test_any_number_of_spans_makes_a_page(blocks: int, warps: int, tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=blocks, sms=2, warps=warps, resident=1) if blocks else empty()
    page = written(trace, tmp_path)
    assert shown(page).equals(held(trace))
    assert report(trace, tmp_path / "p.html").spans == trace.spans.height


def test_a_trace_without_launches_makes_a_page(tmp_path: Path) -> None:
    trace = replace(empty(), launches=empty().launches.clear())
    assert pages.facts_and_streams(written(trace, tmp_path))[0]["launches"] == []


def test_spans_of_no_cycles_and_one_lone_span_come_through(tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=1, sms=1, warps=2, resident=1)
    flat = with_spans(trace, duration_cycles=pl.lit(0, pl.Int64), duration_ns=pl.lit(0, pl.Int64))
    assert shown(written(flat, tmp_path)).equals(held(flat))
    lone = replace(trace, spans=trace.spans.head(1))
    assert shown(written(lone, tmp_path)).equals(held(lone))


@pytest.mark.parametrize("shift", [1 << 33, (1 << 53) + 1, 1 << 61])
def test_times_beyond_what_a_double_holds_stay_exact(shift: int, tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1)
    far = with_spans(trace, pl.col("start_ns") + shift, start_cycles=pl.col("start_cycles") + shift)
    far = replace(far, blocks=far.blocks.with_columns(pl.col("start_ns", "end_ns") + shift))
    page = written(far, tmp_path)
    assert shown(page).equals(held(far))
    facts, _ = pages.facts_and_streams(page)
    assert facts["extent_ns"] < 1 << 20


def test_times_that_lie_centuries_apart_stay_exact(tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=2, sms=1, warps=1, resident=1)
    later = pl.when(pl.col("block") == 1).then(1 << 60).otherwise(0)
    far = with_spans(trace, pl.col("start_ns") + later)
    far = replace(far, blocks=far.blocks.with_columns(pl.col("start_ns", "end_ns") + later))
    assert shown(written(far, tmp_path)).equals(held(far))


def test_nested_ranges_take_levels_of_their_own_above_the_phases(tmp_path: Path) -> None:
    trace = Trace.from_recording(synthesis.nested_recording(blocks=1, warps=1, iterations=1, distinct=1))
    facts, streams = pages.facts_and_streams(written(trace, tmp_path))
    columns = {name: pages.numbers_of(column, streams) for name, column in facts["columns"].items()}
    kinds, at = [], 0
    for spans in columns["segment_spans"]:  # one block, one warp: a segment a level
        kinds.append({facts["sites"][site]["kind"] for site in columns["site"][at : at + spans]})
        at += spans
    assert columns["row_level"] == list(range(len(kinds)))
    assert kinds == [{"phase", "wait"}, {"range"}, {"range"}, {"range"}, {"mark"}]


def test_different_rows_of_columns_come_in_order_and_say_where_each_row_is() -> None:
    columns, place = distinct(np.array([2, 0, 2, 0]), np.array([-1, 131, -1, 5]))
    assert [c.tolist() for c in columns] == [[0, 0, 2], [5, 131, -1]]
    assert place.tolist() == [2, 1, 2, 0]
    columns, place = distinct(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert [len(c) for c in (*columns, place)] == [0, 0, 0]


def test_blocks_of_a_lane_are_resident_one_after_the_other() -> None:
    trace = fake.rmsnorm(blocks=40, sms=2, warps=1, resident=3)
    from warplens.render.page_rows import lanes_of

    lanes = lanes_of(trace.blocks)
    places = list(zip(lanes.sm.tolist(), lanes.slot.tolist(), strict=True))
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for lane in range(6):
        mine = trace.blocks.filter(pl.Series(lanes.of_block == lane)).sort("start_ns")
        assert (mine["start_ns"].to_numpy()[1:] >= mine["end_ns"].to_numpy()[:-1]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint32, np.int64, np.uint64])
def test_packed_columns_come_out_as_they_went_in(dtype: type[np.integer[Any]]) -> None:
    from warplens.render.page_pack import Packer

    limits = np.iinfo(dtype)
    values = np.array([0, 1, limits.max, limits.min, limits.max // 3], dtype)
    packer = Packer(spans=9)
    packer.add("extremes", values)
    packer.add("small", values[:2] - values[1:2])
    packer.add("constant", np.full(9, 7, dtype))
    packer.add("nothing", values[:0])
    streams = [pages.unpacked(s) for s in packer.streams()]
    assert pages.numbers_of(packer.columns["extremes"], streams) == values.tolist()
    assert pages.numbers_of(packer.columns["small"], streams) == (values[:2] - values[1:2]).tolist()
    assert pages.numbers_of(packer.columns["constant"], streams) == [7] * 9
    assert packer.columns["constant"]["planes"] == [7]
    assert pages.numbers_of(packer.columns["nothing"], streams) == []


def test_names_of_strangers_stand_in_no_markup(tmp_path: Path) -> None:
    trace = fake.renamed(fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1), pages.HOSTILE)
    trace.manifest["kernels"][0]["name"] = pages.HOSTILE[0]
    trace = replace(trace, note=pages.HOSTILE[1])
    trace = replace(trace, launches=trace.launches.with_columns(kernel=pl.lit(pages.HOSTILE[0])))
    page = written(trace, tmp_path)
    assert "owned" not in page
    facts, _ = pages.facts_and_streams(page)
    names = [site["name"] for site in facts["sites"]]
    assert names[:4] == [*pages.HOSTILE[:3], "\N{FIRE}\N{PERSON WITH BALL}\\u200d\N{FEMALE SIGN}"]
    assert names[4].endswith("\\u202eabc")
    assert names[5] == pages.HOSTILE[5]


def test_the_policy_names_the_one_script_and_the_one_style_and_forbids_all_else(tmp_path: Path) -> None:
    page = written(fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1), tmp_path)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["default-src"] == ["'none'"]
    assert rules["require-trusted-types-for"] == ["'script'"]
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}(?: type=\"module\")?>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == [f"'sha256-{digest}'"]


def test_the_page_asks_for_nothing_from_a_network(tmp_path: Path) -> None:
    page = written(warplens.open(RECORDING), tmp_path, selection=Selection(blocks=[0]))
    code = re.sub(r"<script type=\"text/plain\".*?</script>", "", page)
    assert re.findall(r"https?:|\bsrc=|\bhref=|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\(", code) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", code) == []


def test_modules_become_one_script_in_which_every_name_is_declared_once() -> None:
    script = bundle()
    assert not re.findall(r"^(?:import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()
    assert "<!--" not in script
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names))
    assert "/*" not in script
    declared = r"^export (?:async )?(?:function|class|const|let) (\w+)"
    for path in module.PAGE.glob("*.js"):
        exported = re.findall(declared, path.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(exported) <= set(names), path.name


def test_colours_are_those_of_the_pictures(tmp_path: Path) -> None:
    from warplens.render.colors import site_colors

    trace = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    facts, _ = pages.facts_and_streams(written(trace, tmp_path))
    assert [s["color"] for s in facts["sites"]] == site_colors(*(trace.sites[k].to_list() for k in ("name", "kind")))


def test_the_page_names_its_table_of_marks_and_no_path_of_the_machine_it_was_made_on(tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    manifest = fake.manifest()
    manifest["kernels"][0]["audit"] = {"columns": {}, "facts": None, "not_audited": None}
    late = fake.audit_frame([{"site": 0, "verb": "phase", "line": 12, "severity": "warning", "finding": "late"}])
    page = written(replace(trace, manifest=manifest, audit=late, path=Path("/mine/run.wlens")), tmp_path)
    facts, _ = pages.facts_and_streams(page)
    (marks,) = [line["text"] for line in facts["trust"] if line["label"] == "marks"]
    assert marks.endswith("late; all: in the table of marks")
    assert "/mine" not in page


def test_a_launch_and_blocks_choose_a_part(tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=6, sms=2, warps=2, resident=1, launches=2)
    one = shown(written(trace, tmp_path, selection=Selection(launch=1, blocks=[2, 5])))
    assert one["launch"].unique().to_list() == [1]
    assert one["block"].unique().sort().to_list() == [2, 5]
    with pytest.raises(UsageError, match="no launch 7"):
        report(trace, tmp_path / "x.html", selection=Selection(launch=7))
    with pytest.raises(UsageError, match=r"block 9 was not recorded: there are 0-5"):
        report(trace, tmp_path / "x.html", selection=Selection(blocks=[1, 9]))
    assert not (tmp_path / "x.html").exists()


def test_arrows_lead_to_the_spans_that_were_found(tmp_path: Path) -> None:
    rows = [{"warp": 0, "site": 1, "start": 0, "end": 25, "id": 7}, {"warp": 0, "site": 3, "start": 5, "end": 15}]
    rows += [{"warp": 1, "site": 0, "start": 0, "end": 20}, {"warp": 1, "site": 2, "start": 20, "end": 20, "id": 7}]
    rows += [{"warp": 1, "site": 4, "start": 21, "end": 30}]
    kinds = [("work", "phase", ""), ("full", "wait", "f"), ("filled", "arrive", "f"), ("in", "range", "")]
    trace = fake.of_spans(rows, [*kinds, ("lone", "wait", "")])
    facts, streams = pages.facts_and_streams(written(trace, tmp_path))
    # on the page: warp 0's wait; its range a level up; warp 1's phase and wait; its arrival a level up
    assert pages.arrows_of(facts, streams) == [(0, 4, 1, 0), (3, -1, 0, 2)]
    assert [facts["bases"][name] for name in ("RECORDED", "NO_RESOURCE")] == [0, 2]


def test_a_range_that_another_warp_ended_leads_to_the_lowest_row_of_that_warp(tmp_path: Path) -> None:
    ended = {"site": 1, "id": 9, "flags": 16, "start": 100, "end": 400}
    rows = [{"warp": 0, "end_block": 0, "end_warp": 1, **ended}, {"warp": 0, "start": 0, "end": 500}]
    rows += [{"warp": 1, "start": 0, "end": 600}, {"warp": 1, "site": 1, "start": 0, "end": 50}]
    rows += [{"warp": 2, "end_block": 5, "end_warp": 0, **ended}]
    trace = fake.of_spans(rows, [("work", "phase", ""), ("copy", "range", "")])
    facts, streams = pages.facts_and_streams(written(trace, tmp_path))
    found = {n: pages.numbers_of(facts["columns"][f"ender_{n}"], streams) for n in ("span", "row", "block", "warp")}
    # rows: 0 warp 0's phase, 1 its range; 2 warp 1's phase, 3 its range; 4 warp 2's range. Block 5 is not there.
    assert found == {"span": [1, 4], "row": [3, 0], "block": [0, 5], "warp": [1, 0]}


def test_every_arrow_of_a_real_recording_ends_in_its_own_block(tmp_path: Path) -> None:
    trace = warplens.open(RECORDING)
    blocks = [0, 7, 396, 431]
    page = written(trace, tmp_path, selection=Selection(blocks=blocks))
    facts, streams = pages.facts_and_streams(page)
    arrows = pages.arrows_of(facts, streams)
    assert len(arrows) == 4 * 20 * 2
    assert {(of, basis) for _, _, of, basis in arrows} == {(20, 1)}
    assert len({arrival for _, arrival, _, _ in arrows}) == 4 * 2  # one a round


def test_a_window_of_time_keeps_whole_spans_and_counts_rounds_from_the_begin(tmp_path: Path) -> None:
    kinds = [("work", "phase", ""), ("sync", "wait", "bar")]
    times = {0: [(0, 0, 10), (1, 10, 32), (1, 70, 72)], 1: [(0, 0, 30), (1, 30, 32), (1, 50, 72)]}
    rows = [{"warp": w, "site": s, "start": a, "end": b} for w, some in times.items() for s, a, b in some]
    trace = fake.of_spans(rows, kinds)
    trace = replace(trace, launches=trace.launches.with_columns(warps_per_block=pl.lit(2, pl.UInt16)))
    page = written(trace, tmp_path, selection=Selection(from_ns=60))
    facts, streams = pages.facts_and_streams(page)
    assert sorted(shown(page)["start_ns"].to_list()) == [50, 70]
    assert facts["window"] == "from 60 ns"
    assert pages.arrows_of(facts, streams) == [(0, 0, 2, 1), (1, 0, 2, 1)]
    page = written(trace, tmp_path, selection=Selection(to_ns=60, from_ns=31))
    assert [basis for *_, basis in pages.arrows_of(*pages.facts_and_streams(page))] == [1, 1, 9]
    with pytest.raises(UsageError, match="no span is left"):
        report(trace, tmp_path / "x.html", selection=Selection(from_ns=1000))


def test_a_window_of_spans_outside_of_their_blocks_own_times_is_a_page(tmp_path: Path) -> None:
    trace = fake.of_spans([{"block": b, "start": b * 100, "end": b * 100 + 10} for b in range(2)])
    trace = replace(trace, blocks=trace.blocks.with_columns(pl.col("start_ns", "end_ns") - 1000))
    assert shown(written(trace, tmp_path, selection=Selection(from_ns=50)))["block"].to_list() == [1]


def test_corrected_durations_travel_beside_the_raw_ones(tmp_path: Path) -> None:
    trace = fake.of_spans([{"start": 0, "end": 25}, {"start": 25, "end": 60}, {"start": 60, "end": 61}])
    within = pl.Series([1.2, None, 0.0])
    trace = with_spans(trace, corrected_ns=pl.Series([21, None, 1]), corrected_uncertainty_ns=within)
    facts, streams = pages.facts_and_streams(written(trace, tmp_path))
    packed = {name: pages.numbers_of(facts["columns"][name], streams) for name in facts["columns"]}
    assert packed["corrected"] == [-4, 0, 0]
    assert packed["corrected_valid"] == [1, 0, 1]
    assert packed["corrected_uncertainty"] == [2, 0, 0]  # rounded up: never less than it is


def test_the_audit_stands_with_its_warnings_first(tmp_path: Path) -> None:
    rows = [{"site": 1, "verb": "wait", "address": 1 << 30}, {"site": 2, "severity": "warning", "finding": "moved"}]
    trace = replace(fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1), audit=fake.audit_frame(rows))
    facts, _ = pages.facts_and_streams(written(trace, tmp_path))
    assert [row["site"] for row in facts["audit"]] == [2, 1]
    assert facts["audit"][1]["address"] == 1 << 30
    assert facts["audit_rows"] == 2


def test_more_spans_than_a_page_carries_are_sampled_and_it_says_so() -> None:
    trace = fake.rmsnorm(blocks=8, sms=2, warps=2, resident=1)
    data = page_data(trace, max_spans=trace.spans.height // 3)
    assert data.shown * 4 == data.held == trace.spans.height
    assert data.sampled.startswith("sampled: ")
    assert "one block in 4" in data.facts["sampled"]
    with pytest.raises(UsageError, match="block 0 alone has 15 spans and a page carries 9"):
        page_data(trace, max_spans=9)
    assert page_data(trace, max_spans=trace.spans.height).sampled == ""


def test_another_suffix_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    trace = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    with pytest.raises(UsageError, match=r"must end in \.html"):
        report(trace, tmp_path / "page.pdf")
    with pytest.raises(FileError, match="cannot write"):
        report(trace, tmp_path / "missing" / "page.html")
    (tmp_path / "file.html").write_text("old", encoding="utf-8")
    report(trace, tmp_path / "file.html")
    assert [p.name for p in tmp_path.iterdir()] == ["file.html"]


def test_the_page_without_spans_is_small() -> None:
    size = sum(len(piece) for piece in module.page_text("title", {"columns": {}}, []))
    assert size < 130_000
