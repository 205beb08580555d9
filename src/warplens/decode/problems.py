"""Problems: doubt about records as data, one row each or one row a kind when there are many.

In: places (launch, block, warp, sequence) with counts, from every stage of the decoder. Out: `Problem` rows.
Must not raise about the content of records, and must not make a row per event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Severity = Literal["loss", "error", "note"]

ROWS_PER_KIND: Final = 16
"""A launch shows at most this many places of one kind; beyond, one row sums them up and names the first."""

_SEQUENCES: Final = 0xFFFFFFFF


@dataclass(frozen=True)
class Problem:
    """One row of the table `problems`: what is in doubt, where, how many records or warps, and how bad it is."""

    kind: str
    count: int
    severity: Severity
    text: str
    launch: int | None = None
    block: int | None = None
    warp: int | None = None
    sequence: int | None = None


class Problems:
    """Collects places per (launch, kind, severity, text) and turns them into rows."""

    def __init__(self) -> None:
        self._rows: list[Problem] = []
        self._places: dict[tuple[int, str, Severity, str], list[npt.NDArray[np.int64]]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows or self._places)

    def add(self, problem: Problem) -> None:
        """Adds one row as it is."""
        self._rows.append(problem)

    def places(
        self,
        kind: str,
        severity: Severity,
        text: str,
        *,
        launch: npt.NDArray[Any],
        block: npt.NDArray[Any],
        warp: npt.NDArray[Any],
        sequence: npt.NDArray[Any] | None = None,
        count: npt.NDArray[Any] | None = None,
    ) -> None:
        """Adds places, columns of equal length; `sequence` and `count` default to none and to 1 each."""
        if len(launch) == 0:
            return
        size = len(launch)
        if sequence is not None:
            sequence = sequence.astype(np.int64) & _SEQUENCES  # damage can number beyond
        columns = [
            block.astype(np.int64),
            warp.astype(np.int64),
            np.full(size, -1, np.int64) if sequence is None else sequence,
            np.ones(size, np.int64) if count is None else count.astype(np.int64),
        ]
        table = np.stack(columns, axis=1)
        for index in np.unique(launch).tolist():
            self._places.setdefault((index, kind, severity, text), []).append(table[launch == index])

    def extend(self, other: Problems) -> None:
        """Adds all that another collector holds, after what is here."""
        self._rows += other._rows
        for key, tables in other._places.items():
            self._places.setdefault(key, []).extend(tables)

    def rows(self) -> list[Problem]:
        """All rows, losses first, then errors, then notes; in each by launch and kind."""
        out = list(self._rows)
        for (launch, kind, severity, text), tables in self._places.items():
            table = np.concatenate(tables)
            table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]  # block, warp, sequence
            out.extend(_rows_of(launch, kind, severity, text, table))
        order = {"loss": 0, "error": 1, "note": 2}
        return sorted(out, key=lambda p: (order[p.severity], -1 if p.launch is None else p.launch, p.kind))


def _rows_of(launch: int, kind: str, severity: Severity, text: str, table: npt.NDArray[np.int64]) -> Iterable[Problem]:
    if len(table) <= ROWS_PER_KIND:
        for block, warp, sequence, count in table.tolist():
            at = None if sequence < 0 else sequence
            yield Problem(kind, count, severity, text, launch, block, warp, at)
        return
    block, warp, sequence, _ = table[0].tolist()
    at_sequence = "" if sequence < 0 else f" at record {sequence}"
    where = f"{len(table)} places, the first in block {block} warp {warp}{at_sequence}"
    yield Problem(kind, int(table[:, 3].sum()), severity, f"{text} ({where})", launch)
