"""How many blocks of a kernel an SM holds, from what its machine code takes.

In: registers, threads, shared memory, the architecture. Out: blocks, and the registers that would leave as many. Needs
no GPU: the driver tells the same of a loaded kernel, but marks are chosen while it is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_REGISTERS: Final = 65536  # of an SM, in four parts of as many warps each
_PARTS: Final = 4
_STEP: Final = 8  # a thread's registers come in eights
_RESERVED_SHARED: Final = 1024  # of each block, for the system
_THREADS: Final = {86: 1536, 87: 1536, 88: 1536, 89: 1536, 110: 1536, 120: 1536, 121: 1536}
_SHARED_KIB: Final = {80: 164, 86: 100, 87: 164, 88: 100, 89: 100, 120: 100, 121: 100}
_BLOCKS: Final = {86: 16, 87: 16, 88: 16, 89: 24, 110: 24, 120: 24, 121: 24}
MOST_REGISTERS: Final = 255


def fewer(now: int, before: int) -> str:
    """What is told of blocks: `1 block fits on an SM in place of 2`."""
    return f"{now} {'block fits' if now == 1 else 'blocks fit'} on an SM in place of {before}"


@dataclass(frozen=True)
class Launch:
    """What a launch asks of an SM beside registers. `arch`: 90 for sm_90."""

    arch: int
    threads: int
    shared_bytes: int

    def blocks(self, registers: int) -> int:
        """Blocks that an SM holds at once (CUDA C++ Programming Guide, "Compute Capabilities")."""
        warps = -(-self.threads // 32)
        of_a_warp = -(-max(registers, 1) // _STEP) * _STEP * 32
        by_registers = _REGISTERS // _PARTS // of_a_warp * _PARTS // warps
        by_threads = _THREADS.get(self.arch, 2048) // (warps * 32)
        by_shared = _SHARED_KIB.get(self.arch, 228) * 1024 // (self.shared_bytes + _RESERVED_SHARED)
        return min(by_registers, by_threads, by_shared, _BLOCKS.get(self.arch, 32))

    def most_registers(self, blocks: int) -> int:
        """The registers of a thread with which an SM still holds so many blocks."""
        fits = [n for n in range(_STEP, MOST_REGISTERS + _STEP, _STEP) if self.blocks(n) >= blocks]
        return min(max(fits, default=0), MOST_REGISTERS)
