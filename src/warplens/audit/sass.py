"""Reads the text of `nvdisasm -c -hex`, with `-gi -gp` (lines, inlining, lines of the PTX), `-g` (lines) or neither.

In: text, from any source. Out: `Section`s, one a kernel: instructions with address, predicate, opcode, operands,
control bits and source frames, and the labels between them. Reads text alone: no files, no tools. Raises `FormatError`
for text that is not such output; bounded in time and memory by the size of the text.

The control bits are bits 105 to 125 of the 128-bit instruction, the same from sm_75 to sm_120::

    | reuse 4 | wait mask 6 | read barrier 3 | write barrier 3 | yield 1 | stall 4 |
    bit 125                                                              bit 105

The table of lines has a flaw: where one line is inlined from two places and their instructions lie side by side, the
second place is missing. The lines of the PTX, which tell the places apart, mend what they can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from warplens.errors import FormatError

MAX_TEXT_BYTES: Final = 256 << 20
MAX_FRAMES: Final = 64
"""Frames of one place in the source: the innermost ones of a deeper nesting."""
SCOREBOARDS: Final = 6
NO_BARRIER: Final = 7
"""What the fields of read and write barrier hold in an instruction that sets none."""
INSTRUCTION_BYTES: Final = 16

_SECTION: Final = re.compile(r"\s*\.section\s+\.text\.([^\s,]+)")
_LABEL: Final = re.compile(r"([.$\w][^\s:]*):\s*$")
_INSTRUCTION: Final = re.compile(r"\s*/\*([0-9a-f]{4,8})\*/\s+(.*?)\s*;?\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
_BARE: Final = re.compile(r"\s*/\*[0-9a-f]{4,8}\*/\s+\S")
_SECOND_WORD: Final = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
_PLACE: Final = re.compile(r'\s*//## File "(.*?)", line (\d{1,9})(?: inlined at "(.*?)", line (\d{1,9}))?\s*$')
_PTX_FILE: Final = ".nv_debug_ptx_txt"
_TARGET: Final = re.compile(r"`\(([^)\s]+)\)")


class Frame(NamedTuple):
    """A line of a source file."""

    file: str
    line: int


class Control(NamedTuple):
    """The control bits: `write` and `read` are scoreboards 0 to 5 or NO_BARRIER, `wait` a mask of six."""

    stall: int
    yields: bool
    write: int
    read: int
    wait: int
    reuse: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    `predicate` is "P0", "!P0", "UP1" or "" (always). `frames` begins with the innermost function and ends with the
    kernel; one frame alone with `-g`, none without lines. `ptx_line` is 0 when it is not known. `own_place` is False
    where the table of lines did not change since the instruction before: the frames may then be those of another one.
    """

    address: int
    predicate: str
    opcode: str
    operands: str
    control: Control
    frames: tuple[Frame, ...] = ()
    ptx_line: int = 0
    own_place: bool = False

    @property
    def name(self) -> str:
        """The opcode up to its first dot: "LDG" of LDG.E.128."""
        return self.opcode.partition(".")[0]

    @property
    def targets(self) -> list[str]:
        """Labels that its operands name."""
        return _TARGET.findall(self.operands)


@dataclass
class Section:
    """Code of one kernel and of the functions that it calls; `labels` maps a name to an index of `code`."""

    name: str
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def has_lines(self) -> bool:
        """Whether the text told source lines."""
        return any(instruction.frames for instruction in self.code)


def control_of(high: int) -> Control:
    """Control bits of an instruction, from the upper 64 of its 128 bits."""
    bits = high >> 41
    return Control(
        stall=bits & 15,
        yields=not bits >> 4 & 1,  # the bit is 0 where the warp may yield
        write=bits >> 5 & 7,
        read=bits >> 8 & 7,
        wait=bits >> 11 & 63,
        reuse=bits >> 17 & 15,
    )


def read_sass(text: str) -> list[Section]:
    """The kernels in the output of nvdisasm, in its order; those without an instruction are left out.

    Raises `FormatError`, with the number of the line, for an instruction without its encoding or out of order.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise FormatError(f"machine code as text: expected at most {MAX_TEXT_BYTES:,} characters, found {len(text):,}")
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(line, number)
    reader.end()
    sections = [section for section in reader.sections if section.code]
    for section in sections:
        _mend_frames(section)
    return sections


def _mend_frames(section: Section) -> None:
    """Gives instructions of one line of the PTX the frames that the table of lines has for that line.

    Only where it has the same innermost line there, and no two sets of frames.
    """
    told: dict[tuple[int, Frame], set[tuple[Frame, ...]]] = {}
    for instruction in section.code:
        if instruction.own_place and instruction.ptx_line:
            told.setdefault((instruction.ptx_line, instruction.frames[0]), set()).add(instruction.frames)
    for index, instruction in enumerate(section.code):
        if instruction.own_place or not instruction.frames:
            continue
        known = told.get((instruction.ptx_line, instruction.frames[0]), set())
        if len(known) == 1:
            section.code[index] = replace(instruction, frames=next(iter(known)), own_place=True)


class _Reader:
    """Goes through the lines; an instruction is complete with its second word, on the line below it."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._frames: tuple[Frame, ...] = ()
        self._places: list[Frame] = []  # of a run of place lines that has not ended
        self._ptx_line = 0
        self._own_place = False
        self._pending: tuple[int, str, int] | None = None  # address, text, line number

    def take(self, line: str, number: int) -> None:
        if self._pending is not None:
            second = _SECOND_WORD.match(line)
            if second is None:
                raise FormatError(f"line {number}: expected the upper half of the instruction above, found {line:.60}")
            self._finish(int(second[1], 16))
        elif place := _PLACE.match(line):
            self._add_place(place)
        elif instruction := _INSTRUCTION.match(line):
            self._begin(instruction, number)
        elif _BARE.match(line):
            raise FormatError(f"line {number}: an instruction without its encoding: run nvdisasm with -hex")
        elif section := _SECTION.match(line):
            self.sections.append(Section(section[1]))
            self._frames, self._places, self._ptx_line = (), [], 0
        elif (label := _LABEL.match(line)) and self.sections:
            self.sections[-1].labels[label[1]] = len(self.sections[-1].code)

    def end(self) -> None:
        if self._pending is not None:
            raise FormatError(f"line {self._pending[2]}: the text ends within an instruction")

    def _add_place(self, place: re.Match[str]) -> None:
        """Frames of one place stand on lines of their own, each with the one that it is inlined at."""
        here = Frame(place[1], int(place[2]))
        if here.file == _PTX_FILE:
            self._ptx_line = here.line
            return
        if self._places and self._places[-1] != here:
            self._places = []
        if not self._places:
            self._places = [here]
        if place[3] is not None and len(self._places) < MAX_FRAMES:
            self._places.append(Frame(place[3], int(place[4])))

    def _begin(self, found: re.Match[str], number: int) -> None:
        if not self.sections:
            raise FormatError(f"line {number}: an instruction outside of any .text section")
        self._own_place = bool(self._places)
        if self._places:
            self._frames, self._places = tuple(self._places), []
        code = self.sections[-1].code
        address = int(found[1], 16)
        if address != len(code) * INSTRUCTION_BYTES:
            raise FormatError(
                f"line {number}: expected the instruction at {len(code) * INSTRUCTION_BYTES:#06x}, found {address:#06x}"
            )
        self._pending = address, found[2], number

    def _finish(self, high: int) -> None:
        assert self._pending is not None
        address, text, _ = self._pending
        self._pending = None
        predicate = ""
        if text.startswith("@"):
            predicate, _, text = text[1:].partition(" ")
        opcode, _, operands = text.strip().partition(" ")
        known = control_of(high), self._frames, self._ptx_line, self._own_place
        self.sections[-1].code.append(Instruction(address, predicate, opcode, operands.strip(), *known))
