"""The recorder as PTX text: what a warp does at its begin, at each mark, where a chunk is full, and at its end.

In: the number of bits of a code, facts of the kernel. Out: lines of PTX. It writes what the policy `stream` of the
headers writes (layout.py), by lane 0 of each warp, and asks for memory once a slab of chunks. No call and no loop, and
no branch but where a chunk is full and a slab has none left: that stands behind the kernel's last instruction and is
predicated throughout, so that lanes that have parted can do it too (docs/adr/0012-instrumenting-ptx.md).

State, in every lane: `%wl_lo`, `%wl_hi`: where the last record went, so that the next goes 4 bytes behind; the high
half is 0 in lanes that write nothing (`%wl_w` is false there), and the low seven bits are the same in all. `%wl_ep`:
the epoch of the chunk's begin. `%wl_left`: the warp's number and its SM as in a header, and above those 16 bits the
chunks left of the slab, all ones in a lane that would write and has no space. `%wl_seq`: sequence of the chunk's first
record. `%wl_gt`: globaltimer at the begin, and in a lane without space the events that it had none for. `%wl_block`,
`%wl_grid`: what headers say of the block; special registers, read when a chunk is full, would come behind all copies to
shared memory that the warps have asked for. A kernel whose marks are each passed once has another one (straight.py).

%tid is read at the begin alone: read again in a loop, it makes ptxas take what Triton derives from it out of uniform
registers, and then each wgmma waits for two of them (seen in the machine code of a matmul, ptxas 12.9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from warplens import layout
from warplens.instrument.places import (
    CURSOR_OF_BLOCK,
    EMPTY,
    OWN,
    WARPS,
    block,
    cursor,
    first_cursor,
    held,
    look_up,
    meta,
    pinned,
    stored,
    thread,
    with_sm,
)
from warplens.layout import ChunkFlag, Control

_LAST_BESIDE_BLOCK_RECORD: Final = 4 * layout.BLOCK_RECORD_WORD - 8
MOST_MARKS: Final = 16
"""Marks behind one question for space."""
MOST_A_TURN: Final = 20
"""Marks of a loop that are asked for once a turn; what a chunk has no room for stays unused in it."""
_STRIDE: Final = layout.CURSOR_COUNT * layout.CHUNK_BYTES
_SLAB_SHIFT: Final = layout.CURSOR_COUNT.bit_length() - 1
_RECIPROCAL: Final = -(-(1 << 35) // layout.RECORD_SLOTS)
_RECIPROCAL_SHIFT: Final = 3  # n / 26 is the high half of n times this, without its low bits
END_CODE: Final = int(Control.END) << layout.CODE_VERB_SHIFT
_LEFT_SHIFT: Final = layout.META_SM_SHIFT + layout.META_SM_BITS
_NO_SPACE: Final = 0xFFFFFFFF & ~OWN
MOST_CHUNKS_A_SLAB: Final = (_NO_SPACE >> _LEFT_SHIFT) - 1
_GROWTH_SHIFT, _GROWTH_SHIFT_IN_PROGRAM = 3, 5
_MOST_GROWN: Final = 64
"""A warp that wrote n records asks for n / 8 chunks, 64 at most, where that is more than a slab; in a program that
nvcc builds for n / 32, since its memory is that of each launch, and what a warp has no use for another may lose."""
_HASH: Final = 0x9E3779B9  # as cursor_offset of arena.cuh


def slab_of(least: int) -> list[str]:
    """`%wl_slab`: what a cursor goes up by for one slab of so many chunks, `least` at least."""
    return [f"max.u32 %wl_slab, %wl_slab, {least};", f"shl.b32 %wl_slab, %wl_slab, {_SLAB_SHIFT};"]


def asked(wants: str) -> list[str]:
    """`%wl_index`: what the cursor gives for a slab, where `wants`; behind all memory elsewhere."""
    return [
        "mov.u32 %wl_index, 0xffffffff;",
        f"@{wants} atom.global.add.u32 %wl_index, [%wl_cursor+{layout.CONTROL_CURSORS}], %wl_slab;",
    ]


def growth(in_program: bool) -> list[str]:
    """`%wl_slab`: a slab of as many chunks, or of more behind %wl_seq records."""
    return [
        f"shr.u32 %wl_r2, %wl_seq, {_GROWTH_SHIFT_IN_PROGRAM if in_program else _GROWTH_SHIFT};",
        f"min.u32 %wl_r2, %wl_r2, {_MOST_GROWN};",
        "max.u32 %wl_slab, %wl_slab, %wl_r2;",
    ]


@dataclass(frozen=True)
class Recorder:
    """The recorder of one kernel.

    `sites_hash`: of its site set. `flat`: its blocks differ in x alone. `shared`: the address of shared memory that a
    barrier's end is seen by, a symbol or a number. `space`, `descriptor`: where the descriptor stands and what it is
    called. `listed`: blocks can be chosen by a list. `in_registers`: its state is in registers from one mark to the
    next.
    """

    in_registers: ClassVar[bool] = True
    advances_early: ClassVar[bool] = False
    """Whether the place of a loop's records moves on where the turn asks for space, not behind its last store."""

    stores_late: ClassVar[bool] = False
    """Whether records of an even number of marks a turn are stored together, behind the last of a block."""

    code_bits: int
    sites_hash: int
    flat: bool
    shared: str
    space: str = "const"
    descriptor: str = layout.DESCRIPTOR_SYMBOL
    listed: bool = False

    @property
    def place_bytes(self) -> int:
        """What the place's low bits tell a part of: where marks ask for space, records lie in memory of this size."""
        return layout.CHUNK_BYTES

    @property
    def last_place(self) -> int:
        """Low bits of the place when that is full."""
        return layout.CHUNK_BYTES - 4

    def declarations(self) -> list[str]:
        """Registers, for the begin of the function's body."""
        return [
            ".reg .b32 %wl_lo, %wl_hi, %wl_ep, %wl_left, %wl_seq, %wl_gt, %wl_e, %wl_d, %wl_slab, %wl_index;",
            ".reg .b32 %wl_block, %wl_grid;",
            f".reg .b32 %wl_c<4>, %wl_k<{MOST_A_TURN}>, %wl_r<16>;",
            ".reg .b64 %wl_begin, %wl_now, %wl_end, %wl_control, %wl_cursor, %wl_ad, %wl_q<4>;",
            ".reg .pred %wl_p<6>, %wl_w, %wl_g, %wl_full;",
        ]

    def begin(self) -> list[str]:
        """The kernel's first instructions: its begin's clock, and what is to be recorded is asked for."""
        slab = f"@%wl_p0 ld.global.u32 %wl_slab, [%wl_control+{layout.CONTROL_SLAB}];"
        return [
            "mov.u64 %wl_begin, %clock64;",
            "mov.u32 %wl_gt, %globaltimer_lo;",
            f"ld.{self.space}.u64 %wl_control, [{self.descriptor}];",
            "setp.ne.u64 %wl_p0, %wl_control, 0;",
            *(f"mov.u32 {register}, 0;" for register in ("%wl_c0", "%wl_c1", "%wl_c2", "%wl_c3", "%wl_slab")),
            f"@%wl_p0 ld.global.v4.u32 {{%wl_c0, %wl_c1, %wl_c2, %wl_c3}}, [%wl_control+{layout.CONTROL_CHOICE}];",
            slab,
        ]

    def ask(self) -> list[str]:
        """Whether this warp is recorded (layout.choice says how that is told), and then a slab for it."""
        none, answer = asked("%wl_w")
        return [
            *self._who_records(),
            *slab_of(1),
            none,
            f"@%wl_w or.b32 %wl_left, %wl_left, {_NO_SPACE};",
            answer,
        ]

    def _who_records(self) -> list[str]:
        """`%wl_w`: whether this lane writes: lane 0 of a warp that is recorded; and the cursor that it asks first."""
        return [
            *self._is_chosen(),
            *with_sm(),
            "mov.u64 %wl_q3, %gridid;",
            "cvt.u32.u64 %wl_grid, %wl_q3;",
            *(look_up() if self.listed else []),
            "and.b32 %wl_r4, %wl_r0, 31;",
            "setp.eq.and.u32 %wl_w, %wl_r4, 0, %wl_p0;",
            "mov.u32 %wl_seq, 0;",
            *first_cursor(),
        ]

    def _is_chosen(self) -> list[str]:
        """`%wl_p0`: whether block and warp are, by their numbers in %wl_block and %wl_left; the thread's in %wl_r0."""
        return [
            *thread("%wl_r0", flat=self.flat),
            *block("%wl_block"),
            "mul.lo.u32 %wl_r2, %wl_block, %wl_c1;",
            "shf.r.wrap.b32 %wl_r2, %wl_r2, %wl_r2, %wl_c3;",
            "setp.le.u32 %wl_p0, %wl_r2, %wl_c2;",
            "shr.u32 %wl_left, %wl_r0, 5;",
            "shr.u32 %wl_r3, %wl_c0, %wl_left;",
            "and.b32 %wl_r3, %wl_r3, 1;",
            "setp.ne.and.u32 %wl_p0, %wl_r3, 0, %wl_p0;",
        ]

    def open(self, code: int) -> list[str]:
        """The first chunk, and in it the record of the kernel's begin."""
        return [
            f"setp.ge.u32 %wl_w, %wl_left, {_NO_SPACE};",
            *self._take("%wl_w"),
            *self._header("%wl_p1", "%wl_ad", "%wl_begin"),
            "mov.b64 {%wl_lo, %wl_hi}, %wl_ad;",
            "selp.b32 %wl_lo, %wl_lo, 0, %wl_p1;",
            "selp.b32 %wl_hi, %wl_hi, 0, %wl_p1;",
            "setp.ne.u32 %wl_w, %wl_hi, 0;",
            f"add.u32 %wl_lo, %wl_lo, {EMPTY};",
            *self._epoch("%wl_begin", "%wl_ep"),
            *self.record("%wl_begin", code, 0),
            *self.put([(0, 0)]),
            *self.advance(1),
        ]

    def _take(self, wants: str) -> list[str]:
        """What the cursor answered, where `wants`: `%wl_p1` and the chunk at `%wl_ad`, or `%wl_p2`, there is none.

        What was asked for in vain is given back, or the cursor would wrap to 0 after 2^32 / 1024 chunks.
        """
        symbol = self.descriptor
        left = [
            "sub.u32 %wl_r2, %wl_r0, %wl_index;",
            f"add.u32 %wl_r2, %wl_r2, {layout.CURSOR_COUNT - 1};",
            "min.u32 %wl_r2, %wl_r2, %wl_slab;",
            f"shr.u32 %wl_r2, %wl_r2, {_SLAB_SHIFT};",
            "sub.u32 %wl_r2, %wl_r2, 1;",
            f"shl.b32 %wl_r2, %wl_r2, {_LEFT_SHIFT};",
            f"and.b32 %wl_r3, %wl_left, {OWN};",
            "or.b32 %wl_r2, %wl_r2, %wl_r3;",
            "selp.b32 %wl_left, %wl_r2, %wl_left, %wl_p1;",
        ]
        return [
            f"ld.{self.space}.u64 %wl_q1, [{symbol}+8];",
            f"ld.{self.space}.u32 %wl_r0, [{symbol}+16];",
            f"setp.lt.and.u32 %wl_p1, %wl_index, %wl_r0, {wants};",
            f"setp.ge.and.u32 %wl_p2, %wl_index, %wl_r0, {wants};",
            "neg.s32 %wl_r5, %wl_slab;",
            f"@%wl_p2 red.global.add.u32 [%wl_cursor+{layout.CONTROL_CURSORS}], %wl_r5;",
            "@%wl_p2 mov.u32 %wl_gt, 0;",
            *left,
            f"mad.wide.u32 %wl_ad, %wl_index, {layout.CHUNK_BYTES}, %wl_q1;",
        ]

    def check(self, number: int, marks: int, together: bool, *, even: bool = False) -> list[str]:
        """The clock of a mark, and the question whether it and those behind it, `marks` in all, find space.

        `together`: all lanes of the warp that have not left come here, and then the question is put for all of them.
        `even`: and whether two records from here on are within 8 bytes, as they are in a new chunk.
        """
        jump = f"@%wl_full bra{'.uni' if together else ''} $wl_next_{number};"
        full = self._is_full(str(self.last_place - 4 * marks), together, even=even)
        return ["mov.u64 %wl_now, %clock64;", *full, jump, f"$wl_back_{number}:"]

    def ask_turn(self, marks: int, together: bool) -> list[str]:
        """A clock, and the question whether so many marks find space, to be answered at the loop's end by `turn`."""
        return ["mov.u64 %wl_now, %clock64;", *self._is_full(str(self.last_place - 4 * marks), together)]

    def turn(self, number: int, together: bool, predicate: str, label: str) -> list[str]:
        """Goes on where a loop's turn found no space for the next, in front of the jump to its begin, at `label`.

        `predicate`: that of the jump, "" for none. The jump that goes back where there is space comes first, so that
        what is rare lies behind the loop.
        """
        uni = ".uni" if together else ""
        again = ["not.pred %wl_p4, %wl_full;"]
        if predicate.startswith("!"):
            again += [f"not.pred %wl_p3, {predicate[1:]};", "and.pred %wl_p4, %wl_p4, %wl_p3;"]
        elif predicate:
            again += [f"and.pred %wl_p4, %wl_p4, {predicate};"]
        jump = f"{f'@{predicate} ' if predicate else ''}bra{uni} $wl_next_{number};"
        return [*again, f"@%wl_p4 bra{uni} {label};", jump]

    def _is_full(self, limit: str, together: bool, *, even: bool = False) -> list[str]:
        odd = ["and.b32 %wl_r1, %wl_lo, 4;", "setp.eq.or.u32 %wl_full, %wl_r1, 0, %wl_full;"] if even else []
        vote = ["vote.sync.any.pred %wl_full, %wl_full, 0xffffffff;"] if together else []
        return [
            f"and.b32 %wl_r0, %wl_lo, {self.place_bytes - 1};",
            f"setp.gt.u32 %wl_full, %wl_r0, {limit};",
            *self._epoch("%wl_now", "%wl_e"),
            "sub.u32 %wl_d, %wl_e, %wl_ep;",
            "setp.gt.or.u32 %wl_full, %wl_d, 1, %wl_full;",
            *odd,
            *vote,
        ]

    def clock(self, own: int) -> list[str]:
        """The clock of a mark that has space, in a register for records."""
        return [f"mov.u32 %wl_k{own}, %clock;"]

    def record(self, clock: str, code: int, own: int) -> list[str]:
        """A mark's record. `clock`: a register of 64 bits, or "" where `clock` has read it."""
        low = [f"cvt.u32.u64 %wl_k{own}, {clock};"] if clock else []
        return [*low, f"shl.b32 %wl_k{own}, %wl_k{own}, {self.code_bits};", f"add.u32 %wl_k{own}, %wl_k{own}, {code};"]

    def put(self, records: Sequence[tuple[int, int]], guard: str = "") -> list[str]:
        """Stores a record, or two that stand within 8 bytes; of each its register and how many words it stands behind
        the place."""
        writes, asks = ("%wl_g", [f"and.pred %wl_g, %wl_w, {guard};"]) if guard else ("%wl_w", [])
        registers = [f"%wl_k{own}" for own, _ in records]
        return ["mov.b64 %wl_ad, {%wl_lo, %wl_hi};", *asks, stored(writes, 4 * records[0][1] + 4, registers)]

    def advance(self, marks: int, guard: str = "") -> list[str]:
        """The place behind so many marks; behind one that was taken only where `guard` holds."""
        return [f"{f'@{guard} ' if guard else ''}add.u32 %wl_lo, %wl_lo, {4 * marks};"]

    def settle(self, together: bool) -> list[str]:
        """Lets a barrier take effect: one instruction stands between it and the clock, as in device.cuh's settle.

        Where all lanes are together it is the cheapest, a NOP. Else a byte is read: a variable may stand anywhere.
        """
        if together:
            return ["bar.warp.sync 0xffffffff;"]
        return [f"mov.u32 %wl_r3, {self.shared};", "ld.volatile.shared.u8 %wl_r3, [%wl_r3];"]

    def pin(self, values: tuple[tuple[str, int], ...]) -> list[str]:
        """Waits until loaded values are there, each a register and its bits."""
        return pinned(values)

    def next(self, number: int, together: bool, back: str = "", records: int = 0) -> list[str]:
        """The chunk behind a full one, or behind one that reaches too far back; without space events are counted.

        `together`: as in `check`. `back`: where to go on; behind the question if it is not told. `records`: registers
        of records that nothing else may use in the loop: who writes one waits until its last store has read it, behind
        all copies to shared memory that the warps have asked for. They are kept by stores that are never made.
        """
        back = back or f"$wl_back_{number}"
        return [
            f"$wl_next_{number}:",
            *(self._behind_turn(records) if records else []),
            *held(),
            "setp.ne.u32 %wl_p0, %wl_hi, 0;",
            "add.u32 %wl_seq, %wl_seq, %wl_r4;",
            *(self._in_slab(number, back) if together else []),
            # Longer than records tell lay between this chunk's begin and the mark: it says no more that they do.
            "setp.gt.and.u32 %wl_p1, %wl_d, 1, %wl_p0;",
            *meta("%wl_r7", 0),
            f"shl.b32 %wl_r8, %wl_r4, {layout.META_COUNT_SHIFT};",
            "or.b32 %wl_r7, %wl_r7, %wl_r8;",
            f"@%wl_p1 st.global.cs.u32 [%wl_q0+{4 * layout.WORD_META}], %wl_r7;",
            f"@%wl_p1 st.global.cs.u64 [%wl_q0+{4 * layout.WORD_BASE_LOW}], %wl_now;",
            f"setp.ge.u32 %wl_p2, %wl_left, {_NO_SPACE};",
            "@%wl_p2 add.u32 %wl_gt, %wl_gt, %wl_r4;",
            f"setp.gt.and.u32 %wl_p3, %wl_left, {OWN}, %wl_p0;",
            f"setp.le.and.u32 %wl_p5, %wl_left, {OWN}, %wl_p0;",
            f"@%wl_p3 sub.u32 %wl_left, %wl_left, {OWN + 1};",
            f"@%wl_p5 or.b32 %wl_left, %wl_left, {_NO_SPACE};",
            f"add.u64 %wl_q2, %wl_q0, {_STRIDE};",
            *self._again(),
            f"and.b32 %wl_left, %wl_left, {0xFFFFFFFF & ~(OWN & ~WARPS)};",
            *with_sm(),
            "selp.b64 %wl_q2, %wl_ad, %wl_q2, %wl_p1;",
            "or.pred %wl_p3, %wl_p3, %wl_p1;",
            *self._header("%wl_p3", "%wl_q2", "%wl_now"),
            *self._open_chunk("%wl_p3", back),
        ]

    def _in_slab(self, number: int, back: str) -> list[str]:
        """The usual case, for a whole warp: the slab has a chunk behind this one, which reaches far enough."""
        return [
            f"setp.ge.u32 %wl_p2, %wl_left, {_NO_SPACE};",
            f"setp.le.and.u32 %wl_p3, %wl_left, {OWN}, %wl_p0;",
            "setp.gt.and.u32 %wl_p1, %wl_d, 1, %wl_p0;",
            "or.pred %wl_p3, %wl_p3, %wl_p1;",
            "vote.sync.any.pred %wl_p3, %wl_p3, 0xffffffff;",
            f"@%wl_p3 bra.uni $wl_slab_{number};",
            "@%wl_p2 add.u32 %wl_gt, %wl_gt, %wl_r4;",
            f"add.u64 %wl_q2, %wl_q0, {_STRIDE};",
            f"@%wl_p0 sub.u32 %wl_left, %wl_left, {OWN + 1};",
            *self._header("%wl_p0", "%wl_q2", "%wl_now"),
            *self._open_chunk("%wl_p0", back),
            f"$wl_slab_{number}:",
        ]

    def _open_chunk(self, predicate: str, back: str) -> list[str]:
        """Goes on in the chunk at %wl_q2, or without space where not `predicate`."""
        return [
            "mov.b64 {%wl_lo, %wl_hi}, %wl_q2;",
            f"selp.b32 %wl_lo, %wl_lo, 0, {predicate};",
            f"selp.b32 %wl_hi, %wl_hi, 0, {predicate};",
            "setp.ne.u32 %wl_w, %wl_hi, 0;",
            f"add.u32 %wl_lo, %wl_lo, {EMPTY};",
            "mov.u32 %wl_ep, %wl_e;",
            f"bra.uni {back};",
        ]

    def _behind_turn(self, records: int) -> list[str]:
        """The clock, which the question read early in the turn, is read again; records stay in use up to here."""
        return [*self._clock_behind_turn(), *self._keep_records(records)]

    def _clock_behind_turn(self) -> list[str]:
        return ["mov.u64 %wl_now, %clock64;", *self._epoch("%wl_now", "%wl_e"), "sub.u32 %wl_d, %wl_e, %wl_ep;"]

    def _keep_records(self, records: int) -> list[str]:
        return [
            "and.b32 %wl_r4, %wl_lo, 3;",
            "setp.ne.u32 %wl_p4, %wl_r4, 0;",
            *(f"@%wl_p4 st.global.u32 [%wl_ad], %wl_k{own};" for own in range(records)),
        ]

    def _again(self) -> list[str]:
        """Another slab, where %wl_p5: the more a warp has written, the more it will, and asking is waited for."""
        return [
            f"ld.{self.space}.u64 %wl_control, [{self.descriptor}];",
            f"@%wl_p5 ld.global.u32 %wl_slab, [%wl_control+{layout.CONTROL_SLAB}];",
            *growth(self.listed),
            *slab_of(1),
            *self._cursor(),
            f"@%wl_p5 atom.global.add.u32 %wl_index, [%wl_cursor+{layout.CONTROL_CURSORS}], %wl_slab;",
            *self._take("%wl_p5"),
        ]

    def end(self, number: int, together: bool) -> list[str]:
        """The warp's end, and in a block's first warp the block record."""
        return [
            "mov.u64 %wl_now, %clock64;",
            "mov.u64 %wl_end, %globaltimer;",
            f"and.b32 %wl_r9, %wl_left, {WARPS};",
            "setp.eq.u32 %wl_p5, %wl_r9, 0;",
            f"selp.b32 %wl_r9, {_LAST_BESIDE_BLOCK_RECORD - 4}, {self.last_place - 4}, %wl_p5;",
            *self._is_full("%wl_r9", together),
            f"@%wl_full bra{'.uni' if together else ''} $wl_next_{number};",
            f"$wl_back_{number}:",
            *self.record("%wl_now", END_CODE, 0),
            *self.put([(0, 0)]),
            *held(),
            f"setp.ge.u32 %wl_p2, %wl_left, {_NO_SPACE};",
            "@%wl_p2 add.u32 %wl_gt, %wl_gt, %wl_r4;",
            *self._lose_all(),
            f"and.b32 %wl_r9, %wl_left, {WARPS};",
            "setp.eq.u32 %wl_p5, %wl_r9, 0;",
            *meta("%wl_r9", int(ChunkFlag.STREAM | ChunkFlag.BLOCK_RECORD)),
            *self._block_record("%wl_r9"),
            f"@%wl_p0 st.global.cs.u32 [%wl_q0+{4 * layout.BLOCK_RECORD_WORD}], %wl_gt;",
        ]

    def _block_record(self, meta: str) -> list[str]:
        """All but the begin's globaltimer, where %wl_p5, the block's first warp, and a chunk at %wl_q0."""
        at = 4 * layout.BLOCK_RECORD_WORD
        return [
            "setp.ne.and.u32 %wl_p0, %wl_hi, 0, %wl_p5;",
            "mov.b64 {%wl_r6, %wl_r7}, %wl_end;",
            "mov.u32 %wl_r8, %smid;",
            f"@%wl_p0 st.global.cs.u32 [%wl_q0+{at + 4}], %wl_r6;",
            f"@%wl_p0 st.global.cs.v2.u32 [%wl_q0+{at + 8}], {{%wl_r7, %wl_r8}};",
            "mov.u64 %wl_end, %gridid;",
            "mov.b64 {%wl_r6, %wl_r7}, %wl_end;",
            f"mov.u32 %wl_r6, {self.sites_hash};",
            "mov.u32 %wl_r8, 0;",
            f"@%wl_p0 st.global.cs.v4.u32 [%wl_q0+{at + 16}], {{%wl_r6, %wl_r7, %wl_r8, %wl_r8}};",
            f"@%wl_p0 st.global.cs.u32 [%wl_q0+{4 * layout.WORD_META}], {meta};",
        ]

    def _lose_all(self) -> list[str]:
        """Counts the events in %wl_gt, and as many chunks as they would have filled, where %wl_p2."""
        return [
            f"add.u32 %wl_r6, %wl_gt, {layout.RECORD_SLOTS - 1};",
            f"mul.hi.u32 %wl_r6, %wl_r6, {_RECIPROCAL};",
            f"shr.u32 %wl_r6, %wl_r6, {_RECIPROCAL_SHIFT};",
            *self._lose("%wl_gt", "%wl_r6"),
        ]

    def _lose(self, events: str, chunks: str) -> list[str]:
        """Counts what had no space, where %wl_p2."""
        return [
            f"cvt.u64.u32 %wl_q1, {events};",
            f"cvt.u64.u32 %wl_q3, {chunks};",
            f"ld.{self.space}.u64 %wl_control, [{self.descriptor}];",
            f"@%wl_p2 red.global.add.u64 [%wl_control+{layout.CONTROL_LOST_EVENTS}], %wl_q1;",
            f"@%wl_p2 red.global.add.u64 [%wl_control+{layout.CONTROL_LOST_CHUNKS}], %wl_q3;",
        ]

    def _header(self, predicate: str, chunk: str, clock: str) -> list[str]:
        return [
            *meta("%wl_r11", int(ChunkFlag.STREAM)),
            f"@{predicate} st.global.cs.v4.u32 [{chunk}], {{%wl_block, %wl_r11, %wl_grid, %wl_seq}};",
            f"@{predicate} st.global.cs.u64 [{chunk}+{4 * layout.WORD_BASE_LOW}], {clock};",
        ]

    def _cursor(self) -> list[str]:
        """The cursor that this warp asks now: it goes from one to the next, so that all are used."""
        return [
            f"and.b32 %wl_r13, %wl_left, {WARPS};",
            f"mad.lo.u32 %wl_r13, %wl_block, {CURSOR_OF_BLOCK}, %wl_r13;",
            f"mul.lo.u32 %wl_r15, %wl_seq, {_HASH};",
            "shr.u32 %wl_r15, %wl_r15, 22;",
            "add.u32 %wl_r13, %wl_r13, %wl_r15;",
            *cursor(),
        ]

    def _epoch(self, clock: str, register: str) -> list[str]:
        """Two clocks whose epochs differ by at most one lie less than what a record can tell apart."""
        return [f"shr.u64 %wl_q3, {clock}, {31 - self.code_bits};", f"cvt.u32.u64 {register}, %wl_q3;"]
