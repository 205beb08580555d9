"""Modules of benchmarks/ for tests, which are no package: found by their name while a test runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FOLDERS = (BENCHMARKS, BENCHMARKS / "stress")
NAMES = ("canaries", "floods", "launching", "minute", "replays", "sanitized", "stress")


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module; it and those that it imports are forgotten after the test."""
    if not BENCHMARKS.is_dir():
        pytest.skip("not a checkout: benchmarks/ is not installed")
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(str(folder))
    for known in NAMES:
        monkeypatch.setitem(sys.modules, known, ModuleType(known))  # so that what is there now comes back
        monkeypatch.delitem(sys.modules, known)
    return importlib.import_module(name)
