"""Facts of a manifest that no schema bounds (device, clock state), read so that any JSON is safe to use.

In: a value from anywhere in a manifest. Out: it, or "not known" (None, or nothing in it) where its type is another.
"""

from __future__ import annotations

from math import isfinite
from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    """An object; empty for anything else."""
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[Any] | None:
    """A list; None for anything else."""
    return value if isinstance(value, list) else None


def number(value: Any) -> float | None:
    """A finite number that a float holds; None for anything else, among them true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if isfinite(value) else None
    except OverflowError:  # an int beyond all floats
        return None
