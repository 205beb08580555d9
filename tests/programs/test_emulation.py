"""The recorder's headers, run on the CPU against the tests' own encoder and the decoder. No GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.emulation import (
    CLOCK,
    CODE_BITS,
    DETACHED,
    FULL,
    ITERATION,
    POLICIES,
    Case,
    Result,
    Step,
    decoded,
    events,
    facts,
    reference,
    run,
)
from warplens import layout
from warplens.decode import Decoded
from warplens.decode.corrections import measure
from warplens.decode.flags import SpanFlag
from warplens.decode.last import last_events
from warplens.decode.streams import is_spare

pytestmark = pytest.mark.programs

PARTING = ("packed", "untold", "mixed", "staged", "stream", "live")  # where lanes may part
COLUMNS = ("block", "warp", "sequence", "site", "depth", "start_cycles", "duration_cycles")


def spans(found: Decoded) -> list[tuple[Any, ...]]:
    columns = [np.asarray(getattr(found.spans, name)).tolist() for name in COLUMNS]
    for words in (found.spans.payload, found.spans.id):
        columns.append([None] * len(found.spans) if words is None else np.where(words.valid, words.values, -1).tolist())
    exact = found.spans.flags & np.uint16(SpanFlag.WRAPPED) == 0
    if found.spans.id is not None:  # a range joined over blocks lies on two clocks, and these are fitted
        exact &= ~found.spans.id.valid
    return sorted(row if sure else row[:5] for row, sure in zip(zip(*columns, strict=True), exact, strict=True))


def told(found: Decoded) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for problem in found.problems:
        kinds[problem.kind] = kinds.get(problem.kind, 0) + problem.count
    return kinds


def random_program(rng: random.Random, length: int) -> list[Step]:
    steps: list[Step] = []
    started: list[int] = []
    verbs = rng.choice(["pPemM([)sstjkwWxaylLfF", "pw", "PMxy", "plLfF"])
    for _ in range(length):
        verb = rng.choice(verbs)
        if verb == "t" and not started:
            verb = "p"
        value = rng.choice(started) if verb == "t" else rng.getrandbits(32) if verb in "PM[WLF" else rng.randrange(4)
        if verb == "s":
            started.append(value)
        steps.append(Step(verb, rng.randrange(1, 9), value, lanes_of(rng, verb)))
    return with_iterations(rng, steps) if rng.random() < 0.4 else steps


def with_iterations(rng: random.Random, steps: list[Step]) -> list[Step]:
    """The same marks in a loop that says where its iterations begin, of a few marks or of more than have room."""
    first = rng.choice([0, next((at for at, step in enumerate(steps) if step.verb not in DETACHED), len(steps)) + 1])
    most = rng.choice([1, 3, 6, 12])
    out, left = steps[:first], 0
    for number, step in enumerate(steps[first:]):
        if left == 0:
            out.append(Step(ITERATION, value=number))
            left = rng.randrange(1, most + 1)
        out.append(step)
        left -= 1
    return out


def lanes_of(rng: random.Random, verb: str) -> int:
    """Any lanes for a detached mark, all for another."""
    return rng.choice((FULL, 0, 1, 1 << 31, 0x00FFFF00, rng.getrandbits(32))) if verb in DETACHED else FULL


def random_case(rng: random.Random, *, chunks: int = 3000) -> Case:
    warps, blocks = rng.choice([1, 2, 4]), rng.choice([1, 2, 3])
    shapes = [(32 * warps, 1, 1), (8, 4 * warps, 1), (4, 8, warps)]
    lengths = [0, 1, 2, 3, 17, 18, 19, 22, 23, 24, 25, 26, 27, 50, 89]
    chunks = rng.choice([chunks, 17_000]) if chunks > 1024 else chunks
    case = Case(
        [random_program(rng, rng.choice(lengths)) for _ in range(warps * blocks)],
        blocks=blocks,
        threads=rng.choice(shapes),
        chunks=chunks,
        shared_chunks=min(rng.choice([0, 1024, 2048, 16_384]), chunks // 1024 * 1024),
        seed=rng.getrandbits(30),
    )
    if rng.random() < 0.25:
        case.every, case.warp_mask = rng.choice([1, 2, 3]), rng.getrandbits(4) | 1
    return case.timed()


@dataclass
class Expected:
    """What the encoder's chunks of a case decode to."""

    spans: list[tuple[Any, ...]]
    told: dict[str, int]
    whole_spans: set[tuple[Any, ...]]
    events: int


def expected_of(cases: list[Case], marks: int = 1) -> list[Expected]:
    made = []
    for case in cases:
        found = decoded(case, reference(case, marks))
        made.append(Expected(spans(found), told(found), whole_spans(found), int(found.launches["events"][0])))
    return made


Known = list[tuple[Case, Expected]]
"""Cases that tests of all policies share, and must not change."""


@cache
def uniform(seed: int, count: int, marks: int = 1) -> Known:
    rng = random.Random(seed)
    cases = [random_case(rng) for _ in range(count)]
    return list(zip(cases, expected_of(cases, marks), strict=True))


def results(program: Any, known: Known) -> Iterator[tuple[Case, Expected, Result]]:
    """What the program leaves of each case, and what is expected of it."""
    for (case, expected), result in zip(known, run(program, [case for case, _ in known]), strict=True):
        yield case, expected, result


@pytest.mark.parametrize("policy", POLICIES)
def test_uniform_warps_leave_what_the_tests_own_encoder_says(policy: str, programs: Any) -> None:
    for case, expected, result in results(programs(policy), uniform(5, 150)):
        assert not result.faults
        found = decoded(case, result)
        assert spans(found) == expected.spans
        assert told(found) == expected.told


@pytest.mark.parametrize("policy", POLICIES)
def test_a_build_that_knows_the_step_records_those_blocks_without_asking(policy: str, programs: Any) -> None:
    rng = random.Random(6)
    cases = [random_case(rng) for _ in range(60)]
    for case in cases:
        case.every, case.warp_mask = 2, FULL
    asked = run(programs(policy), cases)
    for case in cases:
        case.every, case.warp_mask = 1, 0  # what the build must not look at
    compared = 0
    for case, result, other in zip(cases, run(programs(policy, every=2), cases), asked, strict=True):
        case.every, case.warp_mask = 2, FULL
        found, expected = decoded(case, result), decoded(case, other)
        assert not result.faults
        assert spans(found) == spans(expected)
        assert told(found) == told(expected)
        compared += len(found.spans)
    assert compared > 1000


@pytest.mark.parametrize(
    ("policy", "marks"), [("packed", 0), ("packed", 2), ("counted", 0), ("counted", 2), ("staged", 2), ("stream", 2)]
)
def test_builds_that_take_marks_more_often_or_none_leave_what_the_encoder_says(
    policy: str, marks: int, programs: Any
) -> None:
    for case, expected, result in results(programs(policy, marks), uniform(8, 100, marks)):
        assert not result.faults
        found = decoded(case, result)
        # The clock goes on between copies, which the encoder gives one time.
        assert [row[:5] + row[7:] for row in spans(found)] == [row[:5] + row[7:] for row in expected.spans]
        assert told(found) == expected.told


@pytest.mark.parametrize("policy", ["packed", "counted", "staged", "stream"])
def test_first_copies_of_a_doubled_build_are_the_marks_of_a_single_one(policy: str, programs: Any) -> None:
    rng = random.Random(9)
    cases = [case for _ in range(60) if (case := random_case(rng)).warp_mask == FULL and case.programs[0]]
    once, twice = (run(programs(policy, marks), cases) for marks in (1, 2))
    compared = 0
    for case, single, double in zip(cases, once, twice, strict=True):
        one, two = (measure(r.chunks, facts(case), copies=c) for r, c in ((single, 1), (double, 2)))
        assert np.array_equal(one.count, two.count)
        assert np.allclose(one.mean_cycles, two.mean_cycles, equal_nan=True)
        assert set(two.apart_cycles.tolist()) <= {2, 4, 6}  # the emulated clock steps by 2 a read
        compared += int(one.count.sum())
    assert compared > 2000


@cache
def tight_cases() -> Known:
    rng = random.Random(6)
    cases = [random_case(rng, chunks=rng.choice([0, 1, 3, 8])) for _ in range(120)]
    return list(zip(cases, expected_of(cases), strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_does_not_fit_is_counted_to_the_event(policy: str, programs: Any) -> None:
    lossy = 0
    for case, expected, result in results(programs(policy), tight_cases()):
        assert not result.faults
        kept = int(decoded(case, result).launches["events"][0])
        assert kept + result.lost_events == expected.events
        lossy += result.lost_events > 0
    assert lossy > 50


@cache
def ring_cases(seed: int, sizes: tuple[int, ...], stuck: tuple[int, ...] = (0,)) -> Known:
    """Launches of many warps into rings that hold a part of them, and of which some chunks are always open."""
    rng = random.Random(seed)
    cases = [random_case(rng, chunks=rng.choice(sizes)).ringed() for _ in range(120)]
    for case in cases:
        case.stuck = rng.choice(stuck) if case.chunks else 0
    return list(zip(cases, expected_of(cases), strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_ring_that_holds_all_leaves_what_the_tests_own_encoder_says(policy: str, programs: Any) -> None:
    for case, expected, result in results(programs(policy, newest=True), ring_cases(11, (3000,))):
        assert not result.faults
        found = decoded(case, result)
        assert result.lost_events == 0
        assert spans(found) == expected.spans
        assert told(found) == expected.told


@pytest.mark.parametrize("policy", POLICIES)
def test_a_ring_loses_what_it_writes_over_and_counts_it_to_the_event(policy: str, programs: Any) -> None:
    known = ring_cases(12, (0, 1, 2, 3, 5, 8, 20), (0, 0, 1, 3))
    turned = 0
    for case, expected, result in results(programs(policy, newest=True), known):
        assert not result.faults
        found = decoded(case, result)
        assert int(found.launches["events"][0]) + result.lost_events == expected.events
        assert set(told(found)) - set(expected.told) <= RING_DOUBTS
        turned += result.lost_events > 0
    assert turned > 50


LOSSES = {"lost_events", "missing_warp", "gap", "no_end", "unwritten_chunk"}
HALVES = {"unmatched_push", "unmatched_pop", "unmatched_start", "unmatched_end", "unmatched_id", "site_never_reached"}
RING_DOUBTS = LOSSES | HALVES


@pytest.mark.parametrize("policy", POLICIES)
def test_a_ring_keeps_the_newest_chunks_whole_and_no_span_crosses_a_gap(policy: str, programs: Any) -> None:
    gaps = 0
    for case, expected, result in results(programs(policy, newest=True), ring_cases(13, (1, 2, 3, 5, 8, 20))):
        found = decoded(case, result)
        assert whole_spans(found) <= expected.whole_spans
        overwritten = [p for p in found.problems if p.kind == "gap"]
        assert all("overwritten (keep=newest)" in p.text for p in overwritten)
        gaps += len(overwritten)
        written = result.chunks[:, [layout.WORD_BLOCK, layout.WORD_META]]
        newest = max((int(block) * case.warps + int(meta) % 64 for block, meta in written), default=None)
        assert newest == last_recorded(case)  # here warps run one after the other
    assert gaps > 20


def whole_spans(found: Decoded) -> set[tuple[Any, ...]]:
    """Spans within one warp that were not cut, without their depth: behind a gap it counts from 0."""
    names = [name for name in COLUMNS if name != "depth"]
    sure = found.spans.flags & np.uint16(SpanFlag.UNENDED) == 0
    if found.spans.id is not None:
        sure &= ~found.spans.id.valid
    return set(zip(*(np.asarray(getattr(found.spans, name))[sure].tolist() for name in names), strict=True))


def last_recorded(case: Case) -> int | None:
    """The number of the last warp that is recorded; None when none is."""
    warps = range(len(case.programs))
    chosen = [n for n in warps if case.warp_mask >> n % case.warps & 1 and n // case.warps % case.every == 0]
    return chosen[-1] if chosen else None


def test_few_warps_use_the_whole_ring(programs: Any) -> None:
    steps = [Step("p", 1 + i % 8) for i in range(24 * 6000)]
    case = Case([steps], chunks=3000).ringed().timed()
    (result,) = run(programs("packed", newest=True), [case])
    assert len(result.chunks) > 2900
    ages = 6000 - result.chunks[:, layout.WORD_SEQUENCE].astype(np.int64) // 24
    assert np.isin(np.arange(1, 1500), ages).all()
    assert (ages <= 3000).mean() > 0.9  # what one ring with one cursor would hold
    assert ages.max() < 4500


MASKS = (0xFFFF, 0xFFFF0000, 1, 1 << 31, 0x00FFFF00)


def diverging_case(rng: random.Random) -> Case:
    steps: list[Step] = []
    left = 0
    for _ in range(rng.choice([1, 3, 8, 30, 60, 200])):
        lanes = FULL if rng.random() < 0.6 else rng.choice((*MASKS, rng.getrandbits(32) | 1))
        if rng.random() < 0.04:
            left |= lanes
            steps.append(Step("X", lanes=lanes))
        steps.append(Step(rng.choice("pmMlFi"), rng.randrange(1, 9), rng.randrange(9), lanes & ~left))
    whole = [Step("p")]
    chunks = rng.choice([17_000, 3000, 3, 0])
    return Case(
        [whole, steps] if rng.random() < 0.5 else [steps, whole],
        threads=(64, 1, 1),
        chunks=chunks,
        shared_chunks=chunks // 1024 * 1024,
        seed=rng.getrandbits(30),
    ).timed()


TURN = 1 << (32 - CODE_BITS)  # what a record can tell
LOW_HALF = {"counted", "untold", "mixed"}  # of some records they keep no more than the clock's low half
GAPS = (1000, TURN * 9 // 10, TURN - 1, TURN, TURN + 1, TURN * 11 // 10, 100 * TURN)


def waiting_case(rng: random.Random, gaps: tuple[int, ...]) -> Case:
    case = Case([[Step(rng.choice("pwM"), rng.randrange(1, 9), 7) for _ in range(rng.choice([1, 3, 9, 40]))]]).timed()
    late = 0
    for step in case.programs[0]:
        late += rng.choice(gaps) if rng.random() < 0.3 else 0
        step.clock += late
    case.ends[0] += late + rng.choice(gaps)
    return case


@pytest.mark.parametrize("policy", POLICIES)
def test_times_are_right_however_many_turns_of_a_record_a_warp_waits(policy: str, programs: Any) -> None:
    rng = random.Random(8)
    cases = [waiting_case(rng, GAPS) for _ in range(120)]
    for case, result in zip(cases, run(programs(policy), cases), strict=True):
        found = decoded(case, result)
        starts = [step.clock for step in case.programs[0]]
        if policy in LOW_HALF and case.ends[0] - CLOCK.offset_cycles >= 1 << 32:
            assert "wrapped" in told(found)
        else:
            assert "wrapped" not in told(found)
            assert found.spans.start_cycles.tolist() == starts


@pytest.mark.parametrize("policy", POLICIES)
def test_times_are_right_or_told_as_doubtful_however_many_turns_of_32_bits_a_warp_waits(
    policy: str, programs: Any
) -> None:
    rng = random.Random(9)
    wide = 1 << 32
    cases = [waiting_case(rng, (1000, wide * 9 // 10, wide, wide * 11 // 10, 30 * wide)) for _ in range(120)]
    doubtful = 0
    for case, result in zip(cases, run(programs(policy), cases), strict=True):
        found = decoded(case, result)
        wrapped = found.spans.flags & np.uint16(SpanFlag.WRAPPED) != 0
        starts = np.array([step.clock for step in case.programs[0]])
        assert (found.spans.start_cycles == starts)[~wrapped].all()
        doubtful += int(wrapped.sum())
    assert (doubtful > 0) == (policy in LOW_HALF)


@pytest.mark.parametrize("policy", PARTING)
def test_lanes_that_part_hang_nothing_and_write_nowhere_else(policy: str, programs: Any) -> None:
    rng = random.Random(7)
    cases = [diverging_case(rng) for _ in range(120)]
    for case, result in zip(cases, run(programs(policy), cases), strict=True):
        assert not result.faults
        decoded(case, result)  # takes it, whatever it is


@pytest.mark.parametrize("policy", PARTING)
def test_lanes_that_part_write_into_no_chunk_of_a_ring_that_is_not_theirs(policy: str, programs: Any) -> None:
    rng = random.Random(14)
    cases = [diverging_case(rng) for _ in range(120)]
    for case in cases:
        case.chunks, case.stuck = rng.choice([1, 3, 40]), rng.choice([0, 1])
        case.ringed()
    for case, result in zip(cases, run(programs(policy, newest=True), cases), strict=True):
        assert not result.faults
        decoded(case, result)


@pytest.mark.parametrize("policy", ["packed", "mixed"])
@pytest.mark.parametrize("length", [23, 100, 400, 3000])
def test_a_warp_that_took_several_chunks_at_once_says_of_the_rest_that_nothing_is_in_it(
    policy: str, length: int, programs: Any
) -> None:
    case = Case([[Step("p", 1 + i % 4) for i in range(length)]], chunks=70_000, shared_chunks=65_536).timed()
    (result,) = run(programs(policy), [case])
    meta = result.chunks[:, layout.WORD_META]
    counts = meta >> np.uint32(layout.META_COUNT_SHIFT) & np.uint32((1 << layout.META_COUNT_BITS) - 1)
    assert int((counts == 0).sum()) <= min(length // 64, 7) + 1  # and one in front of the block record
    assert meta.all()
    assert not result.faults
    found = decoded(case, result)
    assert found.spans.start_cycles.tolist() == [step.clock for step in case.programs[0]]
    assert set(told(found)) <= {"site_never_reached"}


def long_warps(**more: Any) -> Case:
    """Two blocks of two warps that leave chunks over."""
    programs = [[Step("p", 1 + i % 4) for i in range(300)] for _ in range(4)]
    return Case(programs, blocks=2, threads=(64, 1, 1), chunks=70_000, shared_chunks=65_536, **more).timed()


def test_chunks_left_over_stand_behind_no_warps_end(programs: Any) -> None:
    case = long_warps()
    (result,) = run(programs("packed"), [case])
    spare = is_spare(result.chunks[:, layout.WORD_META])
    assert spare.sum() >= 4
    assert last_events(result.chunks, CODE_BITS) == ([], 4)
    case = long_warps(warp_mask=2)
    (result,) = run(programs("packed"), [case])
    found = decoded(case, result)
    assert "sm_changed" not in told(found)
    assert np.asarray(found.blocks["sm_end"]).tolist() == [0, 1]


def test_corrections_are_measured_of_warps_that_left_chunks_over(programs: Any) -> None:
    case = long_warps()
    (result,) = run(programs("packed"), [case])
    assert int(measure(result.chunks, facts(case), copies=1).count.sum()) == 4 * 301


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        # lanes that wrote without lane 0 count chunks that it never took
        ([*[Step("p", 1)] * 3, *[Step("p", 2, lanes=FULL & ~1)] * 168, Step("p", 3)], "partial_warp"),
        # a lane of the header counts otherwise
        ([*[Step("p", 1)] * 3, Step("p", 2, lanes=1)], "gap"),
    ],
)
def test_lanes_that_count_otherwise_write_over_no_event(steps: list[Step], kept: str, programs: Any) -> None:
    case = Case([steps], chunks=70_000, shared_chunks=65_536).timed()
    (result,) = run(programs("packed"), [case])
    assert not result.faults
    found = told(decoded(case, result))
    assert found[kept] >= (168 if kept == "partial_warp" else 1)
    assert found.get("gap", 0) == (1 if kept == "gap" else 0)


def one_warp(programs: Any, *steps: Step) -> tuple[Result, Decoded]:
    case = Case([list(steps)]).timed()
    (result,) = run(programs("packed"), [case])
    assert not result.faults
    return result, decoded(case, result)


def test_marks_of_one_elected_lane_are_told(programs: Any) -> None:
    _, found = one_warp(programs, *[Step("p", 2, lanes=1)] * 30, Step("p", 1), Step("p", 3))
    assert told(found)["gap"] == 30


def test_events_of_lanes_that_outlast_others_arrive_or_are_told_as_missing(programs: Any) -> None:
    few = 0x3FF
    steps = [Step("p", 1), Step("p", 2), Step("p", 3), Step("X", lanes=FULL & ~few), *[Step("p", 4, lanes=few)] * 20]
    _, found = one_warp(programs, *steps)
    problems = told(found)
    assert "partial_warp" in problems
    assert int(found.launches["events"][0]) + problems["gap"] == 23


def test_a_block_whose_first_warp_makes_no_mark_knows_its_sm(programs: Any) -> None:
    case = Case([[], [Step("p", 1), Step("p", 2)]] * 8, blocks=8, threads=(64, 1, 1)).timed()
    (result,) = run(programs("packed"), [case])
    assert decoded(case, result).blocks["sm_begin"].tolist() == list(range(8))


def test_warps_recorded_without_their_first_one_know_their_sm(programs: Any) -> None:
    case = Case([[Step("p", 1)], [Step("p", 1), Step("p", 2)]] * 8, blocks=8, threads=(64, 1, 1), warp_mask=2).timed()
    (result,) = run(programs("packed"), [case])
    found = decoded(case, result)
    assert "sm_unknown" not in told(found)
    assert found.blocks["sm_end"].tolist() == list(range(8))


def test_the_emulation_tells_events_as_the_encoder_counts_them() -> None:
    steps = [Step("P", 1, 5), Step("s", 2, 0), Step("x", 3, 1), Step("t", 1, 0)]
    assert [event.words for event in events(steps, 10)[:-1]] == [2, 1, 2, 2]
