"""The Perfetto file: what is in the tables is in it, on tracks where it nests, under names that were never touched."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import synthesis
from tests.perfetto_reader import PerfettoTrace, Slice
from tests.unit.render import fake
from tests.unit.render.perfetto_cases import COPY, FULL, LOAD, SITES, TICK, TILE, exported, span, written
from warplens.demo import demo_trace
from warplens.errors import FormatError, UsageError
from warplens.render.perfetto import nesting, perfetto_bytes
from warplens.render.selection import Selection, choose
from warplens.trace import Trace


def rmsnorm(**shape: Any) -> Any:
    """That of `fake`, with phases that end when the next begins: there both are rounded for themselves."""
    trace = fake.rmsnorm(**shape)
    following = pl.col("start_ns").shift(-1).over("launch", "block", "warp") - pl.col("start_ns")
    return replace(trace, spans=trace.spans.with_columns(duration_ns=following.fill_null(pl.col("duration_ns"))))


def tree_of(trace: PerfettoTrace) -> list[tuple[str, str, int, int, int]]:
    """(track, name, start, end, depth) of spans in order of time and depth."""
    rows = [
        (trace.tracks[s.track].name, s.name, s.start_ns, s.start_ns + s.duration_ns, s.depth) for s in trace.of_spans()
    ]
    return sorted(rows, key=lambda r: (r[0], r[2], r[4], r[3]))


def totals(slices: list[Slice]) -> dict[str, tuple[int, int]]:
    count: Counter[str] = Counter(s.name for s in slices)
    total: Counter[str] = Counter()
    for each in slices:
        total[each.name] += each.duration_ns
    return {name: (count[name], total[name]) for name in count}


def totals_of_table(trace: Any) -> dict[str, tuple[int, int]]:
    joined = trace.spans.join(trace.sites, on="site")
    resource = pl.col("kind").is_in(["wait", "arrive"]) & (pl.col("resource") != "")
    name = pl.when(resource).then(pl.format("{} [{}]", "name", "resource")).otherwise("name").alias("shown")
    rows = joined.group_by(name).agg(pl.len(), pl.col("duration_ns").sum()).rows()
    return {shown: (count, total) for shown, count, total in rows}


def assert_all_spans_are_there(trace: Any, found: PerfettoTrace) -> None:
    """Each span once, with its own time, in the rows of its SM and warp."""
    assert totals(found.of_spans()) == totals_of_table(trace)
    names = ("launch", "block", "warp", "sequence")
    columns = [*names, "start_ns", "duration_ns", "start_cycles", "duration_cycles"]
    expected = {row[:4]: row[4:] for row in trace.spans.select(columns).rows()}
    actual = {}
    for each in found.of_spans():
        place = tuple(each.args[name] for name in names)
        since = each.start_ns - trace.origin_ns
        actual[place] = (since, each.duration_ns, each.args["start_cycles"], each.args["cycles"])
        path = found.path(each.track)
        assert path[-1].split(" crossing")[0] == f"warp {each.args['warp']}"
    assert actual == expected
    sms = {row[:2]: row[2] for row in trace.blocks.select("launch", "block", "sm_begin").rows()}
    for each in found.of_spans():
        sm = sms[each.args["launch"], each.args["block"]]
        assert found.path(each.track)[1] == ("SM not known" if sm is None else f"SM {sm}")


def decoded(recording: synthesis.FakeRecording) -> Trace:
    return Trace.from_recording(recording)


@pytest.mark.parametrize(
    "trace",
    [
        rmsnorm(blocks=40, sms=4, warps=3, resident=3, launches=2),
        rmsnorm(blocks=9, sms=3, warps=2, resident=1),
        decoded(synthesis.fake_recording(launches=2)),
        decoded(synthesis.nested_recording()),
    ],
    ids=["rmsnorm", "one block an SM", "recording", "nested recording"],
)
def test_every_span_is_there_once_with_its_times_and_its_place(trace: Any) -> None:
    assert_all_spans_are_there(trace, written(trace))


def test_torn_and_lossy_spans_say_so() -> None:
    trace = fake.doubtful()
    found = written(trace)
    assert_all_spans_are_there(trace, found)
    flagged = [s for s in found.of_spans() if "flags" in s.args]
    assert Counter(s.args["flags"] for s in flagged) == {"UNENDED": 1, "AFTER_GAP": 1, "INSTANT": 2}


def test_phases_follow_each_other_on_one_level() -> None:
    found = exported(span(0, 10), span(10, 10), span(10, 20), span(20, 21))
    assert tree_of(found) == [
        ("warp 0", "load", 0, 10, 0),
        ("warp 0", "load", 10, 10, 0),
        ("warp 0", "load", 10, 20, 0),
        ("warp 0", "load", 20, 21, 0),
    ]


def test_nested_spans_nest_also_where_they_begin_and_end_together() -> None:
    found = exported(
        span(0, 30, TILE),
        span(0, 10, LOAD, depth=1),
        span(10, 30, TILE, depth=1),
        span(15, 30, COPY, depth=2),
        span(30, 40, LOAD),
    )
    assert tree_of(found) == [
        ("warp 0", "tile", 0, 30, 0),
        ("warp 0", "load", 0, 10, 1),
        ("warp 0", "tile", 10, 30, 1),
        ("warp 0", "copy", 15, 30, 2),
        ("warp 0", "load", 30, 40, 0),
    ]


def test_a_span_of_0_ns_at_the_end_of_a_range_is_in_it_when_its_depth_says_so() -> None:
    inside = exported(span(0, 10, TILE), span(0, 10, LOAD, depth=1), span(10, 10, LOAD, depth=1), span(10, 12, LOAD))
    assert tree_of(inside)[2:] == [("warp 0", "load", 10, 12, 0), ("warp 0", "load", 10, 10, 1)]
    outside = exported(span(0, 10, TILE), span(0, 10, LOAD, depth=1), span(10, 10, LOAD), span(10, 12, LOAD))
    assert tree_of(outside)[2:] == [("warp 0", "load", 10, 10, 0), ("warp 0", "load", 10, 12, 0)]


def test_spans_that_are_all_of_0_ns_have_all_begins_and_ends() -> None:
    found = exported(*(span(7, 7, site) for site in (LOAD, TILE, LOAD)), span(7, 7, TICK, flags=1))
    assert [(name, start, end) for _, name, start, end, _ in tree_of(found)] == [
        ("load", 7, 7),
        ("tile", 7, 7),
        ("load", 7, 7),
        ("tick", 7, 7),
    ]
    assert [s.instant for s in found.of_spans()] == [False, False, False, True]


def test_a_span_that_crosses_an_earlier_one_gets_a_track_of_its_own_below_the_warp() -> None:
    found = exported(
        span(0, 10, TILE), span(1, 5, LOAD, depth=1), span(5, 12, LOAD, depth=1), span(11, 20, TILE), warp1()
    )
    assert tree_of(found) == [
        ("warp 0", "tile", 0, 10, 0),
        ("warp 0", "load", 1, 5, 1),
        ("warp 0", "tile", 11, 20, 0),
        ("warp 0 crossing", "load", 5, 12, 0),
        ("warp 1", "load", 0, 3, 0),
    ]
    sm = next(t for t in found.tracks.values() if t.name == "SM 0")
    assert [t.name for t in found.children(sm.uuid)] == ["warp 0", "warp 0 crossing", "warp 1"]


def warp1() -> dict[str, Any]:
    return span(0, 3, LOAD, warp=1)


def test_overlapping_ranges_take_as_few_tracks_as_hold_them() -> None:
    found = exported(
        span(0, 30, LOAD),
        span(1, 10, COPY, flags=8),
        span(5, 15, COPY, flags=8),
        span(10, 20, COPY, flags=8),
        span(12, 14, COPY, flags=8),
    )
    assert [(track, start, depth) for track, _, start, _, depth in tree_of(found)] == [
        ("warp 0", 0, 0),
        ("warp 0 crossing", 1, 0),
        ("warp 0 crossing", 10, 0),
        ("warp 0 crossing 2", 5, 0),
        ("warp 0 crossing 3", 12, 0),
    ]


def test_a_range_that_outlives_its_block_does_not_swallow_the_next_block_of_the_slot() -> None:
    found = exported(
        span(0, 10), span(2, 50, COPY, flags=16, id=7), span(20, 30, block=1), span(25, 60, COPY, flags=16, block=1)
    )
    assert tree_of(found) == [
        ("warp 0", "load", 0, 10, 0),
        ("warp 0", "load", 20, 30, 0),
        ("warp 0 crossing", "copy", 2, 50, 0),
        ("warp 0 crossing 2", "copy", 25, 60, 0),
    ]


def test_times_that_go_back_within_a_warp_are_put_in_order() -> None:
    found = exported(span(10, 20, sequence=0), span(0, 5, sequence=1), span(5, 10, sequence=2))
    assert [row[2:] for row in tree_of(found)] == [(0, 5, 0), (5, 10, 0), (10, 20, 0)]


def test_rows_of_a_table_in_another_order_are_put_in_order() -> None:
    trace = rmsnorm(blocks=4, sms=2, warps=2, resident=1)
    mixed = replace(trace, spans=trace.spans.sample(fraction=1, shuffle=True, seed=1))
    assert tree_of(written(mixed)) == tree_of(written(trace))


INTERVALS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(0, 12),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from([0, 0, 0, 1, 8, 16]),
    ),
    max_size=14,
)


@settings(max_examples=100, deadline=None)
@given(INTERVALS, st.sampled_from([1, 3, 1 << 15]))
def test_any_spans_keep_their_times_and_nest(rows: list[tuple[int, int, int, int, int]], piece_rows: int) -> None:
    spans = [
        span(a, a if flags == 1 else max(a, b), site, block=block, flags=flags) for a, b, site, block, flags in rows
    ]
    trace = fake.of_spans(spans, SITES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "PIECE_ROWS", piece_rows)
        found = written(trace)
    assert_all_spans_are_there(trace, found)
    for each in found.of_spans():
        if each.parent is not None:
            assert each.parent.start_ns <= each.start_ns
            assert each.parent.end_ns is not None
            assert each.end_ns is not None
            assert each.end_ns <= each.parent.end_ns


def test_tracks_go_from_launches_to_sms_to_slots_to_warps_in_order_of_number() -> None:
    trace = rmsnorm(blocks=48, sms=12, warps=11, resident=2)
    found = written(trace)
    (root,) = (t for t in found.tracks.values() if not t.parent)
    assert [t.name for t in found.children(root.uuid)] == [
        "resident blocks",
        "resident warps",
        "warps in each phase",
        *(f"SM {n}" for n in range(12)),
    ]
    for sm in found.children(root.uuid)[3:]:
        slots = found.children(sm.uuid)
        assert [t.name for t in slots] == ["slot 0", "slot 1"]
        for slot in slots:
            assert [t.name for t in found.children(slot.uuid)] == [f"warp {n}" for n in range(11)]
    assert all(t.ordering == 3 for t in found.tracks.values() if t.unit is None)  # EXPLICIT: by rank


def test_blocks_of_a_slot_never_overlap_and_every_block_is_there_once() -> None:
    trace = rmsnorm(blocks=60, sms=5, warps=2, resident=3)
    found = written(trace)
    blocks = [s for s in found.slices if s.category == "block"]
    table = {f"block {b}": (s, e) for b, s, e in trace.blocks.select("block", "start_ns", "end_ns").rows()}
    assert {s.name: (s.start_ns, s.end_ns) for s in blocks} == table
    assert len(blocks) == len(table)
    assert {s.depth for s in blocks} == {0}
    for each in found.of_spans():
        slot = found.tracks[each.track].parent
        (block,) = (s for s in blocks if s.track == slot and s.start_ns <= each.start_ns and each.start_ns < s.end_ns)  # type: ignore[operator]
        assert block.name == f"block {each.args['block']}"
        assert block.args["wave"] == trace.blocks.row(each.args["block"], named=True)["wave"]


def test_an_sm_with_one_slot_shows_its_blocks_itself() -> None:
    found = written(rmsnorm(blocks=4, sms=2, warps=1, resident=1))
    assert {found.path(s.track)[1:] for s in found.slices if s.category == "block"} == {("SM 0",), ("SM 1",)}


def test_an_sm_that_is_not_known_has_a_row_of_its_own_at_the_end() -> None:
    trace = rmsnorm(blocks=4, sms=2, warps=1, resident=1)
    unknown = pl.when(pl.col("block") == 1).then(None).otherwise("sm_begin").cast(pl.UInt16)
    blocks = trace.blocks.with_columns(sm_begin=unknown, sm_end=unknown)
    found = written(replace(trace, blocks=blocks))
    (root,) = (t.uuid for t in found.tracks.values() if not t.parent)
    assert found.children(root)[-1].name == "SM not known"
    assert totals(found.of_spans()) == totals_of_table(trace)


def test_counters_step_with_each_block_and_the_sm_says_how_many_are_there() -> None:
    found = exported(
        span(0, 10), span(5, 20, block=1), span(5, 20, block=1, warp=1), span(20, 30, block=2), span(40, 41, block=3)
    )
    by_name = {found.tracks[uuid].name: values for uuid, values in found.counters.items()}
    assert by_name == {
        "load": [(0, 100), (30, 0), (40, 100), (41, 0)],
        "resident blocks": [(0, 1), (5, 2), (10, 1), (30, 0), (40, 1), (41, 0)],
        "resident warps": [(0, 1), (5, 3), (10, 2), (20, 1), (30, 0), (40, 1), (41, 0)],
    }
    resident = [(s.name, s.start_ns, s.end_ns) for s in found.slices if s.category == "resident"]
    assert resident == [("1 block", 0, 5), ("2 blocks", 5, 10), ("1 block", 10, 30), ("1 block", 40, 41)]


def of_two_sms() -> Any:
    """Blocks 0 and 1 on SM 4, 2 on SM 7, 100 ns apart; each a span of 30 ns and one of 5."""
    rows = [span(100 * b + s, 100 * b + e, block=b) for b in range(3) for s, e in ((0, 30), (30, 35))]
    return fake.of_spans(rows, SITES, sms={0: 4, 1: 4, 2: 7})


@pytest.mark.parametrize(
    ("selection", "starts", "sms", "blocks"),
    [
        ({}, [0, 30, 100, 130, 200, 230], ["SM 4", "SM 7"], ["block 0", "block 1", "block 2"]),
        ({"sms": [7]}, [200, 230], ["SM 7"], ["block 2"]),
        ({"blocks": [1]}, [100, 130], ["SM 4"], ["block 1"]),
        ({"from_ns": 30, "to_ns": 130}, [30, 100], ["SM 4"], ["block 0", "block 1"]),
        ({"min_duration_ns": 6}, [0, 100, 200], ["SM 4", "SM 7"], ["block 0", "block 1", "block 2"]),
        ({"sms": [4], "blocks": [1], "from_ns": 131}, [130], ["SM 4"], ["block 1"]),
    ],
)
def test_a_selection_has_rows_for_what_is_left_and_for_nothing_else(
    selection: dict[str, Any], starts: list[int], sms: list[str], blocks: list[str]
) -> None:
    found = written(of_two_sms(), **selection)
    assert sorted(s.start_ns for s in found.of_spans()) == starts
    assert [t.name for t in found.tracks.values() if t.name.startswith("SM ")] == sms
    assert sorted(s.name for s in found.slices if s.category == "block") == blocks


def test_launches_that_overlap_get_tracks_of_their_own() -> None:
    found = exported(span(0, 10), span(5, 8, launch=1), span(20, 30, launch=2))
    assert [(found.path(s.track), s.name, s.start_ns, s.end_ns) for s in found.slices if s.category == "launch"] == [
        (("GPU",), "launch 0: rmsnorm_fwd<true>", 0, 10),
        (("GPU", "launches 2"), "launch 1: rmsnorm_fwd<true>", 5, 8),
        (("GPU",), "launch 2: rmsnorm_fwd<true>", 20, 30),
    ]
    (launch, *_) = (s for s in found.slices if s.category == "launch")
    assert launch.args["grid"] == "1x1x1"
    assert launch.args["uncertainty_ns"] == 38.0


@pytest.mark.parametrize(
    "name", ["</script>", "a\"b'", "🚀 emoji", "\u202egnp", "x" * 10_000, "", "\x00\x1b[31m\n", "名"]
)
def test_names_arrive_as_they_are(name: str) -> None:
    trace = fake.of_spans([span(0, 10), span(10, 12, FULL)], [(name, "phase", ""), *SITES[1:4], (name, "wait", name)])
    found = written(replace(trace, launches=trace.launches.with_columns(kernel=pl.lit(name))))
    assert [s.name for s in found.of_spans()] == [name, f"{name} [{name}]" if name else ""]
    assert any(s.name == f"launch 0: {name}" for s in found.slices)


def test_a_trace_without_spans_is_a_trace() -> None:
    trace = rmsnorm(blocks=2, sms=2, warps=1, resident=1)
    found = written(replace(trace, spans=trace.spans.clear()))
    assert found.of_spans() == []
    assert len([s for s in found.slices if s.category == "block"]) == 2
    nothing = written(
        replace(trace, spans=trace.spans.clear(), blocks=trace.blocks.clear(), launches=trace.launches.clear())
    )
    assert nothing.slices == []


def test_one_span_is_a_trace() -> None:
    assert tree_of(exported(span(3, 5))) == [("warp 0", "load", 3, 5, 0)]


def test_times_of_19_digits_and_spans_of_many_hours_are_exact() -> None:
    hours = 1 << 54
    trace = fake.of_spans([span(1, hours + 1), span(hours + 1, hours + 3), span(2, 5, block=1)], SITES)
    found = written(replace(trace, origin_ns=1_796_020_065_015_190_147))
    first = 1_796_020_065_015_190_147
    assert sorted((s.start_ns - first, s.duration_ns) for s in found.of_spans()) == [(1, hours), (2, 3), (hours + 1, 2)]


def test_times_beyond_63_bits_are_refused_with_words() -> None:
    trace = fake.of_spans([span(0, 1 << 62)], SITES)
    with pytest.raises(UsageError, match="do not fit into a Perfetto trace"):
        written(replace(trace, origin_ns=1 << 62))
    with pytest.raises(UsageError, match=r"beyond 2\^63"):
        exported(span((1 << 63) - 10, (1 << 63) + 90))


def test_arguments_say_where_a_span_is_from_and_can_be_left_out() -> None:
    row = span(0, 10, FULL, payload=77, id=3, flags=2, warp=2, block=5)
    found = {s.name: s for s in exported(row, span(0, 4, LOAD, warp=2, block=6, sequence=9)).of_spans()}
    assert found["full [stage 0]"].args == {
        "launch": 0,
        "block": 5,
        "warp": 2,
        "sequence": 0,
        "start_cycles": 0,
        "cycles": 10,
        "payload": 77,
        "id": 3,
        "flags": "UNENDED",
    }
    assert found["full [stage 0]"].source == ("rmsnorm.cu", 14)
    assert found["full [stage 0]"].category == "wait"
    assert set(found["load"].args) == {"launch", "block", "warp", "sequence", "start_cycles", "cycles"}
    bare = exported(row, arguments=False).of_spans()[0]
    assert (bare.name, bare.args, bare.source, bare.category) == ("full [stage 0]", {}, None, "")


def test_sources_that_are_not_known_are_not_named() -> None:
    trace = fake.of_spans([span(0, 1), span(1, 2, TILE)], SITES)
    sites = trace.sites.with_columns(file=pl.when(pl.col("site") == LOAD).then(pl.lit("")).otherwise("file"))
    assert [s.source for s in written(replace(trace, sites=sites)).of_spans()] == [None, ("rmsnorm.cu", 11)]


def test_negative_cycles_stay_negative() -> None:
    trace = fake.of_spans([span(0, 1)], SITES)
    spans = trace.spans.with_columns(start_cycles=pl.lit(-5, pl.Int64))
    assert written(replace(trace, spans=spans)).of_spans()[0].args["start_cycles"] == -5


def test_a_block_that_the_table_lacks_is_a_format_error() -> None:
    trace = rmsnorm(blocks=2, sms=1, warps=1, resident=2)
    with pytest.raises(FormatError, match="lacks a block"):
        written(replace(trace, blocks=trace.blocks.head(1)))


def test_tables_that_contradict_themselves_give_a_trace_with_all_begins_and_ends() -> None:
    """A file may hold any numbers: an instant that lasts, spans, blocks and launches that end before they begin."""
    trace = fake.of_spans([span(5, 9, TICK, flags=1), span(7, 3), span(8, 20)], SITES)
    early = pl.col("start_ns") - 1
    launches, blocks = (frame.with_columns(end_ns=early) for frame in (trace.launches, trace.blocks))
    found = written(replace(trace, launches=launches, blocks=blocks))
    assert [row[2:4] for row in tree_of(found)] == [(5, 5), (7, 7), (8, 20)]
    assert [s.duration_ns for s in found.slices if s.category in ("block", "launch")] == [0, 0]


def test_three_thousand_warps_have_three_thousand_tracks() -> None:
    found = written(rmsnorm(blocks=150, sms=50, warps=20, resident=3), arguments=False)
    assert sum(t.name.startswith("warp ") for t in found.tracks.values()) == 3_000


def test_the_same_trace_gives_the_same_bytes() -> None:
    trace = rmsnorm(blocks=20, sms=4, warps=2, resident=2)
    first, second = (
        b"".join(bytes(b) for b in perfetto_bytes(choose(trace, Selection()), trace.sites, 0)) for _ in range(2)
    )
    assert first == second


def test_some_blocks_of_a_recording_from_a_gpu() -> None:
    trace = demo_trace("cpu")[0]
    some = range(0, 528, 40)
    kept = trace.spans.filter(pl.col("block").is_in(list(some)))
    found = written(trace, blocks=some)
    assert len(found.of_spans()) == kept.height == 14 * 160
    assert sum(s.duration_ns for s in found.of_spans()) == kept["duration_ns"].sum()
    assert {s.depth for s in found.of_spans()} == {0}
    assert np.array_equal(np.sort([s.start_ns for s in found.of_spans()]), np.sort(kept["start_ns"] + trace.origin_ns))
