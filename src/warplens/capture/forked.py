"""Which process this is, without asking the system: that takes up to a microsecond, and launches ask at each.

In: nothing. Out: its number; a call in each child that is forked. A child that C code forks, and that tells Python
nothing of it (`PyOS_AfterFork_Child`), is taken for its parent.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_number = os.getpid()
_then: list[Callable[[], None]] = []


def process() -> int:
    """As os.getpid."""
    return _number


def in_children(then: Callable[[], None]) -> Callable[[], None]:
    """Calls `then` in children that are forked from now on, and in theirs; gives what ends that."""
    _then.append(then)

    def undo() -> None:
        if then in _then:
            _then.remove(then)

    return undo


def _begin() -> None:
    global _number
    _number = os.getpid()
    for then in list(_then):
        then()


os.register_at_fork(after_in_child=_begin)
