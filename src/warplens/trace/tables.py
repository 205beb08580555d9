"""The tables of a trace: names, columns, dtypes, units and meaning, stated once for code and documentation.

In: nothing. Out: `TABLES`. Must not import Polars: dtypes are its names as text (`polars.UInt32` is "UInt32").
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Column(NamedTuple):
    """One column: its Polars dtype by name, whether it may hold nulls, and what it says."""

    dtype: str
    meaning: str
    nullable: bool = False


_LAUNCH: Final = Column("UInt32", "the launch's number in the trace")
_BLOCK: Final = Column("UInt32", "linear index of the block in the grid, x fastest")
_GRID: Final = Column("UInt32", "blocks of the grid along this axis")
_THREADS: Final = Column("UInt32", "threads of a block along this axis")
_CLUSTER: Final = Column("UInt32", "blocks of a cluster along this axis, 1 without clusters")

TABLES: Final[dict[str, dict[str, Column]]] = {
    "launches": {
        "launch": _LAUNCH,
        "kernel": Column("String", "the kernel's name"),
        "grid_x": _GRID,
        "grid_y": _GRID,
        "grid_z": _GRID,
        "block_x": _THREADS,
        "block_y": _THREADS,
        "block_z": _THREADS,
        "threads_per_block": Column("UInt32", "threads of a block"),
        "warps_per_block": Column("UInt16", "warps of a block; a last partial warp counts"),
        "cluster_x": _CLUSTER,
        "cluster_y": _CLUSTER,
        "cluster_z": _CLUSTER,
        "shared_bytes": Column("UInt32", "dynamic shared memory of a block"),
        "stream": Column("UInt64", "the stream it ran on"),
        "rank": Column("UInt32", "the process's rank, 0 when it has none"),
        "replay": Column("UInt32", "replay of a CUDA graph, counted from 0"),
        "grid_id": Column("UInt64", "%gridid of the launch", True),
        "start_ns": Column(
            "Int64", "begin of its first block, since the trace's origin; null when nothing arrived", True
        ),
        "end_ns": Column("Int64", "last event of its last block", True),
        "duration_ns": Column("Int64", "end_ns - start_ns", True),
        "events": Column("UInt64", "events that arrived"),
        "lost_events": Column("UInt64", "records that found no space or were overwritten, counted on the device"),
        "lost_chunks": Column("UInt64", "chunks that found no space or were overwritten"),
        "uncertainty_ns": Column("Float64", "worst error of a time against one of another SM", True),
        "cycles_per_ns": Column("Float64", "median rate of clock64 over the SMs, measured", True),
        "cold_l2": Column("Boolean", "the L2 cache was flushed before it"),
    },
    "blocks": {
        "launch": _LAUNCH,
        "block": _BLOCK,
        "x": Column("UInt32", "blockIdx.x"),
        "y": Column("UInt32", "blockIdx.y"),
        "z": Column("UInt32", "blockIdx.z"),
        "cluster": Column("UInt32", "linear index of its cluster; null without clusters", True),
        "sm_begin": Column("UInt16", "SM it began on; null when its block record is missing", True),
        "sm_end": Column("UInt16", "SM it ended on; null when its record is missing and its chunks do not say", True),
        "start_ns": Column("Int64", "its first event, since the trace's origin"),
        "end_ns": Column("Int64", "its last event"),
        "warps": Column("UInt16", "warps that recorded"),
        "wave": Column("UInt32", "per SM its rank by start, divided by the most blocks resident at once in the launch"),
    },
    "spans": {
        "launch": _LAUNCH,
        "block": _BLOCK,
        "warp": Column("UInt8", "warp of the block, by linear thread index"),
        "sequence": Column(
            "UInt32", "index of the record in its warp: the order of events; detached marks behind them"
        ),
        "site": Column("UInt16", "row of the table sites"),
        "depth": Column("UInt8", "ranges that were open (pushed and not popped) when it began"),
        "start_ns": Column("Int64", "begin, since the trace's origin"),
        "start_cycles": Column("Int64", "begin, clock64 of its SM"),
        "duration_cycles": Column("Int64", "duration; 0 for instants; from nanoseconds when it ended on another SM"),
        "duration_ns": Column("Int64", "duration; 0 for instants"),
        "corrected_ns": Column(
            "Float64", "duration_ns less what the marks cost; null for instants and where that was not measured", True
        ),
        "corrected_uncertainty_ns": Column("Float64", "half width of a 90 % interval around corrected_ns", True),
        "payload": Column("UInt32", "the value given with the mark", True),
        "id": Column("UInt32", "the id that joins a start with an end; of a detached mark the mask of its lanes", True),
        "flags": Column(
            "UInt16",
            "bits: INSTANT 1, UNENDED 2, AFTER_GAP 4, OVERLAPPING 8, CROSS_WARP 16, WRAPPED 32, OVERCORRECTED 64, "
            "DETACHED 128",
        ),
        "end_block": Column("UInt32", "block of the warp that ended it; null where its own warp did", True),
        "end_warp": Column("UInt8", "warp that ended it; null where its own warp did", True),
    },
    "sites": {
        "site": Column("UInt16", "number of the site in the trace"),
        "site_set": Column("String", "the set it was declared in"),
        "id": Column("UInt16", "number of the site in its set, from 1"),
        "name": Column("String", "its name"),
        "kind": Column("String", "phase, mark, range, wait or arrive, or what the source says"),
        "resource": Column("String", "what it waits for or arrives at; empty for none"),
        "file": Column("String", "source file; empty when not known"),
        "line": Column("UInt32", "line; 0 when not known"),
        "arrivals": Column(
            "UInt32",
            "of an mbarrier in instrumented PTX: of a wait, how many arrivals end a phase; of an arrival or an issue, "
            "how many of them it makes; null where that is not known",
            True,
        ),
    },
    "problems": {
        "launch": Column("UInt32", "launch; null when it concerns the whole trace", True),
        "block": Column("UInt32", "block; null when it concerns more than one", True),
        "warp": Column("UInt8", "warp of the block", True),
        "sequence": Column("UInt32", "record of the warp", True),
        "kind": Column("String", "what kind of doubt"),
        "count": Column("UInt64", "records, warps, chunks or pairs concerned: the text says which"),
        "severity": Column("String", "loss, error or note"),
        "text": Column("String", "what happened and what it means"),
    },
    "audit": {
        "site": Column(
            "UInt16", "row of the table sites; null for a mark without a site, or when it is not known", True
        ),
        "verb": Column("String", "phase, wait, ...; end: the recorder's end; landed: a pin; empty when not known"),
        "file": Column("String", "source file of the mark; empty when not known, and in PTX without lines"),
        "line": Column("UInt32", "its line; 0 when not known"),
        "address": Column("UInt32", "offset of the clock read in the machine code; null when none is left", True),
        "outstanding_loads": Column(
            "UInt32", "loads of the kernel that are under way there; null when that depends on the path", True
        ),
        "bulk_loads": Column(
            "String",
            "bulk copies into shared memory (TMA) that some way there issues behind the warp's last wait at an "
            "mbarrier; empty for none, null when it cannot be told",
            True,
        ),
        "waits_on": Column("String", "what the warp waits for there and since the mark before it"),
        "finding": Column("String", "what is wrong with it; empty for nothing"),
        "severity": Column("String", "empty, note or warning"),
    },
}
"""Column by column, in order. Rows of `spans` stand in the order launch, block, warp, sequence."""

ADDED: Final = frozenset({"end_block", "end_warp", "arrivals", "bulk_loads"})
"""Columns of `spans`, `sites` and `audit` that older files do not have: null there."""

CLOCKS: Final[dict[str, Column]] = {
    "launch": _LAUNCH,
    "sm": Column("UInt16", "SM"),
    "base_ns": Column("Int64", "globaltimer that the line counts from"),
    "base_cycles": Column("Int64", "clock64 that the line counts from"),
    "offset_ns": Column("Float64", "ns = base_ns + rint(offset_ns + (cycles - base_cycles) * ns_per_cycle)"),
    "ns_per_cycle": Column("Float64", "rate of the SM's clock, measured"),
    "half_width_ns": Column("Float64", "half of the interval that the pairs leave for offset_ns"),
}
"""The table `clocks` of a file: one line per launch and SM, as clock fitted it."""

STORED_SPANS: Final[dict[str, Column]] = {
    **{
        name: column
        for name, column in TABLES["spans"].items()
        if not name.endswith("cycles") and name != "duration_ns" and not name.startswith("corrected_")
    },
    "start_residual": Column("Int64", "start_cycles minus what the SM's line gives for start_ns"),
    "duration_residual": Column(
        "Int64", "duration_cycles minus the distance to the next span of the warp (0 at its last)"
    ),
    "duration_ns_residual": Column("Int64", "duration_ns minus what the SM's line gives for duration_cycles"),
}
"""`spans` as a file holds it: cycles follow from start_ns, the clocks and small residuals,
corrected durations from the manifest (docs/adr/0003-file.md)."""
