"""`warplens.record` where there is no GPU: what is refused before the program's own block runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warplens
import warplens.triton
from tests.synthesis import fake_recording
from warplens.capture.notes import read_notes
from warplens.capture.request import VARIABLE, Request, to_text
from warplens.errors import FileError, UsageError


@pytest.mark.parametrize("record", [warplens.record, warplens.triton.record])
@pytest.mark.parametrize(("make", "says"), [(Path.mkdir, "no plain file"), (os.mkfifo, "no plain file")])
def test_what_is_no_file_is_not_replaced_by_one(
    record: Callable[..., Any], make: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    make(tmp_path / "run.wlens")
    with pytest.raises(FileError, match=says), record(tmp_path / "run.wlens"):
        pytest.fail("the block ran")
    assert not (tmp_path / "run.wlens").is_file()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("record", [warplens.record, warplens.triton.record])
@pytest.mark.parametrize("folder", ["none", "/proc"])  # not there; read-only, for root too
def test_a_folder_that_cannot_be_written_is_told_before_the_block_runs(
    record: Callable[..., Any], folder: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match="cannot write"), record(tmp_path / folder / "run.wlens"):
        pytest.fail("the block ran")


def test_a_block_without_launches_says_that_none_was_seen(tmp_path: Path) -> None:
    with warplens.record(tmp_path / "run.wlens") as rec:
        assert rec.notes == []
    assert (rec.trace, rec.files, list(tmp_path.iterdir())) == (None, [], [])
    assert ["no launch was seen" in note for note in rec.notes] == [True]


def add_launch(rec: warplens.record, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launch leaves."""
    made = fake_recording(blocks=2, warps=1, sms=1)
    (launch,), (kernel,) = made.manifest["launches"], made.manifest["kernels"]
    launch = {name: value for name, value in launch.items() if name != "records"}
    assert rec._recorder is not None
    monkeypatch.setattr(rec._recorder, "finish", lambda: {**made.manifest, "launches": []})
    rec._keep.part.add(made.manifest, launch, kernel, made.records["records/000000.u32"])


@pytest.mark.parametrize("happens", [Path.mkdir, lambda path: shutil.rmtree(path.parent)], ids=["a folder", "gone"])
def test_a_recording_whose_place_is_gone_is_kept_elsewhere_and_told(
    happens: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(FileError, match=r"run\.wlens: .*; the recording is kept as ") as failed:  # noqa: PT012, SIM117
        with warplens.record(place / "run.wlens") as rec:
            add_launch(rec, monkeypatch)
            happens(rec.path)
    kept = Path(str(failed.value).rpartition("kept as ")[2])
    assert warplens.open(kept).manifest["complete"]


def test_a_recording_whose_folder_is_gone_comes_to_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with warplens.record(tmp_path / "run.wlens") as rec:
        add_launch(rec, monkeypatch)
        shutil.rmtree(rec._folder)
    assert rec.trace is not None
    assert [path.name for path in tmp_path.iterdir()] == ["run.wlens"]


def test_below_record_a_block_says_what_it_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer").mkdir()
    monkeypatch.setenv(VARIABLE, to_text(Request(), str(tmp_path / "outer")))
    for name in ("a.wlens", "b.wlens"):
        with warplens.record(tmp_path / name) as rec:
            add_launch(rec, monkeypatch)
    (note,) = read_notes(tmp_path / "outer")
    assert note["own_files"] == [str(tmp_path / "a.wlens"), str(tmp_path / "b.wlens")]


def test_a_program_that_goes_to_another_folder_has_its_file_where_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with warplens.record("run.wlens") as rec:
        add_launch(rec, monkeypatch)
        monkeypatch.chdir("other")
    assert rec.trace is not None
    assert rec.files == [tmp_path / "run.wlens"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["other", "run.wlens"]


def test_a_block_that_is_paused_is_on_from_start_to_stop(tmp_path: Path) -> None:
    with warplens.record(tmp_path / "run.wlens", paused=True) as rec:
        own = rec._recorder
        assert own is not None
        seen = [own.on]
        rec.start()
        seen.append(own.on)
        rec.stop()
        assert [*seen, own.on] == [False, True, False]


@pytest.mark.parametrize(
    "options",
    [
        {"note": 3},
        {"kernels": b"x"},
        {"sites": 5},
        {"capacity_bytes": 1e9},
        {"warps": []},
        {"blocks": ()},
        {"grids": []},
    ],
)
def test_options_of_which_nothing_could_be_made_later_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        warplens.record(tmp_path / "run.wlens", **options)


@pytest.mark.parametrize("options", [{"note": 3}, {"kernels": b"x"}, {"capacity_bytes": "1MiB"}, {"every_block": 1.5}])
def test_so_they_are_for_triton_alone(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))), warplens.triton.record(**options):
        pytest.fail("the block ran")


FORKS = """
import os, sys, warplens
with warplens.record("run.wlens") as rec:
    if os.fork() == 0:
        sys.exit(3)
    status = os.waitstatus_to_exitcode(os.wait()[1])
    assert rec._folder.is_dir()
sys.exit(status)
"""


def test_a_child_of_fork_that_leaves_the_block_leaves_the_recording_to_its_parent(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-Wignore", "-c", FORKS], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert list(tmp_path.iterdir()) == []


WORKERS = """
import multiprocessing, os, sys
from warplens.kernel.recording import current
def work():
    own = current()
    assert own is not None and own.pid == os.getpid()
work()
if os.fork() == 0:
    work(); sys.exit()
assert os.wait()[1] == 0
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start(); worker.join()
assert worker.exitcode == 0
"""


def test_below_record_each_child_of_fork_is_recorded_to_its_end(tmp_path: Path) -> None:
    variables = {**os.environ, VARIABLE: to_text(Request(), str(tmp_path))}
    command = [sys.executable, "-Wignore", "-c", WORKERS]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name.split("-")[1] for path in tmp_path.iterdir()] == ["9999.json"] * 3  # no part is left
