"""A reference encoder of records, for tests without a GPU: what a recorder on the device would have written.

In: events of a warp as Python objects (`Event`), or the shape of an RMSNorm-like launch. Out: chunk arrays of
uint32 with shape (n, 32) as `layout.py` states them, and whole recordings (`fake_recording`) with a manifest.
Must stay simple enough to be checked by eye against layout.py: the decoder is tested against it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.layout import ChunkFlag, Control, Verb

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
MASK32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Event:
    """One event of a warp: its verb (or control code, with site 0) at a clock value of its SM."""

    verb: Verb | Control
    t_cycles: int
    site: int = 0
    id: int | None = None
    payload: int | None = None

    @property
    def words(self) -> int:
        return 1 + (self.id is not None) + (self.payload is not None)


@dataclass(frozen=True)
class Clock:
    """The clock of one SM: clock64 reads `cycles(ns)` at the true time `ns`; globaltimer floors to its step."""

    offset_cycles: int = 0
    cycles_per_ns: float = 1.98
    zero_ns: int = 1_795_000_000_000_000_000
    step_ns: int = 32

    def cycles(self, t_ns: float) -> int:
        """clock64 at `t_ns` nanoseconds after `zero_ns`."""
        return self.offset_cycles + round(t_ns * self.cycles_per_ns)

    def globaltimer(self, t_cycles: int) -> int:
        """%globaltimer (64 bits) when clock64 reads `t_cycles`."""
        true_ns = self.zero_ns + int((t_cycles - self.offset_cycles) // self.cycles_per_ns)
        return true_ns - true_ns % self.step_ns


@dataclass(frozen=True)
class BlockRecord:
    """What the block's first warp adds to its last chunk."""

    begin_cycles: int
    """Clock of the warp's record 0."""
    sm: int
    sites_hash: int
    grid_high: int = 0


@dataclass
class Warp:
    """Where and how a warp ran; the encoder's context."""

    block: int = 0
    warp: int = 0
    sm: int = 0
    grid: int = 1
    code_bits: int = 9
    clock: Clock = field(default_factory=Clock)
    flush_delay_cycles: int = 20
    flags: int = int(ChunkFlag.EXACT)
    slots: int = layout.RECORD_SLOTS


def event_words(event: Event, code_bits: int) -> list[int]:
    """The words of one event: the low bits of its clock and its code, then its id and its payload."""
    code = event.site << layout.CODE_SITE_SHIFT | int(event.verb) << layout.CODE_VERB_SHIFT
    code |= layout.CODE_ID * (event.id is not None) | layout.CODE_PAYLOAD * (event.payload is not None)
    extra = [value for value in (event.id, event.payload) if value is not None]
    return [(event.t_cycles << code_bits) & MASK32 | code, *extra]


def chunk(
    words: Sequence[int],
    base_cycles: int,
    sequence: int,
    where: Warp,
    *,
    flags: int = 0,
    block_record: BlockRecord | None = None,
) -> U32:
    """One chunk, shape (32,), from the record words it holds."""
    out = np.zeros(layout.CHUNK_WORDS, np.uint32)
    if block_record is not None:
        flags |= int(ChunkFlag.BLOCK_RECORD)
    out[layout.WORD_BLOCK] = where.block
    out[layout.WORD_META] = meta(where.warp, where.sm, len(words), flags)
    out[layout.WORD_GRID] = where.grid & MASK32
    out[layout.WORD_SEQUENCE] = sequence & MASK32
    out[layout.WORD_BASE_LOW] = base_cycles & MASK32
    out[layout.WORD_BASE_HIGH] = base_cycles >> 32 & MASK32
    out[layout.HEADER_WORDS : layout.HEADER_WORDS + len(words)] = words
    if block_record is not None:
        out[layout.BLOCK_RECORD_WORD :] = block_record_words(block_record, where.clock, base_cycles)
    return out


def detached(event: Event, where: Warp, lanes: int = MASK32) -> U32:
    """The chunk, shape (1, 32), of an event that is none of the warp's own count."""
    words = event_words(replace(event, id=lanes), where.code_bits)
    flags = layout.DETACHED_FLAGS
    return chunk(words, event.t_cycles, layout.DETACHED_SEQUENCE, where, flags=flags)[None]


def meta(warp: int, sm: int, count: int, flags: int) -> int:
    """Word 1 of a chunk."""
    return (
        layout.META_MARKER << layout.META_MARKER_SHIFT
        | int(flags) << layout.META_FLAGS_SHIFT
        | count << layout.META_COUNT_SHIFT
        | sm << layout.META_SM_SHIFT
        | warp
    )


def block_record_words(record: BlockRecord, clock: Clock, end_cycles: int) -> list[int]:
    """Words 24..31 of a chunk with the flag BLOCK_RECORD."""
    globaltimer = clock.globaltimer(end_cycles)
    words = [0] * (layout.CHUNK_WORDS - layout.BLOCK_RECORD_WORD)
    words[layout.BLOCK_GLOBALTIMER_LOW] = globaltimer & MASK32
    words[layout.BLOCK_GLOBALTIMER_HIGH] = globaltimer >> 32
    words[layout.BLOCK_GLOBALTIMER_BEGIN] = clock.globaltimer(record.begin_cycles) & MASK32
    words[layout.BLOCK_SM] = record.sm
    words[layout.BLOCK_SITES_HASH] = record.sites_hash
    words[layout.BLOCK_GRID_HIGH] = record.grid_high
    return words


def encode_warp(
    events: Sequence[Event], where: Warp, *, block_record: BlockRecord | None = None, first_sequence: int = 0
) -> U32:
    """Chunks, shape (n, 32), of a warp's whole life.

    An Event(Control.END) at the end is the recorder's end: no record, but the flag LAST on the last chunk, whose base
    it is. Without it the last chunk lacks the flag, as when the warp was killed. A chunk is full when the next
    event's words do not fit; `block_record` takes the place of the last 8 slots.
    """
    ended = bool(events) and events[-1].verb == Control.END and not events[-1].site
    groups: list[list[Event]] = [[]]
    for event in events[: len(events) - ended]:
        if sum(e.words for e in groups[-1]) + event.words > where.slots:
            groups.append([])
        groups[-1].append(event)
    if block_record is not None and sum(e.words for e in groups[-1]) > layout.BLOCK_RECORD_SLOTS:
        groups.append([])
    chunks, sequence, base = [], first_sequence, events[0].t_cycles if events else 0
    for index, group in enumerate(groups):
        last = index == len(groups) - 1
        if group:  # a chunk's base is read before the event that begins the next one
            base = group[-1].t_cycles + where.flush_delay_cycles
            following = groups[index + 1 : index + 2]
            base = min([base, *(next_group[0].t_cycles for next_group in following if next_group)])
        flags = where.flags
        if last and ended:
            base = events[-1].t_cycles
            flags |= int(ChunkFlag.LAST)
        words = [word for event in group for word in event_words(event, where.code_bits)]
        chunks.append(chunk(words, base, sequence, where, flags=flags, block_record=block_record if last else None))
        sequence += len(words)
    return np.stack(chunks)


# ---- whole recordings -----------------------------------------------------------------------------------------
RMSNORM_SITES = (
    ("load_sumsq", "phase", ""),
    ("warp_reduce", "phase", ""),
    ("block_reduce", "phase", ""),
    ("barrier", "wait", "barrier0"),
    ("cross_reduce", "phase", ""),
    ("barrier_2", "wait", "barrier0"),
    ("normalize", "phase", ""),
    ("store", "phase", ""),
)
RMSNORM_CYCLES = (1800, 260, 210, 0, 240, 0, 900, 300)
"""Typical durations of the phases; a wait lasts until the block's slowest warp arrives (+ 30 cycles)."""


@dataclass
class FakeRecording:
    """Stands for `warplens.capture.recording.Recording`: the same three attributes, and the truth."""

    manifest: dict[str, Any]
    records: dict[str, U32]
    sources: dict[str, str]
    truth_ns: list[I64] = field(default_factory=list)
    """Per launch: true times of all marks, shape (blocks, warps, phases + 1), ns after the clocks' zero_ns."""


def sm_clocks(sms: int, *, step_ns: int = 32, seed: int = 0, groups: int = 8, spread: float = 4.5e-5) -> list[Clock]:
    """Clocks as measured on an H200: offsets of -1e6 to 6.8e6 cycles in groups, rates that differ by `spread`."""
    rng = np.random.default_rng(seed)
    offsets = 8_000_000_000_000 + rng.integers(-1_000_000, 6_800_000, groups)
    rates = 1.98 * (1 - spread * rng.random(groups))
    return [Clock(int(offsets[s % groups]), float(rates[s % groups]), step_ns=step_ns) for s in range(sms)]


def site_set(name: str, sites: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """A manifest's entry of `site_sets` from (name, kind, resource) of each site."""
    rows = [
        {"id": i, "name": n, "kind": kind, "resource": resource, "file": "rmsnorm.cu", "line": 10 + i}
        for i, (n, kind, resource) in enumerate(sites, start=1)
    ]
    return {"name": name, "hash": layout.sites_hash(name), "sites": rows}


RESOURCES = {"registers": 40, "shared_bytes": 128, "local_bytes": 0, "resident_blocks": 3}
LAUNCH = {
    "kernel": 0,
    "grid": [1, 1, 1],
    "block": [32, 1, 1],
    "cluster": [1, 1, 1],
    "shared_bytes": 0,
    "stream": 0,
    "rank": 0,
    "replay": 0,
    "grid_id": 1,
    "records": "records/000000.u32",
    "lost_events": 0,
    "lost_chunks": 0,
    "every": 1,
    "warp_mask": MASK32,
    "cold_l2": True,
}


def manifest(
    *,
    launches: Sequence[dict[str, Any]] = (),
    sites: Sequence[tuple[str, str, str]] = RMSNORM_SITES,
    set_name: str = "rmsnorm",
    sm_count: int = 132,
    step_ns: int = 32,
) -> dict[str, Any]:
    """A complete manifest of one kernel; each launch's entry updates the defaults."""
    return {
        "format": "wlens",
        "version": list(layout.FORMAT_VERSION),
        "warplens": "0.1.0",
        "created": "2026-11-29T23:00:00Z",
        "complete": True,
        "note": None,
        "host": None,
        "command": None,
        "policy": "packed",
        "capacity_bytes": 64 << 20,
        "device": {
            "name": "NVIDIA H200",
            "compute_capability": [9, 0],
            "sm_count": sm_count,
            "driver": "580.95.05",
            "cuda_driver_version": 13000,
            "multi_process": False,
            "mig": False,
        },
        "clock_state": None,
        "globaltimer_step_ns": step_ns,
        "site_sets": [site_set(set_name, sites)],
        "kernels": [
            {
                "name": "rmsnorm_fwd<true>",
                "site_set": set_name,
                "clean": RESOURCES,
                "traced": RESOURCES,
                "clean_ns": [9100.0, 9150.0, 9080.0],
                "traced_ns": [9500.0, 9560.0, 9490.0],
                "not_measured": None,
                "mark_cost_cycles": 22.5,
            }
        ],
        "launches": [{**LAUNCH, **launch} for launch in launches],
        "calibration": [],
    }


def calibration(clocks: Sequence[Clock], when: str, t_ns: int) -> dict[str, Any]:
    """Pairs of every SM at an edge of globaltimer shortly after `t_ns`, as the calibration kernel takes them."""
    edges = [(c.zero_ns + t_ns) // c.step_ns * c.step_ns for c in clocks]
    return {
        "when": when,
        "sm": list(range(len(clocks))),
        "globaltimer_ns": edges,
        "clock_cycles": [c.cycles(edge - c.zero_ns) for c, edge in zip(clocks, edges, strict=True)],
    }


def _schedule(blocks: int, sms: int, resident: int, lengths_ns: npt.NDArray[np.float64]) -> tuple[I64, I64]:
    """SM and start (ns) of each block: as a slot becomes free the next block starts in it, 200 ns later."""
    slots = [(float(slot // sms) * 40.0, slot % sms) for slot in range(sms * resident)]
    heapq.heapify(slots)
    sm, start = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
    for block in range(blocks):
        free_ns, where = heapq.heappop(slots)
        sm[block], start[block] = where, round(free_ns)
        heapq.heappush(slots, (free_ns + float(lengths_ns[block]) + 200.0, where))
    return sm, start


def _phase_cycles(rng: np.random.Generator, blocks: int, warps: int, phases: int) -> I64:
    """Cumulated cycles of the marks of each warp, shape (blocks, warps, phases + 1), from its block's start."""
    typical = np.array([RMSNORM_CYCLES[p % len(RMSNORM_CYCLES)] for p in range(phases)], np.float64)
    noise = rng.gamma(9.0, 1 / 9.0, (blocks, warps, phases))
    cycles = np.rint(typical * noise).astype(np.int64) + rng.integers(20, 60, (blocks, warps, phases))
    marks = np.zeros((blocks, warps, phases + 1), np.int64)
    marks[:, :, 0] = rng.integers(30, 200, (blocks, warps))
    for phase in range(phases):
        marks[:, :, phase + 1] = marks[:, :, phase] + cycles[:, :, phase]
        if RMSNORM_SITES[phase % len(RMSNORM_SITES)][1] == "wait":
            arrived = marks[:, :, phase].max(axis=1, keepdims=True)
            marks[:, :, phase + 1] = arrived + cycles[:, :, phase]
    return marks


def fake_launch(
    *,
    blocks: int,
    warps: int,
    phases: int,
    clocks: Sequence[Clock],
    resident: int = 3,
    start_ns: int = 1_000_000,
    grid_id: int = 1,
    seed: int = 0,
    set_name: str = "rmsnorm",
) -> tuple[U32, I64]:
    """Chunks (n, 32) of one launch of an RMSNorm-like kernel, in block order, and the true times of its marks."""
    rng = np.random.default_rng(seed)
    marks = _phase_cycles(rng, blocks, warps, phases)
    rate = np.array([c.cycles_per_ns for c in clocks])
    offset = np.array([c.offset_cycles for c in clocks], np.int64)
    sm, begin_ns = _schedule(blocks, len(clocks), resident, marks.max(axis=(1, 2)) / rate[0])
    begin = offset[sm] + np.rint((start_ns + begin_ns) * rate[sm]).astype(np.int64)
    t = begin[:, None, None] + marks
    bits = layout.code_bits(phases)
    codes = np.array([(p + 1) << layout.CODE_SITE_SHIFT | _verb(p) << layout.CODE_VERB_SHIFT for p in range(phases)])
    slots = layout.RECORD_SLOTS
    firsts = list(range(0, phases, slots))
    parts = []
    for first in firsts:
        last = first == firsts[-1]
        base = t[:, :, -1] if last else t[:, :, first + slots - 1] + 20
        words = (t[:, :, first : min(first + slots, phases)] << bits) & MASK32 | codes[first : first + slots]
        parts.append(_chunk_grid(words, base, first, grid_id, int(ChunkFlag.LAST) if last else 0))
    if phases - firsts[-1] > layout.BLOCK_RECORD_SLOTS:  # warp 0 writes twice
        parts[-1][:, 0, layout.WORD_META] &= ~np.uint32(ChunkFlag.LAST << layout.META_FLAGS_SHIFT)
        empty = _chunk_grid(t[:, :, :0], t[:, :, -1], phases, grid_id, int(ChunkFlag.LAST))
        parts.append(np.zeros_like(empty))
        parts[-1][:, 0] = empty[:, 0]
    for block in range(blocks):
        record = BlockRecord(int(t[block, 0, 0]), int(sm[block]), layout.sites_hash(set_name), grid_id >> 32)
        words_24 = block_record_words(record, clocks[sm[block]], int(t[block, 0, -1]))
        parts[-1][block, 0, layout.BLOCK_RECORD_WORD :] = words_24
        parts[-1][block, 0, layout.WORD_META] |= np.uint32(ChunkFlag.BLOCK_RECORD << layout.META_FLAGS_SHIFT)
    chunks = np.stack(parts, axis=2).reshape(-1, layout.CHUNK_WORDS)
    truth = start_ns + begin_ns[:, None, None] + np.rint(marks / rate[sm][:, None, None]).astype(np.int64)
    return chunks[chunks[:, layout.WORD_META] != 0], truth


def _verb(phase: int) -> int:
    return int(Verb.WAIT if RMSNORM_SITES[phase % len(RMSNORM_SITES)][1] == "wait" else Verb.PHASE)


def _chunk_grid(words: I64, base: I64, sequence: int, grid_id: int, flags: int) -> U32:
    """Chunks (blocks, warps, 32) that hold `words` (blocks, warps, n); their SM stands in the block record."""
    blocks, warps, count = words.shape
    out = np.zeros((blocks, warps, layout.CHUNK_WORDS), np.uint32)
    out[:, :, layout.WORD_BLOCK] = np.arange(blocks)[:, None]
    out[:, :, layout.WORD_META] = np.arange(warps)[None, :] + meta(0, layout.META_SM_UNKNOWN, count, flags)
    out[:, :, layout.WORD_GRID] = grid_id & MASK32
    out[:, :, layout.WORD_SEQUENCE] = sequence
    out[:, :, layout.WORD_BASE_LOW] = base & MASK32
    out[:, :, layout.WORD_BASE_HIGH] = base >> 32
    out[:, :, layout.HEADER_WORDS : layout.HEADER_WORDS + count] = words
    return out


def fake_recording(
    *,
    blocks: int = 12,
    warps: int = 4,
    phases: int = 8,
    sms: int = 4,
    resident: int = 3,
    launches: int = 1,
    step_ns: int = 32,
    calibrated: bool = True,
    shuffled: bool = True,
    seed: int = 0,
) -> FakeRecording:
    """A recording of an RMSNorm-like kernel: phases (two of each eight are waits at a barrier), then its end.

    Blocks are scheduled on `sms` SMs with `resident` slots each, so that waves appear; every SM has its own
    offset and rate; all launches lie in one records member, in arena order (shuffled) unless `shuffled` is false.
    Launch i starts 1 ms + i * 0.3 ms after the clocks' zero, and has grid_id i + 1.
    """
    clocks = sm_clocks(sms, step_ns=step_ns, seed=seed)
    made = [
        fake_launch(
            blocks=blocks,
            warps=warps,
            phases=phases,
            resident=resident,
            clocks=clocks,
            start_ns=1_000_000 + 300_000 * i,
            grid_id=i + 1,
            seed=seed + i,
        )
        for i in range(launches)
    ]
    records = np.concatenate([np.zeros((0, layout.CHUNK_WORDS), np.uint32), *(chunks for chunks, _ in made)])
    if shuffled:
        records = records[np.random.default_rng(seed).permutation(len(records))]
    entries = [{"grid": [blocks, 1, 1], "block": [warps * 32, 1, 1], "grid_id": i + 1} for i in range(launches)]
    sites = [RMSNORM_SITES[p % 8] if p < 8 else (f"phase_{p}", *RMSNORM_SITES[p % 8][1:]) for p in range(phases)]
    facts = manifest(launches=entries, sites=sites, sm_count=sms, step_ns=step_ns)
    if calibrated:
        facts["calibration"] = [calibration(clocks, "before", 0), calibration(clocks, "after", 20_000_000)]
    return FakeRecording(facts, {"records/000000.u32": records}, {"rmsnorm.cu": "// source\n"}, [t for _, t in made])


def nested_warp(*, iterations: int, seed: int, start_cycles: int) -> list[Event]:
    """Events of a warp with nested ranges, payloads and tokens, then its end. Uses sites 1 to 6."""
    rng = np.random.default_rng(seed)
    steps = iter(rng.integers(200, 2000, iterations * 10 + 10).tolist())
    now, sequence, events = start_cycles, 0, list[Event]()

    def put(verb: Verb | Control, site: int = 0, **words: int) -> None:
        nonlocal now, sequence
        now += next(steps)
        events.append(Event(verb, now, site, **words))
        sequence += events[-1].words

    for iteration in range(iterations):
        put(Verb.RANGE_PUSH, 1, payload=iteration)
        put(Verb.PHASE, 2)
        token = sequence
        put(Verb.RANGE_START, 3)
        put(Verb.RANGE_PUSH, 4)
        put(Verb.MARK, 5, payload=iteration * 3)
        put(Control.RANGE_POP)
        put(Control.TOKEN_END, id=token)
        put(Verb.WAIT, 6)
        put(Control.PHASE_END)
        put(Control.RANGE_POP)
    put(Control.END)
    return events


def nested_recording(*, blocks: int = 4, warps: int = 4, iterations: int = 5, distinct: int = 8) -> FakeRecording:
    """A recording with nested ranges, payloads and tokens: `distinct` warps are encoded, then repeated for all."""
    clock = sm_clocks(1)[0]
    kinds = [("tile", "range", ""), ("load", "phase", ""), ("copy", "range", ""), ("mma", "range", "")]
    sites = [*kinds, ("mark", "mark", ""), ("barrier", "wait", "bar")]
    base = Warp(clock=clock, code_bits=layout.code_bits(len(sites)))
    templates = []
    for seed in range(distinct):
        events = nested_warp(iterations=iterations, seed=seed, start_cycles=clock.cycles(1_000_000))
        record = BlockRecord(events[0].t_cycles, 0, layout.sites_hash("nested"))
        templates.append((encode_warp(events, base, block_record=record), encode_warp(events, base)))
    parts = []
    for index in range(blocks * warps):
        part = templates[index % distinct][index % warps > 0].copy()
        part[:, layout.WORD_BLOCK] = index // warps
        part[:, layout.WORD_META] |= np.uint32(index % warps)
        parts.append(part)
    facts = manifest(
        launches=[{"grid": [blocks, 1, 1], "block": [warps * 32, 1, 1]}], sites=sites, set_name="nested", sm_count=1
    )
    facts["calibration"] = [calibration([clock], "before", 0), calibration([clock], "after", 20_000_000)]
    return FakeRecording(facts, {"records/000000.u32": np.concatenate(parts)}, {})


def lose(chunks: U32, lost: Sequence[int]) -> U32:
    """The chunks without those at the indices `lost`."""
    return np.delete(chunks, list(lost), axis=0)


def with_flags(where: Warp, flags: ChunkFlag) -> Warp:
    """The same warp, with `flags` set in all its chunks."""
    return replace(where, flags=where.flags | int(flags))
