"""Writes text as nvdisasm does, from instructions with their control bits: for tests that derive what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warplens.audit.sass import Section, read_sass

NONE = 7
Place = tuple[str, int]
HEADER = "/inc/warplens/warplens.cuh"
DEVICE = "/inc/warplens/detail/device.cuh"
LANDED = "/inc/warplens/detail/landed.cuh"


@dataclass(frozen=True)
class Ins:
    """`text` is "LDG.E R2, [R4.64]", with "@P0 " in front where it is predicated; places begin with the innermost."""

    text: str
    write: int = NONE
    read: int = NONE
    wait: Sequence[int] = ()
    places: Sequence[Place] = ()
    ptx_line: int = 0

    def high(self) -> int:
        """The upper 64 bits: stall 1, yield bit 1, then both barriers, the mask and no reuse."""
        mask = sum(1 << scoreboard for scoreboard in self.wait)
        return (1 | 1 << 4 | self.write << 5 | self.read << 8 | mask << 11) << 41


def at(line: int) -> tuple[Place, ...]:
    """A place in the kernel."""
    return (("/src/k.cu", line),)


def mark(line: int, *, verb_line: int, ptx_line: int = 0, predicate: str = "", register: str = "R9") -> Ins:
    """A clock read of a mark on a line of the kernel, through a line of warplens.cuh."""
    places = ((DEVICE, 54), (HEADER, verb_line), ("/src/k.cu", line))
    return Ins(f"{predicate}CS2R.32 {register}, SR_CLOCKLO", places=places, ptx_line=ptx_line)


def text(items: Sequence[Ins | str], name: str = "kernel") -> str:
    """The text of one kernel; a str is a label."""
    lines = [
        "\t.target\tsm_90a",
        f"//--------------------- .text.{name} ----",
        f'\t.section\t.text.{name},"ax",@progbits',
    ]
    lines += [f".text.{name}:"]
    address = 0
    for item in items:
        if isinstance(item, str):
            lines.append(f"{item}:")
            continue
        for inner, outer in zip(item.places, [*item.places[1:], None], strict=False):
            tail = f' inlined at "{outer[0]}", line {outer[1]}' if outer else ""
            lines.append(f'\t//## File "{inner[0]}", line {inner[1]}{tail}')
        if item.ptx_line:
            lines.append(f'\t//## File ".nv_debug_ptx_txt", line {item.ptx_line}')
        lines.append(f"        /*{address:04x}*/                   {item.text} ;   /* 0x{address:016x} */")
        lines.append(f"                                        /* 0x{item.high():016x} */")
        address += 16
    return "\n".join(lines) + "\n"


def section(items: Sequence[Ins | str], name: str = "kernel") -> Section:
    """The same, read back."""
    (found,) = read_sass(text(items, name))
    return found
