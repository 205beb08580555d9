"""Runs a program as its user would, with the one variable that has it recorded.

In: a command, the variable's text, a time-out. Out: how it ended. The program has the terminal, the signals, the
open files and the exit code to itself: this process only waits, also through Ctrl-C.
"""

from __future__ import annotations

import errno
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from warplens.capture.request import VARIABLE
from warplens.errors import UsageError

GRACE_S: Final = 5.0
"""Between asking a program to end and ending it."""
AGAIN_S: Final = 30.0
"""Behind a save, in which Ctrl-C ends the program: one that comes later means something else."""
TICK_S: Final = 1.0
_LINE_BYTES: Final = 4096
TIMED_OUT: Final = 124
"""As timeout(1) has it."""


@dataclass(frozen=True)
class Ending:
    """How a program ended: its exit code as a shell counts it, and why where it was no exit of its own."""

    code: int
    why: str | None = None


@dataclass(frozen=True)
class Watch:
    """What is done while the program runs: `tick(seconds)` about once a second; `heard()` for `signal`, which is then
    not handed on; `save(why)` before the program is stopped, and says whether a launch that had not ended was saved."""

    tick: Callable[[float], None] | None = None
    signal: signal.Signals | None = None
    heard: Callable[[], None] = lambda: None
    save: Callable[[str], bool] = lambda _: False


def command_line(arguments: list[str], *, module: bool = False) -> list[str]:
    """What to run: a Python file or, with `module`, a module by this interpreter; anything else as it stands."""
    if not arguments:
        raise UsageError("nothing to run: name a program, a .py file, or -m and a module")
    if module:
        return [sys.executable, "-m", *arguments]
    if arguments[0].endswith(".py") and Path(arguments[0]).is_file():
        return [sys.executable, *arguments]
    return arguments


def environment(text: str | None) -> dict[str, str]:
    """This process's environment with the variable, and a sitecustomize for Python children in front of their path.

    None: as it is.
    """
    if text is None:
        return dict(os.environ)
    site = str(Path(__file__).parent / "site")
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, VARIABLE: text, "PYTHONPATH": site + (os.pathsep + before if before else "")}


def run(
    command: list[str],
    text: str | None,
    timeout_s: float | None = None,
    watch: Watch | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Ending:
    """Run `command` to its end; `text`: the variable's, None to leave it as it is; `more`: variables for it.

    Raises UsageError where it cannot be started.
    """
    watch = watch or Watch()
    with _patient(watch) as begun:
        try:
            child = _start(command, {**environment(text), **more})
        except OSError as error:
            why = error.strerror or error
            if error.errno == errno.ENOENT and os.sep in command[0] and Path(command[0]).exists():
                why = "what its first line names, or its loader, is not there"
            raise UsageError(f"cannot run {command[0]}: {why}") from error
        begun(child)
        try:
            code = _wait(child, timeout_s, watch)
        except subprocess.TimeoutExpired:
            watch.save("the program had not ended by the time-out")
            _end(child)
            return Ending(TIMED_OUT, f"it was stopped after {timeout_s:g} s (--timeout)")
    if code < 0:
        return Ending(128 - code, f"it was ended by {_name(-code)}")
    return Ending(code)


def _start(command: list[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """As execvp and shells do, a script without a `#!` line is run by sh."""
    try:
        return subprocess.Popen(command, env=variables, close_fds=False)
    except OSError as error:
        script = shutil.which(command[0])
        if error.errno != errno.ENOEXEC or script is None:
            raise
        with Path(script).open("rb") as stream:
            if b"\0" in stream.readline(_LINE_BYTES):  # a program of another machine
                raise
        return subprocess.Popen(["/bin/sh", script, *command[1:]], env=variables, close_fds=False)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        _wait_for(child, GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _end_meanwhile(child: subprocess.Popen[bytes]) -> None:
    """As `_end`, and waits for nothing."""
    child.send_signal(signal.SIGTERM)
    killing = threading.Timer(GRACE_S, child.kill)
    killing.daemon = True  # `record` ends when the program has
    killing.start()


def _wait(child: subprocess.Popen[bytes], timeout_s: float | None, watch: Watch) -> int:
    if watch.tick is None and timeout_s is None:
        return child.wait()
    begin_s = time.monotonic()
    while True:
        left_s = math.inf if timeout_s is None else begin_s + timeout_s - time.monotonic()
        if left_s <= 0:
            raise subprocess.TimeoutExpired(child.args, timeout_s or 0)
        try:
            return _wait_for(child, min(left_s, TICK_S))
        except subprocess.TimeoutExpired:
            if watch.tick is not None:
                watch.tick(time.monotonic() - begin_s)


def _wait_for(child: subprocess.Popen[bytes], seconds: float) -> int:
    """As `Popen.wait`, which asks at intervals of up to 50 ms: where the system can tell, returns when it has ended."""
    try:
        end = os.pidfd_open(child.pid)
    except (AttributeError, OSError):  # no Linux, or one before 5.3; or it has been waited for
        return child.wait(seconds)
    try:
        ended = select.poll()
        ended.register(end, select.POLLIN)
        ended.poll(math.ceil(1000 * seconds))
    finally:
        os.close(end)
    return child.wait(0)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _in_foreground() -> bool:
    """Whether the terminal's keys send signals to this process's group; False without a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _patient(watch: Watch) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Yields what is to be called with the program once it runs.

    Keys (Ctrl-C) reach the program by itself, being in the terminal's group too; other signals are handed on to it.

    Outside of that group SIGINT was sent, and is handed on: a sender to the whole group has the program hear it twice.
    One that is ignored, as by nohup, stays so, here and in the program, which inherits that.

    Before SIGTERM is handed on, and at Ctrl-C, what a kernel that hangs has recorded is saved. Where a program is still
    there at the second Ctrl-C soon after that, it waits for such a kernel, hears nothing, and is ended.
    """
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that came before it was known which process is to have them
    saved_s = -math.inf

    def save(number: int) -> None:
        nonlocal saved_s
        if running and running[0].poll() is None:
            saved = watch.save(f"{'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'} came while it ran")
            saved_s = time.monotonic() if saved else -math.inf

    def begun(child: subprocess.Popen[bytes]) -> None:
        running.append(child)
        while early:
            hand_on(early.pop(0), None)

    def hand_on(number: int, _frame: Any) -> None:
        if not running:
            early.append(number)
        for child in running:
            if child.poll() is None:
                child.send_signal(number)

    def from_keys(number: int, frame: Any) -> None:
        """A handler and not SIG_IGN, which the program would inherit."""
        if number == signal.SIGINT and time.monotonic() < saved_s + AGAIN_S:
            for child in running:
                _end_meanwhile(child)
            return
        if number == signal.SIGINT:
            save(number)
        if not _in_foreground():
            hand_on(number, frame)

    def terminate(number: int, frame: Any) -> None:
        save(number)
        hand_on(number, frame)

    others = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    handlers = {signal.SIGINT: from_keys, signal.SIGQUIT: from_keys, **dict.fromkeys(others, hand_on)}
    handlers[signal.SIGTERM] = terminate
    if watch.signal is not None:
        handlers[watch.signal] = lambda *_: watch.heard()
    heard = [number for number in handlers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, handlers[number]) for number in heard}
    try:
        yield begun
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
