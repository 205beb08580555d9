"""`warplens.Kernel`: a kernel of a CUDA C++ source, recorded into a Trace.

In: source and launch arguments. Out: `Trace`. Joins two stages that do not know each other: capture and trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warplens.capture.cuda import CudaKernel
from warplens.trace import Trace


class Kernel(CudaKernel):
    """A marked kernel of a CUDA C++ source: `Kernel.from_file("rms.cu", "rmsnorm_fwd<true>")`, then `record`.

    Raises CompileError, SitesError, DeviceError, MissingDependencyError.
    """

    def record(self, grid: int | Sequence[int], block: int | Sequence[int], *args: Any, **options: Any) -> Trace:
        """Launch the kernel, clean and traced in turn, and return what was recorded.

        As `capture`, whose arguments, options and errors hold here too, with a `Trace` as result.
        """
        return Trace.from_recording(self.capture(grid, block, *args, **options))
