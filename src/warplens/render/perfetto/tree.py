"""The tree of tracks of a Perfetto trace: launches, counters, SMs, slots, warps and their lines.

In: chosen tables and the spans' runs. Out: tracks with their parents and ranks, and the track of each launch, block,
run and span aside. Numbers of tracks count from 1; siblings have different names, for Perfetto merges equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.render.perfetto.nesting import I64, Spans, extents, lanes

_WARPS: Final = 256
_SM_UNKNOWN: Final = 1 << 16
_COUNTERS_RANK: Final = 1 << 16
"""Behind any further rows of launches."""
_FIRST_SM_RANK: Final = _COUNTERS_RANK + 3


@dataclass(frozen=True)
class Track:
    """One row: where it stands among the children of its parent (0: none) is its rank."""

    uuid: int
    name: str
    parent: int = 0
    rank: int = 0
    unit: str = ""
    """Of a counter."""


class WarpTracks(NamedTuple):
    """Tracks of warps as columns: there are many."""

    uuid: I64
    warp: I64
    parent: I64
    rank: I64


@dataclass
class Tree:
    """All tracks, parents first, and what lies on which."""

    tracks: list[Track] = field(default_factory=list)
    """All but the warps."""
    warps: WarpTracks = field(default_factory=lambda: WarpTracks(*np.zeros((4, 0), np.int64)))
    last: int = 0
    """The largest number of a track."""
    launch_track: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per launch; 0 when it has no times."""
    block_track: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    run_track: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    aside_row: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Spans with lines of their own, line after line in order of time."""
    aside_track: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    blocks_counter: int = 0
    warps_counter: int = 0
    share_tracks: list[int] = field(default_factory=list)
    sm_track: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per block the track of its SM, where that has several slots; else 0."""
    most_slots: int = 0

    def add(self, name: str, parent: int = 0, rank: int = 0, *, unit: str = "") -> int:
        """A new track's number."""
        self.last += 1
        self.tracks.append(Track(self.last, name, parent, rank, unit))
        return self.last


def grow(
    launches: pl.DataFrame,
    blocks: pl.DataFrame,
    spans: Spans,
    aside: npt.NDArray[np.bool_],
    *,
    title: str,
    shares: Sequence[str],
) -> Tree:
    """The tree; `aside` marks the spans that need lines of their own, `shares` names the counters of phases."""
    tree = Tree()
    root = _add_launches(tree, launches, title)
    tree.blocks_counter = tree.add("resident blocks", root, _COUNTERS_RANK, unit="blocks")
    tree.warps_counter = tree.add("resident warps", root, _COUNTERS_RANK + 1, unit="warps")
    _add_shares(tree, root, shares)
    sm = blocks["sm"].fill_null(_SM_UNKNOWN).to_numpy()
    begin, end = extents(blocks, spans)
    slot_of_sm = lanes(sm, begin, end, apart=True)
    slots, slot = np.unique(sm << 32 | slot_of_sm, return_inverse=True)
    slot_track, shared = _add_slots(tree, root, slots)
    tree.block_track, tree.sm_track = slot_track[slot], shared[slot]
    _add_warps(tree, spans, aside, slot, slot_track)
    return tree


def _add_launches(tree: Tree, launches: pl.DataFrame, title: str) -> int:
    """Tracks of launches: one that holds all, and more below it when they overlap. Returns the number of the first."""
    root = tree.add(title)
    tree.launch_track = np.zeros(launches.height, np.int64)
    timed = np.flatnonzero((launches["start_ns"].is_not_null() & launches["end_ns"].is_not_null()).to_numpy())
    begin, end = (launches[name].to_numpy()[timed].astype(np.int64) for name in ("start_ns", "end_ns"))
    lane = lanes(np.zeros(len(timed), np.int64), begin, np.maximum(begin, end), apart=True)
    more = [tree.add(f"launches {n + 1}", root, n) for n in range(1, int(lane.max(initial=0)) + 1)]
    tree.launch_track[timed] = np.array([root, *more])[lane]
    return root


def _add_shares(tree: Tree, root: int, names: Sequence[str]) -> None:
    """A counter for each of `names`, below one row that can be closed; a name that comes again gets a number."""
    if not names:
        return
    parent, used = tree.add("warps in each phase", root, _COUNTERS_RANK + 2), set[str]()
    for rank, name in enumerate(names):
        again = (f"{name} ({n})" for n in count(2))
        free = name if name not in used else next(each for each in again if each not in used)
        used.add(free)
        tree.share_tracks.append(tree.add(free, parent, rank, unit="% of resident warps"))


def _add_slots(tree: Tree, root: int, slots: I64) -> tuple[I64, I64]:
    """Tracks of `slots` (SM << 32 | slot, ascending), each the SM's own where that has but one slot.

    And per slot the track of the SM where it has more than one, else 0.
    """
    out, shared = np.zeros((2, len(slots)), np.int64)
    for sm in np.unique(slots >> 32).tolist():
        mine = np.flatnonzero(slots >> 32 == sm)
        track = tree.add("SM not known" if sm == _SM_UNKNOWN else f"SM {sm}", root, sm + _FIRST_SM_RANK)
        out[mine] = track
        if len(mine) > 1:
            shared[mine] = track
            out[mine] = [tree.add(f"slot {n}", track, n) for n in range(len(mine))]
        tree.most_slots = max(tree.most_slots, len(mine))
    return out, shared


def _add_warps(tree: Tree, spans: Spans, aside: npt.NDArray[np.bool_], slot: I64, slot_track: I64) -> None:
    """The tracks of warps, each followed by its lines, and what lies on them."""
    key_of_run = slot[spans.block_row] * _WARPS + spans.warp if len(spans) else np.zeros(0, np.int64)
    rows = np.flatnonzero(aside)
    key = key_of_run[spans.run(rows)]
    line = lanes(key, spans.start_ns[rows], spans.end_ns[rows])
    keys, of_run = np.unique(key_of_run, return_inverse=True)
    lines = np.zeros(len(keys), np.int64)
    np.maximum.at(lines, np.searchsorted(keys, key), line + 1)
    where, warp = np.divmod(keys, _WARPS)
    place = np.cumsum(1 + lines) - lines - 1  # of each warp, among all warps and lines
    rank = place - place[np.searchsorted(where, where)]
    tree.warps = WarpTracks(tree.last + 1 + place, warp, slot_track[where], rank)
    for index in np.flatnonzero(lines).tolist():
        uuid, number, parent, above = (int(column[index]) for column in tree.warps)
        for n in range(1, int(lines[index]) + 1):
            name = f"warp {number} crossing" + (f" {n}" if n > 1 else "")
            tree.tracks.append(Track(uuid + n, name, parent, above + n))
    tree.last += int((1 + lines).sum())
    tree.run_track = tree.warps.uuid[of_run]
    order = np.lexsort((spans.end_ns[rows], spans.start_ns[rows], line, key))
    tree.aside_row = rows[order]
    tree.aside_track = (tree.warps.uuid[np.searchsorted(keys, key)] + 1 + line)[order]
