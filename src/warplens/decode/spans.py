"""Spans of a run of chunks: which event begins one, which ends it, and where on the time axis both lie.

In: `Events`, their chunks and the time axis of those chunks. Out: `Spans` (columns, one row a beginning event, in
order) and `Loose` starts and ends, which may find each other in other warps. Must not convert clocks itself but
through the lines that clock fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.chunks import Chunks
from warplens.decode.events import (
    END,
    PHASE_END,
    RANGE_POP,
    TOKEN_END,
    U8,
    U16,
    Events,
    Words,
    first_slots,
    kinds,
    tell,
)
from warplens.decode.flags import SpanFlag
from warplens.decode.problems import Problems
from warplens.decode.ranges import crossing, last_of_segment, match_pushes, match_tokens
from warplens.layout import Verb

F64 = npt.NDArray[np.float64]

_BOUNDARY: Final = kinds(Verb.PHASE, Verb.WAIT, PHASE_END, END)
_INSTANT: Final = kinds(Verb.MARK, Verb.ARRIVE)
_SPAN: Final = _INSTANT | kinds(Verb.PHASE, Verb.WAIT, Verb.RANGE_PUSH, Verb.RANGE_START)
_MAX_DEPTH: Final = 255


@dataclass
class Axis:
    """The line of each chunk's SM and launch: ns = base + rint(offset + (cycles - base_cycles) * rate)."""

    base_cycles: I64
    offset_ns: F64
    ns_per_cycle: F64
    base_ns: I64
    """Since the trace's origin."""

    def part(self, chunks: Any) -> Axis:
        """The axis of some of the chunks."""
        return Axis(*(getattr(self, f.name)[chunks] for f in fields(self)))

    def ns_of(self, since_cycles: F64) -> I64:
        """Nanoseconds since the origin at cycles after `base_cycles`, one or a row of them for each chunk."""
        ns = since_cycles * self.ns_per_cycle
        ns += self.offset_ns
        with np.errstate(invalid="ignore"):  # damaged clocks may lie beyond int64
            return np.asarray(np.rint(ns, out=ns).astype(np.int64) + self.base_ns)

    def to_ns(self, events: Events, chunks: Chunks) -> I64:
        """Nanoseconds since the origin of each event, as clock.ClockMap.to_ns gives them."""
        count = events.per_chunk
        ns = np.repeat((chunks.base_cycles - self.base_cycles).astype(np.float64), count)
        ns -= events.age.astype(np.float64)
        ns *= np.repeat(self.ns_per_cycle, count)
        ns += np.repeat(self.offset_ns, count)
        with np.errstate(invalid="ignore"):  # damaged clocks may lie beyond int64
            out = np.rint(ns, out=ns).astype(np.int64)
        same = len(self.base_ns) > 0 and bool((self.base_ns == self.base_ns[0]).all())
        out += self.base_ns[0] if same else np.repeat(self.base_ns, count)
        return out


@dataclass(eq=False, repr=False)
class SpanColumns:
    """Columns of the table `spans`, with the dtypes of the table."""

    launch: U32
    block: U32
    warp: U8
    sequence: U32
    site: U16
    depth: U8
    start_ns: I64
    start_cycles: I64
    duration_cycles: I64
    duration_ns: I64
    payload: Words | None
    id: Words | None
    flags: U16


class Spans(SpanColumns):
    """Columns that are all there."""

    def __len__(self) -> int:
        return len(self.launch)


@dataclass
class Loose:
    """Starts without a token's end, and ends by id; and all ranges of their warps, to find which cross.

    `row` is the span's row within the run, -1 for an end. `begin` and `end` of `range_*` are record numbers.
    """

    row: I64
    chunk: I64
    sequence: I64
    key: I64
    t_cycles: I64
    t_ns: I64
    range_row: I64
    range_gwarp: I64
    range_begin: I64
    range_end: I64
    range_pushed: Bool

    def concerns_others(self) -> bool:
        """True unless all ranges ended by tokens, inside their warp and without crossing."""
        return len(self.row) > 0 or bool(crossing(self.range_gwarp, self.range_begin, self.range_end).any())


@dataclass
class Run:
    """What a run of chunks gives: spans, loose ends, and per chunk its number of events and their first and last ns."""

    spans: Spans
    loose: Loose | None
    events: I64
    first_ns: I64
    last_ns: I64
    sites: U16
    """Sites that a span reached."""
    spans_per_chunk: I64


@dataclass
class Found:
    """Spans as indices of events: what begins and what ends each, its depth and its flags."""

    begin: I64
    end: I64
    depth: U8
    flags: U16


def find_spans(events: Events, chunks: Chunks, site_count: int, problems: Problems) -> Found:
    """The spans of `events`, without their times."""
    begin = _beginnings(events, chunks, site_count, problems)
    end, depth, flags = _ends(events, chunks, begin, problems)
    if events.after_gap is not None:
        flags[events.after_gap[begin]] |= np.uint16(SpanFlag.AFTER_GAP)
    if events.wrapped is not None:
        flags[events.wrapped[begin] | events.wrapped[end]] |= np.uint16(SpanFlag.WRAPPED)
    _tell_no_end(events, chunks, problems)
    return Found(begin, end, depth, flags)


def make_spans(
    events: Events,
    chunks: Chunks,
    axis: Axis,
    site_base: int,
    *,
    found: Found,
    problems: Problems,
) -> Run:
    """Spans of the events of `chunks`, with their times.

    `found` is what `find_spans` gave for them; `site_base` is the first site of their site set in the table `sites`.
    """
    begin, end, flags = found.begin, found.end, found.flags
    t_ns = axis.to_ns(events, chunks)
    t_cycles = np.repeat(chunks.base_cycles, events.per_chunk)
    t_cycles -= events.age
    start_ns, start_cycles = t_ns[begin], t_cycles[begin]
    duration_ns, duration_cycles = t_ns[end], t_cycles[end]
    duration_ns -= start_ns
    duration_cycles -= start_cycles
    if duration_cycles.min(initial=0) < 0:
        back = np.flatnonzero(duration_cycles < 0)
        tell_backwards(events.chunk(begin[back]), events.sequence(chunks, begin[back]), chunks, problems)
        duration_cycles[back] = 0
        duration_ns[back] = 0
    first = np.cumsum(events.per_chunk) - events.per_chunk
    per_chunk = _counts(begin, first, len(events))
    site = events.site[begin]
    site += np.uint16(site_base - 1 & 0xFFFF)
    spans = Spans(
        launch=np.repeat(chunks.launch.astype(np.uint32), per_chunk),
        block=np.repeat(chunks.block.astype(np.uint32), per_chunk),
        warp=np.repeat(chunks.warp.astype(np.uint8), per_chunk),
        sequence=_sequence(events, chunks, begin, per_chunk),
        site=site,
        depth=found.depth,
        start_ns=start_ns,
        start_cycles=start_cycles,
        duration_cycles=duration_cycles,
        duration_ns=duration_ns,
        payload=None if events.payload is None else events.payload.take(begin),
        id=None if events.id is None else events.id.take(begin),
        flags=flags,
    )
    loose = None
    if events.present & kinds(Verb.RANGE_START, Verb.RANGE_END):
        loose = _loose(events, chunks, begin, end, flags, t_cycles, t_ns)
    padded = np.append(t_ns, 0)
    return Run(
        spans=spans,
        loose=loose,
        events=events.per_chunk,
        first_ns=padded[first],
        last_ns=padded[first + events.per_chunk - 1],
        sites=np.unique(site),
        spans_per_chunk=per_chunk,
    )


def _counts(begin: I64, first: I64, size: int) -> I64:
    """How many of the indices `begin` lie in each chunk."""
    before = np.zeros(size + 1, np.int64)
    before[begin + 1] = 1
    np.cumsum(before, out=before)
    return np.asarray(np.diff(before[np.append(first, size)]))


def _beginnings(events: Events, chunks: Chunks, site_count: int, problems: Problems) -> I64:
    """Indices of the events that begin a span, or are one."""
    makes = events.kind < END if not events.present & ~_BOUNDARY else events.has(_SPAN)
    if events.site.max(initial=0) > site_count:
        unknown = events.site > site_count
        tell(problems, "unknown_site", "error", "a site that the recording does not name", events, chunks, unknown)
        makes &= ~unknown
    return np.flatnonzero(makes)


def _sequence(events: Events, chunks: Chunks, begin: I64, per_chunk: I64) -> U32:
    out = (begin if events.slot is None else events.slot[begin]).astype(np.uint32)
    out += np.repeat((chunks.sequence - first_slots(chunks)).astype(np.uint32), per_chunk)
    return out


def _ends(events: Events, chunks: Chunks, begin: I64, problems: Problems) -> tuple[I64, U8, U16]:
    """Index of the event that ends each span (itself for an instant), its depth, and its flags."""
    if not events.present & ~_BOUNDARY:
        end, flags = begin + 1, np.zeros(len(begin), np.uint16)
        unended = np.append(events.fresh[1:], True)[begin]
        if unended.any():
            flags[unended] = SpanFlag.UNENDED
            end[unended] -= 1
        return end, np.zeros(len(begin), np.uint8), flags
    partner, depth = _partners(events, chunks, problems)
    end = partner[begin]
    flags = np.zeros(len(begin), np.uint16)
    open_ = np.flatnonzero(end < 0)
    if len(open_):
        instant = events.has(_INSTANT)[begin[open_]]
        end[open_] = begin[open_]
        flags[open_[instant]] = SpanFlag.INSTANT
        segment, last = last_of_segment(events.fresh)
        unended = open_[~instant]
        end[unended] = last[segment[begin[unended]]]
        flags[unended] = SpanFlag.UNENDED
    if depth is None:
        return end, np.zeros(len(begin), np.uint8), flags
    return end, np.minimum(depth[begin], _MAX_DEPTH).astype(np.uint8), flags


def _partners(events: Events, chunks: Chunks, problems: Problems) -> tuple[I64, I64 | None]:
    """Index of the event that ends what each event begins (-1: none), and depths (None: all 0)."""
    segment, _ = last_of_segment(events.fresh)
    end = np.full(len(events), -1, np.int64)
    at = np.flatnonzero(events.has(_BOUNDARY))
    follows = segment[at[1:]] == segment[at[:-1]]
    end[at[:-1][follows]] = at[1:][follows]
    depth = None
    if events.present & kinds(Verb.RANGE_PUSH, RANGE_POP):
        pushes = match_pushes(events.kind, segment)
        end[pushes.begin] = pushes.end
        depth = pushes.depth
        _tell_pushes(events, chunks, segment, end, pushes.unmatched_pop, problems)
    if events.present & kinds(TOKEN_END):
        _match_tokens(events, chunks, end, problems)
    return end, depth


def _match_tokens(events: Events, chunks: Chunks, end: I64, problems: Problems) -> None:
    starts, ends = np.flatnonzero(events.kind == Verb.RANGE_START), np.flatnonzero(events.kind == TOKEN_END)
    gwarp = np.repeat(chunks.gwarp, events.per_chunk)
    sequence = events.sequence(chunks)
    token = np.zeros(len(events), np.int64) if events.id is None else events.id.values.astype(np.int64)
    # Sequences have 32 bits and so do tokens; the warps of a run are numbered from 0 to keep the key small.
    warp = np.cumsum(np.append(0, gwarp[1:] != gwarp[:-1])) << 32
    one, two = match_tokens(warp[starts] | sequence[starts], warp[ends] | token[ends])
    right = ends[two] > starts[one]
    one, two = starts[one[right]], ends[two[right]]
    end[one] = two
    found = np.zeros(len(events), np.bool_)
    found[two] = True
    lone = (events.kind == TOKEN_END) & ~found
    tell(problems, "unmatched_end", "error", "the end of a range whose start is not there", events, chunks, lone)


def _tell_pushes(
    events: Events, chunks: Chunks, segment: I64, end: I64, unmatched_pop: I64, problems: Problems
) -> None:
    """Pushes and pops left over: a loss where records are missing on that side of them, else an error."""
    segments = int(segment[-1]) + 1 if len(segment) else 0
    begins_lost, ends_lost = np.zeros(segments, np.bool_), np.zeros(segments, np.bool_)
    if events.after_gap is not None:
        begins_lost[segment[events.after_gap]] = True
        chunk = events.chunk()
        cut = np.flatnonzero(events.after_gap)
        inner = cut[cut > 0]
        inner = inner[chunks.gwarp[chunk[inner]] == chunks.gwarp[chunk[inner - 1]]]
        ends_lost[segment[inner] - 1] = True
    unmatched_push = np.flatnonzero((events.kind == Verb.RANGE_PUSH) & (end < 0))
    for kind, which, lost, text in (
        ("unmatched_push", unmatched_push, ends_lost, "a range_push that no range_pop ends"),
        ("unmatched_pop", unmatched_pop, begins_lost, "a range_pop with no range open"),
    ):
        by_loss = lost[segment[which]]
        tell(problems, kind, "loss", text + ": records are missing there", events, chunks, which[by_loss])
        tell(problems, kind, "error", text, events, chunks, which[~by_loss])


def tell_backwards(chunk: I64, sequence: I64, chunks: Chunks, problems: Problems) -> None:
    """Tells of spans that end before they begin; `chunk` and `sequence` say where."""
    problems.places(
        "time_goes_back",
        "error",
        "a span that ends before it begins (damaged records?): shown with duration 0",
        launch=chunks.launch[chunk],
        block=chunks.block[chunk],
        warp=chunks.warp[chunk],
        sequence=sequence,
    )


def _tell_no_end(events: Events, chunks: Chunks, problems: Problems) -> None:
    first = np.flatnonzero(chunks.first_of_warp)
    after = np.cumsum(events.per_chunk)[np.append(first[1:], len(chunks)) - 1]  # index after each warp's last event
    some = np.diff(after, prepend=0) > 0
    lone = first[~(some & (events.kind[np.maximum(after - 1, 0)] == END))] if len(events) else first
    problems.places(
        "no_end",
        "error",
        "the warp has no end: it left without its recorder's end, or its last records were lost",
        launch=chunks.launch[lone],
        block=chunks.block[lone],
        warp=chunks.warp[lone],
    )


def _loose(
    events: Events,
    chunks: Chunks,
    begin: I64,
    end: I64,
    flags: U16,
    t_cycles: I64,
    t_ns: I64,
) -> Loose:
    unended = (flags & np.uint16(SpanFlag.UNENDED)) != 0
    kind = events.kind[begin]
    row = np.flatnonzero((kind == Verb.RANGE_START) & unended)
    ends = np.flatnonzero(events.kind == Verb.RANGE_END)
    chunk, sequence = events.chunk(), events.sequence(chunks)
    which = np.concatenate([begin[row], ends])
    key = events.site.astype(np.int64) << 33
    if events.id is not None:
        key |= np.where(events.id.valid, events.id.values.astype(np.int64) + 1, 0)
    ranges = np.flatnonzero(((kind == Verb.RANGE_START) | (kind == Verb.RANGE_PUSH)) & ~unended)
    return Loose(
        row=np.concatenate([row, np.full(len(ends), -1)]),
        chunk=chunk[which],
        sequence=sequence[which],
        key=key[which],
        t_cycles=t_cycles[which],
        t_ns=t_ns[which],
        range_row=ranges,
        range_gwarp=chunks.gwarp[chunk[begin[ranges]]],
        range_begin=sequence[begin[ranges]],
        range_end=sequence[end[ranges]],
        range_pushed=kind[ranges] == Verb.RANGE_PUSH,
    )
