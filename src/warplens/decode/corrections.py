"""What a mark costs in its place, from launches of three builds: one that takes each mark once, one that takes it
twice, and the two-mark build, which takes a warp's first mark and its end alone.

In: the chunks of single launches and the manifest's facts about them. Out: `LaunchTimes`, and of several of those the
plain data `kernels[i].corrections` of a manifest. The first mark of a warp is taken once in every build, so that all
tell the same life of a warp; its cost stays in the first span. Pure; raises `UnfitError` with a reason where nothing
can be said. The model and its limits: docs/adr/0008-corrections.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from warplens import layout
from warplens.decode.arrays import I64, U32, Bool
from warplens.decode.chunks import Chunks, read_chunks, starts
from warplens.decode.events import END, Events, Words, read_events
from warplens.decode.flags import SpanFlag
from warplens.decode.problems import Problems
from warplens.decode.roles import MAX_ROLES, find_roles
from warplens.decode.spans import find_spans
from warplens.decode.times import fit_times, read_block_records
from warplens.layout import ChunkFlag, Verb

F64 = npt.NDArray[np.float64]

LEAST_LAUNCHES: Final = 4
"""Of each build: fewer say too little about the spread between launches."""
RESOLUTION_CYCLES: Final = 1.0
"""No half width is smaller: clock64 counts whole cycles."""
LIFE: Final = 0
"""In place of a site: a warp's life, from its first mark to its end."""
STUDENT_95: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761)
"""Student's t, 95 % one-sided (90 % two-sided), for 1, 2, 3 ... degrees of freedom."""
_LEFT_OUT: Final = SpanFlag.INSTANT | SpanFlag.UNENDED | SpanFlag.AFTER_GAP | SpanFlag.WRAPPED
_VERBS: Final = {Verb.PHASE: "phase", Verb.WAIT: "wait", Verb.RANGE_PUSH: "range_push", Verb.RANGE_START: "range_start"}


class UnfitError(Exception):
    """These records do not tell what a mark costs; the text says why."""


@dataclass
class LaunchTimes:
    """Durations in one launch, by warp of a block and site: tables of shape (warps, 1 + sites), column `LIFE` first."""

    count: I64
    mean_cycles: F64
    """Of all spans: a warp writes what it keeps once in 24 marks, which medians do not see; nan for no span."""
    p50_cycles: F64
    verbs: I64
    """Per column, a bit for each verb that began such a span."""
    apart_cycles: I64
    """From each copy of a mark to the next, all of the launch, in order; empty where marks are taken once."""
    spread_cycles: F64
    """Half of what 90 % of those distances span, by warp and site; nan where there is none."""


def measure(chunks: U32, manifest: dict[str, Any], *, copies: int = 1) -> LaunchTimes:
    """Durations in one launch whose marks, but for each warp's first, were taken `copies` times in a row.

    `manifest` is a checked one with the launch alone; `chunks` have shape (n, 32). Raises `UnfitError`.
    """
    (launch,) = manifest["launches"]
    (sites,) = (s for s in manifest["site_sets"] if s["name"] == manifest["kernels"][launch["kernel"]]["site_set"])
    columns = len(sites["sites"]) + 1
    bits, doubts = layout.code_bits(columns - 1), Problems()
    words, table, alone = read_chunks({launch["records"]: chunks}, manifest, [bits], doubts)
    fit_times(table, read_block_records(words, table), [bits], manifest, doubts, alone)
    table.reach_cycles[table.likely] = 0  # no calibration lies beside these launches; for means what is likely will do
    table = table.take(_in_whole_warps(table))
    every = read_events(words, table, bits, doubts)
    t_cycles = np.repeat(table.base_cycles, every.per_chunk) - every.age.astype(np.int64)
    warp_of_event = table.warp[every.chunk()]
    kept = _first_copies(every, table, copies)
    again = np.flatnonzero(kept)[:-1] + 1 if copies > 1 else np.zeros(0, np.int64)
    again = again[~kept[again]]
    apart = t_cycles[again] - t_cycles[again - 1]
    events = _taken(every, kept, len(table))
    t_cycles, warp_of_event = t_cycles[kept], warp_of_event[kept]
    found = find_spans(events, table, columns - 1, doubts)
    good = np.flatnonzero(found.flags & np.uint16(_LEFT_OUT) == 0)
    begin, end = found.begin[good], found.end[good]
    column = events.site[begin].astype(np.int64)
    verbs = np.zeros(columns, np.int64)
    np.bitwise_or.at(verbs, column, 1 << events.kind[begin].astype(np.int64))
    first = np.flatnonzero(starts(table.gwarp[events.chunk()]))
    last = np.append(first[1:], len(events)) - 1
    if events.wrapped is not None and len(first):
        right = ~np.logical_or.reduceat(events.wrapped, first)
        first, last = first[right], last[right]
    key = np.concatenate([warp_of_event[first] * columns + LIFE, warp_of_event[begin] * columns + column])
    cycles = np.concatenate([t_cycles[last] - t_cycles[first], t_cycles[end] - t_cycles[begin]])
    size = -(-int(np.prod(launch["block"])) // 32), columns
    count, mean, low, p50, high = _grouped(key, cycles, size)
    of_mark = table.warp[every.chunk(again)] * columns + np.where(every.site[again] < columns, every.site[again], 0)
    _, _, low, _, high = _grouped(of_mark, apart, size)
    return LaunchTimes(count, mean, p50, verbs, np.sort(apart), (high - low) / 2)


def _in_whole_warps(chunks: Chunks) -> Bool:
    """Chunks of warps that ended, with all lanes, and lost nothing."""
    if not len(chunks):
        raise UnfitError("nothing was recorded")
    odd = np.asarray(chunks.lost > 0)
    odd |= chunks.has(ChunkFlag.PARTIAL) | chunks.has(ChunkFlag.NONUNIFORM)
    odd |= chunks.has(ChunkFlag.LAST) != np.append(chunks.first_of_warp[1:], True)
    warp = np.cumsum(chunks.first_of_warp) - 1
    bad = np.zeros(int(warp[-1]) + 1, np.bool_)
    bad[warp[odd]] = True
    if 2 * int(bad.sum()) >= len(bad):
        raise UnfitError("most warps lost records, ended early or had parted lanes")
    return np.asarray(~bad[warp])


def _first_copies(events: Events, chunks: Chunks, copies: int) -> Bool:
    """True for the first of the copies of each mark, and for the ends of warps."""
    place = np.arange(len(events))
    first = starts(chunks.gwarp[events.chunk()])
    place -= np.maximum.accumulate(np.where(first, place, 0)) if len(place) else 0
    kept = first | ((place - 1) % copies == 0)
    mark = np.flatnonzero(kept & ~first & (events.kind != END))
    after = mark[:, None] + np.arange(1, copies)
    alike = bool(kept[events.kind == END].all()) and (not after.size or int(after.max()) < len(events))
    for column in (events.kind, events.site):
        alike = alike and bool((column[after] == column[mark][:, None]).all())
    if not alike:
        raise UnfitError(f"the marks of the build that takes each {copies} times do not come so")
    return np.asarray(kept)


def _taken(events: Events, kept: Bool, chunks: int) -> Events:
    """Those events, each with the number of its word."""
    slot = np.arange(len(events)) if events.slot is None else events.slot
    words: list[Words | None] = [None if w is None else w.take(kept) for w in (events.id, events.payload)]
    return Events(
        per_chunk=np.bincount(events.chunk(kept), minlength=chunks),
        kind=events.kind[kept],
        site=events.site[kept],
        age=events.age[kept],
        fresh=events.fresh[kept],
        after_gap=None if events.after_gap is None else events.after_gap[kept],
        wrapped=None if events.wrapped is None else events.wrapped[kept],
        slot=slot[kept],
        id=words[0],
        payload=words[1],
        present=events.present,
    )


def _grouped(key: I64, values: I64, size: tuple[int, int]) -> tuple[I64, F64, F64, F64, F64]:
    """Tables of shape `size` over the keys: count, mean, and percentiles 5, 50 and 95 (nan for none)."""
    order = np.lexsort((values, key))
    sums = np.append(0, np.cumsum(values[order]))
    count = np.bincount(key, minlength=size[0] * size[1])[: size[0] * size[1]]
    some = np.flatnonzero(count)
    n, first = count[some], (np.cumsum(count) - count)[some]
    out = np.full((4, len(count)), np.nan)
    out[0, some] = (sums[first + n] - sums[first]) / n
    for row, share in enumerate((0.05, 0.5, 0.95), 1):
        out[row, some] = values[order][first + np.rint(share * (n - 1)).astype(np.int64)]
    mean, low, p50, high = out.reshape(4, *size)
    return count.reshape(size), mean, low, p50, high


def estimate(
    single: Sequence[LaunchTimes],
    multiple: Sequence[LaunchTimes],
    bare: Sequence[LaunchTimes] = (),
    *,
    copies: int = 2,
    not_anchored: str = "no launch of a two-mark build",
) -> dict[str, Any]:
    """The manifest's `corrections` from launches of the builds, neighbours in time.

    By role of warps and site: the mean duration, what the marks there add to it directly (the difference of the
    builds, for one copy), and half widths of 90 % intervals into which an independent repetition of the whole
    measurement falls (prediction interval for the mean of as many further launches: Student's t over the launches'
    differences, Hahn & Meeker, Statistical Intervals). By role: the factor by which durations less those costs sum to
    the life in the two-mark build, of which `bare` are launches; without them `not_anchored` says why. Raises
    `UnfitError`.
    """
    if len(single) != len(multiple) or len(single) < LEAST_LAUNCHES or (bare and len(bare) != len(single)):
        raise UnfitError(f"{len(single)} and {len(multiple)} launches of the builds, and {LEAST_LAUNCHES} are needed")
    roles = _roles(single)
    if not roles:
        raise UnfitError("no warp passed a mark")
    once, more = (np.stack([by_role(t, roles) for t in times]) for times in (single, multiple))
    cost = (more - once) / (copies - 1)
    direct = once - cost
    factor, relative, anchored = _anchor(once[:, :, LIFE], direct[:, :, LIFE], bare, roles)
    verbs = np.bitwise_or.reduce([t.verbs for t in (*single, *multiple)])
    spread = np.stack([np.nan_to_num(by_role(t, roles, t.spread_cycles)) for t in multiple]).mean(axis=0)
    spans = np.sum([_counts(t, roles) for t in single], axis=0)
    rows: dict[str, list[Any]] = {name: [] for name in ROW_KEYS}
    for role, column in np.argwhere(np.isfinite(cost).all(axis=0)).tolist():
        names = ["life"] if column == LIFE else [_VERBS[v] for v in _VERBS if verbs[column] >> int(v) & 1]
        if len(names) != 1:  # the tables do not tell by which verb a span began
            continue
        own, whole, rest = cost[:, role, column], once[:, role, column], direct[:, role, column]
        by_launch = factor[role] * (rest + rest.mean() * relative[:, role])
        row = {
            "role": role,
            "site": column,
            "verb": names[0],
            "spans": int(spans[role, column]),
            "duration_cycles": _rounded(whole.mean()),
            "cost_cycles": _rounded(own.mean()),
            "cost_uncertainty_cycles": _rounded(half_width(own)),
            "corrected_uncertainty_cycles": _rounded(half_width(by_launch)),
            "mark_uncertainty_cycles": _rounded(spread[role, column]),
        }
        for name, value in row.items():
            rows[name].append(value)
    apart = np.sort(np.concatenate([t.apart_cycles for t in multiple]))
    shares = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
    mark = {name: int(apart[round(share * (len(apart) - 1))]) for name, share in shares.items()} if len(apart) else None
    anchor = {"not_measured": None if bare else not_anchored} | (anchored if bare else {})
    found = {"launches": len(single), "copies": copies, "mark_cycles": mark}
    return found | {"roles": roles, "anchor": anchor, "rows": rows}


def _anchor(
    lives: F64, direct: F64, bare: Sequence[LaunchTimes], roles: list[list[int]]
) -> tuple[F64, F64, dict[str, list[float | None]]]:
    """By role: the factor (1 where it is not known), by launch what it would have been more or less, as a share; and
    the lists of the manifest's `anchor`. `lives` of the build with single marks, `direct` less what these cost."""
    factor, relative = np.ones(len(roles)), np.zeros(lives.shape)
    lists: dict[str, list[float | None]] = {name: [None] * len(roles) for name in ANCHOR_KEYS}
    if not bare:
        return factor, relative, lists
    two = np.stack([by_role(times, roles)[:, LIFE] for times in bare])
    for role in range(len(roles)):
        whole, rest, own = lives[:, role], direct[:, role], two[:, role]
        if not (np.isfinite([whole, rest, own]).all() and rest.mean() > 0 and own.mean() > 0):
            continue
        life = middle_mean(own)
        factor[role] = life / rest.mean()
        relative[:, role] = own / life - rest / rest.mean()
        lists["life_cycles"][role] = _rounded(life)
        lists["marks_uncertainty_cycles"][role] = _rounded(half_width(whole - own))
        lists["factor"][role] = round(float(factor[role]), 5)
        lists["factor_uncertainty"][role] = round(half_width(factor[role] * relative[:, role], 0.0), 5)
    return factor, relative, lists


ANCHOR_KEYS: Final = ("life_cycles", "marks_uncertainty_cycles", "factor", "factor_uncertainty")
"""Lists of `corrections.anchor`, a value a role; null where it is not known."""

ROW_KEYS: Final = (
    "role",
    "site",
    "verb",
    "spans",
    "duration_cycles",
    "cost_cycles",
    "cost_uncertainty_cycles",
    "corrected_uncertainty_cycles",
    "mark_uncertainty_cycles",
)
"""Columns of `corrections.rows`, lists of one length."""


def middle_mean(values: F64) -> float:
    """The mean of the middle half of launches: an odd one does not move it."""
    left_out = len(values) // 4
    return float(np.sort(values)[left_out : len(values) - left_out].mean())


def half_width(values: npt.ArrayLike, resolution: float = RESOLUTION_CYCLES) -> float:
    """Half of the 90 % interval, around the mean of `values`, for the mean of as many further ones; at least the
    resolution."""
    values = np.asarray(values, np.float64)
    degrees = len(values) - 1
    student = STUDENT_95[min(degrees, len(STUDENT_95)) - 1]
    return float(np.hypot(student * values.std(ddof=1) * np.sqrt(2 / len(values)), resolution))


def _rounded(value: float) -> float:
    return round(float(value), 2)


def _roles(times: Sequence[LaunchTimes]) -> list[list[int]]:
    count = np.sum([t.count for t in times], axis=0)
    p50 = np.stack([np.where(t.count > 0, t.p50_cycles, 0.0) for t in times])
    visits = []
    for warp, column in np.argwhere(count > 0).tolist():
        if column != LIFE:
            seen = [t.count[warp, column] > 0 for t in times]
            visits.append((column, warp, int(count[warp, column]), float(np.median(p50[seen, warp, column]))))
    roles = find_roles(visits)
    return roles if len(roles) <= MAX_ROLES else [[warp] for warp in sorted({visit[1] for visit in visits})]


def _counts(times: LaunchTimes, roles: list[list[int]]) -> I64:
    return np.stack([times.count[list(warps)].sum(axis=0) for warps in roles])


def by_role(times: LaunchTimes, roles: Sequence[Sequence[int]], values: F64 | None = None) -> F64:
    """Means over the warps of each role of `values` (the durations unless given), weighted by spans, by role and
    column; nan for none."""
    values = times.mean_cycles if values is None else values
    weight = np.where(np.isfinite(values), times.count, 0)
    total = np.stack([(weight * np.nan_to_num(values))[list(warps)].sum(axis=0) for warps in roles])
    spans = np.stack([weight[list(warps)].sum(axis=0) for warps in roles])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(spans > 0, total / np.maximum(spans, 1), np.nan))
