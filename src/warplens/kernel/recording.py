"""`warplens.record`, and what a process below `warplens record` does with its launches of `warplens.Kernel`.

In: options, or the variable WARPLENS_RECORD. Out: a `.wlens` file, also of the launches before a crash.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from warplens.capture.arena import Drained
from warplens.capture.ends import at_end
from warplens.capture.imports import when_imported
from warplens.capture.launches import LaunchRecorder, asked_in_process
from warplens.capture.request import VARIABLE, Asked, Request, from_text
from warplens.capture.tell import tell
from warplens.capture.triton import TritonCapture, TritonOptions
from warplens.errors import FileError, RecordingError, UsageError
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.trace.file import write_file
from warplens.trace.part import PartWriter
from warplens.trace.whole import place_for_file


class _Parts:
    """Hands launches on to a part; a disk that is full ends the keeping, and is told once."""

    def __init__(self, part: PartWriter) -> None:
        self.part = part
        self.failed: str | None = None

    def add(self, manifest: dict[str, Any], launch: dict[str, Any], kernel: dict[str, Any], drained: Drained) -> None:
        if self.failed is not None:
            return
        try:
            self.part.add(manifest, launch, kernel, drained.chunks)
        except FileError as error:
            self.failed = str(error)
            tell(f"this process ({os.getpid()}) is not recorded further: {error}")


_OF_THE_COMMAND: Final = ("timeout_s", "signal", "nvtx_include", "host", "command", "budget", "counts")
_active: LaunchRecorder | None = None
_of_process: tuple[int, LaunchRecorder | None] | None = None
"""The process that asked, and its recorder: a child of fork must not use its parent's."""


def current() -> LaunchRecorder | None:
    """What records this process's launches now; None where nothing does."""
    global _of_process
    if _active is not None:
        return _active if _active.pid == os.getpid() else None
    if _of_process is None or _of_process[0] != os.getpid():
        _of_process = os.getpid(), _asked_by_variable()
    return _of_process[1]


def _asked_by_variable() -> LaunchRecorder | None:
    asked = from_text(os.environ.get(VARIABLE, ""))
    if asked is None:
        return None
    try:
        keep = _Parts(PartWriter(Path(asked.folder), str(os.getpid())))
    except FileError as error:
        tell(f"this process ({os.getpid()}) is not recorded: {error}")
        return None
    recorder = LaunchRecorder(asked, keep)
    at_end(lambda: _finish_process(asked, recorder, keep))
    return recorder


def _finish_process(asked: Asked, recorder: LaunchRecorder, keep: _Parts) -> None:
    try:
        keep.part.finish(recorder.finish())
        note = Path(asked.folder) / f"{recorder.pid}-{_NOTE_NUMBER}.json"
        note.write_text(json.dumps({**recorder.note(), "failed": keep.failed}), encoding="utf-8")
    except (FileError, RecordingError, OSError) as error:
        tell(f"the recording of this process ({recorder.pid}) is cut off: {error}")


_NOTE_NUMBER = 9999
"""Beside the notes of host.hpp in the same process, which count from 0."""


class record:  # noqa: N801  (used as a function is)
    """Records launches of `warplens.Kernel`, and of Triton's kernels, that the program makes in a `with` block, into
    the file `path`.

    >>> with warplens.record("run.wlens", kernels="rmsnorm", launch_count=3) as rec:       # doctest: +SKIP
    ...     for _ in range(100):
    ...         kernel.launch(grid, block, x, y)
    >>> rec.trace.launches.height                                                           # doctest: +SKIP
    3

    Options are those of `warplens record`, with the same words and meaning: `kernels`, `launch_skip`, `launch_count`,
    `rounds`, `grids`, `policy`, `keep`, `cold_l2`, `replay`, `capacity_bytes`, `every_block`, `blocks`, `warps`,
    `paused`, `source`, `note`. No launch is added: clean and traced
    ones alternate over the program's own. `trace` is None where nothing was recorded, and `ran` says which kernels ran:
    launches and recorded ones by name. Launches of code that nvcc built are recorded by `warplens record` alone.

    Triton's kernels get marks at their waits, and are recorded into a file beside `path` (`run-triton.wlens`) where
    there are launches of both; `files` names what was written, and `notes` what is not recorded of them.

    Raises UsageError (options, or a recording within a recording) and FileError (the place cannot be written).
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = Path(path)
        self.request = Request.of(options)
        request = self.request
        if any(getattr(request, name) for name in _OF_THE_COMMAND):
            *most, last = _OF_THE_COMMAND
            raise UsageError(f"{', '.join(most)} and {last} are options of the command `warplens record` alone")
        self.trace: Trace | None = None
        self.ran: dict[str, tuple[int, int]] = {}
        self.files: list[Path] = []
        self._unseen: list[str] = []
        self._recorder: LaunchRecorder | None = None
        self._triton = TritonCapture(TritonOptions.of(asked_in_process(self.request)))

    @property
    def notes(self) -> list[str]:
        """What is not recorded or not marked of Triton's kernels, a line each; and that no launch was seen."""
        return [*self._triton.notes, *self._unseen]

    def __enter__(self) -> Self:
        global _active
        if _active is not None:
            raise UsageError("a recording is under way in this process: end it first")
        self.path = place_for_file(self.path).absolute()  # the program may go to another folder
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=".warplens-", dir=self.path.parent))
        except OSError as error:
            raise FileError(f"cannot write to {self.path.parent}: {error.strerror or error}") from error
        self._keep = _Parts(PartWriter(self._folder, str(os.getpid())))
        self._recorder = _active = LaunchRecorder(asked_in_process(self.request), self._keep)
        self._forget = when_imported("triton", self._triton.start)
        return self

    def start(self) -> None:
        """Record from here on, where it was paused."""
        if self._recorder is not None:
            self._recorder.on = self._triton.on = True

    def stop(self) -> None:
        """Record nothing from here on, until `start`."""
        if self._recorder is not None:
            self._recorder.on = self._triton.on = False

    def __exit__(self, *_: object) -> None:
        global _active
        recorder, _active = self._recorder, None
        assert recorder is not None
        self._forget()
        self._triton.stop()
        if os.getpid() != recorder.pid:  # a child of fork came here, and the recording is its parent's
            return
        try:
            whole = self._finish(recorder)
            self.ran = {name: (launches, kept) for name, (launches, kept) in recorder.ran.items()} | self._triton.ran
            if whole is not None:
                try:
                    whole.replace(self.path)
                except OSError as error:
                    raise FileError(f"cannot write {self.path}: {error.strerror or error}") from error
                self.files.append(self.path)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        others = self._triton.recording()
        if others is not None:
            path = self.path.with_name(f"{self.path.stem}-triton{self.path.suffix}") if whole else self.path
            write_file(path, others.manifest, records=others.records, sources=others.sources)
            self.files.append(path)
        if self.files:
            self.trace = open_trace(self.path)
        if not self.ran:
            text = "no launch was seen of a kernel of Triton or of warplens.Kernel; those of code that nvcc built are"
            self._unseen.append(f"{text} recorded by the command `warplens record`")

    def _finish(self, recorder: LaunchRecorder) -> Path | None:
        """The file; the launches that are whole where it cannot be completed, which is told."""
        part = self._keep.part
        try:
            return part.finish(recorder.finish())
        except FileError as error:
            tell(f"the recording {self.path} is cut off: {error}")
            return part.left
