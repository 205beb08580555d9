"""Has something done when the program imports a module, if it ever does.

In: the module's name. Out: what forgets the wish. Imports nothing for it, and finds no module itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any


class _Watch:
    """A finder that finds nothing, and hears of what is imported.

    Programs ask whether a module is there, by `importlib.util.find_spec`, long before they import it or without ever
    doing so: what is waited for is that its code has run. Asks the finders behind it alone, so that two of these do
    not ask each other. site/sitecustomize.py has the same, for it may import nothing.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Of the module that is waited for: its own, which calls `then` behind it."""
        if name != self._name or (path is None) is ("." in name) or self not in sys.meta_path:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            loader: Any = _Loader(spec.loader, self)
            spec.loader = loader
        return spec

    def ran(self) -> None:
        """The module's code has run."""
        if self in sys.meta_path:
            self.forget()
            self._then()

    def forget(self) -> None:
        """Hear no more."""
        sys.meta_path[:] = [own for own in sys.meta_path if own is not self]


class _Loader:
    """A module's own loader, which it has again when its code runs. Loaders may be shared, and take no attributes."""

    def __init__(self, own: Any, watch: _Watch) -> None:
        self._own, self._watch = own, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("_own"), name)  # a copy has none yet

    def exec_module(self, module: Any) -> None:
        """Run the module's code, and say so."""
        module.__loader__ = module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._watch.ran()


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call `then` behind the import of the module `name`, at once where it is there.

    Gives what forgets the wish.
    """
    if name in sys.modules:
        then()
        return lambda: None
    watch = _Watch(name, then)
    sys.meta_path.insert(0, watch)
    return watch.forget
