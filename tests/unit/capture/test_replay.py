"""`--replay` of launches of `warplens.Kernel`: what is saved, put back and timed, with a stand-in for the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warplens.capture import driver, launches
from warplens.capture.arguments import Arguments
from warplens.capture.launches import LaunchRecorder, asked_in_process
from warplens.capture.options import RecordOptions
from warplens.capture.replay import Saved
from warplens.capture.request import Request
from warplens.capture.timed import Pending
from warplens.errors import DeviceError, UsageError

HERE, THERE, HOST = 0x1000_0000, 0x2000_0000, 0x3000_0000
SIZE = 0x1000


class Driver:
    """Allocations of SIZE bytes on GPU 0, on GPU 1 and on the host; keeps what it is asked to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.full = False
        status = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_INVALID_VALUE=1)
        kinds = SimpleNamespace(
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE="kind",
            CU_POINTER_ATTRIBUTE_IS_MANAGED="managed",
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL="device",
        )
        native = SimpleNamespace(
            CUresult=status,
            CUpointer_attribute=kinds,
            CUmemorytype=SimpleNamespace(CU_MEMORYTYPE_DEVICE=2),
            cuPointerGetAttribute=self.ask,
        )
        monkeypatch.setattr(driver, "bindings", lambda: native)
        monkeypatch.setattr(driver, "call", self.call)
        monkeypatch.setattr(driver, "release", lambda *_: None)

    @staticmethod
    def ask(which: str, address: int) -> tuple[int, Any]:
        begin = address // SIZE * SIZE
        if begin not in (HERE, THERE, HOST):
            return 1, None
        return 0, {"kind": 1 if begin == HOST else 2, "managed": False, "device": int(begin == THERE)}[which]

    def call(self, name: str, *arguments: Any, doing: str = "") -> Any:  # noqa: ARG002
        self.calls.append((name, *arguments))
        if name == "cuMemAlloc" and self.full:
            raise DeviceError("out of memory")
        if name == "cuMemGetAddressRange":
            return arguments[0] // SIZE * SIZE, SIZE
        return {"cuMemAlloc": 0x9000_0000, "cuEventElapsedTime": 0.005}.get(name, 0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def given(*values: Any) -> Arguments:
    return Arguments([np.asarray(value)[()] for value in values], None)


def test_allocations_that_arguments_point_into_are_saved_once_and_put_back(fake: Driver) -> None:
    structure = np.array([7, HERE + 64], np.uint64).view("V16")
    saved = Saved(given(np.uint64(HERE + 8), structure[0], np.int32(5), np.uint64(0)), 0, 3)
    copies = [call for call in fake.calls if call[0] == "cuMemcpyDtoDAsync"]
    assert copies == [("cuMemcpyDtoDAsync", 0x9000_0000, HERE, SIZE, 3)]
    saved.restore()
    assert fake.calls[-1] == ("cuMemcpyDtoDAsync", HERE, 0x9000_0000, SIZE, 3)


@pytest.mark.parametrize(("address", "says"), [(THERE, "another GPU"), (HOST, "memory of the host")])
def test_what_others_may_read_meanwhile_is_refused(address: int, says: str, fake: Driver) -> None:
    with pytest.raises(UsageError, match=says):
        Saved(given(np.uint64(address + 8)), 0, 0)
    assert not any(call[0] == "cuMemcpyDtoDAsync" for call in fake.calls)


def test_no_memory_for_the_copy_is_told(fake: Driver) -> None:
    fake.full = True
    with pytest.raises(UsageError, match="no memory is left to save the 4,096 bytes"):
        Saved(given(np.uint64(HERE)), 0, 0)


@pytest.mark.parametrize(
    ("idle", "clean", "traced", "launched"),
    [
        ((), 3, 3, 6),  # clean, traced; traced, clean; clean, traced
        ((0, 1), 3, 3, 8),  # one of each found the GPU idle, and was made again
        (range(100), 0, 0, 24),  # all of them: four times as many, and no more
    ],
)
def test_a_replay_goes_on_until_it_has_its_times(
    idle: Any, clean: int, traced: int, launched: int, fake: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def timed(build: str, *_: Any) -> Pending:
        order.append(build)
        return Pending(0, 0, 0, timed=len(order) - 1 not in idle)

    monkeypatch.setattr(launches, "launch_timed", timed)
    monkeypatch.setattr(driver, "attribute", lambda *_: 1000)
    recorder = LaunchRecorder(asked_in_process(Request(rounds=3, replay=True)), SimpleNamespace(add=None))
    arena = SimpleNamespace(
        clear_cursors=lambda _: fake.calls.append(("clear_cursors",)), clear=lambda _: fake.calls.append(("clear",))
    )
    group: Any = SimpleNamespace(
        clean="clean",
        traced="traced",
        kernel=SimpleNamespace(_device=0, name="k"),
        room=SimpleNamespace(arena=arena),
        shape=((1, 1, 1), (32, 1, 1)),
        options=None,
        entry={"clean_ns": [], "traced_ns": []},
        replayed=False,
        spare=[],
    )
    recorder._replay(group, RecordOptions(), given(np.uint64(HERE)))
    assert group.replayed
    assert len(order) == launched
    assert (len(group.entry["clean_ns"]), len(group.entry["traced_ns"])) == (clean, traced)
    restored = [call for call in fake.calls if call[:2] == ("cuMemcpyDtoDAsync", HERE)]
    assert len(restored) == launched + 1
    assert recorder.left_out == {}
    assert fake.calls[-1] == ("clear",)  # what the traced ones wrote is none of the launch that follows
