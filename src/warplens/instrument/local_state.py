"""State in local memory: each lane has its own, as it has registers.

It is for kernels whose launches decide on shared memory. What ptxas spills would stand there too: here it is the
recorder's alone, by its own instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warplens.instrument.stored_state import WORDS, StoredRecorder
from warplens.layout import LOCAL_STATE_BYTES

_STATE: Final = "$wl_state"  # as all names of marks, which no kernel may have


@dataclass(frozen=True)
class LocalRecorder(StoredRecorder):
    """As `StoredRecorder`."""

    def declarations(self) -> list[str]:
        """Also the memory."""
        return [*super().declarations(), f".local .align 8 .b8 {_STATE}[{LOCAL_STATE_BYTES}];"]

    def _slot(self) -> list[str]:
        return []

    def _load(self, register: str) -> str:
        return f"ld.local.u32 {register}, [{_STATE}+{4 * WORDS.index(register)}];"

    def _keep(self, register: str) -> str:
        return f"st.local.u32 [{_STATE}+{4 * WORDS.index(register)}], {register};"

    def _keep_place(self) -> list[str]:
        return [self._keep("%wl_lo")]

    def _place(self) -> list[str]:
        return [f"ld.local.v2.u32 {{%wl_lo, %wl_hi}}, [{_STATE}];"]

    def _left(self) -> list[str]:
        return [self._load("%wl_left")]
