"""Triton kernels of a process below `warplens record`, or in a `with warplens.record(...)` block.

In: the variable WARPLENS_RECORD, or a `Request`. Out: a `.wlens` file in the run's folder, and a note of what ran. Is
called by sitecustomize when the program has imported Triton: it must not let that import fail, nor import Polars.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from warplens.capture.recording import Recording
from warplens.capture.request import VARIABLE, Asked, from_text
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
        self._pid = os.getpid()
        self.capture = TritonCapture(TritonOptions.of(asked), quiet=True, done=self._write)

    def _write(self, recording: Recording) -> None:
        try:
            path = self._folder / f"{self._pid}-{_NUMBER}.wlens"
            write_file(path, recording.manifest, records=recording.records, sources=recording.sources)
            self._written = True
        except (FileError, OSError) as error:
            self._failed = str(error)

    def finish(self) -> None:
        """At the interpreter's end."""
        if os.getpid() != self._pid:  # a child of fork, which inherited this
            return
        try:
            self.capture.stop()
            recording = self.capture.recording()
            if recording is not None and not self._written:
                self._write(recording)
            self._note()
        except Exception as error:
            sys.stderr.write(f"warplens: the Triton kernels of this process ({self._pid}) are not recorded: {error}\n")

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
        program = Path(sys.argv[0]).name if getattr(sys, "argv", None) and sys.argv[0] else "python"
        note: dict[str, Any] = {"process": {"pid": self._pid, "program": program}, "kernels": kernels}
        remarks = [line for line in own.notes if line not in own.told]
        note |= {"left_out": own.told, "remarks": remarks, "failed": self._failed}
        path = self._folder / f"{self._pid}-{_NUMBER}.json"
        path.write_text(json.dumps(note), encoding="utf-8")


_running: _Process | None = None


def begin() -> None:
    """Record this process's Triton kernels as the variable says. Raises nothing that the program would see."""
    global _running
    if _running is not None and _running._pid == os.getpid():
        return
    try:
        asked = from_text(os.environ.get(VARIABLE, ""))
        if asked is None:
            return
        process = _Process(asked)
        process.capture.start()
    except Exception as error:
        sys.stderr.write(f"warplens: the Triton kernels of this process ({os.getpid()}) are not recorded: {error}\n")
        return
    _running = process
    atexit.register(process.finish)
