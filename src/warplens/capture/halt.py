"""How `warplens record` has its program's processes save what a kernel that hangs has recorded.

In: the folder of the run. Out: files in it. `record` writes the file `stop` with a number and why; a process that
records has a file `<stem>.watch` there, begins to save within a tenth of a second, and says both in `<stem>.answer`.
Files and no signals: a main thread that waits for the GPU runs no handler, and a program's signals are its own.
include/warplens/detail/host_halt.hpp is the other side in C++.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warplens.capture.tell import tell

STOP: Final = "stop"
ANSWER_S: Final = 30.0
"""That `record` waits for answers: copies take 5 s at most (pinned.py), the rest is for what they hold and a file."""
HEARD_S: Final = 5.0
"""That it waits for a process to begin: one that became another program (exec) has nobody that hears."""
ENDING_S: Final = 7.0
"""That a process's end waits for a save that has begun: a little longer than its copies take."""
TICK_S: Final = 0.1
_WORKING: Final = "working"
_SAVED: Final = "saved"


@dataclass(frozen=True)
class Answers:
    """What processes said. `saved`: one of them had a launch that had not ended, and has saved it. `remarks`: why
    nothing was saved, a line each. `silent`: processes that did not answer."""

    saved: bool
    remarks: tuple[str, ...] = ()
    silent: tuple[int, ...] = ()


class Halt:
    """`record`'s side."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    def ask(self, why: str, wait_s: float = ANSWER_S, heard_s: float = HEARD_S) -> Answers | None:
        """Have all processes save what is under way; None where none of them has recorded anything yet.

        `why`: the end of "the kernel was stopped: ...". Returns when all have answered, or ended, or `wait_s` is over,
        and `heard_s` for those that have not begun.
        """
        self._number += 1
        begun_s = time.monotonic()
        found: dict[str, str] = {}
        silent = self._watching(found)
        if not silent:
            return None
        try:
            _write(self._folder / STOP, f"{self._number}\n{why}\n")
        except OSError:
            return None  # the folder is gone, and what was recorded with it
        while silent and time.monotonic() < begun_s + wait_s:
            if time.monotonic() >= begun_s + heard_s and not any(found.get(stem) == _WORKING for stem in silent):
                break
            time.sleep(0.01)
            silent = self._watching(found)
        with contextlib.suppress(OSError):
            (self._folder / STOP).unlink()
        remarks = dict.fromkeys(text for text in found.values() if text not in ("", _SAVED, _WORKING))
        return Answers(_SAVED in found.values(), tuple(remarks), tuple(sorted({_pid(stem) for stem in silent})))

    def _watching(self, found: dict[str, str]) -> list[str]:
        """Names of processes that live and have not answered; answers go into `found`."""
        out = []
        try:
            stems = [path.stem for path in self._folder.glob("*.watch")]
        except OSError:
            return []
        for stem in stems:
            text = _read(self._folder / f"{stem}.answer")
            number, _, answer = (text or "").partition("\n")
            if number == str(self._number):
                found[stem] = answer.strip()
            if found.get(stem, _WORKING) == _WORKING and _lives(_pid(stem)):
                out.append(stem)
        return out


class Saver:
    """A process's side: a thread that calls `save(why)` when `record` asks for it.

    `save` returns whether it has saved a launch that had not ended and, where not, a remark or "". It must not wait for
    the GPU. `stem`: names the files, and begins with the process's number.
    """

    def __init__(self, folder: str | os.PathLike[str], stem: str, save: Callable[[str], tuple[bool, str]]) -> None:
        self._folder, self._stem, self._save = Path(folder), stem, save
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on; again and again it does nothing."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="warplens-saver", daemon=True)
        with contextlib.suppress(OSError):  # the folder is gone: nobody asks
            self._place("watch").touch()
        self._thread.start()

    def close(self) -> None:
        """Watch no more. A save that is under way is waited for: the file that it writes is about to be closed."""
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(ENDING_S)
        with contextlib.suppress(OSError):
            self._place("watch").unlink()

    def _place(self, suffix: str) -> Path:
        return self._folder / f"{self._stem}.{suffix}"

    def _run(self) -> None:
        answered = ""
        while not self._over.wait(TICK_S):
            number, _, why = (_read(self._folder / STOP) or "").partition("\n")
            if not number or number == answered:
                continue
            answered = number
            self._answer(number, _WORKING)
            try:
                saved, remark = self._save(why.strip())
            except Exception as error:  # it is the program's process, and goes on
                saved, remark = False, f"what was under way in process {os.getpid()} could not be saved: {error}"
            self._answer(number, _SAVED if saved else remark)

    def _answer(self, number: str, text: str) -> None:
        try:
            _write(self._place("answer"), f"{number}\n{text}\n")
        except OSError as error:
            tell(f"{self._place('answer')} cannot be written: {error.strerror or error}")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    new = path.with_suffix(f"{path.suffix}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _pid(stem: str) -> int:
    digits = stem.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def _lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    stat = _read(Path(f"/proc/{pid}/stat"))  # one that has ended and was not waited for is there too
    return stat is None or stat.rpartition(")")[2].split()[:1] != ["Z"]
