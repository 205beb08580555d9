"""Chunk headers: raw words to checked columns in the order launch, block, warp, sequence.

In: arrays of uint32 (n, 32) per records member and the checked manifest. Out: `Chunks`, whose rows are all
plausible and whose breaks (a warp's first chunk, records lost before a chunk) are known; the rest are problems.
Must not look into records: only at the header.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.decode import streams
from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.manifest import blocks_of, overwrites, warps_of
from warplens.decode.problems import Problem, Problems
from warplens.layout import ChunkFlag

_COUNT_MASK: Final = (1 << layout.META_COUNT_BITS) - 1
_WARP_MASK: Final = (1 << layout.META_WARP_BITS) - 1
_U32_MASK: Final = 0xFFFFFFFF
_BLOCK_CHUNKS: Final = 4096  # read at a time: they stay in the second-level cache while their six columns are made


@dataclass
class Chunks:
    """Columns over chunks; `row` is the chunk's index in the array of words."""

    row: I64
    launch: I64
    block: I64
    warp: I64
    gwarp: I64
    """The warp's number over all launches: grows with (launch, block, warp)."""
    sm: I64
    count: I64
    flags: I64
    sequence: I64
    base_cycles: I64
    """clock64, modulo 2^64."""
    lost: I64
    """Records missing between this chunk and the one before it in the warp (or the warp's begin)."""
    reach_cycles: I64
    """Cycles from the earliest time that an event of the chunk can have to base_cycles (bounds.py)."""
    likely: Bool
    """Not proven, but its block's begin says that all its events lie where their records tell."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, which: Any) -> Chunks:
        """The chunks that an index array or a mask selects."""
        return Chunks(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    @cached_property
    def first_of_warp(self) -> Bool:
        """True where a chunk is the first of its warp."""
        return starts(self.gwarp)

    @cached_property
    def single(self) -> bool:
        """True when no warp has a second chunk."""
        return bool(self.first_of_warp.all())

    @cached_property
    def first_of_block(self) -> I64:
        """Indices of the chunks that are the first of their block."""
        first = starts(self.block)
        if len(self) and self.launch[0] != self.launch[-1]:
            first |= starts(self.launch)
        return np.flatnonzero(first)

    @cached_property
    def block_number(self) -> I64:
        """Of each chunk: how many blocks come before its own."""
        first = self.first_of_block
        return np.repeat(np.arange(len(first)), np.diff(np.append(first, len(self))))

    def has(self, flag: ChunkFlag) -> Bool:
        """True where a chunk has `flag`."""
        return np.asarray((self.flags & int(flag)) != 0)


def starts(values: npt.NDArray[Any]) -> Bool:
    """True where a value differs from the one before it; the first is always true."""
    out = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def read_chunks(
    records: dict[str, U32], manifest: dict[str, Any], code_bits: list[int], problems: Problems
) -> tuple[U32, Chunks, Chunks]:
    """Words of all members, shape (n, 32), and the checked, ordered columns of their chunks; of those of detached
    events apart, by warp and clock.

    `code_bits` is per launch.
    """
    launches = manifest["launches"]
    shape = _Shape(
        blocks=np.array([blocks_of(entry) for entry in launches] or [0], np.int64),
        warps=np.array([warps_of(entry) for entry in launches] or [0], np.int64),
    )
    arrays, owners = [np.zeros((0, layout.CHUNK_WORDS), np.uint32)], [np.zeros(0, np.int64)]
    heads = [np.zeros((layout.HEADER_WORDS, 0), np.uint32)]
    alone, its_launch, before = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    numbers: dict[str | None, list[int]] = {}
    for number, entry in enumerate(launches):
        numbers.setdefault(entry["records"], []).append(number)
    for member, given in records.items():
        words = given
        entries = numbers.get(member, [])
        head = _headers(words)
        spare = bool(entries) and all(_in_slabs(manifest, launches[i]) for i in entries)
        launch = _check_member(head, words, member, entries, shape, launches, problems, spare=spare)
        open_rows = np.flatnonzero(streams.is_stream(head[layout.WORD_META]) & (launch >= 0))
        if len(open_rows):
            apart = streams.is_detached(head[layout.WORD_META][open_rows])
            rows, open_rows = open_rows[apart], open_rows[~apart]
            alone.append(rows + before)
            its_launch.append(launch[rows])
            launch[rows] = -1
        if len(open_rows):
            words = words.copy()
            words[open_rows] = streams.close(words[open_rows], np.array(code_bits, np.int64)[launch[open_rows]])
            torn = open_rows[streams.is_torn(words[open_rows])]
            if len(torn):
                text = f"{len(torn)} chunks of {member} were just being begun when the kernel was stopped"
                problems.add(Problem("torn_chunk", len(torn), "note", text))
                launch[torn] = -1
            head = _headers(words)
        arrays.append(words)
        heads.append(head)
        owners.append(launch)
        before += len(words)
    words, head, launch = _joined(arrays), _joined(heads, axis=1), _joined(owners)
    detached = np.concatenate(alone)
    lone = _columns(detached, head[:, detached], np.concatenate(its_launch), shape)
    lone = lone.take(np.lexsort((lone.base_cycles, lone.gwarp)))
    lone.lost[:] = lone.reach_cycles[:] = 0
    row = np.flatnonzero(launch >= 0)
    if len(row) < len(launch):
        head, launch = head[:, row], launch[row]
    chunks = _columns(row, head, launch, shape)
    return words, _count_lost(_drop_duplicates(chunks, problems), manifest, problems), lone


def _headers(words: U32) -> U32:
    """The header's words as columns, shape (6, n)."""
    out = np.empty((layout.HEADER_WORDS, len(words)), np.uint32)
    for low in range(0, len(words), _BLOCK_CHUNKS):
        part = slice(low, low + _BLOCK_CHUNKS)
        out[:, part] = words[part, : layout.HEADER_WORDS].T
    return out


def _joined(parts: list[npt.NDArray[Any]], axis: int = 0) -> npt.NDArray[Any]:
    """All parts behind the first, which only says what an empty whole looks like; without a copy where it is one."""
    return parts[1] if len(parts) == 2 else np.concatenate(parts, axis=axis)


@dataclass
class _Shape:
    """Blocks and warps per block of each launch."""

    blocks: I64
    warps: I64

    def gwarp(self, launch: I64, block: U32, warp: U32) -> I64:
        base = np.cumsum(self.blocks * self.warps) - self.blocks * self.warps
        out = block * self.of(self.warps, launch)
        out += warp
        if len(base) > 1:
            out += base[launch]
        return np.asarray(out)

    @staticmethod
    def of(facts: I64, launch: I64) -> Any:
        """What `facts` say of each launch: one number where there is but one."""
        return facts[0] if len(facts) == 1 else facts[launch]


def _check_member(
    head: U32,
    words: U32,
    member: str,
    entries: list[int],
    shape: _Shape,
    launches: list[dict[str, Any]],
    problems: Problems,
    *,
    spare: bool,
) -> I64:
    """The launch of each chunk of a member; -1 for chunks that are not of this recording, which become problems.

    `spare`: warps took several chunks at once, and may have left some of them unused.
    """
    meta = head[layout.WORD_META]
    marked = meta >> np.uint32(layout.META_MARKER_SHIFT) == layout.META_MARKER
    if not marked.all():
        _tell_unmarked(words[~marked], member, problems, spare=spare)
    launch = _launch_of(head[layout.WORD_GRID], marked, entries, launches)
    count = meta >> np.uint32(layout.META_COUNT_SHIFT) & np.uint32(_COUNT_MASK)
    recorded = meta & np.uint32(int(ChunkFlag.BLOCK_RECORD) << layout.META_FLAGS_SHIFT) != 0
    good = marked & (launch >= 0) & (count <= layout.RECORD_SLOTS)
    good &= ~recorded | (count <= layout.BLOCK_RECORD_SLOTS)
    good &= head[layout.WORD_BLOCK] < shape.of(shape.blocks, launch)
    good &= (meta & np.uint32(_WARP_MASK)) < shape.of(shape.warps, launch)
    foreign = 0 if good.all() else int((marked & ~good).sum())
    if foreign:
        text = f"{foreign} chunks of {member} name no launch, block or warp of this recording, or hold too much"
        problems.add(Problem("foreign_chunk", foreign, "error", text))
        launch[~good] = -1
    elif not marked.all():
        launch[~marked] = -1
    launch[streams.is_spare(meta)] = -1
    return launch


def _columns(row: I64, head: U32, launch: I64, shape: _Shape) -> Chunks:
    """Columns in the order gwarp, sequence; what was written first comes first where both agree."""
    gwarp = shape.gwarp(launch, head[layout.WORD_BLOCK], head[layout.WORD_META] & np.uint32(_WARP_MASK))
    order = order_of(gwarp, head[layout.WORD_SEQUENCE])
    if order is not None:
        row, gwarp = row.take(order, mode="clip"), gwarp.take(order, mode="clip")
        if len(shape.blocks) > 1:
            launch = launch.take(order, mode="clip")
        head = head.take(order, axis=1, mode="clip")
    meta = head[layout.WORD_META]
    # In one piece of memory, which the system then maps in pages of 2 MB.
    block, warp, sm, count, flags, sequence, base_cycles, lost, reach = np.empty((9, len(row)), np.int64)
    block[:], sequence[:], base_cycles[:] = (
        head[word] for word in (layout.WORD_BLOCK, layout.WORD_SEQUENCE, layout.WORD_BASE_HIGH)
    )
    base_cycles <<= 32
    base_cycles |= head[layout.WORD_BASE_LOW]
    for out, shift, bits in (
        (warp, 0, layout.META_WARP_BITS),
        (sm, layout.META_SM_SHIFT, layout.META_SM_BITS),
        (count, layout.META_COUNT_SHIFT, layout.META_COUNT_BITS),
        (flags, layout.META_FLAGS_SHIFT, layout.META_FLAGS_BITS),
    ):
        out[:] = (meta >> np.uint32(shift)) & np.uint32((1 << bits) - 1)
    likely = np.zeros(len(row), np.bool_)
    return Chunks(row, launch, block, warp, gwarp, sm, count, flags, sequence, base_cycles, lost, reach, likely)


def in_order(words: U32) -> U32:
    """Chunks, uint32 (n, 32), by grid, block, warp and sequence; equals stay as they are."""
    _, rank = np.unique(words[:, layout.WORD_GRID], return_inverse=True)
    block, meta = words[:, layout.WORD_BLOCK], words[:, layout.WORD_META]
    gwarp = (rank.astype(np.int64) << 32 | block) << layout.META_WARP_BITS | (meta & np.uint32(_WARP_MASK))
    order = order_of(gwarp, words[:, layout.WORD_SEQUENCE])
    return words if order is None else words.take(order, axis=0)


def order_of(gwarp: I64, sequence: U32) -> I64 | None:
    """Indices that sort by gwarp and sequence, keeping the order of equals; None when they are sorted."""
    if not len(gwarp):
        return None
    bits = int(sequence.max()).bit_length()
    if int(gwarp.max()).bit_length() + bits > 63:
        return np.lexsort((sequence, gwarp))
    key: I64 = np.asarray(gwarp << bits | sequence)
    if (key[1:] > key[:-1]).all():
        return None
    index_bits = len(key).bit_length()
    if int(key.max()).bit_length() + index_bits > 63:
        return np.argsort(key, kind="stable")
    return np.asarray(np.sort(key << index_bits | np.arange(len(key))) & ((1 << index_bits) - 1))  # 2.5 times faster


def _in_slabs(manifest: dict[str, Any], launch: dict[str, Any]) -> bool:
    """Whether a launch's warps took memory in slabs, as automatic marks do (instrument/recorder.py): only their site
    sets say what they left out. They write a chunk's header before its first record."""
    name = manifest["kernels"][launch["kernel"]]["site_set"]
    return any(entry["name"] == name and "left_out" in entry for entry in manifest["site_sets"])


def _tell_unmarked(words: U32, member: str, problems: Problems, *, spare: bool) -> None:
    unwritten = int((~words.any(axis=1)).sum())
    if unwritten and not spare:
        text = f"{unwritten} chunks of {member} were reserved and never written: their warps did not get to flush"
        problems.add(Problem("unwritten_chunk", unwritten, "loss", text))
    if len(words) > unwritten:
        foreign = len(words) - unwritten
        text = f"{foreign} chunks of {member} lack the marker of a chunk: something else wrote there"
        problems.add(Problem("foreign_chunk", foreign, "error", text))


def _launch_of(grid: U32, marked: Bool, entries: list[int], launches: list[dict[str, Any]]) -> I64:
    """Index of each chunk's launch, -1 for none; entries without a grid_id take the grids in ascending order."""
    known = {launches[i]["grid_id"] & _U32_MASK: i for i in reversed(entries) if launches[i]["grid_id"] is not None}
    unnamed = [i for i in entries if launches[i]["grid_id"] is None]
    if len(known) == 1 and not unnamed:
        ((value, only),) = known.items()
        return np.where(grid == value, only, -1)
    if unnamed:
        spare = [int(value) for value in np.unique(grid[marked]) if int(value) not in known]
        known.update(zip(spare, unnamed, strict=False))
    if not known:
        return np.full(len(grid), -1, np.int64)
    values = np.array(sorted(known), np.int64)
    index = np.array([known[value] for value in sorted(known)], np.int64)
    found = np.minimum(np.searchsorted(values, grid), len(values) - 1)
    return np.where(values[found] == grid, index[found], -1)


def _drop_duplicates(chunks: Chunks, problems: Problems) -> Chunks:
    """Without chunks whose records the warp has already given: a replay with the same grid id, or a stray write."""
    if chunks.single:
        return chunks
    end = chunks.sequence + chunks.count
    again = ~chunks.first_of_warp
    again[1:] &= chunks.sequence[1:] < end[:-1]
    if not again.any():
        return chunks
    rank = np.cumsum(chunks.first_of_warp) << 34  # sequences stay below 2^33: the running end starts anew a warp
    reached = np.maximum.accumulate(rank + end)
    twice = ~chunks.first_of_warp
    twice[1:] &= (rank + chunks.sequence)[1:] < reached[:-1]
    bad = chunks.take(twice & (chunks.count > 0))  # lanes that left earlier than others end in an empty chunk
    problems.places(
        "duplicate_chunk",
        "error",
        "records that the warp had already given: left out (a replay under the same grid id, or a stray write)",
        launch=bad.launch,
        block=bad.block,
        warp=bad.warp,
        sequence=bad.sequence,
        count=bad.count,
    )
    return chunks.take(~twice)


def _count_lost(chunks: Chunks, manifest: dict[str, Any], problems: Problems) -> Chunks:
    chunks.lost[:] = chunks.sequence
    if not chunks.single:
        chunks.lost[1:] -= np.where(chunks.first_of_warp[1:], 0, (chunks.sequence + chunks.count)[:-1])
    gaps = chunks.lost > 0
    if not gaps.any():
        return chunks
    by_newer = np.array([overwrites(manifest, launch) for launch in range(len(manifest["launches"]))], np.bool_)
    for overwritten, text in (
        (False, "records of the warp are missing before this one"),
        (True, "records of the warp before this one were overwritten (keep=newest)"),
    ):
        at = chunks.take(gaps & (by_newer[chunks.launch] == overwritten))
        problems.places(
            "gap",
            "loss",
            text,
            launch=at.launch,
            block=at.block,
            warp=at.warp,
            sequence=at.sequence,
            count=at.lost,
        )
    return chunks
