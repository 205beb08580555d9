"""Braces within a function, and which places are outside of them.

In: a `Flow`. Out: places in the text. Labels within braces cannot be seen from outside, so marks stand outside.
"""

from __future__ import annotations

from typing import Final

from warplens.errors import PtxError
from warplens.instrument.flow import Flow
from warplens.instrument.read import CLOSE, LABEL, OPEN, STATEMENT

DECLARES: Final = (".reg", ".local", ".shared", ".param", ".pragma", ".branchtargets", ".global", ".const")


class Scopes:
    """Braces within a function: labels in them cannot be seen from outside, so marks stand outside where they can."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._open: dict[int, list[int]] = {}
        self._closed: dict[int, int] = {}
        stack: list[int] = []
        for index in range(flow.function.first, flow.function.last):
            kind = flow.module.statements[index].kind
            if kind == OPEN:
                stack.append(index)
            elif kind == CLOSE and stack:
                self._closed[stack.pop()] = index
            if stack:
                self._open[index] = list(stack)

    def depth(self, statement: int) -> int:
        """Braces round a statement."""
        return len(self._open.get(statement, ()))

    def outside(self, statement: int, behind: bool) -> int:
        """The place in front of or behind a statement, out of all braces round it.

        Raises PtxError where a brace holds more on that side: labels in it could not be reached from outside.
        """
        module = self._flow.module
        for brace in reversed(self._open.get(statement, [])):
            edge = self._closed[brace] if behind else brace
            between = range(statement + 1, edge) if behind else range(brace + 1, statement)
            if any(self._counts(index) for index in between):
                where = f"line {module.text.count(chr(10), 0, module.statements[statement].start) + 1}"
                raise PtxError(f"{where}: a mark would stand among other instructions within braces")
            statement = edge
        _, start, end = module.statements[statement]
        return end if behind else start

    def is_outside(self, statement: int, behind: bool) -> bool:
        """Whether `outside` has such a place."""
        try:
            self.outside(statement, behind)
        except PtxError:
            return False
        return True

    def _counts(self, index: int) -> bool:
        """Whether a statement between a mark and a brace would be on the wrong side of the mark."""
        module = self._flow.module
        kind = module.statements[index].kind
        if kind == STATEMENT:
            return not module.source(index).startswith(DECLARES)
        return kind == LABEL
