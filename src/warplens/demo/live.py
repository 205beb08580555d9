"""Records the demo's kernel on this machine's GPU.

In: nothing. Out: a Trace of RMSNorm forward, 528 x 5120, bfloat16, cold L2. The result is checked against float64
before the trace is handed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

import warplens
from warplens.errors import RecordingError

if TYPE_CHECKING:
    from warplens.trace import Trace

ROWS: Final = 528
HIDDEN: Final = 5120
_EPS: Final = 1e-6
_MOST_RELATIVE_ERROR: Final = 4e-3  # half a unit in the last place of a bfloat16 is 2^-8 at most, 3.9e-3


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; the values are finite."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def record() -> Trace:
    """The trace. Raises RecordingError when the GPU cannot be used, or when the kernel computes something else."""
    from warplens.demo import kernel_path

    generator = np.random.default_rng(1)
    x, weight = (to_bfloat16(generator.standard_normal(n, np.float32)) for n in (ROWS * HIDDEN, HIDDEN))
    y = np.full(x.shape, 0x7FC0, np.uint16)  # not a number
    kernel = warplens.Kernel.from_file(kernel_path(), "rmsnorm_fwd<__nv_bfloat16, true>")
    arguments = x, weight, y, np.uint32(HIDDEN), np.float32(_EPS)
    note = f"RMSNorm forward, {ROWS} x {HIDDEN} bfloat16, cold L2 (warplens demo)"
    trace = kernel.record(ROWS, HIDDEN // 8, *arguments, cold_l2=True, note=note)
    rows = from_bfloat16(x).reshape(ROWS, HIDDEN)
    expected = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + _EPS) * from_bfloat16(weight)
    error = np.linalg.norm(from_bfloat16(y).reshape(ROWS, HIDDEN) - expected) / np.linalg.norm(expected)
    if not error <= _MOST_RELATIVE_ERROR:
        raise RecordingError(
            f"the demo's kernel computed something else: relative error {error:.2e}, expected at most "
            f"{_MOST_RELATIVE_ERROR:.0e}; is another program using this GPU's memory?"
        )
    return trace
