"""What a page knows of a trace: tables as JSON-able facts, spans and blocks as packed columns.

In: a Trace and which part of it. Out: `PageData`. Times are ns from `origin_ns`, cycles from the first
of their SM in the launch; both come out of the page exactly as they stand in the trace (a test compares them).
Must not write files or know HTML.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analyze.arrivals import Basis, find_arrivals
from warplens.decode.flags import SpanFlag
from warplens.render.colors import WAITING_KINDS, ink_on, site_colors
from warplens.render.escape import visible, visible_tree
from warplens.render.page_arrows import pack_arrows
from warplens.render.page_pack import Packer
from warplens.render.page_part import part_of
from warplens.render.page_times import pack_spans
from warplens.render.phases import launch_groups, phase_table
from warplens.render.places import mark_places
from warplens.render.selection import Selection
from warplens.render.trust import trust_lines

if TYPE_CHECKING:
    from warplens.trace import Trace

MAX_SPANS: Final = 12_000_000
"""More than the 10^7 that a page is measured to carry; beyond, blocks are sampled and the page says so."""
MAX_PROBLEMS: Final = 5000
MAX_AUDIT: Final = 5000
MAX_MARKS_OF_SITE: Final = 20
MAX_NAME: Final = 20_000
MAX_SOURCE_CHARACTERS: Final = 1 << 20


@dataclass(frozen=True)
class PageData:
    """`facts` is JSON; `columns` says how `streams` hold the numbers; `shown` of `held` spans; `sampled` in words."""

    facts: dict[str, Any]
    columns: dict[str, dict[str, Any]]
    streams: list[str]
    shown: int
    held: int
    sampled: str


def page_data(trace: Trace, *, selection: Selection | None = None, max_spans: int = MAX_SPANS) -> PageData:
    """The data of a page over the whole trace, or what `selection` leaves of it.

    Raises UsageError for what the trace does not hold, and where a block alone has more than `max_spans` spans.
    """
    selection = selection or Selection()
    part = part_of(trace, selection, max_spans)
    spans, blocks = part.spans, part.blocks
    packer = Packer(len(spans))
    origin_ns, extent_ns = _extent(spans, blocks)
    kinds = trace.sites["kind"].to_list()
    with ThreadPoolExecutor(1) as pool:  # the phase table is Polars' work, packing numpy's: neither holds the lock
        told = pool.submit(_facts, trace, selection.launch)
        clocks, site_spans, rows = pack_spans(packer, spans, blocks, kinds, origin_ns)
        arrivals = find_arrivals(part.whole, blocks, trace.launches, trace.sites)
        arrivals = arrivals if part.kept is None else arrivals.within(part.kept)
        pack_arrows(packer, arrivals, spans, blocks, rows)
        facts = told.result()
    facts |= {
        "origin_ns": str(trace.origin_ns + origin_ns),
        "since_trace_ns": str(origin_ns),
        "extent_ns": extent_ns,
        "clocks": clocks,
        "spans": len(spans),
        "site_spans": site_spans,
        "held": part.held,
        "sampled": part.sampled,
        "window": part.window,
    }
    return PageData(facts, packer.columns, packer.streams(), len(spans), part.held, part.sampled)


def _extent(spans: pl.DataFrame, blocks: pl.DataFrame) -> tuple[int, int]:
    """The first instant of the page, since the trace's origin, and how long the page lasts."""
    first, last = [], []
    if len(spans):
        start_ns = spans["start_ns"].to_numpy()
        first.append(int(start_ns.min()))
        last.append(int((start_ns + spans["duration_ns"].to_numpy()).max()))
    if len(blocks):
        first.append(int(blocks["start_ns"].to_numpy().min()))
        last.append(int(blocks["end_ns"].to_numpy().max()))
    return (min(first), max(last) - min(first)) if first else (0, 0)


def _facts(trace: Trace, launch: int | None) -> dict[str, Any]:
    """Everything but spans and blocks, its strings made visible."""
    sites = trace.sites
    colors = site_colors(sites["name"].to_list(), sites["kind"].to_list())
    launches = trace.launches if launch is None else trace.launches.filter(pl.col("launch") == launch)
    problems = trace.problems
    if launch is not None:
        problems = problems.filter((pl.col("launch") == launch) | pl.col("launch").is_null())
    places = mark_places(sites, trace.audit)
    files = set(sites["file"].to_list()) | {file for marks in places for file, _ in marks}
    return {
        "note": None if trace.note is None else visible(trace.note, limit=2000),
        "created": visible(trace.manifest.get("created")),
        "device": visible((trace.manifest.get("device") or {}).get("name"), limit=100),
        "sites": [
            {key: visible(row[key], limit=MAX_NAME) for key in ("name", "kind", "resource", "file", "site_set")}
            | {"line": row["line"], "color": color, "ink": ink_on(color), "waits": row["kind"] in WAITING_KINDS}
            | {"marks": [[visible(file, limit=MAX_NAME), line] for file, line in marks[:MAX_MARKS_OF_SITE]]}
            | {"more_marks": max(len(marks) - MAX_MARKS_OF_SITE, 0)}
            for row, color, marks in zip(sites.iter_rows(named=True), colors, places, strict=True)
        ],
        "launches": [_plain(row) for row in launches.to_dicts()],
        "trust": [
            {"label": t.label, "level": t.level, "text": t.text, "brief": t.brief}
            for t in trust_lines(trace, launch, audit_is="in the table of marks")
        ],
        "groups": _groups(trace, launch),
        "problems": [_plain(row) for row in problems.head(MAX_PROBLEMS).to_dicts()],
        "problem_rows": problems.height,
        "audit": [_plain(row) for row in _worst_first(trace.audit).head(MAX_AUDIT).to_dicts()],
        "audit_rows": trace.audit.height,
        "flags": {flag.name: flag.value for flag in SpanFlag},
        "bases": {basis.name: basis.value for basis in Basis},
        "sources": {
            visible(name, limit=MAX_NAME): [visible(line, limit=2000) for line in text.expandtabs(4).splitlines()]
            for name, text in trace.sources.items()
            if name in files and len(text) <= MAX_SOURCE_CHARACTERS
        },
    }


def _worst_first(audit: pl.DataFrame) -> pl.DataFrame:
    rank = pl.col("severity").replace_strict({"warning": 0, "note": 1}, default=2, return_dtype=pl.Int8).fill_null(2)
    return audit.sort(rank, maintain_order=True)


def _groups(trace: Trace, launch: int | None) -> list[dict[str, Any]]:
    """The phase table of each group of launches."""
    out = []
    for group in launch_groups(trace, launch):
        rows = phase_table(trace, group, by_role=False).to_dicts()
        roles = {str(warp): role for warp, role in group.roles.items()}
        kernel = visible(group.first["kernel"], limit=MAX_NAME)
        out.append({"kernel": kernel, "launches": list(group.launches), "roles": roles, "rows": visible_tree(rows)})
    return out


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose strings are visible and whose integers JavaScript can hold, or are text."""
    wide = {k: str(v) for k, v in row.items() if isinstance(v, int) and abs(v) >= 1 << 53}
    return {**visible_tree(row), **wide}
