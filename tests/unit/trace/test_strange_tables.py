"""Tables of a file that no warplens wrote: one clear error, whatever is wrong with them."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl
import pytest

from tests.synthesis import fake_recording
from warplens.errors import FormatError
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.trace.file import read_file, write_file


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("spans", "site", None),
        ("spans", "site", 60_000),
        ("spans", "launch", 7),
        ("blocks", "launch", 7),
        ("sites", "site", 0),
        ("launches", "kernel", None),
        ("spans", "block", [3, 2, 1, 0]),
        ("spans", "sequence", [1, 0]),
        ("spans", "end_warp", 1),  # and no block
    ],
)
def test_a_table_with_nulls_wrong_order_or_references_to_nowhere_is_one_clear_error(
    table: str, column: str, value: int | list[int] | None, tmp_path: Path
) -> None:
    path = tmp_path / "whole.wlens"
    Trace.from_recording(fake_recording(blocks=4)).save(path)
    contents = read_file(path)
    tables = dict(contents.tables)
    frame = pl.read_parquet(io.BytesIO(tables[table]))
    stream = io.BytesIO()
    values = value if isinstance(value, list) else [value]
    changed = pl.Series(column, (values * frame.height)[: frame.height], frame.schema[column])
    frame.with_columns(changed).write_parquet(stream)
    write_file(path, contents.manifest, tables={**tables, table: stream.getvalue()})
    trace = open_trace(path)
    with pytest.raises(FormatError, match=rf"tables/{table}\.parquet"):
        _ = (trace.launches, trace.sites, trace.blocks, trace.spans)


@pytest.mark.parametrize("table", ["blocks", "clocks", "launches", "sites", "spans"])
def test_a_row_that_stands_twice_is_one_clear_error(table: str, tmp_path: Path) -> None:
    path = tmp_path / "whole.wlens"
    Trace.from_recording(fake_recording(blocks=4)).save(path)
    contents = read_file(path)
    frame = pl.read_parquet(io.BytesIO(contents.tables[table]))
    stream = io.BytesIO()
    pl.concat([frame, frame.head(1)]).write_parquet(stream)
    write_file(path, contents.manifest, tables={**contents.tables, table: stream.getvalue()})
    trace = open_trace(path)
    with pytest.raises(FormatError, match=rf"tables/{table}\.parquet"):
        _ = (trace.launches, trace.sites, trace.blocks, trace.spans)
