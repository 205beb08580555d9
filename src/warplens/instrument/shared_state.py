"""The recorder of a kernel that has no registers left: its state is in shared memory between marks.

In: as `Recorder`. Out: lines of PTX that write the same records. Each warp has a slot of six words in one array:
`%wl_lo`, `%wl_hi`, `%wl_ep`, `%wl_left`, `%wl_seq`, `%wl_gt` of the lane that writes. Between two marks no register is in
use: the slot's address is made of the thread's number at each. All lanes of a warp read their warp's slot, so that they
ask the same, and lane 0 alone keeps what it holds. Loads and stores are volatile: else ptxas would keep what was stored
in a register. Marks that no branch parts ask for space together, loops as all others; no record waits for the next clock.

The array is as large as what it is aligned to, more than anything in shared memory needs: what stands behind it, as the
memory whose size a launch decides, is where it was but for as many bytes, and as well aligned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from warplens import layout
from warplens.instrument.places import thread
from warplens.instrument.recorder import Recorder

SHARED_STATE: Final = "warplens_state"
SHARED_STATE_BYTES: Final = 1024
"""A slot of 32 bytes for each of 32 warps; TMA with a swizzle of 128 bytes needs its memory aligned to as many."""
_SLOT: Final = SHARED_STATE_BYTES // 32
_WARPS: Final = (1 << layout.META_WARP_BITS) - 1
assert _SLOT == 32  # a warp's first thread has the number that is its slot's place


def declaration() -> str:
    """The array's declaration, for the begin of the module."""
    return f".shared .align {SHARED_STATE_BYTES} .b8 {SHARED_STATE}[{SHARED_STATE_BYTES}];"


@dataclass(frozen=True)
class SharedRecorder(Recorder):
    """As `Recorder`. Its registers mean what they mean there, but hold it only within one piece of text."""

    in_registers: ClassVar[bool] = False

    def declarations(self) -> list[str]:
        return [*super().declarations(), ".reg .b32 %wl_at;", ".reg .pred %wl_lane;"]

    def open(self, code: int) -> list[str]:
        return [*self._slot(), *super().open(code), *self._keep()]

    def check(self, number: int, marks: int, together: bool) -> list[str]:
        asked = super().check(number, marks, together)
        return [*asked[:1], *self._place(), "ld.volatile.shared.u32 %wl_ep, [%wl_at+8];", *asked[1:]] if asked else []

    def clock(self, own: int) -> list[str]:
        return [*super().clock(own), *self._place()]

    def pin(self, values: tuple[tuple[str, int], ...]) -> list[str]:
        return [*self._place(), *super().pin(values)]

    def advance(self, marks: int, guard: str = "") -> list[str]:
        return [*super().advance(marks, guard), "@%wl_lane st.volatile.shared.u32 [%wl_at], %wl_lo;"]

    def next(self, number: int, back: str = "", records: int = 0) -> list[str]:
        """The clock is read again, so that half of it is not in use from the question to here."""
        if self.straight is not None:
            return []
        label, *rest = super().next(number, back, records)
        clock = ["mov.u64 %wl_now, %clock64;", *self._epoch("%wl_now", "%wl_e")]
        asked = ["ld.volatile.shared.u32 %wl_ep, [%wl_at+8];", "sub.u32 %wl_d, %wl_e, %wl_ep;"]
        return [label, *clock, *self._place(), *asked, *self._rest(), *rest[:-1], *self._keep(), rest[-1]]

    def end(self, number: int, together: bool) -> list[str]:
        own = super().end(number, together)
        clocks = 2
        return [*own[:clocks], *self._place(), "ld.volatile.shared.u32 %wl_ep, [%wl_at+8];", *self._rest(), *own[clocks:]]

    def _slot(self) -> list[str]:
        """`%wl_at`: where the warp's slot is; `%wl_lane`: whether this lane writes."""
        return [
            *thread("%wl_at", flat=self.flat),
            "and.b32 %wl_r15, %wl_at, 31;",
            "setp.eq.u32 %wl_lane, %wl_r15, 0;",
            "sub.u32 %wl_at, %wl_at, %wl_r15;",
            f"mov.u32 %wl_r15, {SHARED_STATE};",
            "add.u32 %wl_at, %wl_at, %wl_r15;",
        ]

    def _place(self) -> list[str]:
        return [
            *self._slot(),
            "ld.volatile.shared.v2.u32 {%wl_lo, %wl_hi}, [%wl_at];",
            "selp.b32 %wl_hi, %wl_hi, 0, %wl_lane;",
        ]

    def _rest(self) -> list[str]:
        """What is needed only where a chunk is full, and at the end."""
        if self.straight is not None:  # bit 31 tells that there is no space, which one lane counts
            return ["selp.b32 %wl_lo, %wl_lo, 0, %wl_lane;"]
        return [
            "ld.volatile.shared.u32 %wl_left, [%wl_at+12];",
            "ld.volatile.shared.u32 %wl_seq, [%wl_at+16];",
            "ld.volatile.shared.u32 %wl_gt, [%wl_at+20];",
            f"and.b32 %wl_r15, %wl_left, {_WARPS};",
            "selp.b32 %wl_left, %wl_left, %wl_r15, %wl_lane;",
        ]

    def _keep(self) -> list[str]:
        kept = ["%wl_lo", "%wl_hi", "%wl_ep", "%wl_left", "%wl_seq", "%wl_gt"]
        if self.straight is not None:
            kept = kept[:3]
        return [
            f"@%wl_lane st.volatile.shared.u32 [%wl_at+{4 * word}], {register};" for word, register in enumerate(kept)
        ]
