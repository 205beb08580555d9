"""`--nvtx-include`: the small library that tells which NVTX ranges are open, compiled for one run.

In: the folder of the run, a C++ compiler. Out: the library, and the variable by which NVTX finds it; within a process,
whether a range is open. The wheel holds no machine code, hence the compiler.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from warplens.errors import MissingDependencyError, UsageError

VARIABLE: Final = "NVTX_INJECTION64_PATH"
_SOURCE: Final = Path(__file__).parents[1] / "include" / "warplens" / "detail" / "nvtx_ranges.cpp"
_COMPILERS: Final = ("g++", "c++", "clang++")


def build(folder: Path) -> dict[str, str]:
    """Compile the library into `folder`; the variables that have NVTX load it.

    Raises UsageError where another tool listens to NVTX, MissingDependencyError without a compiler.
    """
    taken = os.environ.get(VARIABLE)
    if taken:
        raise UsageError(f"{VARIABLE} is set to {taken}: another tool listens to NVTX here; run without it")
    found = (shutil.which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name)
    compiler = next((path for path in found if path), None)
    if compiler is None:
        raise MissingDependencyError("--nvtx-include wants a C++ compiler, and none is found: apt install g++")
    library = folder / "nvtx_ranges.so"
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
        raise MissingDependencyError(f"{compiler} does not compile {_SOURCE.name} (--nvtx-include): {said}")
    return {VARIABLE: str(library)}


def range_question() -> Callable[[], int]:
    """What tells whether the calling thread is within a range; always not, where the library is not there."""
    try:
        question: Callable[[], int] = ctypes.CDLL(os.environ.get(VARIABLE, "")).warplens_in_range
    except (OSError, AttributeError):
        return lambda: 0
    return question
