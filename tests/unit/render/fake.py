"""A trace made without any decoder: RMSNorm-like spans by the tables' schemas, exact and repeatable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tests.corrections import corrections
from warplens.decode.corrected import correct
from warplens.trace.tables import TABLES

SITES = [
    ("load_sumsq", "phase"),
    ("warp_reduce", "phase"),
    ("block_reduce", "phase"),
    ("barrier_sum", "wait"),
    ("cross_reduce", "phase"),
    ("barrier_rms", "wait"),
    ("normalize", "phase"),
    ("store", "phase"),
]
LENGTHS = [2600, 120, 60, 0, 140, 0, 900, 160]
RATE = 1.98


@dataclass
class FakeTrace:
    """What `render` reads of a Trace."""

    manifest: dict[str, Any]
    launches: pl.DataFrame
    blocks: pl.DataFrame
    spans: pl.DataFrame
    sites: pl.DataFrame
    problems: pl.DataFrame
    origin_ns: int = 0
    note: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    audit: pl.DataFrame = field(default_factory=lambda: audit_frame([]))
    path: Path | None = None


def audit_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A table `audit` of `rows` (missing columns are null)."""
    schema = {name: getattr(pl, column.dtype) for name, column in TABLES["audit"].items()}
    return pl.DataFrame([{k: r.get(k) for k in schema} for r in rows], schema=schema)


def problems_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A problems table of `rows` (missing columns are null)."""
    schema = {
        "launch": pl.UInt32,
        "block": pl.UInt32,
        "warp": pl.UInt8,
        "sequence": pl.UInt32,
        "kind": pl.String,
        "count": pl.UInt64,
        "severity": pl.String,
        "text": pl.String,
    }
    return pl.DataFrame([{k: r.get(k) for k in schema} for r in rows], schema=schema)


LAUNCH: dict[str, Any] = {"kernel": 0, "grid": [4, 1, 1], "block": [96, 1, 1], "blocks": None}
LAUNCH |= {"every": 1, "warp_mask": 2**32 - 1}
"""An entry of a manifest: all blocks and warps were recorded."""


def manifest(**changes: Any) -> dict[str, Any]:
    """A manifest in which all is well."""
    build: dict[str, Any] = {"registers": 32, "shared_bytes": 84, "local_bytes": 0, "resident_blocks": 3}
    state: dict[str, Any] = {
        "sm_hz": 1_980_000_000,
        "memory_hz": 3_201_000_000,
        "power_w": 310.0,
        "temperature_c": 41.0,
    }
    state |= {"throttle_reasons": [], "other_processes": 0}
    kernel: dict[str, Any] = {
        "name": "rmsnorm_fwd<true>",
        "site_set": "rmsnorm",
        "clean": build,
        "traced": build | {"registers": 34},
    }
    kernel |= {"clean_ns": [8000.0, 8100.0, 8200.0], "traced_ns": [8400.0, 8424.0, 8500.0], "not_measured": None}
    return {
        "format": "wlens",
        "version": [1, 0],
        "warplens": "0.1.0",
        "created": "2026-11-29T23:00:00Z",
        "complete": True,
        "note": None,
        "host": None,
        "command": None,
        "policy": "packed",
        "capacity_bytes": 1 << 24,
        "device": {
            "name": "NVIDIA H200",
            "compute_capability": [9, 0],
            "sm_count": 132,
            "driver": "580.65",
            "cuda_driver_version": 13000,
            "multi_process": False,
            "mig": False,
        },
        "clock_state": {"before": state, "after": state},
        "globaltimer_step_ns": 32,
        "site_sets": [],
        "kernels": [kernel | {"mark_cost_cycles": 4.1}],
        "launches": [],
        "calibration": [],
    } | changes


def rmsnorm(
    *, blocks: int = 528, sms: int = 132, warps: int = 20, resident: int = 3, launches: int = 1, seed: int = 1
) -> Any:
    """`launches` launches of `blocks` blocks over `sms` SMs, `resident` at once, `warps` warps, eight phases."""
    rng = np.random.default_rng(seed)
    spans, block_rows, launch_rows = [], [], []
    for launch in range(launches):
        origin_ns = launch * 50_000
        free = [[0.0] * resident for _ in range(sms)]
        for block in range(blocks):
            sm = min(range(sms), key=lambda s: min(free[s]) + 1e-3 * ((s * 7) % sms))
            slot = int(np.argmin(free[sm]))
            wave = block // (sms * resident)
            begin_ns = free[sm][slot] + rng.uniform(0, 250) + (300 if wave else 0)
            times = _block_times(rng, warps, first_wave=wave == 0)
            cycles = times + int(begin_ns * RATE) + sm * 1_000_000
            end_ns = begin_ns + times.max() / RATE
            free[sm][slot] = end_ns
            spans.append(_span_columns(launch, block, cycles, sm, origin_ns))
            row = (launch, block, block, 0, 0, None, sm, sm, int(begin_ns) + origin_ns, int(end_ns) + origin_ns)
            block_rows.append((*row, warps, wave))
        end_ns = max(r[9] for r in block_rows)
        start_ns = min(r[8] for r in block_rows if r[0] == launch)
        launch_rows.append((launch, blocks, warps, start_ns, end_ns, blocks * warps * (len(SITES) + 1)))
    frame = {k: np.concatenate([s[k] for s in spans]) for k in spans[0]}
    return FakeTrace(
        manifest(), _launches(launch_rows), _blocks(block_rows), _spans(frame), sites(), problems_frame([])
    )


def _block_times(rng: np.random.Generator, warps: int, *, first_wave: bool) -> np.ndarray:
    """Begin of each phase and the end, warps x 9, in cycles since the block's begin."""
    times = np.zeros((warps, len(SITES) + 1), np.int64)
    times[:, 0] = rng.integers(0, 60, warps)
    load = LENGTHS[0] * (1.3 if first_wave else 1.0) * rng.uniform(0.75, 1.15) * rng.uniform(0.9, 1.1, warps)
    times[:, 1] = times[:, 0] + load.astype(np.int64)
    times[:, 2] = times[:, 1] + LENGTHS[1] + rng.integers(0, 40, warps)
    times[:, 3] = times[:, 2] + LENGTHS[2]
    times[:, 4] = times[:, 3].max() + 30
    times[:, 5] = times[:, 4]
    times[0, 5] += LENGTHS[4]
    times[:, 6] = times[0, 5] + 40
    times[:, 7] = times[:, 6] + LENGTHS[6] + rng.integers(0, 300, warps)
    times[:, 8] = times[:, 7] + LENGTHS[7]
    return times


def _span_columns(launch: int, block: int, cycles: np.ndarray, sm: int, origin_ns: int) -> dict[str, Any]:
    start, length = cycles[:, :-1], np.diff(cycles, axis=1)
    keep = np.ones(start.shape, bool)
    keep[1:, 4] = False  # only warp 0 enters cross_reduce
    warp, site = np.nonzero(keep)
    start, length = start[keep], length[keep]
    local_ns = (start - sm * 1_000_000) / RATE
    return {
        "launch": np.full(len(warp), launch, np.uint32),
        "block": np.full(len(warp), block, np.uint32),
        "warp": warp.astype(np.uint8),
        "sequence": site.astype(np.uint32),
        "site": site.astype(np.uint16),
        "start_ns": local_ns.astype(np.int64) + origin_ns,
        "start_cycles": start,
        "duration_cycles": length,
        "duration_ns": np.round(length / RATE).astype(np.int64),
    }


def _spans(columns: dict[str, np.ndarray]) -> pl.DataFrame:
    frame = pl.DataFrame(columns).with_columns(
        depth=pl.lit(0, pl.UInt8),
        corrected_ns=pl.lit(None, pl.Float64),
        corrected_uncertainty_ns=pl.lit(None, pl.Float64),
        payload=pl.lit(None, pl.UInt32),
        id=pl.lit(None, pl.UInt32),
        flags=pl.lit(0, pl.UInt16),
        end_block=pl.lit(None, pl.UInt32),
        end_warp=pl.lit(None, pl.UInt8),
    )
    order = ["launch", "block", "warp", "sequence", "site", "depth", "start_ns", "start_cycles", "duration_cycles"]
    order_behind = ["duration_ns", "corrected_ns", "corrected_uncertainty_ns", "payload", "id", "flags"]
    return frame.select(*order, *order_behind, "end_block", "end_warp")


def sites(rows: list[tuple[str, str]] | None = None) -> pl.DataFrame:
    """A sites table of (name, kind) rows."""
    rows = SITES if rows is None else rows
    schema: dict[str, Any] = {
        "site": pl.UInt16,
        "site_set": pl.String,
        "id": pl.UInt16,
        "name": pl.String,
        "kind": pl.String,
    }
    schema |= {"resource": pl.String, "file": pl.String, "line": pl.UInt32, "arrivals": pl.UInt32}
    data = [(i, "rmsnorm", i + 1, n, k, "", "rmsnorm.cu", 10 + i, None) for i, (n, k) in enumerate(rows)]
    return pl.DataFrame(data, schema=schema, orient="row")


def _blocks(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    schema: dict[str, Any] = {"launch": pl.UInt32, "block": pl.UInt32, "x": pl.UInt32, "y": pl.UInt32, "z": pl.UInt32}
    schema |= {"cluster": pl.UInt32, "sm_begin": pl.UInt16, "sm_end": pl.UInt16, "start_ns": pl.Int64}
    schema |= {"end_ns": pl.Int64, "warps": pl.UInt16, "wave": pl.UInt16}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _launches(rows: list[tuple[int, int, int, int, int, int]]) -> pl.DataFrame:
    out = []
    for launch, blocks, warps, start_ns, end_ns, events in rows:
        row = {"launch": launch, "kernel": "rmsnorm_fwd<true>", "grid_id": launch + 1, "cold_l2": True}
        row |= {"grid_x": blocks, "block_x": 32 * warps, "threads_per_block": 32 * warps, "warps_per_block": warps}
        row |= {"start_ns": start_ns, "end_ns": end_ns, "duration_ns": end_ns - start_ns, "events": events}
        row |= {"uncertainty_ns": 38.0, "cycles_per_ns": RATE}
        row |= dict.fromkeys(["grid_y", "grid_z", "block_y", "block_z", "cluster_x", "cluster_y", "cluster_z"], 1)
        row |= dict.fromkeys(["shared_bytes", "stream", "rank", "replay", "lost_events", "lost_chunks"], 0)
        out.append(row)
    small: dict[Any, Any] = {
        "warps_per_block": pl.UInt16,
        "rank": pl.UInt32,
        "replay": pl.UInt32,
        "shared_bytes": pl.UInt32,
    }
    unsigned = ["launch", *[f"{n}_{a}" for n in ("grid", "block", "cluster") for a in "xyz"], "threads_per_block"]
    wide = ["stream", "grid_id", "events", "lost_events", "lost_chunks"]
    casts = small | dict.fromkeys(unsigned, pl.UInt32) | dict.fromkeys(wide, pl.UInt64)
    return pl.DataFrame(out).cast(casts)


def doubtful() -> Any:
    """One block of four warps with a nested range, instants, a torn span in warp 2 and a loss in warp 3."""
    trace = rmsnorm(blocks=1, sms=1, warps=4, resident=1)
    rows = [*SITES, ("inner", "range"), ("tick", "mark")]
    spans = trace.spans.with_columns(
        flags=pl.when((pl.col("warp") == 2) & (pl.col("site") == 6)).then(2).otherwise(pl.col("flags")).cast(pl.UInt16)
    ).filter((pl.col("warp") != 2) | (pl.col("site") <= 6))
    spans = spans.filter((pl.col("warp") != 3) | ~pl.col("site").is_between(1, 5)).with_columns(
        flags=pl.when((pl.col("warp") == 3) & (pl.col("site") == 6)).then(4).otherwise(pl.col("flags")).cast(pl.UInt16)
    )
    first = spans.filter((pl.col("site") == 0) & (pl.col("warp") < 2))
    inner = first.with_columns(
        site=pl.lit(8, pl.UInt16),
        sequence=pl.lit(90, pl.UInt32),
        start_cycles=pl.col("start_cycles") + 400,
        duration_cycles=pl.lit(900, pl.Int64),
        duration_ns=pl.lit(455, pl.Int64),
    )
    tick = inner.with_columns(
        site=pl.lit(9, pl.UInt16),
        sequence=pl.lit(91, pl.UInt32),
        start_cycles=pl.col("start_cycles") + 300,
        duration_cycles=pl.lit(0, pl.Int64),
        duration_ns=pl.lit(0, pl.Int64),
        flags=pl.lit(1, pl.UInt16),
    )
    problems = [
        {"launch": 0, "block": 0, "warp": 3, "kind": "gap", "count": 5, "severity": "loss", "text": "5 records lost"},
        {"launch": 0, "block": 0, "warp": 2, "kind": "no_end", "count": 1, "severity": "error", "text": "warp 2"},
        {"kind": "site_never_reached", "count": 1, "severity": "note", "text": "site store_late never reached"},
    ]
    launches = trace.launches.with_columns(lost_events=pl.lit(5, pl.UInt64), lost_chunks=pl.lit(1, pl.UInt64))
    all_spans = pl.concat([spans, inner, tick]).sort("warp", "sequence")
    return replace(trace, launches=launches, spans=all_spans, sites=sites(rows), problems=problems_frame(problems))


COSTS = [0.0, 24.5, 22.0, -12.0, 30.0, 18.0, 26.0, 25.0]
"""Of each site's marks, in cycles, of `corrected`."""


def corrected(trace: Any) -> Any:
    """The same trace with corrections as a capture measures them, and the columns that follow."""
    size, warps = len(SITES), int(trace.spans["warp"].max()) + 1
    costs = dict(enumerate([sum(COSTS), *COSTS]))
    found = corrections(costs, warps=warps, cost_error=2.5, mark_error=6.0)
    found["rows"]["duration_cycles"] = [float(sum(LENGTHS)), *map(float, LENGTHS)]
    facts = dict(trace.manifest)
    facts["kernels"] = [facts["kernels"][0] | {"corrections": found, "mark_cost_cycles": 14, "policy": "packed"}]
    facts["site_sets"] = [{"name": "rmsnorm", "sites": [{}] * size}]
    facts["launches"] = [LAUNCH] * trace.launches.height
    spans = {name: trace.spans[name].to_numpy() for name in ("launch", "warp", "site", "duration_ns", "flags")}
    made = correct(facts, trace.launches["cycles_per_ns"].to_numpy(), **spans)
    assert made is not None
    columns = {"corrected_ns": made.corrected_ns, "corrected_uncertainty_ns": made.uncertainty_ns}
    filled = trace.spans.with_columns(pl.Series(name, column) for name, column in columns.items())
    return replace(trace, manifest=facts, spans=filled)


def renamed(trace: Any, names: list[str]) -> Any:
    """The same trace with its sites called `names`, in order."""
    return replace(trace, sites=trace.sites.with_columns(name=pl.Series(names)))


def tiled(trace: Any, times: int, *, apart_ns: int = 1000) -> Any:
    """A trace with `times` launches, each the whole of `trace` later by its length and `apart_ns`."""
    step_ns = int(trace.launches["end_ns"].max() - trace.launches["start_ns"].min()) + apart_ns

    def moved(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
        count = int(trace.launches.height)
        parts = [
            frame.with_columns(pl.col("launch") + k * count, *(pl.col(c) + k * step_ns for c in columns))
            for k in range(times)
        ]
        return pl.concat(parts).cast(dict(frame.schema))  # type: ignore[arg-type]

    return FakeTrace(
        trace.manifest,
        moved(trace.launches, ["start_ns", "end_ns"]),
        moved(trace.blocks, ["start_ns", "end_ns"]),
        moved(trace.spans, ["start_ns"]),
        trace.sites,
        trace.problems,
        trace.origin_ns,
    )


def of_spans(
    rows: list[dict[str, Any]],
    rows_of_sites: list[tuple[str, str, str]] | None = None,
    sms: dict[int, int] | None = None,
) -> Any:
    """A trace of single spans: `start` and `end` in ns, by default of site, warp, block, launch and depth 0.

    `rows_of_sites` are (name, kind, resource); `sms` says on which SM blocks ran, by default all on SM 0.
    """
    columns = {
        name: [row.get(name, 0) for row in rows] for name in ("launch", "block", "warp", "site", "depth", "flags")
    }
    columns["sequence"] = [row.get("sequence", index) for index, row in enumerate(rows)]
    columns["start_ns"] = [row["start"] for row in rows]
    columns["duration_ns"] = [row["end"] - row["start"] for row in rows]
    columns["start_cycles"], columns["duration_cycles"] = columns["start_ns"], columns["duration_ns"]
    empty = ("payload", "id", "end_block", "end_warp", "corrected_ns", "corrected_uncertainty_ns")
    columns |= {name: [row.get(name) for row in rows] for name in empty}
    base = rmsnorm(blocks=1, sms=1, warps=1, resident=1)
    spans = pl.DataFrame(columns, schema=base.spans.schema).sort("launch", "block", "warp", "sequence")
    blocks: list[tuple[Any, ...]] = []
    for (launch, block), part in spans.group_by("launch", "block", maintain_order=True):
        joined = part["flags"] & 16 > 0  # ended by another warp
        end = (part["start_ns"] + part["duration_ns"] * ~joined).max()
        sm = (sms or {}).get(block, 0)
        place = (launch, block, block, 0, 0, None, sm, sm)
        blocks.append((*place, part["start_ns"].min(), end, part["warp"].n_unique(), 0))
    times: dict[int, list[int]] = {}
    for row in blocks:
        times.setdefault(row[0], []).extend(row[8:10])
    made = [(launch, 1, 1, min(ns), max(ns), 0) for launch, ns in sorted(times.items())]
    table = sites([(name, kind) for name, kind, _ in rows_of_sites or [("work", "phase", "")]])
    table = table.with_columns(resource=pl.Series([r for *_, r in rows_of_sites or [("", "", "")]]))
    launches = (
        _launches(made) if made else base.launches.with_columns(start_ns=None, end_ns=None).cast(base.launches.schema)
    )
    return replace(base, spans=spans, blocks=_blocks(blocks), launches=launches, sites=table)
