"""Detached events: instants of single lanes beside the warp's own records, which they leave as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.synthesis import BlockRecord, Clock, Event, Warp, calibration, detached, encode_warp, manifest
from tests.unit.decode.test_chunks import MEMBER, counts, decode_chunks
from warplens import layout
from warplens.decode import Decoded, decode
from warplens.decode.flags import SpanFlag
from warplens.decode.manifest import check
from warplens.layout import Control, Verb

CLOCK = Clock(offset_cycles=1 << 40, cycles_per_ns=2.0)
BEGIN = (1 << 40) + 200_000
HASH = layout.sites_hash("rmsnorm")


def own(*, block: int = 0, warp: int = 0, flags: int = 4) -> Any:
    """A warp with two phases from BEGIN on, and its end 500 cycles later."""
    events = [
        Event(Verb.PHASE, BEGIN, 1),
        Event(Verb.PHASE, BEGIN + 400, 2, payload=7),
        Event(Control.END, BEGIN + 500),
    ]
    record = BlockRecord(BEGIN, 2, HASH) if warp == 0 else None
    return encode_warp(events, place(block, warp, flags), block_record=record)


def place(block: int = 0, warp: int = 0, flags: int = 4) -> Warp:
    return Warp(block=block, warp=warp, sm=2, clock=CLOCK, flags=flags)


def mark(after_cycles: int, site: int = 3, lanes: int = 1, payload: int | None = None, **where: int) -> Any:
    return detached(Event(Verb.MARK, BEGIN + after_cycles, site, payload=payload), place(**where), lanes)


def decoded(*chunks: Any, **launch: Any) -> Decoded:
    facts = manifest(launches=[launch], sm_count=4)
    around = [calibration([CLOCK] * 4, when, t_ns) for when, t_ns in (("before", 0), ("after", 10_000_000))]
    words = np.concatenate([*chunks]).astype(np.uint32)
    return decode(check({**facts, "calibration": around}), {MEMBER: words})


def losses(found: Decoded) -> list[str]:
    return [problem.text for problem in found.problems if problem.severity != "note"]


def test_a_detached_mark_is_an_instant_with_the_mask_of_its_lanes_at_the_cycle() -> None:
    found = decoded(own(), mark(150, lanes=0xF0, payload=9), mark(410, site=4, lanes=1 << 31))
    assert found.spans.start_cycles.tolist() == [BEGIN, BEGIN + 400, BEGIN + 150, BEGIN + 410]
    assert found.spans.start_ns.tolist() == [0, 200, 75, 205]  # 2 cycles a nanosecond
    assert found.spans.duration_cycles.tolist() == [400, 100, 0, 0]
    assert found.spans.site.tolist() == [0, 1, 2, 3]
    assert found.spans.flags.tolist()[2:] == [SpanFlag.INSTANT | SpanFlag.DETACHED] * 2
    assert found.spans.id is not None
    assert found.spans.id.values.tolist() == [0, 0, 0xF0, 1 << 31]
    assert found.spans.payload is not None
    assert found.spans.payload.values.tolist() == [0, 7, 9, 0]
    assert found.spans.payload.valid.tolist() == [False, True, True, False]
    assert losses(found) == []
    assert found.launches["events"].tolist() == [4]


def test_the_warps_own_records_are_decoded_as_without_detached_marks() -> None:
    warps = [own(block=b, warp=w) for b in range(9) for w in range(2)]
    lone = [mark(10 * b, block=b, warp=w) for b in range(0, 9, 2) for w in range(2)]
    shape = {"grid": [9, 1, 1], "block": [64, 1, 1]}
    alone, mixed = decoded(*warps, **shape), decoded(*lone[:4], *warps, *lone[4:], **shape)
    other = np.flatnonzero(mixed.spans.flags & np.uint16(SpanFlag.DETACHED) == 0)
    for name in ("launch", "block", "warp", "sequence", "site", "start_ns", "start_cycles", "duration_ns", "flags"):
        assert np.array_equal(getattr(mixed.spans, name)[other], getattr(alone.spans, name)), name
    for name, column in alone.blocks.items():
        assert np.array_equal(mixed.blocks[name], column), name
    kinds = [problem.kind for problem in alone.problems if problem.kind != "site_never_reached"]
    assert [problem.kind for problem in mixed.problems if problem.kind != "site_never_reached"] == kinds


def test_detached_marks_of_a_warp_are_numbered_behind_its_end_in_the_order_of_time() -> None:
    found = decoded(mark(90), own(), mark(20), mark(50))  # three records: numbers 0 to 2, and the end is 3
    assert found.spans.sequence.tolist() == [0, 1, 4, 5, 6]
    assert found.spans.start_cycles.tolist()[2:] == [BEGIN + 20, BEGIN + 50, BEGIN + 90]


def test_rows_stand_behind_those_of_their_warp() -> None:
    found = decoded(own(), mark(5, warp=1), own(warp=1), mark(5), block=[64, 1, 1])
    assert found.spans.warp.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.spans.site.tolist() == [0, 1, 2] * 2


def test_a_warp_with_detached_marks_alone_has_no_end_to_miss() -> None:
    found = decoded(own(), mark(30, block=1), mark(40, block=1), grid=[2, 1, 1], every=2)
    assert counts(found).keys() <= {"site_never_reached"}
    assert found.blocks["block"].tolist() == [0, 1]
    assert found.blocks["sm_end"].tolist() == [2, 2]
    assert (found.blocks["start_ns"][1], found.blocks["end_ns"][1]) == (15, 20)
    assert found.spans.sequence.tolist() == [0, 1, 0, 1]


def test_a_kernel_without_a_recorder_has_times_from_the_calibration() -> None:
    found = decoded(mark(300), mark(100, warp=1), grid=[4, 1, 1], block=[64, 1, 1])
    assert found.spans.start_ns.tolist() == [100, 0]
    assert found.spans.start_cycles.tolist() == [BEGIN + 300, BEGIN + 100]
    assert losses(found) == []


def test_warps_that_left_no_chunk_are_missing_where_events_were_lost() -> None:
    found = decoded(mark(300), block=[64, 1, 1], lost_events=5, lost_chunks=2)
    assert counts(found)["missing_warp"] == 2


def test_a_mark_that_was_being_written_when_the_kernel_was_stopped_is_told() -> None:
    torn = mark(10)
    torn[0, layout.WORD_BASE_LOW :] = 0
    found = decoded(own(), torn)
    assert counts(found)["torn_chunk"] == 1
    assert len(found.spans) == 2


def test_detached_chunks_that_hold_no_mark_of_a_known_site_are_damage() -> None:
    phase = detached(Event(Verb.PHASE, BEGIN + 10, 1), place())
    other_time = mark(10)
    other_time[0, layout.WORD_BASE_LOW] += 1
    found = decoded(own(), phase, other_time, mark(10, site=9))
    assert sorted(p.kind for p in found.problems if p.severity == "error") == [*["unknown_record"] * 2, "unknown_site"]
    assert len(found.spans) == 2


def test_detached_marks_of_other_launches_go_to_theirs() -> None:
    def chunks(grid: int) -> Any:
        events = [Event(Verb.PHASE, 1000, 1), Event(Control.END, 1500)]
        where = Warp(grid=grid)
        return np.concatenate([encode_warp(events, where), detached(Event(Verb.MARK, 1200, 2), where, grid)])

    found = decode_chunks(np.concatenate([chunks(5), chunks(3)]), {"grid_id": 3}, {"grid_id": 5})
    assert found.spans.launch.tolist() == [0, 0, 1, 1]
    assert found.spans.id is not None
    assert found.spans.id.values.tolist() == [0, 3, 0, 5]
    assert found.launches["events"].tolist() == [2, 2]
