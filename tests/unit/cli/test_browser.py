"""`--open`: what opens files, and what is said where nothing does."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import pytest

from warplens.cli.browser import show

pytestmark = pytest.mark.skipif(sys.platform in ("darwin", "win32", "cygwin"), reason="they have a way of their own")
SAID = "--open: no browser or other program was found here that opens "


@pytest.fixture
def xdg_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, for a program of this name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder / "xdg-open"


def write(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_what_the_program_takes_is_not_spoken_of(
    xdg_open: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(xdg_open, f'echo "$1" >> "{tmp_path}/given"')
    show(Path("-a.png"), Path("b.png"))
    show("https://ui.perfetto.dev")
    given = [str(tmp_path / "-a.png"), str(tmp_path / "b.png"), "https://ui.perfetto.dev"]
    assert (tmp_path / "given").read_text(encoding="utf-8").splitlines() == given
    assert capsys.readouterr() == ("", "")


def test_where_it_finds_no_browser_one_line_says_where_the_files_are(
    xdg_open: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(xdg_open, "echo no method available for opening it >&2; exit 3")
    show(tmp_path / "a.png", tmp_path / "b.png")
    assert capsys.readouterr() == ("", f"{SAID}{tmp_path}/a.png, {tmp_path}/b.png\n")


@pytest.mark.usefixtures("xdg_open")
def test_so_it_does_where_there_is_no_such_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda place: asked.append(place))  # None, as False: it has none
    show(tmp_path / "a page.html")
    assert asked == [f"file://{tmp_path}/a%20page.html"]
    assert capsys.readouterr() == ("", f"{SAID}{tmp_path}/a page.html\n")


def test_a_program_that_runs_on_is_the_browser(
    xdg_open: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warplens.cli.browser._LONGEST_S", 0.05)
    write(xdg_open, "exec /bin/sleep 0.3")
    show(tmp_path / "a.html")
    assert capsys.readouterr() == ("", "")
