"""The recorder of a kernel with loops to whose marks whole warps come: records wait in shared memory, and go out by
hundreds.

In: as `Recorder`, and how many threads a block has. Out: lines of PTX that write the same records, in chunks whose
clock is that of their end, as the policy `staged` of the headers does. A warp has a slot in shared memory: the first
words of a header, eight chunks of records, then what is needed where they go out. Between marks the place alone is in a
register, and the epoch of the slot's first record. What a warp has in its slot when its kernel hangs is not told.

All lanes write a slot out, 16 bytes each: a chunk is eight lanes', and each makes of the header what is its own. A
mark asks nothing but whether the slot is full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from warplens import layout
from warplens.instrument.places import EMPTY, WARPS, meta, thread
from warplens.instrument.recorder import Recorder, asked, growth, slab_of
from warplens.instrument.shared_state import SHARED_STATE
from warplens.layout import ChunkFlag

STAGE: Final = "warplens_stage"
NEED: Final = "warplens_need"
"""Global memory: how many chunks the warp of this number took that ended last, in whichever block. A warp asks for as
many when it begins, MOST_NEEDED at most, for asking again is waited for."""
MOST_NEEDED: Final = 256
SLOT_BYTES: Final = 1024
"""What stands behind the slots moves by a multiple of this: memory that TMA writes with a swizzle needs as much."""
MOST_THREADS: Final = 512
"""Of a block: its slots take 16 KiB."""
LARGE_SLOT_BYTES: Final = (8192, 4096, 2048)
"""Of slots with more room, the largest first: a slot that goes out is waited for, and the more so the more often."""
_AT_ONCE: Final = 4
"""Chunks of which each lane writes 16 bytes."""
CHUNKS: Final = 2 * _AT_ONCE
"""Of a slot of SLOT_BYTES; larger ones go out in so many at a time."""
_SLOTS: Final = layout.RECORD_SLOTS
_LOST, _STATE, _GLOBALTIMER = 12, -64, -48
"""Bytes of a slot, from its begin or its end: events without space; where the next chunk is (two words), how many of
the slab are left and the sequence of the first record; the globaltimer of the kernel's begin."""
_NO_SPACE: Final = 0xFFFFFFFF
"""In place of how many are left."""
_RECIPROCAL: Final = -(-(1 << 32) // _SLOTS)
"""The high half of n times this is n // 26, for n below 2^28."""
_WORDS: Final = (("%wl_x5", "%wl_x6", "%wl_x7", "%wl_x8"), ("%wl_z0", "%wl_z1", "%wl_z2", "%wl_z3"))
_FURTHER: Final = 4 * _AT_ONCE * _SLOTS
_CHUNK_SHIFT: Final = (layout.CURSOR_COUNT * layout.CHUNK_BYTES).bit_length() - 1


class NotTogetherError(Exception):
    """Somewhere only some lanes of a warp come to a mark, or to the kernel's end."""


def staged_bytes(threads: int, slot_bytes: int = SLOT_BYTES) -> int:
    """Shared memory that the slots of a block take.

    ptxas gives it no alignment beyond 1024 bytes: it counts from the 1 KiB that the system has at the begin. So larger
    slots begin where they are aligned to their size.
    """
    return -(-threads // 32) * slot_bytes + slot_bytes - SLOT_BYTES


def records_held(size_bytes: int, threads: int) -> int:
    """How many records a warp may keep in slots that take so much memory of a block."""
    slot_bytes = (size_bytes + SLOT_BYTES) // (-(-threads // 32) + 1)
    return slot_bytes // layout.CHUNK_BYTES * layout.RECORD_SLOTS


def own_shared_bytes(text: str) -> int:
    """Shared memory that marks have declared in a marked module."""
    return sum(map(int, re.findall(rf"\.b8 (?:{SHARED_STATE}|{STAGE})\[([0-9]+)\]", text)))


def declaration(size_bytes: int, threads: int) -> str:
    """Of the slots, for the begin of the module, and of what each of their warps needed."""
    return f".shared .align {SLOT_BYTES} .b8 {STAGE}[{size_bytes}];\n.global .align 4 .b32 {NEED}[{-(-threads // 32)}];"


@dataclass(frozen=True)
class StagedRecorder(Recorder):
    """As `Recorder`. All lanes of a warp come to each mark and to its end."""

    advances_early: ClassVar[bool] = True
    stores_late: ClassVar[bool] = True

    slot_bytes: int = SLOT_BYTES

    @property
    def place_bytes(self) -> int:
        """Of a slot."""
        return self.slot_bytes

    @property
    def last_place(self) -> int:
        """As in the base."""
        return EMPTY + 4 * self.chunks * _SLOTS

    @property
    def chunks(self) -> int:
        """Of a slot."""
        return self.slot_bytes // layout.CHUNK_BYTES

    def declarations(self) -> list[str]:
        """And registers that are in use where a slot goes out."""
        return [*super().declarations(), ".reg .b32 %wl_x<16>, %wl_z<4>;", ".reg .pred %wl_lane;"]

    def begin(self) -> list[str]:
        """And what a warp of this number needed: with all else that says how space is asked for."""
        return [
            *super().begin(),
            *thread("%wl_r0", flat=self.flat),
            "shr.u32 %wl_r5, %wl_r0, 5;",
            f"mov.u64 %wl_q1, {NEED};",
            "mad.wide.u32 %wl_q1, %wl_r5, 4, %wl_q1;",
            "mov.u32 %wl_x0, 0;",
            "@%wl_p0 ld.global.u32 %wl_x0, [%wl_q1];",
        ]

    def ask(self) -> list[str]:
        """Whether this warp is recorded, a first slab for it, and its slot."""
        return [
            *self._who_records(),
            f"min.u32 %wl_x0, %wl_x0, {MOST_NEEDED};",
            "max.u32 %wl_slab, %wl_slab, %wl_x0;",
            *slab_of(CHUNKS),
            *asked("%wl_w"),
            *self._first_slot("%wl_lo"),
            "mov.u32 %wl_hi, 0;",
            "shr.u32 %wl_r5, %wl_r0, 5;",
            f"mad.lo.u32 %wl_lo, %wl_r5, {self.slot_bytes}, %wl_lo;",
        ]

    def _first_slot(self, register: str) -> list[str]:
        if self.slot_bytes == SLOT_BYTES:
            return [f"mov.u32 {register}, {STAGE};"]
        return [
            f"mov.u32 {register}, {STAGE};",
            f"add.u32 {register}, {register}, {self.slot_bytes - 1};",
            f"and.b32 {register}, {register}, {(1 << 32) - self.slot_bytes};",
        ]

    def open(self, code: int) -> list[str]:
        """The slot, empty but for the record of the kernel's begin. What was there is another kernel's, for no file."""
        return [
            "mov.u32 %wl_x10, %laneid;",
            "mad.lo.u32 %wl_x11, %wl_x10, 16, %wl_lo;",
            "mov.u32 %wl_x0, 0;",
            *(
                f"st.shared.v4.u32 [%wl_x11+{at}], {{%wl_x0, %wl_x0, %wl_x0, %wl_x0}};"
                for at in range(0, self.slot_bytes, 512)
            ),
            "bar.warp.sync 0xffffffff;",
            "setp.eq.u32 %wl_lane, %wl_x10, 0;",
            *self._taken("%wl_w", str(CHUNKS)),
            f"@%wl_lane st.shared.v4.u32 [%wl_lo+{self.slot_bytes + _STATE}], {{%wl_x0, %wl_x1, %wl_x2, %wl_seq}};",
            *meta("%wl_r9", 0),
            "@%wl_lane st.shared.v2.u32 [%wl_lo], {%wl_block, %wl_r9};",
            "@%wl_lane st.shared.u32 [%wl_lo+8], %wl_grid;",
            f"@%wl_lane st.shared.u32 [%wl_lo+{self.slot_bytes + _GLOBALTIMER}], %wl_gt;",
            f"add.u32 %wl_lo, %wl_lo, {EMPTY};",
            *self._epoch("%wl_begin", "%wl_ep"),
            *self.record("%wl_begin", code, 0),
            *self.put([(0, 0)]),
            *self.advance(1),
        ]

    def _taken(self, wants: str, least: str) -> list[str]:
        """What the cursor answered, where `wants`: %wl_x0 and %wl_x1: the next chunk; %wl_x2: how many there are.

        What was asked for in vain is given back. Fewer chunks than `least`, of a slot that goes out, are of no use.
        """
        return [
            f"ld.{self.space}.u64 %wl_q1, [{self.descriptor}+8];",
            f"ld.{self.space}.u32 %wl_r0, [{self.descriptor}+16];",
            f"setp.lt.and.u32 %wl_p1, %wl_index, %wl_r0, {wants};",
            f"setp.ge.and.u32 %wl_p2, %wl_index, %wl_r0, {wants};",
            "neg.s32 %wl_r6, %wl_slab;",
            f"@%wl_p2 red.global.add.u32 [%wl_cursor+{layout.CONTROL_CURSORS}], %wl_r6;",
            "sub.u32 %wl_x2, %wl_r0, %wl_index;",
            f"add.u32 %wl_x2, %wl_x2, {layout.CURSOR_COUNT - 1};",
            "min.u32 %wl_x2, %wl_x2, %wl_slab;",
            f"shr.u32 %wl_x2, %wl_x2, {layout.CURSOR_COUNT.bit_length() - 1};",
            f"setp.ge.and.u32 %wl_p1, %wl_x2, {least}, %wl_p1;",
            f"selp.b32 %wl_x2, %wl_x2, {_NO_SPACE}, %wl_p1;",
            f"mad.wide.u32 %wl_ad, %wl_index, {layout.CHUNK_BYTES}, %wl_q1;",
            "mov.b64 {%wl_x0, %wl_x1}, %wl_ad;",
        ]

    def put(self, records: Sequence[tuple[int, int]], guard: str = "") -> list[str]:
        """Into the slot."""
        writes, asks = ("%wl_g", [f"and.pred %wl_g, %wl_w, {guard};"]) if guard else ("%wl_w", [])
        at = f"[%wl_lo+{4 * records[0][1] + 4}]"
        if len(records) == 1:
            return [*asks, f"@{writes} st.shared.u32 {at}, %wl_k{records[0][0]};"]
        listed = ", ".join(f"%wl_k{own}" for own, _ in records)
        return [*asks, f"@{writes} st.shared.v{len(records)}.u32 {at}, {{{listed}}};"]

    def check(self, number: int, marks: int, together: bool, *, even: bool = False) -> list[str]:
        """Raises NotTogetherError."""
        return super().check(number, marks, _whole(together), even=even)

    def next(self, number: int, together: bool, back: str = "", records: int = 0) -> list[str]:
        """Writes the slot out. Raises NotTogetherError."""
        _whole(together)
        return [
            f"$wl_next_{number}:",
            *(self._clock_behind_turn() if records else []),
            *self._count(),
            f"$wl_out_{number}:",
            *self._load(),
            f"add.u32 %wl_x4, %wl_r4, {_SLOTS - 1};",
            *_chunks_of("%wl_x4"),
            "setp.lt.s32 %wl_p1, %wl_x2, %wl_x4;",
            f"@%wl_p1 bra.uni $wl_slab_{number};",
            *self._write(f"$wl_part_{number}"),
            f"$wl_empty_{number}:",
            f"add.u32 %wl_lo, %wl_r5, {EMPTY};",
            "mov.u32 %wl_ep, %wl_e;",
            f"bra.uni {back or f'$wl_back_{number}'};",
            f"$wl_slab_{number}:",
            *([*self._keep_records(records), *self._count()] if records else []),
            *self._more(str(number)),
        ]

    def _count(self) -> list[str]:
        """`%wl_r4`: records in the slot, which all lanes see from here on; `%wl_r5`: the slot."""
        return [
            f"and.b32 %wl_r4, %wl_lo, {self.slot_bytes - 1};",
            "sub.u32 %wl_r5, %wl_lo, %wl_r4;",
            f"sub.u32 %wl_r4, %wl_r4, {EMPTY};",
            "shr.u32 %wl_r4, %wl_r4, 2;",
            "bar.warp.sync 0xffffffff;",
        ]

    def _load(self) -> list[str]:
        """All that a slot goes out with: at once, for what comes from shared memory takes its time.

        `%wl_x0` to `%wl_x3`: the state; `%wl_r6`, 7, 10: words of the header; `%wl_x10`, 12, 13: the lane, its chunk
        and which four words of that are its; `%wl_x5` to `%wl_x8`: those.
        """
        return [
            f"ld.shared.v4.u32 {{%wl_x0, %wl_x1, %wl_x2, %wl_x3}}, [%wl_r5+{self.slot_bytes + _STATE}];",
            "ld.shared.v4.u32 {%wl_r6, %wl_r7, %wl_r10, %wl_r11}, [%wl_r5];",
            "mov.u32 %wl_x10, %laneid;",
            "setp.eq.u32 %wl_lane, %wl_x10, 0;",
            "shr.u32 %wl_x12, %wl_x10, 3;",
            "and.b32 %wl_x13, %wl_x10, 7;",
            f"mad.lo.u32 %wl_x14, %wl_x12, {4 * _SLOTS}, %wl_r5;",
            "mad.lo.u32 %wl_x14, %wl_x13, 16, %wl_x14;",
            *_loaded(0),
        ]

    def _write(self, part: str, *, at_end: bool = False) -> list[str]:
        """The slot's chunks, %wl_x4 of them, with their headers; then the state, by one lane.

        `part`: a label. `at_end`: the last chunk says so, and has the block record where `%wl_p0`.
        """
        is_large = self.slot_bytes > SLOT_BYTES
        text = [
            "setp.le.u32 %wl_p3, %wl_d, 1;",
            f"selp.b32 %wl_r9, {int(ChunkFlag.EXACT) << layout.META_FLAGS_SHIFT}, 0, %wl_p3;",
            "or.b32 %wl_r7, %wl_r7, %wl_r9;",
            "mov.b64 {%wl_r12, %wl_r13}, %wl_now;",
            "mov.b64 %wl_q0, {%wl_x0, %wl_x1};",
            f"shl.b32 %wl_r3, %wl_x12, {_CHUNK_SHIFT};",
            "mad.lo.u32 %wl_r3, %wl_x13, 16, %wl_r3;",
            "cvt.u64.u32 %wl_q1, %wl_r3;",
            "add.u64 %wl_q1, %wl_q1, %wl_q0;",
        ]
        text += ["mov.u32 %wl_x15, 0;", f"{part}:"] if is_large else []
        for half, words in enumerate(_WORDS):
            text += _loaded(half) if half else []
            text += self._chunk(half, words, at_end=at_end)
        if is_large:
            text += [
                f"add.u32 %wl_x15, %wl_x15, {CHUNKS};",
                f"add.u32 %wl_x12, %wl_x12, {CHUNKS};",
                f"add.u32 %wl_x14, %wl_x14, {4 * CHUNKS * _SLOTS};",
                f"add.u64 %wl_q1, %wl_q1, {CHUNKS << _CHUNK_SHIFT};",
                "setp.lt.u32 %wl_p3, %wl_x15, %wl_x4;",
                *(f"@%wl_p3 {line}" for line in _loaded(0)),
                f"@%wl_p3 bra.uni {part};",
            ]
        return [
            *text,
            f"shl.b32 %wl_r3, %wl_x4, {_CHUNK_SHIFT};",
            "cvt.u64.u32 %wl_q1, %wl_r3;",
            "add.u64 %wl_q0, %wl_q0, %wl_q1;",
            "mov.b64 {%wl_x0, %wl_x1}, %wl_q0;",
            "sub.u32 %wl_x2, %wl_x2, %wl_x4;",
            "add.u32 %wl_x3, %wl_x3, %wl_r4;",
            "bar.warp.sync 0xffffffff;",  # all have read what the next line changes
            f"@%wl_lane st.shared.v4.u32 [%wl_r5+{self.slot_bytes + _STATE}], {{%wl_x0, %wl_x1, %wl_x2, %wl_x3}};",
        ]

    def _chunk(self, part: int, words: Sequence[str], *, at_end: bool) -> list[str]:
        """A lane's four words of a chunk."""
        at = part * _AT_ONCE
        header = (
            ("%wl_p5", words[0], "%wl_r12"),
            ("%wl_p5", words[1], "%wl_r13"),
            ("%wl_p4", words[0], "%wl_r6"),
            ("%wl_p4", words[1], "%wl_r8"),
            ("%wl_p4", words[2], "%wl_r10"),
            ("%wl_p4", words[3], "%wl_x9"),
        )
        return [
            f"add.u32 %wl_r2, %wl_x12, {at};",
            "setp.lt.u32 %wl_p2, %wl_r2, %wl_x4;",
            f"mul.lo.u32 %wl_x9, %wl_r2, {_SLOTS};",
            "min.u32 %wl_x9, %wl_x9, %wl_r4;",  # a last chunk may have none
            "sub.u32 %wl_x11, %wl_r4, %wl_x9;",
            f"min.u32 %wl_x11, %wl_x11, {_SLOTS};",
            "add.u32 %wl_x9, %wl_x9, %wl_x3;",
            f"shl.b32 %wl_r8, %wl_x11, {layout.META_COUNT_SHIFT};",
            "or.b32 %wl_r8, %wl_r8, %wl_r7;",
            *(self._ends(words) if at_end else []),
            "setp.eq.u32 %wl_p4, %wl_x13, 0;",
            "setp.eq.u32 %wl_p5, %wl_x13, 1;",
            *(f"selp.b32 {word}, {own}, {word}, {which};" for which, word, own in header),
            f"@%wl_p2 st.global.cs.v4.u32 [%wl_q1+{at << _CHUNK_SHIFT}], {{{', '.join(words)}}};",
        ]

    def _more(self, out: str) -> list[str]:
        """Another slab for the slot that goes out at `$wl_out_`; or what is in it is counted as lost.

        A warp that is not recorded seems to have no space. Of a large slot only as many chunks are asked for as go out.
        """
        is_large = self.slot_bytes > SLOT_BYTES
        return [
            "bar.warp.sync 0xffffffff;",
            "mov.u32 %wl_x10, %laneid;",
            "setp.eq.u32 %wl_lane, %wl_x10, 0;",
            "ld.shared.v4.u32 {%wl_block, %wl_left, %wl_grid, %wl_gt}, [%wl_r5];",
            "setp.ge.s32 %wl_p1, %wl_x2, 0;",
            f"@%wl_p1 bra.uni $wl_more_{out};",
            "add.u32 %wl_gt, %wl_gt, %wl_r4;",
            f"@%wl_lane st.shared.u32 [%wl_r5+{_LOST}], %wl_gt;",
            f"bra.uni $wl_empty_{out};",
            f"$wl_more_{out}:",
            "mov.u32 %wl_seq, %wl_x3;",
            f"ld.{self.space}.u64 %wl_control, [{self.descriptor}];",
            "mov.u32 %wl_slab, 0;",
            f"@%wl_w ld.global.u32 %wl_slab, [%wl_control+{layout.CONTROL_SLAB}];",
            *growth(self.listed),
            *(["max.u32 %wl_slab, %wl_slab, %wl_x4;"] if is_large else []),
            *slab_of(CHUNKS),
            *self._cursor(),
            *asked("%wl_w"),
            *self._taken("%wl_w", "%wl_x4" if is_large else str(CHUNKS)),
            f"@%wl_lane st.shared.v4.u32 [%wl_r5+{self.slot_bytes + _STATE}], {{%wl_x0, %wl_x1, %wl_x2, %wl_seq}};",
            "bar.warp.sync 0xffffffff;",
            f"bra.uni $wl_out_{out};",
        ]

    def end(self, number: int, together: bool) -> list[str]:
        """What is in the slot, the warp's end, in a block's first warp the block record. Raises NotTogetherError."""
        out = f"end_{number}"
        beside_block_record = EMPTY + 4 * ((self.chunks - 1) * _SLOTS + layout.BLOCK_RECORD_SLOTS)
        return [
            "mov.u64 %wl_now, %clock64;",
            "mov.u64 %wl_end, %globaltimer;",
            *self._is_full(str(beside_block_record), _whole(together)),
            f"@%wl_full bra.uni $wl_next_{number};",
            f"$wl_back_{number}:",
            *self._count(),
            f"bra.uni $wl_out_{out};",
            f"$wl_slab_{out}:",
            *self._more(out),
            f"$wl_out_{out}:",
            *self._load(),
            f"and.b32 %wl_r14, %wl_r7, {WARPS};",
            "setp.eq.u32 %wl_p0, %wl_r14, 0;",
            f"selp.b32 %wl_x4, {2 * _SLOTS - 1 - layout.BLOCK_RECORD_SLOTS}, {_SLOTS - 1}, %wl_p0;",
            "add.u32 %wl_x4, %wl_x4, %wl_r4;",
            *_chunks_of("%wl_x4"),
            "max.u32 %wl_x4, %wl_x4, 1;",
            "setp.lt.s32 %wl_p1, %wl_x2, %wl_x4;",
            f"@%wl_p1 bra.uni $wl_slab_{out};",
            f"ld.shared.u32 %wl_r14, [%wl_r5+{self.slot_bytes + _GLOBALTIMER}];",
            *self._write(f"$wl_part_{out}", at_end=True),
            *self._need(),
            f"$wl_empty_{out}:",
            f"ld.shared.u32 %wl_gt, [%wl_r5+{_LOST}];",
            "setp.ne.and.u32 %wl_p2, %wl_gt, 0, %wl_w;",
            *self._lose_all(),
        ]

    def _need(self) -> list[str]:
        """How many chunks the warp took, by its records: slots that were not full have had some more."""
        return [
            f"mul.hi.u32 %wl_r2, %wl_x3, {-(-(1 << 32) // (layout.RECORD_SLOTS - 1))};",
            "add.u32 %wl_r2, %wl_r2, 3;",
            *self._first_slot("%wl_r3"),
            "sub.u32 %wl_r3, %wl_r5, %wl_r3;",
            f"shr.u32 %wl_r3, %wl_r3, {(self.slot_bytes // 4).bit_length() - 1};",
            "cvt.u64.u32 %wl_q1, %wl_r3;",
            f"mov.u64 %wl_q0, {NEED};",
            "add.u64 %wl_q1, %wl_q1, %wl_q0;",
            "and.pred %wl_p2, %wl_lane, %wl_w;",
            "@%wl_p2 st.global.u32 [%wl_q1], %wl_r2;",
        ]

    def _ends(self, words: Sequence[str]) -> list[str]:
        """The last chunk's flags, and the block record in a lane's words, of the block's first warp (%wl_p0)."""
        of_warp, of_block = (
            int(flags) << layout.META_FLAGS_SHIFT for flags in (ChunkFlag.LAST, ChunkFlag.LAST | ChunkFlag.BLOCK_RECORD)
        )
        picked = (
            ("%wl_p4", ("%wl_r14", "%wl_x0", "%wl_x1", "%wl_r15")),
            ("%wl_p5", (str(self.sites_hash), "%wl_r9", "0", "0")),
        )
        return [
            "sub.u32 %wl_r3, %wl_x4, 1;",
            "setp.eq.u32 %wl_p3, %wl_r2, %wl_r3;",
            f"selp.b32 %wl_r9, {of_block}, {of_warp}, %wl_p0;",
            "selp.b32 %wl_r9, %wl_r9, 0, %wl_p3;",
            "or.b32 %wl_r8, %wl_r8, %wl_r9;",
            "and.pred %wl_p3, %wl_p3, %wl_p0;",
            "setp.eq.and.u32 %wl_p4, %wl_x13, 6, %wl_p3;",
            "setp.eq.and.u32 %wl_p5, %wl_x13, 7, %wl_p3;",
            "mov.b64 {%wl_x0, %wl_x1}, %wl_end;",
            "mov.u32 %wl_r15, %smid;",
            "mov.u64 %wl_q3, %gridid;",
            "mov.b64 {%wl_r3, %wl_r9}, %wl_q3;",
            *(
                f"selp.b32 {word}, {own}, {word}, {which};"
                for which, record in picked
                for word, own in zip(words, record, strict=True)
            ),
        ]


@dataclass(frozen=True)
class FrugalStagedRecorder(StagedRecorder):
    """As `StagedRecorder`, but a loop's records have no registers of their own, nor are they kept to its end."""

    stores_late: ClassVar[bool] = False

    def _keep_records(self, records: int) -> list[str]:
        """None."""
        del records
        return []


def _whole(together: bool) -> bool:
    if not together:
        raise NotTogetherError
    return together


def _loaded(part: int) -> list[str]:
    """A lane's four words, of its chunk or of one so much further on."""
    words = _WORDS[part]
    return [
        f"ld.shared.v2.u32 {{{words[at]}, {words[at + 1]}}}, [%wl_x14+{_FURTHER * part + 4 * at}];" for at in (0, 2)
    ]


def _chunks_of(register: str) -> list[str]:
    """How many chunks so many records fill, 25 having been added."""
    return [f"mul.hi.u32 {register}, {register}, {_RECIPROCAL};"]
