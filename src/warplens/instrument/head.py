"""What stands at the head of a PTX module and of its kernels: the GPU, sizes of blocks and clusters.

In: PTX without comments (`read.without_comments`). Out: names and numbers.
"""

from __future__ import annotations

import re
from typing import Final

from warplens.instrument.read import integer

_TARGET: Final = re.compile(r"\.target\s+(sm_(\d{1,4})\w*)")


def target(plain: str) -> tuple[str, int] | None:
    """The GPU that a module is for, as `sm_90a` and 90; None for a text that names none."""
    found = _TARGET.search(plain)
    return (found[1], int(found[2])) if found else None


def head_of(plain: str, kernel: str) -> str:
    """The parameters and directives of a kernel; "" where there is none of this name."""
    found = re.search(rf"\.entry\s+{re.escape(kernel)}(?![\w$])[^{{;]*", plain)
    return found[0] if found else ""


def sizes(head: str, directive: str) -> tuple[int, int, int] | None:
    """What stands behind `.reqntid`, `.maxntid` or `.reqnctapercluster`, in x, y and z; None where it does not stand
    there, or with something that is no number."""
    found = re.search(rf"\.{directive}\s+(\w+)(?:\s*,\s*(\w+))?(?:\s*,\s*(\w+))?", head)
    if found is None:
        return None
    x, y, z = (1 if own is None else integer(own) for own in found.groups())
    return None if x is None or y is None or z is None else (x, y, z)
