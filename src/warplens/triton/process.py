"""Triton kernels of a process below `warplens record`, or in a `with warplens.record(...)` block.

In: the variable WARPLENS_RECORD, or a `Request`. Out: a `.wlens` file in the run's folder, and a note of what ran. Is
called by sitecustomize when the program has imported Triton: it must not let that import fail, nor import Polars.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from warplens.capture.ends import at_end
from warplens.capture.recording import Recording
from warplens.capture.request import VARIABLE, Asked, from_text
from warplens.capture.tell import tell
from warplens.capture.triton import TritonCapture, TritonOptions
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
        self.pid = os.getpid()
        self.capture = TritonCapture(
            TritonOptions.of(asked), quiet=True, seen=self._seen, forked=_in_child, done=self._write
        )

    def _seen(self) -> None:
        """Behind the first launch of a kernel: an end that comes without warning is not to be silent."""
        if self.capture.is_due and not self._written:
            why = "it ended before its records were read, as by a kill or os._exit; they are read at its end, or behind"
            self._leave({"left_out": [f"Triton's kernels of process {self.pid}: {why} --launch-count launches"]})

    def _write(self, recording: Recording) -> None:
        try:
            path = self._folder / f"{self.pid}-{_NUMBER}.wlens"
            write_file(path, recording.manifest, records=recording.records, sources=recording.sources)
            self._written = True
            self._place.unlink(missing_ok=True)
        except (FileError, OSError) as error:
            self._failed = str(error)

    def finish(self) -> None:
        """At the process's end."""
        try:
            self.capture.stop()
            recording = self.capture.recording()
            if recording is not None and not self._written:
                self._write(recording)
            if self._failed is not None and not self._written:
                tell(f"the Triton kernels of this process ({self.pid}) are not recorded: {self._failed}")
            self._note()
        except Exception as error:
            tell(f"the Triton kernels of this process ({self.pid}) are not recorded: {error}")

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
            {"name": name, "launches": seen, "recorded": kept, "matches": fits, "without_marks": fits and not kept}
            for name, (seen, kept) in ran.items()
            for fits in [own.takes(name)]
        ]
        remarks = [line for line in own.notes if line not in own.told]
        self._leave({"kernels": kernels, "left_out": own.told, "remarks": remarks, "failed": self._failed})


_running: _Process | None = None


def begin() -> None:
    """Record this process's Triton kernels as the variable says. Raises nothing that the program would see."""
    if _running is None:
        _start()


def _in_child() -> None:
    """A child of fork that uses Triton is a process like others: a server's workers are such."""
    if _running is not None:
        _running.capture.put_back()
    _start()


def _start() -> None:
    global _running
    try:
        asked = from_text(os.environ.get(VARIABLE, ""))
        if asked is None:
            return
        process = _Process(asked)
        process.capture.start()
    except Exception as error:
        tell(f"the Triton kernels of this process ({os.getpid()}) are not recorded: {error}")
        return
    _running = process
    at_end(process.finish)
