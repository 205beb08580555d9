"""Packets of a Perfetto trace: clock, names, tracks, launches, blocks, counters.

In: the chosen tables, the tree of tracks. Out: bytes of whole packets. A packet's time is its distance to the one
before it, so packets are written once, in the order in which they are made. Spans are `spans.py`.

Field numbers are those of https://github.com/google/perfetto/tree/main/protos/perfetto/trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.decode.flags import SpanFlag
from warplens.errors import UsageError
from warplens.render.perfetto.nesting import I64
from warplens.render.perfetto.shares import Shares
from warplens.render.perfetto.steps import block_times, steps
from warplens.render.perfetto.tree import Tree, WarpTracks
from warplens.render.perfetto.wire import (
    U8,
    Digits,
    Part,
    blob,
    message,
    number,
    numbers,
    pack,
    text,
    varint,
    width_of,
    words,
)

SEQUENCE: Final = number(10, 1) + number(13, 2)
"""Every packet but the first: of our one sequence, and in need of the names that the first one holds."""
BEGIN, END, INSTANT, COUNTER = (number(9, kind) for kind in (1, 2, 3, 4))
JUMP: Final = 10
"""Width of a distance in time that is negative, or larger than most."""
SHOWN: Final = {
    "launch": "launch",
    "block": "block",
    "warp": "warp",
    "sequence": "sequence",
    "start_cycles": "start_cycles",
    "cycles": "duration_cycles",
    "payload": "payload",
    "id": "id",
}
"""Arguments of a span: their names in Perfetto, and the columns that they come from."""
ALL_FLAGS: Final = np.uint16(sum(SpanFlag))

_BOOTTIME: Final = 6
_CLOCK: Final = 64
"""A clock of this sequence alone. It is incremental: the time of a packet is its distance to the packet before it in
the file, modulo 2^64 (docs/adr/0005-perfetto.md)."""
_SHOWN_OF_BLOCKS: Final = ("launch", "x", "y", "z", "wave", "warps", "cluster")
_SHOWN_OF_LAUNCHES: Final = (
    "launch",
    "grid",
    "block",
    "stream",
    "rank",
    "lost_events",
    "lost_chunks",
    "uncertainty_ns",
    "cycles_per_ns",
)
_KEY_IIDS: Final = {key: iid for iid, key in enumerate(dict.fromkeys([*SHOWN, "flags", *_SHOWN_OF_BLOCKS]), start=1)}
_PIECE_ROWS: Final = 1 << 15


class Names:
    """What packets refer to by number: names of events, categories, source lines, flags."""

    def __init__(self, sites: pl.DataFrame, flag_sets: Sequence[int], most_resident: int) -> None:
        kinds = sites["kind"].to_list()
        self.events = [*site_names(sites), *(f"{n} block{'s' * (n > 1)}" for n in range(1, most_resident + 1))]
        self.resident = sites.height
        """Number of the name of n resident blocks, less n."""
        self.categories = list(dict.fromkeys([*kinds, "block", "resident", "launch"]))
        self.category_of_site = np.array([self.category(kind) for kind in kinds], np.uint16)
        places = list(zip(sites["file"].to_list(), sites["line"].to_list(), strict=True))
        self.places = list(dict.fromkeys(place for place in places if place[0]))
        at = {place: iid for iid, place in enumerate(self.places, start=1)}
        self.place_of_site = np.array([at.get(place, 0) for place in places], np.uint16)
        """0 where the source is not known."""
        self.flag_sets = [flags for flags in flag_sets if flags]

    def category(self, name: str) -> int:
        """The number of a category."""
        return self.categories.index(name) + 1

    def packed(self) -> bytes:
        """The message InternedData."""
        out = [blob(2, number(1, i) + text(2, name)) for i, name in enumerate(self.events, 1)]
        out += [blob(1, number(1, i) + text(2, name)) for i, name in enumerate(self.categories, 1)]
        out += [blob(3, number(1, i) + text(2, key)) for key, i in _KEY_IIDS.items()]
        out += [blob(4, number(1, i) + text(2, at[0]) + number(4, at[1])) for i, at in enumerate(self.places, 1)]
        out += [blob(29, number(1, flags) + text(2, _flags_text(flags))) for flags in self.flag_sets]
        return b"".join(out)


class Packets:
    """Packets of one file in the order in which they are asked for; all but those of spans are made here."""

    def __init__(self, names: Names, bounds_ns: tuple[int, int], last_track: int, *, arguments: bool) -> None:
        self.names, self.arguments = names, arguments
        self.track_width = width_of(last_track)
        self._first_ns, self._last_ns = bounds_ns
        self._now_ns = self._first_ns

    def preamble(self, origin_ns: int) -> bytes:
        """The clock and the names; UsageError when a time does not fit into 63 bits."""
        base = origin_ns + self._first_ns
        if base < 0 or origin_ns + self._last_ns >= 1 << 63:
            raise UsageError(f"times from {base} ns on do not fit into a Perfetto trace: expected 0 to 2^63")
        first = number(10, 1) + number(13, 1)  # 13: what came before on this sequence is void
        first += blob(59, number(58, _CLOCK)) + blob(12, self.names.packed())
        clocks = blob(1, number(1, _BOOTTIME) + number(2, base))
        clocks += blob(1, number(1, _CLOCK) + number(2, 0) + number(3, 1))
        return blob(1, first) + blob(1, SEQUENCE + blob(6, clocks + number(2, _BOOTTIME)))

    def since(self, times_ns: I64) -> I64:
        """Distance of each time to the one before it, and of the first to the packet written last."""
        since_ns = np.diff(times_ns, prepend=self._now_ns)
        if len(times_ns):
            self._now_ns = int(times_ns[-1])
        return since_ns

    def launches(self, launches: pl.DataFrame, tree: Tree) -> bytes:
        """Begin and end of each launch that has times."""
        out = []
        category = number(3, self.names.category("launch"))
        for row, track in zip(launches.iter_rows(named=True), tree.launch_track.tolist(), strict=True):
            if not track:
                continue
            row |= {name: "x".join(str(row[f"{name}_{axis}"]) for axis in "xyz") for name in ("grid", "block")}
            event = BEGIN + number(11, track) + category + text(23, f"launch {row['launch']}: {row['kernel']}")
            if self.arguments:
                event += b"".join(_fact(name, row[name]) for name in _SHOWN_OF_LAUNCHES if row[name] is not None)
            end_ns = max(row["start_ns"], row["end_ns"])
            for at_ns, body in ((row["start_ns"], event), (end_ns, END + number(11, track))):
                since_ns, self._now_ns = at_ns - self._now_ns, at_ns
                out.append(blob(1, blob(11, body) + SEQUENCE + number(8, since_ns)))
        return b"".join(out)

    def counters(self, blocks: pl.DataFrame, tree: Tree) -> Iterator[U8]:
        """Resident blocks and the warps of them that recorded, at each time at which they change."""
        begin, end = block_times(blocks)
        warps = blocks["warps"].to_numpy().astype(np.int64)
        for track, amount in ((tree.blocks_counter, np.ones_like(warps)), (tree.warps_counter, warps)):
            _, times, values = steps(np.zeros_like(amount), begin, end, amount)
            since_ns = self.since(times)
            value_width, width = width_of(int(values.max(initial=0))), width_of(int(since_ns[1:].max(initial=0)))
            for part, size in ((slice(0, 1), JUMP), (slice(1, None), width)):
                event = [COUNTER, *numbers(30, values[part], value_width), number(11, track)]
                yield pack(timed(since_ns[part], size, event), len(values[part])).reshape(-1)

    def shares(self, shares: Shares, tree: Tree) -> Iterator[U8]:
        """Of each phase the percentage of the resident warps that is in it, where that changes."""
        for track, percent in zip(tree.share_tracks, shares.percent.T, strict=True):
            kept = np.flatnonzero(np.append(True, percent[1:] != percent[:-1]))
            since_ns = self.since(shares.times_ns[kept])
            width = width_of(int(since_ns[1:].max(initial=0)))
            for part, size in ((slice(0, 1), JUMP), (slice(1, None), width)):
                values = np.ascontiguousarray(percent[kept[part]]).view(np.uint64)
                event = [COUNTER, *words(44, values), *numbers(11, np.full(len(values), track), self.track_width)]
                yield pack(timed(since_ns[part], size, event), len(values)).reshape(-1)

    def residency(self, blocks: pl.DataFrame, tree: Tree) -> U8:
        """On the track of each SM with several slots: how many blocks are there, a span a number."""
        begin, end = block_times(blocks)
        shared = np.flatnonzero(tree.sm_track)
        sm_track, times, values = steps(tree.sm_track[shared], begin[shared], end[shared], np.ones_like(shared))
        some = np.flatnonzero(values)
        track = numbers(11, sm_track[some], self.track_width)
        name = numbers(10, (values[some] + self.names.resident).astype(np.uint32), width_of(len(self.names.events)))
        event = [*name, BEGIN, *track, number(3, self.names.category("resident"))]
        return self._intervals(times[some], times[some + 1], event, *track)

    def blocks(self, blocks: pl.DataFrame, tree: Tree) -> Iterator[U8]:
        """Begin and end of each block, named by its number."""
        digits = blocks["block"].cast(pl.String).str.len_bytes()
        classes = blocks.select(digits=digits, clustered=pl.col("cluster").is_not_null())
        frame = blocks.with_columns(classes, track=pl.Series(tree.block_track))
        for part in frame.partition_by("digits", "clustered", maintain_order=True):
            for piece in part.iter_slices(_PIECE_ROWS):
                name: list[Part] = [b"block ", Digits(piece["block"].to_numpy(), piece["digits"][0])]
                track = numbers(11, piece["track"].to_numpy(), self.track_width)
                event = [*message(23, name), BEGIN, *track, number(3, self.names.category("block"))]
                if self.arguments:
                    shown = _SHOWN_OF_BLOCKS if piece["clustered"][0] else _SHOWN_OF_BLOCKS[:-1]
                    event += [part for key in shown for part in annotation(key, piece[key].to_numpy())]
                yield self._intervals(*block_times(piece), event, *track)

    def _intervals(self, begin_ns: I64, end_ns: I64, event: Sequence[Part], *track: Part) -> U8:
        """Begin and end of intervals that only follow each other on their tracks."""
        both = self.since(np.column_stack([begin_ns, end_ns]).reshape(-1)).reshape(-1, 2)
        parts = timed(both[:, 0], JUMP, event) + timed(both[:, 1], JUMP, [END, *track])
        return pack(parts, len(both)).reshape(-1)


def descriptors(tree: Tree) -> Iterator[bytes | U8]:
    """The packets that name the tracks, and say where each stands."""
    out = []
    for track in tree.tracks:
        fields = number(1, track.uuid) + text(2, track.name)
        if track.parent:
            fields += number(5, track.parent) + number(12, track.rank)
        # a counter has a unit; the children of any other stand in the order of their ranks
        fields += blob(8, text(6, track.unit)) if track.unit else number(11, 3)
        out.append(blob(1, blob(60, fields) + SEQUENCE))
    yield b"".join(out)
    width, rank_width = width_of(tree.last), width_of(int(tree.warps.rank.max(initial=0)))
    digits = 1 + (tree.warps.warp > 9) + (tree.warps.warp > 99)
    for count in (1, 2, 3):
        warps = WarpTracks(*(column[digits == count] for column in tree.warps))
        name = message(2, [b"warp ", Digits(warps.warp, count)])
        parts = [*numbers(1, warps.uuid, width), *name, *numbers(12, warps.rank, rank_width)]
        parts += [*numbers(5, warps.parent, width), number(11, 3)]
        yield pack(message(1, [*message(60, parts), SEQUENCE]), len(warps.uuid)).reshape(-1)


def timed(since_ns: I64, width: int, event: Sequence[Part]) -> list[Part]:
    """A packet: the event first, so that what differs from packet to packet (name, distance) stands close together."""
    return message(1, [*message(11, event), SEQUENCE, *numbers(8, since_ns.astype(np.uint64), width)])


def annotation(key: str, values: npt.NDArray[Any]) -> list[Part]:
    """A debug annotation: unsigned where no value is negative, else signed."""
    signed = len(values) > 0 and values.dtype.kind == "i" and int(values.min()) < 0
    field, values = (4, values.astype(np.uint64)) if signed else (3, values)
    return message(4, [number(1, _KEY_IIDS[key]), *numbers(field, values, width_of(int(values.max(initial=0))))])


def flags_annotation(flags: npt.NDArray[Any]) -> list[Part]:
    """A debug annotation with the names of the flags, none of which may be 0."""
    return message(4, [number(1, _KEY_IIDS["flags"]), *numbers(17, flags, width_of(int(flags.max(initial=0))))])


def site_names(sites: pl.DataFrame) -> list[str]:
    """Names as shown: a wait or an arrival with its resource."""
    return [
        f"{name} [{resource}]" if kind in ("wait", "arrive") and resource else name
        for name, kind, resource in sites.select("name", "kind", "resource").iter_rows()
    ]


def _fact(name: str, value: Any) -> bytes:
    """A debug annotation of a single event."""
    head = text(10, name)
    if isinstance(value, str):
        return blob(4, head + text(6, value))
    if isinstance(value, float):
        return blob(4, head + varint(5 << 3 | 1) + np.float64(value).tobytes())
    return blob(4, head + number(3, value))


def _flags_text(flags: int) -> str:
    return " ".join(flag.name or "" for flag in SpanFlag if flag & flags)
