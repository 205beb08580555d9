"""The packages whose kernels are recorded in a Python process, by the names that they are imported by.

In: nothing. Out: the doors, for whoever waits until a program imports a package. Each is imported when it is opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from warplens.capture.python import Door, PythonCapture


def _open(module: str, door: str, capture: PythonCapture) -> Door:
    made: Any = getattr(importlib.import_module(f"warplens.capture.{module}"), door)
    opened: Door = made(capture)
    return opened


DOORS: Final[dict[str, Callable[[PythonCapture], Door]]] = {
    "triton": partial(_open, "triton", "TritonDoor"),
    "cupy": partial(_open, "cupy", "CupyDoor"),
    "numba.cuda": partial(_open, "numba", "NumbaDoor"),
}
