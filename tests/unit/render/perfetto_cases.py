"""Small traces as Perfetto files, read back."""

from __future__ import annotations

from typing import Any

from tests import perfetto_reader
from tests.perfetto_reader import PerfettoTrace
from tests.unit.render import fake
from warplens.render.perfetto import perfetto_bytes
from warplens.render.selection import Selection, choose

SITES = [("load", "phase", ""), ("tile", "range", ""), ("copy", "range", ""), ("tick", "mark", "")]
SITES += [("full", "wait", "stage 0"), ("filled", "arrive", "stage 0")]
LOAD, TILE, COPY, TICK, FULL, FILLED = range(6)


def written(trace: Any, *, arguments: bool = True, **selection: Any) -> PerfettoTrace:
    chosen = choose(trace, Selection(**selection))
    buffers = perfetto_bytes(chosen, trace.sites, trace.origin_ns, arguments=arguments)
    return perfetto_reader.read(b"".join(bytes(buffer) for buffer in buffers))


def exported(*rows: dict[str, Any], **options: Any) -> PerfettoTrace:
    return written(fake.of_spans(list(rows), SITES), **options)


def span(start: int, end: int, site: int = LOAD, **columns: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "site": site, **columns}
