"""How much of each step of time intervals cover.

In: intervals as numpy columns, in steps. Out: covered time per row and step. One pass, whatever the length of the
intervals; knows nothing of traces.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Covered:
    """Time that intervals cover of each step, in steps, a row for each sort of interval.

    What begins in a step covers that and all that follow, less the part before it; what ends there takes it away.
    """

    def __init__(self, rows: int, places: int) -> None:
        self._shape = rows, places
        self._count, self._part = np.zeros((2, rows * places))

    def add(self, row: I64 | int, begin: F64, end: F64, weight: I64 | None = None) -> None:
        """Intervals from `begin` to `end`, in steps from 0 to less than `places`; each counts `weight` times.

        `row` is the number of the row, and an interval lies in one row. `begin` and `end` are overwritten.
        """
        for sign, at in ((1.0, begin), (-1.0, end)):
            whole = at.astype(np.int64)
            at -= whole
            whole += np.multiply(row, self._shape[1])
            self._count += sign * np.bincount(whole, weight, len(self._count))
            self._part += sign * np.bincount(whole, at if weight is None else at * weight, len(self._part))

    def total(self) -> F64:
        """Shape (rows, places)."""
        return np.asarray((np.cumsum(self._count) - self._part).reshape(self._shape))
