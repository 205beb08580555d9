"""The last event of each warp, from the records of a launch that was stopped.

In: a manifest whose `stopped` says that its places are to be taken from the records (`from`), and the records. Out:
the same with `last` and `ended`. `record --timeout` and signals leave such files: a process copies what lies in the
GPU's memory while the kernel hangs, and no table of last places is there. Trusts no chunk: they may be torn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from warplens import layout
from warplens.decode.arrays import U32
from warplens.decode.manifest import MAX_RESIDENT_WARPS
from warplens.decode.streams import is_detached, is_spare, is_stream
from warplens.layout import ChunkFlag, Control

RECORDS: Final = "records"
"""What `stopped.from` is where the places of warps are those of their records."""
_END: Final = int(Control.END) << layout.CODE_VERB_SHIFT
_COUNT_MASK: Final = (1 << layout.META_COUNT_BITS) - 1
_WARP_MASK: Final = (1 << layout.META_WARP_BITS) - 1


def with_last(manifest: dict[str, Any], records: Mapping[str, U32]) -> dict[str, Any]:
    """The checked `manifest` with `stopped.last` and `stopped.ended`, where these are to come from the records."""
    stopped = manifest["stopped"]
    if stopped is None or stopped.get("from") != RECORDS or stopped["last"] or not manifest["launches"]:
        return manifest
    launch = manifest["launches"][-1]
    name = manifest["kernels"][launch["kernel"]]["site_set"]
    sites = next(len(entry["sites"]) for entry in manifest["site_sets"] if entry["name"] == name)
    last: list[list[int]] = []
    ended = 0
    if launch["records"] in records:
        last, ended = last_events(records[launch["records"]], layout.code_bits(sites))
    return {**manifest, "stopped": {**stopped, "last": last, "ended": ended}}


def last_events(chunks: U32, code_bits: int) -> tuple[list[list[int]], int]:
    """Block, warp, sequence and record of the last event of each warp that has not ended, and how many have.

    `chunks`: (n, 32). No more warps than a GPU can hold: those of the first blocks.
    """
    chunks = _newest(chunks)
    record, at, ended = _last_of_chunks(chunks, code_bits)
    held = np.flatnonzero((at >= 0) | ended)
    warp = chunks[held, layout.WORD_META].astype(np.int64) & _WARP_MASK
    key = chunks[held, layout.WORD_BLOCK].astype(np.int64) << layout.META_WARP_BITS | warp
    sequence = chunks[held, layout.WORD_SEQUENCE].astype(np.int64) + at[held]
    order = np.lexsort((sequence, key))
    newest = order[np.append(key[order][1:] != key[order][:-1], True)] if len(order) else order
    running = newest[~ended[held[newest]]][:MAX_RESIDENT_WARPS]
    rows = np.stack(
        [key[running] >> layout.META_WARP_BITS, warp[running], sequence[running] & 0xFFFFFFFF, record[held[running]]],
        axis=1,
    )
    return rows.tolist(), int(ended[held[newest]].sum())


def _newest(chunks: U32) -> U32:
    """Of each warp the last two chunks that are none of detached events: in the last one no record may be there yet."""
    meta = chunks[:, layout.WORD_META]
    marked = meta >> np.uint32(layout.META_MARKER_SHIFT) == layout.META_MARKER
    own = np.flatnonzero(marked & ~is_detached(meta) & ~is_spare(meta))
    warp = meta[own].astype(np.int64) & _WARP_MASK
    key = chunks[own, layout.WORD_BLOCK].astype(np.int64) << layout.META_WARP_BITS | warp
    order = np.lexsort((chunks[own, layout.WORD_SEQUENCE], key))
    later = np.append(key[order], [-1, -1])
    return np.asarray(chunks[own[order[later[2:] != later[:-2]]]])


def _last_of_chunks(chunks: U32, code_bits: int) -> tuple[Any, Any, Any]:
    """Of each chunk its last event: the record, its slot (-1 where there is none; behind the last one for the end of a
    recorder), and whether the recorder ended there."""
    meta = chunks[:, layout.WORD_META]
    stream = is_stream(meta)
    block_record = meta & np.uint32(int(ChunkFlag.BLOCK_RECORD) << layout.META_FLAGS_SHIFT) != 0
    room = np.where(block_record, layout.BLOCK_RECORD_SLOTS, layout.RECORD_SLOTS)
    told = (meta >> np.uint32(layout.META_COUNT_SHIFT) & np.uint32(_COUNT_MASK)).astype(np.int64)
    room = np.where(stream, room, np.minimum(told, room))
    rows, slot = np.arange(len(chunks)), np.zeros(len(chunks), np.int64)
    record, at = np.zeros(len(chunks), np.uint32), np.full(len(chunks), -1)
    for _ in range(layout.RECORD_SLOTS):
        word = chunks[rows, np.minimum(layout.HEADER_WORDS + slot, layout.CHUNK_WORDS - 1)]
        there = (slot < room) & ~(stream & (word == 0))
        if not there.any():
            break
        record, at = np.where(there, word, record), np.where(there, slot, at)
        length = 1 + (word & layout.CODE_PAYLOAD) + (word >> np.uint32(1) & np.uint32(1))
        slot = np.where(there, slot + length, slot)
    ended = (at >= 0) & ((record & np.uint32((1 << code_bits) - 1)) == _END)
    packed_end = ~stream & (meta & np.uint32(int(ChunkFlag.LAST) << layout.META_FLAGS_SHIFT) != 0)
    return record, np.where(packed_end, told, at), ended | packed_end
