"""The recorder of a kernel that has few registers left: it keeps fewer, and a full chunk costs more.

In: as `Recorder`. Out: lines of PTX that write the same records. What headers say of the block is read again for each,
behind the copies that the warps have asked for, and a loop's records have no registers of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from warplens.instrument.places import block
from warplens.instrument.recorder import Recorder


@dataclass(frozen=True)
class FrugalRecorder(Recorder):
    """As `Recorder`."""

    def _header(self, predicate: str, chunk: str, clock: str) -> list[str]:
        """With what it says of the block."""
        of_block = [*block("%wl_block"), "mov.u64 %wl_q3, %gridid;", "cvt.u32.u64 %wl_grid, %wl_q3;"]
        return [*of_block, *super()._header(predicate, chunk, clock)]

    def _cursor(self) -> list[str]:
        """By the block's number."""
        return [*block("%wl_block"), *super()._cursor()]

    def _behind_turn(self, records: int) -> list[str]:
        """Without what would keep so many registers in use."""
        del records
        return super()._behind_turn(0)
