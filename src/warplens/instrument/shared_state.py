"""The recorder of a kernel that has no registers left: its state is in shared memory between marks.

In: as `Recorder`. Out: lines of PTX that write the same records. Each warp has a slot in one array: a word for each
part of the state of the lane that writes. Between two marks no register is in use: the slot's address is made of the
thread's number at each. All lanes of a warp read their warp's slot, so that they ask the same, and lane 0 alone changes
it. Loads and stores are volatile: else ptxas would keep in a register what was stored. Marks that no branch parts ask
for space together, in loops as elsewhere, and no record waits for the next clock.

The array is as large as the most that anything in shared memory is aligned to: what stands behind it, as the memory
whose size a launch decides, moves by as many bytes and is as well aligned as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from warplens.instrument.frugal import FrugalRecorder
from warplens.instrument.places import OWN, thread

SHARED_STATE: Final = "warplens_state"
SHARED_STATE_BYTES: Final = 1024
"""A slot of 32 bytes for each of 32 warps; TMA with a swizzle of 128 bytes needs its memory aligned to as many."""
_WORDS: Final = ("%wl_lo", "%wl_hi", "%wl_ep", "%wl_left", "%wl_seq", "%wl_gt")
"""What a slot's words hold. A slot takes 32 bytes: its place is the number of the warp's first thread."""


def declaration() -> str:
    """Of the array, for the begin of the module."""
    return f".shared .align 8 .b8 {SHARED_STATE}[{SHARED_STATE_BYTES}];"


@dataclass(frozen=True)
class SharedRecorder(FrugalRecorder):
    """As `FrugalRecorder`. Its registers mean what they mean there, but within one piece of text alone."""

    in_registers: ClassVar[bool] = False

    def declarations(self) -> list[str]:
        """Also `%wl_at`, where the warp's slot is, and `%wl_lane`, whether this lane writes."""
        return [*super().declarations(), ".reg .b32 %wl_at;", ".reg .pred %wl_lane;"]

    def open(self, code: int) -> list[str]:
        """What the first chunk begins with is kept from here on."""
        kept = _WORDS if self.straight is None else _WORDS[:3]
        return [*self._slot(), *super().open(code), *map(_keep, kept)]

    def check(self, number: int, marks: int, together: bool) -> list[str]:
        """From the question on the slot and half of the clock are in use."""
        if self.straight is not None:
            return []
        clock, *asked = super().check(number, marks, together)
        return [clock, *self._slot(), _load("%wl_lo"), _load("%wl_ep"), *asked, *_place()]

    def clock(self, own: int) -> list[str]:
        """And the place."""
        return [*super().clock(own), *self._slot(), *_place()]

    def pin(self, values: tuple[tuple[str, int], ...]) -> list[str]:
        """With the place that it needs."""
        return [*self._slot(), *_place(), *super().pin(values)]

    def advance(self, marks: int, guard: str = "") -> list[str]:
        """And keeps it; lanes that write nothing store into a word of the slot that nothing reads, for of a predicated
        store at a block's end ptxas makes a branch that parts the lanes."""
        return [
            *super().advance(marks, guard),
            f"selp.b32 %wl_r15, 0, {4 * len(_WORDS)}, %wl_lane;",
            "add.u32 %wl_at, %wl_at, %wl_r15;",
            "st.volatile.shared.u32 [%wl_at], %wl_lo;",
        ]

    def register_of(self, at: int) -> int:
        """One: no record of a straight kernel waits for another."""
        del at
        return 0

    def group(self, at: int, *, waits: bool = False, behind: bool = False) -> list[str]:
        """A straight kernel's record, stored at once."""
        del waits, behind
        return self.put(0, at)

    def next(self, number: int, together: bool, back: str = "", records: int = 0) -> list[str]:
        """As Recorder's where lanes may be apart, which is one way and not two, and with a clock of its own: the record
        is made of it too."""
        del together
        if self.straight is not None:
            return []
        label, *rest = super().next(number, False, back, records)
        clock = ["mov.u64 %wl_now, %clock64;", *self._epoch("%wl_now", "%wl_e")]
        epoch = [_load("%wl_ep"), "sub.u32 %wl_d, %wl_e, %wl_ep;"]
        state = [*_place(), *epoch, _load("%wl_seq"), _load("%wl_gt"), *_left()]
        return [label, *clock, *self._slot(), *state, *rest]

    def _open_chunk(self, predicate: str, back: str) -> list[str]:
        """And keeps all of it."""
        *opened, goes_on = super()._open_chunk(predicate, back)
        return [*opened, *map(_keep, _WORDS), goes_on]

    def end(self, number: int, together: bool) -> list[str]:
        """Loads what the question needs, and behind it the rest."""
        own = super().end(number, together)
        clocks, rest = own[:2], own[2:]
        if self.straight is not None:  # bit 31 of the place tells that there is no space: one lane counts that
            counted_once = "selp.b32 %wl_lo, %wl_lo, 0, %wl_lane;"
            return [*clocks, *self._slot(), *_place(), counted_once, _load("%wl_ep"), *rest]
        behind = rest.index(f"$wl_back_{number}:") + 1
        needed = [_load("%wl_lo"), _load("%wl_ep"), _load("%wl_left")]
        state = [*_place(), _load("%wl_gt"), *_left()]
        return [*clocks, *self._slot(), *needed, *rest[:behind], *state, *rest[behind:]]

    def _slot(self) -> list[str]:
        return [
            *thread("%wl_at", flat=self.flat),
            "and.b32 %wl_r15, %wl_at, 31;",
            "setp.eq.u32 %wl_lane, %wl_r15, 0;",
            "sub.u32 %wl_at, %wl_at, %wl_r15;",
            f"mov.u32 %wl_r15, {SHARED_STATE};",
            "add.u32 %wl_at, %wl_at, %wl_r15;",
        ]


def _load(register: str) -> str:
    return f"ld.volatile.shared.u32 {register}, [%wl_at+{4 * _WORDS.index(register)}];"


def _keep(register: str) -> str:
    return f"@%wl_lane st.volatile.shared.u32 [%wl_at+{4 * _WORDS.index(register)}], {register};"


def _place() -> list[str]:
    """Where the last record went; the high half is 0 in lanes that write nothing."""
    return [
        "ld.volatile.shared.v2.u32 {%wl_lo, %wl_hi}, [%wl_at];",
        "selp.b32 %wl_hi, %wl_hi, 0, %wl_lane;",
    ]


def _left() -> list[str]:
    """The warp's number and SM alone in lanes that write nothing."""
    return [
        _load("%wl_left"),
        f"and.b32 %wl_r15, %wl_left, {OWN};",
        "selp.b32 %wl_left, %wl_left, %wl_r15, %wl_lane;",
    ]
