"""Detached events: chunks of one event each, which is none of its warp's own count of records.

In: words and the chunks of detached events, in the order of warp and clock; the other chunks. Out: those that hold an
event, a `Run` of instants, and all chunks in one order. They end no phase, and leave no gap where they are missing.
Must cost nothing where there are none.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np

from warplens import layout
from warplens.decode.arrays import I64, U32
from warplens.decode.chunks import Chunks, starts
from warplens.decode.events import Words
from warplens.decode.flags import SpanFlag
from warplens.decode.problems import Problem, Problems
from warplens.decode.shapes import SiteSet
from warplens.decode.spans import Axis, Run, Spans
from warplens.decode.times import BlockRecords
from warplens.layout import Verb

_KIND_MASK: Final = (1 << layout.CODE_VERB_BITS) - 1


def checked(words: U32, alone: Chunks, sets: list[SiteSet], problems: Problems) -> Chunks:
    """Those of the chunks `alone` that hold a mark of a known site; the others are problems. `sets` is per launch."""
    if not len(alone):
        return alone
    record = words[alone.row, layout.HEADER_WORDS].astype(np.int64)
    torn = record == 0
    if torn.any():
        text = f"{int(torn.sum())} marks of lanes were just being written when the kernel was stopped"
        problems.add(Problem("torn_chunk", int(torn.sum()), "note", text))
    bits, known = np.array([(own.code_bits, own.count) for own in sets], np.int64)[alone.launch].T
    code = record & (1 << bits) - 1
    site = code >> layout.CODE_SITE_SHIFT
    right = (code >> layout.CODE_VERB_SHIFT & _KIND_MASK == Verb.MARK) & (code & layout.CODE_ID != 0) & (site > 0)
    right &= record >> bits == alone.base_cycles & (1 << 32 - bits) - 1
    for kind, which, text in (
        ("unknown_record", ~torn & ~right, "a detached event that is no mark: damaged"),
        ("unknown_site", right & (site > known), "a site that the recording does not name"),
    ):
        at = np.flatnonzero(which)
        problems.places(kind, "error", text, launch=alone.launch[at], block=alone.block[at], warp=alone.warp[at])
    return alone.take(right & (site <= known))


def make_run(words: U32, alone: Chunks, chunks: Chunks, axis: Axis, sets: list[SiteSet]) -> Run:
    """An instant for each of the chunks `alone`, numbered on behind the end of its warp in `chunks`."""
    size = len(alone)
    record, lanes, payload = words[alone.row, layout.HEADER_WORDS : layout.HEADER_WORDS + 3].T
    bits, base = np.array([(own.code_bits, own.base) for own in sets], np.int64)[alone.launch].T
    site = (record & (1 << bits) - 1) >> layout.CODE_SITE_SHIFT
    has_payload = record & np.uint32(layout.CODE_PAYLOAD) != 0
    start_ns = axis.ns_of((alone.base_cycles - axis.base_cycles).astype(np.float64))
    sites = (site - 1 + base).astype(np.uint16)
    nothing = np.zeros(size, np.int64)
    spans = Spans(
        launch=alone.launch.astype(np.uint32),
        block=alone.block.astype(np.uint32),
        warp=alone.warp.astype(np.uint8),
        sequence=_sequence(alone, chunks),
        site=sites,
        depth=np.zeros(size, np.uint8),
        start_ns=start_ns,
        start_cycles=alone.base_cycles,
        duration_cycles=nothing,
        duration_ns=nothing,
        payload=Words(payload * has_payload, has_payload) if has_payload.any() else None,
        id=Words(lanes.copy(), np.ones(size, np.bool_)),
        flags=np.full(size, SpanFlag.INSTANT | SpanFlag.DETACHED, np.uint16),
    )
    each = np.ones(size, np.int64)
    return Run(
        spans=spans,
        loose=None,
        events=each,
        first_ns=start_ns.copy(),
        last_ns=start_ns.copy(),
        sites=np.unique(sites),
        spans_per_chunk=each,
    )


def _sequence(alone: Chunks, chunks: Chunks) -> U32:
    """One more than the number of the warp's end for its first, and so on; from 0 in warps that left nothing else."""
    out = np.arange(len(alone))
    out -= np.maximum.accumulate(np.where(starts(alone.gwarp), out, 0))
    last = np.searchsorted(chunks.gwarp, alone.gwarp, side="right") - 1
    after = np.append(chunks.sequence + chunks.count + 1, 0)[last]
    out += np.where(np.append(chunks.gwarp, -1)[last] == alone.gwarp, after, 0)
    return out.astype(np.uint32)


def together(chunks: Chunks, axis: Axis, alone: Chunks, its_axis: Axis) -> tuple[Chunks, Axis, I64, I64]:
    """All chunks and their axis, with those `alone` behind the others of their warp; and where both then stand."""
    at = np.searchsorted(chunks.gwarp, alone.gwarp, side="right") + np.arange(len(alone))
    own = np.delete(np.arange(len(chunks) + len(alone)), at)
    alone = replace(alone, flags=alone.flags * 0, count=alone.count * 0)

    def join(one: Any, two: Any) -> dict[str, Any]:
        out = {}
        for name in (f.name for f in fields(one)):
            column = getattr(one, name)
            out[name] = np.empty(len(own) + len(at), column.dtype)
            out[name][own], out[name][at] = column, getattr(two, name)
        return out

    return Chunks(**join(chunks, alone)), Axis(**join(axis, its_axis)), own, at


def moved(records: BlockRecords, own: I64, size: int) -> BlockRecords:
    """The block records when their chunks are numbers `own` of `size`."""
    of_chunk = np.full(size, -1)
    of_chunk[own] = records.of_chunk
    return replace(records, chunk=own[records.chunk], first_chunk=own[records.first_chunk], of_chunk=of_chunk)
