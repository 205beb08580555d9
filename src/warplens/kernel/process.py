"""Kernels that Python packages launch (Triton, CuPy, Numba), in a process below `warplens record`.

In: the variable WARPLENS_RECORD. Out: a `.wlens` file in the run's folder, and a note of what ran. Is called by
sitecustomize when the program has imported such a package: it must not let that import fail, nor import Polars.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from warplens.capture.doors import DOORS
from warplens.capture.ends import at_end, wait_at_end
from warplens.capture.halt import Saver
from warplens.capture.python import PythonCapture, PythonOptions
from warplens.capture.recording import Recording
from warplens.capture.request import VARIABLE, Asked, from_text
from warplens.capture.tell import tell
from warplens.errors import FileError
from warplens.trace.file import write_file

_NUMBER: Final = 9998
"""Tells this file apart from those that host.hpp (from 0) and warplens.Kernel (9999) leave for the same process."""


class _Process:
    """The recording of one process, and its two files."""

    def __init__(self, asked: Asked) -> None:
        self._folder = Path(asked.folder)
        self._failed: str | None = None
        self._written = False
        self._putting = threading.Lock()  # what is whole is not to be written over by what was saved meanwhile
        self.pid = os.getpid()
        self.packages: list[str] = []
        self.capture = PythonCapture(
            PythonOptions.of(asked), quiet=True, seen=self._seen, forked=_in_child, done=self._write, outlives=True
        )
        self._saver = Saver(self._folder, f"{self.pid}-python", self._save)

    def join(self, package: str) -> None:
        """Record kernels of this package, too."""
        if package not in self.packages:
            self.packages.append(package)
            self.capture.join(DOORS[package])

    def _seen(self) -> None:
        """Behind the first launch of a kernel: an end that comes without warning is not to be silent."""
        if self.capture.is_due and not self._written:
            self._saver.start()
            why = "it ended before its records were read, as by a kill or os._exit; they are read at its end, or behind"
            self._leave({"left_out": [f"{self._what}: {why} --launch-count launches"]})

    def _write(self, recording: Recording) -> None:
        try:
            with self._putting:
                self._put(recording)
                self._written = True
            self._saver.close()
        except (FileError, OSError) as error:
            self._failed = str(error)

    def _put(self, recording: Recording, *, pack: bool = True) -> None:
        path = self._folder / f"{self.pid}-{_NUMBER}.wlens"
        write_file(path, recording.manifest, records=recording.records, sources=recording.sources, pack=pack)
        self._place.unlink(missing_ok=True)

    def _save(self, why: str) -> tuple[bool, str]:
        """What there is now, in the file that is written again should the process come to its end."""
        recording = None if self._written else self.capture.unfinished(why)
        if recording is None:
            return False, ""
        with self._putting:
            if self._written:
                return False, ""
            self._put(recording, pack=False)  # the program is about to be stopped
        return recording.manifest["stopped"] is not None, ""

    def finish(self) -> None:
        """At the process's end."""
        try:
            why = wait_at_end(lambda: self.capture.is_idle(0.05), f"launches of {self.capture.packages}'s kernels")
            if why is not None:
                self._save(why)
                self._saver.close()
                return
            self._saver.close()
            self.capture.stop()
            recording = self.capture.recording()
            if recording is not None and not self._written:
                self._write(recording)
            if self._failed is not None and not self._written:
                tell(f"{self._what} are not recorded: {self._failed}")
            self._note()
        except Exception as error:
            tell(f"{self._what} are not recorded: {error}")

    @property
    def _what(self) -> str:
        return f"kernels of {self.capture.packages} in process {self.pid}"

    @property
    def _place(self) -> Path:
        return self._folder / f"{self.pid}-{_NUMBER}.json"

    def _leave(self, note: dict[str, Any]) -> None:
        program = Path(sys.argv[0]).name if getattr(sys, "argv", None) and sys.argv[0] else "python"
        text = json.dumps({"process": {"pid": self.pid, "program": program}, **note})
        with contextlib.suppress(OSError):  # the folder is gone, or the disk is full
            self._place.write_text(text, encoding="utf-8")

    def _note(self) -> None:
        own = self.capture
        ran = own.ran
        if not ran and not own.notes:
            return
        kernels = [
            {
                "name": name,
                "launches": seen,
                "or_more": name in own.uncounted,
                "recorded": kept,
                "matches": fits,
                "without_marks": fits and not kept and not told,
            }
            for name, (seen, kept) in ran.items()
            for fits, told in [(own.takes(name), any(line.startswith(f"{name} is not recorded:") for line in own.told))]
        ]
        remarks = [line for line in own.notes if line not in own.told]
        self._leave({"kernels": kernels, "left_out": own.told, "remarks": remarks, "failed": self._failed})


_running: _Process | None = None


def begin(package: str) -> None:
    """Record this process's kernels of a package as the variable says. Raises nothing that the program would see."""
    if _running is None:
        _start([package])
    elif _running.pid != os.getpid():  # a child of fork
        _in_child(package)
    else:
        _join(_running, package)


def _in_child(*more: str) -> None:
    """A child of fork that uses such a package is a process like others: a server's workers are such."""
    packages = list(more)
    if _running is not None:
        _running.capture.put_back()
        packages = [*_running.packages, *more]
    _start(packages)


def _start(packages: list[str]) -> None:
    global _running
    try:
        asked = from_text(os.environ.get(VARIABLE, ""))
        if asked is None:
            return
        process = _Process(asked)
    except Exception as error:
        _tell(packages, error)
        return
    _running = process
    at_end(process.finish)
    for package in packages:
        _join(process, package)


def _join(process: _Process, package: str) -> None:
    try:
        process.join(package)
    except Exception as error:
        _tell([package], error)


def _tell(packages: list[str], error: Exception) -> None:
    tell(f"kernels of {' and '.join(packages)} in this process ({os.getpid()}) are not recorded: {error}")
