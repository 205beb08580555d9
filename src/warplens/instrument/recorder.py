"""The recorder as PTX text: what a warp does at its begin, at each mark, where a chunk is full, and at its end.

In: the number of bits of a code, facts of the kernel. Out: lines of PTX. It writes what the policy `stream` of the
headers writes (layout.py), by lane 0 of each warp, and asks for memory once a warp: a slab of chunks. No call, no loop,
no atomic behind the kernel's begin, and no branch but one that tells that a chunk is full: what is rare stands behind
the kernel's last instruction and is predicated throughout, so that lanes that have parted can do it too
(docs/adr/0012-instrumenting-ptx.md).

State, in every lane: `%wl_lo`, `%wl_hi`: where the last record went, so that the next goes 4 bytes behind; the high half
is 0 in lanes that write nothing, and the low seven bits are the same in all. `%wl_ep`: the epoch of the chunk's begin.
`%wl_left`: chunks left of the slab, -1 in a lane that would write and has no space. `%wl_gt`: globaltimer at the
begin, and in a lane without space the events that it had none for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warplens import layout
from warplens.layout import ChunkFlag, Control

PREFIX: Final = "wl_"
_FULL: Final = layout.CHUNK_BYTES - 4
"""Low bits of the place when the chunk is full."""
_EMPTY: Final = 4 * layout.HEADER_WORDS - 4
_LAST_BESIDE_BLOCK_RECORD: Final = 4 * layout.BLOCK_RECORD_WORD - 8
MOST_MARKS: Final = 16
"""Marks behind one question for space."""
_CURSORS: Final = (layout.CURSOR_COUNT - 1) * layout.CURSOR_STRIDE
_STRIDE: Final = layout.CURSOR_COUNT * layout.CHUNK_BYTES
_SLAB_SHIFT: Final = layout.CURSOR_COUNT.bit_length() - 1
_RECIPROCAL: Final = -(-(1 << 35) // layout.RECORD_SLOTS)
_RECIPROCAL_SHIFT: Final = (
    3  # n / 26 is the high half of n times this, without its low bits (Granlund and Montgomery, 1994)
)
_END: Final = int(Control.END) << layout.CODE_VERB_SHIFT


def _meta(flags: int) -> int:
    return flags << layout.META_FLAGS_SHIFT | layout.META_MARKER << layout.META_MARKER_SHIFT


@dataclass(frozen=True)
class Recorder:
    """The recorder of one kernel. `sites_hash`: of its site set; `flat`: its blocks differ in x alone; `shared`: the
    address of shared memory that a barrier's end is seen by, a symbol or a number; `space` of the descriptor."""

    code_bits: int
    sites_hash: int
    flat: bool
    shared: str
    space: str = "const"

    def declarations(self) -> list[str]:
        """Registers, for the begin of the function's body."""
        return [
            ".reg .b32 %wl_lo, %wl_hi, %wl_ep, %wl_left, %wl_gt, %wl_e, %wl_d, %wl_slab, %wl_index;",
            ".reg .b32 %wl_c<4>, %wl_r<16>;",
            ".reg .b64 %wl_begin, %wl_now, %wl_control, %wl_ad, %wl_q<4>;",
            ".reg .pred %wl_p<6>, %wl_w, %wl_full;",
        ]

    def begin(self) -> list[str]:
        """The kernel's first instructions: its begin's clock, and what is to be recorded is asked for."""
        return [
            "mov.u64 %wl_begin, %clock64;",
            "mov.u32 %wl_gt, %globaltimer_lo;",
            f"ld.{self.space}.u64 %wl_control, [{layout.DESCRIPTOR_SYMBOL}];",
            "setp.ne.u64 %wl_p0, %wl_control, 0;",
            *(f"mov.u32 {register}, 0;" for register in ("%wl_c0", "%wl_c1", "%wl_c2", "%wl_c3", "%wl_slab")),
            f"@%wl_p0 ld.global.v4.u32 {{%wl_c0, %wl_c1, %wl_c2, %wl_c3}}, [%wl_control+{layout.CONTROL_CHOICE}];",
            f"@%wl_p0 ld.global.u32 %wl_slab, [%wl_control+{layout.CONTROL_SLAB}];",
        ]

    def ask(self) -> list[str]:
        """Whether this warp is recorded (layout.choice says how that is told), and then a slab for it."""
        return [
            *self._thread("%wl_r0"),
            *self._block("%wl_r1"),
            "mul.lo.u32 %wl_r2, %wl_r1, %wl_c1;",
            "shf.r.wrap.b32 %wl_r2, %wl_r2, %wl_r2, %wl_c3;",
            "setp.le.u32 %wl_p0, %wl_r2, %wl_c2;",
            "shr.u32 %wl_r3, %wl_r0, 5;",
            "shr.u32 %wl_r3, %wl_c0, %wl_r3;",
            "and.b32 %wl_r3, %wl_r3, 1;",
            "setp.ne.and.u32 %wl_p0, %wl_r3, 0, %wl_p0;",
            "and.b32 %wl_r4, %wl_r0, 31;",
            "setp.eq.and.u32 %wl_w, %wl_r4, 0, %wl_p0;",
            "max.u32 %wl_slab, %wl_slab, 1;",
            f"shl.b32 %wl_r5, %wl_slab, {_SLAB_SHIFT};",
            f"mad.lo.u32 %wl_r6, %wl_r1, {33 * layout.CURSOR_STRIDE}, %wl_r0;",
            f"and.b32 %wl_r6, %wl_r6, {_CURSORS};",
            "cvt.u64.u32 %wl_q0, %wl_r6;",
            f"add.u64 %wl_q0, %wl_q0, {layout.CONTROL_CURSORS};",
            "add.u64 %wl_q0, %wl_q0, %wl_control;",
            "mov.u32 %wl_index, 0xffffffff;",
            "mov.u32 %wl_left, 0;",
            "@%wl_w mov.u32 %wl_left, -1;",
            "@%wl_w atom.global.add.u32 %wl_index, [%wl_q0], %wl_r5;",
        ]

    def open(self, code: int) -> list[str]:
        """The first chunk, and in it the record of the kernel's begin."""
        return [
            "setp.ne.u32 %wl_w, %wl_left, 0;",
            *self._take("%wl_w"),
            # A cursor that ran over is set back, or it would wrap to 0 after 2^32 requests.
            *self._cursor("%wl_q0", "%wl_r1"),
            "add.u32 %wl_r1, %wl_r1, %wl_r0;",
            "@%wl_p2 red.global.min.u32 [%wl_q0], %wl_r1;",
            "mov.u32 %wl_r3, 0;",
            *self._header("%wl_p1", "%wl_ad", "%wl_begin", "%wl_r3"),
            "mov.b64 {%wl_lo, %wl_hi}, %wl_ad;",
            "selp.b32 %wl_lo, %wl_lo, 0, %wl_p1;",
            "selp.b32 %wl_hi, %wl_hi, 0, %wl_p1;",
            f"add.u32 %wl_lo, %wl_lo, {_EMPTY};",
            *self._epoch("%wl_begin", "%wl_ep"),
            *self.store("%wl_begin", code, 0),
            *self.advance(1),
        ]

    def _take(self, wants: str) -> list[str]:
        """What the cursor answered, in the lanes that asked: `%wl_p1`, and the chunk at `%wl_ad`, or that there is none."""
        symbol = layout.DESCRIPTOR_SYMBOL
        return [
            f"ld.{self.space}.u64 %wl_q1, [{symbol}+8];",
            f"ld.{self.space}.u32 %wl_r0, [{symbol}+16];",
            f"setp.lt.and.u32 %wl_p1, %wl_index, %wl_r0, {wants};",
            "not.pred %wl_p2, %wl_p1;",
            f"and.pred %wl_p2, %wl_p2, {wants};",
            "@%wl_p2 mov.u32 %wl_gt, 0;",
            "sub.u32 %wl_r2, %wl_r0, %wl_index;",
            f"add.u32 %wl_r2, %wl_r2, {layout.CURSOR_COUNT - 1};",
            f"shr.u32 %wl_r2, %wl_r2, {_SLAB_SHIFT};",
            "min.u32 %wl_r2, %wl_r2, %wl_slab;",
            "sub.u32 %wl_r2, %wl_r2, 1;",
            "selp.b32 %wl_left, %wl_r2, %wl_left, %wl_p1;",
            f"mad.wide.u32 %wl_ad, %wl_index, {layout.CHUNK_BYTES}, %wl_q1;",
        ]

    def check(self, number: int, marks: int) -> list[str]:
        """The clock of a mark, and the question whether it and those behind it, `marks` in all, find space."""
        return [
            "mov.u64 %wl_now, %clock64;",
            *self._is_full(str(_FULL - 4 * marks), number),
        ]

    def _is_full(self, limit: str, number: int) -> list[str]:
        return [
            f"and.b32 %wl_r0, %wl_lo, {layout.CHUNK_BYTES - 1};",
            f"setp.gt.u32 %wl_full, %wl_r0, {limit};",
            *self._epoch("%wl_now", "%wl_e"),
            "sub.u32 %wl_d, %wl_e, %wl_ep;",
            "setp.gt.or.u32 %wl_full, %wl_d, 1, %wl_full;",
            f"@%wl_full bra.uni $wl_next_{number};",
            f"$wl_back_{number}:",
        ]

    def clock(self) -> list[str]:
        """The clock of a mark that has space."""
        return ["mov.u32 %wl_r1, %clock;"]

    def store(self, clock: str, code: int, slot: int, guard: str = "") -> list[str]:
        """The record of a mark, the `slot`-th behind the place. `clock`: a register of 64 bits, or %wl_r1."""
        low = [f"cvt.u32.u64 %wl_r1, {clock};"] if clock != "%wl_r1" else []
        both = [f"and.pred %wl_w, %wl_w, {guard};"] if guard else []
        return [
            *low,
            f"shl.b32 %wl_r1, %wl_r1, {self.code_bits};",
            f"add.u32 %wl_r1, %wl_r1, {code};",
            "mov.b64 %wl_ad, {%wl_lo, %wl_hi};",
            "setp.ne.u32 %wl_w, %wl_hi, 0;",
            *both,
            f"@%wl_w st.global.cs.u32 [%wl_ad+{4 * slot + 4}], %wl_r1;",
        ]

    def advance(self, marks: int, guard: str = "") -> list[str]:
        """The place behind so many marks; behind one that was taken only where `guard` holds."""
        return [f"{f'@{guard} ' if guard else ''}add.u32 %wl_lo, %wl_lo, {4 * marks};"]

    def any_lane(self, predicate: str, negated: bool) -> list[str]:
        """`%wl_p5`: whether an instruction with this predicate does anything in this warp."""
        sign = "!" if negated else ""
        return ["activemask.b32 %wl_r2;", f"vote.sync.any.pred %wl_p5, {sign}{predicate}, %wl_r2;"]

    def settle(self) -> list[str]:
        """Waits until a barrier has taken effect, as `settle` of device.cuh does, by a load of shared memory.

        The low two bits of the place are 0, which ptxas cannot know: the store that holds the load in front of the
        clock is never made.
        """
        return [
            f"mov.u32 %wl_r3, {self.shared};",
            "ld.shared.u32 %wl_r3, [%wl_r3];",
            "and.b32 %wl_r4, %wl_lo, 3;",
            "and.b32 %wl_r3, %wl_r3, %wl_r4;",
            "setp.ne.u32 %wl_p4, %wl_r3, 0;",
            "mov.b64 %wl_ad, {%wl_lo, %wl_hi};",
            "@%wl_p4 st.global.u32 [%wl_ad], %wl_r3;",
        ]

    def next(self, number: int) -> list[str]:
        """The chunk behind a full one, or behind one that reaches too far back; where there is none events are counted."""
        return [
            f"$wl_next_{number}:",
            f"and.b32 %wl_r4, %wl_lo, {layout.CHUNK_BYTES - 1};",
            "sub.u32 %wl_r5, %wl_lo, %wl_r4;",
            f"sub.u32 %wl_r4, %wl_r4, {_EMPTY};",
            "shr.u32 %wl_r4, %wl_r4, 2;",
            "mov.b64 %wl_q0, {%wl_r5, %wl_hi};",
            "setp.ne.u32 %wl_p0, %wl_hi, 0;",
            "mov.u32 %wl_r6, 0;",
            f"@%wl_p0 ld.global.u32 %wl_r6, [%wl_q0+{4 * layout.WORD_SEQUENCE}];",
            "add.u32 %wl_r6, %wl_r6, %wl_r4;",
            # Longer than records tell lay between this chunk's begin and the mark: it says no more that they do.
            "setp.gt.and.u32 %wl_p1, %wl_d, 1, %wl_p0;",
            *self._meta("%wl_r7", 0),
            f"shl.b32 %wl_r8, %wl_r4, {layout.META_COUNT_SHIFT};",
            "or.b32 %wl_r7, %wl_r7, %wl_r8;",
            f"@%wl_p1 st.global.cs.u32 [%wl_q0+{4 * layout.WORD_META}], %wl_r7;",
            f"@%wl_p1 st.global.cs.u64 [%wl_q0+{4 * layout.WORD_BASE_LOW}], %wl_now;",
            "setp.eq.s32 %wl_p2, %wl_left, -1;",
            "@%wl_p2 add.u32 %wl_gt, %wl_gt, %wl_r4;",
            "setp.gt.and.s32 %wl_p3, %wl_left, 0, %wl_p0;",
            "setp.eq.and.s32 %wl_p5, %wl_left, 0, %wl_p0;",
            "@%wl_p0 sub.u32 %wl_left, %wl_left, 1;",
            f"add.u64 %wl_q2, %wl_q0, {_STRIDE};",
            *self._again(),
            "selp.b64 %wl_q2, %wl_ad, %wl_q2, %wl_p1;",
            "or.pred %wl_p3, %wl_p3, %wl_p1;",
            *self._header("%wl_p3", "%wl_q2", "%wl_now", "%wl_r6"),
            "mov.b64 {%wl_lo, %wl_hi}, %wl_q2;",
            "selp.b32 %wl_lo, %wl_lo, 0, %wl_p3;",
            "selp.b32 %wl_hi, %wl_hi, 0, %wl_p3;",
            f"add.u32 %wl_lo, %wl_lo, {_EMPTY};",
            "mov.u32 %wl_ep, %wl_e;",
            f"bra.uni $wl_back_{number};",
        ]

    def _again(self) -> list[str]:
        """Another slab, where %wl_p5."""
        return [
            f"ld.{self.space}.u64 %wl_control, [{layout.DESCRIPTOR_SYMBOL}];",
            f"@%wl_p5 ld.global.u32 %wl_slab, [%wl_control+{layout.CONTROL_SLAB}];",
            "max.u32 %wl_slab, %wl_slab, 1;",
            *self._cursor("%wl_q0", "%wl_r1"),
            f"shl.b32 %wl_r5, %wl_slab, {_SLAB_SHIFT};",
            "@%wl_p5 atom.global.add.u32 %wl_index, [%wl_q0], %wl_r5;",
            *self._take("%wl_p5"),
        ]

    def end(self, number: int) -> list[str]:
        """The warp's end, and in a block's first warp the block record."""
        at = 4 * layout.BLOCK_RECORD_WORD
        return [
            "mov.u64 %wl_now, %clock64;",
            "mov.u64 %wl_q2, %globaltimer;",
            *self._thread("%wl_r9"),
            "setp.lt.u32 %wl_p5, %wl_r9, 32;",
            f"selp.b32 %wl_r9, {_LAST_BESIDE_BLOCK_RECORD - 4}, {_FULL - 4}, %wl_p5;",
            *self._is_full("%wl_r9", number),
            *self.store("%wl_now", _END, 0),
            f"and.b32 %wl_r4, %wl_lo, {layout.CHUNK_BYTES - 1};",
            "sub.u32 %wl_r5, %wl_lo, %wl_r4;",
            f"sub.u32 %wl_r4, %wl_r4, {_EMPTY};",
            "shr.u32 %wl_r4, %wl_r4, 2;",
            *self._lose("%wl_r4"),
            "mov.b64 %wl_q0, {%wl_r5, %wl_hi};",
            "setp.ne.and.u32 %wl_p0, %wl_hi, 0, %wl_p5;",
            "mov.b64 {%wl_r6, %wl_r7}, %wl_q2;",
            "mov.u32 %wl_r8, %smid;",
            f"@%wl_p0 st.global.cs.v4.u32 [%wl_q0+{at}], {{%wl_gt, %wl_r6, %wl_r7, %wl_r8}};",
            "mov.u64 %wl_q2, %gridid;",
            "mov.b64 {%wl_r6, %wl_r7}, %wl_q2;",
            f"mov.u32 %wl_r6, {self.sites_hash};",
            "mov.u32 %wl_r8, 0;",
            f"@%wl_p0 st.global.cs.v4.u32 [%wl_q0+{at + 16}], {{%wl_r6, %wl_r7, %wl_r8, %wl_r8}};",
            *self._meta("%wl_r6", int(ChunkFlag.STREAM | ChunkFlag.BLOCK_RECORD)),
            f"@%wl_p0 st.global.cs.u32 [%wl_q0+{4 * layout.WORD_META}], %wl_r6;",
        ]

    def _lose(self, events: str) -> list[str]:
        """Counts the events that had no space, in the lane that would have written them; `events`: the last of them."""
        return [
            "setp.eq.s32 %wl_p2, %wl_left, -1;",
            f"add.u32 {events}, {events}, %wl_gt;",
            f"add.u32 %wl_r6, {events}, {layout.RECORD_SLOTS - 1};",
            f"mul.hi.u32 %wl_r6, %wl_r6, {_RECIPROCAL};",
            f"shr.u32 %wl_r6, %wl_r6, {_RECIPROCAL_SHIFT};",
            f"cvt.u64.u32 %wl_q0, {events};",
            "cvt.u64.u32 %wl_q1, %wl_r6;",
            f"ld.{self.space}.u64 %wl_q3, [{layout.DESCRIPTOR_SYMBOL}];",
            f"@%wl_p2 red.global.add.u64 [%wl_q3+{layout.CONTROL_LOST_EVENTS}], %wl_q0;",
            f"@%wl_p2 red.global.add.u64 [%wl_q3+{layout.CONTROL_LOST_CHUNKS}], %wl_q1;",
        ]

    def _header(self, predicate: str, chunk: str, clock: str, sequence: str) -> list[str]:
        return [
            *self._block("%wl_r10"),
            *self._meta("%wl_r11", int(ChunkFlag.STREAM)),
            "mov.u64 %wl_q3, %gridid;",
            "cvt.u32.u64 %wl_r12, %wl_q3;",
            f"@{predicate} st.global.cs.v4.u32 [{chunk}], {{%wl_r10, %wl_r11, %wl_r12, {sequence}}};",
            f"@{predicate} st.global.cs.u64 [{chunk}+{4 * layout.WORD_BASE_LOW}], {clock};",
        ]

    def _meta(self, register: str, flags: int) -> list[str]:
        return [
            *self._thread("%wl_r13"),
            "shr.u32 %wl_r13, %wl_r13, 5;",
            "mov.u32 %wl_r14, %smid;",
            f"shl.b32 %wl_r14, %wl_r14, {layout.META_SM_SHIFT};",
            "or.b32 %wl_r13, %wl_r13, %wl_r14;",
            f"or.b32 {register}, %wl_r13, {_meta(flags)};",
        ]

    def _cursor(self, address: str, number: str) -> list[str]:
        """The address of this warp's cursor, and the cursor's number."""
        return [
            *self._thread("%wl_r13"),
            *self._block("%wl_r14"),
            f"mad.lo.u32 {number}, %wl_r14, {33 * layout.CURSOR_STRIDE}, %wl_r13;",
            f"and.b32 {number}, {number}, {_CURSORS};",
            f"cvt.u64.u32 {address}, {number};",
            f"add.u64 {address}, {address}, {layout.CONTROL_CURSORS};",
            f"add.u64 {address}, {address}, %wl_control;",
            f"shr.u32 {number}, {number}, {layout.CURSOR_STRIDE.bit_length() - 1};",
        ]

    def _epoch(self, clock: str, register: str) -> list[str]:
        """Two clocks whose epochs differ by at most one lie less than what a record can tell apart."""
        return [f"shr.u64 %wl_q3, {clock}, {31 - self.code_bits};", f"cvt.u32.u64 {register}, %wl_q3;"]

    def _thread(self, register: str) -> list[str]:
        if self.flat:
            return [f"mov.u32 {register}, %tid.x;"]
        return _linear(register, "tid", "ntid")

    def _block(self, register: str) -> list[str]:
        return _linear(register, "ctaid", "nctaid")


def _linear(register: str, index: str, size: str) -> list[str]:
    """x + width * (y + height * z)."""
    return [
        f"mov.u32 {register}, %{index}.z;",
        f"mov.u32 %wl_r15, %{size}.y;",
        f"mul.lo.u32 {register}, {register}, %wl_r15;",
        f"mov.u32 %wl_r15, %{index}.y;",
        f"add.u32 {register}, {register}, %wl_r15;",
        f"mov.u32 %wl_r15, %{size}.x;",
        f"mul.lo.u32 {register}, {register}, %wl_r15;",
        f"mov.u32 %wl_r15, %{index}.x;",
        f"add.u32 {register}, {register}, %wl_r15;",
    ]
