"""Chunks of the policies `stream` and `live`, brought into the form that `packed` writes.

In: words (n, 32) of chunks with the flag STREAM and the code bits of each. Out: words whose header tells how many
records there are, the clock of the last one as base_cycles, and the warp's end. What was not yet written when the
kernel hung or crashed is not there, and nothing is made up for it. Must not decide which launch a chunk belongs to.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from warplens import layout
from warplens.decode.arrays import I64, U32, Bool
from warplens.layout import ChunkFlag, Control

_END_CODE: Final = int(Control.END) << layout.CODE_VERB_SHIFT
_STREAM: Final = np.uint32(int(ChunkFlag.STREAM) << layout.META_FLAGS_SHIFT)
_LAST: Final = np.uint32(int(ChunkFlag.LAST) << layout.META_FLAGS_SHIFT)
_EXACT: Final = np.uint32(int(ChunkFlag.EXACT) << layout.META_FLAGS_SHIFT)
_DETACHED: Final = np.uint32(layout.DETACHED_FLAGS << layout.META_FLAGS_SHIFT)
_COUNTS: Final = np.uint32(((1 << layout.META_COUNT_BITS) - 1) << layout.META_COUNT_SHIFT)
_BLOCK_RECORD: Final = np.uint32(int(ChunkFlag.BLOCK_RECORD) << layout.META_FLAGS_SHIFT)
_SPARE: Final = np.uint32(layout.META_SM_UNKNOWN << layout.META_SM_SHIFT) | _EXACT
_SPARE_MASK: Final = np.uint32((1 << layout.META_MARKER_SHIFT) - (1 << layout.META_WARP_BITS))


def is_spare(meta: U32) -> Bool:
    """Which chunks their warp took with others and had nothing to write to, by word 1 of each: no count, no SM."""
    return np.asarray((meta & _SPARE_MASK) == _SPARE)


def is_stream(meta: U32) -> Bool:
    """Which chunks have the flag, by word 1 of each."""
    return np.asarray((meta & _STREAM) != 0)


def is_detached(meta: U32) -> Bool:
    """Which chunks hold one event that is none of the warp's own count, by word 1 of each."""
    return np.asarray((meta & _DETACHED) == _DETACHED)


def is_torn(words: U32) -> Bool:
    """Which chunks, brought into form by `close`, have a header but neither records nor a clock."""
    nothing = words[:, layout.WORD_META] & (_COUNTS | _LAST) == 0
    base = words[:, layout.WORD_BASE_LOW] | words[:, layout.WORD_BASE_HIGH]
    return np.asarray(nothing & (base == 0))


def close(words: U32, code_bits: I64) -> U32:
    """The chunks `words` (n, 32), all with the flag STREAM, as if their warp had written them at their last record.

    A record is there when its event word is: the recorder writes an event behind its id and payload.
    """
    out = words.copy()
    rows = np.arange(len(out))
    meta = out[:, layout.WORD_META]
    room = np.where(meta & _BLOCK_RECORD, layout.BLOCK_RECORD_SLOTS, layout.RECORD_SLOTS)
    count = np.zeros(len(out), np.int64)
    last = np.zeros(len(out), np.uint32)  # the last event's word
    last_at = np.zeros(len(out), np.int64)
    for _ in range(layout.RECORD_SLOTS):
        word = out[rows, np.minimum(layout.HEADER_WORDS + count, layout.CHUNK_WORDS - 1)]
        there = (count < room) & (word != 0)
        if not there.any():
            break
        length = 1 + (word & layout.CODE_PAYLOAD) + (word >> np.uint32(1) & np.uint32(1))
        last = np.where(there, word, last)
        last_at = np.where(there, count, last_at)
        count = np.where(there, np.minimum(count + length, room), count)
    ended = (count > 0) & ((last & ((np.uint32(1) << code_bits.astype(np.uint32)) - np.uint32(1))) == _END_CODE)
    base = out[:, layout.WORD_BASE_HIGH].astype(np.int64) << 32 | out[:, layout.WORD_BASE_LOW]
    turn = np.int64(1) << (32 - code_bits)
    passed = ((last >> code_bits.astype(np.uint32)).astype(np.int64) - base) & (turn - 1)
    base = np.where(count > 0, base + passed, base)
    count = np.where(ended, last_at, count)
    out[:, layout.WORD_BASE_LOW] = base & 0xFFFFFFFF
    out[:, layout.WORD_BASE_HIGH] = base >> 32 & 0xFFFFFFFF
    meta = meta & ~(_STREAM | _COUNTS) | _EXACT | np.where(ended, _LAST, np.uint32(0))
    out[:, layout.WORD_META] = meta | (count.astype(np.uint32) << np.uint32(layout.META_COUNT_SHIFT))
    return out
