"""How often each site was passed: what a budget of events goes by.

In: a Trace. Out: plain data, as JSON holds it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from warplens.trace import Trace


def events_by_site(trace: Trace) -> dict[str, tuple[int, dict[str, int]]]:
    """By the name of a set of sites the launches that were recorded with it, and the spans of each site in them.

    A site that was never passed has 0.
    """
    manifest = trace.manifest
    launches = Counter(manifest["kernels"][entry["kernel"]]["site_set"] for entry in manifest["launches"])
    counts = trace.spans.group_by("site").agg(events=pl.len())
    rows = trace.sites.join(counts, on="site", how="left", maintain_order="left").select("site_set", "name", "events")
    out: dict[str, tuple[int, dict[str, int]]] = {name: (number, {}) for name, number in launches.items()}
    for set_, name, events in rows.iter_rows():
        if set_ in out:
            own = out[set_][1]
            own[name] = own.get(name, 0) + (events or 0)
    return out
