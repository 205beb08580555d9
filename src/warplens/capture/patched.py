"""An attribute of somebody else's, changed for a while.

In: the object, the attribute's name and new value. Out: what puts it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patched(owner: Any, name: str, value: Any, tell: Callable[[str], None]) -> Callable[[], None]:
    """Sets an attribute; gives what puts it back, or leaves it alone and tells when somebody else has set it since."""
    before = getattr(owner, name)

    def undo() -> None:
        now = getattr(owner, name)
        if now is value or now == value:
            setattr(owner, name, before)
        else:
            tell(f"{name} was set by somebody else meanwhile, and stays as it is")

    setattr(owner, name, value)
    return undo
