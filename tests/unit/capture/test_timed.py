"""Launches between two events, with no driver."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from warplens.capture import driver
from warplens.capture.options import RecordOptions
from warplens.capture.timed import elapsed, launch_timed
from warplens.errors import DeviceError

SHAPE = ((1, 1, 1), (32, 1, 1))
GIVEN: Any = None


@pytest.mark.parametrize("by_time", [True, False])
def test_a_launch_that_fails_takes_no_events_with_it(by_time: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(driver, "call", lambda name, *_, **__: made.append(name))
    monkeypatch.setattr(driver, "is_over", lambda _: True)

    def fails(*_: Any) -> None:
        raise DeviceError("no such grid")

    spare: Any = []
    for number in range(5):
        build: Any = SimpleNamespace(launch=fails if number % 2 else lambda *_: None)
        with pytest.raises(DeviceError) if number % 2 else nullcontext():
            elapsed(launch_timed(build, SHAPE, RecordOptions(), GIVEN, spare, by_time=by_time))
    assert made.count("cuEventCreate") == 2
    assert len(spare) == 1
