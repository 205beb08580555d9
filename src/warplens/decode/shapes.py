"""Warps that recorded the same sequence of marks are decoded together.

In: ordered chunks and their words. Out: `Group`s of warps with one `Shape`, which fill their rows of the spans table
as events.py and spans.py would; and which chunks are left for those. The structure of a warp (which word is an event,
what ends what, depths) depends only on the codes of its records, and most warps of a kernel share a few sequences of
them: the structure is worked out once for one warp, checked against the codes of the others, and applied to all that
agree, as arrays (warps, events). Warps with losses, problems, or a sequence of their own go the general way.
Must give exactly what the general way gives (a test holds it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.decode.chunks import I64, U32, Bool, Chunks
from warplens.decode.events import TOKEN_END, Words, ages, reaches_too_far, read_events, slots
from warplens.decode.problems import Problems
from warplens.decode.spans import Axis, Spans, find_spans, make_spans, tell_backwards
from warplens.decode.table import PerChunk
from warplens.layout import ChunkFlag

Map = Callable[..., Iterable[Any]]
F64 = npt.NDArray[np.float64]

# All `take`s below have valid indices; mode="clip" only spares numpy its slow check (measured: 2 times faster).

_BLOCK_EVENTS: Final = 1 << 15
"""Events handled at a time: their dozen columns stay in the second-level cache (2 MB)."""
_ATTEMPTS: Final = 24
"""Shapes tried before the rest goes the general way."""
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
    """Of each word, in the warp's chunks laid end to end; the last is the recorder's end."""
    slot: I64
    """Of each event: its word."""
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

    def fits(self, record: U32, code_bits: int) -> Bool:
        """Which rows of `record` (warps, words) have this shape."""
        event = record[:, :-1] if len(self.slot) == record.shape[1] else self._take(record, self.slot[:-1])
        differ = event ^ self.code
        differ &= np.uint32((1 << code_bits) - 1)
        if len(self.token[0]) == 0 and not np.bitwise_or.reduce(differ, axis=None, initial=0):
            return np.ones(len(record), np.bool_)
        same = ~differ.any(axis=1)
        same &= (self._take(record, self.token[0]) == self.token[1]).all(axis=1)
        return np.asarray(same)

    @staticmethod
    def _take(table: npt.NDArray[Any], columns: I64) -> npt.NDArray[Any]:
        return table.take(columns, axis=1, mode="clip")


@dataclass
class Group:
    """Warps of one shape: their chunks (warps, chunks of each) and their words (warps, words of each)."""

    shape: Shape
    sites: SiteSet
    index: I64
    record: U32

    def blocks(self) -> Iterator[slice]:
        """Slices of warps of about _BLOCK_EVENTS events."""
        step = max(1, _BLOCK_EVENTS // len(self.shape.slot))
        for low in range(0, len(self.index), step):
            yield slice(low, min(low + step, len(self.index)))

    def fill(self, part: slice, chunks: Chunks, axis: Axis, out: Spans, per: PerChunk, problems: Problems) -> None:
        """Writes the spans of some of the warps into `out`, at the rows that `per.first_row` names."""
        shape, index, record = self.shape, self.index[part], self.record[part]
        size, count = len(index), len(shape.begin)
        t_cycles, t_ns = self._times(index, record, chunks, axis)
        last = np.cumsum(shape.per_chunk) - 1
        per.events[index] = shape.per_chunk
        per.first_ns[index] = t_ns.take((last + 1 - shape.per_chunk).clip(0, len(shape.slot) - 1), axis=1, mode="clip")
        per.last_ns[index] = t_ns.take(last.clip(0), axis=1, mode="clip")
        rows = per.first_row[index[:, 0]]
        side_by_side = int(rows[-1] - rows[0]) == (size - 1) * count
        at: Any = (rows[:, None] + np.arange(count)).reshape(-1)
        if side_by_side:
            at = slice(int(rows[0]), int(rows[0]) + size * count)
        times = [out.start_cycles, out.start_ns, out.duration_cycles, out.duration_ns]
        # Side by side, these are views of the table; else copies, put back below.
        start, start_ns, duration, duration_ns = (column[at].reshape(size, count) for column in times)
        for source, begin, length in ((t_cycles, start, duration), (t_ns, start_ns, duration_ns)):
            source.take(shape.begin, axis=1, mode="clip", out=begin)
            np.subtract(source.take(shape.end, axis=1, mode="clip"), begin, out=length)
        if duration.min() < 0:
            back = np.flatnonzero(duration.reshape(-1) < 0)
            sequence = np.tile(shape.spans.sequence, size)[back].astype(np.int64)
            chunk = index[back // count, 0]
            tell_backwards(duration.reshape(-1), duration_ns.reshape(-1), back, chunk, sequence, chunks, problems)
        if not side_by_side:
            for column, values in zip(times, (start, start_ns, duration, duration_ns), strict=True):
                column[at] = values.reshape(-1)
        first = index[:, 0]
        for name in ("launch", "block", "warp"):
            getattr(out, name)[at] = np.repeat(getattr(chunks, name)[first], count)
        for name in ("sequence", "site", "depth", "flags"):
            getattr(out, name)[at] = np.tile(getattr(shape.spans, name), size)
        self._fill_words(at, record, out)

    def _times(self, index: I64, record: U32, chunks: Chunks, axis: Axis) -> tuple[I64, I64]:
        """clock64 and ns of each event, shape (warps, events); as Axis.to_ns, but the line is one per warp."""
        shape = self.shape
        event = record if len(shape.slot) == record.shape[1] else record.take(shape.slot, axis=1, mode="clip")
        base = chunks.base_cycles[index]
        age = ages(event, base.astype(np.uint32).take(shape.chunk, axis=1, mode="clip"), self.sites.code_bits)
        age[:, -1] = 0  # the end is the base itself
        t_cycles = base.take(shape.chunk, axis=1, mode="clip")
        t_cycles -= age
        first, count = index[:, 0], len(shape.slot)
        ns: F64 = (t_cycles - _wide(axis.base_cycles[first], count)).astype(np.float64)
        ns *= _wide(axis.ns_per_cycle[first], count)
        ns += _wide(axis.offset_ns[first], count)
        with np.errstate(invalid="ignore"):  # damaged clocks may lie beyond int64
            t_ns = np.rint(ns, out=ns).astype(np.int64)
        base_ns = axis.base_ns[first]
        t_ns += base_ns[0] if (base_ns == base_ns[0]).all() else base_ns[:, None]
        return t_cycles, t_ns

    def _fill_words(self, at: Any, record: U32, out: Spans) -> None:
        """The id words of the spans, and their payload words, which stand behind an id where there is one."""
        shape, size = self.shape, len(record)
        ids = shape.spans.id
        word = shape.slot[shape.begin] + 1
        after_id = word if ids is None else word + ids.valid
        for name, column in (("id", word), ("payload", after_id)):
            pattern: Words | None = getattr(shape.spans, name)
            if pattern is not None:
                into: Words = getattr(out, name)
                values = record.take(np.minimum(column, record.shape[1] - 1), axis=1, mode="clip") * pattern.valid
                into.values[at], into.valid[at] = values.reshape(-1), np.tile(pattern.valid, size)


def _wide(column: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """A column per warp over `count` events: copied out where numpy's inner loop over a row would be short."""
    return np.repeat(column, count).reshape(-1, count) if count < 64 else column[:, None]


def find_groups(words: U32, chunks: Chunks, axis: Axis, sets: list[SiteSet], each: Map) -> tuple[list[Group], Bool]:
    """Groups of warps of one shape, and a mask of the chunks that are in none. `sets` is per launch, `each` a map."""
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
        record = _gather(words, chunks, index, warps.slots, each)
        left = np.arange(len(alike))
        while len(left) >= _WORTH and attempts < _ATTEMPTS:
            attempts += 1
            shape = _shape_of(words, chunks, axis, index[left[0]], sites)
            fits = np.zeros(len(left), np.bool_)
            fits[0] = True  # also a warp of problems is done with: it goes the general way
            if shape is not None:
                own = record if len(left) == len(record) else record[left]
                fits = shape.fits(own, sites.code_bits)
                whole = bool(fits.all())
                group = Group(shape, sites, index[left] if whole else index[left[fits]], own if whole else own[fits])
                groups.append(group)
                rest[group.index] = False
            left = left[~fits]
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
        odd |= reaches_too_far(chunks, np.array([own.code_bits for own in sets])[chunks.launch])
        odd |= chunks.has(ChunkFlag.LAST) != np.append(begins[1:], True)  # only ended warps, and those once
        odd[1:] |= (chunks.sm[1:] != chunks.sm[:-1]) & ~begins[1:]
        self.whole = np.ones(len(self.first), np.bool_)
        if odd.any():
            self.whole[np.cumsum(begins)[odd] - 1] = False
        self._key = self.slots[self.first]
        if len(self.first) < len(chunks):
            place = np.arange(len(chunks)) - np.repeat(self.first, self.size)
            weight = np.random.default_rng(0).integers(1 << 62, size=int(self.size.max()))
            self._key = np.add.reduceat(self.slots * weight[place], self.first)
        self._set = np.array([own.index for own in sets])[chunks.launch[self.first]]

    def alike(self, warps: I64) -> I64:
        """Those of `warps` whose chunks have the same numbers of words as the first one's, in the same site set."""
        same = self._key[warps] == self._key[warps[0]]
        for column in (self.size, self._set):
            same &= column[warps] == column[warps[0]]
        some = warps[same]
        table = self.slots[self.chunks(some)]
        equal = np.asarray((table == table[0]).all(axis=1))
        return some if bool(equal.all()) else np.asarray(some[equal])  # keys can collide

    def chunks(self, warps: I64) -> I64:
        """Indices of the chunks of warps that have equally many, shape (warps, chunks)."""
        return np.asarray(self.first[warps][:, None] + np.arange(self.size[warps[0]]))


def _gather(words: U32, chunks: Chunks, index: I64, each_slots: I64, each: Map) -> U32:
    """The words of warps with equal counts, shape (warps, words of each)."""
    position = _positions(each_slots[index[0]])
    out = np.empty((len(index), len(position)), np.uint32)
    step = max(1, _BLOCK_EVENTS // len(position))

    def run(low: int) -> None:
        part = slice(low, low + step)
        rows = words.take(chunks.row[index[part].reshape(-1)], axis=0, mode="clip").reshape(
            -1, index.shape[1] * layout.CHUNK_WORDS
        )
        rows.take(position, axis=1, mode="clip", out=out[part])

    for _ in each(run, range(0, len(index), step)):
        pass
    return out


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
    position = _positions(slots(own))
    record = words.take(own.row, axis=0, mode="clip").reshape(-1).take(position, mode="clip")
    slot = np.arange(len(events)) if events.slot is None else events.slot
    tokens = slot[events.kind == TOKEN_END] + 1
    return Shape(
        position=position,
        slot=slot,
        code=record[slot[:-1]] & np.uint32((1 << sites.code_bits) - 1),
        token=(tokens, record[tokens]),
        chunk=events.chunk(),
        per_chunk=events.per_chunk,
        begin=found.begin,
        end=found.end,
        spans_per_chunk=run.spans_per_chunk,
        spans=run.spans,
    )
