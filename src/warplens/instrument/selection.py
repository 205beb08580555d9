"""Which marks are asked for.

In: what a user says. Out: a checked `Selection`. Reads no PTX and imports nothing that does: `warplens record` checks
its options by it before the program starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from warplens.errors import UsageError
from warplens.instrument.thin import Budget

LEVELS: Final = ("off", "coarse", "waits", "all")
"""With "off" there are the marks that stand in the source alone, which all levels have."""
KINDS: Final = ("phase", "wait", "arrive", "mark")
ALSO: Final = ("loads", "stores", "atomics", "loops", "lines")
"""Marks that no level has (asked.py)."""


@dataclass(frozen=True)
class Selection:
    """What is marked. `level`: one of LEVELS. `sites`: regular expression that a site's name must hold. `kinds`: None
    for all of them. `also`: some of ALSO, which no level has. `budget`: how many events that may make, None for as
    many as there are.

    Raises UsageError for what cannot be meant.
    """

    level: str = "waits"
    sites: str | None = None
    kinds: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UsageError(f"level {self.level!r}: expected one of {', '.join(LEVELS)}")
        if unknown := sorted(set(self.also) - set(ALSO)):
            raise UsageError(f"also {unknown[0]!r}: expected some of {', '.join(ALSO)}")
        odd = set(self.kinds or ()) - set(KINDS)
        if odd:
            raise UsageError(f"kind {sorted(odd)[0]!r}: expected some of {', '.join(KINDS)}")
        try:
            re.compile(self.sites or "")
        except re.error as error:
            raise UsageError(f"{self.sites!r} is no regular expression: {error}") from error

    def takes(self, name: str, kind: str) -> bool:
        """Whether a site of this name and kind is marked."""
        return (self.kinds is None or kind in self.kinds) and re.search(self.sites or "", name) is not None

    def fewer(self) -> Iterator[tuple[str, Selection]]:
        """What is left of it, step by step, where it is too much for a kernel; each with its name."""
        if self.also:
            yield f"its marks without {', '.join(self.also)}", replace(self, also=())
        if self.level == "all":
            yield "marks at its waits", replace(self, level="waits", also=())
        if self.level in ("all", "waits"):
            yield "marks outside of loops", replace(self, level="coarse", also=())
        yield "begin and end", Selection("off", kinds=())
