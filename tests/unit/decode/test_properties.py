"""Random warps, losses and orders: decoding gives what a plain loop over the same events gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.synthesis import BlockRecord, Clock, Event, Warp, calibration, encode_warp, manifest
from warplens import layout
from warplens.decode import Decoded, decode, shapes
from warplens.decode.flags import SpanFlag
from warplens.decode.manifest import check
from warplens.layout import Control, Verb

MEMBER = "records/000000.u32"
SITES = [(f"site{i}", "phase", "") for i in range(1, 6)]
BITS = layout.code_bits(len(SITES))
CLOCK = Clock(offset_cycles=1_000_000, cycles_per_ns=2.0)
TURN = 1 << (32 - BITS)
FAST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Open:
    """A span as the plain loop sees it."""

    block: int
    warp: int
    sequence: int
    event: Event
    depth: int
    after_gap: bool
    end_cycles: int | None = None
    end_at: tuple[int, int, int] | None = None
    flags: int = 0


@dataclass
class WarpCase:
    events: list[Event]
    slots: int
    lost: set[int]
    chunks: Any = None
    kept: list[tuple[int, Event, bool]] = field(default_factory=list)
    """(sequence, event, records are missing before it) of what arrives."""


@st.composite
def warp_cases(draw: st.DrawFn) -> WarpCase:
    """Events of one warp in time order (not always well nested), how chunks split, and which chunks are lost.

    Their clocks are even: at 2 cycles a ns an odd one lies half way, and which way it is rounded decides about ties.
    """
    now, sequence, starts, events = 2 * draw(st.integers(5_000, 10_000)), 0, list[int](), list[Event]()
    for _ in range(draw(st.integers(0, 20))):
        now += 2 * draw(st.integers(0, 1500))
        verb: Verb | Control = draw(
            st.sampled_from([*(v for v in Verb if v != Verb.SPARE), Control.RANGE_POP, Control.RANGE_POP])
        )
        kind = draw(st.integers(0, 9))
        if kind == 0 and starts:
            events.append(Event(Control.TOKEN_END, now, id=draw(st.sampled_from(starts))))
        elif kind == 1:
            events.append(Event(Control.PHASE_END, now))
        elif isinstance(verb, Control):
            events.append(Event(verb, now))
        else:
            if verb == Verb.RANGE_START:
                starts.append(sequence)
            payload = draw(st.one_of(st.none(), st.integers(0, 2**32 - 1)))
            events.append(
                Event(verb, now, draw(st.integers(1, 5)), draw(st.one_of(st.none(), st.integers(0, 2))), payload)
            )
        sequence += events[-1].words
    if draw(st.integers(0, 4)):
        events.append(Event(Control.END, now + 2 * draw(st.integers(0, 250))))
    return WarpCase(events, draw(st.integers(3, layout.RECORD_SLOTS)), draw(st.sets(st.integers(0, 8), max_size=3)))


def encode(case: WarpCase, block: int, warp: int) -> None:
    """Fills in the case's chunks and what arrives of its events."""
    where = Warp(block=block, warp=warp, code_bits=BITS, clock=CLOCK, slots=case.slots)
    chunks = encode_warp(case.events, where) if case.events else np.zeros((0, 32), np.uint32)
    lost = {i for i in case.lost if i < len(chunks)}
    case.chunks = np.delete(chunks, sorted(lost), axis=0)
    sequence, index, missing = 0, 0, False
    for event in case.events:
        is_end = event.verb == Control.END and not event.site
        while not is_end and sequence >= chunks[index, 3] + (chunks[index, 1] >> 16 & 31):
            index += 1
        index = len(chunks) - 1 if is_end else index
        if index in lost:
            missing = True
        else:
            # an end in a chunk of its own may follow lost records
            missing |= is_end and int(chunks[index, 3]) > max((n + e.words for n, e, _ in case.kept), default=0)
            case.kept.append((sequence, event, missing))
            missing = False
        sequence += 0 if is_end else event.words


Loose = tuple[int, int, int, Event, Open | None]


class PlainWarp:
    """The contract as a loop over one warp's events."""

    def __init__(self, block: int, warp: int, doubts: Counter[str]) -> None:
        self.where, self.doubts = (block, warp), doubts
        self.phase: Open | None = None
        self.stack: list[Open] = []
        self.tokens: dict[int, Open] = {}
        self.spans: list[Open] = []
        self.loose: list[Loose] = []

    def run(self, kept: list[tuple[int, Event, bool]]) -> None:
        last_cycles = 0
        for sequence, event, missing in kept:
            if missing:
                self.cut(last_cycles)
            last_cycles = event.t_cycles
            if event.site:
                self.begin(Open(*self.where, sequence, event, len(self.stack), missing))
            else:
                self.end(sequence, event)
        self.cut(last_cycles)
        open_ = [s for s in self.tokens.values() if s.end_cycles is None]
        self.loose += [(*self.where, s.sequence, s.event, s) for s in open_]

    def cut(self, at_cycles: int) -> None:
        """Records are missing, or the warp is over: what is open stays without an end."""
        for span in [*self.stack, *([self.phase] if self.phase else [])]:
            span.end_cycles, span.flags = at_cycles, span.flags | int(SpanFlag.UNENDED)
        self.doubts["unmatched_push"] += len(self.stack)
        self.phase, self.stack = None, []

    def end_phase(self, t_cycles: int) -> None:
        if self.phase:
            self.phase.end_cycles = t_cycles
        self.phase = None

    def begin(self, span: Open) -> None:
        event = span.event
        if event.verb == Verb.RANGE_END:
            self.loose.append((*self.where, span.sequence, event, None))
            return
        self.spans.append(span)
        if event.verb in (Verb.PHASE, Verb.WAIT):
            self.end_phase(event.t_cycles)
            self.phase = span
        elif event.verb in (Verb.MARK, Verb.ARRIVE):
            span.end_cycles, span.flags = event.t_cycles, int(SpanFlag.INSTANT)
        elif event.verb == Verb.RANGE_PUSH:
            self.stack.append(span)
        else:
            self.tokens[span.sequence] = span

    def end(self, sequence: int, event: Event) -> None:
        if event.verb in (Control.PHASE_END, Control.END):
            self.end_phase(event.t_cycles)
            return
        start = self.tokens.get(event.id if event.id is not None else -1)
        if event.verb == Control.RANGE_POP:
            start = self.stack.pop() if self.stack else None
        if start is None or start.end_cycles is not None:
            self.doubts["unmatched_pop" if event.verb == Control.RANGE_POP else "unmatched_end"] += 1
        else:
            start.end_cycles, start.end_at = event.t_cycles, (*self.where, sequence)


def plain(cases: dict[tuple[int, int], WarpCase]) -> tuple[list[Open], Counter[str]]:
    """Spans in order, and counts of what finds no partner, by plain loops."""
    doubts: Counter[str] = Counter()
    warps = []
    for (block, warp), case in sorted(cases.items()):
        warps.append(PlainWarp(block, warp, doubts))
        warps[-1].run(case.kept)
    join([item for warp in warps for item in warp.loose], doubts)
    spans = [span for warp in warps for span in warp.spans]
    for span in spans:
        if span.end_cycles is None:  # a start that nobody ends: until its stretch's last event
            span.end_cycles, span.flags = stretch_end(cases[span.block, span.warp], span), int(SpanFlag.UNENDED)
        span.flags |= int(SpanFlag.AFTER_GAP) * span.after_gap
    flag_crossing(spans)
    return spans, doubts


def stretch_end(case: WarpCase, span: Open) -> int:
    end, inside = span.event.t_cycles, False
    for sequence, event, missing in case.kept:
        if inside and missing:
            break
        inside |= sequence == span.sequence
        end = event.t_cycles if inside else end
    return end


def join(loose: list[Loose], doubts: Counter[str]) -> None:
    for scope in ("block", "launch"):
        by_key: dict[Any, list[Loose]] = {}
        for item in loose:
            key = (item[0] if scope == "block" else 0, item[3].site, item[3].id)
            by_key.setdefault(key, []).append(item)
        for items in by_key.values():
            # 2 cycles a ns
            items.sort(key=lambda i: (ns_of(i[3].t_cycles), i[4] is None, i[2]))
            for one, two in pairwise(items):
                start = one[4]
                if start is not None and two[4] is None:
                    start.end_cycles, start.end_at = two[3].t_cycles, two[:3]
                    start.flags = int(SpanFlag.CROSS_WARP) if one[:2] != two[:2] else 0
                    loose.remove(one)
                    loose.remove(two)
    for item in loose:
        doubts["unmatched_end" if item[4] is None else "unmatched_start"] += 1


def ns_of(t_cycles: int) -> int:
    return round((t_cycles - CLOCK.offset_cycles) / 2)


def flag_crossing(spans: list[Open]) -> None:
    inside = [(s, s.end_at[2]) for s in spans if s.end_at and s.end_at[:2] == (s.block, s.warp)]
    ranges = [(s, end) for s, end in inside if end > s.sequence]
    for one, b in ranges:
        for two, d in ranges:
            if (one.block, one.warp) == (two.block, two.warp):
                a, c = one.sequence, two.sequence
                if (a < c < b < d or c < a < d < b) and one.event.verb == Verb.RANGE_START:
                    one.flags |= int(SpanFlag.OVERLAPPING)


def decode_cases(cases: dict[tuple[int, int], WarpCase], seed: int) -> Decoded:
    chunks = np.concatenate([case.chunks for case in cases.values()])
    np.random.default_rng(seed).shuffle(chunks)
    facts = manifest(launches=[{"grid": [2, 1, 1], "block": [96, 1, 1]}], sites=SITES, sm_count=1)
    facts["calibration"] = [calibration([CLOCK], "before", 0), calibration([CLOCK], "after", 10**9)]
    return decode(check(facts), {MEMBER: chunks})


def spans_of(decoded: Decoded) -> list[Any]:
    s = decoded.spans
    columns = [
        getattr(s, n).tolist()
        for n in ("block", "warp", "sequence", "site", "depth", "start_cycles", "duration_cycles", "flags")
    ]
    for words in (s.payload, s.id):
        whole = [(v, ok) for v, ok in zip(words.values.tolist(), words.valid.tolist(), strict=True)] if words else None
        columns.append([v if ok else None for v, ok in whole] if whole is not None else [None] * len(s))
    return list(zip(*columns, strict=True))


@FAST
@given(st.lists(warp_cases(), min_size=4, max_size=4), st.integers(0, 99))
def test_random_warps_decode_to_what_a_plain_loop_finds(drawn: list[WarpCase], seed: int) -> None:
    cases = {(i // 2, i % 2): case for i, case in enumerate(drawn)}
    for (block, warp), case in cases.items():
        encode(case, block, warp)
    expected, doubts = plain(cases)
    decoded = decode_cases(cases, seed)
    assert spans_of(decoded) == [
        (
            *(s.block, s.warp, s.sequence, s.event.site - 1, s.depth, s.event.t_cycles),
            *((s.end_cycles or 0) - s.event.t_cycles, s.flags, s.event.payload, s.event.id),
        )
        for s in expected
    ]
    found = Counter[str]()
    for problem in decoded.problems:
        found[problem.kind] += problem.count
    for kind in ("unmatched_push", "unmatched_pop", "unmatched_start", "unmatched_end"):
        assert found[kind] == doubts[kind], kind


@FAST
@given(st.lists(warp_cases(), min_size=4, max_size=4))
def test_every_record_is_an_event_or_counted_as_missing(drawn: list[WarpCase]) -> None:
    cases = {(i // 2, i % 2): case for i, case in enumerate(drawn)}
    arrived = missing_inside = 0
    for (block, warp), case in cases.items():
        encode(case, block, warp)
        records = [(n, e) for n, e, _ in case.kept if e.verb != Control.END or e.site]
        ends = [n for n, e, _ in case.kept if e.verb == Control.END and not e.site]
        arrived_end = max([n + e.words for n, e in records] + ends, default=0)
        missing_inside += arrived_end - sum(e.words for _, e in records)
        arrived += len(records)
    decoded = decode_cases(cases, 0)
    assert int(decoded.launches["events"].sum()) == arrived
    assert sum(p.count for p in decoded.problems if p.kind == "gap") == missing_inside
    without_end = sum(
        1
        for case in cases.values()
        if len(case.chunks) and not any(e.verb == Control.END and not e.site for _, e, _ in case.kept)
    )
    assert sum(p.count for p in decoded.problems if p.kind == "no_end") == without_end


@FAST
@given(warp_cases(), st.integers(0, 2**32), st.booleans())
def test_warps_decoded_by_shape_are_as_if_decoded_one_by_one(case: WarpCase, seed: int, odd: bool) -> None:
    rng = np.random.default_rng(seed)
    case.lost = set()
    cases = {}
    for i in range(6):
        shift = np.sort(rng.integers(0, 900, len(case.events))).tolist()
        events = [
            Event(e.verb, e.t_cycles + s, e.site, e.id, e.payload) for e, s in zip(case.events, shift, strict=True)
        ]
        if odd and i == 2:
            events = events[:-1]
        cases[i // 3, i % 3] = WarpCase(events, case.slots, set())
        encode(cases[i // 3, i % 3], i // 3, i % 3)
    by_shape = decode_cases(cases, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_WORTH", 10**9)
        one_by_one = decode_cases(cases, 1)
    assert spans_of(by_shape) == spans_of(one_by_one)
    assert np.array_equal(by_shape.spans.start_ns, one_by_one.spans.start_ns)
    assert np.array_equal(by_shape.spans.duration_ns, one_by_one.spans.duration_ns)
    assert by_shape.problems == one_by_one.problems
    for table in ("blocks", "launches"):
        for name, column in getattr(by_shape, table).items():
            assert np.array_equal(column, getattr(one_by_one, table)[name], equal_nan=name.endswith("_ns")), name


@FAST
@given(st.lists(st.integers(0, 3 * TURN), min_size=1, max_size=12), st.integers(1, 6), st.booleans())
@example([0, 0, TURN], 1, False)
def test_times_in_chunks_that_wrapped_are_exact_or_flagged(steps: list[int], slots: int, begun: bool) -> None:
    times = (CLOCK.offset_cycles + 100_000 + np.cumsum(steps)).tolist()
    events = [Event(Verb.PHASE, t, 1) for t in times[:-1]] + [Event(Control.END, times[-1])]
    record = BlockRecord(CLOCK.offset_cycles + 99_000, 0, layout.sites_hash("rmsnorm")) if begun else None
    chunks = encode_warp(events, Warp(code_bits=BITS, clock=CLOCK, slots=slots, flags=0), block_record=record)
    case = WarpCase(events, slots, set(), chunks=chunks)
    decoded = decode_cases({(0, 0): case}, 0)
    found = decoded.spans.start_cycles
    assert ((found - times[:-1]) % TURN == 0).all()
    sure = decoded.spans.flags & np.uint16(SpanFlag.WRAPPED) == 0
    assert np.array_equal(found[sure], np.array(times[:-1])[sure])
    assert np.array_equal(decoded.spans.duration_cycles[sure], np.diff(times)[sure])


@FAST
@given(st.binary(min_size=0, max_size=128 * 12), st.booleans())
def test_any_bytes_decode_without_an_error(data: bytes, marked: bool) -> None:
    chunks = np.frombuffer(data[: len(data) // 128 * 128], "<u4").reshape(-1, 32).copy()
    if marked:
        chunks[:, layout.WORD_META] = chunks[:, layout.WORD_META] & 0x0FFF00C3 | 0xA0000000
        chunks[:, layout.WORD_BLOCK] %= 2
        chunks[:, layout.WORD_GRID] = 1
    facts = manifest(launches=[{"grid": [2, 1, 1], "block": [96, 1, 1]}], sites=SITES, sm_count=1)
    decoded = decode(check(facts), {MEMBER: chunks})
    assert (decoded.spans.duration_cycles >= 0).all()
