"""The pictures: right files, right shapes, right words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from tests.unit.render import fake
from warplens.errors import FileError, UsageError
from warplens.render.colors import WAITS
from warplens.render.plot_blocks import _lanes, blocks_figure, majority_segments
from warplens.render.plot_sm import sm_figure
from warplens.render.plot_warps import warps_figure
from warplens.render.plots import KINDS, drawable, plot


def small() -> Any:
    return fake.rmsnorm(blocks=4, sms=2, warps=3, resident=1)


def words(figure: Figure) -> str:
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join([text.get_text() for text in figure.texts] + legends)


def bars(figure: Figure) -> list[PolyCollection]:
    return [c for axes in figure.axes for c in axes.collections if isinstance(c, PolyCollection)]


@pytest.mark.parametrize(
    ("kind", "suffix", "begin"),
    [
        *((kind, *form) for kind in KINDS for form in ((".png", b"\x89PNG"), (".svg", b"<?xml"))),
        ("sm", ".pdf", b"%PDF"),
    ],
)
def test_a_picture_has_the_format_of_its_suffix_and_is_the_same_each_time(
    tmp_path: Path, kind: str, suffix: str, begin: bytes
) -> None:
    after = small() if kind == "diff" else None
    first, second = (plot(small(), kind, tmp_path / f"{name}{suffix}", after=after).read_bytes() for name in "ab")
    assert first.startswith(begin)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]
    assert first == second
    assert b"Date" not in first
    assert b"<dc:date>" not in first


def test_a_pdf_holds_its_words_as_text(tmp_path: Path) -> None:
    assert b"/Subtype /Type0" in plot(small(), "warps", tmp_path / "a.pdf").read_bytes()


def test_majority_is_the_phase_of_most_warps_at_each_moment() -> None:
    trace = small()
    columns = ["block", "warp", "site", "start_ns", "duration_ns"]
    rows = [(0, 0, 0, 0, 10), (0, 0, 1, 10, 20), (0, 1, 0, 0, 25), (0, 1, 1, 25, 5), (0, 2, 1, 12, 10)]
    spans = pl.concat([trace.spans.head(1)] * len(rows)).with_columns(
        **{c: pl.Series(c, [r[i] for r in rows]).cast(trace.spans.schema[c]) for i, c in enumerate(columns)}
    )
    segments = majority_segments(replace(trace, spans=spans), 0)
    # 0-10: both in site 0; 10-12: one each, the lower number wins; 12-22: two of three in site 1; 22-25: one each
    assert np.stack([segments["site"], segments["begin_ns"], segments["end_ns"]], 1).tolist() == [
        [0, 0, 12],
        [1, 12, 22],
        [0, 22, 25],
        [1, 25, 30],
    ]


def test_majority_is_the_same_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = fake.rmsnorm(blocks=30, sms=4, warps=4, resident=2)
    whole = majority_segments(trace, 0)
    monkeypatch.setattr("warplens.render.plot_blocks._MAX_CELLS", 300)
    batched = majority_segments(trace, 0)
    assert all((whole[key] == batched[key]).all() for key in whole)
    assert len(whole["block"]) >= 30 * 4


def test_blocks_of_one_sm_share_a_lane_only_when_they_do_not_overlap() -> None:
    lane, lanes, ticks = _lanes(np.array([5, 5, 9, 5]), np.array([0, 3, 4, 10]), np.array([10, 20, 8, 12]))
    assert lane.tolist() == [0, 1, 2, 0]
    assert lanes == 3
    assert ticks == [(1.0, "5"), (2.5, "9")]


@pytest.mark.parametrize("picture", [blocks_figure, lambda trace, launch: sm_figure(trace, launch, None)])
def test_numbers_of_sms_do_not_touch_where_each_has_one_block(picture: Callable[..., Any]) -> None:
    figure = picture(fake.rmsnorm(blocks=44, sms=44, warps=2, resident=1), None)
    axes = figure.axes[1]
    places = axes.transData.transform([(0, at) for at in axes.get_yticks()])[:, 1] / figure.dpi
    assert (np.abs(np.diff(places)) >= 10 / 72).all()  # 10 pt high, 72 to an inch
    assert len(places) >= 4


def test_titles_name_kernel_device_shape_and_uncertainty() -> None:
    for figure in (blocks_figure(small(), None), warps_figure(small(), None, None)):
        text = words(figure)
        for expected in ("rmsnorm_fwd<true> on NVIDIA H200", "grid 4", "96 threads a block", "within 38 ns"):
            assert expected in text


def test_waves_are_counted_and_marked() -> None:
    text = words(blocks_figure(small(), None))
    assert "4 blocks in 2 waves" in text
    assert "later wave begins" in text
    assert "later wave" not in words(blocks_figure(fake.doubtful(), None))


def test_a_picture_of_some_blocks_says_of_how_many() -> None:
    trace = small()
    some = replace(trace, launches=trace.launches.with_columns(grid_x=pl.lit(4096, pl.UInt32)))
    assert "4 of 4,096 blocks in 2 waves" in words(blocks_figure(some, None))


def test_long_launches_are_drawn_in_us_and_short_ones_in_ns() -> None:
    trace = small()
    assert blocks_figure(trace, None).axes[1].get_xlabel().endswith("(ns)")
    late = trace.blocks.with_columns(end_ns=pl.col("end_ns") + 50_000)
    assert blocks_figure(replace(trace, blocks=late), None).axes[1].get_xlabel().endswith("(us)")


def test_a_row_a_warp_and_a_box_a_span_with_waits_hatched() -> None:
    trace = small()
    figure = warps_figure(trace, None, 1)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["w0", "w1", "w2"]
    spans = trace.spans.filter(pl.col("block") == 1)
    assert sum(len(c.get_paths()) for c in bars(figure)) == spans.height
    grey = [c for c in bars(figure) if c.get_hatch()]
    assert len(grey) == spans.filter(pl.col("site").is_in([3, 5]))["site"].n_unique()
    assert len(WAITS) >= len(grey)


def test_both_rulers_are_those_of_the_spans_table() -> None:
    trace = small()
    figure = warps_figure(trace, None, 1)
    figure.draw_without_rendering()
    spans = trace.spans.filter(pl.col("block") == 1)
    cycles = (spans["start_cycles"] + spans["duration_cycles"]).max() - spans["start_cycles"].min()
    ns = (spans["start_ns"] + spans["duration_ns"]).max() - spans["start_ns"].min()
    below, above = figure.axes[0].get_xlim(), figure.axes[0].child_axes[0].get_xlim()
    assert above[1] / below[1] == pytest.approx(ns / cycles)
    assert below[0] == 0


def test_doubt_is_drawn_and_explained() -> None:
    text = words(warps_figure(fake.doubtful(), None, None))
    assert "end not seen" in text
    assert "events lost before" in text
    assert "2 instants" in text
    assert "end not seen" not in words(warps_figure(small(), None, None))


def test_a_torn_span_has_more_corners_than_a_box_and_reaches_beyond_its_last_event() -> None:
    trace = fake.doubtful()
    figure = warps_figure(trace, None, None)
    torn = trace.spans.filter(pl.col("flags") == 2)
    end = torn["start_cycles"][0] + torn["duration_cycles"][0] - trace.spans["start_cycles"].min()
    corners = [np.asarray(path.vertices) for c in bars(figure) for path in c.get_paths()]
    shapes = [shape for shape in corners if len(shape) > 5]
    assert len(shapes) == 1
    assert shapes[0][:, 0].max() > end


def test_ranges_lie_above_the_phases_they_cross() -> None:
    trace = fake.doubtful()
    figure = warps_figure(trace, None, None)
    heights: list[tuple[float, float]] = []
    for collection in bars(figure):
        corners = np.concatenate([np.asarray(path.vertices) for path in collection.get_paths()])
        first_row = corners[corners[:, 1] < 1, 1]
        heights += [(first_row.min(), first_row.max())] if len(first_row) else []
    *phases, inner = heights
    assert all(inner[1] <= top for top, _ in phases)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("$x^2$", "$x^2$"), ("\x1b[2J", "\\x1b[2J"), ("名", "\\u{540d}"), ("a" * 90, "a" * 59 + "…"), ("µs é", "µs é")],
)
def test_names_are_drawn_as_text_with_what_the_font_lacks_escaped(name: str, shown: str) -> None:
    assert drawable(name) == shown


def test_hostile_names_reach_the_legend_whole(tmp_path: Path) -> None:
    names = ["$x^2$", "_hidden", "\x1b[31m", "\u202egnp", "名前", "&<>\"'", "\\frac", "{%"]
    trace = fake.renamed(small(), names)
    text = words(warps_figure(trace, None, None))
    for shown in ("$x^2$", "_hidden", "\\x1b[31m", "\\u202egnp", "\\u{540d}", "&<>\"'", "\\frac", "{%"):
        assert shown in text
    assert plot(trace, "warps", tmp_path / "a.png").stat().st_size > 0


def test_many_sites_keep_the_legend_to_the_largest() -> None:
    trace = small()
    count = 30
    spans = pl.concat(
        [trace.spans.head(1).with_columns(site=pl.lit(i, pl.UInt16), duration_ns=pl.lit(i + 1)) for i in range(count)]
    )
    sites = fake.sites([(f"site {i}", "phase") for i in range(count)])
    many = replace(trace, spans=spans.select(trace.spans.columns), sites=sites)
    for figure in (blocks_figure(many, None), warps_figure(many, None, None)):
        assert len(re.findall(r"site \d+", words(figure))) <= 24


def test_wrong_requests_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for kind, name, options, message in (
        ("flames", "a.png", {}, "no picture 'flames': there are blocks, warps, distributions, sm, diff"),
        ("warps", "a.jpg", {}, r"must end in \.png, \.svg, \.pdf"),
        ("blocks", "a.png", {"block": 1}, "`blocks` takes no block: `warps` does"),
        ("warps", "a.png", {"site": "store"}, "`warps` takes no site: `sm` does"),
        ("sm", "a.png", {"after": small()}, "`sm` takes no second trace: `diff` does"),
        ("sm", "a.png", {"site": "nothing"}, "no site 'nothing' with a length: there are load_sumsq, warp_reduce"),
        ("diff", "a.png", {}, "`diff` needs a second trace"),
        ("warps", "a.png", {"launch": 3}, "no launch 3"),
        ("warps", "a.png", {"block": 44}, "block 44 of launch 0 was not recorded"),
    ):
        with pytest.raises(UsageError, match=message):
            plot(small(), kind, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file or directory"):
        plot(small(), "warps", tmp_path / "missing" / "a.png")


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_span_of_no_length_is_drawn(tmp_path: Path, kind: str) -> None:
    trace = fake.of_spans([{"start": 7, "end": 7}])
    assert plot(trace, kind, tmp_path / "a.png", after=trace if kind == "diff" else None).stat().st_size > 0


@pytest.mark.parametrize("kind", KINDS)
def test_times_beyond_2_to_the_53_make_the_same_picture(tmp_path: Path, kind: str) -> None:
    trace, late = small(), pl.col("^start_ns|end_ns|start_cycles$") + (1 << 60)
    moved = {name: getattr(trace, name).with_columns(late) for name in ("launches", "blocks", "spans")}
    pictures = [
        plot(each, kind, tmp_path / "a.svg", after=each if kind == "diff" else None).read_bytes()
        for each in (trace, replace(trace, **moved))
    ]
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_without_spans_is_drawn_or_refused_with_where_to_look(tmp_path: Path, kind: str) -> None:
    trace = replace(small(), spans=small().spans.clear())
    if kind == "blocks":
        assert plot(trace, kind, tmp_path / "a.png").is_file()
        return
    with pytest.raises(UsageError, match=r"says why|no site of the same name"):
        plot(trace, kind, tmp_path / "a.png", after=trace if kind == "diff" else None)


def test_of_very_many_waits_only_the_long_ones_are_hatched() -> None:
    wait = [{"start": n, "end": n + 1} for n in range(0, 4000, 2)] + [{"start": 4000, "end": 4100}]
    figure = warps_figure(fake.of_spans(wait, [("full", "wait", "s")]), None, None)
    assert {bool(c.get_hatch()): len(c.get_paths()) for c in bars(figure)} == {True: 1, False: 2000}


def test_a_name_as_long_as_can_be_and_a_place_that_is_none(tmp_path: Path) -> None:
    longest = tmp_path / ("a" * 251 + ".png")
    assert plot(small(), "warps", longest).is_file()
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / ("a" * 300 + ".png"), tmp_path / "file" / "x.png", tmp_path / "missing" / "x.png"):
        with pytest.raises(FileError, match="cannot write"):
            plot(small(), "warps", place)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([longest.name, "file"])


def test_blocks_whose_spans_are_all_instants_are_drawn_pale() -> None:
    trace = small()
    spans = trace.spans.with_columns(
        flags=pl.lit(1, pl.UInt16), duration_ns=pl.lit(0, pl.Int64), duration_cycles=pl.lit(0, pl.Int64)
    )
    for marks in (spans, spans.clear()):
        assert "SM" in words(blocks_figure(replace(trace, spans=marks), 0))
