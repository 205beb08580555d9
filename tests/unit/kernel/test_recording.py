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
