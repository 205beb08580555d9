"""A trace: the same tables from records and from a file, and what its methods promise."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.corrections import corrections
from tests.synthesis import Event, FakeRecording, Warp, encode_warp, fake_recording, manifest, nested_recording
from warplens.decode.flags import SpanFlag
from warplens.errors import FormatError, UsageError
from warplens.layout import Control, Verb
from warplens.trace import TABLES, Trace
from warplens.trace import open as open_trace
from warplens.trace.tables import CLOCKS, STORED_SPANS

RECORDINGS = Path(__file__).parents[3] / "recordings"


def with_losses() -> FakeRecording:
    recording = fake_recording(blocks=8, warps=3, phases=30, sms=3)
    (name,) = recording.records
    recording.records[name] = np.delete(recording.records[name], [0, 7, 20], axis=0)
    recording.manifest["launches"][0]["lost_events"] = 31
    return recording


def with_corrections() -> FakeRecording:
    recording = fake_recording(blocks=8, warps=3, launches=2, sms=3)
    recording.manifest["kernels"][0]["corrections"] = corrections({0: 90.0, 1: 50.0, 3: 5000.0}, warps=3, cost_error=9)
    return recording


@pytest.mark.parametrize(
    "recording",
    [
        fake_recording(blocks=8, warps=3, launches=3, sms=3),
        nested_recording(blocks=6),
        with_losses(),
        with_corrections(),
        fake_recording(blocks=5, warps=2, calibrated=False, step_ns=1000),
    ],
    ids=["phases", "nested", "losses", "corrected", "coarse"],
)
def test_tables_come_back_from_a_file_exactly(tmp_path: Path, recording: FakeRecording) -> None:
    trace = Trace.from_recording(recording)
    trace.save(tmp_path / "tables.wlens")
    trace.save(tmp_path / "records.wlens", records=True, tables=False)
    for name in ("tables.wlens", "records.wlens"):
        back = open_trace(tmp_path / name)
        for table in TABLES:
            assert getattr(back, table).equals(getattr(trace, table)), table
            assert getattr(back, table).schema == getattr(trace, table).schema
        assert back.origin_ns == trace.origin_ns
    twice = tmp_path / "twice.wlens"
    open_trace(tmp_path / "tables.wlens").save(twice)
    assert twice.read_bytes() == (tmp_path / "tables.wlens").read_bytes()


def test_tables_have_the_columns_and_dtypes_that_are_documented() -> None:
    for recording in (fake_recording(), nested_recording(), fake_recording(launches=0)):
        trace = Trace.from_recording(recording)
        for table, columns in TABLES.items():
            frame: pl.DataFrame = getattr(trace, table)
            assert {k: str(v) for k, v in frame.schema.items()} == {k: c.dtype for k, c in columns.items()}
            for name, column in columns.items():
                assert column.nullable or frame[name].null_count() == 0, (table, name)


def joined() -> FakeRecording:
    """Warp 0 starts a range that warp 1 ends."""
    events = [[Event(Verb.RANGE_START, 1000, 3, id=9)], [Event(Verb.RANGE_END, 1700, 3, id=9)]]
    places = [Warp(code_bits=7), Warp(code_bits=7, warp=1)]
    chunks = [encode_warp([*e, Event(Control.END, 5000)], w) for e, w in zip(events, places, strict=True)]
    recording = nested_recording()
    facts = manifest(launches=[{"block": [64, 1, 1]}], sites=[("a", "phase", "")] * 3)
    return replace(recording, manifest=facts, records={"records/000000.u32": np.concatenate(chunks)})


def test_the_warp_that_ended_a_range_comes_back_from_a_file_and_is_null_in_an_older_one(tmp_path: Path) -> None:
    trace = Trace.from_recording(joined())
    assert trace.spans.select("end_block", "end_warp").rows() == [(0, 1)]
    trace.save(tmp_path / "new.wlens")
    assert open_trace(tmp_path / "new.wlens").spans.equals(trace.spans)
    with zipfile.ZipFile(tmp_path / "new.wlens") as new, zipfile.ZipFile(tmp_path / "old.wlens", "w") as old:
        for name in new.namelist():
            data = new.read(name)
            if name == "tables/spans.parquet":
                buffer = io.BytesIO()
                pl.read_parquet(io.BytesIO(data)).drop("end_block", "end_warp").write_parquet(buffer)
                data = buffer.getvalue()
            old.writestr(name, data)
    spans = open_trace(tmp_path / "old.wlens").spans
    assert spans.drop("end_block", "end_warp").equals(trace.spans.drop("end_block", "end_warp"))
    assert spans.select("end_block", "end_warp").rows() == [(None, None)]


def test_parquet_in_the_file_holds_absolute_times(tmp_path: Path) -> None:
    trace = Trace.from_recording(fake_recording(blocks=8, warps=3))
    trace.save(tmp_path / "a.wlens")
    with zipfile.ZipFile(tmp_path / "a.wlens") as archive:
        archive.extractall(tmp_path)
    stored = pl.read_parquet(tmp_path / "tables" / "spans.parquet")
    assert stored.columns == list(STORED_SPANS)
    assert stored["start_ns"].equals(trace.spans["start_ns"])
    assert pl.read_parquet(tmp_path / "tables" / "clocks.parquet").columns == list(CLOCKS)


def test_spans_stand_in_the_order_launch_block_warp_sequence() -> None:
    spans = Trace.from_recording(fake_recording(blocks=8, warps=3, phases=40, launches=2)).spans
    keys = ["launch", "block", "warp", "sequence"]
    assert spans.select(keys).equals(spans.select(keys).sort(keys))


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{}')", "READ_CSV('{}')", '"read_csv"(\'{}\')', "read_csv /* ( */ ('{}')", "read_csv--\n('{}')",
        "`read_csv`('{}')", "sites join read_csv('{}') on true", "sites where id in (select a from Read_Csv('{}'))",
        "sites where name = E'\\'' or id in (select a from read_csv('{}')) or name = ''",
    ],
)  # fmt: skip
def test_a_query_reads_no_other_file(tmp_path: Path, source: str) -> None:
    path = tmp_path / "secret.csv"
    path.write_text("a\n1\n")
    with pytest.raises(UsageError, match="would read another file"):
        Trace.from_recording(fake_recording()).sql(f"select * from {source.format(path)}")


def test_all_that_polars_reads_from_a_query_is_refused(tmp_path: Path) -> None:
    trace = Trace.from_recording(fake_recording())
    for name in ("read_csv", "read_ipc", "read_json", "read_ndjson", "read_parquet", "scan_parquet"):
        with pytest.raises(UsageError, match=f"{name} would read another file"):
            trace.sql(f"select * from {name}('{tmp_path / 'none'}')")
    assert trace.sql("select 1 as read_only from sites limit 1")["read_only"].to_list() == [1]


def test_sql_runs_over_the_five_tables_and_a_wrong_query_is_a_usage_error() -> None:
    trace = Trace.from_recording(fake_recording(blocks=5, warps=2))
    query = "select s.name, count(*) as n from spans p join sites s on p.site = s.site group by s.name order by s.name"
    assert set(trace.sql(query)["n"].to_list()) == {10}
    with pytest.raises(UsageError, match="the tables are launches, blocks, spans, sites, problems"):
        trace.sql("select nothing from nowhere")
    with pytest.raises(UsageError):
        trace.sql("selekt")


def test_records_cannot_be_saved_from_a_file_without_them(tmp_path: Path) -> None:
    trace = Trace.from_recording(fake_recording(blocks=2, warps=1))
    trace.save(tmp_path / "a.wlens")
    with pytest.raises(UsageError, match="holds no records"):
        open_trace(tmp_path / "a.wlens").save(tmp_path / "b.wlens", records=True)
    with pytest.raises(UsageError, match="nothing to save"):
        trace.save(tmp_path / "b.wlens", tables=False)
    assert not (tmp_path / "b.wlens").exists()


def test_note_and_sources_are_shown() -> None:
    recording = fake_recording(blocks=2, warps=1)
    recording.manifest["note"] = "M=4096"
    trace = Trace.from_recording(recording)
    assert trace.note == "M=4096"
    assert dict(trace.sources) == {"rmsnorm.cu": "// source\n"}


def test_site_names_in_any_utf8_survive(tmp_path: Path) -> None:
    recording = fake_recording(blocks=2, warps=1)
    names = ["名前", "a\tb\n", "🚀", "\x1b[31m", "", "é", "x" * 5000, "'; drop table spans"]
    for site, name in zip(recording.manifest["site_sets"][0]["sites"], names, strict=True):
        site["name"] = name
    Trace.from_recording(recording).save(tmp_path / "a.wlens")
    assert open_trace(tmp_path / "a.wlens").sites["name"].to_list() == names


def test_a_recording_with_a_wrong_manifest_is_refused() -> None:
    recording = fake_recording(blocks=2, warps=1)
    recording.manifest["launches"][0]["grid"] = [0, 1, 1]
    with pytest.raises(FormatError, match=r"launches\[0\]\.grid\[0\]"):
        Trace.from_recording(recording)


def test_a_launch_that_recorded_nothing_has_null_times(tmp_path: Path) -> None:
    recording = fake_recording(blocks=2, warps=1)
    recording.manifest["launches"].append({**recording.manifest["launches"][0], "grid_id": 99})
    trace = Trace.from_recording(recording)
    assert trace.launches["start_ns"].to_list() == [0, None]
    assert trace.launches["events"].to_list() == [16, 0]
    trace.save(tmp_path / "a.wlens")
    assert open_trace(tmp_path / "a.wlens").launches.equals(trace.launches)


def test_a_large_launch_takes_at_most_two_and_a_half_bytes_an_event(tmp_path: Path) -> None:
    trace = Trace.from_recording(fake_recording(blocks=432, warps=20, sms=132))
    trace.save(tmp_path / "a.wlens")
    events = int(trace.launches["events"].sum())
    assert (tmp_path / "a.wlens").stat().st_size <= 2.5 * events


@pytest.mark.parametrize("rows", [432, 528])
def test_a_real_recording_of_every_warp_takes_at_most_two_and_a_half_bytes_an_event(rows: int, tmp_path: Path) -> None:
    trace = open_trace(RECORDINGS / f"rmsnorm_{rows}x5120_h200.wlens")
    trace.save(tmp_path / "a.wlens")
    events = rows * 20 * 9  # 20 warps a block, each eight phases and the end
    assert trace.spans.height == events * 8 // 9
    assert (tmp_path / "a.wlens").stat().st_size <= 2.5 * events


def test_corrected_durations_follow_from_the_manifest_and_are_not_clipped() -> None:
    trace = Trace.from_recording(with_corrections())
    spans = trace.spans.join(trace.launches.select("launch", "cycles_per_ns"), on="launch")
    first = spans.filter(pl.col("site") == 0)
    assert (first["duration_ns"] - first["corrected_ns"]).to_list() == pytest.approx(
        (50 / first["cycles_per_ns"]).to_list()
    )
    assert first["corrected_uncertainty_ns"].to_list() == pytest.approx((9 / first["cycles_per_ns"]).to_list())
    third = spans.filter(pl.col("site") == 2)
    assert (third["corrected_ns"] < 0).all()
    assert (third["flags"] == SpanFlag.OVERCORRECTED).all()
    assert spans.filter(pl.col("site") == 1)["corrected_ns"].null_count() == 8 * 3 * 2
    told = trace.problems.filter(pl.col("kind") == "overcorrected")
    assert told["count"].to_list() == [24, 24]
    assert told["severity"].unique().to_list() == ["note"]


def test_a_file_without_corrections_has_empty_columns_of_them(tmp_path: Path) -> None:
    for recording in (fake_recording(blocks=2, warps=1), fake_recording(blocks=2, warps=1, launches=0)):
        Trace.from_recording(recording).save(tmp_path / "a.wlens")
        spans = open_trace(tmp_path / "a.wlens").spans
        assert spans.schema["corrected_ns"] == spans.schema["corrected_uncertainty_ns"] == pl.Float64
        assert spans["corrected_ns"].null_count() == spans.height


def test_corrections_that_say_why_there_are_none_open() -> None:
    recording = fake_recording(blocks=2, warps=1)
    recording.manifest["kernels"][0]["corrections"] = {"not_measured": "correct=False"}
    assert Trace.from_recording(recording).spans["corrected_ns"].is_null().all()
