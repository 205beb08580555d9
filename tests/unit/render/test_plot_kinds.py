"""Pictures of durations: distributions, one phase over SMs, two traces. What they say is what the tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.unit.render import fake
from warplens.errors import UsageError
from warplens.render.durations import durations, pick_group
from warplens.render.plot_diff import MAX_ROWS, diff_figure, pair_up
from warplens.render.plot_distributions import distributions_figure
from warplens.render.plot_sm import sm_figure
from warplens.render.plots import plot


def small() -> Any:
    return fake.rmsnorm(blocks=16, sms=2, warps=4, resident=2)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_text()]


def words(figure: Figure) -> str:
    return "\n".join([text.get_text() for text in figure.texts] + [t for axes in figure.axes for t in texts(axes)])


def phases(*rows: tuple[int, int, int], names: str = "ab", kind: str = "phase", warps: int = 1) -> Any:
    """Spans (site, begin, end), in each of `warps` warps, of sites called as the letters of `names`."""
    spans = [{"site": s, "start": b, "end": e, "warp": warp} for warp in range(warps) for s, b, e in rows]
    return fake.of_spans(spans, [(name, kind, "") for name in names])


# ---- distributions ---------------------------------------------------------------------------------------------


def test_a_row_shows_count_percentiles_and_share_of_its_site() -> None:
    # site a: 10, 20, ..., 100 cycles, 550 in all, of 1,000; the nearest rank of p10 is 10 or 20, of p50 50 or 60
    rows, at = [], 0
    for length in range(10, 101, 10):
        rows.append((0, at, at + length))
        at += length
    figure = distributions_figure(phases(*rows, (1, at, 1000)), None)
    found = texts(figure.axes[0])
    assert found[:2] == ["a", "10"]
    for text in ("100", "55.0 %", "b", "450", "45.0 %"):
        assert text in found


def test_histograms_hold_every_complete_span(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    histogram = np.histogram

    def spy(*arguments: Any) -> Any:
        made = histogram(*arguments)
        counted.append(int(made[0].sum()))
        return made

    monkeypatch.setattr(np, "histogram", spy)
    trace = small()
    distributions_figure(trace, None)
    assert sum(counted) == trace.spans.height
    counted.clear()
    doubtful = fake.doubtful()
    distributions_figure(doubtful, None)
    assert sum(counted) == doubtful.spans.filter(pl.col("flags") & 3 == 0).height


def test_the_axis_is_logarithmic_where_durations_span_decades_and_only_there() -> None:
    near = distributions_figure(phases((0, 0, 100), (1, 100, 400)), None)
    assert near.axes[0].get_xscale() == "linear"
    far = distributions_figure(phases((0, 0, 10), (1, 10, 10_000)), None)
    assert far.axes[0].get_xscale() == "log"
    assert "0 cycles" not in words(far)
    zero = distributions_figure(phases((0, 0, 0), (1, 0, 10_000)), None)
    assert "0 cycles stand at 1" in words(zero)


def test_warps_that_differ_have_rows_of_their_own() -> None:
    rows = [{"start": 0, "end": 500 if w == 0 else 20, "warp": w, "block": b} for b in range(8) for w in range(4)]
    found = texts(distributions_figure(fake.of_spans(rows), None).axes[0])
    assert [text for text in found if text in ("work", "w0", "w1-3")] == ["work", "w0", "w1-3"]
    assert "24" in found  # spans of the three
    alike = texts(distributions_figure(phases((0, 0, 10), warps=4), None).axes[0])
    assert not any(text.startswith("w") for text in alike)


def test_launches_of_one_shape_are_pooled_unless_one_is_asked_for() -> None:
    trace = fake.rmsnorm(blocks=4, sms=2, warps=2, resident=1, launches=3)
    assert "180 spans of 3 launches" in words(distributions_figure(trace, None))
    assert "60 spans  " in words(distributions_figure(trace, 1))


def test_of_very_many_sites_the_ones_with_most_time_are_drawn_and_the_rest_is_counted() -> None:
    rows = [(n, n * 100, n * 100 + n + 1) for n in range(50)]
    text = words(distributions_figure(phases(*rows, names="".join(chr(0x41 + n) for n in range(50))), None))
    assert "the 10 rows with least time are left out" in text


# ---- one phase over SMs and time -------------------------------------------------------------------------------


def test_a_cell_is_how_many_warps_of_the_sm_are_in_the_site() -> None:
    rows = [{"start": 0, "end": 10, "warp": w, "block": 0} for w in range(3)]
    rows += [{"start": 10, "end": 20, "warp": 0, "block": 0, "site": 1}, {"start": 5, "end": 15, "block": 1}]
    trace = fake.of_spans(rows, [("a", "phase", ""), ("b", "phase", "")], sms={0: 4, 1: 9})
    picture = sm_figure(trace, None, "a").axes[1].images[0].get_array()
    assert isinstance(picture, np.ma.MaskedArray)
    assert picture.shape == (2, 20)
    assert picture.filled(-1).tolist() == [[3.0] * 10 + [0.0] * 10, [-1.0] * 5 + [1.0] * 10 + [-1.0] * 5]


def test_above_stands_the_share_of_all_resident_warps() -> None:
    trace = phases((0, 0, 10), (1, 10, 40))
    corners = np.concatenate([p.vertices for p in sm_figure(trace, None, "b").axes[0].collections[0].get_paths()])
    assert corners[:, 1].max() == pytest.approx(100)
    assert corners[corners[:, 1] > 50, 0].min() == pytest.approx(10)


def test_without_a_name_it_is_the_phase_or_wait_with_the_largest_share() -> None:
    trace = phases((0, 0, 10), (1, 10, 40))
    assert "site b" in words(sm_figure(trace, None, None))
    rows = [{"start": 0, "end": 99, "site": 1}, {"start": 0, "end": 9}]
    ranges = fake.of_spans(rows, [("a", "wait", ""), ("r", "range", "")])
    assert "site a" in words(sm_figure(ranges, None, None))
    assert "site r" in words(sm_figure(ranges, None, "r"))


def test_blocks_whose_sm_is_not_known_are_left_out_and_a_launch_of_such_is_refused() -> None:
    trace = small()
    unknown = trace.blocks.with_columns(sm_begin=pl.lit(None, pl.UInt16))
    with pytest.raises(UsageError, match="no block with times and an SM"):
        sm_figure(replace(trace, blocks=unknown), None, None)


# ---- two traces ------------------------------------------------------------------------------------------------


def test_a_row_says_both_medians_and_their_ratio() -> None:
    found = texts(diff_figure(phases((0, 0, 100)), phases((0, 0, 75)), None).axes[0])
    assert found == ["a", "100 → 75", "\u221225 %"]
    found = texts(diff_figure(phases((0, 0, 0)), phases((0, 0, 75)), None).axes[0])
    assert found == ["a", "0 → 75", "from 0"]


def test_bars_are_medians_and_lines_p10_to_p90() -> None:
    lengths = [(0, 1000 * n, 1000 * n + length) for n, length in enumerate((10, 20, 30, 40, 50))]
    axes = diff_figure(phases(*lengths), phases((0, 0, 60)), None).axes[0]
    assert [patch.get_width() for patch in axes.patches] == [30, 60]  # type: ignore[attr-defined]
    lines = [list(line.get_xdata()) for line in axes.lines]  # type: ignore[arg-type]
    assert lines == [[10, 50]] * 2 + [[60, 60]] * 2


def test_a_ratio_is_bold_only_where_a_median_lies_outside_of_the_other_spread() -> None:
    def ratio(before: Any, after: Any) -> Any:
        return next(t for t in diff_figure(before, after, None).axes[0].texts if "%" in t.get_text())

    spread = phases(*((0, 1000 * n, 1000 * n + length) for n, length in enumerate((10, 20, 30, 40, 50))))
    shifted = phases(*((0, 1000 * n, 1000 * n + length + 8) for n, length in enumerate((10, 20, 30, 40, 50))))
    assert ratio(spread, shifted).get_fontweight() == "normal"
    assert ratio(spread, phases((0, 0, 60))).get_fontweight() == "bold"


def test_sites_are_matched_by_name_and_kind_and_the_others_are_named() -> None:
    before, after = phases((0, 0, 10), (1, 10, 40)), phases((0, 0, 10), (1, 10, 40), names="bc")
    figure = diff_figure(before, after, None)
    assert texts(figure.axes[0]) == ["b", "30 → 10", "\u221267 %"]
    assert "only before: a; only after: c" in words(figure)
    with pytest.raises(UsageError, match="no site of the same name and kind"):
        diff_figure(before, phases((0, 0, 10), kind="wait"), None)


def test_roles_are_paired_where_both_have_the_same_and_pooled_where_not() -> None:
    def trace(long_warps: int) -> Any:
        rows = [
            {"start": 0, "end": 500 if w < long_warps else 20, "warp": w, "block": b}
            for b in range(8)
            for w in range(4)
        ]
        return fake.of_spans(rows)

    def rows(made: Any) -> Any:
        return durations(made, pick_group(made, None))

    same = pair_up(rows(trace(1)), rows(trace(1)))
    assert [(p.before.role, p.after.role) for p in same] == [("w0", "w0"), ("w1-3", "w1-3")]
    (pooled,) = pair_up(rows(trace(1)), rows(trace(2)))
    assert (pooled.after.role, len(pooled.before.cycles), len(pooled.after.cycles)) == ("", 32, 32)


def test_what_else_differs_stands_above() -> None:
    one, other = small(), fake.doubtful()
    device = {"name": "NVIDIA <b>B200</b>"}
    text = words(diff_figure(one, replace(other, manifest=fake.manifest(device=device)), None))
    assert "device NVIDIA H200 → NVIDIA <b>B200</b>" in text
    assert "5 events lost after" in text
    assert "clean 8.10 us" in text
    assert "also different" not in words(diff_figure(one, one, None))


def test_times_beside_each_other_are_measured_alike() -> None:
    trace = small()
    text = words(diff_figure(trace, trace, None))
    clean, traced = trace.manifest["kernels"][0]["clean_ns"], trace.manifest["kernels"][0]["traced_ns"]
    assert f"clean {np.median(clean) / 1000:.2f} us, traced {np.median(traced) / 1000:.2f} us  →" in text
    assert "first mark" not in text
    unmeasured = [{**trace.manifest["kernels"][0], "clean_ns": None, "traced_ns": None}]
    text = words(diff_figure(trace, replace(trace, manifest=trace.manifest | {"kernels": unmeasured}), None))
    assert "→  grid" in text
    assert "us from the first mark to the last" in text


def test_of_very_many_pairs_the_largest_are_drawn() -> None:
    trace = phases(*((n, n * 100, n * 100 + n + 1) for n in range(50)), names="".join(chr(0x41 + n) for n in range(50)))
    assert f"the {50 - MAX_ROWS} rows with least time are left out" in words(diff_figure(trace, trace, None))


@pytest.mark.parametrize("kind", ["distributions", "sm", "diff"])
def test_names_of_strangers_are_drawn_as_text(tmp_path: Path, kind: str) -> None:
    names = ["$x^2$", "\x1b[2J", "名", "</script>", "a" * 10_000, "\u202egnp"]
    trace = fake.renamed(small(), [*names, "g", "h"])
    path = plot(trace, kind, tmp_path / "a.svg", after=trace if kind == "diff" else None)
    assert b"</script>" not in path.read_bytes()
