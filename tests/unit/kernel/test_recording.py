"""`warplens.record` where there is no GPU: what is refused before the program's own block runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warplens
import warplens.triton
from warplens.capture.request import VARIABLE, Request, to_text
from warplens.errors import FileError


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
