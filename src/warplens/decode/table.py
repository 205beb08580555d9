"""The spans table, put together from groups of warps and from single runs, each at the rows of its chunks.

In: how many spans each chunk gives, then the spans themselves as groups and runs. Out: `SpanTable`, whose columns
stand in the order of the chunks. Decoding finds what is what and how long ago; a column of the table is written when
it is first asked for, for the memory to hold it costs more than to decode it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from warplens.decode.arrays import I64
from warplens.decode.chunks import Chunks
from warplens.decode.events import Words
from warplens.decode.spans import Axis, Loose, Run, SpanColumns

_THREADS: Final = 2
"""numpy lets go of the interpreter's lock in nearly all that is done here; more gains little (memory)."""
_FEW_SPANS: Final = 1 << 15
"""Their times are written sooner than a thread is started."""
T = TypeVar("T")
U = TypeVar("U")


def in_threads(do: Callable[[T], U], items: Sequence[T], *, few: bool = False) -> Iterator[U]:
    """`do` of each item, in their order. `few`: threads would not pay."""
    if few or len(items) < 2:
        yield from map(do, items)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(do, items)


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
    spans, events, first_ns, last_ns = np.zeros((4, size), np.int64)
    for chunks, count in counts:
        if chunks.size == size:  # all, in order
            spans.reshape(chunks.shape)[:] = count
        else:
            spans[chunks] = count
    return PerChunk(spans, np.cumsum(spans) - spans, events, first_ns, last_ns)


_OF_CHUNK: Final = ("launch", "block", "warp")
_OF_SHAPE: Final = ("sequence", "site", "depth", "flags")
_CYCLES: Final = ("start_cycles", "duration_cycles")
_NS: Final = ("start_ns", "duration_ns")
_DTYPES: Final[dict[str, Any]] = {
    **dict.fromkeys((*_CYCLES, *_NS), np.int64),
    **dict.fromkeys(("launch", "block", "sequence"), np.uint32),
    **dict.fromkeys(("site", "flags"), np.uint16),
    **dict.fromkeys(("warp", "depth"), np.uint8),
}


class Part(Protocol):
    """Spans of several warps that know where they belong, and write their columns when asked."""

    @property
    def has_payload(self) -> bool:
        """True when some span has a payload word."""

    @property
    def has_id(self) -> bool:
        """True when some span has an id word."""

    def write(self, name: str, out: npt.NDArray[Any]) -> None:
        """Writes a column that is known without times."""

    def times_writers(self, names: tuple[str, str], start: I64, duration: I64) -> list[Callable[[], None]]:
        """What writes the two columns of times `names`, piece by piece."""

    def write_words(self, name: str, out: Words) -> None:
        """Writes ids or payloads."""


class SpanTable(SpanColumns):
    """Columns of the table `spans`, each made at first access and kept."""

    def __init__(
        self, groups: Sequence[Part], runs: Sequence[PlacedRun], per: PerChunk, chunks: Chunks, axis: Axis
    ) -> None:
        self._parts: list[Part] = [*groups, *runs]
        self._runs, self._per, self._chunks, self._axis = runs, per, chunks, axis
        self._size = int(per.spans.sum())

    def shift(self, shift_ns: int) -> None:
        """Makes times count from `shift_ns` after the origin that they had. To be called before they are asked for."""
        self._axis.base_ns -= shift_ns
        for run in self._runs:
            run.shift(shift_ns)

    def __len__(self) -> int:
        return self._size

    def __getattr__(self, name: str) -> Any:
        """Makes a column; later accesses find it as an attribute."""
        if name in ("payload", "id"):
            self.__dict__[name] = self._words(name)
        elif name in _OF_CHUNK:
            self.__dict__[name] = np.repeat(getattr(self._chunks, name).astype(_DTYPES[name]), self._per.spans)
        elif name in _OF_SHAPE:
            out = np.empty(self._size, _DTYPES[name])
            for part in self._parts:
                part.write(name, out)
            self.__dict__[name] = out
        elif name in _CYCLES or name in _NS:
            self._make_times(_CYCLES if name in _CYCLES else _NS)
        else:
            raise AttributeError(name)
        return self.__dict__[name]

    def _words(self, name: str) -> Words | None:
        if not any(getattr(part, f"has_{name}") for part in self._parts):
            return None
        out = Words(np.zeros(self._size, np.uint32), np.zeros(self._size, np.bool_))
        for part in self._parts:
            part.write_words(name, out)
        return out

    def _make_times(self, names: tuple[str, str]) -> None:
        start, duration = (np.empty(self._size, np.int64) for _ in names)

        pieces = [piece for part in self._parts for piece in part.times_writers(names, start, duration)]
        for _ in in_threads(lambda piece: piece(), pieces, few=self._size < _FEW_SPANS):
            pass
        self.__dict__.update(zip(names, (start, duration), strict=True))


class PlacedRun:
    """A run's spans at the rows of its chunks."""

    def __init__(self, run: Run, chunks: I64, per: PerChunk) -> None:
        """Puts what the run says of its `chunks` (indices) into `per`; its loose ends then name the whole tables."""
        self._spans = run.spans
        for name in ("events", "first_ns", "last_ns"):
            getattr(per, name)[chunks] = getattr(run, name)
        row = _places(per.first_row[chunks], per.spans[chunks])
        self._at: Any = row
        if len(row) and int(row[-1]) - int(row[0]) + 1 == len(row):
            self._at = slice(int(row[0]), int(row[-1]) + 1)
        if run.loose is not None:
            run.loose.chunk = chunks[run.loose.chunk]
            run.loose.row = np.where(run.loose.row < 0, -1, np.append(row, -1)[run.loose.row])
            run.loose.range_row = row[run.loose.range_row]

    @property
    def has_payload(self) -> bool:
        """True when some span has a payload word."""
        return self._spans.payload is not None

    @property
    def has_id(self) -> bool:
        """True when some span has an id word."""
        return self._spans.id is not None

    def shift(self, shift_ns: int) -> None:
        """Makes times count from a later origin."""
        self._spans.start_ns -= shift_ns

    def write(self, name: str, out: npt.NDArray[Any]) -> None:
        """Writes a column that is known without times."""
        out[self._at] = getattr(self._spans, name)

    def times_writers(self, names: tuple[str, str], start: I64, duration: I64) -> list[Callable[[], None]]:
        """One for all: runs are short."""

        def write() -> None:
            for name, out in zip(names, (start, duration), strict=True):
                out[self._at] = getattr(self._spans, name)

        return [write]

    def write_words(self, name: str, out: Words) -> None:
        """Writes ids or payloads."""
        words: Words | None = getattr(self._spans, name)
        if words is not None:
            out.values[self._at], out.valid[self._at] = words.values, words.valid


def all_loose(runs: Sequence[Run]) -> Loose | None:
    """Loose starts and ends of all placed runs."""
    parts = [run.loose for run in runs if run.loose is not None]
    if not parts:
        return None
    return Loose(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Loose)})


def _places(first: I64, count: I64) -> I64:
    """first[0], first[0] + 1 ... (count[0] of them), first[1], ..."""
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
