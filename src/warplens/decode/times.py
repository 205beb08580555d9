"""The time axis of a recording: block records, clock pairs, and one fitted `ClockMap` a launch.

In: words, ordered chunks and the manifest. Out: `BlockRecords`, the clocks, a provisional origin and each chunk's
line (`Axis`). Must not convert a time itself: clock does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from warplens import clock, layout
from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.bounds import UNBOUNDED, Around, Begins, Calibrations, bound
from warplens.decode.chunks import Chunks
from warplens.decode.problems import Problem, Problems
from warplens.decode.spans import Axis
from warplens.layout import ChunkFlag

_PAIRS_PER_SM: Final = 12
"""Blocks used per SM: more do not narrow its line, 32 ns / 24 is below the error of reading a pair."""
_END_LATE_NS: Final = 32.0
"""A block's end reads globaltimer a few cycles after its clock; another warp's turn may come between."""
_MOST_BLOCKS: Final = 0.9
"""Share of the blocks that must have lines of their own, or none has."""
_ROUGH_ERROR: Final = 1e-2
"""Of a rate before the fit."""
_WORD_NS: Final = 2.0**32
"""The low word of globaltimer turns."""
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
    """Clocks per launch (None where a launch has no chunk), an origin, and the line of each chunk; of the chunks of
    detached events apart."""

    clocks: list[clock.ClockMap | None]
    origin_ns: int
    axis: Axis
    detached: Axis


def read_block_records(words: U32, chunks: Chunks) -> BlockRecords:
    """Block records of `chunks`; fills in the SM of chunks that leave it to their block's record.

    Where that is missing it is the SM that another chunk of the block names: a warp of which lanes have left writes no
    block record, and names the SM in its last chunks.
    """
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
    if len(at) and fill.any():
        chunks.sm = np.where(fill, records.sm.take(records.of_chunk, mode="clip"), chunks.sm)
    unknown = chunks.sm == layout.META_SM_UNKNOWN
    if unknown.any() and not unknown.all():
        chunks.sm = np.where(unknown, _named_sm(chunks, ~unknown), chunks.sm)
    return records


def _named_sm(chunks: Chunks, known: Bool) -> I64:
    """For each chunk the SM that the first `known` one of its block names."""
    block = chunks.block_number
    own = np.full(len(chunks.first_of_block), layout.META_SM_UNKNOWN)
    named = np.flatnonzero(known)[::-1]  # of several assignments the last one holds
    own[block[named]] = chunks.sm[named]
    return np.asarray(own[block])


def _record_of(chunks: Chunks, at: I64) -> I64:
    """For each chunk which of the block records, that stand in the chunks `at`, is its block's; -1 for none."""
    block = chunks.block_number
    own = np.full(len(chunks.first_of_block), -1, np.int64)
    own[block[at]] = np.arange(len(at))
    return np.asarray(own.take(block, mode="clip"))


def fit_times(
    chunks: Chunks,
    records: BlockRecords,
    code_bits: list[int],
    manifest: dict[str, Any],
    problems: Problems,
    alone: Chunks,
) -> Times:
    """Fits a clock per launch, sets a provisional origin near the first one, and bounds how far back chunks reach.

    `code_bits` is per launch, `alone` are the chunks of detached events. Fills `chunks.reach_cycles` and
    `chunks.likely`.
    """
    clocks: list[clock.ClockMap | None] = [None] * len(manifest["launches"])
    bounds = np.searchsorted(chunks.launch, np.arange(len(clocks) + 1)).tolist()
    record_bounds = np.searchsorted(records.chunk, bounds).tolist()
    size = len(chunks)
    axis, its_axis = _no_lines(size), _no_lines(len(alone))
    begins = Begins(np.zeros(len(records.chunk), np.int64), np.zeros(len(records.chunk), np.bool_))
    calibrations = Calibrations(manifest["calibration"], manifest["launches"])
    age_cycles = np.full(size, UNBOUNDED)
    for launch, (low, high) in enumerate(pairwise(bounds)):
        part, own = slice(low, high), slice(record_bounds[launch], record_bounds[launch + 1])
        sm, base_cycles = chunks.sm[part], chunks.base_cycles[part]
        lone = np.flatnonzero(alone.launch == launch)
        if len(lone):
            sm, base_cycles = np.append(sm, alone.sm[lone]), np.append(base_cycles, alone.base_cycles[lone])
        if not len(sm):
            continue
        around = calibrations.around(launch, sm, base_cycles)
        age_cycles[part] = around.age_cycles(sm, base_cycles)[: high - low]
        launched = _Launch(chunks, records, own, 1 << (32 - code_bits[launch]), manifest, around)
        stopped = manifest.get("stopped") is not None and launch == len(clocks) - 1
        fitted = launched.fit(np.flatnonzero(np.bincount(sm)), (sm, base_cycles) if stopped else None)
        begins.cycles[own], begins.sure[own] = launched.begin_cycles, launched.surely_begun(age_cycles)
        clocks[launch] = fitted
        lines = launched.lines_of_blocks(fitted) if fitted.changed else None
        for doubt in fitted.problems:
            problems.add(Problem(doubt.kind, doubt.count, doubt.severity, doubt.text, launch))
        _take_lines(axis, part, fitted, sm[: high - low])
        _take_lines(its_axis, lone, fitted, sm[high - low :])
        if lines is not None:
            _take_chords(axis, low + np.flatnonzero(records.of_chunk[part] >= 0), records, own, launched, lines)
    turns = np.array([1 << (32 - bits) for bits in code_bits] or [0], np.int64)
    bound(chunks, records.first_chunk, records.of_chunk, begins, turns, age_cycles)
    origin_ns = min((fitted.base_ns for fitted in clocks if fitted is not None), default=0)
    axis.base_ns -= origin_ns
    its_axis.base_ns -= origin_ns
    return Times(clocks, origin_ns, axis, its_axis)


def _no_lines(size: int) -> Axis:
    return Axis(np.zeros(size, np.int64), np.zeros(size), np.ones(size), np.zeros(size, np.int64))


def _take_lines(axis: Axis, part: Any, fitted: clock.ClockMap, sm: I64) -> None:
    axis.base_cycles[part] = fitted.base_cycles[sm]
    axis.offset_ns[part] = fitted.offset_ns[sm]
    axis.ns_per_cycle[part] = fitted.ns_per_cycle[sm]
    axis.base_ns[part] = fitted.base_ns


def _take_chords(
    axis: Axis, chunks: I64, records: BlockRecords, own: slice, launched: _Launch, lines: clock.Chords
) -> None:
    row = records.of_chunk[chunks] - own.start
    chunks, row = chunks[lines.usable[row]], row[lines.usable[row]]
    axis.base_cycles[chunks] = launched.begin_cycles[row]
    axis.offset_ns[chunks] = lines.offset_ns[row]
    axis.ns_per_cycle[chunks] = lines.ns_per_cycle[row]


class _Launch:
    """The block records of one launch: when its blocks began and ended, by both clocks."""

    def __init__(
        self, chunks: Chunks, records: BlockRecords, own: slice, turn: int, manifest: dict[str, Any], around: Around
    ) -> None:
        self._manifest, self._around, self._turn = manifest, around, turn
        self._chunk, self._first, self._begun = records.chunk[own], records.first_chunk[own], records.begun[own]
        self._sm, self._end_ns = records.sm[own], records.end_globaltimer_ns[own]
        self._end_cycles = chunks.base_cycles[self._chunk]
        few = self._few = _thinned(self._sm)
        self._rough = clock.rough_ns_per_cycle(
            self._sm[few],
            self._end_ns[few],
            self._end_cycles[few],
            calibration=around.pairs,
            nominal_cycles_per_ns=_reported_rate(manifest),
        )
        low, least = records.begin_globaltimer_low[own], self._end_cycles - chunks.base_cycles[self._first]
        self._begin_ns, near = clock.begins(self._end_ns, self._end_cycles, low, least, self._rough)
        # Record 0 tells its clock modulo a turn: the one nearest to what globaltimer says.
        told = (records.first_word[own] >> np.uint32(33 - turn.bit_length())).astype(np.int64)
        off = (told - near) & (turn - 1)
        self.begin_cycles: I64 = near + np.where(off >= turn // 2, off - turn, off)

    def fit(self, sms: I64, wanted_cycles: tuple[I64, I64] | None) -> clock.ClockMap:
        """The launch's clock; `sms` need a line, and in a launch without an end `wanted_cycles` an uncertainty."""
        few, begun = self._few, self._few & self._begun
        step_ns = self._manifest["globaltimer_step_ns"]
        late_ns = _END_LATE_NS + (step_ns or clock.DEFAULT_STEP_NS)
        return clock.fit(
            np.concatenate([self._sm[begun], self._sm[few]]),
            np.concatenate([self._begin_ns[begun], self._end_ns[few]]),
            np.concatenate([self.begin_cycles[begun], self._end_cycles[few]]),
            step_ns=step_ns,
            late_ns=np.repeat([0.0, late_ns], [int(begun.sum()), int(few.sum())]),
            calibration=self._around.pairs,
            nominal_cycles_per_ns=_reported_rate(self._manifest),
            wanted_sms=sms,
            unknown_sm=layout.META_SM_UNKNOWN,  # audit.py tells its blocks
            wanted_cycles=wanted_cycles,
        )

    def lines_of_blocks(self, fitted: clock.ClockMap) -> clock.Chords | None:
        """A line for each block of a launch in which clocks changed, where that is better; tells what times are worth.

        In `fitted` the uncertainty becomes that of these lines.
        """
        step_ns = float(self._manifest["globaltimer_step_ns"] or clock.DEFAULT_STEP_NS)
        found = clock.chords(
            fitted,
            self._sm,
            (self._begin_ns, self.begin_cycles),
            (self._end_ns, self._end_cycles),
            step_ns=step_ns,
            late_ns=_END_LATE_NS + step_ns,
            nominal_cycles_per_ns=_reported_rate(self._manifest),
        )
        usable = found.usable & self._begun
        better = usable.mean() >= _MOST_BLOCKS and found.uncertainty_ns < fitted.uncertainty_ns
        how = ""
        if better:
            fitted.uncertainty_ns = found.uncertainty_ns
            how = ", for each block has a line of its own"
            if (told := fitted.unjoined) is not None:  # and is no error any more
                fitted.problems[fitted.problems.index(told)] = replace(told, severity="note")
        worth = f"times of different SMs are right to {fitted.uncertainty_ns / 1e3:.2g} us{how}"
        text = f"the SM clock changed during the launch, by more than one rate can follow: {worth}"
        fitted.problems.append(clock.ClockProblem("clock_changed", 1, "note", text))
        return replace(found, usable=usable) if better else None

    def surely_begun(self, age_cycles: I64) -> Bool:
        """Blocks whose begin is known to the cycle: a rough rate leaves one turn of record 0 and of globaltimer.

        `age_cycles` is per chunk: how long ago the calibration before the launch was. Without one, a first chunk of
        the block's first warp is taken to hold less than 4.29 s.
        """
        elapsed_ns = (self._end_ns - self._begin_ns).astype(np.float64)
        half_ns = self._turn / 2 * self._rough
        step_ns = float(self._manifest["globaltimer_step_ns"] or clock.DEFAULT_STEP_NS)
        sure = self._begun & (elapsed_ns * _ROUGH_ERROR + step_ns + _END_LATE_NS < half_ns)
        age = age_cycles[self._first]
        turned = (age != UNBOUNDED) & (age * self._rough * (1 + _ROUGH_ERROR) >= _WORD_NS)
        return np.asarray(sure & ~turned)


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
