"""What policy live leaves of a kernel that was stopped, for tests without a GPU.

In: events of warps. Out: chunks as detail/direct.cuh writes them, the table of last places, whole recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.synthesis import (
    U32,
    BlockRecord,
    Clock,
    Event,
    Warp,
    block_record_words,
    calibration,
    chunk,
    event_words,
    manifest,
    sm_clocks,
)
from warplens import layout
from warplens.capture.recording import Recording
from warplens.capture.stopped import Stop, mark_stopped
from warplens.layout import ChunkFlag, Control, Verb

SITES = (("a", "phase", ""), ("b", "phase", ""), ("c", "wait", "gate"))
CODE_BITS = layout.code_bits(len(SITES))
MEMBER = "records/000000.u32"
AFTER_S = 2.0
LAUNCH_NS = 100_000
"""After the clocks' zero, as all times here; the calibration before it is at 0."""


def live_warp(events: Sequence[Event], where: Warp, block_record: BlockRecord | None = None) -> tuple[U32, list[int]]:
    """The chunks (n, 32) of a warp, and its entry of the table of last places (block + 1, warp, sequence, record)."""
    turn = 1 << (32 - where.code_bits)
    parts: list[tuple[int, int, list[int]]] = []  # sequence, base, words
    sequence, last = 0, 0
    for event in events:
        words = event_words(event, where.code_bits)
        full = not parts or len(parts[-1][2]) + len(words) > layout.RECORD_SLOTS
        if full or event.t_cycles - parts[-1][1] >= turn // 2:
            parts.append((sequence, event.t_cycles, []))
        parts[-1][2].extend(words)
        last, sequence = sequence, sequence + len(words)
    chunks = []
    for first, base, words in parts:
        own = chunk(words, base, first, where, flags=int(ChunkFlag.STREAM))
        own[layout.WORD_META] &= ~np.uint32(((1 << layout.META_COUNT_BITS) - 1) << layout.META_COUNT_SHIFT)
        chunks.append(own)
    if block_record is not None:
        chunks[-1][layout.WORD_META] |= np.uint32(int(ChunkFlag.BLOCK_RECORD) << layout.META_FLAGS_SHIFT)
        chunks[-1][layout.BLOCK_RECORD_WORD :] = block_record_words(block_record, where.clock, events[-1].t_cycles)
    record = event_words(events[-1], where.code_bits)[0]
    return np.stack(chunks), [where.block + 1, where.warp, last, record]


def stopped_blocks(
    blocks: int, *, clocks: Sequence[Clock], whole_blocks: int = 0, late_warp: int = 1
) -> tuple[U32, U32]:
    """Chunks and last places of blocks of four warps: `whole_blocks` of them ended, in the others all wait at site c.

    But for warp `late_warp`, which is in b. Block i runs on SM i modulo their number; a begins 10 us after the launch
    and takes 5 us, b 10 us.
    """
    chunks, last = [], []
    for block in range(blocks):
        clock = clocks[block % len(clocks)]
        for warp in range(4):
            at = [clock.cycles(LAUNCH_NS + us * 1000) for us in (10, 15, 25, 40)]
            events = [Event(Verb.PHASE, at[0], 1), Event(Verb.PHASE, at[1], 2, payload=7), Event(Verb.WAIT, at[2], 3)]
            where = Warp(block, warp, block % len(clocks), 0, CODE_BITS, clock)
            record = None
            if block < whole_blocks:
                events.append(Event(Control.END, at[3]))
                record = BlockRecord(at[0], where.sm, layout.sites_hash("s")) if warp == 0 else None
            elif warp == late_warp:
                events.pop()
            own, place = live_warp(events, where, record)
            chunks.append(own)
            last.append(place)
    return np.concatenate(chunks), np.array(last, np.uint32)


def stopped_recording(
    blocks: int = 1,
    *,
    whole_blocks: int = 0,
    why: str = "it had not ended by the time-out",
    calibrated: bool = True,
    sms: int = 2,
    grid: int | None = None,
) -> Recording:
    """The recording of `stopped_blocks`, stopped after AFTER_S seconds."""
    clocks = sm_clocks(sms)
    chunks, last = stopped_blocks(blocks, clocks=clocks, whole_blocks=whole_blocks)
    entry: dict[str, Any] = {"grid": [grid or blocks, 1, 1], "block": [128, 1, 1], "grid_id": 0}
    facts = manifest(launches=[entry], sites=SITES, set_name="s", sm_count=sms) | {"policy": "live"}
    facts["kernels"][0] |= {"name": "k<true>", "clean_ns": None, "traced_ns": None}
    facts["kernels"][0]["not_measured"] = "the kernel was stopped before"
    facts["calibration"] = [calibration_with_rate(clocks)] if calibrated else []
    return mark_stopped(Recording(facts, {MEMBER: chunks}, {}), Stop(why, AFTER_S), last)


def calibration_with_rate(clocks: Sequence[Clock]) -> dict[str, Any]:
    """Nine pairs of each SM over 32 us, as the calibration kernel takes them, the last at the clocks' zero."""
    entries = [calibration(clocks, "before", (i - 8) * 4000) for i in range(9)]
    columns = ("sm", "globaltimer_ns", "clock_cycles")
    return {"when": "before"} | {name: [value for entry in entries for value in entry[name]] for name in columns}
