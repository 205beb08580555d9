"""`record` and `include`: what is refused before anything runs, and what is said where nothing was recorded. No GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.synthesis import fake_recording
from warplens.capture.request import VARIABLE, Request, to_text
from warplens.cli import main
from warplens.cli.record import _tell_what_ran
from warplens.trace import Trace


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def warplens(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warplens", *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--capacity", "lots", "true"], "256MiB"),
        (["--capacity", "1KiB", "true"], "1 MiB to 16 GiB"),
        (["-k", "(", "true"], "-k' / '--kernels': '(' is no regular expression"),
        (["--sites", "[", "true"], "--sites': '[' is no regular expression"),
        (["--blocks", "3-1", "true"], "numbers and ranges"),
        ([], "nothing to run"),
        (["--launch-cout", "3", "true"], "--launch-count"),
        (["--nvtx-include", "", "true"], "'.' is found in every range"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(arguments: list[str], says: str) -> None:
    done = run("record", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_file_that_is_there_is_not_written_over_unasked(tmp_path: Path) -> None:
    (tmp_path / "run.wlens").write_text("mine", encoding="utf-8")
    done = warplens(tmp_path, "record", "-o", "run.wlens", "--", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert (tmp_path / "run.wlens").read_text(encoding="utf-8") == "mine"


def test_events_of_a_first_run_reach_the_program_that_may_not_read_traces(tmp_path: Path) -> None:
    recording(tmp_path)
    read = "import os, urllib.parse as p; d = p.parse_qs(os.environ['WARPLENS_RECORD']); "
    read += "print(d['budget'][0], open(d['counts'][0]).read())"
    options = ["--budget", "25%", "--counts", "made.wlens"]
    done = warplens(tmp_path, "record", *options, "--", sys.executable, "-S", "-c", read)
    assert done.stdout.startswith('25% {"rmsnorm": [1, {"'), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.wlens"]
    done = warplens(tmp_path, "record", "--budget", "25%", "--", "true")
    assert (done.returncode, "--budget without --counts" in done.stderr) == (2, True)
    done = warplens(tmp_path, "record", *options[:3], "no.wlens", "--", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (3, "")


def recording(place: Path, **process: object) -> Path:
    """A file as a recorded process leaves it."""
    made = fake_recording(blocks=2, warps=1, sms=1)
    made.manifest["process"] = {"pid": 5, "rank": 0, "program": "a.out", **process}
    path = place / "made.wlens"
    Trace.from_recording(made).save(path, records=True)
    return path


LEAVE = """
import os, shutil, sys, urllib.parse
folder = dict(urllib.parse.parse_qsl(os.environ["WARPLENS_RECORD"], errors="surrogateescape"))["folder"]
shutil.copy(sys.argv[1], os.path.join(folder, "5.wlens"))
"""
"""A program that leaves its first argument as its recording."""


def leaving(place: Path, more: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`record` in `place` of a program that leaves a recording and does `more`."""
    made = recording(place)
    work = place / "work"
    work.mkdir()
    return warplens(work, "record", *options, sys.executable, "-c", LEAVE + more, str(made))


def test_a_folder_is_no_name_of_a_file_also_with_force(tmp_path: Path) -> None:
    done = warplens(tmp_path, "record", "-f", "-o", ".", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a folder" in done.stderr


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = warplens(tmp_path, "record", "-f", "-o", "pipe", "--", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no plain file" in done.stderr
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]


def test_a_recording_that_has_no_place_is_kept(tmp_path: Path) -> None:
    done = leaving(tmp_path, "os.mkdir('d')", "-f", "-o", "d")
    assert done.returncode == 4, done.stderr
    (kept,) = (tmp_path / "work").glob(".warplens-*/5.wlens")
    assert f"kept in {kept.parent}\n" in done.stderr
    assert kept.read_bytes() == (tmp_path / "made.wlens").read_bytes()


def test_a_folder_that_is_named_after_the_process_is_made(tmp_path: Path) -> None:
    done = leaving(tmp_path, "", "-o", "of-%n/%p/run.wlens")
    assert done.returncode == 0, done.stderr
    assert "wrote of-a/5/run.wlens\n" in done.stderr
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "work").rglob("*.wlens")] == [
        "work/of-a/5/run.wlens"
    ]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["of-a"]


def test_where_such_a_folder_cannot_be_made_the_recording_is_kept(tmp_path: Path) -> None:
    done = leaving(tmp_path, "open('of-a', 'w').close()", "-o", "of-%n/run.wlens")
    assert done.returncode == 4, done.stderr
    (kept,) = (tmp_path / "work").glob(".warplens-*/5.wlens")
    assert "not kept: " in done.stderr
    assert f"kept in {kept.parent}\n" in done.stderr


@pytest.mark.parametrize(("ends", "code"), [("3", 3), ("0", 0)])
def test_of_a_record_within_a_record_the_outer_one_records(ends: str, code: int, tmp_path: Path) -> None:
    made = recording(tmp_path)
    inner = [sys.executable, "-m", "warplens", "record", "-o", "inner.wlens", "--launch-count", "1", "--"]
    program = [sys.executable, "-c", LEAVE + f"print('mine'); sys.exit({ends})", str(made)]
    done = warplens(tmp_path, "record", "-o", "run.wlens", "--", *inner, *program)
    assert (done.returncode, done.stdout) == (code, "mine\n"), done.stderr
    assert done.stderr.count("another `record` has started this one") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.wlens", "run.wlens"]


def test_a_variable_that_an_earlier_run_left_is_no_outer_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, to_text(Request(), str(tmp_path / "gone")))
    done = leaving(tmp_path, "", "-o", "run.wlens")
    assert "wrote run.wlens" in done.stderr


def test_what_a_block_of_the_program_recorded_is_told_and_is_no_failure(tmp_path: Path) -> None:
    note = '{"process": {"pid": 5}, "own_files": ["/x/mine.wlens"]}'
    script = f"open(os.path.join(folder, '5-9997.json'), 'w').write({note!r})"
    program = LEAVE.replace("shutil.copy", "#") + script
    done = warplens(tmp_path, "record", sys.executable, "-c", program)
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["recorded by the program itself: /x/mine.wlens", "nothing else was recorded"]


@pytest.mark.parametrize(("script", "code"), [("echo -k; exit 3", 3), ("true", 5)])
def test_a_program_without_marks_runs_as_ever_and_leaves_nothing(script: str, code: int, tmp_path: Path) -> None:
    done = warplens(tmp_path, "record", "sh", "-c", script)
    assert done.returncode == code
    assert "nothing was recorded" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("there", "said", "tried"),
    [
        (True, "no launch was seen", "doctor --binary FILE,"),
        (False, "no NVIDIA driver", "doctor,"),
    ],
)
def test_where_no_launch_was_seen_it_says_whether_there_is_a_driver(
    there: bool, said: str, tried: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warplens.cli.record.has_driver", lambda: there)
    _tell_what_ran([{"python": ["cuda.bindings"]}], Request())
    told = capsys.readouterr().err
    assert said in told
    assert f"try: warplens {tried}" in told
    assert ("used cuda.bindings, whose own kernels are not seen" in told) == there


@pytest.mark.parametrize(
    "option",
    [
        "--launch-skip=-1",
        "--launch-count=0",
        "--rounds=-1",
        "--every-block=0",
        "--timeout=0",
        "--timeout=-1",
        "--grids=0",
    ],
)
def test_a_number_that_is_too_small_is_refused_by_the_options_own_name(option: str, tmp_path: Path) -> None:
    done = warplens(tmp_path, "record", option, "true")
    assert done.returncode == 2
    assert option.partition("=")[0] in done.stderr
    assert "try: warplens record --help" in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"paused": True}, "--paused: not while the program had recording on"),
        ({"signal": "USR1"}, "--signal: not while recording was on"),
        ({"launch_skip": 3}, "all within --launch-skip"),
        ({"launch_skip": 2}, None),
    ],
)
def test_why_a_kernel_that_ran_was_not_recorded(
    options: dict[str, Any], why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    note = {"process": {}, "kernels": [{"name": "k", "launches": 3, "recorded": 0, "matches": True}]}
    _tell_what_ran([note], Request(**options))
    assert capsys.readouterr().err.splitlines()[-1] == "          3  k" + (f"  ({why})" if why else "")


NO_DRIVER = "no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)"


@pytest.mark.parametrize("why", [NO_DRIVER, f"k is not recorded: {NO_DRIVER}"])
@pytest.mark.parametrize("kernels", [None, "other"])
def test_a_missing_driver_is_told_once_and_no_kernel_is_said_to_have_another_name(
    kernels: str | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """host.hpp knows no kernel's name then; Triton's has one."""
    ran = [{"name": "(name not known)", "launches": 1, "recorded": 0, "matches": False}]
    _tell_what_ran([{"process": {}, "kernels": ran, "left_out": [why]}], Request(kernels=kernels))
    assert capsys.readouterr().err.splitlines() == [
        "nothing was recorded",
        "not recorded: " + why.replace("k is not recorded", "k"),
        "kernels that ran in files with warplens/host.hpp, of Triton, CuPy, Numba, and of warplens.Kernel:",
        "          1  (name not known)",
        "try: warplens doctor, which says what recording needs",
    ]


def test_a_kernel_does_not_match_what_was_asked_for_alone(capsys: pytest.CaptureFixture[str]) -> None:
    note = {"process": {}, "kernels": [{"name": "k", "launches": 1, "recorded": 0, "matches": False}]}
    for asked, said in ((None, "k"), ("other", "k  (does not match -k)")):
        _tell_what_ran([note], Request(kernels=asked))
        assert capsys.readouterr().err.splitlines()[-1].lstrip(" 1") == said


def test_a_stderr_that_is_full_leaves_no_folder_behind(tmp_path: Path) -> None:
    program = [sys.executable, "-c", LEAVE, str(recording(tmp_path))]
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--", *program]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        subprocess.run(command, cwd=tmp_path, stderr=full, timeout=60, check=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.wlens", "run.wlens"]


def test_options_behind_the_program_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    done = warplens(tmp_path, "record", "-k", "x", "program.py", "-k", "--launch-skip", "y")
    assert done.stdout == "['-k', '--launch-skip', 'y']\n"


def test_the_folders_of_headers_and_of_cmake_are_there() -> None:
    assert (Path(run("include").stdout.strip()) / "warplens" / "host.hpp").is_file()
    assert (Path(run("include", "--cmake").stdout.strip()) / "warplensConfig.cmake").is_file()


def test_files_that_are_open_are_the_programs_too(tmp_path: Path) -> None:
    shell = f"{sys.executable} -m warplens record sh -c 'echo given >&3' 3>f"
    subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert (tmp_path / "f").read_text(encoding="utf-8") == "given\n"


def test_stdout_is_the_programs_alone(tmp_path: Path) -> None:
    done = leaving(tmp_path, "print('mine')", "-o", "run.wlens")
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert "wrote run.wlens\n" in done.stderr


@pytest.mark.parametrize(("ends", "code"), [("3", 3), ("0", 5)])
def test_a_program_that_removes_the_folder_of_the_run_keeps_its_exit_code(ends: str, code: int, tmp_path: Path) -> None:
    done = leaving(tmp_path, f"shutil.rmtree(folder); sys.exit({ends})")
    assert done.returncode == code
    assert "vanished while the program ran" in done.stderr


def test_a_folder_and_arguments_need_not_be_utf_8(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    done = leaving(place, "sys.exit(1)", "--command", "-o", os.fsdecode(b"\xe9.wlens"))
    assert done.returncode == 1, done.stderr
    assert (place / "work" / os.fsdecode(b"\xe9.wlens")).is_file()
