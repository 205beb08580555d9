"""Waiting for a kernel that may hang or crash, and what is kept of it then.

In: a question whether the GPU is done, a time-out; what a mapped arena shows. Out: why the kernel was stopped, and a
`Recording` that says so. Waits in Python alone: a signal is handled at once, and nothing waits for the GPU.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warplens.capture import driver
from warplens.capture.recording import Recording
from warplens.errors import DeviceError

FIRST_PAUSE_S: Final = 20e-6
LONGEST_PAUSE_S: Final = 5e-3
"""Between two questions to the driver: a sleep this long is not noticed beside a kernel that took as long."""


@dataclass(frozen=True)
class Stop:
    """Why a kernel was given up, as the end of "the kernel was stopped: ...", and how long it had run."""

    why: str
    after_s: float
    cause: BaseException | None = None


class _Terminated(BaseException):
    """SIGTERM came."""


def wait(
    is_done: Callable[[], bool], timeout_s: float | None, first: Callable[[], object] | None = None
) -> Stop | None:
    """Waits until `is_done`; None when it is, else why it never will be or was not waited for.

    `first` is called before; a kernel that has crashed by then makes it fail, which is then the kernel's failure.
    Ctrl-C, a crash (DeviceError) and the time-out end the wait; so does SIGTERM where nothing else handles it.
    """
    begun_s = time.monotonic()

    def stop(why: str, cause: BaseException | None = None) -> Stop:
        return Stop(why, time.monotonic() - begun_s, cause)

    try:
        with _sigterm_raises():
            failed = None
            try:
                if first is not None:
                    first()
            except DeviceError as error:  # of the crash, which `is_done` tells in fewer words, or its own
                failed = error
            pause_s = FIRST_PAUSE_S
            while not is_done():
                if timeout_s is not None and time.monotonic() - begun_s >= timeout_s:
                    return stop("it had not ended by the time-out")
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    except KeyboardInterrupt as error:
        return stop("Ctrl-C came while it ran", error)
    except _Terminated as error:
        return stop("SIGTERM came while it ran", error)
    except DeviceError as error:
        return stop(f"it crashed: {error}", error)
    if failed is not None:
        raise failed
    return None


def wait_for_stream(
    name: str, stream: int, timeout_s: float | None, first: Callable[[], object] | None = None
) -> Stop | None:
    """As `wait`, for the kernel `name` and all else in `stream`; where it does not end the driver is given up."""
    why = f"{name} was stopped"

    def has_recovered() -> bool:
        try:
            return driver.is_done(stream)
        except DeviceError:
            return False

    try:
        stop = wait(lambda: driver.is_done(stream), timeout_s, first)
    except BaseException:  # the program's own, out of a signal's handler
        driver.give_up(why, has_recovered)
        raise
    if stop is not None:
        driver.give_up(why, has_recovered)
    return stop


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `_Terminated` in the main thread, where it would end the process without a word."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def terminate(*_: Any) -> None:
        raise _Terminated

    if not ours:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def last_places(last: NDArray[np.uint32]) -> list[list[int]]:
    """The manifest's `stopped.last` from an arena's table: block, warp, sequence and record of each warp's last event.

    A warp that moved has two entries; the later one counts. An entry that was being written is one of either state.
    """
    newest: dict[tuple[int, int], list[int]] = {}
    for block, warp, sequence, record in last.tolist():
        held = newest.get((block - 1, warp))
        if held is None or held[2] < sequence:
            newest[block - 1, warp] = [block - 1, warp, sequence, record]
    return [newest[key] for key in sorted(newest)]


def mark_stopped(recording: Recording, stop: Stop, last: NDArray[np.uint32]) -> Recording:
    """The recording of a kernel that was stopped: `recording`, whose last launch is the one that did not end.

    `last`: as `Arena.look` gives it. Makes no call to the driver, and may run in any thread.
    """
    entry = {"why": stop.why, "after_s": round(stop.after_s, 6), "last": last_places(last)}
    return Recording({**recording.manifest, "complete": False, "stopped": entry}, recording.records, recording.sources)
