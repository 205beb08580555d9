"""A kernel that was stopped: where its warps last were, what of it decodes, and how sure its times are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import live
from tests.synthesis import Event, Warp, event_words, sm_clocks
from warplens import layout
from warplens.decode.flags import SpanFlag
from warplens.decode.manifest import check
from warplens.decode.stopped import LINES, last_places, where_lines
from warplens.errors import FormatError
from warplens.layout import ChunkFlag, Control, Verb
from warplens.render.pick import block_title
from warplens.trace import Trace


def lines_of(recording: Any) -> list[str]:
    return where_lines(check(recording.manifest), recording.records)


def kinds(trace: Trace) -> set[str]:
    return set(trace.problems["kind"].to_list())


def test_the_warp_that_is_elsewhere_comes_first_with_the_time_since_its_last_event() -> None:
    assert lines_of(live.stopped_recording()) == [
        "Where each warp last was:",
        "  block 0 warp 1: b, since 2.0 s",
        "  block 0 warps 0,2-3: c, since 2.0 s (3 warps)",
    ]


def test_blocks_alike_share_a_line_and_warps_that_ended_or_never_came_are_counted() -> None:
    assert lines_of(live.stopped_recording(6, whole_blocks=2, grid=300)) == [
        "Where each warp last was:",
        "  blocks 2-5 warp 1: b, since 2.0 s (4 warps)",
        "  blocks 2-5 warps 0,2-3: c, since 2.0 s (12 warps)",
        "  8 warps had ended",
        "  1,176 warps had not begun, or had come to no mark",
    ]


def test_since_counts_from_the_launch_by_the_calibration_before_it() -> None:
    recording = live.stopped_recording()
    places = last_places(check(recording.manifest), recording.records)
    expected_s = [live.AFTER_S - (live.LAUNCH_NS + us * 1000) / 1e9 for us in (25, 15, 25, 25)]
    assert [place.since_s for place in places] == pytest.approx(expected_s, abs=1e-6)


def test_marks_of_lanes_leave_what_is_told_of_the_warps_own_last_place() -> None:
    recording = live.stopped_recording()
    expected, chunks = lines_of(recording), recording.records[live.MEMBER]
    meta = chunks[:, layout.WORD_META] & np.uint32(~(0x7F << layout.META_FLAGS_SHIFT) & 0xFFFFFFFF)
    marks = chunks.copy()  # one behind each chunk, at its begin
    marks[:, layout.WORD_META] = meta | np.uint32(layout.DETACHED_FLAGS << layout.META_FLAGS_SHIFT)
    marks[:, layout.WORD_SEQUENCE] = layout.DETACHED_SEQUENCE
    code = event_words(Event(Verb.MARK, 0, 1, id=0), live.CODE_BITS)[0]
    marks[:, layout.HEADER_WORDS] = (chunks[:, layout.WORD_BASE_LOW] << np.uint32(live.CODE_BITS)) | np.uint32(code)
    recording.records[live.MEMBER] = np.concatenate([chunks, marks])
    assert lines_of(recording) == expected
    trace = Trace.from_recording(recording)
    detached = pl.col("flags") & int(SpanFlag.DETACHED) > 0
    assert trace.spans.filter(detached).height == len(chunks)
    plain = Trace.from_recording(live.stopped_recording())
    assert trace.spans.filter(~detached).equals(plain.spans)
    assert kinds(trace) == kinds(plain)


@pytest.mark.parametrize("missing", ["calibration", "chunk", "records"])
def test_without_a_calibration_or_the_events_chunk_no_time_is_told(missing: str) -> None:
    recording = live.stopped_recording(calibrated=missing != "calibration")
    if missing == "chunk":
        recording.records[live.MEMBER] = recording.records[live.MEMBER][:0]
    records = {} if missing == "records" else recording.records
    assert where_lines(check(recording.manifest), records)[1] == "  block 0 warp 1: b"


def test_a_kernel_that_came_to_no_mark_says_so() -> None:
    recording = live.stopped_recording()
    recording.manifest["stopped"]["last"] = []
    recording.records[live.MEMBER] = recording.records[live.MEMBER][:0]
    assert lines_of(recording) == ["No warp had come to a mark."]


def test_many_places_are_cut_to_a_screenful_with_their_number() -> None:
    recording = live.stopped_recording()
    record = event_words(Event(Verb.PHASE, 0, 1), live.CODE_BITS)[0]
    last = [[block, warp, 0, record] for block in range(1, 60) for warp in range(6) if block >> warp & 1]
    recording.manifest["stopped"]["last"] = last  # the set of warps in a is another in each block
    recording.manifest["launches"][0] |= {"grid": [60, 1, 1], "block": [192, 1, 1]}
    lines = lines_of(recording)
    assert len(lines) <= LINES
    assert lines[1] == "  block 1 warp 0: a"
    shown = LINES - 5
    rest = sum(sorted(block.bit_count() for block in range(1, 60))[shown:])
    assert lines[shown + 1] == f"  and {rest} warps in {59 - shown} more places"


def test_events_that_name_no_site_are_told_by_their_verb() -> None:
    recording = live.stopped_recording()
    words = [event_words(Event(control, 0), live.CODE_BITS)[0] for control in (Control.PHASE_END, Control.RANGE_POP)]
    recording.manifest["stopped"]["last"] = [[0, warp, 99, word] for warp, word in enumerate(words)]
    assert "  block 0 warp 0: behind an end_phase" in lines_of(recording)
    assert "  block 0 warp 1: behind a range_pop" in lines_of(recording)


def test_spans_without_an_end_are_flagged_and_the_others_are_whole() -> None:
    trace = Trace.from_recording(live.stopped_recording(3, whole_blocks=1))
    spans = trace.spans.with_columns(cut=pl.col("flags") & int(SpanFlag.UNENDED) > 0)
    assert spans.filter("cut").select("block", "warp", "site").rows() == [
        (block, warp, 1 if warp == 1 else 2) for block in (1, 2) for warp in range(4)
    ]
    assert spans.filter(~pl.col("cut"), site=0)["duration_ns"].to_list() == pytest.approx([5000] * 12, abs=2)
    assert spans.filter(pl.col("site") == 1)["payload"].unique().to_list() == [7]


def test_a_block_without_an_end_is_on_the_sm_that_its_chunks_name() -> None:
    trace = Trace.from_recording(live.stopped_recording(3, whole_blocks=1))
    assert trace.blocks.select("sm_begin", "sm_end").rows() == [(0, 0), (None, 1), (None, 0)]
    assert block_title(trace, 0, 1).startswith("block 1 (1,0,0) on SM 1, wave 1")


def test_the_trace_says_that_the_kernel_was_stopped_and_that_losses_are_not_known() -> None:
    trace = Trace.from_recording(live.stopped_recording(2, why="it crashed: X"))
    row = trace.problems.filter(kind="stopped").row(0, named=True)
    assert row["severity"] == "loss"
    assert "it crashed: X" in row["text"]
    assert "could not be counted" in row["text"]
    assert "incomplete_file" not in kinds(trace)


def test_warps_that_had_not_begun_are_no_loss() -> None:
    trace = Trace.from_recording(live.stopped_recording(2, grid=5))
    row = trace.problems.filter(kind="missing_warp").row(0, named=True)
    assert (row["count"], row["severity"]) == (12, "note")


@pytest.mark.parametrize("late_ns", [1_000_000, 1_000_000_000])
@pytest.mark.parametrize("whole_blocks", [0, 2])
def test_times_behind_the_last_clock_pair_are_right_within_the_uncertainty_that_is_stated(
    late_ns: int, whole_blocks: int
) -> None:
    clocks = sm_clocks(2)
    recording = live.stopped_recording(4, whole_blocks=whole_blocks)
    clock = clocks[1]
    events = [Event(Verb.PHASE, clock.cycles(live.LAUNCH_NS + t), 1) for t in (0, late_ns)]
    chunks, _ = live.live_warp(events, Warp(3, 3, 1, 0, live.CODE_BITS, clock))
    others = recording.records[live.MEMBER][:-1]
    trace = Trace.from_recording(replace(recording, records={live.MEMBER: np.concatenate([others, chunks])}))
    at = trace.spans.filter(block=3, warp=3)["start_ns"].to_numpy() + trace.origin_ns
    error_ns = abs(int(at[1]) - clock.zero_ns - live.LAUNCH_NS - late_ns)
    stated_ns = float(trace.launches["uncertainty_ns"][0])
    assert error_ns <= stated_ns
    assert stated_ns < 1e-3 * late_ns + 1000
    assert "clock_extrapolated" in kinds(trace)


def test_without_any_clock_pair_the_reported_clock_is_used_and_the_trace_says_so() -> None:
    recording = live.stopped_recording(calibrated=False)
    recording.manifest["clock_state"] = {"before": {"sm_hz": 1.98e9}, "after": None}
    trace = Trace.from_recording(recording)
    assert trace.spans.filter(site=0)["duration_ns"].to_list() == pytest.approx([5000] * 4, abs=1)
    assert trace.launches["uncertainty_ns"].is_null().all()
    assert {"no_clock_pair", "rate_unknown"} <= kinds(trace)


def test_a_chunk_that_was_just_being_begun_is_left_out_and_told() -> None:
    recording = live.stopped_recording()
    torn = np.zeros((1, layout.CHUNK_WORDS), np.uint32)
    torn[0, : layout.HEADER_WORDS] = recording.records[live.MEMBER][0, : layout.HEADER_WORDS]
    torn[0, [layout.WORD_SEQUENCE, layout.WORD_BASE_LOW, layout.WORD_BASE_HIGH]] = 26, 0, 0
    recording.records[live.MEMBER] = np.concatenate([torn, recording.records[live.MEMBER]])
    trace = Trace.from_recording(recording)
    assert trace.problems.filter(kind="torn_chunk")["count"].to_list() == [1]
    assert trace.spans.equals(Trace.from_recording(live.stopped_recording()).spans)


def test_an_event_whose_payload_alone_arrived_is_not_there() -> None:
    recording = live.stopped_recording()
    chunks = recording.records[live.MEMBER]
    chunks[1, layout.HEADER_WORDS + 1] = 0  # warp 1: the record of b, whose payload was written before it
    trace = Trace.from_recording(recording)
    assert trace.spans.filter(warp=1)["site"].to_list() == [0]


def test_a_chunk_torn_at_any_word_gives_the_events_before_it() -> None:
    events = [Event(Verb.PHASE, 10_000 + 100 * i, 1 + i % 3) for i in range(layout.RECORD_SLOTS)]
    whole, _ = live.live_warp(events, Warp(grid=0, code_bits=live.CODE_BITS))
    for cut in range(layout.HEADER_WORDS, layout.CHUNK_WORDS):
        recording = live.stopped_recording()
        torn = whole.copy()
        torn[0, cut:] = 0
        recording.records[live.MEMBER] = torn
        trace = Trace.from_recording(recording)
        assert trace.spans.height == cut - layout.HEADER_WORDS


@settings(deadline=None)  # the first example imports what decodes
@given(st.data())
def test_no_garbage_in_chunks_or_places_raises(data: st.DataObject) -> None:
    recording = live.stopped_recording(2, whole_blocks=data.draw(st.integers(0, 2)))
    chunks = recording.records[live.MEMBER].copy()
    for _ in range(data.draw(st.integers(1, 12))):
        row, word = data.draw(st.integers(0, len(chunks) - 1)), data.draw(st.integers(0, layout.CHUNK_WORDS - 1))
        chunks[row, word] = data.draw(st.integers(0, (1 << 32) - 1) | st.sampled_from([0, 1, 0xFFFFFFFF]))
        if data.draw(st.booleans()):  # else most would be found foreign at once
            chunks[row, layout.WORD_META] = layout.META_MARKER << layout.META_MARKER_SHIFT | (
                data.draw(st.sampled_from([int(ChunkFlag.STREAM), layout.DETACHED_FLAGS])) << layout.META_FLAGS_SHIFT
            )
    recording.records[live.MEMBER] = chunks
    u32 = st.integers(0, (1 << 32) - 1)
    recording.manifest["stopped"]["last"] += data.draw(st.lists(st.lists(u32, min_size=4, max_size=4), max_size=4))
    assert lines_of(recording)
    trace = Trace.from_recording(recording)
    assert trace.spans.height >= 0
    assert "stopped" in kinds(trace)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"why": 5, "after_s": 1.0, "last": []}, "stopped.why"),
        ({"why": "x", "after_s": float("inf"), "last": []}, "stopped.after_s"),
        ({"why": "x", "after_s": 1.0, "last": [[0, 0, 0]]}, r"stopped.last\[0\]"),
        ({"why": "x", "after_s": 1.0, "last": [[0, -1, 0, 0]]}, r"stopped.last\[0\]\[1\]"),
        ({"why": "x", "after_s": 1.0}, "'last'"),
    ],
)
def test_a_manifest_whose_stop_is_damaged_is_refused(entry: dict[str, Any], text: str) -> None:
    recording = live.stopped_recording()
    with pytest.raises(FormatError, match=text):
        check(recording.manifest | {"stopped": entry})
