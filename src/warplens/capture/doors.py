"""The packages whose kernels are recorded in a Python process, by the names that they are imported by.

In: nothing. Out: the doors, for whoever waits until a program imports a package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warplens.capture.cupy import CupyDoor
from warplens.capture.numba import NumbaDoor
from warplens.capture.python import Door, PythonCapture
from warplens.capture.triton import TritonDoor

DOORS: Final[dict[str, Callable[[PythonCapture], Door]]] = {
    "triton": TritonDoor,
    "cupy": CupyDoor,
    "numba.cuda": NumbaDoor,
}
