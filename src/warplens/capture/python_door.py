"""What doors have in common that change functions of a package while recording.

In: a capture; functions that are to be changed. Out: the package as it was, and launches that the capture sees.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Self

from warplens.capture.patched import patched
from warplens.capture.python import Door, PythonCapture
from warplens.capture.python_builds import Kernel, Wanted
from warplens.capture.tell import one_line
from warplens.errors import KernelWarning

_active: dict[str, Door] = {}
"""By packages, which have one recording at a time."""


class PatchingDoor(Door):
    """A `Door` but for `start` and `loaded`. `package`: as its users name it."""

    package = ""
    warning: type[KernelWarning] = KernelWarning

    def __init__(self, capture: PythonCapture) -> None:
        self._capture = capture
        self._undo: list[Callable[[], object]] = []
        self._local = threading.local()

    @classmethod
    def active(cls) -> Self | None:
        """The one that sees the package now."""
        found = _active.get(cls.package)
        return found if isinstance(found, cls) else None

    def begin(self, why_not: str | None) -> bool:
        """Whether the package can be recorded from here on; if not, one line. why_not: what speaks against it."""
        if self.package in _active:
            why_not = (
                f"another recording of {self.package}'s kernels is under way in this process: this one records none"
            )
        if why_not is not None:
            self._tell(why_not)
            return False
        _active[self.package] = self
        self._undo.append(functools.partial(_active.pop, self.package, None))
        return True

    def put_back(self) -> None:
        """Leaves the package as it was. Modules that have marks keep them, and record nothing."""
        while self._undo:
            self._undo.pop()()

    @property
    def wanted(self) -> Wanted:
        """What the capture wants of a module."""
        return Wanted(self._capture.options.selection, self._capture.takes, self._tell, self._remark)

    def launches(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        stream: int,
        shared_bytes: int,
        *,
        cooperative: bool = False,
    ) -> bool:
        """A launch is about to be made; whether those that follow need not be told. grid, block: one to three numbers,
        where 0 is 1. Raises nothing."""
        try:
            wanted = self._capture.takes(kernel.name)
            if cooperative and wanted:
                self._tell(f"{kernel.name} is launched cooperatively: such launches are not recorded")
            wanted = wanted and not cooperative
            sizes = [tuple(max(1, int(size)) for size in (*own, 1, 1)[:3]) for own in (grid, block)]
            return self._capture.about_to_launch(self, kernel, sizes[0], stream, sizes[1], shared_bytes, wanted=wanted)
        except Exception as error:  # recording must not harm the program
            self._tell(f"a launch of {kernel.name} is not recorded: {one_line(error)}")
            return False

    def _tell(self, line: str) -> None:
        self._capture.tell(line, self.warning)

    def _remark(self, line: str) -> None:
        self._capture.remark(line, self.warning)

    def _patch(self, owner: Any, name: str, changed: Callable[..., Any]) -> None:
        """`changed` gets the original in front of its arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def calls(*arguments: Any, **named: Any) -> Any:
            if self._capture.left_to_parent():
                return getattr(owner, name)(*arguments, **named)
            return changed(original, *arguments, **named)

        self._undo.append(patched(owner, name, calls, self._remark))
