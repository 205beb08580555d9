"""Which arrival ended a wait.

In: spans (in the order launch, block, warp, sequence) with their blocks, launches and sites. Out: `Arrivals`, a row a
wait: the span whose begin let it go, how that is known, or why it is not. Computes in columns.

The events of one block at one resource with one id (or none) are a *group*; the k-th wait of each of its warps, and
the k-th arrival of each, are *round* k. A wait ends by the last arrival of its round. An arrival is a span of kind
`arrive`; at a resource without any in the trace it is a wait's own begin, as at a barrier, where to begin to wait is
to arrive, unless some wait there shows that it is none. Where each warp has one round at most and an id was given, the
marks themselves say what belongs together: the arrival is recorded. Else counting says it: it is inferred, and only
where every warp counts alike. Where a site of kind `mark` names the resource, hardware arrives there when what was
issued is done, and the issue stands for the arrival. An mbarrier is waited for by the parity of its phase: a wait may
be for the phase of its own round or for the one before. Where arrivals of their own rounds came too late for some
waits, all are for the round before, of a ring of n barriers n rounds before. And a phase ends by so many arrivals as
its `mbarrier.init` says: where that is not known, or where the marks of a round tell of another number, nothing is said
(docs/adr/0007-arrivals.md).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens import layout
from warplens.decode.flags import SpanFlag

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_PHASES: Final = re.compile(rf"{layout.MBARRIER} [^\[\]]+(?:\[([1-9][0-9]{{0,5}})\])?")
_PLACE: Final = re.compile(rf"{layout.MBARRIER} ([^\[\]+]+)(?:\+(-?[0-9]{{1,12}}))?(\[([0-9]{{0,6}})\])?")
_BARRIER_BYTES: Final = 8
_DOUBT: Final = SpanFlag.UNENDED | SpanFlag.AFTER_GAP | SpanFlag.WRAPPED


class Basis(enum.IntEnum):
    """How the arrival of a wait is known, or why it is not."""

    RECORDED = 0
    """The wait and its arrivals carry the same id."""
    INFERRED = 1
    """Counted: the last arrival of the wait's round in its block."""
    NO_RESOURCE = 2
    """The site names no resource, or one that is not known which."""
    NO_ARRIVAL = 3
    """Arrivals at the resource are marked, and the block has none of this id; or one warp alone waits there."""
    COUNTS_DIFFER = 4
    """The warps of the block have different numbers of waits or arrivals there."""
    RECORDS_MISSING = 5
    """Spans of the block are cut, follow a gap, have doubtful times, or the block moved to another SM."""
    WARPS_MISSING = 6
    """Not all warps of the block left records."""
    TOO_LATE = 7
    """The last arrival of the round came after the wait was over: they do not belong together."""
    NO_BARRIER = 8
    """No site arrives there, and some wait there ended before the last warp of its round came: it is no barrier."""
    OUTSIDE = 9
    """Known, and not among the spans that were kept."""
    HARDWARE = 10
    """Hardware arrived (a bulk copy, cp.async, tcgen05): between the last issue of the wait's round, counted, and the
    end of the wait."""
    REMOTE = 11
    """Other blocks of the cluster arrive there too."""
    OPEN = 12
    """Its parity let it pass: it waited for the phase before the first, for which nothing arrives."""
    COUNT_UNKNOWN = 13
    """How many arrivals end a phase of the mbarrier, or how many those are that marks tell of, is not known."""
    COUNT_DISAGREES = 14
    """The marks of a round tell of more or fewer arrivals than end a phase of the mbarrier."""
    SEVERAL_NAMES = 15
    """Other sites may mean the same mbarrier by another name: one stage of a ring, or the ring."""


@dataclass(frozen=True)
class Arrivals:
    """One entry a wait, in the order of the spans.

    `wait` is its row in `spans`; `arrival` the row of the span whose begin ended it (its own where its warp was the
    last to come), -1 where that is not known; `of` how many arrivals its round has; `basis` a `Basis`.
    """

    wait: I64
    arrival: I64
    of: I64
    basis: npt.NDArray[np.uint8]

    def within(self, kept: Bool) -> Arrivals:
        """The same of those spans alone that `kept` says, by their rows among these."""
        row = np.where(kept, np.cumsum(kept) - 1, -1)
        mine = kept[self.wait]
        arrival, of, basis = self.arrival[mine], self.of[mine], self.basis[mine].copy()
        found = np.where(arrival < 0, -1, row[arrival])
        basis[(arrival >= 0) & (found < 0)] = Basis.OUTSIDE
        return Arrivals(row[self.wait[mine]], found, np.where(found < 0, 0, of), basis)


def find_arrivals(spans: pl.DataFrame, blocks: pl.DataFrame, launches: pl.DataFrame, sites: pl.DataFrame) -> Arrivals:
    """The arrival of each span of kind `wait`. Blocks must be whole: rounds are counted from their first."""
    known = _sites(sites)
    kind, resource, comes = known.kind, known.resource, known.comes
    site = spans["site"].to_numpy()
    wait = np.flatnonzero((kind == "wait")[site])
    arrival, of = np.full(len(wait), -1), np.zeros(len(wait), np.int64)
    basis = np.full(len(wait), Basis.NO_RESOURCE, np.uint8)
    some = (resource >= 0) & np.isin(kind, ("wait", "arrive", "mark"))
    aside = (kind == "arrive") & (comes[resource] == Comes.BY_ISSUE)  # it says how many bytes are to come
    some &= ~aside | known.counted[resource]
    chosen = np.flatnonzero(some[site])
    number = _block_numbers(spans)
    events = _events(spans, chosen, number, known, aside)
    if len(chosen) and events.waits.any():
        blind = _blind_blocks(spans, number, blocks, launches)[events.block]
        found = _rounds(events, known, blind)
        rows = np.searchsorted(wait, chosen[events.waits])
        arrival[rows] = np.where(found.event < 0, -1, chosen[found.event])
        of[rows], basis[rows] = found.of, found.basis
    return Arrivals(wait, arrival, of, basis)


@dataclass(frozen=True)
class _Events:
    """Waits and arrivals at resources, in the order of the spans; `block` counts the blocks of `spans` from 0.

    `aside`: arrivals that end no wait and are counted alone. `makes`: arrivals that an event tells of, -1: not known.
    """

    block: I64
    warp: I64
    resource: I64
    id: I64
    waits: Bool
    aside: Bool
    makes: I64
    start_cycles: I64
    end_cycles: I64


@dataclass(frozen=True)
class _Found:
    """One entry a wait with a resource: the event that ended it, -1 where that is not known."""

    event: I64
    of: I64
    basis: npt.NDArray[np.uint8]


class Comes(enum.IntEnum):
    """Who arrives at a resource, as far as its sites tell."""

    BY_BEGIN = 0
    """Nothing arrives: to begin to wait is to arrive."""
    BY_ARRIVAL = 1
    BY_ISSUE = 2
    """Hardware, after an issue that is marked."""
    UNSEEN = 3
    """What arrives is not marked, and it is no barrier of warps that wait."""
    FROM_AFAR = 4
    """Other blocks of the cluster too."""


@dataclass(frozen=True)
class _Sites:
    """What sites tell. Per site: `kind`, the number of its `resource` (-1 for none), `arrivals` (-1: not known).

    Per resource: who `comes` there; `phases`, how many rounds a wait's parity can put it back; `counted`, whether it is
    an mbarrier; `expects`, how many arrivals end a phase of it (-1: not known); `shared`, whether another resource may
    be the same barrier.
    """

    kind: npt.NDArray[Any]
    resource: I64
    arrivals: I64
    comes: npt.NDArray[np.uint8]
    phases: I64
    counted: Bool
    expects: I64
    shared: Bool


def _sites(sites: pl.DataFrame) -> _Sites:
    kind = np.array(sites["kind"].to_list(), object)
    named = list(sites.select("site_set", "resource").iter_rows())
    numbers: dict[tuple[str, str], int] = {}
    nameless = ("", layout.UNKNOWN_BARRIER, layout.MBARRIER, layout.REMOTE + layout.MBARRIER)
    known = (name not in nameless for _, name in named)
    resource = np.array(
        [numbers.setdefault(key, len(numbers)) if own else -1 for key, own in zip(named, known, strict=True)], np.int64
    )
    comes = np.full(max(len(numbers), 1), Comes.BY_BEGIN, np.uint8)
    anywhere = {set_ for set_, name in named if name == layout.REMOTE + layout.MBARRIER}
    for (set_, name), number in numbers.items():
        shared = name.startswith(layout.MBARRIER)
        if shared or name in layout.OWN_RESOURCES:
            comes[number] = Comes.UNSEEN
        if (set_, layout.REMOTE + name) in numbers or (shared and set_ in anywhere):
            comes[number] = Comes.FROM_AFAR
    for one, how in (("arrive", Comes.BY_ARRIVAL), ("mark", Comes.BY_ISSUE)):
        at = resource[(kind == one) & (resource >= 0)]
        comes[at[comes[at] != Comes.FROM_AFAR]] = how
    stages = [int(found[1] or 1) if (found := _PHASES.fullmatch(name)) else 0 for _, name in numbers]
    counted = [name.removeprefix(layout.REMOTE).startswith(layout.MBARRIER) for _, name in numbers]
    arrivals = sites["arrivals"].cast(pl.Int64).fill_null(-1).to_numpy()
    expects = np.full(len(comes), -1)
    for number in range(len(numbers)):
        counts = np.unique(arrivals[(kind == "wait") & (resource == number)])
        expects[number] = counts[0] if len(counts) == 1 else -1
    return _Sites(
        kind,
        resource,
        arrivals,
        comes,
        np.array(stages or [0], np.int64),
        np.array(counted or [False], np.bool_),
        expects,
        _shared([*numbers] or [("", "")]),
    )


def _shared(named: list[tuple[str, str]]) -> Bool:
    """Which resources may be another's barrier: a ring whose stage a kernel chooses as it runs, and a place in it.

    `named`: site set and name of each. Where a ring's size is not told it ends where the next one begins.
    """
    places: dict[tuple[str, str], list[tuple[int, int, bool, int]]] = {}
    for number, (set_, name) in enumerate(named):
        if found := _PLACE.fullmatch(name):
            own = (int(found[2] or 0), number, found[3] is not None, int(found[4] or 0) * _BARRIER_BYTES)
            places.setdefault((set_, found[1]), []).append(own)
    out = np.zeros(len(named), np.bool_)
    for together in places.values():
        begins = sorted(at for at, _, ring, _ in together if ring)
        for at, number, ring, size in together:
            following = next((begin for begin in begins if begin > at), 1 << 62)
            end = at + size if size else following
            same = [other for place, other, *_ in together if ring and other != number and at <= place < end]
            out[[number, *same] if same else []] = True
    return out


def _events(spans: pl.DataFrame, chosen: I64, number: I64, known: _Sites, aside: Bool) -> _Events:
    site = spans["site"].to_numpy()[chosen]
    start = spans["start_cycles"].to_numpy()[chosen]
    ids = spans["id"]
    identified = np.zeros(len(chosen), np.int64)
    if ids.null_count() < len(ids):
        values = (ids.cast(pl.Int64) + 1).fill_null(0).to_numpy()[chosen]
        identified = np.unique(values, return_inverse=True)[1].reshape(-1) + (values.min(initial=1) > 0)
    return _Events(
        block=number[chosen],
        warp=spans["warp"].to_numpy()[chosen].astype(np.int64),
        resource=known.resource[site],
        id=identified,
        waits=(known.kind == "wait")[site],
        aside=aside[site],
        makes=known.arrivals[site],
        start_cycles=start,
        end_cycles=start + spans["duration_cycles"].to_numpy()[chosen],
    )


def _block_numbers(spans: pl.DataFrame) -> I64:
    """Per span the number of its block, counted over launches and blocks that have spans."""
    launch, block = spans["launch"].to_numpy(), spans["block"].to_numpy()
    new = np.zeros(len(block), np.bool_)
    new[1:] = (block[1:] != block[:-1]) | (launch[1:] != launch[:-1])
    return np.cumsum(new, dtype=np.int64)


def _blind_blocks(
    spans: pl.DataFrame, number: I64, blocks: pl.DataFrame, launches: pl.DataFrame
) -> npt.NDArray[np.uint8]:
    """Per block of `spans` (`number` is each span's) why nothing may be counted there: a `Basis`, or 0."""
    first = np.flatnonzero(np.append(True, np.diff(number) != 0))
    of_spans = spans.select("launch", "block")[first]
    facts = blocks.join(launches.select("launch", "warps_per_block"), on="launch", how="left").select(
        "launch",
        "block",
        absent=pl.col("warps") != pl.col("warps_per_block"),
        moved=(pl.col("sm_begin") != pl.col("sm_end")).fill_null(value=False),
    )
    facts = of_spans.join(facts, on=["launch", "block"], how="left", maintain_order="left")
    out = np.zeros(len(first), np.uint8)
    out[facts["absent"].fill_null(value=True).to_numpy()] = Basis.WARPS_MISSING
    out[facts["moved"].fill_null(value=True).to_numpy()] = Basis.RECORDS_MISSING
    flags = spans["flags"].to_numpy()
    if flags.any():
        out[number[(flags & np.uint16(_DOUBT)) != 0]] = Basis.RECORDS_MISSING
    return out


def _rounds(events: _Events, known: _Sites, blind: npt.NDArray[np.uint8]) -> _Found:
    """Puts events into rounds and finds the last arrival of each."""
    comes, phases = known.comes, known.phases
    group, round_, counts = _counted(events)
    base = np.cumsum(counts.most) - counts.most
    number = base[group] + round_  # of the round, over all groups
    here = comes[events.resource]
    is_arrival = np.where(here == Comes.BY_BEGIN, events.waits, ~events.waits & ~events.aside & (here != Comes.UNSEEN))
    came = np.flatnonzero(is_arrival)[::-1]  # of events at the same cycle the first one counts
    rounds = int(counts.most.sum())
    last = np.full(rounds, np.iinfo(np.int64).min)
    np.maximum.at(last, number[came], events.start_cycles[came])
    latest = came[events.start_cycles[came] == last[number[came]]]
    event = np.full(rounds, -1)
    event[number[latest]] = latest
    of = np.bincount(number[came], minlength=rounds)

    at = np.flatnonzero(events.waits)
    mine, where = group[at], number[at]
    late = last[where] > events.end_cycles[at]
    back = _rounds_back(events.resource[at], late & counts.alike[mine] & (blind[at] == 0), phases)
    passes = round_[at] < back
    where = where - np.where(passes, 0, back)
    recorded = (events.id[at] > 0) & (counts.most[mine] == 1) & (here[at] == Comes.BY_ARRIVAL)
    basis = np.where(recorded, Basis.RECORDED, Basis.INFERRED).astype(np.uint8)
    # The later of these conditions hold before the earlier ones.
    late = last[where] > events.end_cycles[at]
    refuted = np.zeros(len(comes), np.bool_)  # neither its own round nor the one before
    refuted[events.resource[at[late & ~passes & (back > 0)]]] = True
    basis[~recorded & passes] = Basis.OPEN
    basis[late & ~passes | refuted[events.resource[at]]] = Basis.TOO_LATE
    basis[~recorded & ~counts.alike[mine]] = Basis.COUNTS_DIFFER
    by_begin = here[at] == Comes.BY_BEGIN
    lone = by_begin & (counts.warps[mine] < 2)
    basis[lone | (of[where] == 0) & (recorded | ~counts.arrivals[mine])] = Basis.NO_ARRIVAL
    basis = np.where(~recorded & (blind[at] != 0), blind[at], basis)
    refuted = np.zeros(len(comes), np.bool_)
    refuted[events.resource[at[by_begin & (basis == Basis.TOO_LATE)]]] = True
    basis[by_begin & refuted[events.resource[at]] & (basis <= Basis.INFERRED)] = Basis.NO_BARRIER
    basis[(basis <= Basis.INFERRED) & (here[at] == Comes.BY_ISSUE)] = Basis.HARDWARE
    basis[here[at] == Comes.FROM_AFAR] = Basis.REMOTE
    said = known.counted[events.resource[at]] & np.isin(basis, (Basis.INFERRED, Basis.HARDWARE))
    unknown, disagrees = _against_counts(events, known, group, number, rounds)
    basis[said & disagrees[mine]] = Basis.COUNT_DISAGREES
    basis[said & unknown[mine]] = Basis.COUNT_UNKNOWN
    basis[said & known.shared[events.resource[at]]] = Basis.SEVERAL_NAMES
    told = (basis <= Basis.INFERRED) | (basis == Basis.HARDWARE)
    return _Found(np.where(told, event[where], -1), np.where(told, of[where], 0), basis)


def _against_counts(events: _Events, known: _Sites, group: I64, number: I64, rounds: int) -> tuple[Bool, Bool]:
    """Per group whether the arrivals of some round cannot be counted, and whether some are not as many as expected.

    One round that is wrong shifts all that follow it. `number`: of each event's round, over all groups.
    """
    expects = known.expects[events.resource]
    makes = ~events.waits
    total = np.bincount(number[makes], weights=np.maximum(events.makes[makes], 0), minlength=rounds).astype(np.int64)
    unknown, disagrees = np.zeros(int(group.max()) + 1, np.bool_), np.zeros(int(group.max()) + 1, np.bool_)
    unknown[group[(expects < 0) | makes & (events.makes < 0)]] = True
    disagrees[group[total[number] != expects]] = True
    return unknown, disagrees


def _rounds_back(resource: I64, late: Bool, phases: I64) -> I64:
    """Per wait how many rounds before its own its arrivals are: 0, or what `phases` says of its resource."""
    shifted = np.zeros(len(phases), np.bool_)
    shifted[resource[late]] = True
    return np.where(shifted, phases, 0)[resource]


@dataclass(frozen=True)
class _Counts:
    """Per group: the most rounds of a warp; whether all warps count alike; warps; whether there are arrivals that end
    waits."""

    most: I64
    alike: Bool
    warps: I64
    arrivals: Bool


def _counted(events: _Events) -> tuple[I64, I64, _Counts]:
    """Per event its group and its round; per group its counts."""
    key = events.block * (int(events.resource.max()) + 1) + events.resource
    if events.id.any():  # as dense numbers: with as many ids as spans the product would leave 64 bits below
        key = np.unique(key * (int(events.id.max()) + 1) + events.id, return_inverse=True)[1].reshape(-1)
    # A run is what one warp did of one kind in one group. Events are in the order of blocks, warps and sequence.
    fine = ((key << 8) + events.warp << 2) + events.waits + 2 * events.aside
    order = np.argsort(fine, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(fine[order]) != 0))
    length = np.diff(np.append(begins, len(fine)))
    round_ = np.empty(len(fine), np.int64)
    round_[order] = np.arange(len(fine)) - np.repeat(begins, length)
    heads = order[begins]
    first = np.flatnonzero(np.append(True, np.diff(key[heads]) != 0))
    most = np.maximum.reduceat(length, first)
    alike = np.minimum.reduceat(length, first) == most
    warp_begins = np.append(True, (np.diff(key[heads]) != 0) | (np.diff(events.warp[heads]) != 0))
    warps = np.add.reduceat(warp_begins.astype(np.int64), first)
    arrivals = np.logical_or.reduceat(~(events.waits | events.aside)[heads], first)
    group = np.empty(len(fine), np.int64)
    group[order] = np.repeat(np.repeat(np.arange(len(first)), np.diff(np.append(first, len(begins)))), length)
    return group, round_, _Counts(most, alike, warps, arrivals)
