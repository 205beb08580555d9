"""The corpus: PTX of real compilers (tests/ptx/make.py)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "ptx"


@pytest.fixture(scope="session")
def corpus() -> dict[str, str]:
    """Text by name."""
    paths = sorted(FOLDER.glob("*.ptx.gz"))
    assert len(paths) > 30
    return {path.name.partition(".ptx")[0]: gzip.decompress(path.read_bytes()).decode() for path in paths}


@pytest.fixture(scope="session")
def some(corpus: dict[str, str]) -> dict[str, str]:
    """A few of them, of each compiler."""
    names = ("numba_sm_90", "nvrtc_sm_90a", "nvcc_sm_80", "triton_3.6.0_layer_norm_80", "triton_3.6.0_tma_90")
    return {name: corpus[name] for name in (*names, "triton_3.9.0_gluon_90", "triton_3.9.0_spin_100")}
