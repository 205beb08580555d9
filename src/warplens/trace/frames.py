"""Tables of a trace as Polars data frames: from decoded records, and to and from the Parquet of a file.

In: a checked manifest with records or Parquet bytes. Out: frames with exactly the columns of `tables.TABLES`.
Must not read or write files, and raises `FormatError` for Parquet that does not hold what its name says.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens import layout
from warplens.decode.corrected import Corrected, correct, overcorrected
from warplens.decode.flags import SpanFlag
from warplens.errors import FormatError
from warplens.trace.file import U32
from warplens.trace.tables import ADDED, CLOCKS, STORED_SPANS, TABLES, Column

if TYPE_CHECKING:
    from warplens.clock import ClockMap
    from warplens.decode import Decoded
    from warplens.decode.events import Words
    from warplens.decode.problems import Problem

I64 = npt.NDArray[np.int64]

ZSTD_LEVEL: Final = 1
"""Times are noise: higher levels are slower and no smaller (measured on RMSNorm: level 3 takes 3 % more)."""
_BLOCK_ROWS: Final = 1 << 16
"""Rows derived at a time: their columns stay in the second-level cache, and no fresh memory is touched."""
MAX_GROUP_ROWS: Final = 1 << 24
"""One group is read into one piece of memory, which numpy then sees without a copy."""
FREE_ROWS: Final = 1 << 20
MAX_ROWS_PER_BYTE: Final = 64
"""A Parquet table of more than FREE_ROWS may hold this many rows a byte (ours: 0.5): more is a bomb."""
_NOTHING: Final = np.iinfo(np.int64).min
_CORRECTED_BY: Final = ("launch", "warp", "site", "duration_ns", "flags")
"""Columns of `spans` that its corrected durations follow from."""


def from_records(manifest: dict[str, Any], records: Mapping[str, U32]) -> tuple[dict[str, pl.DataFrame], int]:
    """All tables (and `clocks`) by name, and the trace's origin, decoded from records."""
    from warplens.decode import decode  # not needed for files with tables

    named = {entry["records"] for entry in manifest["launches"]}
    decoded = decode(manifest, {name: records[name] for name in records if name in named})
    launches, its_sites, spans = _launches(decoded, manifest), sites(manifest), decoded.spans
    its = {name: getattr(spans, name) for name in _CORRECTED_BY}
    corrected = correct(manifest, launches["cycles_per_ns"].to_numpy(), **its)
    problems = list(decoded.problems)
    if corrected is not None:
        problems += overcorrected(corrected.over, spans.launch, spans.site, its_sites["name"].to_list())
    out = {
        "launches": launches,
        "blocks": _frame(TABLES["blocks"], _blocks(decoded)),
        "spans": _frame(TABLES["spans"], _spans(decoded, corrected)),
        "sites": its_sites,
        "problems": _problems(problems),
        "audit": audit(manifest),
        "clocks": _clocks(decoded.clocks),
    }
    return out, decoded.origin_ns


def sites(manifest: dict[str, Any]) -> pl.DataFrame:
    """The table `sites` of a manifest."""
    rows = [(entry["name"], site) for entry in manifest["site_sets"] for site in entry["sites"]]
    columns: dict[str, Any] = {"site": list(range(len(rows))), "site_set": [name for name, _ in rows]}
    columns |= {key: [site[key] for _, site in rows] for key in ("id", "name", "kind", "resource", "file", "line")}
    columns["arrivals"] = [site.get("arrivals") for _, site in rows]
    return _frame(TABLES["sites"], columns)


def audit(manifest: dict[str, Any]) -> pl.DataFrame:
    """The table `audit` of a manifest; empty when nothing was audited, as in files before 1.1."""
    names = TABLES["audit"]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    begins, base = {}, 0
    for entry in manifest["site_sets"]:
        begins[entry["name"]] = base
        base += len(entry["sites"])
    for kernel in manifest["kernels"]:
        own = (kernel.get("audit") or {}).get("columns") or {}
        size = len(own.get("site", []))
        for name, values in columns.items():
            values += own.get(name, [None] * size)
        first = len(columns["site"]) - size
        begin = begins[kernel["site_set"]]
        columns["site"][first:] = [None if site is None else begin + site for site in columns["site"][first:]]
    return _frame(names, columns)


def to_parquet(tables: dict[str, pl.DataFrame], origin_ns: int) -> dict[str, bytes]:
    """Parquet bytes by table name; `tables` holds all of TABLES and `clocks`."""
    stored = dict(tables)
    stored["spans"] = _to_stored(tables["spans"], tables["blocks"], tables["clocks"], origin_ns)
    out = {}
    for name, frame in stored.items():
        buffer = io.BytesIO()
        frame.write_parquet(
            buffer,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            statistics=False,
            row_group_size=min(max(len(frame), 1), MAX_GROUP_ROWS),
        )
        out[name] = buffer.getvalue()
    return out


def from_parquet(
    name: str,
    members: Mapping[str, bytes],
    table: Callable[[str], pl.DataFrame],
    manifest: dict[str, Any],
    origin_ns: int,
) -> pl.DataFrame:
    """The table `name` out of a file's Parquet members; `table` gives the others that it needs."""
    if name not in members:
        if name in ("sites", "audit"):
            return sites(manifest) if name == "sites" else audit(manifest)
        raise FormatError(f"tables/{name}.parquet: expected in a file with tables, found only {sorted(members)}")
    if name == "spans":
        stored = _read("spans", members[name], STORED_SPANS)
        _expect_below(stored, "spans", "site", table("sites").height)
        _expect_below(stored, "spans", "launch", table("launches").height)
        _expect_order(stored, "spans", ["launch", "block", "warp", "sequence"])
        if (stored["end_block"].is_null() != stored["end_warp"].is_null()).any():
            raise FormatError("tables/spans.parquet: expected end_block and end_warp together, found one of them")
        spans = _from_stored(stored, table("blocks"), table("clocks"), origin_ns)
        its = {name: spans[name].to_numpy() for name in _CORRECTED_BY}
        corrected = correct(manifest, table("launches")["cycles_per_ns"].to_numpy(), **its)
        columns = _corrected_columns(its["flags"], corrected)
        return spans.with_columns(pl.Series(key, column) for key, column in columns.items()).select(
            list(TABLES["spans"])
        )
    frame = _read(name, members[name], CLOCKS if name == "clocks" else TABLES[name])
    if name in ("launches", "sites"):
        key = "launch" if name == "launches" else "site"
        if frame[key].to_list() != list(range(frame.height)):
            raise FormatError(f"tables/{name}.parquet: expected {key} to count from 0, found another order")
    elif name in ("blocks", "clocks"):
        _expect_below(frame, name, "launch", table("launches").height)
        _expect_once(frame, name, ["launch", "block" if name == "blocks" else "sm"])
    elif name == "audit":
        _expect_below(frame, "audit", "site", table("sites").height)
    return frame


def _expect_below(frame: pl.DataFrame, name: str, column: str, bound: int) -> None:
    """`FormatError` when a reference leads out of the table that it names."""
    highest = frame[column].max()
    if isinstance(highest, int) and highest >= bound:
        raise FormatError(f"tables/{name}.parquet: expected {column} below {bound}, found {highest}")


def _expect_once(frame: pl.DataFrame, name: str, columns: list[str]) -> None:
    """`FormatError` when two rows have the same in these columns."""
    if frame.select(columns).is_duplicated().any():
        raise FormatError(f"tables/{name}.parquet: expected one row for each {' and '.join(columns)}, found several")


def _expect_order(frame: pl.DataFrame, name: str, columns: list[str]) -> None:
    """`FormatError` when the rows are not sorted by these columns."""
    equal = np.ones(max(frame.height - 1, 0), np.bool_)
    for column in columns:
        values = frame[column].to_numpy()
        if (equal & (values[1:] < values[:-1])).any():
            raise FormatError(f"tables/{name}.parquet: expected the order {', '.join(columns)}, found another one")
        equal &= values[1:] == values[:-1]


def _read(name: str, data: bytes, columns: dict[str, Column]) -> pl.DataFrame:
    where = f"tables/{name}.parquet"
    try:
        rows = pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item()
        if rows > max(FREE_ROWS, MAX_ROWS_PER_BYTE * len(data)):
            raise FormatError(f"{where}: expected at most {MAX_ROWS_PER_BYTE} rows a byte, found {rows} in {len(data)}")
        frame = pl.read_parquet(io.BytesIO(data))
        absent = [column for column in columns if column not in frame.columns]
        missing = [column for column in absent if column not in ADDED]
        if missing:
            raise FormatError(f"{where}: expected the columns {missing}, found only {frame.columns}")
        frame = frame.with_columns(pl.lit(None, getattr(pl, columns[column].dtype)).alias(column) for column in absent)
        empty = [key for key, column in columns.items() if not column.nullable and frame[key].null_count()]
        if empty:
            raise FormatError(f"{where}: expected a value in every row, found none in some of {empty}")
        kept = [frame[key] for key in columns]  # a narrow integer may stay so where it is only added to another
        narrow = [key.endswith("_residual") and frame.schema[key].is_integer() for key in columns]
        dtypes = [getattr(pl, column.dtype) for column in columns.values()]
        return pl.DataFrame(
            [
                s if keep or s.dtype == dtype else s.cast(dtype)
                for s, keep, dtype in zip(kept, narrow, dtypes, strict=True)
            ]
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, MemoryError) as error:
        raise FormatError(f"{where}: expected a Parquet table, found a damaged one: {error}") from error


def _frame(schema: dict[str, Column], columns: dict[str, Any]) -> pl.DataFrame:
    """A frame with the columns and dtypes of `schema`, from arrays, series or lists."""
    out = []
    for name, column in schema.items():
        dtype, values = getattr(pl, column.dtype), columns[name]
        if isinstance(values, (np.ndarray, pl.Series)):
            out.append(pl.Series(name, values).cast(dtype))
        else:
            out.append(pl.Series(name, values, dtype))
    return pl.DataFrame(out)


def _known(values: npt.NDArray[Any], nothing: int) -> pl.Series:
    """A series with nulls where `values` hold `nothing`."""
    return _masked(values, values != nothing)


def _masked(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> pl.Series:
    frame = pl.DataFrame({"values": values, "valid": valid})
    return frame.select(pl.when("valid").then("values")).to_series()


def _launches(decoded: Decoded, manifest: dict[str, Any]) -> pl.DataFrame:
    columns: dict[str, Any] = dict(decoded.launches)
    columns["kernel"] = [manifest["kernels"][entry["kernel"]]["name"] for entry in manifest["launches"]]
    columns["grid_id"] = [entry["grid_id"] for entry in manifest["launches"]]
    for key in ("start_ns", "end_ns", "duration_ns"):
        columns[key] = _known(columns[key], _NOTHING)
    for key in ("uncertainty_ns", "cycles_per_ns"):
        columns[key] = _masked(columns[key], np.isfinite(columns[key]))
    return _frame(TABLES["launches"], columns)


def _blocks(decoded: Decoded) -> dict[str, Any]:
    columns: dict[str, Any] = dict(decoded.blocks)
    for key in ("sm_begin", "sm_end", "cluster"):
        columns[key] = _known(columns[key], -1)
    return columns


def _spans(decoded: Decoded, corrected: Corrected | None) -> dict[str, Any]:
    size, enders = len(decoded.spans), decoded.enders
    its_own = [name for name in TABLES["spans"] if not name.startswith("corrected_") and name not in ADDED]
    columns: dict[str, Any] = {name: getattr(decoded.spans, name) for name in its_own}
    columns |= _corrected_columns(decoded.spans.flags, corrected)
    for key in ("payload", "id"):
        words: Words | None = columns[key]
        columns[key] = _nulls(key, size) if words is None else _masked(words.values, words.valid)
    for key, known in (("end_block", enders.block), ("end_warp", enders.warp)):
        values = np.full(size if len(known) else 0, -1)
        values[enders.row] = known
        columns[key] = _known(values, -1) if len(known) else _nulls(key, size)
    return columns


def _nulls(name: str, size: int) -> pl.Series:
    dtype = getattr(pl, TABLES["spans"][name].dtype)
    return pl.Series(name, [], dtype).extend_constant(None, size)


def _corrected_columns(flags: npt.NDArray[np.uint16], corrected: Corrected | None) -> dict[str, Any]:
    """`corrected_ns`, `corrected_uncertainty_ns`, and `flags` with their bit."""
    if corrected is None:
        nothing = pl.Series("", [], pl.Float64).extend_constant(None, len(flags))
        return {"corrected_ns": nothing, "corrected_uncertainty_ns": nothing, "flags": flags}
    bit = np.uint16(SpanFlag.OVERCORRECTED)
    columns = {"corrected_ns": corrected.corrected_ns, "corrected_uncertainty_ns": corrected.uncertainty_ns}
    filled = {name: pl.Series(name, values, nan_to_null=True) for name, values in columns.items()}
    return {**filled, "flags": np.where(corrected.over, flags | bit, flags & ~bit)}


def _problems(problems: list[Problem]) -> pl.DataFrame:
    names = TABLES["problems"]
    return _frame(names, {name: [getattr(problem, name) for problem in problems] for name in names})


def _clocks(clocks: list[ClockMap | None]) -> pl.DataFrame:
    parts = []
    for launch, fitted in enumerate(clocks):
        if fitted is None:
            continue
        size = len(fitted.base_cycles)
        parts.append(
            {
                "launch": np.full(size, launch),
                "sm": np.arange(size),
                "base_ns": np.full(size, fitted.base_ns),
                "base_cycles": fitted.base_cycles,
                "offset_ns": fitted.offset_ns,
                "ns_per_cycle": fitted.ns_per_cycle,
                "half_width_ns": fitted.half_width_ns,
            }
        )
    return _frame(CLOCKS, {name: np.concatenate([np.zeros(0, np.int64), *(p[name] for p in parts)]) for name in CLOCKS})


# ---- spans as they are stored ----------------------------------------------------------------------------------
# Cycles are noise that does not shrink; stored beside start_ns they would double the file. Given the line of the SM,
# start_cycles is known from start_ns to about one cycle, and a phase ends where the next begins: what is left to
# store is nearly always -1, 0 or 1 (measured: 0.4 bytes an event for all residuals).


def _to_stored(spans: pl.DataFrame, blocks: pl.DataFrame, clocks: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    line = _Lines(spans, blocks, clocks, origin_ns)
    whole = slice(0, len(spans))
    start_cycles, start_ns, duration, duration_ns = (
        spans[name].to_numpy() for name in ("start_cycles", "start_ns", "duration_cycles", "duration_ns")
    )
    follows, instant = _neighbours(spans)
    cycles = np.append(np.diff(start_cycles), 0)[: len(spans)] * follows
    end_ns = line.ns(start_cycles + duration, whole)
    residuals = {
        "start_residual": start_cycles - line.cycles(start_ns, whole),
        "duration_residual": np.where(instant, 0, duration - cycles),
        "duration_ns_residual": np.where(instant, 0, duration_ns - (end_ns - start_ns)),
    }
    kept = spans.select(name for name in STORED_SPANS if name not in residuals)
    return kept.with_columns(_narrow(name, values) for name, values in residuals.items())


def _from_stored(stored: pl.DataFrame, blocks: pl.DataFrame, clocks: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    line = _Lines(stored, blocks, clocks, origin_ns)
    size = len(stored)
    start_ns = stored["start_ns"].to_numpy()
    residuals = [stored[name].to_numpy() for name in ("start_residual", "duration_residual", "duration_ns_residual")]
    start_cycles, duration, duration_ns = (np.empty(size, np.int64) for _ in range(3))
    parts = [slice(low, min(low + _BLOCK_ROWS, size)) for low in range(0, size, _BLOCK_ROWS)]
    for part in parts:
        np.add(line.cycles(start_ns[part], part), residuals[0][part], out=start_cycles[part])
    follows, instant = _neighbours(stored)
    for part in parts:
        ahead = np.append(start_cycles[part], start_cycles[part.stop : part.stop + 1])
        cycles = np.zeros(part.stop - part.start, np.int64)
        cycles[: len(ahead) - 1] = np.diff(ahead)
        cycles *= follows[part]
        cycles += residuals[1][part]
        cycles *= ~instant[part]
        duration[part] = cycles
        lasts = line.ns(start_cycles[part] + cycles, part) - start_ns[part] + residuals[2][part]
        np.multiply(lasts, ~instant[part], out=duration_ns[part])
    derived = {"start_cycles": start_cycles, "duration_cycles": duration, "duration_ns": duration_ns}
    return stored.with_columns(pl.Series(name, values) for name, values in derived.items())


def _neighbours(spans: pl.DataFrame) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which spans another one of the same warp follows, and which are instants."""
    follows = np.ones(len(spans), np.bool_)
    follows[-1:] = False
    for name in ("warp", "block", "launch"):
        values = spans[name].to_numpy()
        follows[:-1] &= values[1:] == values[:-1]
    return follows, (spans["flags"].to_numpy() & np.uint16(SpanFlag.INSTANT)) != 0


def _narrow(name: str, values: I64) -> pl.Series:
    """The series in the smallest integer type that holds it."""
    for dtype in (np.int8, np.int16, np.int32):
        limits = np.iinfo(dtype)
        if not len(values) or (limits.min <= values.min() and values.max() <= limits.max):
            return pl.Series(name, values.astype(dtype))
    return pl.Series(name, values)


class _Lines:
    """The line of each span's SM, as columns over the spans; wrong numbers in a file give wrong times, no error."""

    def __init__(self, spans: pl.DataFrame, blocks: pl.DataFrame, clocks: pl.DataFrame, origin_ns: int) -> None:
        key = _key(spans, "block")
        first = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
        block = _find(_key(blocks, "block"), key[first], "blocks")
        sm = blocks["sm_end"].fill_null(layout.META_SM_UNKNOWN)
        launch_sm = blocks["launch"].to_numpy().astype(np.int64) << 32 | sm.to_numpy()
        row = _find(_key(clocks, "sm"), launch_sm[block], "clocks")
        self._row = np.repeat(row, np.diff(np.append(first, len(key))))
        names = ("base_cycles", "offset_ns", "ns_per_cycle", "base_ns")
        self._base_cycles, self._offset_ns, self._ns_per_cycle, base_ns = (clocks[n].to_numpy() for n in names)
        self._base_ns = base_ns - origin_ns

    def cycles(self, ns: I64, part: slice) -> I64:
        """clock64, to about one cycle, at times since the origin of the spans in `part`."""
        row = self._row[part]
        with np.errstate(all="ignore"):
            since = np.rint((ns - self._base_ns[row] - self._offset_ns[row]) / self._ns_per_cycle[row]).astype(np.int64)
        return np.asarray(self._base_cycles[row] + since)

    def ns(self, cycles: I64, part: slice) -> I64:
        """Nanoseconds since the origin at clock64 values, as clock.ClockMap.to_ns gives them."""
        row = self._row[part]
        with np.errstate(all="ignore"):
            ns = self._offset_ns[row] + (cycles - self._base_cycles[row]) * self._ns_per_cycle[row]
            return np.asarray(self._base_ns[row] + np.rint(ns).astype(np.int64))


def _key(frame: pl.DataFrame, name: str) -> I64:
    return np.asarray(frame["launch"].to_numpy().astype(np.int64) << 32 | frame[name].to_numpy())


def _find(keys: I64, wanted: I64, table: str) -> I64:
    """Row of each wanted key."""
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys, wanted, sorter=order)
    row = order[np.minimum(at, len(keys) - 1)] if len(keys) else np.zeros(0, np.int64)
    if len(row) != len(wanted) or (keys[row] != wanted).any():
        raise FormatError(f"tables/{table}.parquet: expected a row for every launch and block of the spans")
    return row
