"""The layout of what the GPU writes, stated once.

In: nothing. Out: numpy dtypes, shifts and masks for the decoder, the generated device header
(``include/warplens/detail/layout.h``) and the table in ``docs/reference/records.md``.
`python -m warplens.layout` rewrites both; a test fails when they differ from what stands here.
Nothing else in the project may spell a shift, a mask or an offset of a record (docs/adr/0001-record-layout.md).

A **chunk** is 32 words of 32 bits (128 bytes), filled by one warp in one coalesced store::

    word 0      block          linear index of the block, x fastest
    word 1      meta           bits: | marker 4 | flags 7 | count 5 | sm 10 | warp 6 |
    word 2      grid           low 32 bits of %gridid
    word 3      sequence       index of the chunk's first record in the warp's own count of records
    word 4, 5   base_cycles    clock64 when the chunk was written (low, high)
    word 6..31  records        `count` of them

A **record** is one word. An event's record is::

    | low bits of clock64 : 32 - code_bits | site : code_bits - 5 | verb 3 | has_id 1 | has_payload 1 |

followed by its id word and its payload word where it has them. `code_bits` is 5 plus the bits that the
number of sites needs; site 0 is reserved and its verb field holds a `Control` code instead. The events of a chunk lie
between the base_cycles of the warp's chunk before it (for the first: of the launch's begin, by decode/bounds.py) and
its own: where that is less than 2^(32 - code_bits) cycles every time is exact, else the decoder says that it cannot
tell. No wrap is guessed.

A **block record** fills words 24..31 of the last chunk of the block's first warp (flag BLOCK_RECORD). It makes two
pairs (globaltimer, clock64): of the block's begin, with the time of the warp's record 0, and of its end, with
base_cycles.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Final

import numpy as np

FORMAT_VERSION: Final = (1, 0)
"""Version of the `.wlens` file: a reader refuses a newer major number, a newer minor one only adds."""

CHUNK_WORDS: Final = 32
CHUNK_BYTES: Final = CHUNK_WORDS * 4
HEADER_WORDS: Final = 6
RECORD_SLOTS: Final = CHUNK_WORDS - HEADER_WORDS  # 26
BLOCK_RECORD_WORD: Final = 24
BLOCK_RECORD_SLOTS: Final = BLOCK_RECORD_WORD - HEADER_WORDS  # records that fit beside a block record: 18

WORD_BLOCK: Final = 0
WORD_META: Final = 1
WORD_GRID: Final = 2
WORD_SEQUENCE: Final = 3
WORD_BASE_LOW: Final = 4
WORD_BASE_HIGH: Final = 5

# word 1: | marker 4 | flags 7 | count 5 | sm 10 | warp 6 |
META_WARP_BITS: Final = 6
META_SM_SHIFT: Final = 6
META_SM_BITS: Final = 10
META_SM_UNKNOWN: Final = 1023  # then it is that of the block record
META_COUNT_SHIFT: Final = 16
META_COUNT_BITS: Final = 5
META_FLAGS_SHIFT: Final = 21
META_FLAGS_BITS: Final = 7
META_MARKER_SHIFT: Final = 28
META_MARKER: Final = 0xA
"""A chunk that was reserved and never written is all zeros: its marker differs."""

# words of a block record, from BLOCK_RECORD_WORD on
BLOCK_GLOBALTIMER_BEGIN: Final = 0  # low 32 bits, read right after the clock of the warp's first record
BLOCK_GLOBALTIMER_LOW: Final = 1  # read beside base_cycles
BLOCK_GLOBALTIMER_HIGH: Final = 2
BLOCK_SM: Final = 3
BLOCK_SITES_HASH: Final = 4
BLOCK_GRID_HIGH: Final = 5
BLOCK_SPARE: Final = 6  # two words, 0


class ChunkFlag(enum.IntFlag):
    """Bits of the flags field of word 1."""

    LAST = 1  # the recorder ended, at base_cycles: nothing follows in this warp
    PARTIAL = 2  # written by fewer lanes than the warp has, or after lanes had left
    EXACT = 4  # no event is older than base_cycles - 2^(32 - code_bits), whatever lay before: times are exact
    BLOCK_RECORD = 8  # words 24..31 hold the block record
    NONUNIFORM = 16  # lanes disagreed about how many marks the warp had passed
    STREAM = 32  # reserved for the policies `stream` and `live`
    SPARE = 64


# code of a record: | site | verb 3 | has_id 1 | has_payload 1 |
CODE_PAYLOAD: Final = 1
CODE_ID: Final = 2
CODE_VERB_SHIFT: Final = 2
CODE_VERB_BITS: Final = 3
CODE_SITE_SHIFT: Final = 5
MAX_SITES: Final = 1023
"""More would leave fewer than 17 bits (131,072 cycles) for the time of an event."""


class Verb(enum.IntEnum):
    """What a record of site 1 and above says."""

    PHASE = 0  # ends the phase (or wait) before it and begins this one
    MARK = 1  # an instant
    RANGE_PUSH = 2
    RANGE_START = 3  # begins a range that a RANGE_END of the same site and id ends, in any warp
    RANGE_END = 4
    WAIT = 5  # like PHASE, and says that the warp waits for the site's resource
    ARRIVE = 6  # an instant: the warp has done its part for the site's resource
    SPARE = 7


class Control(enum.IntEnum):
    """What a record of site 0 says, in its verb field."""

    NONE = 0  # a word that was never written
    END = 1  # reserved: a warp's end is base_cycles of its chunk with the flag LAST
    GAP = 2  # payload: records left out on purpose or lost before this one
    RANGE_POP = 3
    EPOCH = 4  # reserved for `stream`: id and payload hold a full clock64
    TOKEN_END = 5  # id: the sequence of the RANGE_START in this warp that it ends
    PHASE_END = 6  # ends the open phase without beginning another
    ANCHOR = 7  # reserved: id and payload hold a globaltimer


def code_bits(site_count: int) -> int:
    """Bits of a record's code for a kernel with `site_count` sites (1 to MAX_SITES)."""
    if not 1 <= site_count <= MAX_SITES:
        raise ValueError(f"a kernel has 1 to {MAX_SITES} sites, not {site_count}")
    return CODE_SITE_SHIFT + site_count.bit_length()


def sites_hash(name: str) -> int:
    """32-bit FNV-1a of a site set's name, as the device header computes it."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


# ---- device memory ------------------------------------------------------------------------------------------
# The module's constant symbol `warplens_device` points at the control block; the arena of chunks follows it.
DESCRIPTOR_SYMBOL: Final = "warplens_device"
SITES_SYMBOL_PREFIX: Final = "warplens_sites_"
# The string of a site set: the sites, then the file and the line of the declaration. The sites are either
# "load, reduce, store" or, in the long form, SITE_SEPARATOR name FIELD_SEPARATOR kind FIELD_SEPARATOR resource each.
SITE_SEPARATOR: Final = "\x1e"
FIELD_SEPARATOR: Final = "\x1f"
TAIL_SEPARATOR: Final = "\x1d"


class Mode(enum.IntEnum):
    """What the device records, in the descriptor."""

    OFF = 0
    ALL = 1
    NARROWED = 2


DESCRIPTOR = np.dtype(
    [
        ("control", "<u8"),  # device address of the control block; 0 = record nothing
        ("shared_chunks", "<u4"),  # chunks that the cursors hand out, a multiple of CURSOR_COUNT
        ("chunks", "<u4"),  # all chunks: the rest may be taken by any warp whose cursor is at its end
        ("mode", "<u4"),  # Mode
        ("every", "<u4"),  # in mode NARROWED: record every n-th block
        ("warp_mask", "<u4"),  # in mode NARROWED: bit w = record warp w of a block
        ("spare", "<u4"),
    ]
)
CONTROL_LOST_EVENTS: Final = 0  # u64
CONTROL_LOST_CHUNKS: Final = 8  # u64
CONTROL_POOL_CURSOR: Final = 128  # u32, begins at shared_chunks
# Cursor c begins at c and goes up by CURSOR_COUNT: what it holds is the index of the next chunk.
CONTROL_CURSORS: Final = 256  # u32 each, CURSOR_STRIDE apart
CURSOR_COUNT: Final = 1024
CURSOR_STRIDE: Final = 32
ARENA_OFFSET: Final = CONTROL_CURSORS + CURSOR_COUNT * CURSOR_STRIDE
CONTROL_ALIGNMENT: Final = CURSOR_COUNT * CURSOR_STRIDE  # of the control block: an offset of a cursor is OR-ed in


def _constants() -> dict[str, int]:
    skip = {"FORMAT_VERSION"}
    return {n: v for n, v in globals().items() if n.isupper() and isinstance(v, int) and n not in skip}


def _camel(prefix: str, name: str) -> str:
    return prefix + "".join(part.capitalize() for part in name.split("_"))


def device_header() -> str:
    """Text of the generated device header."""
    lines = [
        "// Generated by `python -m warplens.layout` from layout.py: do not edit.",
        "#ifndef WARPLENS_DETAIL_LAYOUT_H",
        "#define WARPLENS_DETAIL_LAYOUT_H",
        "",
        "namespace warplens {",
        "namespace detail {",
        "namespace layout {",
        "",
    ]
    lines += [f"constexpr unsigned {_camel('k', name)} = {value}u;" for name, value in _constants().items()]
    for prefix, members in (("kFlag", ChunkFlag), ("kVerb", Verb), ("kControlCode", Control), ("kMode", Mode)):
        lines.append("")
        lines += [f"constexpr unsigned {_camel(prefix, m.name or '')} = {m.value}u;" for m in members]
    lines += [
        "",
        "struct Descriptor {",
        "  unsigned long long control;",
        "  unsigned shared_chunks;",
        "  unsigned chunks;",
        "  unsigned mode;",
        "  unsigned every;",
        "  unsigned warp_mask;",
        "  unsigned spare;",
        "};",
        "",
        "}  // namespace layout",
        "}  // namespace detail",
        "}  // namespace warplens",
        "",
        "#endif  // WARPLENS_DETAIL_LAYOUT_H",
        "",
    ]
    return "\n".join(lines)


def documentation_table() -> str:
    """Markdown of the layout for the reference documentation."""
    rows = ["<!-- Generated by `python -m warplens.layout` from layout.py: do not edit. -->", ""]
    rows += ["| constant | value |", "|---|---|"]
    rows += [f"| `{name}` | {value} |" for name, value in _constants().items()]
    for title, members in (("Chunk flags", ChunkFlag), ("Verbs", Verb), ("Control codes", Control), ("Modes", Mode)):
        rows += ["", f"| {title.lower()} | value |", "|---|---|"]
        rows += [f"| `{m.name}` | {m.value} |" for m in members]
    return "\n".join(rows) + "\n"


def generated_files(root: Path) -> dict[Path, str]:
    """Files that stand in the checkout at `root` and are made from this module."""
    return {
        root / "src/warplens/include/warplens/detail/layout.h": device_header(),
        root / "docs/reference/records-table.md": documentation_table(),
    }


if __name__ == "__main__":
    for path, text in generated_files(Path(__file__).parents[2]).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        sys.stdout.write(f"wrote {path}\n")
