"""State in shared memory: each warp has a slot in one array.

The slot's address is made of the thread's number at each mark. All lanes of a warp read their warp's slot, so that they
ask the same, and lane 0 alone changes it.

The array is as large as the most that anything in shared memory is aligned to: what stands behind it, as the memory
whose size a launch decides, moves by as many bytes and is as well aligned as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warplens.instrument.places import OWN, thread
from warplens.instrument.stored_state import WORDS, StoredRecorder

SHARED_STATE: Final = "warplens_state"
SHARED_STATE_BYTES: Final = 1024
"""A slot of 32 bytes for each of 32 warps, at the number of its first thread; TMA with a swizzle of 128 bytes needs its
memory aligned to as many."""


def declaration() -> str:
    """Of the array, for the begin of the module."""
    return f".shared .align 8 .b8 {SHARED_STATE}[{SHARED_STATE_BYTES}];"


@dataclass(frozen=True)
class SharedRecorder(StoredRecorder):
    """As `StoredRecorder`."""

    def declarations(self) -> list[str]:
        """Also `%wl_at`, where the warp's slot is, and `%wl_lane`, whether this lane writes."""
        return [*super().declarations(), ".reg .b32 %wl_at;", ".reg .pred %wl_lane;"]

    def _slot(self) -> list[str]:
        return [
            *thread("%wl_at", flat=self.flat),
            "and.b32 %wl_r15, %wl_at, 31;",
            "setp.eq.u32 %wl_lane, %wl_r15, 0;",
            "sub.u32 %wl_at, %wl_at, %wl_r15;",
            f"mov.u32 %wl_r15, {SHARED_STATE};",
            "add.u32 %wl_at, %wl_at, %wl_r15;",
        ]

    def _load(self, register: str) -> str:
        return f"ld.volatile.shared.u32 {register}, [%wl_at+{4 * WORDS.index(register)}];"

    def _keep(self, register: str) -> str:
        return f"@%wl_lane st.volatile.shared.u32 [%wl_at+{4 * WORDS.index(register)}], {register};"

    def _keep_place(self) -> list[str]:
        """Lanes that write nothing store into a word of the slot that nothing reads, for of a predicated store at a
        block's end ptxas makes a branch that parts the lanes."""
        return [
            f"selp.b32 %wl_r15, 0, {4 * len(WORDS)}, %wl_lane;",
            "add.u32 %wl_at, %wl_at, %wl_r15;",
            "st.volatile.shared.u32 [%wl_at], %wl_lo;",
        ]

    def _place(self) -> list[str]:
        return [
            "ld.volatile.shared.v2.u32 {%wl_lo, %wl_hi}, [%wl_at];",
            "selp.b32 %wl_hi, %wl_hi, 0, %wl_lane;",
        ]

    def _left(self) -> list[str]:
        return [
            self._load("%wl_left"),
            f"and.b32 %wl_r15, %wl_left, {OWN};",
            "selp.b32 %wl_left, %wl_left, %wl_r15, %wl_lane;",
        ]
