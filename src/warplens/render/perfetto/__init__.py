"""A trace as Perfetto's TrackEvent protobuf.

In: the chosen tables of a Trace. Out: the bytes of a trace file, in pieces. Rows: the launches, below them counters of
resident blocks and warps and of the warps in each phase, then SM by SM its slots with their blocks, and below each
slot its warps.
Writes no file and compresses nothing: that is `render.export`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from warplens.render.perfetto.flows import find_flows
from warplens.render.perfetto.nesting import PIECE_ROWS, Spans, find_aside, nest, pieces, read_spans
from warplens.render.perfetto.packets import ALL_FLAGS, Names, Packets, descriptors, site_names
from warplens.render.perfetto.shares import find_shares
from warplens.render.perfetto.spans import SpanPackets
from warplens.render.perfetto.tree import grow

if TYPE_CHECKING:
    from warplens.render.selection import Chosen

__all__ = ["perfetto_bytes"]


def perfetto_bytes(
    chosen: Chosen, sites: pl.DataFrame, origin_ns: int, *, title: str = "GPU", arguments: bool = True
) -> Iterator[Any]:
    """Buffers that joined make the trace; with `arguments` also what each span carries, and the flows.

    Times are `origin_ns` plus those of the tables; `title` names the row of the launches. UsageError when a time does
    not fit into 63 bits.
    """
    spans = read_spans(chosen.spans, chosen.blocks)
    aside = find_aside(spans)
    shares = find_shares(chosen.blocks, spans, sites)
    names_of_sites = site_names(sites)
    counted = [names_of_sites[site] for site in shares.sites]
    tree = grow(chosen.launches, chosen.blocks, spans, aside, title=title, shares=counted)
    names = Names(sites, np.flatnonzero(np.bincount(spans.flags & ALL_FLAGS)).tolist(), tree.most_slots)
    packets = Packets(names, _bounds(chosen, spans), tree.last, arguments=arguments)
    yield packets.preamble(origin_ns)
    yield from descriptors(tree)
    yield packets.launches(chosen.launches, tree)
    yield from packets.counters(chosen.blocks, tree)
    yield from packets.shares(shares, tree)
    yield packets.residency(chosen.blocks, tree)
    yield from packets.blocks(chosen.blocks, tree)
    writer = SpanPackets(packets, spans, find_flows(spans, sites) if arguments else None)
    for piece in pieces(spans):
        if aside[piece].all():
            continue
        found = nest(spans, np.flatnonzero(~aside[piece]) + piece.start if aside[piece].any() else piece)
        yield writer.events(found.rows, found.close, tree.run_track[spans.run(found.rows)])
    for begin in range(0, len(tree.aside_row), PIECE_ROWS):
        part = slice(begin, begin + PIECE_ROWS)
        yield writer.events(tree.aside_row[part], None, tree.aside_track[part])


def _bounds(chosen: Chosen, spans: Spans) -> tuple[int, int]:
    """The first and the last time of all."""
    frames = (chosen.launches, chosen.blocks)
    times = [frame[name].drop_nulls().to_numpy() for frame in frames for name in ("start_ns", "end_ns")]
    known = [column for column in (*times, spans.start_ns, spans.end_ns) if len(column)]
    return min((int(column.min()) for column in known), default=0), max((int(c.max()) for c in known), default=0)
