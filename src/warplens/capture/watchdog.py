"""A thread that saves what a kernel has recorded while the main thread waits for the GPU and cannot.

In: a function that saves, signals, a time-out, requests. Out: calls of that function, and then the end of a process
that nothing else can end. Makes no call to the driver itself, and neither may what it calls.

Python runs a signal's handler in the main thread, between two of its own instructions: never, while that thread sits in
cudaDeviceSynchronize. But the C part of a handler runs at once, and writes the signal's number to a descriptor
(signal.set_wakeup_fd) on which the thread waits.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

TIMED_OUT: Final = 124
"""Exit code after the time-out, as that of timeout(1)."""
SIGNALLED: Final = 128
"""Exit code after signal n, less n, as shells count it."""
_PROMPT_S: Final = 0.05
"""A main thread that does not wait for the GPU runs its handler sooner."""
_LEAVE: Final = 0  # bytes on the descriptor that are no signal's number
_HANDLED: Final = 128  # and a signal's number: the main thread has run its handler
_REQUEST: Final = 255


@dataclass
class _Pending:
    """A signal that the main thread does not answer, and when to act."""

    at_s: float
    is_saved: bool = False


def _why(number: int) -> str:
    name = signal.Signals(number).name
    return f"{'Ctrl-C' if name == 'SIGINT' else name} came while it ran"


class Watchdog:
    """Saves on a signal, after `timeout_s`, and on request, from a thread of its own; to be entered and left.

    save: called with why, as the end of "the kernel was stopped: ...", and for how many seconds the watchdog has run.
    It must make no CUDA call: it reads host memory (`Arena.look`) and writes a file.
    signals: each is saved for. Where the main thread runs Python the program then goes on as it would have; where it
    has not moved `grace_s` later it waits for the GPU, and the process ends with the exit code 128 + the signal's
    number. After the time-out the process ends with 124.
    end: called with that code; `os._exit` runs no handler that could wait for the GPU.

    Signals need the main thread; elsewhere, give none.
    """

    def __init__(
        self,
        save: Callable[[str, float], object],
        *,
        timeout_s: float | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
        grace_s: float = 2.0,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._save, self._timeout_s, self._grace_s, self._end = save, timeout_s, grace_s, end
        self._signals = tuple(signals)
        self._previous: dict[int, Any] = {}
        self._pending: dict[int, _Pending] = {}  # signals whose handler the main thread has not run yet
        self._requests: list[tuple[str, threading.Event]] = []
        self._thread = threading.Thread(target=self._run, name="warplens-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._outer, self._inner = socket.socketpair()
        self._outer.setblocking(False)
        self._begun_s = time.monotonic()
        self._old_descriptor = -1
        if self._signals:
            self._old_descriptor = signal.set_wakeup_fd(self._outer.fileno(), warn_on_full_buffer=False)
            self._previous = {number: signal.signal(number, self._handle) for number in self._signals}
        _active.add(self)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def request(self, why: str) -> None:
        """Save now, and return when that is done."""
        done = threading.Event()
        self._requests.append((why, done))
        self._tell(_REQUEST)
        done.wait()

    def close(self) -> None:
        """End the thread, when it has saved what it was asked to, and give the signals back."""
        if self not in _active:
            return
        self._forget()
        self._tell(_LEAVE)
        self._thread.join()
        self._outer.close()
        self._inner.close()

    def _forget(self) -> None:
        """Give the signals back. All that a forked child has to do, in which the thread does not exist."""
        _active.discard(self)
        for number, handler in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._previous:
            signal.set_wakeup_fd(self._old_descriptor)
        self._previous = {}

    def _handle(self, number: int, frame: Any) -> None:
        """In the main thread, which therefore does not wait for the GPU: save, then what would have been done."""
        self._tell(_HANDLED + number)
        self.request(_why(number))
        previous = self._previous.get(number)
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _tell(self, byte: int) -> None:
        with contextlib.suppress(OSError):
            self._outer.send(bytes([byte]))

    def _run(self) -> None:
        while True:
            now_s = time.monotonic()
            times_s = [pending.at_s for pending in self._pending.values()]
            if self._timeout_s is not None:
                times_s.append(self._begun_s + self._timeout_s)
            ready, _, _ = select.select([self._inner], [], [], max(min(times_s) - now_s, 0.0) if times_s else None)
            for byte in self._inner.recv(4096) if ready else b"":
                if byte == _LEAVE:
                    return
                self._take(byte)
            self._do_what_is_due()

    def _take(self, byte: int) -> None:
        if byte == _REQUEST:
            why, done = self._requests.pop(0)
            self._try_to_save(why)
            done.set()
        elif byte > _HANDLED:
            self._pending.pop(byte - _HANDLED, None)
        else:
            if self._old_descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._old_descriptor, bytes([byte]))
            if byte in self._signals:
                self._pending.setdefault(byte, _Pending(time.monotonic() + _PROMPT_S))

    def _do_what_is_due(self) -> None:
        now_s = time.monotonic()
        for number, pending in list(self._pending.items()):
            if now_s < pending.at_s:
                continue
            if pending.is_saved:
                del self._pending[number]
                self._end(SIGNALLED + number)
            else:  # the main thread has not moved: save for it, and give it some more time
                self._try_to_save(_why(number))
                self._pending[number] = _Pending(now_s + self._grace_s, is_saved=True)
        if self._timeout_s is not None and now_s >= self._begun_s + self._timeout_s:
            why, self._timeout_s = "the program had not ended by the time-out", None
            self._try_to_save(why)
            self._end(TIMED_OUT)

    def _try_to_save(self, why: str) -> None:
        """A failure to save must not keep the process from ending; the thread's hook prints it."""
        try:
            self._save(why, time.monotonic() - self._begun_s)
        except Exception as error:
            caught = type(error), error, error.__traceback__, threading.current_thread()
            threading.excepthook(threading.ExceptHookArgs(caught))


_active: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _forget_all() -> None:
    for watchdog in list(_active):
        watchdog._forget()


if hasattr(os, "register_at_fork"):  # a child's signals would be written to the parent's descriptor
    os.register_at_fork(after_in_child=_forget_all)
