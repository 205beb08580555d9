"""A reader of Perfetto's TrackEvent files for tests, written from the public .proto files, sharing nothing with ours.

In: bytes of a trace, packed or not. Out: tracks, slices (nested by the rules of Perfetto's trace processor: by time,
packets of one time in the order of the file, an end closes the innermost open slice of its track), instants, counters.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MASK64 = (1 << 64) - 1


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field, value) of a message: int for varints, bytes for all else."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                assert shift < 70, "a varint of more than ten bytes"
                return value & MASK64
            shift += 7

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        assert wire in (1, 2, 5), f"wire type {wire}"
        size = {1: 8, 5: 4}[wire] if wire != 2 else varint()
        assert at + size <= len(data), "a field beyond its message"
        yield key >> 3, data[at : at + size]
        at += size


def one(data: bytes) -> dict[int, Any]:
    return dict(fields(data))


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


@dataclass
class Track:
    uuid: int
    name: str
    parent: int = 0
    rank: int = 0
    ordering: int = 0
    unit: str | None = None


@dataclass
class Slice:
    track: int
    start_ns: int
    name: str
    category: str = ""
    end_ns: int | None = None
    depth: int = 0
    parent: Slice | None = None
    instant: bool = False
    args: dict[str, Any] = field(default_factory=dict)
    source: tuple[str, int] | None = None
    flows: list[int] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        assert self.end_ns is not None, f"{self.name} has no end"
        return self.end_ns - self.start_ns


@dataclass
class PerfettoTrace:
    tracks: dict[int, Track] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    packets: int = 0

    def path(self, uuid: int) -> tuple[str, ...]:
        """Names from the top to a track."""
        track = self.tracks[uuid]
        return (*(self.path(track.parent) if track.parent else ()), track.name)

    def children(self, uuid: int) -> list[Track]:
        return sorted((t for t in self.tracks.values() if t.parent == uuid), key=lambda t: t.rank)

    def of_spans(self) -> list[Slice]:
        """Slices and instants on the tracks of warps and of what crosses."""
        return [s for s in self.slices if self.tracks[s.track].name.startswith("warp ")]


class _Reader:
    def __init__(self) -> None:
        self.trace = PerfettoTrace()
        self.names: dict[int, dict[int, Any]] = {}
        self.default_clock = 6
        self.clocks: dict[int, tuple[int, int, bool]] = {}  # clock: (its zero in boottime, value now, incremental)
        self.events: list[tuple[int, dict[int, list[Any]]]] = []

    def packet(self, data: bytes) -> None:
        self.trace.packets += 1
        packet = one(data)
        assert packet[10] == 1, "a packet of another sequence"
        if packet.get(13, 0) & 1:
            self.names = {}
        else:
            assert packet[13] == 2, "a packet that does not say that it needs the names"
        if 59 in packet:
            self.default_clock = one(packet[59])[58]
        for kind, entry in fields(packet.get(12, b"")):
            message = one(entry)
            self.names.setdefault(kind, {})[message[1]] = message
        if 6 in packet:
            self.snapshot(packet[6])
        time_ns = self.time(packet[8]) if 8 in packet else None
        if 60 in packet:
            self.track(one(packet[60]))
        if 11 in packet:
            assert time_ns is not None
            event: dict[int, list[Any]] = {}
            for key, value in fields(packet[11]):
                event.setdefault(key, []).append(value)
            self.events.append((time_ns, event))

    def snapshot(self, data: bytes) -> None:
        clocks = [one(value) for key, value in fields(data) if key == 1]
        boottime = next(clock[2] for clock in clocks if clock[1] == 6)
        for clock in clocks:
            self.clocks[clock[1]] = (boottime - clock[2], clock[2], bool(clock.get(3)))

    def time(self, timestamp: int) -> int:
        zero, now, incremental = self.clocks[self.default_clock]
        now = now + signed(timestamp) if incremental else timestamp
        self.clocks[self.default_clock] = (zero, now, incremental)
        return zero + now

    def track(self, message: dict[int, Any]) -> None:
        unit = one(message[8])[6].decode() if 8 in message else None
        track = Track(message[1], message[2].decode(), message.get(5, 0), message.get(12, 0), message.get(11, 0), unit)
        assert track.uuid not in self.trace.tracks
        assert track.parent == 0 or track.parent in self.trace.tracks
        self.trace.tracks[track.uuid] = track

    def finish(self) -> PerfettoTrace:
        open_: dict[int, list[Slice]] = {}
        for time_ns, event in sorted(self.events, key=lambda e: e[0]):
            kind, track = event[9][0], event[11][0]
            assert track in self.trace.tracks
            stack = open_.setdefault(track, [])
            if kind == 4:
                self.trace.counters.setdefault(track, []).append((time_ns, self.count(event)))
            elif kind == 2:
                assert stack, "an end with nothing open"
                stack.pop().end_ns = time_ns
            else:
                made = self.slice(time_ns, track, event, kind == 3)
                made.depth, made.parent = len(stack), stack[-1] if stack else None
                self.trace.slices.append(made)
                if kind == 1:
                    stack.append(made)
        assert not any(open_.values()), "slices without an end"
        return self.trace

    def count(self, event: dict[int, list[Any]]) -> float:
        value: float = struct.unpack("<d", event[44][0])[0] if 44 in event else event[30][0]
        return value

    def slice(self, time_ns: int, track: int, event: dict[int, list[Any]], instant: bool) -> Slice:
        name = event[23][0] if 23 in event else self.names[2][event[10][0]][2]
        made = Slice(track, time_ns, name.decode(), end_ns=time_ns if instant else None, instant=instant)
        made.category = self.names[1][event[3][0]][2].decode() if 3 in event else ""
        if 34 in event:
            place = self.names[4][event[34][0]]
            made.source = place[2].decode(), place[4]
        made.flows = [struct.unpack("<Q", v)[0] for v in event.get(47, [])]
        for annotation in map(one, event.get(4, [])):
            key = annotation[10] if 10 in annotation else self.names[3][annotation[1]][2]
            made.args[key.decode()] = self.value(annotation)
        return made

    def value(self, annotation: dict[int, Any]) -> Any:
        if 3 in annotation:
            return annotation[3]
        if 4 in annotation:
            return signed(annotation[4])
        if 5 in annotation:
            return struct.unpack("<d", annotation[5])[0]
        return annotation[6].decode() if 6 in annotation else self.names[29][annotation[17]][2].decode()


def read(data: bytes) -> PerfettoTrace:
    """The trace in `data`."""
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    reader = _Reader()
    for key, packet in fields(data):
        assert key == 1
        reader.packet(packet)
    return reader.finish()
