"""`warplens.record`, and what a process below `warplens record` does with its launches of `warplens.Kernel`.

In: options, or the variable WARPLENS_RECORD. Out: a `.wlens` file, also of the launches before a crash.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from warplens.capture.arena import Drained
from warplens.capture.doors import DOORS
from warplens.capture.ends import at_end, wait_at_end
from warplens.capture.forked import process
from warplens.capture.imports import when_imported
from warplens.capture.launches import LaunchRecorder, asked_in_process, program
from warplens.capture.notes import recorded_files
from warplens.capture.python import PythonCapture, PythonOptions
from warplens.capture.recording import Recording
from warplens.capture.request import VARIABLE, Asked, Request, from_text
from warplens.capture.tell import tell
from warplens.errors import FileError, RecordingError, UsageError
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.trace.file import write_file
from warplens.trace.part import PartWriter
from warplens.whole import place_for_file, whole_file


class _Parts:
    """Hands launches on to a part; a disk that is full ends the keeping, and is told once."""

    def __init__(self, part: PartWriter) -> None:
        self.part = part
        self.failed: str | None = None

    def add(
        self, manifest: Callable[[], dict[str, Any]], launch: dict[str, Any], kernel: dict[str, Any], drained: Drained
    ) -> None:
        if self.failed is not None:
            return
        try:
            self.part.add(manifest() if self.part.is_empty else {}, launch, kernel, drained.chunks)
        except FileError as error:
            self.failed = str(error)
            tell(f"this process ({os.getpid()}) is not recorded further: {error}")

    def add_stopped(
        self, manifest: dict[str, Any], launch: dict[str, Any], kernel: dict[str, Any], drained: Drained
    ) -> None:
        if self.failed is None:
            self.part.add_stopped(manifest, launch, kernel, drained.chunks)


_OF_THE_COMMAND: Final = ("timeout_s", "signal", "nvtx_include", "host", "command", "budget", "counts")
_active: LaunchRecorder | None = None
_of_process: tuple[int, LaunchRecorder | None] | None = None
"""The process that asked, and its recorder: a child of fork must not use its parent's."""


def current() -> LaunchRecorder | None:
    """What records this process's launches now; None where nothing does."""
    global _of_process
    if _active is not None:
        return _active if _active.pid == process() else None
    if _of_process is None or _of_process[0] != process():
        _of_process = process(), _asked_by_variable()
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
        why = wait_at_end(recorder.is_read, "the last launch of warplens.Kernel")
        if why is not None:
            recorder.save_unfinished(why)
        whole = keep.part.finish(recorder.finish(0.0))
        if whole is not None and whole.parent != Path(asked.folder):
            tell(f"{asked.folder} is gone: the recording of this process ({recorder.pid}) is kept as {whole}")
            return
        note = Path(asked.folder) / f"{recorder.pid}-{_NOTE_NUMBER}.json"
        note.write_text(json.dumps({**recorder.note(), "failed": keep.failed}), encoding="utf-8")
    except (FileError, RecordingError, OSError) as error:
        tell(f"the recording of this process ({recorder.pid}) is cut off: {error}")


_NOTE_NUMBER = 9999
"""Beside the notes of host.hpp in the same process, which count from 0."""
_BLOCKS_NUMBER = 9997
_of_blocks: tuple[int, list[str]] = 0, []
"""A process, and the files that `with warplens.record(...)` blocks of it wrote."""


def _tell_outer(files: list[Path]) -> None:
    """Below `warplens record`: what a block recorded is in no file of the command, which is to say so."""
    global _of_blocks
    asked = from_text(os.environ.get(VARIABLE, ""))
    if asked is None or not files:
        return
    pid = os.getpid()
    known = _of_blocks[1] if _of_blocks[0] == pid else []
    _of_blocks = pid, [*known, *map(str, files)]
    note = {"process": {"pid": pid, "program": program()}, "own_files": _of_blocks[1]}
    with contextlib.suppress(OSError):  # the folder is gone, or the disk is full
        (Path(asked.folder) / f"{pid}-{_BLOCKS_NUMBER}.json").write_text(json.dumps(note), encoding="utf-8")


class record:  # noqa: N801  (used as a function is)
    """Records launches of `warplens.Kernel`, and of kernels of Triton, CuPy and Numba, that the program makes in a
    `with` block, into the file `path`.

    >>> with warplens.record("run.wlens", kernels="rmsnorm", launch_count=3) as rec:       # doctest: +SKIP
    ...     for _ in range(100):
    ...         kernel.launch(grid, block, x, y)
    >>> rec.trace.launches.height                                                           # doctest: +SKIP
    3

    Options are those of `warplens record`, with the same words and meaning: `kernels`, `launch_skip`, `launch_count`,
    `rounds`, `grids`, `policy`, `keep`, `cold_l2`, `replay`, `capacity_bytes`, `every_block`, `blocks`, `warps`,
    `paused`, `source`, `note`. No launch is added: clean and traced ones alternate over the program's own.
    `trace` is None where nothing was recorded, and `ran` says which kernels ran: launches and recorded ones by name; of
    a kernel of Triton or CuPy that gets no marks the first 100 are counted. Launches of code that nvcc built are
    recorded by `warplens record` alone.

    Kernels of Triton, CuPy and Numba get marks at their waits, and are recorded into a file beside `path`
    (`run-python.wlens`) where there are launches of `warplens.Kernel` too; `files` names what was written, and `notes`
    what is not recorded of them.

    Raises UsageError (options, or a recording within a recording) and FileError: the place cannot be written. Where
    that comes to light at the end, as of a folder that was removed meanwhile, the message says where the file is kept.

    Below the command `warplens record` launches of `warplens.Kernel` in the block are in the block's file, all others
    in the command's.
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
        self._python = PythonCapture(PythonOptions.of(asked_in_process(self.request)))

    @property
    def notes(self) -> list[str]:
        """What is not recorded or not marked of kernels of such packages, a line each; that no launch was seen."""
        return [*self._python.notes, *self._unseen]

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
        self._forget = [when_imported(name, partial(self._python.join, door)) for name, door in DOORS.items()]
        return self

    def start(self) -> None:
        """Record from here on, where it was paused."""
        if self._recorder is not None:
            self._recorder.on = self._python.on = True

    def stop(self) -> None:
        """Record nothing from here on, until `start`."""
        if self._recorder is not None:
            self._recorder.on = self._python.on = False

    def __exit__(self, *_: object) -> None:
        global _active
        recorder, _active = self._recorder, None
        assert recorder is not None
        for forget in self._forget:
            forget()
        self._python.stop()
        if os.getpid() != recorder.pid:  # a child of fork came here, and the recording is its parent's
            return
        try:
            whole = self._finish(recorder)
            self.ran = {name: (launches, kept) for name, (launches, kept) in recorder.ran.items()} | self._python.ran
            failed: list[str] = []
            if whole is not None:
                self._put(whole, self.path, failed)
            others = self._python.recording()
            if others is not None:
                path = self.path.with_name(f"{self.path.stem}-python{self.path.suffix}") if whole else self.path
                self._write(others, path, failed)
            _tell_outer(self.files)
            if failed:
                raise FileError("; ".join(failed))
        finally:
            if recorded_files(self._folder) == 0:  # what has no place is the only copy
                shutil.rmtree(self._folder, ignore_errors=True)
        if self.files:
            self.trace = open_trace(self.path)
        if not self.ran:
            text = "no launch was seen of Triton, CuPy, Numba or warplens.Kernel; those of code that nvcc built"
            self._unseen.append(f"{text} are recorded by the command `warplens record`")

    def _put(self, whole: Path, path: Path, failed: list[str]) -> None:
        """Move a file to its place; where that cannot be, it stays, and `failed` says where."""
        try:
            try:
                whole.replace(path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with whole.open("rb") as source, whole_file(path) as copy:
                    shutil.copyfileobj(source, copy)
                whole.unlink()
        except (OSError, FileError) as error:
            why = str(error) if isinstance(error, FileError) else f"cannot write {path}: {error.strerror or error}"
            failed.append(f"{why}; the recording is kept as {whole}")
            return
        self.files.append(path)
        if whole.parent != self._folder:  # the folder of the run was gone
            whole.parent.rmdir()

    def _write(self, own: Recording, path: Path, failed: list[str]) -> None:
        """Write a recording to its place or, where that cannot be, to a folder for temporary files."""
        try:
            write_file(path, own.manifest, records=own.records, sources=own.sources)
            self.files.append(path)
        except FileError as error:
            kept = Path(tempfile.mkdtemp(prefix="warplens-kept-")) / path.name
            write_file(kept, own.manifest, records=own.records, sources=own.sources)
            failed.append(f"{error}; the recording is kept as {kept}")

    def _finish(self, recorder: LaunchRecorder) -> Path | None:
        """The file; the launches that are whole where it cannot be completed, which is told."""
        part = self._keep.part
        try:
            return part.finish(recorder.finish())
        except FileError as error:
            tell(f"the recording {self.path} is cut off: {error}")
            return part.left
