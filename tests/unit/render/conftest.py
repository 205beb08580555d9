"""Pictures in these tests are small: what is tested is what they hold, not how many pixels it has."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warplens.render.plots.PIXELS_PER_INCH", 30)
