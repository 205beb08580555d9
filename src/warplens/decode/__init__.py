"""Decoding: records as the GPU wrote them to columns of spans, blocks, launches and problems on one time axis.

In: a checked manifest and arrays of uint32 (n, 32) per records member. Out: `Decoded`, numpy columns with the dtypes
of the tables. Pure: no I/O, no Polars; no Python loop per event or warp; what is in doubt becomes a problem row.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from warplens import clock, layout
from warplens.decode.audit import tell_launches, tell_sites
from warplens.decode.blocks import Columns, block_columns, launch_columns
from warplens.decode.chunks import I64, U32, Chunks, read_chunks, starts
from warplens.decode.joins import all_loose, join
from warplens.decode.problems import Problem, Problems
from warplens.decode.shapes import Shapes, SiteSet
from warplens.decode.spans import Run, Spans, SpanSink
from warplens.decode.times import Times, fit_times, read_block_records
from warplens.layout import ChunkFlag

_RUN_CHUNKS: Final = 8192
"""Chunks decoded at a time: their columns stay in the second-level cache."""
_THREADS: Final = 2
"""numpy lets go of the interpreter's lock in nearly all that a run does; more gains little (memory)."""


@dataclass
class Decoded:
    """What the records say. Columns of `launches` and `blocks` use int64 minimum and -1 for "not known"."""

    launches: Columns
    blocks: Columns
    spans: Spans
    problems: list[Problem]
    origin_ns: int
    """globaltimer of the trace's first instant; all other times count from it."""
    clocks: list[clock.ClockMap | None]


def decode(manifest: dict[str, Any], records: dict[str, U32]) -> Decoded:
    """Decodes all records of a recording.

    `manifest` must have passed `decode.manifest.check`; `records` maps members to uint32 arrays of shape (n, 32).
    Never raises about the content of records.
    """
    problems = Problems()
    sets = _set_of_launch(manifest)
    words, chunks = read_chunks(records, manifest, problems)
    block_records = read_block_records(words, chunks)
    bits = [layout.code_bits(own.count) for own in sets]
    times = fit_times(chunks, block_records, bits, manifest, problems)
    shapes = Shapes()
    with ThreadPoolExecutor(_THREADS) as pool:
        work = [(words, chunks, part, sets, times, shapes) for part in _parts(chunks, sets)]
        runs, sink, nothing = list[Run](), SpanSink(int(chunks.count.sum())), SpanSink(0).finish(0)
        for run, doubts in pool.map(_run, work):
            problems.extend(doubts)
            sink.add(run.spans)
            run.spans = nothing  # its memory serves the next runs
            runs.append(run)
    per_chunk = {name: _joined([getattr(run, name) for run in runs]) for name in ("events", "first_ns", "last_ns")}
    filled = per_chunk["events"] > 0
    shift_ns = int(per_chunk["first_ns"][filled].min()) if filled.any() else 0
    spans = sink.finish(shift_ns)
    loose = all_loose(runs)
    if loose is not None:
        join(spans, loose, chunks, times.axis.ns_per_cycle, problems)
    first_ns, last_ns = per_chunk["first_ns"] - shift_ns, per_chunk["last_ns"] - shift_ns
    blocks = block_columns(chunks, block_records, first_ns, last_ns, filled, manifest)
    recorded = per_chunk["events"] - chunks.has(ChunkFlag.LAST)  # a recorder's end is an event, but no record
    events = np.bincount(chunks.launch, recorded, len(sets)).astype(np.int64)
    tell_launches(chunks, block_records, manifest, problems)
    reached = np.zeros(sum(len(entry["sites"]) for entry in manifest["site_sets"]), np.bool_)
    for run in runs:
        reached[: len(run.sites)] |= run.sites
    tell_sites(reached, [own.base for own in sets], events, manifest, problems)
    return Decoded(
        launches=launch_columns(blocks, manifest, events, times.clocks),
        blocks=blocks,
        spans=spans,
        problems=problems.rows(),
        origin_ns=times.origin_ns + shift_ns,
        clocks=times.clocks,
    )


def _run(work: tuple[U32, Chunks, slice, list[SiteSet], Times, Shapes]) -> tuple[Run, Problems]:
    words, chunks, part, sets, times, shapes = work
    problems = Problems()
    own = chunks.take(part)
    return shapes.run(words, own, times.axis.part(part), sets[int(own.launch[0])], problems), problems


def _set_of_launch(manifest: dict[str, Any]) -> list[SiteSet]:
    sets, base = {}, 0
    for index, entry in enumerate(manifest["site_sets"]):
        sets[entry["name"]] = SiteSet(index, base, len(entry["sites"]))
        base += len(entry["sites"])
    return [sets[manifest["kernels"][entry["kernel"]]["site_set"]] for entry in manifest["launches"]]


def _parts(chunks: Chunks, sets: list[SiteSet]) -> list[slice]:
    """Slices of whole warps of one site set, of about _RUN_CHUNKS chunks each."""
    if not len(chunks):
        return []
    index = np.array([own.index for own in sets], np.int64)
    warps = np.flatnonzero(chunks.first_of_warp)
    set_begins = np.flatnonzero(starts(index[chunks.launch]))
    steps = warps[np.searchsorted(warps, np.arange(0, int(warps[-1]) + 1, _RUN_CHUNKS))]
    edges = np.append(np.union1d(set_begins, steps), len(chunks)).tolist()
    return [slice(low, high) for low, high in pairwise(edges)]


def _joined(parts: list[I64]) -> I64:
    return np.concatenate([np.zeros(0, np.int64), *parts])
