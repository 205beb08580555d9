"""A time is exact only where calibrations, chunks or block records prove it; what they leave open is flagged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.synthesis import (
    BlockRecord,
    Clock,
    Event,
    Warp,
    calibration,
    encode_warp,
    fake_launch,
    fake_recording,
    manifest,
    sm_clocks,
)
from warplens import layout
from warplens.decode import Decoded, decode
from warplens.decode.flags import SpanFlag
from warplens.decode.manifest import check
from warplens.layout import ChunkFlag, Control, Verb

HASH = layout.sites_hash("rmsnorm")
SITES = [(f"site{i}", "phase", "") for i in range(1, 6)]
BITS = layout.code_bits(len(SITES))
TURN = 1 << (32 - BITS)
CLOCK = Clock(offset_cycles=1_000_000, cycles_per_ns=2.0)
WRAPPED = int(SpanFlag.WRAPPED)


def warp(times: list[int], number: int, *, record: bool = False, **where: Any) -> Any:
    """Chunks of a warp with a phase at each of `times` but the last, its end. No chunk says that it is exact."""
    events = [Event(Verb.PHASE, t, 1) for t in times[:-1]] + [Event(Control.END, times[-1])]
    place = Warp(**{"warp": number, "code_bits": BITS, "clock": CLOCK, "flags": 0, "flush_delay_cycles": 0, **where})
    return encode_warp(events, place, block_record=BlockRecord(times[0], place.sm, HASH) if record else None)


def decode_warps(*warps: Any, calibrated_ns: list[tuple[str, int]], launches: int = 1) -> Decoded:
    entries = [{"block": [64, 1, 1], "grid_id": i + 1} for i in range(launches)]
    facts = manifest(launches=entries, sites=SITES, sm_count=1)
    facts["calibration"] = [calibration([CLOCK], when, t_ns) for when, t_ns in calibrated_ns]
    return decode(check(facts), {"records/000000.u32": np.concatenate(warps)})


def severities(decoded: Decoded) -> list[str]:
    return [p.severity for p in decoded.problems if p.kind == "wrapped"]


AROUND = [("before", 0), ("after", 10**8)]
START = CLOCK.cycles(1000)


def test_each_launch_is_timed_by_the_calibrations_of_its_own_gpu() -> None:
    """Two GPUs of one process, whose SMs have the same numbers and clocks of their own."""
    alone = [fake_recording(seed=seed) for seed in (1, 2)]
    facts: dict[str, Any] = {**alone[0].manifest, "launches": [], "calibration": []}
    records = {}
    for device, own in enumerate(alone):
        name = f"records/{device:06d}.u32"
        records[name] = own.records["records/000000.u32"]
        facts["launches"] += [{**entry, "device": device, "records": name} for entry in own.manifest["launches"]]
        facts["calibration"] += [{**entry, "device": device} for entry in own.manifest["calibration"]]
    whole = decode(check(facts), records)
    parts = [decode(check(own.manifest), own.records) for own in alone]
    assert [p.kind for p in whole.problems] == [p.kind for part in parts for p in part.problems]
    for column in ("duration_cycles", "duration_ns"):
        one_by_one = np.concatenate([getattr(part.spans, column) for part in parts])
        assert np.array_equal(getattr(whole.spans, column), one_by_one)
    mixed = decode(check({**facts, "launches": [{**entry, "device": 0} for entry in facts["launches"]]}), records)
    assert len(mixed.problems) > len(whole.problems)


@pytest.mark.parametrize("device", [None, [1], "0", True, 7])
def test_a_gpu_without_calibrations_is_timed_by_its_own_blocks(device: object) -> None:
    own = fake_recording()
    facts = {**own.manifest, "launches": [{**entry, "device": device} for entry in own.manifest["launches"]]}
    assert len(decode(check(facts), own.records).spans.duration_ns) == 12 * 4 * 8


def test_a_warp_that_marks_long_before_the_blocks_first_warp_is_flagged_not_guessed() -> None:
    late = [START + 2 * TURN, START + 2 * TURN + 500]
    early = [START, START + 2 * TURN + 600]
    decoded = decode_warps(warp(late, 0, record=True), warp(early, 1), calibrated_ns=AROUND)
    assert decoded.spans.start_cycles[0] == late[0]
    assert (int(decoded.spans.start_cycles[1]) - early[0]) % TURN == 0
    assert decoded.spans.flags.tolist() == [0, WRAPPED]
    assert severities(decoded) == ["note"]  # as near the first warp's begin as warps usually are: likely, not proven


def test_a_warp_that_marks_before_the_first_warp_is_exact_while_the_calibration_is_less_than_a_turn_ago() -> None:
    late, early = [START + TURN - 9000, START + TURN - 5000], [START, START + TURN - 4000]
    decoded = decode_warps(warp(late, 0, record=True), warp(early, 1), calibrated_ns=AROUND)
    assert decoded.spans.start_cycles.tolist() == [late[0], early[0]]
    assert decoded.spans.duration_cycles.tolist() == [4000, TURN - 4000]
    assert not decoded.spans.flags.any()


def test_a_block_without_its_record_is_exact_while_the_calibration_is_less_than_a_turn_ago() -> None:
    near = decode_warps(warp([START, START + 900], 1), calibrated_ns=AROUND)
    assert not near.spans.flags.any()
    far = decode_warps(warp([START + TURN, START + TURN + 900], 1), calibrated_ns=AROUND)
    assert far.spans.flags.tolist() == [WRAPPED]
    assert severities(far) == ["error"]


def test_without_a_calibration_only_the_warp_that_the_block_record_times_is_exact() -> None:
    times = [START, START + 900]
    decoded = decode_warps(warp(times, 0, record=True), warp(times, 1), calibrated_ns=[])
    assert decoded.spans.flags.tolist() == [0, WRAPPED]
    assert decoded.spans.start_cycles.tolist() == [START, START]
    assert severities(decoded) == ["note"]


def test_a_calibration_of_another_sm_or_of_a_later_launch_proves_nothing() -> None:
    times = [START, START + 900]
    other = decode_warps(warp(times, 1, sm=3), calibrated_ns=AROUND)
    later = decode_warps(warp(times, 1), calibrated_ns=[("before", 2000), ("after", 10**8)])
    assert other.spans.flags.tolist() == later.spans.flags.tolist() == [WRAPPED]


def test_each_launch_is_bounded_by_the_last_calibration_before_it() -> None:
    second = START + 30 * TURN
    around = [("before", 0), ("after", 10 * TURN), ("before", 15 * TURN), ("after", 21 * TURN)]
    one, two = warp([START, START + 900], 1), warp([second, second + 900], 1, grid=2)
    decoded = decode_warps(one, two, calibrated_ns=around, launches=2)
    assert decoded.spans.start_cycles.tolist() == [START, second]
    assert not decoded.spans.flags.any()
    without = decode_warps(one, two, calibrated_ns=around[:2], launches=2)
    assert without.spans.flags.tolist() == [0, WRAPPED]


def test_a_chunk_reaches_to_the_base_before_it_and_not_a_cycle_more() -> None:
    # The recorder takes the event that found no room as the base: here the third, and the record of it comes first.
    times = [START, START + 1, START + 2 * TURN - 2, START + 2 * TURN - 1]
    chunks = warp(times, 0, slots=2)
    for base, flags in ((times[2] - TURN + 1, [0, 0, 0]), (times[2] - TURN, [0, WRAPPED, WRAPPED])):
        chunks[0, layout.WORD_BASE_LOW] = base & 0xFFFFFFFF
        chunks[0, layout.WORD_BASE_HIGH] = base >> 32
        assert decode_warps(chunks, calibrated_ns=[("before", 400), ("after", 10**8)]).spans.flags.tolist() == flags


@pytest.mark.parametrize("flag", [ChunkFlag.PARTIAL, ChunkFlag.NONUNIFORM])
def test_chunks_of_lanes_that_parted_do_not_bound_each_other(flag: ChunkFlag) -> None:
    times = [START, START + TURN - 500, START + TURN, START + TURN + 100]
    decoded = decode_warps(warp(times, 0, slots=2, flags=int(flag)), calibrated_ns=AROUND)
    assert decoded.spans.flags.tolist() == [0, WRAPPED, WRAPPED]
    whole = decode_warps(warp(times, 0, slots=2), calibrated_ns=AROUND)
    assert whole.spans.flags.tolist() == [0, 0, 0]


def test_chunks_written_at_once_reach_back_to_the_base_before_all_of_them() -> None:
    # Records 2 and 4 stood in lanes that are there, 3 did not: two chunks with one base, a turn after the first.
    times = [START, START + 50, START + 900, START + TURN + 950]
    chunks = np.concatenate([warp(times, 0, slots=1), np.zeros((0, 32), np.uint32)])
    for index in (1, 2):
        chunks[index, layout.WORD_BASE_LOW] = times[3] & 0xFFFFFFFF
        chunks[index, layout.WORD_BASE_HIGH] = times[3] >> 32
    decoded = decode_warps(chunks, calibrated_ns=AROUND)
    assert decoded.spans.flags.tolist() == [WRAPPED, WRAPPED, WRAPPED]
    assert decoded.spans.start_cycles[0] == START


def test_launches_whose_clocks_changed_between_are_each_timed_by_the_calibrations_around_them() -> None:
    slow = sm_clocks(4)
    fast = [Clock(c.offset_cycles - 500_000_000, c.cycles_per_ns * 1.1) for c in slow]
    entries, records, truths = [], [], []
    facts = manifest(launches=[{}, {}], sm_count=4)
    for index, (clocks, start_ns) in enumerate(((slow, 10_000_000), (fast, 4_000_000_000))):
        chunks, truth = fake_launch(
            blocks=30, warps=3, phases=8, clocks=clocks, start_ns=start_ns, grid_id=index + 1, seed=index
        )
        entries.append({**facts["launches"][0], "grid": [30, 1, 1], "block": [96, 1, 1], "grid_id": index + 1})
        records.append(chunks)
        truths.append(truth)
        facts["calibration"].append(calibration(clocks, "before", start_ns - 40_000))
        facts["calibration"].append(calibration(clocks, "after", start_ns + 400_000))
    facts["launches"] = entries
    decoded = decode(check(facts), {"records/000000.u32": np.concatenate(records)})
    assert not decoded.problems
    for launch, truth in enumerate(truths):
        mine = decoded.spans.launch == launch
        error = decoded.spans.start_ns[mine] + decoded.origin_ns - CLOCK.zero_ns - truth[:, :, :-1].reshape(-1)
        assert np.abs(error).max() <= decoded.launches["uncertainty_ns"][launch] + 1 <= 40
    rates = decoded.launches["cycles_per_ns"]
    assert rates[1] / rates[0] == pytest.approx(1.1, rel=2e-4)


def test_a_damaged_base_does_not_take_the_calibration_from_the_others() -> None:
    warps = [warp([START, START + 900], 1, block=block) for block in range(100)]
    warps[7][0, layout.WORD_BASE_HIGH] ^= np.uint32(1 << 31)
    facts = manifest(launches=[{"grid": [100, 1, 1], "block": [64, 1, 1]}], sites=SITES, sm_count=1)
    facts["calibration"] = [calibration([CLOCK], when, t_ns) for when, t_ns in AROUND]
    decoded = decode(check(facts), {"records/000000.u32": np.concatenate(warps)})
    assert np.flatnonzero(decoded.spans.flags).tolist() == [7]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.integers(0, 3 * TURN), min_size=2, max_size=8), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(0, 3 * TURN),
    st.booleans(),
)
def test_times_of_warps_that_begin_and_wrap_anywhere_are_exact_or_flagged(
    steps: list[list[int]], slots: int, ago: int, calibrated: bool
) -> None:
    begin = START + 4 * TURN
    warps = [(begin + np.cumsum(own)).tolist() for own in steps]
    chunks = [warp(times, i, slots=slots) for i, times in enumerate(warps)]
    around = [("before", (begin - ago - CLOCK.offset_cycles) // 2), ("after", 10**11)] if calibrated else []
    facts = manifest(launches=[{"block": [96, 1, 1]}], sites=SITES, sm_count=1)
    facts["calibration"] = [calibration([CLOCK], when, t_ns) for when, t_ns in around]
    spans = decode(check(facts), {"records/000000.u32": np.concatenate(chunks)}).spans
    truth = np.array([t for times in warps for t in times[:-1]])
    lasted = np.concatenate([np.diff(times) for times in warps])
    sure = spans.flags & np.uint16(WRAPPED) == 0
    assert ((spans.start_cycles - truth) % TURN == 0).all()
    assert np.array_equal(spans.start_cycles[sure], truth[sure])
    assert np.array_equal(spans.duration_cycles[sure], lasted[sure])
