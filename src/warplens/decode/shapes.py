"""Warps that recorded the same sequence of marks are decoded together.

In: ordered chunks and their words. Out: `Group`s of warps with one `Shape`, which fill their rows of the spans table
as events.py and spans.py would; and which chunks are left for those. The structure of a warp (which word is an event,
what ends what, depths) depends only on the codes of its records, and most warps of a kernel share a few sequences of
them: the structure is worked out once for one warp, checked against the codes of the others, and applied to all that
agree, as arrays (warps, events). Warps with losses, problems, or a sequence of their own go the general way.
Must give exactly what the general way gives (a test holds it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.chunks import Chunks
from warplens.decode.events import TOKEN_END, Words, ages, reaches_too_far, read_events, slots
from warplens.decode.problems import Problems
from warplens.decode.spans import Axis, Spans, find_spans, make_spans, tell_backwards
from warplens.decode.table import PerChunk
from warplens.layout import ChunkFlag

F64 = npt.NDArray[np.float64]

# All `take`s below have valid indices; mode="clip" only spares numpy its slow check (measured: 2 times faster).

_BLOCK_EVENTS: Final = 1 << 15
"""Events handled at a time: their dozen columns stay in the second-level cache (2 MB)."""
_ATTEMPTS: Final = 24
"""Shapes tried before the rest goes the general way."""
_LONGEST: Final = 1 << 30
"""Cycles that a warp of a group may last: 0.5 s at 2 GHz. Others go the general way, with 64 bits."""
_WORTH: Final = 4
"""Warps that must be left for another shape to be worth finding."""


@dataclass(frozen=True)
class SiteSet:
    """A site set's number, its first row in the table `sites` and how many sites it has."""

    index: int
    base: int
    count: int

    @property
    def code_bits(self) -> int:
        """Bits of a record's code."""
        return layout.code_bits(self.count)


@dataclass
class Shape:
    """The structure of a warp. Words are numbered through all its chunks, events through all its words."""

    position: I64
    """Of each word, in the warp's chunks laid end to end; the recorder's end has none."""
    slot: I64
    """Of each event but the end: its word."""
    code: U32
    """Of each event but the end."""
    token: tuple[I64, U32]
    """Words that must agree too: the ids of TOKEN_END events, and their values."""
    chunk: I64
    """Of each event: its chunk within the warp."""
    per_chunk: I64
    begin: I64
    end: I64
    spans_per_chunk: I64
    spans: Spans
    """Of the warp that the shape was found in."""

    def __post_init__(self) -> None:
        events = len(self.slot) + 1
        self.all_events = len(self.slot) == len(self.position)
        """Every word is an event."""
        self.straight = np.array_equal(self.begin, np.arange(events - 1)) and np.array_equal(self.end, self.begin + 1)
        """Each event ends the span before it and begins the next."""

    def events(self, record: U32) -> U32:
        """Words of `record` (warps, words) that are events."""
        return record if self.all_events else _columns(record, self.slot)

    def misfits(self, record: U32, event: U32, codes: U32, code_bits: int) -> Bool | None:
        """Which rows of `record` (warps, words), with its `event`s, do not have this shape; None when all have.

        `codes` are the shape's, repeated for at least as many warps.
        """
        differ = event.reshape(-1) ^ codes[: event.size]
        differ &= np.uint32((1 << code_bits) - 1)
        if len(self.token[0]) == 0 and not differ.max(initial=0):
            return None
        out = differ.reshape(event.shape).any(axis=1)
        out |= (_columns(record, self.token[0]) != self.token[1]).any(axis=1)
        return np.asarray(out) if out.any() else None


class Group:
    """Warps of one shape: their chunks (warps, chunks of each) and the ages of their spans (warps, spans of each)."""

    def __init__(self, shape: Shape, sites: SiteSet, candidates: I64) -> None:
        self.shape, self.sites, self.index = shape, sites, candidates
        # One piece of memory for both: large ones the system maps in pages of 2 MB.
        self._age, self._duration = np.empty((2, len(candidates), len(shape.begin)), np.uint32)
        self._chunk_ages = np.zeros((2, *candidates.shape), np.uint32)
        """Of each chunk's first and last event."""
        size = self._age.shape
        self._words = {name: np.empty(size, np.uint32) for name in ("id", "payload") if getattr(shape.spans, name)}
        self._backwards = False
        self._first_row = self._base_cycles = np.zeros(0, np.int64)
        self._axis: Axis

    def fill(self, words: U32, chunks: Chunks, problems: Problems) -> I64:
        """Decodes the candidates that have the shape; returns the chunks (warps, chunks of each) of the others."""
        step = max(1, _BLOCK_EVENTS // (len(self.shape.slot) + 1))
        taken, left = [self.index[:0]], [self.index[:0]]
        used, codes = 0, np.tile(self.shape.code, min(step, len(self.index)))
        for low in range(0, len(self.index), step):
            index = self.index[low : low + step]
            record = _gather(words, chunks.row[index.reshape(-1)], self.shape.position, index.shape[1])
            event = self.shape.events(record)
            misfits = self.shape.misfits(record, event, codes, self.sites.code_bits)
            if misfits is not None:
                left.append(index[misfits])
                index, record, event = index[~misfits], record[~misfits], event[~misfits]
            part = slice(used, used + len(index))
            self._measure(part, index, event, chunks, problems)
            for name, out in self._words.items():
                out[part] = self._word(name, record)
            taken.append(index)
            used = part.stop
        if used < len(self.index):
            self.index = np.concatenate(taken)
            self._age, self._duration, self._chunk_ages = (
                self._age[:used],
                self._duration[:used],
                self._chunk_ages[:, :used],
            )
            self._words = {name: values[:used] for name, values in self._words.items()}
        return np.concatenate(left)

    @property
    def has_payload(self) -> bool:
        """True when some span has a payload word."""
        return self.shape.spans.payload is not None

    @property
    def has_id(self) -> bool:
        """True when some span has an id word."""
        return self.shape.spans.id is not None

    def _blocks(self) -> list[slice]:
        """Slices of warps of about _BLOCK_EVENTS events."""
        step = max(1, _BLOCK_EVENTS // (len(self.shape.slot) + 1))
        return [slice(low, min(low + step, len(self.index))) for low in range(0, len(self.index), step)]

    def _measure(self, part: slice, index: I64, event: U32, chunks: Chunks, problems: Problems) -> None:
        """How long before its warp's last base each span began, and how long it was. 32 bits, flat: rows are short."""
        shape, count = self.shape, len(self.shape.slot)
        base = chunks.base_cycles[index]
        age = self._age[part].reshape(-1) if shape.straight else np.empty(event.size, np.uint32)
        ages(event, _wide(base.astype(np.uint32), shape.chunk[:-1]), self.sites.code_bits, age)
        if base.shape[1] > 1:
            age += _wide((base[:, -1:] - base).astype(np.uint32), shape.chunk[:-1])
        if shape.straight:
            duration = self._duration[part].reshape(-1)
            duration[:-1] = age[1:]
            duration[count - 1 :: count] = 0
            np.subtract(age, duration, out=duration)
        else:
            whole = np.zeros((len(base), count + 1), np.uint32)  # the end is the base itself
            whole[:, :-1] = age.reshape(-1, count)
            _columns(whole, shape.begin, out=self._age[part])
            np.subtract(self._age[part], _columns(whole, shape.end), out=self._duration[part])
        if self._duration[part].view(np.int32).min(initial=0) < 0:
            self._tell_backwards(part, index, chunks, problems)
        last = np.cumsum(shape.per_chunk) - 1
        for of_chunk, at in zip(self._chunk_ages, (last + 1 - shape.per_chunk, last), strict=True):
            for chunk, column in enumerate(at.clip(0).tolist()):
                if column < count:  # the end's age is 0
                    of_chunk[part, chunk] = age[column::count]

    def _tell_backwards(self, part: slice, index: I64, chunks: Chunks, problems: Problems) -> None:
        duration, count = self._duration[part].reshape(-1), len(self.shape.begin)
        back = np.flatnonzero(duration.view(np.int32) < 0)
        sequence = np.tile(self.shape.spans.sequence, len(index))[back].astype(np.int64)
        tell_backwards(index[back // count, 0], sequence, chunks, problems)
        duration[back] = 0
        self._backwards = True

    def _word(self, name: str, record: U32) -> U32:
        """The id words of the spans, or their payload words, which stand behind an id where there is one."""
        pattern: Words = getattr(self.shape.spans, name)
        column, ids = self.shape.slot[self.shape.begin] + 1, self.shape.spans.id
        if name == "payload" and ids is not None:
            column += ids.valid
        return np.asarray(_columns(record, np.minimum(column, record.shape[1] - 1)) * pattern.valid)

    def place(self, per: PerChunk, chunks: Chunks, axis: Axis) -> None:
        """Takes its rows from `per`, and says there when its chunks' events were.."""
        self._first_row = per.first_row[self.index[:, 0]]
        # Most often all chunks are here, in order: then a view serves.
        index: Any = slice(None) if self.index.size == len(chunks) else self.index.reshape(-1)
        per.events[index] = np.tile(self.shape.per_chunk, len(self.index))
        self._base_cycles, self._axis = chunks.base_cycles[index][self.index.shape[1] - 1 :: self.index.shape[1]], axis
        part = axis.part(index)
        since = (np.repeat(self._base_cycles, self.index.shape[1]) - part.base_cycles).astype(np.float64)
        per.first_ns[index] = part.ns_of(since - self._chunk_ages[0].reshape(-1))
        per.last_ns[index] = part.ns_of(since - self._chunk_ages[1].reshape(-1))

    def _at(self, part: slice = slice(None)) -> Any:
        """Rows of the table for `part` of the warps: a slice where they lie side by side, else indices."""
        rows, count = self._first_row[part], self._age.shape[1]
        if int(rows[-1] - rows[0]) == (len(rows) - 1) * count:
            return slice(int(rows[0]), int(rows[0]) + len(rows) * count)
        return (rows[:, None] + np.arange(count)).reshape(-1)

    def write(self, name: str, out: npt.NDArray[Any]) -> None:
        """Writes a column that the shape knows."""
        out[self._at()] = np.tile(getattr(self.shape.spans, name), len(self.index))

    def times_writers(self, names: tuple[str, str], start: I64, duration: I64) -> list[Callable[[], None]]:
        """What writes the two columns of times `names`, block by block."""
        return [partial(self._write_times, names[0] == "start_ns", start, duration, block) for block in self._blocks()]

    def _write_times(self, in_ns: bool, start: I64, duration: I64, part: slice) -> None:
        at, count = self._at(part), self._age.shape[1]
        age, lasted = self._age[part].reshape(-1), self._duration[part].reshape(-1)
        base = self._base_cycles[part]
        if not in_ns:
            start[at] = np.repeat(base, count) - age
            duration[at] = lasted
            return
        line = _Line(self._axis.part(self.index[part, -1]), base, count)
        begin = line.ns(age)
        if self.shape.straight and not self._backwards:
            end = np.empty_like(begin)
            end[:-1] = begin[1:]
            end[count - 1 :: count] = line.end_ns()
        else:
            end = line.ns(age - lasted)
        end -= begin
        start[at], duration[at] = begin, end

    def write_words(self, name: str, out: Words) -> None:
        """Writes ids or payloads."""
        if name in self._words:
            at, pattern = self._at(), getattr(self.shape.spans, name)
            out.values[at], out.valid[at] = self._words[name].reshape(-1), np.tile(pattern.valid, len(self.index))


class _Line:
    """Times of events in ns, as Axis.to_ns gives them, for warps with `count` spans each that end at `base_cycles`."""

    def __init__(self, axis: Axis, base_cycles: I64, count: int) -> None:
        self._axis, self._count = axis, count
        self._since = (base_cycles - axis.base_cycles).astype(np.float64)
        same = bool((axis.base_ns == axis.base_ns[0]).all())
        self._base_ns: Any = axis.base_ns[0] if same else np.repeat(axis.base_ns, count)

    def ns(self, age: U32) -> I64:
        """Times that lie `age` cycles before the ends, one for each span."""
        ns: F64 = np.repeat(self._since, self._count)
        ns -= age
        ns *= np.repeat(self._axis.ns_per_cycle, self._count)
        ns += np.repeat(self._axis.offset_ns, self._count)
        with np.errstate(invalid="ignore"):  # damaged clocks may lie beyond int64
            out = np.rint(ns, out=ns).astype(np.int64)
        out += self._base_ns
        return out

    def end_ns(self) -> I64:
        """Times of the ends, one for each warp."""
        return self._axis.ns_of(self._since)


def find_groups(
    words: U32, chunks: Chunks, axis: Axis, sets: list[SiteSet], problems: Problems
) -> tuple[list[Group], Bool]:
    """Groups of warps of one shape, and a mask of the chunks that are in none. `sets` is per launch."""
    rest = np.ones(len(chunks), np.bool_)
    if not len(chunks):
        return [], rest
    warps = _Warps(chunks, sets)
    groups: list[Group] = []
    todo = np.flatnonzero(warps.whole)
    attempts = 0
    while len(todo) >= _WORTH and attempts < _ATTEMPTS:
        sites = sets[int(chunks.launch[warps.first[todo[0]]])]
        alike = warps.alike(todo)
        index = warps.chunks(alike)
        while len(index) >= _WORTH and attempts < _ATTEMPTS:
            attempts += 1
            shape = _shape_of(words, chunks, axis, index[0], sites)
            if shape is None:  # a warp of problems: it goes the general way
                index = index[1:]
                continue
            groups.append(Group(shape, sites, index))
            index = groups[-1].fill(words, chunks, problems)
            rest[groups[-1].index] = False
        todo = np.setdiff1d(todo, alike, assume_unique=True) if len(alike) < len(todo) else todo[:0]
    return groups, rest


class _Warps:
    """Warps: their first chunk and number of chunks, a key of their chunks' counts, and which can have a shape."""

    def __init__(self, chunks: Chunks, sets: list[SiteSet]) -> None:
        begins = chunks.first_of_warp
        self.slots = slots(chunks)
        self.first = np.flatnonzero(begins)
        self.size = np.diff(np.append(self.first, len(chunks)))
        odd = chunks.lost > 0
        bits = np.array([own.code_bits for own in sets])
        odd |= reaches_too_far(chunks, bits[0] if len(bits) == 1 else bits[chunks.launch])
        odd |= chunks.has(ChunkFlag.LAST) != np.append(begins[1:], True)  # only ended warps, and those once
        if not chunks.single:
            odd[1:] |= (chunks.sm[1:] != chunks.sm[:-1]) & ~begins[1:]
        if not chunks.single:  # ages have 32 bits
            lasted = np.repeat(chunks.base_cycles[self.first + self.size - 1], self.size) - chunks.base_cycles
            odd |= (lasted < 0) | (lasted >= _LONGEST)
        self.whole = np.ones(len(self.first), np.bool_)
        if odd.any():
            self.whole[np.cumsum(begins)[odd] - 1] = False
        self._key = self.slots
        if not chunks.single:
            place = np.arange(len(chunks)) - np.repeat(self.first, self.size)
            weight = np.random.default_rng(0).integers(1 << 62, size=int(self.size.max()))
            self._key = np.add.reduceat(self.slots * weight[place], self.first)
        self._set = np.array([own.index for own in sets])[chunks.launch[self.first]]

    def alike(self, warps: I64) -> I64:
        """Those of `warps` whose chunks have the same numbers of words as the first one's, in the same site set."""
        same = self._key[warps] == self._key[warps[0]]
        for column in (self.size, self._set):
            same &= column[warps] == column[warps[0]]
        some = warps if bool(same.all()) else warps[same]
        table = self.slots[self.chunks(some)]
        equal = np.asarray((table == table[0]).all(axis=1))
        return some if bool(equal.all()) else np.asarray(some[equal])  # keys can collide

    def chunks(self, warps: I64) -> I64:
        """Indices of the chunks of warps that have equally many, shape (warps, chunks)."""
        return np.asarray(self.first[warps][:, None] + np.arange(self.size[warps[0]]))


def _wide(of_chunk: npt.NDArray[Any], chunk: I64) -> npt.NDArray[Any]:
    """Of each event, warp after warp: what a table (warps, chunks) says of its chunk."""
    if of_chunk.shape[1] == 1:
        return np.repeat(of_chunk[:, 0], len(chunk))
    return _columns(of_chunk, chunk).reshape(-1)


def _columns(table: npt.NDArray[Any], which: I64, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    return table.take(which, axis=1, mode="clip", out=out)


def _gather(words: U32, row: I64, position: I64, chunks_each: int) -> U32:
    """The words at `position` in the chunks of each warp laid end to end, shape (warps, words of each)."""
    if bool((row[1:] - row[:-1] == 1).all()):
        rows = words[int(row[0]) : int(row[-1]) + 1]
    else:
        rows = words.take(row, axis=0, mode="clip")
    if chunks_each == 1:
        return np.ascontiguousarray(rows[:, layout.HEADER_WORDS : layout.HEADER_WORDS + len(position)])
    return _columns(np.ascontiguousarray(rows).reshape(-1, chunks_each * layout.CHUNK_WORDS), position)


def _positions(counts: I64) -> I64:
    """Of each word of a warp, in its chunks laid end to end."""
    chunk = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(chunk * layout.CHUNK_WORDS + layout.HEADER_WORDS + within, np.int64)


def _shape_of(words: U32, chunks: Chunks, axis: Axis, index: I64, sites: SiteSet) -> Shape | None:
    """The shape of the warp with the chunks `index`; None when it has problems or ranges that other warps may end."""
    part = slice(int(index[0]), int(index[-1]) + 1)
    own, problems = chunks.take(part), Problems()
    events = read_events(words, own, sites.code_bits, problems)
    found = find_spans(events, own, sites.count, problems)
    run = make_spans(events, own, axis.part(part), sites.base, found=found, problems=Problems())
    if problems or not len(run.spans) or (run.loose is not None and run.loose.concerns_others()):
        return None
    position = _positions(own.count)
    record = words.take(own.row, axis=0, mode="clip").reshape(-1).take(position, mode="clip")
    slot = np.arange(len(events)) if events.slot is None else events.slot
    tokens = slot[events.kind == TOKEN_END] + 1
    return Shape(
        position=position,
        slot=slot[:-1],
        code=record[slot[:-1]] & np.uint32((1 << sites.code_bits) - 1),
        token=(tokens, record[tokens]),
        chunk=events.chunk(),
        per_chunk=events.per_chunk,
        begin=found.begin,
        end=found.end,
        spans_per_chunk=run.spans_per_chunk,
        spans=run.spans,
    )
