"""Which chunks are taken, to which launch they go, and how the others are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.synthesis import BlockRecord, Event, Warp, encode_warp, fake_recording, manifest
from warplens import layout
from warplens.decode import Decoded, decode
from warplens.decode.flags import SpanFlag
from warplens.decode.manifest import check
from warplens.errors import FormatError
from warplens.layout import ChunkFlag, Control, Verb

MEMBER = "records/000000.u32"
EVENTS = [Event(Verb.PHASE, 1000, 1), Event(Verb.PHASE, 1400, 2), Event(Control.END, 1500)]


def decode_chunks(chunks: Any, *launches: dict[str, Any]) -> Decoded:
    facts = manifest(launches=launches or [{}], sm_count=4)
    return decode(check(facts), {MEMBER: np.asarray(chunks, np.uint32).reshape(-1, 32)})


def counts(decoded: Decoded) -> dict[str, int]:
    return {p.kind: p.count for p in decoded.problems}


def test_unwritten_and_foreign_chunks_are_skipped_and_counted() -> None:
    good = encode_warp(EVENTS, Warp())
    stray = good.copy()
    stray[:, layout.WORD_META] ^= np.uint32(1 << 31)
    decoded = decode_chunks([*good, *np.zeros((3, 32), np.uint32), *stray])
    assert len(decoded.spans) == 2
    assert counts(decoded)["unwritten_chunk"] == 3
    assert counts(decoded)["foreign_chunk"] == 1


def test_what_warps_of_automatic_marks_leave_of_their_slabs_is_no_loss() -> None:
    facts = manifest(launches=[{}], sm_count=4)
    facts["site_sets"][0]["left_out"] = []
    chunks = np.asarray([*encode_warp(EVENTS, Warp()), *np.zeros((3, 32), np.uint32)], np.uint32)
    decoded = decode(check(facts), {MEMBER: chunks})
    assert len(decoded.spans) == 2
    assert not [p for p in decoded.problems if p.severity == "loss"]


def test_chunks_of_no_launch_block_or_warp_are_foreign() -> None:
    good = encode_warp(EVENTS, Warp())
    bad = [
        encode_warp(EVENTS, Warp(grid=7)),
        encode_warp(EVENTS, Warp(block=1)),
        encode_warp(EVENTS, Warp(warp=1)),
        good.copy(),
        good.copy(),
    ]
    bad[3][0, layout.WORD_META] |= np.uint32(31 << layout.META_COUNT_SHIFT)  # 31 records of 26
    full = 19 << layout.META_COUNT_SHIFT | int(ChunkFlag.BLOCK_RECORD) << layout.META_FLAGS_SHIFT
    bad[4][0, layout.WORD_META] = (good[0, layout.WORD_META] & 0xFFFF) | 0xA << 28 | full  # 19 beside a block record
    decoded = decode_chunks(np.concatenate([good, *bad]))
    assert len(decoded.spans) == 2
    assert counts(decoded)["foreign_chunk"] == 5


def test_launches_in_one_member_are_told_apart_by_their_grid_id() -> None:
    chunks = np.concatenate([encode_warp(EVENTS, Warp(grid=5)), encode_warp(EVENTS[1:], Warp(grid=3))])
    decoded = decode_chunks(chunks, {"grid_id": 3}, {"grid_id": (1 << 32) + 5})
    assert decoded.spans.launch.tolist() == [0, 1, 1]


def test_launches_without_a_grid_id_take_the_grids_in_ascending_order() -> None:
    chunks = np.concatenate(
        [encode_warp(EVENTS, Warp(grid=5)), np.zeros((2, 32), np.uint32), encode_warp(EVENTS[1:], Warp(grid=3))]
    )
    decoded = decode_chunks(chunks, {"grid_id": None}, {"grid_id": None})
    assert decoded.spans.launch.tolist() == [0, 1, 1]


def test_a_chunk_that_repeats_records_of_its_warp_is_left_out() -> None:
    first = encode_warp(EVENTS, Warp())
    again = encode_warp([Event(Verb.PHASE, 9000, 2)], Warp())
    decoded = decode_chunks([*first, *again])
    assert decoded.spans.start_cycles.tolist() == [1000, 1400]
    assert counts(decoded)["duplicate_chunk"] == 1


def test_absent_warps_are_counted_by_grid_block_every_and_mask() -> None:
    chunks = np.concatenate([encode_warp(EVENTS, Warp(block=b, warp=w)) for b, w in ((0, 0), (0, 2), (3, 2), (6, 0))])
    launch = {"grid": [8, 1, 1], "block": [128, 1, 1], "every": 3, "warp_mask": 0b0101}
    missing = next(p for p in decode_chunks(chunks, launch).problems if p.kind == "missing_warp")
    assert missing.count == 2
    assert missing.severity == "loss"
    assert "the first: block 3 warp 0" in missing.text


def test_a_launch_that_recorded_nothing_misses_all_its_warps() -> None:
    decoded = decode_chunks(encode_warp(EVENTS, Warp(grid=1)), {"grid_id": 1}, {"grid_id": 2, "grid": [4, 1, 1]})
    missing = [(p.launch, p.count) for p in decoded.problems if p.kind == "missing_warp"]
    assert missing == [(1, 4)]
    assert decoded.launches["start_ns"][1] == np.iinfo(np.int64).min


def test_losses_counted_on_the_device_are_told_exactly() -> None:
    decoded = decode_chunks(encode_warp(EVENTS, Warp()), {"lost_events": 123_456_789_012, "lost_chunks": 7})
    lost = next(p for p in decoded.problems if p.kind == "lost_events")
    assert (lost.count, lost.severity, lost.launch) == (123_456_789_012, "loss", 0)


def newest(chunks: Any, *launches: dict[str, Any], **facts: Any) -> Decoded:
    made = manifest(launches=launches or [{}], sm_count=4) | {"keep": "newest"} | facts
    return decode(check(made), {MEMBER: np.asarray(chunks, np.uint32).reshape(-1, 32)})


LONG = [Event(Verb.PHASE, 1000 + 100 * i, 1 + i % 2) for i in range(10)] + [Event(Control.END, 2050)]


def test_what_a_ring_wrote_over_is_told_as_overwritten_by_warp_and_count() -> None:
    warps = [encode_warp(LONG, Warp(warp=warp, slots=2)) for warp in range(3)]  # five chunks each
    kept = [warps[0][3:], warps[1][1:], warps[2]]
    launch = {"block": [128, 1, 1], "lost_events": 6 + 2 + 10, "lost_chunks": 9}
    decoded = newest(np.concatenate(kept), launch)
    gaps = [p for p in decoded.problems if p.kind == "gap"]
    assert [(p.warp, p.sequence, p.count, p.severity) for p in gaps] == [(0, 6, 6, "loss"), (1, 2, 2, "loss")]
    assert all("overwritten (keep=newest)" in p.text for p in gaps)
    texts = {p.kind: p.text for p in decoded.problems}
    assert "18 records in 9 chunks were overwritten (keep=newest)" in texts["lost_events"]
    assert "1 of 4 warps left no record" in texts["missing_warp"]
    assert "overwritten (keep=newest)" in texts["missing_warp"]
    assert decoded.spans.sequence.tolist() == [*range(6, 10), *range(2, 10), *range(10)]


def test_a_span_does_not_reach_over_what_a_ring_wrote_over() -> None:
    chunks = np.delete(encode_warp(LONG, Warp(slots=2)), [1, 2], axis=0)
    decoded = newest(chunks, {"lost_events": 4, "lost_chunks": 2})
    assert decoded.spans.sequence.tolist() == [0, 1, 6, 7, 8, 9]
    assert decoded.spans.duration_cycles.tolist() == [100, 0, 100, 100, 100, 150]
    assert decoded.spans.flags.tolist() == [0, int(SpanFlag.UNENDED), int(SpanFlag.AFTER_GAP), 0, 0, 0]


def test_a_gap_in_a_ring_that_lost_nothing_is_told_as_missing() -> None:
    chunks = encode_warp(LONG, Warp(slots=2))[1:]
    assert "missing" in next(p.text for p in newest(chunks).problems if p.kind == "gap")


def test_of_a_stopped_launch_nobody_counted_what_a_ring_wrote_over() -> None:
    stopped = {"why": "it had not ended by the time-out", "after_s": 1.0, "last": []}
    decoded = newest(encode_warp(LONG, Warp(slots=2))[1:], stopped=stopped, complete=False)
    assert "overwritten (keep=newest)" in next(p.text for p in decoded.problems if p.kind == "gap")


@pytest.mark.parametrize("keep", ["youngest", None, 1, []])
def test_a_manifest_keeps_the_oldest_or_the_newest(keep: Any) -> None:
    assert check(manifest(launches=[{}]))["keep"] == "oldest"
    with pytest.raises(FormatError, match=r"manifest\.keep"):
        check(manifest(launches=[{}]) | {"keep": keep})


def test_flags_of_chunks_become_problems_of_their_warp() -> None:
    flags = int(ChunkFlag.PARTIAL | ChunkFlag.NONUNIFORM)
    decoded = decode_chunks(encode_warp(EVENTS, Warp(flags=flags)))
    assert counts(decoded)["partial_warp"] == 2
    assert counts(decoded)["nonuniform_marks"] == 2


def test_a_chunk_that_leaves_its_sm_to_the_block_record_takes_it_from_there() -> None:
    unknown = layout.META_SM_UNKNOWN
    record = BlockRecord(900, 3, layout.sites_hash("rmsnorm"))
    first = encode_warp(EVENTS, Warp(sm=unknown), block_record=record)
    second = encode_warp(EVENTS, Warp(sm=unknown, warp=1))
    decoded = decode_chunks([*first, *second], {"block": [64, 1, 1]})
    assert decoded.blocks["sm_end"].tolist() == [3]
    assert "no_clock_pair" not in counts(decoded)


def test_a_block_without_a_record_whose_chunks_leave_out_the_sm_is_told() -> None:
    decoded = decode_chunks(encode_warp(EVENTS, Warp(sm=layout.META_SM_UNKNOWN)))
    assert decoded.blocks["sm_end"].tolist() == [-1]
    assert counts(decoded)["sm_unknown"] == 1


def test_a_block_without_a_record_takes_the_sm_that_one_of_its_chunks_names() -> None:
    unknown = layout.META_SM_UNKNOWN
    events = [*EVENTS[:2], Event(Verb.PHASE, 1600, 1), Event(Control.END, 1900)]
    first = encode_warp(events, Warp(sm=unknown, slots=2))
    first[1, layout.WORD_META] ^= np.uint32((unknown ^ 3) << layout.META_SM_SHIFT)  # as a warp without all its lanes
    second = encode_warp(events, Warp(sm=unknown, warp=1))
    other = encode_warp(events, Warp(sm=unknown, block=1))
    decoded = decode_chunks([*first, *second, *other], {"grid": [2, 1, 1], "block": [64, 1, 1]})
    assert decoded.blocks["sm_end"].tolist() == [3, -1]
    assert counts(decoded)["sm_unknown"] == 1
    assert "sm_changed" not in counts(decoded)


def test_a_warp_that_changes_its_sm_is_split_and_told() -> None:
    chunks = encode_warp([*EVENTS[:2], Event(Verb.PHASE, 1600, 1), Event(Control.END, 1900)], Warp(slots=2))
    chunks[1, layout.WORD_META] |= np.uint32(1 << layout.META_SM_SHIFT)
    decoded = decode_chunks(chunks)
    assert decoded.spans.duration_cycles.tolist() == [400, 0, 300]
    assert counts(decoded)["sm_changed"] == 1


def test_a_block_recorded_with_another_site_table_is_told() -> None:
    decoded = decode_chunks(encode_warp(EVENTS, Warp(), block_record=BlockRecord(900, 0, 12345)))
    assert counts(decoded)["sites_disagree"] == 1


def test_many_places_of_one_kind_become_one_row_that_names_the_first() -> None:
    chunks = np.concatenate([encode_warp(EVENTS[:2], Warp(block=b)) for b in range(40)])
    rows = [p for p in decode_chunks(chunks, {"grid": [40, 1, 1]}).problems if p.kind == "no_end"]
    assert len(rows) == 1
    assert rows[0].count == 40
    assert rows[0].block is None
    assert "the first in block 0 warp 0" in rows[0].text


def test_chunks_in_any_order_and_in_several_members_give_the_same_spans() -> None:
    straight = fake_recording(blocks=9, warps=3, phases=30, shuffled=False)
    mixed = fake_recording(blocks=9, warps=3, phases=30, shuffled=True)
    one = decode(check(straight.manifest), straight.records)
    two = decode(check(mixed.manifest), mixed.records)
    for name in ("launch", "block", "warp", "sequence", "site", "start_cycles", "duration_cycles"):
        assert np.array_equal(getattr(one.spans, name), getattr(two.spans, name))


def test_launches_are_looked_up_once_however_many_members_there_are() -> None:
    looked: list[str] = []

    class Entry(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "records":
                looked.append(name)
            return super().__getitem__(name)

    counts = []
    for many in (4, 16):
        facts = manifest(launches=[{"records": f"records/{n:06}.u32"} for n in range(many)])
        facts = check(facts)
        facts["launches"] = [Entry(entry) for entry in facts["launches"]]
        looked.clear()
        decode(facts, {f"records/{n:06}.u32": np.zeros((0, layout.CHUNK_WORDS), np.uint32) for n in range(many)})
        counts.append(len(looked))
    assert counts[1] == 4 * counts[0]


def test_every_span_of_a_whole_launch_lies_where_it_truly_was() -> None:
    recording = fake_recording(blocks=40, warps=5, phases=8, sms=6, launches=3)
    decoded = decode(check(recording.manifest), recording.records)
    assert not decoded.problems
    zero_ns = 1_795_000_000_000_000_000
    for launch, truth in enumerate(recording.truth_ns):
        mine = decoded.spans.launch == launch
        starts = truth[:, :, :-1].reshape(-1)
        error = decoded.spans.start_ns[mine] + decoded.origin_ns - zero_ns - starts
        assert np.abs(error).max() <= decoded.launches["uncertainty_ns"][launch] + 1
        assert np.abs(decoded.spans.duration_ns[mine] - np.diff(truth, axis=2).reshape(-1)).max() <= 1


def test_kernels_with_different_site_sets_keep_their_own_sites() -> None:
    one, two = fake_recording(blocks=6, warps=2, phases=8), fake_recording(blocks=6, warps=2, phases=8)
    facts = one.manifest
    other = {**facts["site_sets"][0], "name": "other", "hash": layout.sites_hash("other")}
    facts["site_sets"] = [{**other, "name": "unused"}, facts["site_sets"][0], other]
    facts["kernels"].append({**facts["kernels"][0], "site_set": "other"})
    facts["launches"].append({**facts["launches"][0], "kernel": 1, "records": "records/000001.u32"})
    chunks = two.records[MEMBER].copy()
    recorded = chunks[:, layout.WORD_META] >> layout.META_FLAGS_SHIFT & ChunkFlag.BLOCK_RECORD != 0
    chunks[recorded, layout.BLOCK_RECORD_WORD + layout.BLOCK_SITES_HASH] = other["hash"]
    decoded = decode(check(facts), {MEMBER: one.records[MEMBER], "records/000001.u32": chunks})
    assert set(decoded.spans.site[decoded.spans.launch == 0].tolist()) == set(range(8, 16))
    assert set(decoded.spans.site[decoded.spans.launch == 1].tolist()) == set(range(16, 24))
    assert not decoded.problems


def test_records_of_random_bits_never_raise_and_are_all_counted() -> None:
    rng = np.random.default_rng(1)
    chunks = rng.integers(0, 1 << 32, (3000, 32), dtype=np.uint32)
    chunks[:2000, layout.WORD_META] = (chunks[:2000, layout.WORD_META] & 0x0FFFFFFF) | np.uint32(0xA0000000)
    chunks[:1500, layout.WORD_BLOCK] %= 50
    chunks[:1500, layout.WORD_GRID] = 1
    chunks[:1000, layout.WORD_SEQUENCE] %= 100
    decoded = decode_chunks(chunks, {"grid": [50, 1, 1], "block": [1024, 1, 1]})
    assert counts(decoded)["foreign_chunk"] > 1000
    assert (decoded.spans.duration_cycles >= 0).all()


def test_no_launches_and_no_records_give_empty_tables() -> None:
    decoded = decode(check(manifest()), {})
    assert len(decoded.spans) == 0
    assert decoded.problems == []
    assert decoded.origin_ns == 0
