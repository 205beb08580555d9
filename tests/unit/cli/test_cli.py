"""Commands: what they print, write, suggest, and end with."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests import synthesis
from tests.page import facts_and_streams
from warplens import errors
from warplens.cli import main
from warplens.cli.app import COMMANDS
from warplens.cli.exits import exit_of
from warplens.trace import Trace


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "120", **environment})


def saved(path: Path, recording: synthesis.FakeRecording) -> Path:
    Trace.from_recording(recording).save(path)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("good") / "run.wlens", synthesis.fake_recording(launches=2))


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = synthesis.fake_recording(launches=2)
    recording.manifest["launches"][1] |= {"lost_events": 7, "lost_chunks": 1}
    return saved(tmp_path_factory.mktemp("lossy") / "lossy.wlens", recording)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = synthesis.fake_recording()
    for site, name in zip(
        recording.manifest["site_sets"][0]["sites"], ["\x1b[31mred", "a\nb", "[red]x[/]", "\u202egnp"], strict=False
    ):
        site["name"] = name
    recording.manifest["kernels"][0]["name"] = "k\x1b]0;owned\x07"
    recording.manifest["note"] = "\x1b[2Jnote"
    return saved(tmp_path_factory.mktemp("hostile") / "hostile.wlens", recording)


def test_help_lists_every_command_without_importing_it() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, text) in COMMANDS.items():
        assert name in result.output
        assert text.split()[0] in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_whose_first_line_is_that_of_the_list(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.help
    assert command.name == name


def test_help_imports_no_numpy_polars_matplotlib_or_rich() -> None:
    program = "import sys, warplens.cli\ntry:\n    warplens.cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
    program += "print(sorted({'numpy', 'polars', 'matplotlib', 'rich', 'cuda', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_summary_and_show_import_no_matplotlib_and_doctor_no_torch(good: Path) -> None:
    program = "import sys, warplens.cli\n"
    for arguments in (["summary", str(good)], ["show", str(good)], ["doctor"]):
        program += f"try:\n    warplens.cli.main({arguments!r})\nexcept SystemExit:\n    pass\n"
    program += "print('heavy', sorted({'matplotlib', 'torch', 'triton'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "heavy []"


def test_the_module_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "warplens", "summry"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "did you mean summary?" in done.stderr


@pytest.mark.parametrize(("name", "meant"), [("diff", "plot BEFORE diff AFTER"), ("open", "report FILE --open")])
def test_a_command_of_other_tools_names_the_one_that_does_it(name: str, meant: str) -> None:
    result = run(name, "a.wlens", "b.wlens")
    assert result.exit_code == 2
    assert f"no command '{name}': did you mean `warplens {meant}`?" in result.stderr


def test_no_arguments_print_help_and_end_with_usage() -> None:
    result = run()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr
    assert result.stdout == ""


def test_summary_prints_trust_then_phases_then_the_next_command(good: Path) -> None:
    result = run("summary", good)
    assert result.exit_code == 0
    assert result.stdout.index("TRUST") < result.stdout.index("load_sumsq")
    assert result.stderr == f"next: warplens show {good}\n"


@pytest.mark.parametrize("by", ["site", "role", "sm", "block", "launch"])
def test_summary_by_anything_is_also_json(good: Path, by: str) -> None:
    assert run("summary", good, "--by", by).exit_code == 0
    result = run("summary", good, "--by", by, "--json")
    facts = json.loads(result.stdout)
    assert facts["by"] == by
    assert facts["exit_code"] == result.exit_code == 0
    assert facts["groups"][0]["rows"]


def test_summary_of_losses_ends_with_4_after_printing_all(lossy: Path) -> None:
    result = run("summary", lossy)
    assert result.exit_code == 4
    assert "7 events lost" in result.stdout
    assert "load_sumsq" in result.stdout
    assert "select * from problems" in result.stderr


def test_a_launch_without_losses_ends_with_0_though_another_has_some(lossy: Path) -> None:
    assert run("summary", lossy, "--launch", 0).exit_code == 0
    assert run("summary", lossy, "--launch", 1).exit_code == 4


def test_other_commands_on_a_lossy_file_end_with_0(lossy: Path) -> None:
    assert run("show", lossy).exit_code == 0
    assert run("info", lossy).exit_code == 0


def test_show_is_as_wide_as_asked(good: Path) -> None:
    lines = run("show", good, "--width", 50).stdout.splitlines()
    assert max(len(line) for line in lines if line.startswith("w")) == 50


def test_show_ends_with_the_picture_of_the_same_block(good: Path) -> None:
    assert run("show", good, "--block", 3).stderr == f"next: warplens plot {good} warps --block 3\n"


def test_the_last_picture_leads_to_the_page(good: Path, tmp_path: Path) -> None:
    command = ["plot", str(good), "blocks"]
    for _ in range(4):
        assert command[0] == "plot"
        command = run(*command, "-o", tmp_path / "a.png").stderr.split()[2:]
    assert command == ["report", str(good)]


@pytest.mark.parametrize("kind", ["blocks", "warps", "distributions", "sm"])
def test_plot_writes_beside_the_user_and_says_where(good: Path, kind: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = run("plot", good, kind)
    assert result.exit_code == 0
    assert result.stdout == f"wrote run-{kind}.png\n"
    assert (tmp_path / f"run-{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_plot_takes_a_site_and_a_second_file(good: Path, lossy: Path, tmp_path: Path) -> None:
    result = run("plot", good, "sm", "--site", "store", "-o", tmp_path / "a.pdf")
    assert (result.exit_code, result.stdout) == (0, f"wrote {tmp_path / 'a.pdf'}\n")
    result = run("plot", good, "diff", lossy, "-o", tmp_path / "a.svg")
    assert (result.exit_code, result.stdout) == (0, f"wrote {tmp_path / 'a.svg'}\n")
    assert b"7 events lost after" in (tmp_path / "a.svg").read_bytes()
    assert result.stderr == f"next: warplens summary {lossy}\n"
    assert run("plot", good, "diff", tmp_path / "missing.wlens").exit_code == 3


def test_info_says_what_the_file_is(good: Path) -> None:
    text = run("info", good).stdout
    assert "of buffers, keep oldest" in text
    for expected in ("NVIDIA H200", "132" if "132" in text else "4 SMs", "rmsnorm_fwd<true>", "tables/spans.parquet"):
        assert expected in text
    facts = json.loads(run("info", good, "--json").stdout)
    assert facts["manifest"]["format"] == "wlens"
    assert {m["name"] for m in facts["members"]} >= {"manifest.json", "tables/spans.parquet"}


def test_no_text_that_query_prints_as_csv_is_a_formula(good: Path) -> None:
    sql = "select '=1+1' as a, '-x' as b, -1 as c from launches limit 1"
    (row,) = csv.DictReader(io.StringIO(run("query", good, sql, "--csv").stdout))
    assert row == {"a": "'=1+1", "b": "'-x", "c": "-1"}


def test_query_prints_a_table_csv_or_json(good: Path) -> None:
    sql = "select name, kind from sites order by site limit 2"
    assert "load_sumsq" in run("query", good, sql).stdout
    assert json.loads(run("query", good, sql, "--json").stdout)[1] == {"name": "warp_reduce", "kind": "phase"}
    rows = list(csv.reader(io.StringIO(run("query", good, sql, "--csv").stdout)))
    assert rows == [["name", "kind"], ["load_sumsq", "phase"], ["warp_reduce", "phase"]]


def test_a_long_result_says_how_much_is_left_out(good: Path) -> None:
    text = run("query", good, "select block from spans", "--rows", 5).stdout
    assert len([line for line in text.splitlines() if line.strip().isdigit()]) == 5
    assert "more: --rows N" in text


@pytest.mark.parametrize("sql", ["select nothing from spans", "drop it", "select * from secrets", ""])
def test_a_wrong_query_is_a_usage_error_that_lists_the_tables(good: Path, sql: str) -> None:
    result = run("query", good, sql)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "spans: launch, block, warp" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["summary", "FILE", "--by", "thread"],
        ["summary", "FILE", "--launch", "9"],
        ["show", "FILE", "--block", "99999"],
        ["plot", "FILE", "flames"],
        ["plot", "FILE", "warps", "-o", "a.jpg"],
        ["plot", "FILE", "warps", "FILE"],
        ["plot", "FILE", "diff"],
        ["plot", "FILE", "sm", "--site", "nothing"],
        ["plot", "FILE", "warps", "--site", "store"],
        ["plot", "FILE", "blocks", "--block", "1"],
        ["query", "FILE", "select 1", "--csv", "--json"],
        ["summary"],
        ["--nonsense"],
    ],
)
def test_wrong_arguments_end_with_2_and_one_message(good: Path, arguments: list[str]) -> None:
    result = run(*(str(good) if a == "FILE" else a for a in arguments))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


COMMANDS_ON_FILES = [["summary"], ["show"], ["plot", "warps"], ["info"], ["query", "select 1"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["record", "-k", "reduce", "--kernels=softmax", "true"], "-k / --kernels is there 2 times"),
        (["instrument", "--sites", "a", "--sites", "b", "x.ptx", "-o", "y"], "'A|B' finds what A or B finds"),
        (["merge", "a.wlens", "-o", "b.wlens", "-o", "c.wlens"], "-o / --output is there 2 times"),
    ],
)
def test_of_a_value_that_is_given_twice_none_is_dropped_unsaid(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, says in result.stderr) == (2, True)


def test_what_may_be_given_twice_is_taken(tmp_path: Path) -> None:
    several = ["--also", "loads", "--also", "stores", "-f", "-f"]
    twice = run("instrument", *several, tmp_path / "none", "-o", tmp_path / "o")
    assert "cannot open" in twice.stderr
    program = ["sh", "-c", "exit 3", "-k", "a", "-k", "b"]
    assert run("record", *program).exit_code == 3


def test_a_line_that_is_not_whole_yet_is_completed() -> None:
    """The program's name is that of the function here."""
    result = run(_MAIN_COMPLETE="bash_complete", COMP_WORDS="main record -k a -k b --pol", COMP_CWORD="6")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "plain,--policy\n", "")


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 not really", b"hello", "truncated", "flipped"])
@pytest.mark.parametrize("command", COMMANDS_ON_FILES, ids=lambda c: c[0])
def test_an_unusable_file_is_one_message_and_exit_code_3(
    good: Path, tmp_path: Path, command: list[str], content: bytes | str | None
) -> None:
    path = tmp_path / "bad.wlens"
    data = good.read_bytes()
    if content == "truncated":
        path.write_bytes(data[: len(data) // 3])
    elif content == "flipped":
        path.write_bytes(data[:60] + bytes(b ^ 0x55 for b in data[60:120]) + data[120:])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    result = run(command[0], path, *command[1:])
    assert result.exit_code == 3
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    assert list(tmp_path.glob("*.png")) == []


def test_a_folder_is_an_unusable_file(tmp_path: Path) -> None:
    assert run("info", tmp_path).exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["summary"],
        ["summary", "--json"],
        ["show"],
        ["info"],
        ["info", "--json"],
        ["query", "select * from sites"],
        ["query", "select * from sites", "--csv"],
        ["query", "select * from sites", "--json"],
        ["query", 'select name as "\x1b[1m" from sites'],
        ["query", "select nothing from sites"],
    ],
)
def test_hostile_names_print_no_control_characters(hostile: Path, arguments: list[str]) -> None:
    result = run(arguments[0], hostile, *arguments[1:])
    assert result.exit_code in (0, 2)
    for character in ("\x1b", "\x07", "\u202e"):
        assert character not in result.output


def test_hostile_file_names_print_no_control_characters(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m b.wlens"
    path.write_bytes(good.read_bytes())
    for result in (run("summary", path), run("info", path), run("info", tmp_path / "\x1b[2J.wlens")):
        assert "\x1b" not in result.output
    assert "next: warplens show $'" in run("summary", path).stderr


def test_colour_comes_only_to_terminals_and_never_with_no_color(good: Path) -> None:
    assert "\x1b[" in run("show", good, FORCE_COLOR="1").stdout
    assert "\x1b[" not in run("show", good).stdout
    assert "\x1b[3" not in run("show", good, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b[4" not in run("show", good, FORCE_COLOR="1", NO_COLOR="1").stdout


def test_a_terminal_without_the_characters_gets_question_marks(good: Path) -> None:
    command = [sys.executable, "-m", "warplens", "show", str(good)]
    import os

    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"lll" in done.stdout


def test_a_reader_that_leaves_early_is_no_error(good: Path) -> None:
    shell = f"{sys.executable} -m warplens query {good} 'select * from spans' --csv | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "error" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("x"), 2),
        (errors.FormatError("x"), 3),
        (errors.VersionError("x"), 3),
        (errors.DeviceError("x"), 5),
        (errors.MissingDependencyError("x"), 5),
        (errors.DisturbanceError("x"), 5),
        (click.UsageError("x"), 2),
        (ImportError("x"), 5),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 70),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_of(error)[0] == code
    assert exit_of(error)[1]


def test_a_fault_of_ours_says_so_and_its_traceback_can_be_had(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("warplens.render.text.summary", fail)
    result = run("summary", good)
    assert result.exit_code == 70
    assert "fault of warplens" in result.stderr
    assert isinstance(run("summary", good, WARPLENS_TRACEBACK="1").exception, ZeroDivisionError)


def test_report_writes_one_page_and_says_where(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", good)
    assert result.exit_code == 0
    assert result.stdout == "wrote run-report.html\n"
    assert result.stderr == f"next: warplens summary {good}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run-report.html"]
    assert (tmp_path / "run-report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_of_a_launch_and_blocks_is_smaller(good: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.html", tmp_path / "part.html"
    assert run("report", good, "-o", whole).exit_code == 0
    assert run("report", good, "-o", part, "--launch", 1, "--blocks", "0,2-3").exit_code == 0
    assert part.stat().st_size < whole.stat().st_size


def test_report_of_sms_and_a_time_holds_what_an_export_of_them_holds(good: Path, tmp_path: Path) -> None:
    chosen = ("--sms", 1, "--from", 1000, "--to", 4000, "--min-duration", 100)
    assert run("report", good, "-o", tmp_path / "page.html", *chosen).exit_code == 0
    assert run("export", good, "-t", "csv", "-o", tmp_path / "spans.csv", *chosen).exit_code == 0
    facts, _ = facts_and_streams((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert facts["spans"] == len((tmp_path / "spans.csv").read_text(encoding="utf-8").splitlines()) - 1 > 0
    assert facts["window"] == "SMs 1, from 1,000 ns, to 4,000 ns, spans of 100 ns or longer"
    result = run("report", good, "-o", tmp_path / "none.html", "--from", 10**12)
    assert (result.exit_code, (tmp_path / "none.html").exists()) == (2, False)
    assert "no span is left: the trace has" in result.stderr


@pytest.mark.parametrize("blocks", ["", "a", "3-1", "1,,2", "-1", "0-99999999", "1-2-3"])
def test_report_refuses_blocks_that_are_no_list(good: Path, tmp_path: Path, blocks: str) -> None:
    result = run("report", good, "-o", tmp_path / "x.html", "--blocks", blocks)
    assert result.exit_code == 2
    assert "--blocks" in result.stderr
    assert not (tmp_path / "x.html").exists()


def test_report_says_on_stderr_that_it_sampled(good: Path, tmp_path: Path) -> None:
    result = run("report", good, "-o", tmp_path / "x.html", "--max-spans", 200)
    assert result.exit_code == 0
    assert result.stderr.startswith("sampled: ")


def test_report_opens_the_page_when_asked(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Path] = []
    monkeypatch.setattr("warplens.cli.report.show", launched.append)
    assert run("report", good, "-o", tmp_path / "x.html", "--open").exit_code == 0
    assert launched == [tmp_path / "x.html"]
