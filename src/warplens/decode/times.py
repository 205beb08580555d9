"""The time axis of a recording: block records, clock pairs, and one fitted `ClockMap` a launch.

In: words, ordered chunks and the manifest. Out: `BlockRecords`, the clocks, a provisional origin and each chunk's
line (`Axis`). Must not convert a time itself: clock.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from warplens import clock, layout
from warplens.decode.chunks import I64, U32, Bool, Chunks, starts
from warplens.decode.problems import Problem, Problems
from warplens.decode.spans import Axis
from warplens.layout import ChunkFlag

_PAIRS_PER_SM: Final = 12
"""Blocks used per SM: more do not narrow its line, 32 ns / 24 is below the error of reading a pair."""
_END_LATE_NS: Final = 250.0
"""A block's end reads globaltimer some instructions after its clock; other warps may take their turns between."""
_EARLY_CYCLES: Final = 16384
"""Other warps of a block may begin so much before its first warp, and a base may be read so much after the first
event of the next chunk; about 1000 and 100 were seen, and globaltimer tells the begin to a step."""
_UNBOUNDED: Final = np.iinfo(np.int64).max
_SM_MASK: Final = (1 << layout.META_SM_BITS) - 1


@dataclass
class BlockRecords:
    """Block records, one row each: the chunk that holds it and what it says."""

    chunk: I64
    sm: I64
    sites_hash: I64
    end_globaltimer_ns: I64
    """Read beside the chunk's base_cycles."""
    begin_globaltimer_low: I64
    """Read right after the clock of the warp's record 0."""
    first_chunk: I64
    """The first chunk of the warp."""
    first_word: U32
    """Record 0 of the warp, where the block `begun`."""
    begun: Bool
    """True where record 0 arrived, so that the begin is known."""
    of_chunk: I64
    """For each chunk its block's row here; -1 for none."""


@dataclass
class Times:
    """Clocks per launch (None where a launch has no chunk), an origin, and the line of each chunk."""

    clocks: list[clock.ClockMap | None]
    origin_ns: int
    axis: Axis


def read_block_records(words: U32, chunks: Chunks) -> BlockRecords:
    """Block records of `chunks`; fills in the SM of chunks that leave it to their block's record."""
    at = np.flatnonzero(chunks.has(ChunkFlag.BLOCK_RECORD))
    table = words[chunks.row[at], layout.BLOCK_RECORD_WORD :].astype(np.int64)
    first = np.flatnonzero(chunks.first_of_warp)
    first_chunk = first[np.searchsorted(first, at, side="right") - 1] if len(at) else at
    records = BlockRecords(
        chunk=at,
        sm=table[:, layout.BLOCK_SM] & _SM_MASK,
        sites_hash=table[:, layout.BLOCK_SITES_HASH],
        end_globaltimer_ns=table[:, layout.BLOCK_GLOBALTIMER_HIGH] << 32 | table[:, layout.BLOCK_GLOBALTIMER_LOW],
        begin_globaltimer_low=table[:, layout.BLOCK_GLOBALTIMER_BEGIN],
        first_chunk=first_chunk,
        first_word=words[chunks.row[first_chunk], layout.HEADER_WORDS],
        begun=(chunks.sequence[first_chunk] == 0) & (chunks.count[first_chunk] > 0),
        of_chunk=_record_of(chunks, at),
    )
    fill = (chunks.sm == layout.META_SM_UNKNOWN) & (records.of_chunk >= 0)
    if fill.any():
        chunks.sm = np.where(fill, records.sm[records.of_chunk], chunks.sm)
    return records


def _record_of(chunks: Chunks, at: I64) -> I64:
    """For each chunk which of the block records, that stand in the chunks `at`, is its block's; -1 for none."""
    block = np.cumsum(starts(chunks.launch << 32 | chunks.block)) - 1
    own = np.full(int(block[-1]) + 1 if len(block) else 0, -1, np.int64)
    own[block[at]] = np.arange(len(at))
    return np.asarray(own[block])


def fit_times(
    chunks: Chunks, records: BlockRecords, code_bits: list[int], manifest: dict[str, Any], problems: Problems
) -> Times:
    """Fits a clock per launch, sets a provisional origin near the first one, and bounds how far back chunks reach.

    `code_bits` is per launch. Fills `chunks.reach_cycles`.
    """
    clocks: list[clock.ClockMap | None] = [None] * len(manifest["launches"])
    bounds = np.searchsorted(chunks.launch, np.arange(len(clocks) + 1)).tolist()
    record_bounds = np.searchsorted(records.chunk, bounds).tolist()
    size = len(chunks)
    axis = Axis(np.zeros(size, np.int64), np.zeros(size), np.ones(size), np.zeros(size, np.int64))
    begin_cycles = np.zeros(len(records.chunk), np.int64)
    for launch, (low, high) in enumerate(pairwise(bounds)):
        if low == high:
            continue
        own = slice(record_bounds[launch], record_bounds[launch + 1])
        sms = np.flatnonzero(np.bincount(chunks.sm[low:high]))
        fitted, begin_cycles[own] = _fit_launch(chunks, records, own, sms, code_bits[launch], manifest)
        clocks[launch] = fitted
        for doubt in fitted.problems:
            problems.add(Problem(doubt.kind, doubt.count, doubt.severity, doubt.text, launch))
        sm = chunks.sm[low:high]
        axis.base_cycles[low:high] = fitted.base_cycles[sm]
        axis.offset_ns[low:high] = fitted.offset_ns[sm]
        axis.ns_per_cycle[low:high] = fitted.ns_per_cycle[sm]
        axis.base_ns[low:high] = fitted.base_ns
    _bound(chunks, records, begin_cycles)
    origin_ns = min((fitted.base_ns for fitted in clocks if fitted is not None), default=0)
    axis.base_ns -= origin_ns
    return Times(clocks, origin_ns, axis)


def _bound(chunks: Chunks, records: BlockRecords, begin_cycles: I64) -> None:
    """How far back each chunk's events can reach: to the base of the warp's chunk before, or to the block's begin.

    In a chunk with the flag EXACT they reach less far than their records can tell: 0.
    """
    first = chunks.first_of_warp
    since = np.append(0, chunks.base_cycles[:-1])[: len(first)]
    begins = np.flatnonzero(first & (records.of_chunk >= 0))
    begins = begins[records.begun[records.of_chunk[begins]]]
    since[begins] = begin_cycles[records.of_chunk[begins]]
    bounded = ~first
    bounded[begins] = True
    chunks.reach_cycles = chunks.base_cycles - since + _EARLY_CYCLES
    chunks.reach_cycles[~bounded] = _UNBOUNDED
    chunks.reach_cycles[chunks.has(ChunkFlag.EXACT)] = 0


def _fit_launch(
    chunks: Chunks, records: BlockRecords, own: slice, sms: I64, code_bits: int, manifest: dict[str, Any]
) -> tuple[clock.ClockMap, I64]:
    """The clock of the launch with the records `own`, and roughly clock64 at the begin of each of its blocks."""
    calibration, nominal = manifest["calibration"], _reported_rate(manifest)
    chunk, first = records.chunk[own], records.first_chunk[own]
    sm, end_ns, end_cycles = records.sm[own], records.end_globaltimer_ns[own], chunks.base_cycles[chunk]
    few = _thinned(sm)
    rough = clock.rough_ns_per_cycle(
        sm[few], end_ns[few], end_cycles[few], calibration=calibration, nominal_cycles_per_ns=nominal
    )
    low = records.begin_globaltimer_low[own]
    begin_ns, near = clock.begins(end_ns, end_cycles, low, end_cycles - chunks.base_cycles[first], rough)
    # Record 0 tells its clock modulo a turn: the one nearest to what globaltimer says.
    turn = 1 << (32 - code_bits)
    told = (records.first_word[own] >> np.uint32(code_bits)).astype(np.int64)
    off = (told - near) & (turn - 1)
    begin_cycles = near + np.where(off >= turn // 2, off - turn, off)
    begun = few & records.begun[own]
    fitted = clock.fit(
        np.concatenate([sm[begun], sm[few]]),
        np.concatenate([begin_ns[begun], end_ns[few]]),
        np.concatenate([begin_cycles[begun], end_cycles[few]]),
        step_ns=manifest["globaltimer_step_ns"],
        late_ns=np.repeat([0.0, _END_LATE_NS], [int(begun.sum()), int(few.sum())]),
        calibration=calibration,
        nominal_cycles_per_ns=nominal,
        wanted_sms=sms,
        unknown_sm=layout.META_SM_UNKNOWN,  # audit.py tells its blocks
    )
    return fitted, begin_cycles


def _reported_rate(manifest: dict[str, Any]) -> float | None:
    """cycles per ns of the SM clock that the driver reported beside the recording."""
    for when in ("after", "before"):
        state = (manifest["clock_state"] or {}).get(when)
        sm_hz = state.get("sm_hz") if isinstance(state, dict) else None
        if isinstance(sm_hz, (int, float)) and 1e7 < sm_hz < 1e11:
            return float(sm_hz) / 1e9
    return None


def _thinned(sm: I64) -> Bool:
    """Which blocks to use: all of an SM with up to _PAIRS_PER_SM, else about that many, spread evenly over them."""
    share = _PAIRS_PER_SM / np.maximum(np.bincount(sm, minlength=1), 1)
    spread = np.arange(len(sm), dtype=np.uint32) * np.uint32(2654435761)  # Knuth's multiplicative hash
    return np.asarray(spread < np.minimum(share * 2**32, 2**32)[sm])
