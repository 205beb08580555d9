"""The decoder: takes records through all stages, from chunk headers to tables.

In: a checked manifest and arrays of uint32 (n, 32) per records member. Out: `Decoded`, numpy columns with the dtypes
of the tables. Pure: no I/O, no Polars; no Python loop per event or warp; what is in doubt becomes a problem row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from warplens import clock
from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.audit import tell_launches, tell_sites
from warplens.decode.blocks import Columns, block_columns, launch_columns
from warplens.decode.chunks import Chunks, read_chunks, starts
from warplens.decode.detached import checked, make_run, moved, together
from warplens.decode.events import read_events
from warplens.decode.joins import Enders, join
from warplens.decode.problems import Problem, Problems
from warplens.decode.shapes import Group, SiteSet, find_groups
from warplens.decode.spans import Axis, Loose, Run, find_spans, make_spans
from warplens.decode.table import PerChunk, PlacedRun, SpanTable, all_loose, in_threads, per_chunk
from warplens.decode.times import fit_times, read_block_records
from warplens.layout import ChunkFlag

_RUN_CHUNKS: Final = 8192
"""Chunks that go the general way together."""


@dataclass
class Decoded:
    """What the records say. Columns of `launches` and `blocks` use int64 minimum and -1 for "not known"."""

    launches: Columns
    blocks: Columns
    spans: SpanTable
    problems: list[Problem]
    origin_ns: int
    """globaltimer of the trace's first instant; all other times count from it."""
    clocks: list[clock.ClockMap | None]
    enders: Enders
    """Which warps ended ranges that others had started."""


def decode(manifest: dict[str, Any], records: dict[str, U32]) -> Decoded:
    """Decodes all records of a recording.

    `manifest` must have passed `decode.manifest.check`; `records` maps members to uint32 arrays of shape (n, 32).
    Never raises about the content of records.
    """
    problems = Problems()
    sets = _set_of_launch(manifest)
    code_bits = [own.code_bits for own in sets]
    words, chunks, alone = read_chunks(records, manifest, code_bits, problems)
    alone = checked(words, alone, sets, problems)
    block_records = read_block_records(words, chunks)
    times = fit_times(chunks, block_records, code_bits, manifest, problems, alone)
    found = _decode_chunks(words, chunks, times.axis, sets, problems)
    tell_launches(chunks, block_records, manifest, problems, alone)
    axis = times.axis
    if len(alone):
        run = make_run(words, alone, chunks, times.detached, sets)
        chunks, axis, own, at = together(chunks, axis, alone, times.detached)
        block_records = moved(block_records, own, len(chunks))
        found.add(run, at, own)
    spans, per, loose, reached = found.place(chunks, axis)
    filled = per.events > 0
    shift_ns = int(per.first_ns[filled].min()) if filled.any() else 0
    spans.shift(shift_ns)
    per.first_ns -= shift_ns
    per.last_ns -= shift_ns
    enders = Enders(*np.zeros((3, 0), np.int64))
    if loose is not None:
        enders = join(spans, loose, chunks, axis.ns_per_cycle, problems)
    blocks = block_columns(chunks, block_records, per.first_ns, per.last_ns, filled, manifest)
    recorded = per.events - chunks.has(ChunkFlag.LAST)  # a recorder's end is an event, but no record
    events = np.bincount(chunks.launch, recorded, len(sets)).astype(np.int64)
    tell_sites(reached, [own.base for own in sets], events, manifest, problems)
    return Decoded(
        launches=launch_columns(blocks, manifest, events, times.clocks),
        blocks=blocks,
        spans=spans,
        problems=problems.rows(),
        origin_ns=times.origin_ns + shift_ns,
        clocks=times.clocks,
        enders=enders,
    )


@dataclass
class _Found:
    """What chunks hold: warps of one shape in groups, the others in runs, each of a part of the chunks."""

    groups: list[Group]
    runs: list[Run]
    parts: list[I64]

    def add(self, run: Run, part: I64, own: I64) -> None:
        """One more run, of the chunks `part`, beside which those of the others are numbers `own`."""
        for group in self.groups:
            group.index = own[group.index]
        self.parts = [*(own[part] for part in self.parts), part]
        self.runs.append(run)

    def place(self, chunks: Chunks, axis: Axis) -> tuple[SpanTable, PerChunk, Loose | None, I64]:
        """Their spans in the order of `chunks`, what each chunk gave, loose ends, and the sites that were reached."""
        counts = [(group.index, group.shape.spans_per_chunk) for group in self.groups]
        counts += [(part, run.spans_per_chunk) for part, run in zip(self.parts, self.runs, strict=True)]
        per = per_chunk(len(chunks), counts)
        for group in self.groups:
            group.place(per, chunks, axis)
        placed = [PlacedRun(run, part, per) for part, run in zip(self.parts, self.runs, strict=True)]
        sites = [*(group.shape.spans.site for group in self.groups), *(run.sites for run in self.runs)]
        reached = np.unique(np.concatenate([np.zeros(0, np.int64), *sites]))
        return SpanTable(self.groups, placed, per, chunks, axis), per, all_loose(self.runs), reached


def _decode_chunks(words: U32, chunks: Chunks, axis: Axis, sets: list[SiteSet], problems: Problems) -> _Found:
    """The spans of all chunks: warps that share a shape together, the others in runs."""
    groups, rest = find_groups(words, chunks, axis, sets, problems)
    parts = _parts(chunks, rest, sets)

    def decode_part(part: I64) -> tuple[Run, Problems]:
        own, doubts = chunks.take(part), Problems()
        sites = sets[int(own.launch[0])]
        events = read_events(words, own, sites.code_bits, doubts)
        found = find_spans(events, own, sites.count, doubts)
        return make_spans(events, own, axis.part(part), sites.base, found=found, problems=doubts), doubts

    runs: list[Run] = []
    for run, doubts in in_threads(decode_part, parts):
        runs.append(run)
        problems.extend(doubts)
    return _Found(groups, runs, parts)


def _set_of_launch(manifest: dict[str, Any]) -> list[SiteSet]:
    sets, base = {}, 0
    for index, entry in enumerate(manifest["site_sets"]):
        sets[entry["name"]] = SiteSet(index, base, len(entry["sites"]))
        base += len(entry["sites"])
    return [sets[manifest["kernels"][entry["kernel"]]["site_set"]] for entry in manifest["launches"]]


def _parts(chunks: Chunks, which: Bool, sets: list[SiteSet]) -> list[I64]:
    """Indices of the chunks in `which`, in parts of whole warps of one site set, of about _RUN_CHUNKS each."""
    index = np.flatnonzero(which)
    if not len(index):
        return []
    warps = np.flatnonzero(starts(chunks.gwarp[index]))
    set_begins = np.flatnonzero(starts(np.array([own.index for own in sets], np.int64)[chunks.launch[index]]))
    steps = warps[np.searchsorted(warps, np.arange(0, int(warps[-1]) + 1, _RUN_CHUNKS))]
    edges = np.append(np.union1d(set_begins, steps), len(index)).tolist()
    return [index[low:high] for low, high in pairwise(edges)]
