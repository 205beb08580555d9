"""What is done when the program imports a module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from warplens.capture.imports import when_imported


def test_it_is_done_behind_the_import_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wl_awaited.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    seen: list[int] = []
    when_imported("wl_awaited", lambda: seen.append(sys.modules["wl_awaited"].value))
    assert seen == []
    importlib.import_module("wl_awaited")
    assert seen == [1]
    assert sys.meta_path == finders
    when_imported("wl_awaited", lambda: seen.append(2))
    assert seen == [1, 2]
    sys.modules.pop("wl_awaited")


def test_a_wish_that_is_forgotten_leaves_nothing() -> None:
    finders = list(sys.meta_path)
    when_imported("wl_never", lambda: None)()
    assert sys.meta_path == finders
