"""Small recordings whose every number was worked out by hand from layout.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.synthesis import BlockRecord, Clock, Event, Warp, calibration, encode_warp, manifest
from warplens import layout
from warplens.decode import Decoded, decode
from warplens.decode.flags import SpanFlag
from warplens.decode.manifest import check
from warplens.layout import Control, Verb

SITES = (("a", "phase", ""), ("b", "phase", ""), ("c", "range", ""))
HASH = layout.sites_hash("rmsnorm")


def decode_one(chunks: Any, *, sites: Any = SITES, clock: Clock | None = None, **launch: Any) -> Decoded:
    """One launch decoded; with the calibration of a `clock` that all SMs share, so that nanoseconds are exact."""
    facts = manifest(launches=[launch], sites=sites, sm_count=4)
    if clock is not None:
        facts["calibration"] = [calibration([clock] * 4, "before", 0), calibration([clock] * 4, "after", 10**8)]
        for entry in facts["calibration"]:
            entry["clock_cycles"] = [cycles % 2**64 for cycles in entry["clock_cycles"]]
    return decode(check(facts), {"records/000000.u32": np.asarray(chunks, np.uint32).reshape(-1, 32)})


def kinds(decoded: Decoded) -> dict[str, int]:
    out: dict[str, int] = {}
    for problem in decoded.problems:
        out[problem.kind] = out.get(problem.kind, 0) + problem.count
    return out


def test_a_chunk_written_out_word_by_word_gives_its_two_phases() -> None:
    # 3 sites: code_bits 7, and a record tells its clock modulo 2^25. a at 400, b at 700, the end at 1000.
    words = [0] * 32
    words[0] = 0  # block
    words[1] = 0xA << 28 | 0b0001001 << 21 | 2 << 16 | 2 << 6 | 0  # LAST, BLOCK_RECORD; 2 records; SM 2; warp 0
    words[2] = 1  # grid
    words[3] = 0  # sequence
    words[4], words[5] = 1000, 3  # base 3 * 2^32 + 1000
    words[6] = 400 << 7 | 1 << 5 | 0 << 2
    words[7] = 700 << 7 | 2 << 5 | 0 << 2
    # globaltimer 65536 + 200 (low word) at record 0; at the end 7 * 2^32 + 65536 + 500; on SM 2
    words[24:] = [0x10000 + 200, 0x10000 + 500, 7, 2, HASH, 0, 0, 0]
    clock = Clock(offset_cycles=3 << 32, cycles_per_ns=2.0, zero_ns=7 << 32 | 0x10000)
    decoded = decode_one([words], clock=clock)
    spans = decoded.spans
    assert spans.site.tolist() == [0, 1]
    assert spans.sequence.tolist() == [0, 1]
    assert spans.start_cycles.tolist() == [(3 << 32) + 400, (3 << 32) + 700]
    assert spans.duration_cycles.tolist() == [300, 300]
    assert spans.duration_ns.tolist() == [150, 150]
    assert spans.start_ns.tolist() == [0, 150]
    assert decoded.blocks["sm_begin"].tolist() == [2]
    assert decoded.blocks["sm_end"].tolist() == [2]
    assert decoded.blocks["start_ns"].tolist() == [0]
    assert decoded.blocks["end_ns"].tolist() == [300]
    # An edge of the calibration may have been seen up to 24 ns late: the middle is taken.
    assert abs(decoded.origin_ns - 10 - (7 << 32 | 0x10000 + 200)) <= 4
    assert decoded.launches["events"].tolist() == [2]
    assert kinds(decoded) == {"site_never_reached": 1}


def test_nested_ranges_with_payloads_tokens_and_marks() -> None:
    where = Warp(code_bits=7)
    t = 10_000
    events = [
        Event(Verb.RANGE_PUSH, t, 3, payload=77),  # word 0, 1
        Event(Verb.PHASE, t + 10, 1),  # word 2
        Event(Verb.RANGE_START, t + 20, 2),  # word 3
        Event(Verb.RANGE_PUSH, t + 30, 3),  # word 4
        Event(Verb.MARK, t + 40, 1, id=5, payload=6),  # words 5, 6, 7
        Event(Control.RANGE_POP, t + 50),  # word 8
        Event(Control.TOKEN_END, t + 60, id=3),  # words 9, 10
        Event(Control.PHASE_END, t + 70),
        Event(Control.RANGE_POP, t + 80),
        Event(Control.END, t + 90),
    ]
    decoded = decode_one(encode_warp(events, where), clock=where.clock)
    spans = decoded.spans
    columns = zip(
        *(getattr(spans, n).tolist() for n in ("sequence", "site", "depth", "duration_cycles", "flags")), strict=True
    )
    assert list(columns) == [
        (0, 2, 0, 80, 0),
        (2, 0, 1, 60, 0),
        (3, 1, 1, 40, 0),
        (4, 2, 1, 20, 0),
        (5, 0, 2, 0, int(SpanFlag.INSTANT)),
    ]
    assert spans.payload is not None
    assert spans.id is not None
    assert spans.payload.values.tolist() == [77, 0, 0, 0, 6]
    assert spans.payload.valid.tolist() == [True, False, False, False, True]
    assert spans.id.values.tolist() == [0, 0, 0, 0, 5]
    assert kinds(decoded) == {}


def test_a_lost_chunk_cuts_spans_and_is_counted() -> None:
    where = Warp(code_bits=7, slots=2)
    events = [Event(Verb.PHASE, 1000 + 100 * i, 1 + i % 2) for i in range(6)] + [Event(Control.END, 1650)]
    chunks = encode_warp(events, where)  # records 01 23 45
    decoded = decode_one(np.delete(chunks, 1, axis=0))
    spans = decoded.spans
    assert spans.sequence.tolist() == [0, 1, 4, 5]
    assert spans.duration_cycles.tolist() == [100, 0, 100, 150]
    assert spans.flags.tolist() == [0, int(SpanFlag.UNENDED), int(SpanFlag.AFTER_GAP), 0]
    gap = next(p for p in decoded.problems if p.kind == "gap")
    assert (gap.block, gap.warp, gap.sequence, gap.count, gap.severity) == (0, 0, 4, 2, "loss")


def test_a_lost_first_chunk_is_a_gap_before_the_first_span() -> None:
    chunks = encode_warp([Event(Verb.PHASE, 1000 + i, 1) for i in range(4)], Warp(code_bits=7, slots=2))
    decoded = decode_one(chunks[1:])
    assert decoded.spans.flags.tolist() == [int(SpanFlag.AFTER_GAP), int(SpanFlag.UNENDED)]
    assert kinds(decoded)["gap"] == 2


def test_a_warp_without_an_end_is_told_and_its_last_phase_is_cut() -> None:
    decoded = decode_one(encode_warp([Event(Verb.PHASE, 1000, 1), Event(Verb.PHASE, 1500, 2)], Warp(code_bits=7)))
    assert decoded.spans.duration_cycles.tolist() == [500, 0]
    assert decoded.spans.flags.tolist() == [0, int(SpanFlag.UNENDED)]
    assert kinds(decoded)["no_end"] == 1


def test_a_gap_record_splits_the_warp_and_says_how_many_were_left_out() -> None:
    events = [
        Event(Verb.PHASE, 100, 1),
        Event(Verb.PHASE, 200, 2),
        Event(Control.GAP, 300, payload=40),
        Event(Verb.PHASE, 400, 1),
        Event(Control.END, 450),
    ]
    decoded = decode_one(encode_warp(events, Warp(code_bits=7)))
    assert decoded.spans.sequence.tolist() == [0, 1, 4]
    assert decoded.spans.flags.tolist() == [0, int(SpanFlag.UNENDED), int(SpanFlag.AFTER_GAP)]
    assert kinds(decoded)["gap"] == 40


def test_a_gap_at_the_end_of_one_warp_does_not_mark_the_next() -> None:
    first = encode_warp([Event(Verb.PHASE, 100, 1), Event(Control.GAP, 300, payload=1)], Warp(code_bits=7))
    second = encode_warp([Event(Verb.PHASE, 100, 1), Event(Control.END, 300)], Warp(code_bits=7, warp=1))
    decoded = decode_one([*first, *second], block=[64, 1, 1])
    assert decoded.spans.flags.tolist() == [int(SpanFlag.UNENDED), 0]


def ended(decoded: Decoded) -> list[tuple[int, int, int]]:
    """Span, block and warp of the ranges that another warp ended."""
    enders = decoded.enders
    return list(zip(enders.row.tolist(), enders.block.tolist(), enders.warp.tolist(), strict=True))


def test_a_range_that_its_own_warp_ends_by_id_has_no_other_ender() -> None:
    events = [Event(Verb.RANGE_START, 1000, 3, id=9), Event(Verb.RANGE_END, 1700, 3, id=9), Event(Control.END, 5000)]
    assert ended(decode_one(encode_warp(events, Warp(code_bits=7)))) == []


def test_a_range_that_one_warp_starts_and_another_ends() -> None:
    start = encode_warp([Event(Verb.RANGE_START, 1000, 3, id=9), Event(Control.END, 5000)], Warp(code_bits=7))
    end = encode_warp([Event(Verb.RANGE_END, 1700, 3, id=9), Event(Control.END, 5000)], Warp(code_bits=7, warp=1))
    decoded = decode_one([*start, *end], block=[64, 1, 1])
    assert decoded.spans.duration_cycles.tolist() == [700]
    assert decoded.spans.flags.tolist() == [int(SpanFlag.CROSS_WARP)]
    assert ended(decoded) == [(0, 0, 1)]
    assert "unmatched_start" not in kinds(decoded)


def test_an_id_used_by_two_blocks_joins_inside_each_block() -> None:
    chunks = [
        encode_warp([Event(verb, t, 3, id=1), Event(Control.END, 9000)], Warp(code_bits=7, block=block, warp=warp))
        for block, warp, verb, t in (
            (0, 0, Verb.RANGE_START, 1000),
            (1, 0, Verb.RANGE_START, 1100),
            (0, 1, Verb.RANGE_END, 1300),
            (1, 1, Verb.RANGE_END, 1200),
        )
    ]
    decoded = decode_one(np.concatenate(chunks), block=[64, 1, 1], grid=[2, 1, 1])
    assert decoded.spans.duration_cycles.tolist() == [300, 100]


def test_an_id_unmatched_in_its_block_joins_across_blocks() -> None:
    one = encode_warp([Event(Verb.RANGE_START, 1000, 3, id=1), Event(Control.END, 9000)], Warp(code_bits=7))
    two = encode_warp([Event(Verb.RANGE_END, 1300, 3, id=1), Event(Control.END, 9000)], Warp(code_bits=7, block=1))
    decoded = decode_one([*one, *two], grid=[2, 1, 1])
    assert decoded.spans.duration_cycles.tolist() == [300]
    assert decoded.spans.flags.tolist() == [int(SpanFlag.CROSS_WARP)]
    assert ended(decoded) == [(0, 1, 0)]


def test_starts_and_ends_that_find_nobody_are_errors() -> None:
    events = [Event(Verb.RANGE_END, 50, 3, id=4), Event(Verb.RANGE_START, 100, 3, id=4), Event(Control.END, 150)]
    decoded = decode_one(encode_warp(events, Warp(code_bits=7)))
    assert kinds(decoded)["unmatched_end"] == 1
    assert kinds(decoded)["unmatched_start"] == 1
    assert decoded.spans.flags.tolist() == [int(SpanFlag.UNENDED)]
    assert decoded.spans.duration_cycles.tolist() == [50]


def test_crossing_token_ranges_are_flagged_and_nested_ones_are_not() -> None:
    events = [
        Event(Verb.RANGE_START, 100, 1),  # 0
        Event(Verb.RANGE_START, 200, 2),  # 1
        Event(Control.TOKEN_END, 300, id=0),  # 2, 3: crosses 1
        Event(Control.TOKEN_END, 400, id=1),  # 4, 5
        Event(Verb.RANGE_START, 500, 1),  # 6
        Event(Verb.RANGE_START, 600, 2),  # 7
        Event(Control.TOKEN_END, 700, id=7),
        Event(Control.TOKEN_END, 800, id=6),
        Event(Control.END, 900),
    ]
    decoded = decode_one(encode_warp(events, Warp(code_bits=7)))
    crossing = int(SpanFlag.OVERLAPPING)
    assert decoded.spans.flags.tolist() == [crossing, crossing, 0, 0]
    assert decoded.spans.duration_cycles.tolist() == [200, 200, 300, 100]
    assert kinds(decoded)["overlapping"] == 2


def test_pops_without_pushes_and_pushes_without_pops_are_errors() -> None:
    events = [
        Event(Control.RANGE_POP, 50),
        Event(Verb.RANGE_PUSH, 100, 3),
        Event(Verb.RANGE_PUSH, 200, 3),
        Event(Control.RANGE_POP, 300),
        Event(Control.END, 400),
    ]
    decoded = decode_one(encode_warp(events, Warp(code_bits=7)))
    assert kinds(decoded)["unmatched_pop"] == 1
    assert kinds(decoded)["unmatched_push"] == 1
    assert decoded.spans.depth.tolist() == [0, 1]
    assert decoded.spans.duration_cycles.tolist() == [300, 100]
    assert decoded.spans.flags.tolist() == [int(SpanFlag.UNENDED), 0]


def test_an_unknown_site_ends_the_phase_before_it_and_begins_none() -> None:
    events = [Event(Verb.PHASE, 100, 1), Event(Verb.PHASE, 200, 3), Event(Control.END, 400)]
    decoded = decode_one(encode_warp(events, Warp(code_bits=7)), sites=[*SITES[:2]])
    assert decoded.spans.duration_cycles.tolist() == [100]
    assert kinds(decoded)["unknown_site"] == 1


def test_words_never_written_and_the_spare_verb_are_counted_and_split_the_warp() -> None:
    chunks = encode_warp(
        [Event(Verb.PHASE, 100 * i, 1) for i in range(1, 5)] + [Event(Control.END, 500)], Warp(code_bits=7)
    )
    chunks[0, layout.HEADER_WORDS + 1] = 0
    decoded = decode_one(chunks)
    assert decoded.spans.sequence.tolist() == [0, 2, 3]
    assert decoded.spans.flags.tolist() == [int(SpanFlag.UNENDED), int(SpanFlag.AFTER_GAP), 0]
    assert kinds(decoded)["unknown_record"] == 1


def test_an_event_whose_payload_word_is_cut_off_is_counted() -> None:
    chunks = encode_warp([Event(Verb.PHASE, 100, 1), Event(Verb.MARK, 200, 1, id=3, payload=4)], Warp(code_bits=7))
    chunks[0, layout.WORD_META] -= 1 << layout.META_COUNT_SHIFT
    decoded = decode_one(chunks)
    assert decoded.spans.sequence.tolist() == [0]
    assert kinds(decoded)["cut_record"] == 2


def test_a_block_without_its_record_leaves_null_where_it_began() -> None:
    events = [Event(Verb.PHASE, 3000, 1), Event(Control.END, 4000)]
    clock = Clock(offset_cycles=500, cycles_per_ns=2.0)
    with_record = encode_warp(events, Warp(code_bits=7, clock=clock, sm=3), block_record=BlockRecord(3000, 3, HASH))
    without = encode_warp(events, Warp(code_bits=7, clock=clock, sm=3, block=1))
    decoded = decode_one([*with_record, *without], clock=clock, grid=[2, 1, 1])
    assert decoded.blocks["sm_begin"].tolist() == [3, -1]
    assert decoded.blocks["sm_end"].tolist() == [3, 3]
    assert decoded.blocks["start_ns"].tolist() == [0, 0]
    assert decoded.blocks["end_ns"].tolist() == [500, 500]


@pytest.mark.parametrize("lasted_ns", [10_000, 30_000_000, 3_000_000_000, 60_000_000_000])
def test_a_block_may_last_a_minute(lasted_ns: int) -> None:
    # Every chunk spans less than a turn (2^25 cycles, 17 ms); low words of globaltimer turn every 4.29 s.
    clock = Clock(offset_cycles=77, cycles_per_ns=1.98)
    steps = max(2, lasted_ns // 10_000_000)
    times = np.linspace(clock.cycles(5000), clock.cycles(5000 + lasted_ns), steps + 1).astype(np.int64).tolist()
    events = [Event(Verb.PHASE, t, 1) for t in times[:-1]] + [Event(Control.END, times[-1])]
    record = BlockRecord(times[0], 1, HASH)
    chunks = encode_warp(events, Warp(code_bits=7, clock=clock, sm=1, slots=1, flags=0), block_record=record)
    decoded = decode_one(chunks, clock=clock)
    assert decoded.spans.start_cycles.tolist() == times[:-1]
    assert not decoded.spans.flags.any()
    assert abs(int(decoded.launches["duration_ns"][0]) - lasted_ns) <= 300 + decoded.launches["uncertainty_ns"][0]


@pytest.mark.parametrize("start", [2**63 - 2000, 2**63 - 500, 2**63 + 5, 2**64 - 1000])
def test_clocks_near_two_to_the_63_and_64_do_not_break(start: int) -> None:
    clock = Clock(offset_cycles=start - 4_000_000, cycles_per_ns=2.0)
    times = [start + 250 * i for i in range(5)]
    events = [Event(Verb.PHASE, t, 1) for t in times[:-1]] + [Event(Control.END, times[-1])]
    chunks = []
    for warp in range(2):
        wrapped = encode_warp(events, Warp(code_bits=7, warp=warp, clock=clock, slots=2))
        chunks.append(wrapped)
    decoded = decode_one(np.concatenate(chunks), clock=clock, block=[64, 1, 1])
    assert decoded.spans.duration_cycles.tolist() == [250] * 8
    assert np.abs(np.diff(decoded.spans.start_ns[:4]) - 125).max() <= 1  # each is rounded to whole ns
    assert decoded.spans.start_cycles.tolist()[:4] == [(t + 2**63) % 2**64 - 2**63 for t in times[:-1]]


def wrapped_chunks(times: list[int], end: int, *, slots: int = 26) -> Any:
    events = [Event(Verb.PHASE, t, 1 + i % 2) for i, t in enumerate(times)]
    return encode_warp(
        [*events, Event(Control.END, end)],
        Warp(code_bits=7, slots=slots, flags=0),
        block_record=BlockRecord(0, 0, HASH),
    )


TURN = 1 << 25


def test_a_chunk_that_wrapped_once_in_a_known_place_is_exact() -> None:
    # Chunk 1 holds what follows 2000 cycles after the base of chunk 0; one turn fits between, and only there.
    times = [1000, 1500, 3000 + TURN - 100, 4000 + TURN]
    decoded = decode_one(wrapped_chunks(times, 5000 + TURN, slots=2))
    assert decoded.spans.start_cycles.tolist() == times
    assert "wrapped" in kinds(decoded)


def test_a_chunk_that_wrapped_between_its_own_events_is_exact_when_no_further_turn_fits() -> None:
    times = [1000, 1500, 6000, TURN + 4000]
    decoded = decode_one(wrapped_chunks(times, TURN + 9000, slots=2))
    assert decoded.spans.start_cycles.tolist() == times
    assert decoded.spans.flags.tolist() == [0, 0, 0, 0]
    assert "wrapped" not in kinds(decoded)


def test_a_chunk_that_wrapped_nobody_knows_where_is_right_modulo_a_turn_and_flagged() -> None:
    times = [1000, 2000, TURN * 3 + 2500]
    decoded = decode_one(wrapped_chunks(times, TURN * 3 + 9000))
    assert [(a - b) % TURN for a, b in zip(decoded.spans.start_cycles.tolist(), times, strict=True)] == [0, 0, 0]
    assert decoded.spans.duration_cycles.tolist() == [1000, 500, 6500]  # the least that each can be
    assert decoded.spans.flags.tolist() == [int(SpanFlag.WRAPPED)] * 3
    wrapped = next(p for p in decoded.problems if p.kind == "wrapped")
    assert (wrapped.count, wrapped.severity) == (3, "error")


def test_waves_count_blocks_by_the_most_that_were_resident_at_once() -> None:
    clock = Clock(cycles_per_ns=2.0)
    chunks = [
        encode_warp([Event(Verb.PHASE, start, 1), Event(Control.END, end)], Warp(code_bits=7, block=block, clock=clock))
        for block, start, end in ((0, 1000, 5000), (1, 1100, 4000), (2, 4500, 9000), (3, 5500, 9500), (4, 9900, 9950))
    ]
    decoded = decode_one(np.concatenate(chunks), grid=[5, 1, 1])
    assert decoded.blocks["wave"].tolist() == [0, 0, 1, 1, 2]
