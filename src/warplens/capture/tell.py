"""What the user is told from within a program of their own.

In: a line. Out: the line on the program's stderr. Raises nothing: a program may have closed it, or filled its disk.
"""

from __future__ import annotations

import contextlib
import sys


def one_line(error: Exception) -> str:
    """An error's first line, or its class."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def tell(line: str) -> None:
    """Say one line."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none; it is full; it is closed
        sys.stderr.write(f"warplens: {line}\n")
