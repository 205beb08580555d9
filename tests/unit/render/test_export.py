"""Exports: what is selected, what is written, and that it is written whole."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests import perfetto_reader
from tests.unit.render import fake
from warplens.errors import FileError, UsageError
from warplens.render.export import FORMATS, export
from warplens.render.selection import Selection, choose
from warplens.trace.tables import TABLES


def small() -> Any:
    return fake.rmsnorm(blocks=8, sms=2, warps=3, resident=2, launches=2)


def of_three_blocks() -> Any:
    """Blocks 0, 1, 2 on SMs 4, 5, 4, each of two spans of 10 and 5 ns, 100 ns apart."""
    rows = [{"start": b * 100 + s, "end": b * 100 + e, "block": b} for b in range(3) for s, e in ((0, 10), (10, 15))]
    return fake.of_spans(rows, sms={0: 4, 1: 5, 2: 4})


def kept(trace: Any, **selection: Any) -> tuple[list[int], list[int]]:
    """Blocks that are left, and starts of the spans."""
    chosen = choose(trace, Selection(**selection))
    return chosen.blocks["block"].to_list(), chosen.spans["start_ns"].to_list()


def test_without_a_selection_all_is_left() -> None:
    trace = small()
    chosen = choose(trace, Selection())
    assert chosen.spans is trace.spans
    assert chosen.blocks.drop("sm").equals(trace.blocks)


@pytest.mark.parametrize(
    ("selection", "blocks", "starts"),
    [
        ({"sms": [4]}, [0, 2], [0, 10, 200, 210]),
        ({"sms": [4], "blocks": [2, 1]}, [2], [200, 210]),
        ({"blocks": [1]}, [1], [100, 110]),
        ({"from_ns": 110}, [1, 2], [110, 200, 210]),
        ({"to_ns": 110}, [0, 1], [0, 10, 100]),
        ({"from_ns": 14, "to_ns": 101}, [0, 1], [10, 100]),
        ({"min_duration_ns": 6}, [0, 1, 2], [0, 100, 200]),
        ({"launch": 0}, [0, 1, 2], [0, 10, 100, 110, 200, 210]),
    ],
)
def test_a_selection_leaves_whole_blocks_and_spans(
    selection: dict[str, Any], blocks: list[int], starts: list[int]
) -> None:
    assert kept(of_three_blocks(), **selection) == (blocks, starts)


def test_blocks_and_launches_whose_own_times_are_in_doubt_stay_with_their_spans() -> None:
    trace = of_three_blocks()
    early = {"start_ns": pl.lit(-5, pl.Int64), "end_ns": pl.lit(-1, pl.Int64)}
    trace = replace(trace, blocks=trace.blocks.with_columns(**early), launches=trace.launches.with_columns(**early))
    chosen = choose(trace, Selection(from_ns=110))
    assert (chosen.blocks["block"].to_list(), chosen.launches.height) == ([1, 2], 1)


def test_an_instant_at_the_begin_of_the_window_is_in_it_and_one_at_its_end_is_not() -> None:
    trace = fake.of_spans([{"start": t, "end": t, "flags": 1} for t in (5, 10, 20)])
    assert kept(trace, from_ns=10, to_ns=20)[1] == [10]


def test_a_launch_leaves_the_others_out() -> None:
    chosen = choose(small(), Selection(launch=1))
    assert {frame["launch"].unique().item() for frame in (chosen.launches, chosen.blocks, chosen.spans)} == {1}


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"launch": 9}, "no launch 9"),
        ({"sms": [4, 7, 8]}, "SM 7-8 was not recorded: there are 4-5"),
        ({"sms": []}, "no SM"),
        ({"blocks": [3]}, "block 3 was not recorded: there are 0-2"),
        ({"sms": [5], "blocks": [0]}, "no span is left"),
        ({"from_ns": 10_000}, r"6 spans from 0 to 215 ns, the longest of 10 ns"),
        ({"min_duration_ns": 11}, "no span is left"),
        ({"from_ns": 5, "to_ns": 1}, "from 5 to 1 ns ends before it begins"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(selection: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        export(of_three_blocks(), tmp_path / "a", selection=Selection(**selection))
    assert list(tmp_path.iterdir()) == []


def test_perfetto_is_packed_unless_asked_otherwise(tmp_path: Path) -> None:
    packed = export(small(), tmp_path / "a.pftrace.gz").read_bytes()
    plain = export(small(), tmp_path / "a.pftrace", gzip=False).read_bytes()
    assert gzip.decompress(packed) == plain
    assert len(perfetto_reader.read(packed).of_spans()) == small().spans.height
    assert zlib.crc32(packed) == zlib.crc32(export(small(), tmp_path / "b").read_bytes())


def test_the_row_of_launches_bears_the_name_of_the_device(tmp_path: Path) -> None:
    found = perfetto_reader.read(export(small(), tmp_path / "a").read_bytes())
    assert [t.name for t in found.tracks.values() if not t.parent] == ["NVIDIA H200"]
    odd = replace(small(), manifest=fake.manifest(device=7))
    found = perfetto_reader.read(export(odd, tmp_path / "a").read_bytes())
    assert [t.name for t in found.tracks.values() if not t.parent] == ["GPU"]


def test_spans_in_perfetto_name_the_line_of_their_mark_not_that_of_the_declaration(tmp_path: Path) -> None:
    audited = [{"site": site, "verb": "phase", "file": "rmsnorm.cu", "line": 70 + site} for site in (0, 2)]
    trace = replace(small(), audit=fake.audit_frame(audited))
    found = perfetto_reader.read(export(trace, tmp_path / "a").read_bytes())
    sources = {s.name: s.source for s in found.of_spans()}
    assert sources["load_sumsq"] == ("rmsnorm.cu", 70)
    assert sources["block_reduce"] == ("rmsnorm.cu", 72)
    declared = trace.sites.filter(name="warp_reduce").select("file", "line").row(0)
    assert sources["warp_reduce"] == declared
    rows = pl.read_csv(export(trace, tmp_path / "b.csv", format="csv"))
    assert set(rows.filter(pl.col("name") == "load_sumsq").select("file", "line").rows()) == {("rmsnorm.cu", 70)}


def test_parquet_is_a_folder_with_the_tables_and_the_facts(tmp_path: Path) -> None:
    trace = replace(small(), origin_ns=17)
    folder = export(trace, tmp_path / "tables", format="parquet")
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        [*(f"{name}.parquet" for name in TABLES), "manifest.json"]
    )
    for name in TABLES:
        assert_frame_equal(pl.read_parquet(folder / f"{name}.parquet"), getattr(trace, name))
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["origin_ns"] == 17
    some = export(trace, tmp_path / "tables", format="parquet", selection=Selection(launch=1, blocks=[2]))
    assert pl.read_parquet(some / "spans.parquet").select("launch", "block").unique().rows() == [(1, 2)]
    assert [p.name for p in tmp_path.iterdir()] == ["tables"]


def test_csv_has_a_row_a_span_with_names_and_sm(tmp_path: Path) -> None:
    trace = fake.renamed(small(), ['a,"b"', "line\nend", "=1+1", "名", "", "f", "g", "h"])
    path = export(trace, tmp_path / "spans.csv", format="csv")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == trace.spans.height
    assert list(rows[0])[:6] == ["launch", "sm", "block", "warp", "sequence", "name"]
    assert [row["name"] for row in rows[:4]] == ['a,"b"', "line\\nend", "'=1+1", "名"]
    sms = {row[:2]: row[2] for row in trace.blocks.select("launch", "block", "sm_begin").rows()}
    assert all(sms[int(row["launch"]), int(row["block"])] == int(row["sm"]) for row in rows)
    assert [int(row["duration_ns"]) for row in rows] == trace.spans["duration_ns"].to_list()


def test_no_name_in_csv_is_a_formula_or_moves_a_cursor(tmp_path: Path) -> None:
    names = ['=HYPERLINK("x")', "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\uff1d1", "a\x1b[2J\u202e-=+@"]
    trace = fake.renamed(small(), names)
    trace = replace(trace, sites=trace.sites.with_columns(file=pl.lit("=cmd|' /C calc'!A0")))
    with export(trace, tmp_path / "spans.csv", format="csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    cells = {row[key] for row in rows for key in ("name", "kind", "resource", "file")}
    assert not [cell for cell in cells if cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))]
    assert all(cell.isprintable() for cell in cells)
    assert {"'+1", "'-1", "\\t=1", "' =1", "a\\x1b[2J\\u202e-=+@"} <= {row["name"] for row in rows}
    assert {row["file"] for row in rows} == {"'=cmd|' /C calc'!A0"}


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are perfetto, parquet, csv"):
        export(small(), tmp_path / "a", format="json")


@pytest.mark.parametrize("form", FORMATS)
def test_a_place_that_cannot_be_written_is_a_file_error_and_leaves_nothing(form: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "folder").mkdir()
    wrong = "file" if form == "parquet" else "folder"
    for place in (wrong, "missing/a", "file/a", "a" * 300, "zero\0byte"):
        with pytest.raises(FileError, match="cannot write"):
            export(small(), tmp_path / place, format=form)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_failure_under_way_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    path.write_bytes(b"old")
    late = fake.of_spans([{"start": 0, "end": 1 << 62}])
    with pytest.raises(UsageError, match="do not fit"):
        export(replace(late, origin_ns=1 << 62), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
