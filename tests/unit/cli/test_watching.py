"""What `record` says and does while a program runs. No GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from warplens.cli.watching import Progress, Switch


def test_progress_is_told_at_growing_intervals_and_only_where_there_is_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(tmp_path)
    part = tmp_path / "5.wlens.part"
    part.write_bytes(b"")
    said = []
    for seconds in range(1, 41):
        if seconds in (7, 22):
            part.write_bytes(bytes(seconds * 100_000))
        progress.tick(float(seconds))
        said.append(capsys.readouterr().err)
    assert {second: text for second, text in enumerate(said, 1) if text} == {
        10: "warplens: 10 s, 0.7 MB of 1 process recorded\n",
        40: "warplens: 40 s, 2.2 MB of 1 process recorded\n",
    }


def test_progress_outlives_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Progress(tmp_path / "gone").tick(60.0)
    assert capsys.readouterr().err == ""


def test_each_signal_makes_or_removes_the_file_that_processes_look_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    switch = Switch(tmp_path)
    for there in (True, False, True):
        switch.flip()
        assert (tmp_path / "on").exists() == there
    assert capsys.readouterr().err.split("\n")[:2] == ["warplens: recording is on", "warplens: recording is off"]


def test_a_switch_without_a_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Switch(tmp_path / "gone").flip()
    assert "cannot be switched" in capsys.readouterr().err
