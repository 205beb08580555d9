"""The recorder of a kernel whose marks are each passed once, and whose records fit one chunk.

In: as `Recorder`. Out: lines of PTX that write the same records. Each record's place is known, so that there is nothing
to ask at a mark, and of the state `%wl_ad`, the chunk, `%wl_w` and `%wl_ep` alone. Such kernels are short, and what all
of their warps do at begin and end is most of what marks cost them: it has few instructions, what is rare (no space,
more time than records tell) stands behind the kernel's last one, and all warps but a block's first go round the block
record.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from warplens import layout
from warplens.instrument.flow import Flow
from warplens.instrument.places import block, first_cursor, header_word, look_up, stored, thread
from warplens.instrument.recorder import END_CODE, Recorder
from warplens.instrument.sites import Mark, Plan
from warplens.instrument.waits import JUMPS, LEAVES, may_hang
from warplens.layout import ChunkFlag, Verb

_SECTOR_WORDS: Final = 8
MOST_STRAIGHT: Final = layout.BLOCK_RECORD_SLOTS - 2
"""Marks whose records fit one chunk, beside those of the kernel's begin and end and the block record."""


@dataclass(frozen=True)
class StraightRecorder(Recorder):
    """As `Recorder`. `marks`: how many there are; `waiting`: the records that are stored with the one behind them;
    `frugal`: what headers say of the block is read where it is needed; `holds_first`: the first mark comes ahead of
    `open`, which stores its record with that of the begin."""

    marks: int = 0
    waiting: frozenset[int] = frozenset()
    frugal: bool = False
    holds_first: bool = False

    def begin(self) -> list[str]:
        """As there; how much a warp takes at once does not matter."""
        return super().begin()[:-1]

    def ask(self) -> list[str]:
        """Whether this warp is recorded, and then a chunk for it."""
        return [
            *self._is_chosen(),
            *(look_up() if self.listed else []),
            "and.b32 %wl_r4, %wl_r0, 31;",
            "setp.eq.and.u32 %wl_w, %wl_r4, 0, %wl_p0;",
            *first_cursor(),
            "mov.u32 %wl_index, 0xffffffff;",
            f"@%wl_w atom.global.add.u32 %wl_index, [%wl_cursor+{layout.CONTROL_CURSORS}], {layout.CURSOR_COUNT};",
        ]

    def open(self, code: int) -> list[str]:
        """The chunk, and in it the record of the kernel's begin. Lanes are together there."""
        at = 4 * layout.BLOCK_RECORD_WORD
        flags = header_word(int(ChunkFlag.STREAM))
        return [
            f"ld.{self.space}.u32 %wl_r0, [{self.descriptor}+16];",
            "setp.ge.and.u32 %wl_p2, %wl_index, %wl_r0, %wl_w;",
            "setp.lt.and.u32 %wl_w, %wl_index, %wl_r0, %wl_w;",
            "vote.sync.any.pred %wl_p3, %wl_p2, 0xffffffff;",
            "@%wl_p3 bra.uni $wl_lost;",
            "$wl_found:",
            f"ld.{self.space}.u64 %wl_q1, [{self.descriptor}+8];",
            f"mad.wide.u32 %wl_ad, %wl_index, {layout.CHUNK_BYTES}, %wl_q1;",
            "mov.b64 {%wl_lo, %wl_hi}, %wl_ad;",
            *(block("%wl_block") if self.frugal else []),
            "mov.u64 %wl_q3, %gridid;",
            "cvt.u32.u64 %wl_grid, %wl_q3;",
            *self._meta("%wl_r11", "%wl_left", str(flags)),
            "mov.u32 %wl_seq, 0;",
            "@%wl_w st.global.cs.v4.u32 [%wl_ad], {%wl_block, %wl_r11, %wl_grid, %wl_seq};",
            f"@%wl_w st.global.cs.u64 [%wl_ad+{4 * layout.WORD_BASE_LOW}], %wl_begin;",
            "setp.eq.and.u32 %wl_p3, %wl_left, 0, %wl_w;",
            f"@%wl_p3 st.global.cs.u32 [%wl_ad+{at}], %wl_gt;",
            *self._epoch("%wl_begin", "%wl_ep"),
            *self.record("%wl_begin", code, 0),
            *(self.group(1, behind=True) if self.holds_first else self.group(0, waits=0 in self.waiting)),
        ]

    def lost(self) -> list[str]:
        """What was asked for in vain is given back, or the cursor would wrap to 0 after 2^32 / 1024 chunks; all
        records of the warp are counted as lost, for each will be passed once."""
        return [
            "$wl_lost:",
            f"mov.u32 %wl_r5, {(1 << 32) - layout.CURSOR_COUNT};",
            f"@%wl_p2 red.global.add.u32 [%wl_cursor+{layout.CONTROL_CURSORS}], %wl_r5;",
            f"mov.u32 %wl_r4, {self.marks + 1};",
            "mov.u32 %wl_r6, 1;",
            *self._lose("%wl_r4", "%wl_r6"),
            "bra.uni $wl_found;",
        ]

    def check(self, number: int, marks: int, together: bool, *, even: bool = False) -> list[str]:
        """There is nothing to ask."""
        del number, marks, together, even
        return []

    def group(self, at: int, *, waits: bool = False, behind: bool = False) -> list[str]:
        """Stores record `at`, with the one before it where it is `behind` one that `waits`."""
        place = 4 * (layout.HEADER_WORDS + at)
        if waits:
            return []
        if behind:
            return [stored("%wl_w", place - 4, ["%wl_k0", "%wl_k1"])]
        return [stored("%wl_w", place, [f"%wl_k{self.register_of(at)}"])]

    def _last(self, at: int, *, behind: bool) -> list[str]:
        """Stores the last record as `group` does, and zeros up to the end of its sector: one of which a part is missing
        is read from memory before it can be written there (ncu: 3.5 MB for 131,072 warps)."""
        values = ["%wl_k0", "%wl_k1"] if behind else [f"%wl_k{self.register_of(at)}"]
        word = layout.HEADER_WORDS + at - len(values) + 1
        values += ["%wl_r6"] * (-(word + len(values)) % _SECTOR_WORDS)
        out = ["mov.u32 %wl_r6, 0;"]
        while values:
            words = next(size for size in (4, 2, 1) if word % size == 0 and len(values) >= size)
            out.append(stored("%wl_w", 4 * word, values[:words]))
            word, values = word + words, values[words:]
        return out

    def register_of(self, at: int) -> int:
        """Which register holds record `at`."""
        return at % 2

    def next(self, number: int, together: bool, back: str = "", records: int = 0) -> list[str]:
        """What is rare at the end, where lanes are together: the chunk's begin lies too far back."""
        del back, records
        return [f"$wl_far_{number}:", *self._far(), f"bra.uni $wl_near_{number};"] if together else []

    def end(self, number: int, together: bool) -> list[str]:
        """The warp's end, and in a block's first warp the block record."""
        records = self.marks + 1
        skips = "setp.ge.u32 %wl_p5, %wl_r3, 32;", f"@%wl_p5 bra.uni $wl_end_{number};"
        far = "vote.sync.any.pred %wl_p3, %wl_p1, 0xffffffff;", f"@%wl_p3 bra.uni $wl_far_{number};"
        return [
            "mov.u64 %wl_now, %clock64;",
            "mov.u64 %wl_end, %globaltimer;",
            *self.record("%wl_now", END_CODE, self.register_of(records)),
            *self._last(records, behind=records - 1 in self.waiting),
            *self._epoch("%wl_now", "%wl_e"),
            "sub.u32 %wl_d, %wl_e, %wl_ep;",
            "setp.gt.and.u32 %wl_p1, %wl_d, 1, %wl_w;",
            *([*far, f"$wl_near_{number}:"] if together else self._far()),
            *thread("%wl_r3", flat=self.flat),
            *(skips if together else ()),
            # A second or more, and the low half of globaltimer at the begin may be that of another turn.
            f"setp.lt.and.u32 %wl_p5, %wl_d, {1 << self.code_bits}, %wl_w;",
            *([] if together else ["setp.lt.and.u32 %wl_p5, %wl_r3, 32, %wl_p5;"]),
            *self._block_record(),
            *([f"$wl_end_{number}:"] if together else []),
        ]

    def _far(self) -> list[str]:
        """Where %wl_p1: the chunk's end is that of one that does not say that its records tell."""
        return [
            *thread("%wl_r3", flat=self.flat),
            "shr.u32 %wl_r3, %wl_r3, 5;",
            *self._meta("%wl_r9", "%wl_r3", str(header_word(int(ChunkFlag.LAST), self.marks + 1))),
            f"@%wl_p1 st.global.cs.u32 [%wl_ad+{4 * layout.WORD_META}], %wl_r9;",
            f"@%wl_p1 st.global.cs.u64 [%wl_ad+{4 * layout.WORD_BASE_LOW}], %wl_now;",
        ]

    def _block_record(self, meta: str = "%wl_r9") -> list[str]:
        """All but the begin's globaltimer, where %wl_p5."""
        at = 4 * layout.BLOCK_RECORD_WORD
        far = header_word(int(ChunkFlag.LAST | ChunkFlag.BLOCK_RECORD), self.marks + 1)
        near = header_word(int(ChunkFlag.STREAM | ChunkFlag.BLOCK_RECORD))
        return [
            f"selp.b32 %wl_r7, {far}, {near}, %wl_p1;",
            *self._meta(meta, "%wl_r7"),
            "mov.b64 {%wl_r6, %wl_r7}, %wl_end;",
            f"@%wl_p5 st.global.cs.u32 [%wl_ad+{at + 4}], %wl_r6;",
            f"@%wl_p5 st.global.cs.v2.u32 [%wl_ad+{at + 8}], {{%wl_r7, %wl_r14}};",
            "mov.u64 %wl_end, %gridid;",
            "mov.b64 {%wl_r6, %wl_r7}, %wl_end;",
            f"mov.u32 %wl_r6, {self.sites_hash};",
            "mov.u32 %wl_r8, 0;",
            f"@%wl_p5 st.global.cs.v4.u32 [%wl_ad+{at + 16}], {{%wl_r6, %wl_r7, %wl_r8, %wl_r8}};",
            f"@%wl_p5 st.global.cs.u32 [%wl_ad+{4 * layout.WORD_META}], {meta};",
        ]

    @staticmethod
    def _meta(register: str, *parts: str) -> list[str]:
        """Word 1 of a header, of these parts and of the SM, which %wl_r14 then holds."""
        first, *more = parts
        return [
            "mov.u32 %wl_r14, %smid;",
            f"shl.b32 %wl_r13, %wl_r14, {layout.META_SM_SHIFT};",
            f"or.b32 {register}, %wl_r13, {first};",
            *(f"or.b32 {register}, {register}, {part};" for part in more),
        ]


def can_be_held(mark: Mark) -> bool:
    """Whether a kernel's first mark can come ahead of where its memory is waited for: not in front of a wait, which
    would then last as long."""
    return mark.verb != Verb.WAIT and not mark.pins and not mark.settles


def stored_together(flow: Flow, plan: Plan) -> frozenset[int]:
    """Which records of a kernel whose marks are each passed once are stored with the one behind them; 0 is its begin's.

    Every other one, where a warp that comes to the one comes to the other: else the place of one that hangs in between
    would not be told.
    """
    ends = [n for n, own in enumerate(flow.code) if own.name in LEAVES and flow.block_of[n] in flow.reached]
    last = flow.code[-1]
    if last.name not in JUMPS or last.predicate or flow.ends_at_label:
        ends.append(len(flow.code))
    places = [flow.blocks[0].start, *(mark.index + mark.behind for mark in plan.marks)]
    blocks = [0, *(flow.block_of[mark.index] for mark in plan.marks)]
    if len(ends) == 1:
        places.append(ends[0])
        blocks.append(flow.block_of[min(ends[0], len(flow.code) - 1)] if not flow.ends_at_label else -1)
    pairs = enumerate(itertools.pairwise(zip(places, blocks, strict=True)))
    return frozenset(
        number
        for number, ((begin, block), (end, other)) in pairs
        if number % 2 == 0 and block == other and not any(map(may_hang, flow.code[begin:end]))
    )
