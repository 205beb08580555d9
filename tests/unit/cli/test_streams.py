"""Where output goes: closed, full and broken streams, odd widths, odd names, odd results of queries."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import synthesis
from warplens.cli import main
from warplens.trace import Trace


def run(*arguments: object, **environment: str | None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "120", **environment})


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "run.wlens"
    Trace.from_recording(synthesis.fake_recording()).save(path)
    return path


def shell(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`line` in sh, with "$@" as the command: warplens and `arguments`."""
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "warplens", *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


CODE = '{ "$@"; echo "code $?" >&3; } 3>&2 2>/dev/null'


@pytest.mark.parametrize("arguments", [["query", "select * from spans", "--csv"], ["--help"]])
def test_a_reader_that_reads_nothing_is_no_error(good: Path, arguments: list[str]) -> None:
    first, *others = arguments
    given = [first] if first.startswith("-") else [first, good, *others]
    assert shell(f"{CODE} | true", *given).stderr == "code 0\n"


@pytest.mark.parametrize("closing", [">&- 2>&-", "<&- >/dev/null", ">/dev/null 2>/dev/full"])
def test_closed_streams_and_a_full_stderr_do_not_change_the_exit_code(good: Path, closing: str) -> None:
    assert shell(f'"$@" {closing}', "info", good).returncode == 0
    assert shell(f'"$@" {closing}', "info", good.with_name("missing.wlens")).returncode == 3


@pytest.mark.parametrize("arguments", [["info", "--json"], ["query", "select * from spans", "--csv"]])
def test_a_full_disk_behind_stdout_is_one_message(good: Path, arguments: list[str]) -> None:
    done = shell('"$@" >/dev/full', arguments[0], good, *arguments[1:])
    assert done.returncode == 3
    assert done.stderr.endswith("error: cannot read or write: No space left on device\n")
    assert "fault of warplens" not in done.stderr


@pytest.mark.parametrize("columns", ["0", "x", "-5", "7"])
@pytest.mark.parametrize("command", [["summary"], ["show"], ["info"], ["query"]])
def test_a_width_that_is_none_hides_nothing(good: Path, columns: str, command: list[str]) -> None:
    sql = ["select max(start_cycles) as latest, 123456789012345 as number from spans"] if command == ["query"] else []
    result = run(*command, good, *sql, COLUMNS=columns)
    assert result.exit_code == 0
    assert len(result.stdout) > 30
    assert max(len(line) for line in result.stdout.splitlines()) >= 20
    if sql:
        assert "123456789012345" in result.stdout


def test_numbers_of_a_query_are_never_cut(good: Path) -> None:
    stdout = run("query", good, "select * from spans order by start_cycles desc limit 1", COLUMNS="40").stdout
    (row,) = csv.DictReader(io.StringIO(run("query", good, "select * from spans limit 1", "--csv").stdout))
    assert "…" not in stdout
    assert all(name in stdout for name in row)


@pytest.mark.parametrize("launch", [7, 1 << 32, 1 << 64, 10**30])
@pytest.mark.parametrize("command", [["summary"], ["summary", "--json"], ["show"]])
def test_a_launch_that_no_file_can_hold_is_a_usage_error(good: Path, launch: int, command: list[str]) -> None:
    result = run(command[0], good, *command[1:], "--launch", launch)
    assert result.exit_code == 2
    assert f"the file holds no launch {launch}" in result.stderr


def test_more_rows_than_any_result_has_are_all_rows(good: Path) -> None:
    result = run("query", good, "select * from sites", "--rows", 10**30)
    assert result.exit_code == 0
    assert "more" not in result.stdout


def test_lists_and_bytes_become_text_in_csv_and_are_escaped_everywhere(tmp_path: Path) -> None:
    recording = synthesis.fake_recording()
    recording.manifest["site_sets"][0]["sites"][0]["name"] = "\u202ea\x9b"
    path = tmp_path / "odd.wlens"
    Trace.from_recording(recording).save(path)
    sql = "select array_agg(name) as names, cast('ab' as bytea) as data from sites"
    for form in (["--csv"], ["--json"], []):
        result = run("query", path, sql, *form)
        assert result.exit_code == 0, result.stderr
        assert not {"\u202e", "\x9b"} & set(result.stdout)
    (row,) = csv.DictReader(io.StringIO(run("query", path, sql, "--csv").stdout))
    assert len(json.loads(row["names"])) == len(recording.manifest["site_sets"][0]["sites"])


def test_columns_whose_names_look_alike_when_escaped_are_kept_apart(good: Path) -> None:
    result = run("query", good, 'select 1 as "\x1b", 2 as "\\x1b"', "--json")
    assert result.exit_code == 0
    assert sorted(json.loads(result.stdout)[0].values()) == [1, 2]


@pytest.mark.parametrize("sql", ["select '\udcff'", "select * from read_ipc('/missing/x')"])
def test_a_query_that_cannot_be_run_is_a_usage_error(good: Path, sql: str) -> None:
    result = run("query", good, sql)
    assert result.exit_code == 2
    assert "the query was refused" in result.stderr


@pytest.mark.parametrize("name", [b"-\xff'\x1b\\\n.wlens", "名 é;y.wlens".encode()])
def test_the_next_command_names_the_file_as_a_shell_takes_it(good: Path, tmp_path: Path, name: bytes) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(good.read_bytes())
    command = [sys.executable, "-m", "warplens", "info", f"./{path.name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    following = done.stderr.decode().removeprefix("next: warplens summary ").strip()
    assert following.isprintable()
    seen = subprocess.run(["bash", "-c", f"ls {following}"], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    assert seen.stdout.removeprefix(b"./").rstrip(b"\n") == name.rstrip(b"\n")


def test_an_error_has_no_colour_with_no_color_even_on_a_terminal() -> None:
    pty = pytest.importorskip("pty")
    for environment, colored in (({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, True)):
        ours, theirs = pty.openpty()
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"}
        command = [sys.executable, "-m", "warplens", "nope"]
        subprocess.run(command, stderr=theirs, env=plain | environment, check=False, timeout=60)
        assert (b"\x1b" in os.read(ours, 4096)) is colored
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("key", ["device", "clock_state"])
@pytest.mark.parametrize("odd", [True, -1, 1.5, "x", [None], {"a": 1}, 10**400])
def test_facts_of_another_type_are_not_known(good: Path, tmp_path: Path, key: str, odd: Any) -> None:
    facts = {
        "device": ["name", "compute_capability", "sm_count", "driver", "cuda_driver_version", "mig", "multi_process"],
        "clock_state": ["sm_hz", "memory_hz", "power_w", "temperature_c", "throttle_reasons", "other_processes"],
    }
    every = dict.fromkeys(facts[key], odd)
    choices = [every] if key == "device" else [{"before": every, "after": every}, {"before": odd, "after": odd}]
    for choice in choices:
        path = tmp_path / "odd.wlens"
        with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == "manifest.json":
                    data = json.dumps(json.loads(data) | {key: choice}).encode()
                new.writestr(name, data)
        for command in ("summary", "info"):
            result = run(command, path)
            assert result.exit_code in (0, 4), (command, result.stderr)
