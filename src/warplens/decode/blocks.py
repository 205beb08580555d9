"""Tables of blocks and launches, from chunk headers, block records and the times of their events.

In: ordered chunks with the first and last time of each, block records, the manifest. Out: columns of `blocks` and
`launches`. Must not look at single events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.clock import ClockMap
from warplens.decode.arrays import I64, Bool
from warplens.decode.chunks import Chunks, starts
from warplens.decode.manifest import warps_of
from warplens.decode.times import BlockRecords

Columns = dict[str, npt.NDArray[Any]]


def block_columns(
    chunks: Chunks, records: BlockRecords, first_ns: I64, last_ns: I64, filled: Bool, manifest: dict[str, Any]
) -> Columns:
    """One row per block that left a chunk. `sm_begin`, `sm_end` and `cluster` are -1 where they are not known.

    `first_ns` and `last_ns` are per chunk, and hold where the chunk is `filled` (has events).
    """
    first = chunks.first_of_block
    low = np.iinfo(np.int64).max
    if not len(first):
        names = (
            "launch",
            "block",
            "x",
            "y",
            "z",
            "cluster",
            "sm_begin",
            "sm_end",
            "start_ns",
            "end_ns",
            "warps",
            "wave",
        )
        return {name: np.zeros(0, np.int64) for name in names}
    if not filled.all():
        first_ns, last_ns = np.where(filled, first_ns, low), np.where(filled, last_ns, -low)
    start, end = np.minimum.reduceat(first_ns, first), np.maximum.reduceat(last_ns, first)
    end = np.maximum(end, start)
    sm_begin = np.full(len(first), -1, np.int64)
    recorded = chunks.block_number[records.chunk]
    sm_begin[recorded] = chunks.sm[first[recorded]]
    sm_end = chunks.sm[np.append(first[1:], len(chunks)) - 1]
    sm_end[recorded] = records.sm
    launch, block = chunks.launch[first], chunks.block[first]
    empty = start == low  # no event: the block has no time, and takes its launch's
    if empty.any():
        start[empty] = end[empty] = _launch_start(launch, np.where(empty, low, start))[empty]
    place = _grid_place(launch, block, manifest)
    return {
        "launch": launch,
        "block": block,
        **place,
        "sm_begin": sm_begin,
        "sm_end": np.where(sm_end == layout.META_SM_UNKNOWN, -1, sm_end),
        "start_ns": start,
        "end_ns": end,
        "warps": np.add.reduceat(chunks.first_of_warp, first, dtype=np.int64),
        "wave": _waves(launch, sm_end, start, end),
    }


def _launch_start(launch: I64, start: I64) -> I64:
    low = np.full(int(launch.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(low, launch, start)
    return np.where(low == np.iinfo(np.int64).max, 0, low)[launch]


def _grid_place(launch: I64, block: I64, manifest: dict[str, Any]) -> Columns:
    """x, y, z of each block, and its cluster's number (x fastest), -1 without clusters."""
    grids = np.array([entry["grid"] for entry in manifest["launches"]], np.int64).T
    sizes = np.array([entry["cluster"] for entry in manifest["launches"]], np.int64).T
    grid, across = (table.take(launch, axis=1, mode="clip") for table in (grids, -(-grids // sizes)))
    row, x = np.divmod(block, grid[0])
    z, y = np.divmod(row, grid[1])
    cluster = np.full(len(block), -1, np.int64)
    if sizes.max(initial=1) > 1:
        size = sizes.take(launch, axis=1, mode="clip")
        inside = x // size[0] + across[0] * (y // size[1] + across[1] * (z // size[2]))
        cluster = np.where(size.max(axis=0) > 1, inside, -1)
    return {"x": x, "y": y, "z": z, "cluster": cluster}


def _waves(launch: I64, sm: I64, start: I64, end: I64) -> I64:
    """Per SM the rank of a block by its start, divided by the most blocks resident at once on any SM of the launch."""
    lane = launch << 32 | sm
    order = np.lexsort((start, lane))
    begins = np.flatnonzero(starts(lane[order]))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    # +1 at each start, -1 at each end; an end at the time of a start comes first
    time, step, lanes = np.concatenate([start, end]), np.repeat([1, -1], len(start)), np.concatenate([lane, lane])
    by = np.lexsort((step, time, lanes))
    resident = np.cumsum(step[by])  # every lane ends at 0
    most = np.ones(int(launch.max()) + 1, np.int64)
    np.maximum.at(most, lanes[by] >> 32, resident)
    return rank // most[launch]


def launch_columns(
    blocks: Columns, manifest: dict[str, Any], events: I64, clocks: Sequence[ClockMap | None]
) -> Columns:
    """One row per entry of manifest.launches; `start_ns` and `end_ns` are int64 minimum where nothing arrived."""
    entries = manifest["launches"]
    nothing = np.iinfo(np.int64).min
    start, end = np.full(len(entries), np.iinfo(np.int64).max), np.full(len(entries), nothing)
    np.minimum.at(start, blocks["launch"], blocks["start_ns"])
    np.maximum.at(end, blocks["launch"], blocks["end_ns"])
    start[end == nothing] = nothing
    grid, block, cluster = (
        np.array([entry[key] for entry in entries], np.int64).reshape(-1, 3) for key in ("grid", "block", "cluster")
    )
    dims = {
        f"{n}_{axis}": t[:, i]
        for n, t in (("grid", grid), ("block", block), ("cluster", cluster))
        for i, axis in enumerate("xyz")
    }
    facts = {
        key: np.array([entry[key] for entry in entries], dtype)
        for key, dtype in (
            ("shared_bytes", np.uint32),
            ("stream", np.uint64),
            ("rank", np.uint32),
            ("replay", np.uint32),
            ("lost_events", np.uint64),
            ("lost_chunks", np.uint64),
            ("cold_l2", np.bool_),
        )
    }
    return {
        "launch": np.arange(len(entries)),
        **dims,
        "threads_per_block": block.prod(axis=1),
        "warps_per_block": np.array([warps_of(entry) for entry in entries], np.int64),
        **facts,
        "start_ns": start,
        "end_ns": end,
        "duration_ns": np.where(end == nothing, nothing, end - start),
        "events": events,
        "uncertainty_ns": np.array([np.nan if c is None else c.uncertainty_ns for c in clocks], np.float64),
        "cycles_per_ns": np.array([np.nan if c is None else float(c.cycles_per_ns()) for c in clocks], np.float64),
    }
