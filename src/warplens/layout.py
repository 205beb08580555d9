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

A warp that took more chunks than it needed leaves in each of the rest a header of count 0 without an SM, with the flag
EXACT alone: it says that nothing is missing there, and is passed over.

A **detached** event has a chunk of its own, written at once by one lane in any control flow. Its flags field is
DETACHED_FLAGS, which no other chunk has, and its sequence DETACHED_SEQUENCE: it is none of the warp's own count.
base_cycles is the clock of the event. Its record is that of a MARK with an id, the mask of the lanes that were there,
and at most a payload. A record of 0 was not written yet.

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

FORMAT_VERSION: Final = (1, 1)
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
    STREAM = 32  # policies `stream` and `live`: base_cycles is the clock of the chunk's begin, count is not told
    NEAR = 64  # as EXACT, modulo 2^32 cycles; with EXACT: base_cycles itself is right modulo 2^32 only


DETACHED_FLAGS: Final = int(ChunkFlag.STREAM | ChunkFlag.LAST)  # a warp's end is a record where chunks have STREAM
DETACHED_SEQUENCE: Final = 0xFFFFFFFF

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
    END = (
        1  # of a chunk with the flag STREAM: the recorder ended; else base_cycles of a chunk with the flag LAST says so
    )
    GAP = 2  # payload: records left out on purpose or lost before this one
    RANGE_POP = 3
    EPOCH = 4  # reserved: id and payload hold a full clock64
    TOKEN_END = 5  # id: the sequence of the RANGE_START in this warp that it ends
    PHASE_END = 6  # ends the open phase without beginning another
    ANCHOR = 7  # reserved: id and payload hold a globaltimer


def code_bits(site_count: int) -> int:
    """Bits of a record's code for a kernel with `site_count` sites (1 to MAX_SITES)."""
    if not 1 <= site_count <= MAX_SITES:
        raise ValueError(f"a kernel has 1 to {MAX_SITES} sites, not {site_count}")
    return CODE_SITE_SHIFT + site_count.bit_length()


def read_code(record: int, code_bits: int) -> tuple[int, int]:
    """Site, and verb or (of site 0) control code, of an event's record."""
    code = record & ((1 << code_bits) - 1)
    return code >> CODE_SITE_SHIFT, code >> CODE_VERB_SHIFT & ((1 << CODE_VERB_BITS) - 1)


def sites_hash(name: str) -> int:
    """32-bit FNV-1a of a site set's name, as the device header computes it."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


# ---- device memory ------------------------------------------------------------------------------------------
# The module's constant symbol `warplens_device` points at the control block and at the chunks. What a host changes
# while kernels run lies in the control block.
DESCRIPTOR_SYMBOL: Final = "warplens_device"
MBARRIER: Final = "mbarrier"
"""What the resources of automatic marks begin with that are barriers in shared memory; alone, it is not known which."""
UNKNOWN_BARRIER: Final = "barrier ?"
"""A barrier of warps whose number automatic marks could not tell: that of one site need not be that of another."""
REMOTE: Final = "remote "
"""In front of a resource: arrivals at it in another block of the cluster."""
OWN_RESOURCES: Final = (
    *("cp.async", "wgmma", "bulk copies", "tensor memory loads", "tensor memory stores", "earlier grid", "next grid"),
    "flag",
    "loads",
)
"""Resources of automatic marks that no warp of the block arrives at."""
SITES_SYMBOL_PREFIX: Final = "warplens_sites_"
# The string of a site set: the sites, then the file and the line of the declaration. The sites are either
# "load, reduce, store" or, in the long form, SITE_SEPARATOR name FIELD_SEPARATOR kind FIELD_SEPARATOR resource each.
# Those of instrumented PTX have file, line and arrivals too, and behind the last line what is not marked.
SITE_SEPARATOR: Final = "\x1e"
FIELD_SEPARATOR: Final = "\x1f"
TAIL_SEPARATOR: Final = "\x1d"
MARKS_FILE: Final = "warplens.ptx"
"""Where the line information of instrumented PTX has what marks are made of; the line is MARKS_LINES plus the mark's
code: behind another file's line of the same number ptxas notes no change."""
MARKS_LINES: Final = 1 << 23
PTX_FILE: Final = "warplens.kernel.ptx"
"""Where it has what the compiler wrote, if that named no lines; the line is by how many lines it was moved down, modulo
PTX_LINES."""
PTX_LINES: Final = 1 << 24
LOCAL_STATE_BYTES: Final = 32
"""Of a lane's local memory: the state of a recorder in PTX that has no registers for it, 24 bytes, and 8 by which a
kernel's own arrays, which may be aligned to 32, take as much as before."""


DESCRIPTOR = np.dtype(
    [
        ("control", "<u8"),  # device address of the control block; 0 = record nothing
        ("arena", "<u8"),  # device address of the chunks, of device memory or of mapped host memory
        ("shared_chunks", "<u4"),  # chunks that the cursors hand out, a multiple of CURSOR_COUNT; of rings: the cursors
        ("chunks", "<u4"),  # all chunks: the rest may be taken by any warp whose cursor is at its end
    ]
)
# What is recorded, four words read at once: a warp mask (0 = nothing), then three for every n-th block (`choice`).
CONTROL_CHOICE: Final = 0
CHOICE_LIST: Final = 32  # bit of the fourth word: blocks are listed
CHOICE_WINDOW: Final = 64  # ... launches are counted, and those of a window recorded
CHOICE_ITERATION_SHIFT: Final = 8  # ... and above it: n of every n-th iteration, 0 for all
CONTROL_LIST_ADDRESS: Final = 16  # u64, of words whose bit b % 32 in word b / 32 says that block b is recorded
CONTROL_LIST_BLOCKS: Final = 24  # u64, bits that there are
CONTROL_BLOCKS_ENDED: Final = 32  # u64, over all launches; counted while there is a window
CONTROL_WINDOW_FIRST: Final = 40  # u64, launch
CONTROL_WINDOW_LAUNCHES: Final = 48  # u64
CONTROL_SLAB: Final = 56  # u32, chunks that a warp of instrumented PTX takes at once; 0 stands for 1
CONTROL_FRESH: Final = 128  # from here on it begins anew with each recording
CONTROL_LOST_EVENTS: Final = 128  # u64
CONTROL_LOST_CHUNKS: Final = 136  # u64
CONTROL_POOL_CURSOR: Final = 192  # u32, begins at shared_chunks
# Cursor c begins at c and goes up by CURSOR_COUNT: what it holds is the index of the next chunk.
CONTROL_CURSORS: Final = 256  # u32 each, CURSOR_STRIDE apart
CURSOR_COUNT: Final = 1024
CURSOR_STRIDE: Final = 32
CONTROL_BYTES: Final = CONTROL_CURSORS + CURSOR_COUNT * CURSOR_STRIDE
CONTROL_ALIGNMENT: Final = CURSOR_COUNT * CURSOR_STRIDE  # of the control block: an offset of a cursor is OR-ed in
# Where the newest are kept, each cursor's share is a ring, and there are fewer cursors where there are few chunks:
# their count, a power of two, stands in shared_chunks, and chunk i belongs to cursor i modulo that. Behind the control
# block lies a state for each chunk, u32: STATE_FREE, STATE_OPEN while a warp writes it, else STATE_CLOSED + its events.
# Losses are counted beside each cursor, u64 each, not in CONTROL_LOST_*: one address would hold up all warps.
CONTROL_STATES: Final = CONTROL_BYTES
STATE_BYTES: Final = 4
STATE_FREE: Final = 0
STATE_CLOSED: Final = 1
STATE_OPEN: Final = 0xFFFFFFFF
CURSOR_LOST_EVENTS: Final = 8  # bytes behind the cursor
CURSOR_LOST_CHUNKS: Final = 16
RING_LEAST: Final = 64  # chunks of a cursor's ring, while there are as many
# Policy `live`: behind the chunks, an entry of four words for each warp that an SM can hold, by SM and %warpid: the
# block's linear index + 1 (0 = none yet), the warp, the sequence of its last event and that event's record.
LAST_WARPS: Final = 64
LAST_BYTES: Final = 16


def choice(*, every_block: int = 1, warp_mask: int = 0xFFFFFFFF, every_iteration: int = 1) -> list[int]:
    """The words at CONTROL_CHOICE that record every `every_block`-th block and `every_iteration`-th iteration.

    Block b is one of them if and only if b times the second word, turned right by the low five bits of the fourth, is
    at most the third (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, section 9).
    """
    twos = (every_block & -every_block).bit_length() - 1
    inverse = pow(every_block >> twos, -1, 1 << 32)
    iterations = every_iteration if every_iteration > 1 else 0
    return [warp_mask, inverse, 0xFFFFFFFF // every_block, twos | iterations << CHOICE_ITERATION_SHIFT]


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
    for prefix, members in (("kFlag", ChunkFlag), ("kVerb", Verb), ("kControlCode", Control)):
        lines.append("")
        lines += [f"constexpr unsigned {_camel(prefix, m.name or '')} = {m.value}u;" for m in members]
    lines += [
        "",
        "struct Descriptor {",
        "  unsigned long long control;",
        "  unsigned long long arena;",
        "  unsigned shared_chunks;",
        "  unsigned chunks;",
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
    for title, members in (("Chunk flags", ChunkFlag), ("Verbs", Verb), ("Control codes", Control)):
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
