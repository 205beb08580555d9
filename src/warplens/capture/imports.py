"""Has something done when the program imports a module, if it ever does.

In: the module's name. Out: what forgets the wish. Imports nothing for it, and finds no module itself.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any


class _Watch:
    """A finder that finds nothing, and hears of what is imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        """Of the module that is waited for: its own, which calls `then` behind it."""
        if name != self._name or path is not None:
            return None
        self.forget()
        spec = importlib.util.find_spec(name)
        loader: Any = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def and_then(module: Any) -> None:
            execute(module)
            self._then()

        loader.exec_module = and_then
        return spec

    def forget(self) -> None:
        """Hear no more."""
        sys.meta_path[:] = [own for own in sys.meta_path if own is not self]


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call `then` behind the import of the top-level module `name`, at once where it is there.

    Gives what forgets the wish.
    """
    if name in sys.modules:
        then()
        return lambda: None
    watch = _Watch(name, then)
    sys.meta_path.insert(0, watch)
    return watch.forget
