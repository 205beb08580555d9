"""Parts of the recorder that need to know nothing of a kernel: who a warp is, where it stands, what it waits for.

In: names of registers. Out: lines of PTX, in which the names of the recorder's state stand (recorder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from warplens import layout

WARPS: Final = (1 << layout.META_WARP_BITS) - 1
OWN: Final = (1 << layout.META_SM_SHIFT + layout.META_SM_BITS) - 1
"""The low bits of %wl_left: warp and SM."""
CURSOR_OF_BLOCK: Final = 33
"""How many cursors lie between those of a block and of the next."""
EMPTY: Final = 4 * layout.HEADER_WORDS - 4
"""Low bits of the place in a chunk without records."""


def block(register: str) -> list[str]:
    """The block's number in its grid, x fastest."""
    return _linear(register, "ctaid", "nctaid")


def thread(register: str, *, flat: bool) -> list[str]:
    """The thread's number in its block, x fastest; `flat`: there are no others."""
    return [f"mov.u32 {register}, %tid.x;"] if flat else _linear(register, "tid", "ntid")


def cursor() -> list[str]:
    """`%wl_cursor`: CONTROL_CURSORS in front of the cursor with the number in %wl_r13, modulo how many there are."""
    return [
        f"and.b32 %wl_r13, %wl_r13, {layout.CURSOR_COUNT - 1};",
        f"mad.wide.u32 %wl_cursor, %wl_r13, {layout.CURSOR_STRIDE}, %wl_control;",
    ]


def first_cursor() -> list[str]:
    """The cursor that a warp asks first, by its block (%wl_block) and thread (%wl_r0).

    Each lane has another one, though lane 0 alone asks: what lanes add to one address ptxas would gather, with a vote,
    a count and a shuffle, and wait for the answer at once.
    """
    return [f"mad.lo.u32 %wl_r13, %wl_block, {CURSOR_OF_BLOCK}, %wl_r0;", *cursor()]


def header_word(flags: int, count: int = 0) -> int:
    """Word 1 of a header, without warp and SM."""
    marker = layout.META_MARKER << layout.META_MARKER_SHIFT
    return flags << layout.META_FLAGS_SHIFT | marker | count << layout.META_COUNT_SHIFT


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


def look_up() -> list[str]:
    """Whether the block stands in the list, where there is one. Launches that a window of replays would
    choose (CHOICE_WINDOW) are not recorded: nothing here counts them."""
    return [
        f"and.b32 %wl_r5, %wl_c3, {layout.CHOICE_WINDOW};",
        "setp.eq.and.u32 %wl_p0, %wl_r5, 0, %wl_p0;",
        f"and.b32 %wl_r5, %wl_c3, {layout.CHOICE_LIST};",
        "setp.ne.and.u32 %wl_p1, %wl_r5, 0, %wl_p0;",
        "mov.u64 %wl_q0, 0;",
        "mov.u32 %wl_r5, 0;",
        "mov.u32 %wl_r6, 0;",
        f"@%wl_p1 ld.global.u64 %wl_q0, [%wl_control+{layout.CONTROL_LIST_ADDRESS}];",
        f"@%wl_p1 ld.global.u32 %wl_r5, [%wl_control+{layout.CONTROL_LIST_BLOCKS}];",
        "setp.lt.and.u32 %wl_p2, %wl_block, %wl_r5, %wl_p1;",
        "shr.u32 %wl_r5, %wl_block, 5;",
        "mad.wide.u32 %wl_q0, %wl_r5, 4, %wl_q0;",
        "@%wl_p2 ld.global.u32 %wl_r6, [%wl_q0];",
        "and.b32 %wl_r5, %wl_block, 31;",
        "shr.u32 %wl_r6, %wl_r6, %wl_r5;",
        "and.b32 %wl_r6, %wl_r6, 1;",
        "setp.ne.u32 %wl_p2, %wl_r6, 0;",
        "not.pred %wl_p3, %wl_p1;",
        "or.pred %wl_p3, %wl_p3, %wl_p2;",
        "and.pred %wl_p0, %wl_p0, %wl_p3;",
    ]


def held() -> list[str]:
    """`%wl_r4`: records in the chunk; `%wl_q0`: the chunk."""
    return [
        f"and.b32 %wl_r4, %wl_lo, {layout.CHUNK_BYTES - 1};",
        "sub.u32 %wl_r5, %wl_lo, %wl_r4;",
        f"sub.u32 %wl_r4, %wl_r4, {EMPTY};",
        "shr.u32 %wl_r4, %wl_r4, 2;",
        "mov.b64 %wl_q0, {%wl_r5, %wl_hi};",
    ]


def meta(register: str, flags: int, more: str = "") -> list[str]:
    """Word 1 of a header. `more`: a register that holds all of it but warp and SM."""
    return [
        f"and.b32 %wl_r13, %wl_left, {OWN};",
        f"or.b32 {register}, %wl_r13, {more or header_word(flags)};",
    ]


def with_sm() -> list[str]:
    """Puts the SM beside the warp's number in %wl_left."""
    return [
        "mov.u32 %wl_r14, %smid;",
        f"shl.b32 %wl_r14, %wl_r14, {layout.META_SM_SHIFT};",
        "or.b32 %wl_left, %wl_left, %wl_r14;",
    ]


def stored(writes: str, offset: int, registers: Sequence[str]) -> str:
    """Stores one, two or four words behind %wl_ad, at a multiple of their size, where the predicate `writes`."""
    if len(registers) == 1:
        return f"@{writes} st.global.cs.u32 [%wl_ad+{offset}], {registers[0]};"
    return f"@{writes} st.global.cs.v{len(registers)}.u32 [%wl_ad+{offset}], {{{', '.join(registers)}}};"


def pinned(values: tuple[tuple[str, int], ...]) -> list[str]:
    """Waits until loaded values are there, each a register and its bits.

    The low two bits of the place are 0, which ptxas cannot know: the store that holds the values in front of the
    clock is never made.
    """
    out = ["and.b32 %wl_r4, %wl_lo, 3;", "mov.u32 %wl_r5, 0;"]
    for register, bits in values:
        move = f"mov.b32 %wl_r3, {register};" if bits == 32 else f"mov.b64 {{%wl_r3, %wl_r6}}, {register};"
        out += [move, "or.b32 %wl_r5, %wl_r5, %wl_r3;"]
    return [
        *out,
        "and.b32 %wl_r5, %wl_r5, %wl_r4;",
        "setp.ne.u32 %wl_p4, %wl_r5, 0;",
        "mov.b64 %wl_ad, {%wl_lo, %wl_hi};",
        "@%wl_p4 st.global.u32 [%wl_ad], %wl_r5;",
    ]


def any_lane(predicate: str, negated: bool) -> list[str]:
    """`%wl_p5`: whether an instruction with this predicate does anything in this warp."""
    sign = "!" if negated else ""
    return ["activemask.b32 %wl_r2;", f"vote.sync.any.pred %wl_p5, {sign}{predicate}, %wl_r2;"]
