"""Whether there is a driver to record with.

In: nothing. Out: yes or no. Starts no CUDA and imports nothing slow: it is asked where nothing was recorded.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

LIBRARY: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NO_DRIVER: Final = f"no NVIDIA driver on this machine ({LIBRARY} cannot be loaded)"


def has_driver() -> bool:
    """Whether the library of CUDA's driver can be loaded."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
