"""`warplens.Kernel`: a kernel of a CUDA C++ source, recorded into a Trace.

In: source and launch arguments. Out: `Trace`. Joins two stages that do not know each other: capture and trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from warplens.capture.arguments import Arguments
from warplens.capture.cuda import CudaKernel, dim3
from warplens.capture.options import RecordOptions, stream_handle
from warplens.capture.recording import Recording
from warplens.decode.manifest import check
from warplens.decode.stopped import where_lines
from warplens.errors import StoppedError, UsageError
from warplens.kernel.recording import current
from warplens.trace import Trace

_OF_LAUNCH = frozenset({"shared_bytes", "cluster", "cooperative", "stream"})
_OFTEN = frozenset({"shared_bytes", "stream"})
_USUAL = RecordOptions()


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

    def launch(self, grid: int | Sequence[int], block: int | Sequence[int], *args: Any, **options: Any) -> None:
        """Launch the kernel once, as a program does: the clean one where there is one.

        Within `warplens.record` or below the command `warplens record` some launches are recorded, and run the traced
        build. grid, block, args: as `capture` takes them; numpy arrays are copied back, which waits for the kernel.
        options: `shared_bytes`, `cluster`, `cooperative`, `stream`. Raises UsageError, DeviceError.
        """
        wanted = _wanted(options) if options else _USUAL
        shape = dim3(grid, "grid"), dim3(block, "block")
        plain = self.plain_build()
        parameters = Arguments(args, plain.function.parameter_sizes())
        recorder = current()
        if recorder is not None:
            recorder.launch(self, shape, wanted, parameters)
        else:
            plain.launch(shape, wanted, parameters)
        parameters.copy_back()

    def _where(self, recording: Recording) -> tuple[str, ...]:
        return tuple(where_lines(check(recording.manifest), recording.records))


def _wanted(options: dict[str, Any]) -> RecordOptions:
    """Options of a launch, checked once for those that have the same stream and ask for nothing unusual."""
    unknown = sorted(set(options) - _OF_LAUNCH)
    if unknown:
        raise UsageError(f"unknown option {unknown[0]!r} of launch(): expected one of {', '.join(_OF_LAUNCH)}")
    stream, shared_bytes = stream_handle(options.get("stream")), options.get("shared_bytes", 0)
    if type(shared_bytes) is int and options.keys() <= _OFTEN:
        return _of_stream(stream, shared_bytes)
    return RecordOptions.of({**options, "stream": stream})


@lru_cache(maxsize=64)
def _of_stream(stream: int, shared_bytes: int) -> RecordOptions:
    return RecordOptions(stream=stream, shared_bytes=shared_bytes)
