"""What the processes of a recorded program said of themselves, in the folder of the run.

In: the folder, which the program may have removed. Out: the notes, each a JSON object with `process`; how many
recorded something. Imports nothing heavy: where nothing was recorded this is all that is read.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

MAX_NOTE_BYTES: Final = 8 << 20
_NOTE: Final = re.compile(r"\d+(-\d+|-python)?\.json")


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """All notes in `folder` that can be read, in the order of their names."""
    notes = (_note(path) for path in _entries(folder) if _NOTE.fullmatch(path.name))
    return [note for note in notes if note is not None]


def recorded_files(folder: Path) -> int:
    """How many files with something in them processes left in `folder`."""
    return sum(path.suffix in (".wlens", ".part") and _size(path) > 0 for path in _entries(folder))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _note(path: Path) -> dict[str, Any] | None:
    """What a process said of itself; None where it cannot be read: it was cut off, or is none."""
    try:
        if path.stat().st_size > MAX_NOTE_BYTES:
            return None
        note = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) and isinstance(note.get("process"), dict) else None
