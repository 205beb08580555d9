"""Several traces as one: launches side by side, each with its own file's clocks.

In: traces, of the ranks of one job for example. Out: a `Trace` with tables alone. Times are those that each GPU's
global timer gave, counted from the earliest origin; nothing is shifted to make them agree, and a problem says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from warplens.decode.manifest import check
from warplens.errors import UsageError
from warplens.trace import TABLES, Trace, frames
from warplens.trace.file import FileContents

if TYPE_CHECKING:
    import polars as pl

_TIMES: Final = {"launches": ("start_ns", "end_ns"), "blocks": ("start_ns", "end_ns"), "spans": ("start_ns",)}
_OF_SITES: Final = ("spans", "audit")


def merge(traces: Sequence[Trace]) -> Trace:
    """The launches of all `traces`, numbered on in their order, with their blocks, spans, sites and problems.

    Sets of sites of one name must be the same in all. The manifest's `merged` says where launches came from. Raises
    UsageError for no traces, two different sets of one name, or a launch that two of the traces hold.
    """
    if not traces:
        raise UsageError("nothing to merge: name traces")
    _refuse_twice(traces)
    manifest = _manifest(traces)
    origin_ns = min(trace.origin_ns for trace in traces)
    sites = frames.sites(manifest)
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in (*TABLES, "clocks") if name != "sites"}
    first = 0
    for trace in traces:
        for name, frame in _shifted(trace, sites, first, trace.origin_ns - origin_ns).items():
            parts[name].append(frame)
        first += len(trace.manifest["launches"])
    tables = {name: _together(frames_of_it) for name, frames_of_it in parts.items()}
    tables["sites"] = sites
    if len(traces) > 1:
        tables["problems"] = _together([tables["problems"], _not_aligned(tables["problems"], len(traces))])
    manifest["origin_ns"] = origin_ns
    sources = {path: text for trace in traces for path, text in trace.sources.items()}
    return Trace(FileContents(check(manifest), {}, frames.to_parquet(tables, origin_ns), sources))


def _refuse_twice(traces: Sequence[Trace]) -> None:
    """Raises UsageError where a launch of one kernel began and ended at the same nanosecond in two of the traces."""
    first: dict[tuple[object, ...], tuple[int, int]] = {}
    for number, trace in enumerate(traces):
        columns = trace.launches.select("launch", "start_ns", "duration_ns", "kernel", "grid_id")
        for launch, start_ns, *rest in columns.iter_rows():
            if start_ns is None:
                continue
            other, its = first.setdefault((trace.origin_ns + start_ns, *rest), (number, launch))
            if other != number:
                same = f"launch {launch} of {_named(trace, number)} is launch {its} of {_named(traces[other], other)}"
                raise UsageError(f"{same}, and would be there twice: was one of them merged from the other?")


def _named(trace: Trace, number: int) -> str:
    return f"trace {number}" if trace.path is None else str(trace.path)


def _together(parts: list[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    return pl.concat(parts)


def _shifted(trace: Trace, sites: pl.DataFrame, first: int, later_ns: int) -> dict[str, pl.DataFrame]:
    """The tables of one trace as they stand in the whole: launches from `first` on, times `later_ns` later."""
    import polars as pl

    keys = ("site_set", "id")
    its = trace.sites.select("site", *keys).join(sites.select(pl.col("site").alias("whole"), *keys), on=keys)
    row_of = its.select("site", "whole")
    out = {}
    for name in (*TABLES, "clocks"):
        if name == "sites":
            continue
        frame = trace._table(name)
        order = frame.columns
        if "launch" in order:
            frame = frame.with_columns((pl.col("launch") + first).cast(frame.schema["launch"]))
        for column in _TIMES.get(name, ()):
            frame = frame.with_columns(pl.col(column) + later_ns)
        if name in _OF_SITES:
            dtype = frame.schema["site"]
            frame = frame.join(row_of, on="site", how="left", maintain_order="left")
            frame = frame.with_columns(pl.col("whole").cast(dtype).alias("site"))
        out[name] = frame.select(order)
    return out


def _manifest(traces: Sequence[Trace]) -> dict[str, Any]:
    sets: dict[str, dict[str, Any]] = {}
    kernels: list[dict[str, Any]] = []
    launches: list[dict[str, Any]] = []
    merged: list[dict[str, Any]] = []
    for trace in traces:
        own = trace.manifest
        for entry in own["site_sets"]:
            if sets.setdefault(entry["name"], entry)["sites"] != entry["sites"]:
                text = f"two different sets of sites are called {entry['name']}: traces of one build were expected"
                if trace.path is not None:
                    text += f", that of {trace.path} differs from one before it"
                raise UsageError(text)
        merged.append(
            {
                "path": None if trace.path is None else trace.path.name,
                "first": len(launches),
                "process": own.get("process"),
                "device": own["device"],
                "clock_state": own["clock_state"],
                "globaltimer_step_ns": own["globaltimer_step_ns"],
            }
        )
        launches += [{**entry, "kernel": entry["kernel"] + len(kernels), "records": None} for entry in own["launches"]]
        kernels += own["kernels"]
    head = traces[0].manifest
    return {
        **{key: value for key, value in head.items() if key not in ("calibration", "stopped", "process", "sources")},
        "complete": all(trace.manifest["complete"] for trace in traces),
        "site_sets": list(sets.values()),
        "kernels": kernels,
        "launches": launches,
        "merged": merged,
    }


def _not_aligned(problems: pl.DataFrame, count: int) -> pl.DataFrame:
    """The row that says how far times of different traces can be compared."""
    import polars as pl

    text = (
        f"{count} traces stand side by side as each GPU's own global timer has it: nothing aligned them; two H200s of "
        "one host were seen 50 us apart"
    )
    row = {"kind": "clocks_not_aligned", "count": 1, "severity": "note", "text": text}
    columns = {name: [row.get(name)] for name in problems.columns}
    return pl.DataFrame(columns, schema=problems.schema)
