"""How far back the events of a chunk can lie: the proof that a time is exact, or that nothing proves it.

In: ordered chunks, calibrations, and when blocks began. Out: `chunks.reach_cycles` and `chunks.likely`, and the
calibrations around a launch. Must not take for a bound what is only usual (docs/adr/0002-clocks.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from warplens import clock, layout
from warplens.decode.arrays import I64, Bool
from warplens.decode.chunks import Chunks
from warplens.layout import ChunkFlag

UNBOUNDED: Final = np.iinfo(np.int64).max
_LOW: Final = 1 << 32
EARLY_CYCLES: Final = 16384
"""Other warps of a block hardly begin so much before its first warp (about 1000 were seen): likely, never proven."""
_SMS: Final = 1 << layout.META_SM_BITS
_ASKED: Final = 2048
"""About as many of a launch's chunks say what came before it and what after."""
_CONTRADICTING: Final = 1 / 64
"""Share of a launch's chunks whose clock may contradict an order that the others show: those are damaged."""


class _Calibration:
    """One entry of the manifest as arrays, and each SM's first and last clock in it."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.pairs = {name: clock.int64(entry[name]) for name in ("sm", "globaltimer_ns", "clock_cycles")}
        sm, cycles = self.pairs["sm"], self.pairs["clock_cycles"]
        own = sm < _SMS
        self.known = np.bincount(sm[own], minlength=_SMS) > 0
        self.first, self.last = np.full(_SMS, np.iinfo(np.int64).max), np.full(_SMS, np.iinfo(np.int64).min)
        np.minimum.at(self.first, sm[own], cycles[own])
        np.maximum.at(self.last, sm[own], cycles[own])

    def precedes(self, sm: I64, cycles: I64) -> bool:
        """True when the clocks `cycles`, of `sm`, were read after it."""
        return self._mostly(cycles - self.last[sm], sm)

    def follows(self, sm: I64, cycles: I64) -> bool:
        """True when the clocks `cycles`, of `sm`, were read before it."""
        return self._mostly(self.first[sm] - cycles, sm)

    def _mostly(self, passed: I64, sm: I64) -> bool:
        known = self.known[sm]
        count = int(np.count_nonzero(known))
        return count > 0 and int(np.count_nonzero((passed < 0) & known)) <= count * _CONTRADICTING


@dataclass
class Around:
    """Calibrations for one launch: `before` it, and those (as pairs for clock.fit) that tell its clocks' rates."""

    before: _Calibration | None
    pairs: Sequence[dict[str, I64]]

    def age_cycles(self, sm: I64, base_cycles: I64) -> I64:
        """How long before the clocks `base_cycles` of `sm` the launch had not begun; UNBOUNDED where nothing tells."""
        if self.before is None:
            return np.full(len(sm), UNBOUNDED)
        age: I64 = base_cycles - self.before.last.take(sm, mode="clip")
        tells = age >= 0
        tells &= self.before.known.take(sm, mode="clip")
        age[~tells] = UNBOUNDED
        return age


class Calibrations:
    """The manifest's calibrations: for each launch those of its GPU, which `device` names where there are several."""

    def __init__(self, entries: list[dict[str, Any]], launches: list[dict[str, Any]]) -> None:
        devices = [_device(entry) for entry in launches]
        numbers: dict[int | None, int] = {}
        numbered = []  # each launch among those of its GPU
        for device in devices:
            numbered.append((device, numbers.get(device, 0)))
            numbers[device] = numbered[-1][1] + 1
        its_entries: dict[int | None, list[dict[str, Any]]] = {}
        for entry in entries:
            its_entries.setdefault(_device(entry), []).append(entry)
        own = {device: _OfDevice(its_entries.get(device, []), count) for device, count in numbers.items()}
        self._of = [(own[device], number) for device, number in numbered]

    def around(self, launch: int, sm: I64, base_cycles: I64) -> Around:
        """See `_OfDevice.around`."""
        own, number = self._of[launch]
        return own.around(number, sm, base_cycles)


def _device(entry: dict[str, Any]) -> int | None:
    value = entry.get("device")
    return value if type(value) is int else None


class _OfDevice:
    """Calibrations of one GPU in their order, which is that of time."""

    def __init__(self, entries: list[dict[str, Any]], launches: int) -> None:
        self._all = [_Calibration(entry) for entry in entries]
        when = [entry["when"] for entry in entries]
        self._before = [own for own, which in zip(self._all, when, strict=True) if which == "before"]
        self._after = [own for own, which in zip(self._all, when, strict=True) if which == "after"]
        self._one_each = len(self._before) == launches

    def around(self, launch: int, sm: I64, base_cycles: I64) -> Around:
        """The last one before and the first one after a launch whose chunks have these SMs and bases.

        An idle GPU changes its clocks: others than these two tell rates only where there are none of these.
        """
        # Where each launch has one of its own, that of a later launch may not stand in, whatever the clocks say.
        before = self._before[: launch + 1] if self._one_each else self._before
        step = max(1, len(sm) // _ASKED)
        sm, base_cycles = sm[::step], base_cycles[::step]
        count = bisect_left(before, True, key=lambda own: not own.precedes(sm, base_cycles))
        after = bisect_left(self._after, True, key=lambda own: own.follows(sm, base_cycles))
        near = before[max(count - 1, 0) : count] + self._after[after : after + 1]
        return Around(before[count - 1] if count else None, [own.pairs for own in near or self._all])


@dataclass
class Begins:
    """Blocks' begins, one row per block record: the clock of record 0 of its first warp, and where that is `sure`."""

    cycles: I64
    sure: Bool


def bound(chunks: Chunks, first_chunk: I64, of_chunk: I64, begins: Begins, turns: I64, age_cycles: I64) -> None:
    """Fills `chunks.reach_cycles` and `chunks.likely`.

    `first_chunk` is per row of `begins` the first chunk of the block's first warp; `of_chunk` per chunk its row of
    `begins`, or -1; `turns` per launch what its records can tell; `age_cycles` per chunk how long before its base the
    launch had not begun.

    The recorder reads the base of a chunk before the event that begins the next one. So what follows in the warp is not
    older, unless its lanes parted: then they write at times of their own. Chunks written at once share their base.
    """
    base, reach = chunks.base_cycles, age_cycles
    near, exact = chunks.has(ChunkFlag.NEAR), chunks.has(ChunkFlag.EXACT)
    # A base of which the low half alone was known is never earlier than the truth: within 2^32 cycles it is the truth.
    guessed = near & exact & (age_cycles >= _LOW)
    if not chunks.single:
        before = _previous(chunks, guessed)
        reach = np.where(before >= 0, base - base[before], reach)
    at = first_chunk[begins.sure]
    reach[at] = np.minimum(reach[at], base[at] - begins.cycles[begins.sure])
    reach[reach < 0] = UNBOUNDED  # damaged
    reach[exact & ~near] = 0
    reach[near & (np.where(exact, age_cycles, reach) < _LOW)] = 0
    reach[guessed] = UNBOUNDED
    chunks.reach_cycles[:] = reach
    turn = turns[0] if len(turns) == 1 else turns[chunks.launch]
    far = np.flatnonzero((reach >= turn) & (of_chunk >= 0))
    if len(far):
        own, turn = of_chunk[far], turns[chunks.launch[far]]
        chunks.likely[far] = begins.sure[own] & (base[far] - begins.cycles[own] + EARLY_CYCLES < turn)


def _previous(chunks: Chunks, guessed: Bool) -> I64:
    """The chunk whose base no event of a chunk precedes; -1 where there is none, or it says nothing or is `guessed`."""
    index = np.arange(-1, len(chunks) - 1)
    follows = ~chunks.first_of_warp
    same = follows & (chunks.base_cycles == chunks.base_cycles[index])
    if same.any():
        index = np.maximum.accumulate(np.where(same, -1, index))
        follows &= index >= 0
        begin = np.maximum.accumulate(np.where(chunks.first_of_warp, np.arange(len(chunks)), 0))
        follows &= index >= begin
    if len(index):
        follows &= chunks.sm == chunks.sm[index]
    if guessed.any():
        follows &= ~guessed[index]
    parted = chunks.has(ChunkFlag.PARTIAL | ChunkFlag.NONUNIFORM)
    if parted.any():
        warp = np.cumsum(chunks.first_of_warp) - 1
        odd = np.zeros(int(warp[-1]) + 1, np.bool_)
        odd[warp[parted]] = True
        follows &= ~odd[warp]
    return np.where(follows, index, -1)
