"""`warplens.triton`: Triton kernels of a program, recorded into a Trace; and marks that stand in their source.

In: what to mark. Out: `Trace`, or a `.wlens` file. Joins two stages that do not know each other: capture and trace.
Polars is imported when a `Trace` is asked for, not while the program runs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warplens.capture.options import RecordOptions
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture, TritonWarning
from warplens.errors import FileError, SitesError
from warplens.instrument import Selection
from warplens.triton.marks import mark, phase, range
from warplens.whole import place_for_file

if TYPE_CHECKING:
    from warplens.trace import Trace

__all__ = ["Recorded", "TritonWarning", "mark", "phase", "range", "record"]


class Recorded:
    """What `record` gives: `trace` and `save` when the block has ended; `notes` say what is not recorded, and why."""

    def __init__(self, capture: TritonCapture) -> None:
        self._capture = capture

    @property
    def notes(self) -> list[str]:
        """What is not recorded or not marked, a line each."""
        return list(self._capture.notes)

    @property
    def trace(self) -> Trace:
        """The launches as a Trace. Raises SitesError when no marked kernel was launched."""
        from warplens.trace import Trace

        return Trace.from_recording(self._recording())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording as a `.wlens` file, which needs no Polars. Raises SitesError and FileError."""
        from warplens.trace.file import write_file

        recording = self._recording()
        write_file(path, recording.manifest, records=recording.records, sources=recording.sources)

    def _recording(self) -> Any:
        recording = self._capture.recording()
        if recording is None:
            why = "\n".join(self.notes) or "no Triton kernel was launched in the block"
            raise SitesError(f"nothing was recorded: {why}")
        return recording


@contextmanager
def record(
    path: str | os.PathLike[str] | None = None,
    *,
    kernels: str | None = None,
    level: str = "waits",
    sites: str | None = None,
    capacity_bytes: int = 256 << 20,
    every_block: int = 1,
    warps: Sequence[int] | None = None,
    each_config: bool = False,
    note: str | None = None,
) -> Iterator[Recorded]:
    """Record the Triton kernels that are launched in the block.

    - path: write a `.wlens` file here when the block ends.
    - kernels: regular expression that a kernel's name must hold; None is all of them.
    - level: "off" leaves the marks of the source alone, "coarse" adds waits outside of loops, "waits" all of them,
      "all" arrivals, issues and fences too.
    - sites: regular expression that a site's name must hold, such as "matmul.py:29" or "mbarrier".
    - capacity_bytes: device memory for records; events that find no space are counted as lost.
    - every_block: record every n-th block only.
    - warps: record these warps of a block only; None is all.
    - each_config: record what an autotuner tries, too, and not the configuration alone that it chose.
    - note: kept in the trace.

    Kernels that are loaded in the block get marks, apart from the clean ones; afterwards all is as it was. What cannot
    be recorded runs as ever, with one `TritonWarning`. Raises UsageError for options that cannot be meant,
    and FileError, before anything runs, for a path that cannot be written.

    Example::

        with warplens.triton.record("run.wlens", kernels="matmul") as recorded:
            matmul[grid](a, b, c, ...)
        print(recorded.trace.spans)
    """
    options = PythonOptions(
        kernels=kernels,
        selection=Selection(level, sites),
        capacity_bytes=capacity_bytes,
        every_block=every_block,
        warp_mask=RecordOptions(warps=None if warps is None else tuple(warps)).warp_mask,
        each_config=each_config,
        note=note,
    )
    recorded = Recorded(TritonCapture(options))
    if path is not None:
        try:  # permissions say little to root, and of what is read-only
            path = place_for_file(path).absolute()  # the program may go to another folder
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        with recorded._capture:
            yield recorded
    finally:  # also when the program fails
        if path is not None and recorded._capture.recording() is not None:
            recorded.save(path)
