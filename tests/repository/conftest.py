"""Where things are: the checkout (documents, tests) and the package that was imported (src/ or an installed wheel)."""

from __future__ import annotations

from pathlib import Path

import pytest

import warplens


@pytest.fixture(scope="session")
def checkout() -> Path:
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def package() -> Path:
    assert warplens.__file__ is not None
    return Path(warplens.__file__).parent
