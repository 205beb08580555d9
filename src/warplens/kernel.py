"""`warplens.Kernel`: a kernel of a CUDA C++ source, recorded into a Trace.

In: source and launch arguments. Out: `Trace`. Joins two stages that do not know each other: capture and trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warplens.capture.cuda import CudaKernel
from warplens.capture.recording import Recording
from warplens.decode.manifest import check
from warplens.decode.stopped import where_lines
from warplens.errors import StoppedError
from warplens.trace import Trace


class Kernel(CudaKernel):
    """A marked kernel of a CUDA C++ source: `Kernel.from_file("rms.cu", "rmsnorm_fwd<true>")`, then `record`.

    Raises CompileError, SitesError, DeviceError, MissingDependencyError.
    """

    def record(self, grid: int | Sequence[int], block: int | Sequence[int], *args: Any, **options: Any) -> Trace:
        """Launch the kernel, clean and traced in turn, and return what was recorded.

        As `capture`, whose arguments, options and errors hold here too, with a `Trace` as result; StoppedError then
        holds what was recorded as `trace`.
        """
        try:
            return Trace.from_recording(self.capture(grid, block, *args, **options))
        except StoppedError as stopped:
            if stopped.recording is not None:
                stopped.trace = Trace.from_recording(stopped.recording)
            raise

    def _where(self, recording: Recording) -> tuple[str, ...]:
        return tuple(where_lines(check(recording.manifest), recording.records))
