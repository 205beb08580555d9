"""Events of a run of chunks: record words to columns in the order of the chunks.

In: words (n, 32) and chunks that share one number of code bits. Out: `Events`, with the id and payload words
joined to their event and breaks (a new warp, or lost records) marked; words that are no event are problems.
Must not know what verbs mean to each other: that is spans.py and ranges.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.chunks import Chunks, starts
from warplens.decode.problems import Problems, Severity
from warplens.layout import ChunkFlag, Control, Verb

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

CONTROL: Final = 8
"""Kind of an event: its verb, or CONTROL + its control code."""
END: Final = CONTROL + Control.END
RANGE_POP: Final = CONTROL + Control.RANGE_POP
TOKEN_END: Final = CONTROL + Control.TOKEN_END
PHASE_END: Final = CONTROL + Control.PHASE_END
_GAP: Final = CONTROL + Control.GAP
END_CODE: Final = int(Control.END) << layout.CODE_VERB_SHIFT
_VERB_MASK: Final = (1 << layout.CODE_VERB_BITS) - 1
_EXTRA_MASK: Final = layout.CODE_ID | layout.CODE_PAYLOAD


def kinds(*members: int) -> int:
    """A set of kinds as a bit mask."""
    return sum(1 << member for member in set(members))


_BROKEN: Final = kinds(CONTROL + Control.NONE, Verb.SPARE)
_LEAVING: Final = _BROKEN | kinds(_GAP, CONTROL + Control.EPOCH, CONTROL + Control.ANCHOR)


@dataclass
class Words:
    """Id or payload words of events: 0 where not `valid`."""

    values: U32
    valid: Bool

    def take(self, which: Any) -> Words:
        """Those that an index array or a mask selects."""
        return Words(self.values[which], self.valid[which])


@dataclass
class Events:
    """Columns over events, and `per_chunk`: how many each chunk gave.

    The end of a recorder, which is no record but the base of a chunk with the flag LAST, is an event too.
    """

    per_chunk: I64
    kind: U8
    site: U16
    age: npt.NDArray[Any]
    """Cycles between the event and the base of its chunk: uint32, or int64 where a chunk wrapped."""
    fresh: Bool
    """True where the event does not follow the one before it: another warp, or records are missing between."""
    after_gap: Bool | None = None
    """True where records are missing just before the event; None when none are, anywhere."""
    wrapped: Bool | None = None
    """True where more time passed than records can tell, so that `age` is the least that it can be."""
    slot: I64 | None = None
    """Which of the run's words the event is, in order; None when every word is an event."""
    id: Words | None = None
    payload: Words | None = None
    present: int = 0
    """The kinds that occur, as a mask."""

    def __len__(self) -> int:
        return len(self.kind)

    def has(self, mask: int) -> Bool:
        """True where an event's kind is in `mask`."""
        return (np.uint16(mask) >> self.kind & np.uint16(1)).astype(np.bool_)

    def chunk(self, which: Any = slice(None)) -> I64:
        """Chunk of each event (within the run), or of those selected."""
        return np.asarray(np.repeat(np.arange(len(self.per_chunk)), self.per_chunk)[which])

    def sequence(self, chunks: Chunks, which: Any = slice(None)) -> I64:
        """Index of each event's word in its warp's count, or of those selected."""
        slot = np.arange(len(self))[which] if self.slot is None else self.slot[which]
        return np.asarray(slot + (chunks.sequence - first_slots(chunks))[self.chunk(which)])


def slots(chunks: Chunks) -> I64:
    """Words of each chunk: its records, and one more where the recorder ended."""
    return chunks.count + (chunks.flags & int(ChunkFlag.LAST))


def first_slots(chunks: Chunks) -> I64:
    """Number of each chunk's first word among all words of the run."""
    each = slots(chunks)
    return np.cumsum(each) - each


def read_events(words: U32, chunks: Chunks, code_bits: int, problems: Problems) -> Events:
    """Events of `chunks`, in their order."""
    each, first = slots(chunks), first_slots(chunks)
    index = np.repeat(np.arange(len(chunks)) * layout.CHUNK_WORDS + layout.HEADER_WORDS - first, each)
    index += np.arange(len(index))
    rows = words.take(chunks.row, axis=0, mode="clip").reshape(-1)  # whole rows first: they lie anywhere in memory
    record = rows.take(index, mode="clip")
    ended = np.flatnonzero(each > chunks.count)
    end = first[ended] + chunks.count[ended]
    record[end] = (chunks.base_cycles[ended].astype(np.uint32) << np.uint32(code_bits)) | np.uint32(END_CODE)
    if not int(np.bitwise_or.reduce(record, initial=0)) & _EXTRA_MASK:
        events = _columns(record, code_bits, each, chunks)
    else:
        events = _with_extra_words(record, first, end, chunks, code_bits, problems)
    _mark_breaks(events, chunks)
    if (far := reaches_too_far(chunks, code_bits)).any():
        _unwrap_ages(events, chunks, far, code_bits, problems)
    events.present = int(np.bitwise_or.reduce(np.uint16(1) << events.kind, initial=0))
    if events.present & _LEAVING:
        return _without_control(events, chunks, problems)
    return events


def ages(record: U32, base_cycles: U32, code_bits: int, out: U32) -> U32:
    """Cycles from each event to the base of its chunk, modulo 2^(32 - code_bits); written to `out`, flat."""
    np.right_shift(record.reshape(-1), np.uint32(code_bits), out=out)
    np.subtract(base_cycles, out, out=out)
    out &= np.uint32((1 << (32 - code_bits)) - 1)
    return out


def reaches_too_far(chunks: Chunks, code_bits: int | I64) -> Bool:
    """Chunks whose events may lie farther back than their records (of `code_bits`, one or per chunk) can tell."""
    return np.asarray(chunks.reach_cycles >= 1 << (32 - code_bits))


def _unwrap_ages(events: Events, chunks: Chunks, far: Bool, code_bits: int, problems: Problems) -> None:
    """Ages in the chunks `far`: the least that keep the order of events, and which of them may be more.

    From the base back each event lies less than 2^(32 - code_bits) cycles before the next: the least. If then the
    first event stands so near the earliest time that it can have that no further turn fits, that is the truth.
    """
    turn = 1 << (32 - code_bits)
    after = np.cumsum(events.per_chunk)
    filled = events.per_chunk > 0
    step = events.age.astype(np.int64)
    step[:-1] -= step[1:].copy()
    step[after[filled] - 1] = events.age[after[filled] - 1]
    step %= turn
    later = np.append(np.cumsum(step[::-1])[::-1], 0)  # of each event and all that follow, over all chunks
    age = later[:-1] - np.repeat(later[after], events.per_chunk)
    oldest = np.append(age, 0)[after - events.per_chunk] * filled
    doubtful = far & (chunks.reach_cycles - oldest >= turn)
    events.age = np.where(np.repeat(far, events.per_chunk), age, events.age)
    events.wrapped = np.repeat(doubtful, events.per_chunk)
    doubtful &= chunks.count > 0
    texts: tuple[tuple[Bool, Severity, str], ...] = (
        (
            doubtful & ~chunks.likely,
            "error",
            f"records that may lie farther apart than the {turn} cycles they can tell",
        ),
        (
            doubtful & chunks.likely,
            "note",
            f"nothing proves that a warp began within {turn} cycles of its block's first",
        ),
    )
    for which, severity, text in texts:
        at = np.flatnonzero(which)
        problems.places(
            "wrapped",
            severity,
            text + ": times are right modulo that many",
            launch=chunks.launch[at],
            block=chunks.block[at],
            warp=chunks.warp[at],
            sequence=chunks.sequence[at],
            count=chunks.count[at],
        )


def tell(problems: Problems, kind: str, severity: Any, text: str, events: Events, chunks: Chunks, which: Any) -> None:
    """Adds the places of some events (a mask or indices) to the problems."""
    chunk = events.chunk(which)
    problems.places(
        kind,
        severity,
        text,
        launch=chunks.launch[chunk],
        block=chunks.block[chunk],
        warp=chunks.warp[chunk],
        sequence=events.sequence(chunks, which),
    )


def _columns(record: U32, code_bits: int, per_chunk: I64, chunks: Chunks) -> Events:
    code = (record & np.uint32((1 << code_bits) - 1)).astype(np.uint16)
    site = code >> np.uint16(layout.CODE_SITE_SHIFT)
    kind = (code >> np.uint16(layout.CODE_VERB_SHIFT)).astype(np.uint8)
    kind &= np.uint8(_VERB_MASK)
    kind |= (site == 0).view(np.uint8) << np.uint8(3)
    base = np.repeat(chunks.base_cycles.astype(np.uint32), per_chunk)
    return Events(
        per_chunk, kind, site, ages(record, base, code_bits, np.empty_like(base)), np.zeros(len(kind), np.bool_)
    )


def _with_extra_words(record: U32, first: I64, end: I64, chunks: Chunks, code_bits: int, problems: Problems) -> Events:
    """Columns where some events carry id or payload words: a word is an event when no event before it claims it."""
    is_event, cut = _find_events(record, first, chunks.count)
    if len(cut):
        is_event[cut] = False
        chunk = np.searchsorted(first, cut, side="right") - 1
        problems.places(
            "cut_record",
            "error",
            "an event whose id or payload word is missing",
            launch=chunks.launch[chunk],
            block=chunks.block[chunk],
            warp=chunks.warp[chunk],
            sequence=chunks.sequence[chunk] + cut - first[chunk],
            count=(first + chunks.count)[chunk] - cut,
        )
    is_event[end] = True
    slot = np.flatnonzero(is_event)
    event = record[slot]
    bounds = np.searchsorted(slot, np.append(first, len(record)))
    out = _columns(event, code_bits, np.diff(bounds), chunks)
    out.slot = slot
    padded = np.append(record, np.zeros(2, np.uint32))
    has_id = (event & np.uint32(layout.CODE_ID)).astype(np.bool_)
    has_payload = (event & np.uint32(layout.CODE_PAYLOAD)).astype(np.bool_)
    if has_id.any():
        out.id = Words(padded[slot + 1] * has_id, has_id)
    if has_payload.any():
        out.payload = Words(padded[slot + 1 + has_id] * has_payload, has_payload)
    return out


def _find_events(record: U32, first: I64, count: I64) -> tuple[Bool, I64]:
    """Which words are events, and the indices of events cut off by the end of their chunk.

    Walks the slots of all chunks together: 25 steps at most.
    """
    extra = (record & np.uint32(1)).astype(np.int8)
    extra += ((record >> np.uint32(1)) & np.uint32(1)).astype(np.int8)
    is_event = np.zeros(len(record), np.bool_)
    claimed = np.zeros(len(count), np.int8)
    for slot in range(int(count.max(initial=0))):
        if count.min() > slot:
            at = first + slot
            begins = claimed == 0
            is_event[at] = begins
            claimed -= 1
            claimed[begins] = extra[at[begins]]
        else:
            active = np.flatnonzero(count > slot)
            at = first[active] + slot
            begins = claimed[active] == 0
            is_event[at] = begins
            claimed[active] = np.where(begins, extra[at], claimed[active] - 1)
    unpaid = np.flatnonzero(claimed > 0)
    last = np.searchsorted(np.flatnonzero(is_event), (first + count)[unpaid]) - 1
    return is_event, np.flatnonzero(is_event)[last]


def _mark_breaks(events: Events, chunks: Chunks) -> None:
    """Marks the first event of each warp and the first after lost records (or after a change of SM)."""
    at = np.cumsum(events.per_chunk) - events.per_chunk  # an empty chunk's mark goes to what follows it
    first = chunks.first_of_warp
    lost = chunks.lost > 0
    breaks = first | lost
    breaks[1:] |= chunks.sm[1:] != chunks.sm[:-1]
    marks = np.zeros(len(events) + 1, np.bool_)
    marks[at[breaks]] = True
    events.fresh = marks[:-1]
    if lost.any():
        gaps = np.zeros(len(events) + 1, np.bool_)
        gaps[at[lost]] = True
        gaps[at[first & ~lost]] = False
        events.after_gap = gaps[:-1]


def _without_control(events: Events, chunks: Chunks, problems: Problems) -> Events:
    """Events without gap records, unwritten words and codes that say nothing here; what followed them is fresh."""
    broken, gap = events.has(_BROKEN), events.kind == _GAP
    text = "a word that is no event: never written, or damaged"
    tell(problems, "unknown_record", "error", text, events, chunks, broken)
    _tell_gaps(problems, events, chunks, gap)
    stays = np.flatnonzero(~events.has(_LEAVING))
    chunk = events.chunk()
    missing = broken | gap if events.after_gap is None else broken | gap | events.after_gap
    return Events(
        per_chunk=np.bincount(chunk[stays], minlength=len(chunks)),
        kind=events.kind[stays],
        site=events.site[stays],
        age=events.age[stays],
        wrapped=None if events.wrapped is None else events.wrapped[stays],
        fresh=_inherit(events.fresh | broken | gap, stays, chunk, chunks) | starts(chunks.gwarp[chunk[stays]]),
        after_gap=_inherit(missing, stays, chunk, chunks),
        slot=stays if events.slot is None else events.slot[stays],
        id=None if events.id is None else events.id.take(stays),
        payload=None if events.payload is None else events.payload.take(stays),
        present=events.present & ~_LEAVING,
    )


def _inherit(marks: Bool, stays: I64, chunk: I64, chunks: Chunks) -> Bool:
    """Marks of the events that stay: each has its own and those of the ones that leave just before it in its warp."""
    marked = np.flatnonzero(marks)
    heir = np.searchsorted(stays, marked)
    marked, heir = marked[heir < len(stays)], heir[heir < len(stays)]
    same_warp = chunks.gwarp[chunk[stays[heir]]] == chunks.gwarp[chunk[marked]]
    out = np.zeros(len(stays), np.bool_)
    out[heir[same_warp]] = True
    return out


def _tell_gaps(problems: Problems, events: Events, chunks: Chunks, gap: Bool) -> None:
    chunk = events.chunk(gap)
    missing = np.ones(len(chunk), np.int64) if events.payload is None else events.payload.values[gap].astype(np.int64)
    problems.places(
        "gap",
        "note",
        "the recorder left records out before this one",
        launch=chunks.launch[chunk],
        block=chunks.block[chunk],
        warp=chunks.warp[chunk],
        sequence=events.sequence(chunks, gap),
        count=missing,
    )
