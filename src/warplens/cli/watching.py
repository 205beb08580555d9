"""What `record` does while the program runs: says how far it is, switches recording on and off at a signal, and has
what a kernel that hangs has recorded saved before the program is stopped.

In: the folder of the run. Out: lines on stderr where that is a terminal, at growing intervals; the file that the
program's processes look for. Reads no recording: sizes alone.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Final

import click

from warplens.capture.child import Watch
from warplens.capture.halt import Halt
from warplens.capture.request import SWITCH
from warplens.render.escape import visible

_FIRST_S: Final = 5.0
_LONGEST_S: Final = 600.0


class Progress:
    """Says what has been recorded so far: after 5 s, and whenever twice the time has gone and there is more."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._next_s, self._said = folder, _FIRST_S, (0, 0)

    def tick(self, seconds: float) -> None:
        """Called again and again with the time since the program's begin."""
        if seconds < self._next_s:
            return
        self._next_s = seconds + min(max(seconds, _FIRST_S), _LONGEST_S)
        sizes = []
        with contextlib.suppress(OSError):  # the program may remove the folder, or files go meanwhile
            sizes = [path.stat().st_size for path in self._folder.iterdir() if ".wlens" in path.suffixes]
        found = sum(size > 0 for size in sizes), sum(sizes)
        if found != self._said:
            self._said = found
            processes = f"{found[0]} process{'es' if found[0] != 1 else ''}"
            click.echo(f"warplens: {seconds:.0f} s, {found[1] / 1e6:.1f} MB of {processes} recorded", err=True)


class Switch:
    """Recording is on while a file is in the folder; each signal makes or removes it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / SWITCH

    def flip(self) -> None:
        """On, if it was off; off, if it was on."""
        try:
            on = not self._file.exists()
            self._file.touch() if on else self._file.unlink()
        except OSError as error:
            click.echo(f"warplens: recording cannot be switched: {visible(str(error), limit=400)}", err=True)
            return
        click.echo(f"warplens: recording is {'on' if on else 'off'}", err=True)


class Saving:
    """Has processes save what a kernel that hangs has recorded, and says what came of it."""

    def __init__(self, folder: Path) -> None:
        self._halt = Halt(folder)

    def save(self, why: str) -> bool:
        """Whether a launch that had not ended was saved."""
        answers = self._halt.ask(why)
        if answers is None:
            return False
        for remark in answers.remarks:
            click.echo(f"warplens: {visible(remark, limit=400)}", err=True)
        for pid in answers.silent:
            text = (
                f"process {pid} did not save what was under way in time (where it waits within a copy, cudaMemcpy, the "
                "driver is not to be had): what had been read before is kept"
            )
            click.echo(f"warplens: {text}", err=True)
        if "time-out" in why and not (answers.saved or answers.remarks or answers.silent):
            click.echo("warplens: no launch that is recorded was under way", err=True)
        if answers.saved:
            more = "; Ctrl-C again ends a program that does not hear it" if why.startswith("Ctrl-C") else ""
            click.echo(f"warplens: what was recorded of the kernel that had not ended is saved{more}", err=True)
        return answers.saved


def watch(folder: Path, name: str | None, *, on_terminal: bool) -> Watch:
    """What `capture.child.run` is to do; `name`: of the signal, None for none."""
    tick = Progress(folder).tick if on_terminal else None
    number = None if name is None else signal.Signals[f"SIG{name}"]
    return Watch(tick, number, Switch(folder).flip, Saving(folder).save)
