"""Where warps last were, from records that were copied while a kernel hung."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import live
from tests.synthesis import fake_recording, sm_clocks
from warplens import layout
from warplens.capture.recording import Recording
from warplens.capture.stopped import last_places
from warplens.decode.last import last_events, with_last
from warplens.decode.manifest import check
from warplens.decode.stopped import where_lines
from warplens.instrument.staged import CHUNKS, LARGE_SLOT_BYTES
from warplens.layout import ChunkFlag
from warplens.render.stopped import last_sites, stopped_text
from warplens.trace import Trace

WHY = "the program had not ended by the time-out"
SLOT = CHUNKS * layout.RECORD_SLOTS
_LAST = np.uint32(int(ChunkFlag.LAST) << layout.META_FLAGS_SHIFT)


def stopped_by_records(chunks: Any, manifest: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    entry = {"why": WHY, "after_s": 2.0, "last": [], "from": "records", **more}
    records = {live.MEMBER: chunks}
    return with_last(check({**manifest, "complete": False, "stopped": entry}), records), records


def test_records_of_live_tell_what_its_table_of_last_places_tells() -> None:
    chunks, table = live.stopped_blocks(6, clocks=sm_clocks(2), whole_blocks=2)
    last, ended = last_events(chunks, live.CODE_BITS)
    told = [row for row in last_places(table) if row[0] >= 2]
    assert last == told
    assert ended == 2 * 4
    assert last_events(chunks[::-1].copy(), live.CODE_BITS) == (told, 8)  # the order of chunks means nothing


def test_the_text_and_the_times_are_those_of_a_table_where_nothing_is_held_back() -> None:
    recording = live.stopped_recording(6, whole_blocks=2, grid=300)
    by_table = where_lines(check(recording.manifest), recording.records)
    begun_ns = max(recording.manifest["calibration"][0]["globaltimer_ns"])
    manifest, records = stopped_by_records(
        recording.records[live.MEMBER], recording.manifest, globaltimer_ns=begun_ns + round(live.AFTER_S * 1e9)
    )
    assert where_lines(manifest, records) == by_table
    assert manifest["stopped"]["ended"] == 8


def packed(**options: Any) -> tuple[Any, dict[str, Any]]:
    """Chunks of a packed launch whose warp (2, 1) has not ended, and its manifest."""
    made = fake_recording(blocks=4, warps=2, phases=4, **options)
    chunks = made.records[live.MEMBER].copy()
    warp = chunks[:, layout.WORD_META] & ((1 << layout.META_WARP_BITS) - 1)
    chunks[(chunks[:, layout.WORD_BLOCK] == 2) & (warp == 1), layout.WORD_META] &= ~_LAST
    return chunks, made.manifest


def test_of_packed_records_it_is_said_how_far_they_go() -> None:
    chunks, manifest = packed()
    manifest, records = stopped_by_records(chunks, manifest)
    site = manifest["site_sets"][0]["sites"][3]["name"]
    held = " (with policy packed a warp keeps up to 24 of its last records in registers)"
    lines = where_lines(manifest, records)
    assert lines[0] == f"Where each warp was at least{held}:"
    assert lines[1].startswith(f"  block 2 warp 1: {site}")
    assert lines[2] == "  7 warps had ended"
    nothing, records = stopped_by_records(chunks[:0], manifest | {"stopped": None})
    assert where_lines(nothing, records) == [f"No warp left a record{held}."]


LARGEST = LARGE_SLOT_BYTES[0] // layout.CHUNK_BYTES * layout.RECORD_SLOTS
UNLESS = "but with --timeout or --policy stream"


@pytest.mark.parametrize(
    ("instrumented", "held"),
    [
        (None, "up to 26 of its last records in shared memory)"),
        ({"from": "ptx"}, f"up to {SLOT} of its last records in shared memory, {UNLESS})"),
        ({"records_held": LARGEST}, f"up to {LARGEST:,} of its last records in shared memory, {UNLESS})"),
        ({"records_held": 1 << 40}, f"up to {SLOT} of its last records in shared memory, {UNLESS})"),
    ],
)
def test_of_records_that_waited_in_shared_memory_it_is_said_how_many(instrumented: object, held: str) -> None:
    chunks, manifest = packed()
    manifest["kernels"][0] |= {"policy": "staged", "instrumented": instrumented}
    manifest, records = stopped_by_records(chunks, manifest)
    assert where_lines(manifest, records)[0] == f"Where each warp was at least (with policy staged a warp keeps {held}:"


def test_a_trace_shows_the_places_and_the_number_of_warps_that_ended() -> None:
    chunks, manifest = packed()
    manifest, records = stopped_by_records(chunks, manifest)
    trace = Trace.from_recording(Recording(manifest, records))
    rows = last_sites(trace)
    assert [(row["warps"], row["block"]) for row in rows] == [(1, 2), (7, None)]
    text = stopped_text(trace)
    assert text is not None
    assert WHY in text
    assert "last seen (with policy packed" in text
    assert "7 warps had ended" in text


def test_losses_and_a_set_of_sites_that_is_not_sure_are_told() -> None:
    chunks, manifest = packed()
    manifest["launches"][0] |= {"lost_events": 12}
    manifest, records = stopped_by_records(chunks, manifest, sites_guessed=True)
    lines = where_lines(manifest, records)
    assert "  12 records found no space: warps may be further on than is shown (--capacity)" in lines
    assert any("the names may be wrong" in line for line in lines)


def test_a_file_whose_places_are_there_is_left_alone() -> None:
    recording = live.stopped_recording()
    manifest = check(recording.manifest)
    assert with_last(manifest, recording.records) is manifest


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_torn_chunks_and_odd_facts_raise_nothing(data: st.DataObject) -> None:
    chunks = live.stopped_blocks(3, clocks=sm_clocks(2))[0]
    flat = chunks.reshape(-1)
    u32 = st.integers(0, (1 << 32) - 1)
    for _ in range(data.draw(st.integers(0, 20))):
        flat[data.draw(st.integers(0, len(flat) - 1))] = data.draw(u32)
    recording = live.stopped_recording(3)
    odd = st.one_of(st.none(), st.integers(-(1 << 70), 1 << 70), st.text(max_size=3), st.lists(u32, max_size=2))
    more = {key: data.draw(odd) for key in ("globaltimer_ns", "ended", "sites_guessed", "launch")}
    manifest = {**recording.manifest, "policy": data.draw(st.sampled_from(["packed", "staged", "stream", "x"]))}
    found, records = stopped_by_records(chunks, manifest, **more)
    assert len(where_lines(found, records)) <= 24
    last, ended = last_events(chunks, data.draw(st.integers(6, 15)))
    assert len(last) + ended <= len(chunks)


def test_no_chunks_are_no_warps() -> None:
    assert last_events(np.zeros((0, layout.CHUNK_WORDS), np.uint32), 8) == ([], 0)
    assert last_events(np.zeros((3, layout.CHUNK_WORDS), np.uint32), 8) == ([], 0)


@pytest.mark.parametrize("policy", [["packed"], 3])
def test_a_policy_that_is_no_text_is_none(policy: Any) -> None:
    chunks, manifest = packed()
    manifest["kernels"][0]["policy"] = policy
    found, records = stopped_by_records(chunks, manifest)
    assert where_lines(found, records)[0] == "Where each warp last was:"
