"""Launches of `warplens.Kernel` that several threads make at once, with no driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warplens.capture import driver, launches
from warplens.capture.launches import LaunchRecorder, asked_in_process
from warplens.capture.request import Request

SHAPE = ((1, 1, 1), (32, 1, 1))
BESIDE = {"launches of warplens.Kernel while another thread made one that is recorded": 1}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Builds that were launched."""
    out: list[Any] = []
    monkeypatch.setattr(launches, "_launch", lambda build, *_: out.append(build))
    monkeypatch.setattr(launches, "_timed", lambda build, *_: out.append(build))
    monkeypatch.setattr(driver, "call", lambda *_, **__: 0)
    return out


def recorder_of(group: Any) -> LaunchRecorder:
    """With a group that is made at the first launch."""
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), SimpleNamespace(add=None))
    own._group = lambda *_: group  # type: ignore[method-assign]
    return own


def launch(own: LaunchRecorder, kernel: Any) -> None:
    options: Any = SimpleNamespace(stream=0, shared_bytes=0, cluster=None, cooperative=False)
    given: Any = None
    own.launch(kernel, SHAPE, options, given)


def test_a_launch_beside_another_threads_is_made_without_marks_and_counted(made: list[Any]) -> None:
    kernel: Any = SimpleNamespace(name="k", plain_build=lambda: "plain", _device=0)
    arena: Any = SimpleNamespace(clear=lambda _: None)
    traced, options = "traced", SimpleNamespace(stream=0)
    group = launches._Group(kernel, SHAPE, options, arena, traced, None, {}, 0)  # type: ignore[arg-type]
    own = recorder_of(group)
    with own._making:  # another thread makes the first launch of some kernel
        launch(own, kernel)
    assert (made, own.left_out, own.ran) == (["plain"], BESIDE, {"k": [1, 0]})
    launch(own, kernel)
    assert (made[1:], own.ran) == (["traced"], {"k": [2, 1]})
    with group.busy:  # another thread makes a launch of this one
        launch(own, kernel)
    assert (made[2:], own.ran) == (["plain"], {"k": [3, 1]})
    assert list(own.left_out.values()) == [2]
    group.pending = None
    launch(own, kernel)
    assert made[3:] == ["traced"]
