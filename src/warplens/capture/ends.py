"""What is done when a process ends, also one that multiprocessing forked.

In: a function. Out: nothing; it is called once, in this process alone.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any


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
