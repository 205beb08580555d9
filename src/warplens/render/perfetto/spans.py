"""Packets of spans: the bulk of a Perfetto trace, made by numpy a piece of the table at a time.

In: spans, how they nest, their tracks. Out: buffers of whole packets. Packets of a kind (with a payload or without,
say) have one width; those of one piece are made kind by kind and then laid out in the order of the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.render.perfetto.flows import Flows
from warplens.render.perfetto.nesting import I64, Spans, event_order
from warplens.render.perfetto.packets import (
    ALL_FLAGS,
    BEGIN,
    END,
    INSTANT,
    JUMP,
    SHOWN,
    Packets,
    annotation,
    flags_annotation,
    timed,
)
from warplens.render.perfetto.wire import U8, Part, numbers, pack, width_of, words

_HAS_PAYLOAD, _HAS_ID, _HAS_FLAGS, _HAS_SOURCE, _IS_INSTANT, _JUMPS, _FLOW_SHIFT = 1, 2, 4, 8, 16, 32, 6
"""Bits of a packet's kind; above them the number of its arrows."""


class SpanPackets:
    """Packets of the spans of one file."""

    def __init__(self, packets: Packets, spans: Spans, flows: Flows | None) -> None:
        self._packets, self._spans, self._flows, self._names = packets, spans, flows, packets.names
        self._known = {
            name: spans.frame[name].is_not_null().to_numpy()
            for name in ("payload", "id")
            if spans.frame[name].null_count() < len(spans)
        }
        self._columns = {
            name: spans.frame.select(pl.col(name).fill_null(0)).to_series().to_numpy()
            for name in {*SHOWN.values(), "site"}
            if name not in ("payload", "id") or name in self._known
        }

    def events(self, rows: slice | I64, close: I64 | None, track: npt.NDArray[Any]) -> U8:
        """All events of the spans at `rows`, on the tracks `track`; they nest as `close` says."""
        size = len(track)
        place_begin, place_end = event_order(np.arange(1, size + 1) if close is None else close)
        times = np.empty(2 * size, np.int64)
        times[place_begin], times[place_end] = self._spans.start_ns[rows], self._spans.end_ns[rows]
        since_ns = self._packets.since(times)
        before, within = since_ns[place_begin], since_ns[place_end]
        instant = (self._spans.flags[rows] & np.uint16(SpanFlag.INSTANT)) != 0
        begin_width, end_width = _common_width(before), _common_width(within)
        begin_kind = self._kinds(rows, instant) | _outside(before, begin_width) * _JUMPS
        end_kind = _outside(within, end_width) * _JUMPS
        end_kind[instant] = -1  # none
        packed: list[tuple[I64, U8]] = []
        for kind in _present(begin_kind):
            which = np.flatnonzero(begin_kind == kind)
            event = self._begin(_sub(rows, which), track[which], kind)
            parts = timed(before[which], JUMP if kind & _JUMPS else begin_width, event)
            packed.append((place_begin[which], pack(parts, len(which))))
        for kind in _present(end_kind[~instant]):
            which = np.flatnonzero(end_kind == kind)
            event = [END, *numbers(11, track[which], self._packets.track_width)]
            parts = timed(within[which], JUMP if kind & _JUMPS else end_width, event)
            packed.append((place_end[which], pack(parts, len(which))))
        return _in_order(packed, 2 * size)

    def _kinds(self, rows: slice | I64, instant: npt.NDArray[np.bool_]) -> I64:
        """What the packet of each begin holds."""
        kinds = instant.astype(np.int64) * _IS_INSTANT
        if not self._packets.arguments:
            return kinds
        for bit, name in ((_HAS_PAYLOAD, "payload"), (_HAS_ID, "id")):
            if name in self._known:
                kinds[self._known[name][rows]] |= bit
        kinds[(self._spans.flags[rows] & ALL_FLAGS) != 0] |= _HAS_FLAGS
        kinds[self._names.place_of_site[self._columns["site"][rows]] > 0] |= _HAS_SOURCE
        return kinds if self._flows is None else kinds | self._flows.count(rows) << _FLOW_SHIFT

    def _begin(self, rows: I64, track: npt.NDArray[Any], kind: int) -> list[Part]:
        site = self._columns["site"][rows]
        event = numbers(10, site.astype(np.uint32) + 1, width_of(len(self._names.events)))
        event += [INSTANT if kind & _IS_INSTANT else BEGIN, *numbers(11, track, self._packets.track_width)]
        if not self._packets.arguments:
            return event
        event += numbers(3, self._names.category_of_site[site], width_of(len(self._names.categories)))
        if kind & _HAS_SOURCE:
            event += numbers(34, self._names.place_of_site[site], width_of(len(self._names.places)))
        missing = {"payload": not kind & _HAS_PAYLOAD, "id": not kind & _HAS_ID}
        for key, name in SHOWN.items():
            if not missing.get(key):
                event += annotation(key, self._columns[name][rows])
        if kind & _HAS_FLAGS:
            event += flags_annotation(self._spans.flags[rows] & ALL_FLAGS)
        if self._flows is not None and kind >> _FLOW_SHIFT:
            for ids in self._flows.of(rows, kind >> _FLOW_SHIFT):
                event += words(47, ids)
        return event


def _common_width(since_ns: I64) -> int:
    """Bytes of the distances but for the longest hundredth, and for those that go back."""
    ahead = since_ns[since_ns >= 0]
    if not len(ahead):
        return 1
    sizes = [np.count_nonzero(ahead >= 1 << 7 * width) for width in range(1, JUMP - 1)]
    return 1 + next((w for w, longer in enumerate(sizes) if longer * 100 <= len(ahead)), JUMP - 2)


def _outside(since_ns: I64, width: int) -> I64:
    """1 for each distance that does not fit `width` bytes."""
    return np.asarray((since_ns < 0) | (since_ns >> 7 * width > 0), np.int64)


def _present(kinds: I64) -> list[int]:
    """The kinds that are there, ascending."""
    return np.flatnonzero(np.bincount(kinds)).tolist()


def _in_order(packed: Sequence[tuple[I64, U8]], events: int) -> U8:
    """Packets of several widths in one buffer, each at its place among `events` places; a place may stay empty."""
    lengths = np.zeros(events, np.int64)
    for places, data in packed:
        lengths[places] = data.shape[1]
    offsets = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for places, data in packed:  # a view of `out` with a packet at every byte makes each of them one copy
        width = data.shape[1]
        view: npt.NDArray[Any] = np.ndarray((len(out) - width + 1,), f"V{width}", out, 0, (1,))
        view[offsets[places]] = data.view(f"V{width}")[:, 0]
    return out


def _sub(rows: slice | I64, which: I64) -> I64:
    """The rows of `rows` at `which`."""
    return which + rows.start if isinstance(rows, slice) else rows[which]
