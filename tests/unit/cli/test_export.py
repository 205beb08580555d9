"""`warplens export`: what it writes, where, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from tests import perfetto_reader, synthesis
from warplens.cli import main
from warplens.trace import Trace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *(str(a) for a in arguments)])


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Trace.from_recording(synthesis.fake_recording(launches=2)).save("run.wlens")
    return Path("run.wlens")


@pytest.mark.parametrize(
    ("form", "name"), [("perfetto", "run.pftrace.gz"), ("parquet", "run-parquet"), ("csv", "run-spans.csv")]
)
def test_each_format_is_written_beside_the_user_under_its_own_name(file: Path, form: str, name: str) -> None:
    result = run(file, "-t", form)
    assert result.exit_code == 0
    assert result.stdout == f"wrote {name}\n"
    assert result.stderr.startswith("next: ")
    assert Path(name).exists()


def test_perfetto_says_where_to_open_it(file: Path) -> None:
    assert (
        run(file, "-t", "perfetto", "-o", "a b.gz").stderr
        == "next: open https://ui.perfetto.dev and drop 'a b.gz' on it\n"
    )


def test_options_select_and_trim(file: Path) -> None:
    result = run(file, "-t", "perfetto", "--no-gzip", "--no-arguments", "--launch", 1, "--blocks", "0,2-3,2")
    assert result.stdout == "wrote run.pftrace\n"
    found = perfetto_reader.read(Path("run.pftrace").read_bytes())
    assert len(found.of_spans()) == 3 * 4 * 8
    assert all(s.args == {} for s in found.slices)


def test_sms_are_selected(file: Path) -> None:
    assert run(file, "-t", "parquet", "--sms", "1-2").exit_code == 0
    blocks = pl.read_parquet("run-parquet/blocks.parquet")
    assert set(blocks["sm_begin"]) == {1, 2}
    spans = pl.read_parquet("run-parquet/spans.parquet")
    assert set(spans.select("launch", "block").rows()) == set(blocks.select("launch", "block").rows())


def test_spans_are_selected_by_time_and_length(file: Path) -> None:
    def spans() -> pl.DataFrame:
        return pl.read_parquet("run-parquet/spans.parquet")

    assert run(file, "-t", "parquet").exit_code == 0
    whole = spans()
    least, last = 150, whole["start_ns"].to_list()[-1]
    assert run(file, "-t", "parquet", "--min-duration", least, "--from", 1, "--to", last).exit_code == 0
    begin, length = pl.col("start_ns"), pl.col("duration_ns")
    assert spans().equals(whole.filter(length >= least, (begin + length > 1), begin < last))
    assert 0 < spans().height < whole.height


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-t", "json"],
        ["-t", "csv", "--no-gzip"],
        ["-t", "parquet", "--no-arguments"],
        ["-t", "csv", "--sms", "1-"],
        ["-t", "csv", "--sms", "-1"],
        ["-t", "csv", "--blocks", ""],
        ["-t", "csv", "--blocks", "3-1"],
        ["-t", "csv", "--blocks", "0-99999999999"],
        ["-t", "csv", "--blocks", "999"],
        ["-t", "csv", "--launch", "2"],
        ["-t", "csv", "--from", "x"],
        ["-t", "csv", "--min-duration", "-1"],
        ["-t", "csv", "--from", "999999999"],
    ],
)
def test_wrong_arguments_end_with_2_and_write_nothing(file: Path, arguments: list[str]) -> None:
    result = run(file, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert list(Path().iterdir()) == [file]


@pytest.mark.parametrize("form", ["perfetto", "parquet", "csv"])
def test_an_unusable_file_or_place_ends_with_3(file: Path, form: str) -> None:
    Path("bad.wlens").write_bytes(b"hello")
    assert run("bad.wlens", "-t", form).exit_code == 3
    assert run(file, "-t", form, "-o", "missing/a").exit_code == 3
    assert sorted(p.name for p in Path().iterdir()) == ["bad.wlens", "run.wlens"]
