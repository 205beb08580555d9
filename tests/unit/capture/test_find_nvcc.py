"""Which nvcc `warplens nvcc` starts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from warplens.capture import nvcc
from warplens.errors import MissingDependencyError


def made(folder: Path) -> Path:
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose /usr/local/cuda, variables, PATH and wheels have none."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr(nvcc, "TOOLKIT", tmp_path / "cuda" / "bin")
    monkeypatch.setitem(sys.modules, "nvidia", SimpleNamespace(__path__=[str(tmp_path / "wheels")]))
    return tmp_path


def test_that_of_a_wheel_is_the_last_that_is_taken(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = made(nowhere / "wheels" / "cu13")
    assert nvcc.find_nvcc() == str(wheel)
    toolkit = made(nowhere / "cuda")
    assert nvcc.find_nvcc() == str(toolkit)
    on_path = made(nowhere / "own")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert nvcc.find_nvcc() == str(on_path)


@pytest.mark.usefixtures("nowhere")
def test_where_there_is_none_the_error_says_where_it_was_looked_for() -> None:
    with pytest.raises(MissingDependencyError, match="no wheel nvidia-cuda-nvcc: name one with --warplens-nvcc=PATH"):
        nvcc.find_nvcc()
