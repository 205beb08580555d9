"""PTX that numbers blocks and threads, and the word of a chunk's header that says what it is.

In: names of registers. Out: lines of PTX; they use %wl_r15.
"""

from __future__ import annotations

from warplens import layout


def block(register: str) -> list[str]:
    """The block's number in its grid, x fastest."""
    return _linear(register, "ctaid", "nctaid")


def thread(register: str, *, flat: bool) -> list[str]:
    """The thread's number in its block, x fastest; `flat`: there are no others."""
    return [f"mov.u32 {register}, %tid.x;"] if flat else _linear(register, "tid", "ntid")


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
