"""What is done when a process ends, also one that multiprocessing forked, and how it waits for its last launch then.

In: a function. Out: nothing; it is called once, in this process alone.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from warplens.capture.tell import tell

LONGEST_S: Final = 30.0
"""That a program's end waits for its last launch. host_session.hpp waits as long."""
_SILENT_S: Final = 2.0


def at_end(then: Callable[[], None]) -> None:
    """Call `then` when the interpreter ends, or when multiprocessing ends a worker, which skips `atexit`."""
    pid, done = os.getpid(), False

    def once() -> None:
        nonlocal done
        if not done and os.getpid() == pid:  # a child of fork inherits this, and it is not about it
            done = True
            then()

    atexit.register(once)
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, once, exitpriority=100)


def wait_at_end(is_done: Callable[[], bool], what: str, longest_s: float = LONGEST_S) -> str | None:
    """Waits for the launches of a program that has ended; None when they have, too, else why that was given up.

    After 2 s a line says so. Ctrl-C ends the wait. What the program would have done without `record` is not to wait:
    the driver then stops its kernels, and their records would be gone.
    """
    begun_s = time.monotonic()
    silent = True
    try:
        while not is_done():
            waited_s = time.monotonic() - begun_s
            if waited_s >= longest_s:
                return f"the program had ended, and it had not {longest_s:g} s later"
            if silent and waited_s >= _SILENT_S:
                silent = False
                text = f"waits for {what} for {longest_s:g} s at most: Ctrl-C goes on without"
                tell(f"this process ({os.getpid()}) has ended, and {text}")
            time.sleep(min(0.05, max(waited_s / 10, 1e-3)))
    except KeyboardInterrupt:
        return "Ctrl-C came behind the program's end"
    return None
