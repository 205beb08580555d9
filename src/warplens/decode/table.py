"""The spans table, put together from groups of warps and from single runs, each at the rows of its chunks.

In: how many spans each chunk gives, then the spans themselves in any order. Out: one `Spans` in the order of the
chunks. Memory is taken once and written once: fresh pages cost as much as decoding into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from warplens.decode.chunks import I64
from warplens.decode.events import Words
from warplens.decode.spans import Loose, Run, Spans


@dataclass
class PerChunk:
    """Columns over all chunks: spans and events of each, its first and last time, and the row of its first span."""

    spans: I64
    first_row: I64
    events: I64
    first_ns: I64
    last_ns: I64


def per_chunk(size: int, counts: Sequence[tuple[I64, I64]]) -> PerChunk:
    """Columns for `size` chunks; `counts` are pairs (chunks, spans of each), which broadcast."""
    spans, events, first_ns, last_ns = (np.zeros(size, np.int64) for _ in range(4))
    for chunks, count in counts:
        spans[chunks] = count
    return PerChunk(spans, np.cumsum(spans) - spans, events, first_ns, last_ns)


_DTYPES: Final = {
    **dict.fromkeys(("start_ns", "start_cycles", "duration_cycles", "duration_ns"), np.int64),
    **dict.fromkeys(("launch", "block", "sequence"), np.uint32),
    **dict.fromkeys(("site", "flags"), np.uint16),
    **dict.fromkeys(("warp", "depth"), np.uint8),
}


def new_spans(size: int, *, payload: bool, id: bool) -> Spans:  # noqa: A002
    """A table of `size` rows to be written; ids and payloads are absent until they are written.

    All columns lie in one piece of memory, which the system then maps in pages of 2 MB (measured: 30 ms less per
    10^6 spans than in pages of 4 kB).
    """
    memory = np.empty(size * sum(np.dtype(dtype).itemsize for dtype in _DTYPES.values()), np.uint8)
    columns: dict[str, Any] = {}
    used = 0
    for name, dtype in _DTYPES.items():  # wide ones first: each stays aligned
        end = used + size * np.dtype(dtype).itemsize
        columns[name] = memory[used:end].view(dtype)
        used = end
    for name, wanted in (("payload", payload), ("id", id)):
        columns[name] = Words(np.zeros(size, np.uint32), np.zeros(size, np.bool_)) if wanted else None
    return Spans(**columns)


def place(run: Run, chunks: I64, per: PerChunk, out: Spans) -> None:
    """Copies a run's columns to where its chunks (indices) stand, and makes its loose ends name the whole tables."""
    for name in ("events", "first_ns", "last_ns"):
        getattr(per, name)[chunks] = getattr(run, name)
    row = _places(per.first_row[chunks], per.spans[chunks])
    at: Any = row
    if len(row) and int(row[-1]) - int(row[0]) + 1 == len(row):
        at = slice(int(row[0]), int(row[-1]) + 1)
    for f in fields(Spans):
        piece, into = getattr(run.spans, f.name), getattr(out, f.name)
        if isinstance(into, Words):
            if piece is not None:
                into.values[at], into.valid[at] = piece.values, piece.valid
        elif into is not None:
            into[at] = piece
    if run.loose is not None:
        run.loose.chunk = chunks[run.loose.chunk]
        run.loose.row = np.where(run.loose.row < 0, -1, np.append(row, -1)[run.loose.row])
        run.loose.range_row = row[run.loose.range_row]


def all_loose(runs: Sequence[Run]) -> Loose | None:
    """Loose starts and ends of all placed runs."""
    parts = [run.loose for run in runs if run.loose is not None]
    if not parts:
        return None
    return Loose(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Loose)})


def _places(first: I64, count: I64) -> I64:
    """first[0], first[0] + 1 ... (count[0] of them), first[1], ..."""
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
