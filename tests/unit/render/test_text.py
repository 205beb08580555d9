"""The summary: trust first, then phases; numbers checked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console, RenderableType

from tests.unit.render import fake
from warplens.errors import UsageError
from warplens.render.phases import launch_groups, phase_table, place_table
from warplens.render.text import BY, summary, summary_facts
from warplens.render.timeline import cycle_ruler, nice_step, show
from warplens.render.trust import TrustLine, trust_lines

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = ["\x1b[31mred", "a\nb", "[bold red]x[/]", "\u202egnp", ":smile:", "_hidden", "$x^2$", "名前"]


def printed(renderable: RenderableType, *, width: int = 110, color: bool = False) -> str:
    console = Console(width=width, markup=False, emoji=False, highlight=False, force_terminal=color, _environ={})
    if color:
        console = Console(width=width, force_terminal=True, color_system="truecolor", _environ={})
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def small() -> Any:
    return fake.rmsnorm(blocks=4, sms=2, warps=3, resident=1)


def two_warps() -> Any:
    """One block, warps of 100 and 60 cycles in `a`; warp 0 then spends 100 in `b`: the block lasts 200."""
    trace = fake.rmsnorm(blocks=1, sms=1, warps=2, resident=1)
    rows = [(0, 0, 0, 1000, 100, 0), (0, 1, 1, 1100, 100, 0), (1, 0, 0, 1000, 60, 0)]
    spans = pl.concat([trace.spans.head(1)] * 3).with_columns(
        **{
            name: pl.Series(name, [row[i] for row in rows]).cast(trace.spans.schema[name])
            for i, name in enumerate(["warp", "site", "sequence", "start_cycles", "duration_cycles", "flags"])
        }
    )
    return replace(trace, spans=spans, sites=fake.sites([("a", "phase"), ("b", "phase")]))


@pytest.mark.parametrize("name", ["summary", "show"])
def test_output_is_that_of_the_golden_file(name: str) -> None:
    text = printed(summary(small()) if name == "summary" else show(small()))
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_share_is_time_over_block_time_of_the_rows_warps() -> None:
    trace = two_warps()
    (group,) = launch_groups(trace)
    table = phase_table(trace, group, by_role=False)
    assert table.select("name", "warps", "share").rows() == [
        ("a", "all", (100 + 60) / (2 * 200)),
        ("a", "w0", 100 / 200),
        ("a", "w1", 60 / 200),
        ("b", "w0", 100 / 200),  # warp 1 never comes here: only warp 0's time counts
    ]


def test_percentiles_are_values_that_were_measured() -> None:
    trace = two_warps()
    (group,) = launch_groups(trace)
    row = phase_table(trace, group, by_role=False).row(0, named=True)
    assert (row["mean_cycles"], row["p50_cycles"], row["p99_cycles"]) == (80.0, 100, 100)


@pytest.mark.parametrize("warps", [[0], [0, 2]])
def test_statistics_of_a_role_are_those_that_polars_finds_over_its_spans(warps: list[int]) -> None:
    trace = fake.rmsnorm(blocks=60, sms=2, warps=3, resident=2)
    odd = pl.col("warp").is_in(warps) & (pl.col("site") % 2 == 1)
    spans = trace.spans.with_columns(duration_cycles=pl.when(odd).then(3).otherwise(1) * pl.col("duration_cycles"))
    trace = replace(trace, spans=spans)
    (group,) = launch_groups(trace)
    assert len(group.role_names) > 1
    for row in phase_table(trace, group, by_role=True).iter_rows(named=True):
        of_role = [warp for warp, role in group.roles.items() if role == row["warps"]]
        mine = spans.filter(pl.col("warp").is_in(of_role), pl.col("site") == row["site"])
        assert row["count"] == len(mine) > 0
        for unit in ("cycles", "ns"):
            value = mine[f"duration_{unit}"]
            assert row[f"mean_{unit}"] == pytest.approx(value.mean())
            for q in (50, 90, 99):
                assert row[f"p{q}_{unit}"] == value.quantile(q / 100, "nearest")


def test_cut_spans_count_in_share_and_not_in_percentiles() -> None:
    trace = two_warps()
    spans = trace.spans.with_columns(flags=pl.Series([2, 0, 0], dtype=pl.UInt16))
    trace = replace(trace, spans=spans)
    (group,) = launch_groups(trace)
    row = phase_table(trace, group, by_role=False).row(0, named=True)
    assert (row["count"], row["cut"], row["p99_cycles"]) == (2, 1, 60)
    assert row["share"] == pytest.approx(160 / 400)


def test_roles_are_warps_that_visit_the_same_sites() -> None:
    (group,) = launch_groups(fake.rmsnorm(blocks=6, sms=2, warps=5, resident=1))
    assert group.role_names == ["w0", "w1-4"]


def test_a_warp_that_takes_far_longer_in_a_site_is_a_role_of_its_own() -> None:
    trace = fake.rmsnorm(blocks=10, sms=2, warps=5, resident=1)
    alike = trace.spans.filter(pl.col("site").is_in([0, 4]) & (pl.col("warp") != 0))
    passing = alike.filter(pl.col("site") == 0).with_columns(
        site=pl.lit(4, pl.UInt16), duration_cycles=pl.lit(6, pl.Int64)
    )
    (group,) = launch_groups(replace(trace, spans=pl.concat([trace.spans, passing])))
    assert group.role_names == ["w0", "w1-4"]


def test_warps_that_differ_by_noise_are_one_role() -> None:
    trace = fake.rmsnorm(blocks=10, sms=2, warps=5, resident=1)
    (group,) = launch_groups(replace(trace, spans=trace.spans.filter(~pl.col("site").is_in([3, 4, 5]))))
    assert group.roles == {}


def test_launches_of_one_shape_share_a_table_and_one_can_be_chosen() -> None:
    trace = fake.rmsnorm(blocks=4, sms=2, warps=2, resident=1, launches=3)
    (pooled,) = summary_facts(trace)["groups"]
    (one,) = summary_facts(trace, launch=1)["groups"]
    assert pooled["launches"] == [0, 1, 2]
    assert one["launches"] == [1]
    assert pooled["rows"][0]["count"] == 3 * one["rows"][0]["count"]


def test_places_are_slowest_first_and_name_where_the_time_went() -> None:
    trace = small()
    (group,) = launch_groups(trace)
    table = place_table(trace, group, "block")
    assert table["time_ns"].is_sorted(descending=True)
    assert table["top"][0][0]["name"] == "load_sumsq"
    assert place_table(trace, group, "sm")["blocks"].sum() == 4


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_table_keeps_within_the_window(by: Any, width: int) -> None:
    text = printed(summary(fake.doubtful(), by=by), width=width)
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [40, 50, 60, 70, 80, 100])
def test_a_narrow_window_goes_without_figures_and_not_without_names(width: int) -> None:
    trace = fake.corrected(fake.rmsnorm(blocks=4, sms=2, warps=3, resident=1))
    text = printed(summary(trace), width=width)
    assert max(map(len, text.splitlines())) <= width
    for name in trace.sites["name"]:
        assert any(line.split()[1:2] == [name] for line in text.splitlines()), text
    assert "…" not in text[text.index("site ") :], text


def test_all_is_well_takes_one_line_and_what_is_bad_stands_first() -> None:
    assert "BAD" not in printed(summary(small()))
    lines = printed(summary(fake.doubtful())).splitlines()
    assert lines[0] == "TRUST"
    assert [line.split()[1] for line in lines if line.startswith("BAD")] == ["losses", "ends", "gap"]
    assert "5 events lost" in lines[1]


def test_losses_of_a_ring_say_that_newer_records_took_their_place() -> None:
    trace = fake.doubtful()
    assert "keep=newest" not in printed(summary(trace), width=200)
    trace.manifest["keep"] = "newest"
    assert "overwritten by newer ones or without space (keep=newest)" in printed(summary(trace), width=200)


def test_loss_doubt_and_silence_are_said_in_words() -> None:
    text = printed(summary(fake.doubtful()), width=200)
    assert "1 warp has no end" in text
    assert "site store_late never reached" in text
    assert "3+1" in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"clock_state": None}, "clocks, power and throttling not measured"),
        ({"globaltimer_step_ns": None}, "globaltimer step not measured"),
        ({"complete": False}, "BAD  file"),
        ({"device": {"mig": True, "multi_process": False}}, "MIG on"),
    ],
)
def test_what_was_not_measured_or_is_shared_is_said(changes: dict[str, Any], expected: str) -> None:
    assert expected in printed(summary(replace(small(), manifest=fake.manifest(**changes))))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"clean_ns": None, "not_measured": "no clean build"}, "not measured: no clean build"),
        ({"traced_ns": [20_000.0]}, "too disturbed to be believed"),
        ({"traced_ns": [7000.0]}, "faster with marks"),
        ({"traced": {"registers": 40, "shared_bytes": 84, "local_bytes": 0, "resident_blocks": 2}}, "3 -> 2"),
        ({"traced": {"registers": 32, "shared_bytes": 84, "local_bytes": 8, "resident_blocks": 3}}, "build spills"),
        ({"traced": None}, "not known"),
        ({"mark_cost_cycles": None}, "cost of a single mark not measured"),
    ],
)
def test_a_disturbed_kernel_is_told(changes: dict[str, Any], expected: str) -> None:
    manifest = fake.manifest()
    manifest["kernels"] = [manifest["kernels"][0] | changes]
    assert expected in printed(summary(replace(small(), manifest=manifest)), width=160)


@pytest.mark.parametrize(
    ("local_bytes", "instrumented", "expected"),
    [
        (48, {}, "the traced build spills"),
        (48, {"left_out": []}, "32 B of it the recorder's state"),
        (80, {"left_out": []}, "64 B of it the recorder's state"),  # beside an array that is aligned to 64
        (40, {"left_out": []}, "the traced build spills"),
    ],
)
def test_local_memory_of_the_recorder_is_told_from_what_spills(
    local_bytes: int, instrumented: dict[str, Any], expected: str
) -> None:
    manifest = fake.manifest()
    own = manifest["kernels"][0]
    builds = {"clean": own["clean"] | {"local_bytes": 16}, "traced": own["traced"] | {"local_bytes": local_bytes}}
    manifest["kernels"] = [own | builds | {"instrumented": instrumented}]
    (line,) = (own for own in trust_lines(replace(small(), manifest=manifest)) if own.label == "builds")
    assert expected in line.text
    assert (line.level == "BAD") == ("spills" in expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"not_measured": "rounds=2, and 4 are needed"}, "not measured (rounds=2, and 4 are needed)"),
        (None, "4.1 cycles"),
    ],
)
def test_what_was_not_corrected_says_why(found: Any, expected: str) -> None:
    cost = None if found else 4.1
    manifest = fake.manifest()
    manifest["kernels"] = [manifest["kernels"][0] | {"corrections": found, "mark_cost_cycles": cost}]
    text = printed(summary(replace(small(), manifest=manifest)), width=160)
    assert expected in text
    assert "corrected" not in text


@pytest.mark.parametrize(("width", "heads"), [(80, ["corrected", "ns p50"]), (123, ["corrected", "± ns p50"])])
def test_corrected_durations_stand_beside_the_raw_ones(width: int, heads: list[str]) -> None:
    text = printed(summary(fake.corrected(small())), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for head in heads:
        assert any(line.endswith(head) for line in lines)
    (row,) = [line for line in lines if "cross_reduce" in line]
    assert row.endswith("56")  # 140 cycles less 30, at 1.98 cycles/ns
    together = " ".join(text.split())
    assert "a mark costs 14 cycles" in together


def correction(trace: Any, anchor: Any = None) -> TrustLine:
    found = trace.manifest["kernels"][0]["corrections"]
    found |= {} if anchor is None else {"anchor": anchor}
    (line,) = [line for line in trust_lines(trace) if line.label == "correction"]
    return line


ANCHOR = {
    "not_measured": None,
    "life_cycles": [3654.0],
    "marks_uncertainty_cycles": [36.54],
    "factor": [0.95],
    "factor_uncertainty": [0.01],
}


def test_the_anchor_tells_what_phases_sum_to_and_what_marks_cost_of_a_life_with_two_marks() -> None:
    # Lives of 3,980 cycles less 133.5 are 3846.5, of which 0.95 are 3654.2: marks cost 325.8, 8.9 % of that.
    line = correction(fake.corrected(small()), ANCHOR)
    expected = "phases sum to 100.0 % of the block's life in a two-mark build; marks cost 8.9 ± 1.0 % of it"
    assert (line.level, line.text) == ("ok", expected)


@pytest.mark.parametrize(
    ("anchor", "why"),
    [
        (None, "the file has no life of a two-mark build"),
        ({"not_measured": "an SM holds 4 blocks of it"}, "an SM holds 4 blocks of it"),
    ],
)
def test_direct_costs_alone_say_so_and_why(anchor: Any, why: str) -> None:
    # 133.5 of 3846.5 are 3.5 %.
    line = correction(fake.corrected(small()), anchor)
    assert line.level == "note"
    assert line.text == (
        "phases sum to 100.0 % of the block's life less the direct cost of its marks; marks cost 3.5 ± 0.1 % of it; "
        f"what marks cost indirectly is not corrected: {why}"
    )


def test_a_role_without_an_anchor_is_told() -> None:
    line = correction(fake.corrected(small()), ANCHOR | {name: [None] for name in list(ANCHOR)[1:]})
    assert line.text.endswith("some roles by direct costs alone")


def test_marks_that_take_more_than_a_tenth_of_the_time_are_a_note() -> None:
    trace = fake.corrected(small())
    found = trace.manifest["kernels"][0]["corrections"]
    found["anchor"] = ANCHOR | {"factor": [1.0]}
    assert correction(trace).level == "ok"
    rows = found["rows"]
    rows["cost_cycles"] = [10 * cost for cost in rows["cost_cycles"]]
    assert "note correction" in " ".join(printed(summary(trace)).split())


def test_a_block_that_lives_shorter_with_all_its_marks_is_a_note() -> None:
    trace = fake.corrected(small())
    trace.manifest["kernels"][0]["corrections"]["anchor"] = ANCHOR | {"factor": [1.2]}
    line = correction(trace)
    assert line.level == "note"
    assert "marks cost -" in line.text
    assert "faster with all marks" in line.text


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([{}], []),
        ([{"every": 0}], []),  # a launch with tracing off
        ([{"every": 2}], ["2 of 4 blocks (one in 2)"]),
        ([{"blocks": [0, 1, 9]}], ["2 of 4 blocks"]),
        ([{"warp_mask": 0b101}], ["warps 0,2 of 3 of a block"]),
        ([{"every": 4, "warp_mask": 1}] * 2, ["1 of 4 blocks (one in 4) and warps 0 of 3 of a block"]),
        ([{}, {"every": 2}, {"blocks": [3]}], ["of launch 1 2 of 4 blocks (one in 2)", "of launch 2 1 of 4 blocks"]),
    ],
)
def test_what_was_chosen_of_a_launch_is_told(entries: list[dict[str, Any]], expected: list[str]) -> None:
    trace = replace(small(), manifest=fake.manifest(launches=[fake.LAUNCH | entry for entry in entries]))
    lines = [line for line in trust_lines(trace, 0 if len(entries) == 1 else None) if line.label == "recorded"]
    assert [line.text for line in lines] == [
        f"{t}: counts, shares, waves and pictures are of these alone" for t in expected
    ]
    assert {line.level for line in lines} <= {"note"}


def test_the_policy_and_a_limit_of_registers_are_told() -> None:
    manifest = fake.manifest()
    manifest["kernels"] = [manifest["kernels"][0] | {"policy": "staged", "register_limit": 32}]
    (line,) = [t for t in trust_lines(replace(small(), manifest=manifest)) if t.label == "builds"]
    assert line.text.endswith("policy staged, compiled for at most 32 registers")
    assert line.brief.startswith("staged, 34 registers")


def test_what_holds_for_several_kernels_is_told_once_with_their_names_where_it_does_not_hold_for_all() -> None:
    """A model has tens of kernels, of each of which nobody timed the clean one."""
    manifest = fake.manifest()
    first = manifest["kernels"][0]
    own = first | {"clean_ns": None, "traced_ns": None, "not_measured": "nothing was added to compare with"}
    others = [own | {"name": name} for name in ("norm", "norm", "silu", "a", "b")]
    wide = own | {"name": "wide", "traced": own["traced"] | {"resident_blocks": 1}}
    wide["clean"] = wide["clean"] | {"resident_blocks": 1}
    for kernels, told, briefs in (
        ([own, *others], ["clean and"], ["34 registers, 3 resident blocks"]),
        ([first, *others], ["rmsnorm_fwd<true>: x1.0", "norm (2 builds or shapes), silu, a, 1 other: clean and"], None),
        (
            [own, wide],
            ["clean and"],
            ["34 registers, 3 resident blocks (rmsnorm_fwd<true>)", "34 registers, 1 resident block (wide)"],
        ),
    ):
        lines = trust_lines(replace(small(), manifest=manifest | {"kernels": kernels}))
        texts = [line.text for line in lines if line.label == "kernel time"]
        assert len(texts) == len(told)
        assert all(text.startswith(begin) for text, begin in zip(texts, told, strict=True)), texts
        if briefs:
            assert [line.brief for line in lines if line.label == "builds"] == briefs


def test_json_has_corrected_mean_median_and_half_width() -> None:
    group = summary_facts(fake.corrected(small()))["groups"][0]
    (row,) = [row for row in group["rows"] if row["name"] == "cross_reduce"]
    assert row["corrected_p50_ns"] == pytest.approx(71 - 30 / 1.98)
    assert row["corrected_uncertainty_ns"] == pytest.approx(2.5 / 1.98)


def test_throttling_stands_out() -> None:
    manifest = fake.manifest()
    manifest["clock_state"]["after"] = manifest["clock_state"]["after"] | {"throttle_reasons": ["hw_thermal"]}
    assert "throttled: hw_thermal" in printed(summary(replace(small(), manifest=manifest)), width=160)


@pytest.mark.parametrize("color", [False, True])
def test_hostile_names_are_printed_as_text(color: bool) -> None:
    trace = fake.renamed(fake.rmsnorm(blocks=4, sms=2, warps=2, resident=1), HOSTILE)
    trace = replace(trace, note="\x1b]0;title\x07", launches=trace.launches.with_columns(kernel=pl.lit("k\x1b[2J")))
    text = printed(summary(trace), color=color) + printed(show(trace), color=color)
    for shown in ("\\x1b[31mred", "a\\nb", "[bold red]x[/]", "\\u202egnp", ":smile:", "\\x1b]0;title", "k\\x1b[2J"):
        assert shown in text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert color or "\x1b" not in text


def test_facts_hold_no_control_characters() -> None:
    trace = fake.renamed(fake.rmsnorm(blocks=4, sms=2, warps=2, resident=1), HOSTILE)
    names = [row["name"] for group in summary_facts(trace)["groups"] for row in group["rows"]]
    assert "\\x1b[31mred" in names


def test_an_unknown_launch_block_or_row_says_what_there_is() -> None:
    trace = small()
    with pytest.raises(UsageError, match="no launch 7: it has 0"):
        summary(trace, launch=7)
    with pytest.raises(UsageError, match="block 99 of launch 0 was not recorded: there are 0-3"):
        show(trace, block=99)
    with pytest.raises(UsageError, match="expected one of site"):
        summary(trace, by="thread")  # type: ignore[arg-type]


def test_a_trace_without_launches_has_a_summary_and_no_timeline() -> None:
    trace = small()
    empty = replace(trace, launches=trace.launches.clear(), spans=trace.spans.clear(), blocks=trace.blocks.clear())
    assert printed(summary(empty)).startswith("TRUST")
    with pytest.raises(UsageError, match="nothing was recorded"):
        show(empty)


def test_the_timeline_shows_the_first_block_of_the_second_wave() -> None:
    assert "wave 2" in printed(show(small())).splitlines()[0]
    assert "wave 1" in printed(show(fake.doubtful())).splitlines()[0]


def test_every_cell_is_the_site_with_most_of_it() -> None:
    lines = printed(show(two_warps(), width=43), width=43).splitlines()
    assert "w0 " + "a" * 20 + "b" * 20 in lines
    assert "w1 " + "a" * 12 + "·" * 28 in lines


def test_instants_torn_ends_and_losses_are_marked() -> None:
    lines = printed(show(fake.doubtful()), width=100).splitlines()
    rows = {line[:2]: line for line in lines if line[:1] == "w"}
    assert "|" in rows["w0"]
    assert "~" in rows["w2"]
    assert "!" in rows["w3"]
    assert "~ end not seen" in " ".join(lines)


def test_colour_adds_to_the_letters_and_replaces_none() -> None:
    colored = printed(show(small()), color=True)
    plain = printed(show(small()))
    assert "\x1b[" in colored
    assert plain.count("l") == sum(part.count("l") for part in colored.split("\x1b"))


@pytest.mark.parametrize(("length", "wanted", "step"), [(100, 10, 10), (101, 10, 20), (3500, 8, 500), (3, 10, 1)])
def test_ruler_steps_are_round(length: int, wanted: int, step: int) -> None:
    assert nice_step(length, wanted) == step


def test_ruler_ticks_stand_where_their_labels_begin() -> None:
    labels, ticks = cycle_ruler(1000, 50)
    assert ticks.index("┬", 1) == labels.index("500")
