"""Launches of `warplens.Kernel` that several threads make at once, with no driver."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from warplens.capture import driver, launches
from warplens.capture.arena import Drained
from warplens.capture.arguments import Arguments
from warplens.capture.builds import Build
from warplens.capture.halt import Halt
from warplens.capture.launches import LaunchRecorder, asked_in_process
from warplens.capture.library import Function
from warplens.capture.options import RecordOptions
from warplens.capture.request import Asked, Request
from warplens.capture.timed import Pending
from warplens.errors import DeviceError

SHAPE = ((1, 1, 1), (32, 1, 1))
BESIDE = {"launches of warplens.Kernel while another thread made one that is recorded": 1}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Builds that were launched."""
    out: list[Any] = []

    def launch_timed(build: Any, _shape: Any, options: Any, *_: Any, by_time: bool = True) -> Pending:
        out.append(build)
        return Pending(0, 0, options.stream, by_time)

    monkeypatch.setattr(launches, "launch_timed", launch_timed)
    monkeypatch.setattr(driver, "call", lambda *_, **__: 0)
    monkeypatch.setattr(driver, "relaxed", nullcontext)
    monkeypatch.setattr(launches, "wait_for", lambda _: None)
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
    kernel: Any = SimpleNamespace(
        name="k", plain_build=lambda: SimpleNamespace(launch=lambda *_: made.append("plain")), _device=0
    )
    arena: Any = Arena()
    traced, options = "traced", SimpleNamespace(stream=0)
    room = launches._Room(arena)
    group = launches._Group(kernel, SHAPE, options, room, traced, None, {}, 0)  # type: ignore[arg-type]
    own = recorder_of(group)
    with own._making:  # another thread makes the first launch of some kernel
        launch(own, kernel)
    assert (made, own.left_out, own.ran) == (["plain"], BESIDE, {"k": [1, 0]})
    launch(own, kernel)
    assert (made[1:], own.ran) == (["traced"], {"k": [2, 1]})
    with room.busy:  # another thread makes a launch that is recorded
        launch(own, kernel)
    assert (made[2:], own.ran) == (["plain"], {"k": [3, 1]})
    assert list(own.left_out.values()) == [2]
    group.pending = None
    launch(own, kernel)
    assert made[3:] == ["traced"]


class Arena:
    """Keeps how many there are, and what is asked of each."""

    made = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        type(self).made += 1
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def ask(*_: Any, **__: Any) -> Any:
            self.asked.append(name)
            return Drained(np.zeros((0, 32), np.uint32), 0, 0) if name == "drain" else np.zeros(1, np.uint8)

        return ask


NOTHING = Drained(np.zeros((0, 32), np.uint32), 0, 0)
BUILD: Any = SimpleNamespace(
    launch=lambda *_: None,
    function=SimpleNamespace(allow_shared_bytes=lambda _: None),
    library=SimpleNamespace(symbol=lambda _: 1),
)


def kernel_of(name: str) -> Any:
    return SimpleNamespace(
        name=name,
        clean=None,
        filename=f"{name}.cu",
        source="",
        _device=0,
        site_sets=[{"name": name}],
        plain_build=lambda: BUILD,
        traced_build=lambda *_: (BUILD, {"name": name}),
    )


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "made", 0)
    monkeypatch.setattr(launches, "Arena", Arena)
    monkeypatch.setattr(launches, "launch_timed", lambda *_, **__: Pending(0, 0, 0, timed=False))
    monkeypatch.setattr(launches, "wait_for", lambda _: None)
    monkeypatch.setattr(driver, "call", lambda *_, **__: 0)
    monkeypatch.setattr(driver, "relaxed", nullcontext)
    monkeypatch.setattr(driver, "attribute", lambda *_: 132)
    monkeypatch.setattr(driver, "copy_to_device", lambda *_: None)
    monkeypatch.setattr(LaunchRecorder, "_calibrate", lambda *_: None)


GIVEN: Any = None


@pytest.mark.usefixtures("no_driver")
def test_all_kernels_and_shapes_share_the_memory_of_a_gpu() -> None:
    """What a launch left is read before the next one, whosever it is."""
    kept: list[tuple[str, list[int]]] = []
    keep: Any = SimpleNamespace(add=lambda _, launch, entry, __: kept.append((entry["name"], launch["grid"])))
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), keep)
    options, first, second = RecordOptions(), kernel_of("first"), kernel_of("second")
    for _ in range(2):
        for kernel, blocks in ((first, 1), (second, 1), (first, 2)):
            own.launch(kernel, ((blocks, 1, 1), (32, 1, 1)), options, GIVEN)
    entries = own.finish()["kernels"]
    turn = [("first", [1, 1, 1]), ("second", [1, 1, 1]), ("first", [2, 1, 1])]
    assert kept == turn * 2
    assert [entry["name"] for entry in entries] == ["first", "second", "first"]
    assert Arena.made == 1
    assert own.left_out == {}
    assert own._reader is None


@pytest.mark.parametrize(
    ("error", "says"),
    [(DeviceError("it fell off the bus"), "it fell off the bus"), (MemoryError("x"), "MemoryError: x")],
)
@pytest.mark.usefixtures("no_driver")
def test_what_cannot_be_read_is_told_and_the_next_launch_is_recorded(error: Exception, says: str) -> None:
    kept: list[int] = []

    def add(*_: Any) -> None:
        kept.append(len(kept))
        if len(kept) == 2:
            raise error

    keep: Any = SimpleNamespace(add=add)
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), keep)
    for _ in range(4):
        own.launch(kernel_of("k"), SHAPE, RecordOptions(), GIVEN)
    own.finish()
    assert kept == [0, 1, 2]  # the third found out, and ran without
    assert own.left_out == {f"launches whose memory for records could not be made ready: {says}": 1}


@pytest.mark.usefixtures("no_driver")
def test_a_launch_that_hangs_does_not_hold_up_the_programs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(launches, "wait_for", lambda _: forever.wait(20))
    keep: Any = SimpleNamespace(add=lambda *_: None)
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), keep)
    own.launch(kernel_of("k"), SHAPE, RecordOptions(), GIVEN)
    try:
        assert own.finish(0.1)["kernels"][0]["name"] == "k"
        assert own.left_out == {"launch that had not ended when the program had": 1}
    finally:
        forever.set()


@pytest.mark.usefixtures("no_driver")
def test_the_launch_that_hangs_is_handed_on_as_far_as_it_got(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once the reader waits for it; what is asked behind its end finds nothing."""
    ended = threading.Event()
    chunks = np.ones((2, 32), np.uint32)
    given: list[tuple[dict[str, Any], dict[str, Any], Drained]] = []
    monkeypatch.setattr(launches, "wait_for", lambda _: ended.wait(20))
    monkeypatch.setattr(launches, "Pinned", lambda: "pinned")
    monkeypatch.setattr(Arena, "mapped", False, raising=False)
    monkeypatch.setattr(Arena, "peek", lambda _, pinned: Drained(chunks, 5, len(pinned)), raising=False)
    keep: Any = SimpleNamespace(
        add=lambda *_: None,
        add_stopped=lambda manifest, launch, _, drained: given.append((manifest, launch, drained)),
    )
    own = LaunchRecorder(Asked(Request(rounds=0), str(tmp_path)), keep)
    assert own.save_unfinished("nothing yet") == (False, "")
    own.launch(kernel_of("k"), SHAPE, RecordOptions(), GIVEN)
    assert (tmp_path / f"{os.getpid()}-kernel.watch").exists()
    answers = Halt(tmp_path).ask("the time-out")
    assert answers is not None
    assert answers.saved
    ((manifest, launch_entry, drained),) = given
    assert manifest["stopped"]["why"] == "the time-out"
    assert manifest["stopped"]["from"] == "records"
    assert manifest["sources"] == {"k.cu": ""}
    assert (launch_entry["kernel"], launch_entry["lost_events"], len(drained.chunks)) == (0, 5, 2)
    ended.set()
    own.finish()
    assert own.save_unfinished("too late") == (False, "")
    assert len(given) == 1
    assert not (tmp_path / f"{os.getpid()}-kernel.watch").exists()


@pytest.mark.parametrize("when", ["while it is read", "while it is looked at"])
@pytest.mark.usefixtures("no_driver")
def test_a_launch_that_has_ended_is_none_that_hangs_though_it_is_not_read_yet(
    when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended, reads, goes_on = threading.Event(), threading.Event(), threading.Event()
    given: list[Any] = []
    nothing = Drained(np.zeros((0, 32), np.uint32), 0, 0)

    def drain(*_: Any) -> Drained:
        reads.set()
        goes_on.wait(20)
        return nothing

    def peek(*_: Any) -> Drained:
        ended.set()
        assert reads.wait(20)
        return nothing

    monkeypatch.setattr(launches, "wait_for", lambda _: ended.wait(20))
    monkeypatch.setattr(launches, "Pinned", lambda: "pinned")
    for name, stand_in in (("mapped", False), ("drain", drain), ("peek", peek)):
        monkeypatch.setattr(Arena, name, stand_in, raising=False)
    keep: Any = SimpleNamespace(add=lambda *_: None, add_stopped=lambda *own: given.append(own))
    own = LaunchRecorder(Asked(Request(rounds=0), str(tmp_path)), keep)
    own.launch(kernel_of("k"), SHAPE, RecordOptions(), GIVEN)
    if when == "while it is read":
        ended.set()
        assert reads.wait(20)
    assert own.save_unfinished("Ctrl-C") == (False, "")
    goes_on.set()
    own.finish()
    assert given == []


@pytest.mark.usefixtures("no_driver")
def test_a_launch_that_is_recorded_is_made_in_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of one shape share a group, and each may be in another stream."""
    monkeypatch.setattr(
        launches, "launch_timed", lambda _, __, options, *___, **____: Pending(0, 0, options.stream, timed=False)
    )
    kept: list[int] = []
    keep: Any = SimpleNamespace(add=lambda _, launch, *__: kept.append(launch["stream"]))
    own, kernel = LaunchRecorder(asked_in_process(Request(rounds=0)), keep), kernel_of("k")
    for stream in (1, 2, 1):
        own.launch(kernel, SHAPE, RecordOptions(stream=stream), GIVEN)
    assert len(own.finish()["kernels"]) == 1
    assert kept == [1, 2, 1]


@pytest.mark.parametrize(("rounds", "timed"), [(0, [False] * 5), (2, [True, True, False, False, False])])
@pytest.mark.usefixtures("no_driver")
def test_the_first_rounds_of_recorded_launches_alone_are_timed(
    rounds: int, timed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def launch_timed(*_: Any, by_time: bool = True) -> Pending:
        asked.append(by_time)
        return Pending(0, 0, 0, timed=False)

    monkeypatch.setattr(launches, "launch_timed", launch_timed)
    keep: Any = SimpleNamespace(add=lambda *_: None)
    own = LaunchRecorder(asked_in_process(Request(rounds=rounds)), keep)
    kernel = kernel_of("k")
    for _ in range(5):
        own.launch(kernel, SHAPE, RecordOptions(), GIVEN)
    own.finish()
    assert asked == timed


@pytest.mark.usefixtures("no_driver")
def test_memory_is_cleared_behind_a_launch_and_in_front_of_one_alone_where_that_failed() -> None:
    fails = [False, True, False, False]

    def add(*_: Any) -> None:
        if fails.pop(0):
            raise DeviceError("it fell off the bus")

    keep: Any = SimpleNamespace(add=add)
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), keep)
    for _ in range(5):
        own.launch(kernel_of("k"), SHAPE, RecordOptions(), GIVEN)
    room = own._rooms[0]
    own.finish()
    arena: Any = room.arena
    made = [name for name in arena.asked if "clear" in name or name == "drain"]
    assert made == ["clear", *["drain", "clear_drained"] * 4]


class Native:
    """The bindings, which count what they are asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_READY=600, CUDA_ERROR_INVALID_VALUE=1)
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1)
        self.CUlaunchConfig = SimpleNamespace
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> tuple[int, ...]:
            self.asked.append(name)
            if name == "cuFuncGetParamInfo":
                return (1,) if arguments[1] > 0 else (0, 0, 8)
            return 0, 0

        return ask


def test_a_launch_asks_the_driver_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one prepares the others. To record one takes two calls more; clocks, copies and files come behind."""
    native = Native()
    monkeypatch.setattr(driver, "bindings", lambda: native)
    monkeypatch.setattr(LaunchRecorder, "_calibrate", lambda *_: None)
    monkeypatch.setattr(LaunchRecorder, "_have_read", lambda *_: None)
    monkeypatch.setattr(launches, "Arena", Arena)
    monkeypatch.setattr(driver, "attribute", lambda *_: 132)
    monkeypatch.setattr(driver, "copy_to_device", lambda *_: None)
    build = Build(SimpleNamespace(symbol=lambda _: 1), Function(7, "k"), None, ())  # type: ignore[arg-type]
    kernel = kernel_of("k")
    kernel.plain_build, kernel.traced_build = lambda: build, lambda *_: (build, {})

    def calls_of(launch: Any) -> list[str]:
        launch()
        native.asked.clear()
        launch()
        return native.asked.copy()

    given = Arguments([np.uint64(5)], build.function.parameter_sizes())
    assert calls_of(lambda: build.launch(SHAPE, RecordOptions(), given)) == ["cuLaunchKernel"]
    for pattern, more in (("^nothing$", []), ("k", ["cuStreamIsCapturing", "cuEventRecord"])):
        keep: Any = SimpleNamespace(add=lambda *_: None)
        own = LaunchRecorder(asked_in_process(Request(kernels=pattern, rounds=0)), keep)

        def launch(own: LaunchRecorder = own) -> None:
            own.launch(kernel, SHAPE, RecordOptions(), given)
            for room in own._rooms.values():
                room.cleared = True  # as the reader has it

        own._spare[0] = [(1, 2), (3, 4)]  # as behind launches that were read
        assert sorted(calls_of(launch)) == sorted(["cuLaunchKernel", *more])


def test_another_streams_capture_survives_all_that_recording_asks_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To copy, to allocate and to ask for an event ends a capture (mode global), whichever thread does it. An event
    that is recorded goes into its own stream, as the launch in front of it does."""
    modes, asked = threading.local(), set()

    def call(name: str, *arguments: Any, **_: Any) -> Any:
        mode = getattr(modes, "mode", 0)
        if name == "cuThreadExchangeStreamCaptureMode":
            modes.mode = arguments[0]
            return mode
        if name not in ("cuStreamIsCapturing", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuEventRecord"):
            asked.add((threading.current_thread().name == "warplens", name, mode))
        return 0

    def asks(name: str) -> Any:
        return lambda *_, **__: call(name)

    monkeypatch.setattr(driver, "call", call)
    monkeypatch.setattr(driver, "bindings", Native)
    monkeypatch.setattr(driver, "attribute", lambda *_: 132)
    monkeypatch.setattr(driver, "copy_to_device", asks("cuMemcpyHtoDAsync"))
    monkeypatch.setattr(driver, "is_over", lambda _: call("cuEventQuery") == 0)
    monkeypatch.setattr(LaunchRecorder, "_calibrate", lambda *_: None)
    monkeypatch.setattr(Arena, "drain", lambda *_: asks("cuMemAlloc")() or NOTHING, raising=False)
    monkeypatch.setattr(launches, "Arena", Arena)
    kernel = kernel_of("k")
    kernel.traced_build = lambda *_: asks("cuModuleLoadData")() or (BUILD, {"name": "k"})
    kernel.clean = "k"
    keep: Any = SimpleNamespace(add=lambda *_: None)
    own = LaunchRecorder(asked_in_process(Request(rounds=1)), keep)
    for _ in range(4):
        own.launch(kernel, SHAPE, RecordOptions(), GIVEN)
    assert all(room.read.wait(10) for room in own._rooms.values())
    assert {name for _, name, _ in asked} > {"cuEventCreate", "cuModuleLoadData", "cuMemAlloc", "cuEventQuery"}
    assert {reads for reads, *_ in asked} == {True, False}
    assert {mode for *_, mode in asked} == {2}
    assert getattr(modes, "mode", 0) == 0


def test_sizes_of_parameters_are_asked_again_where_the_driver_could_not_tell_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread without a context got none; then a number of Python's had 4 bytes in all threads, and 8 were read."""
    native = Native()
    answers = [(201,), (0, 0, 8), (1,)]
    native.CUresult.CUDA_ERROR_INVALID_CONTEXT = 201
    native.cuFuncGetParamInfo = lambda *_: answers.pop(0)  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "bindings", lambda: native)
    function = Function(7, "k")
    assert function.parameter_sizes() is None
    assert function.parameter_sizes() == (8,)
    assert function.parameter_sizes() == (8,)


@pytest.mark.usefixtures("no_driver")
def test_each_launch_of_a_kernel_that_cannot_be_recorded_is_counted_and_no_other_kernel_is_taken_for_it() -> None:
    """Kernels are known by their ids, and one that is gone leaves its own to the next."""

    class Kernel(SimpleNamespace):
        pass

    def refuses(*_: Any) -> Any:
        raise DeviceError("no room")

    keep: Any = SimpleNamespace(add=lambda *_: None)
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), keep)
    kernel: Any = Kernel(**{**vars(kernel_of("k")), "traced_build": refuses})
    gone = weakref.ref(kernel)
    for _ in range(3):
        own.launch(kernel, SHAPE, RecordOptions(), GIVEN)
    del kernel
    assert gone() is not None
    assert own.left_out == {"launches of k, which cannot be recorded: no room": 3}
    assert own.finish()["kernels"] == []


def test_what_a_gpu_recorded_is_read_and_forgotten_in_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of another one's does not clear its memory."""
    context, used = threading.local(), []
    monkeypatch.setattr(driver, "relaxed", nullcontext)
    monkeypatch.setattr(driver, "attribute", lambda *_: 132)
    monkeypatch.setattr(driver, "copy_to_device", lambda *_: None)
    monkeypatch.setattr(driver, "bindings", lambda: SimpleNamespace(CUstream_flags=SimpleNamespace(**FLAGS)))
    monkeypatch.setattr(launches, "launch_timed", lambda *_, **__: Pending(0, 0, 0, timed=False))
    monkeypatch.setattr(launches, "wait_for", lambda _: None)
    monkeypatch.setattr(launches, "machine", SimpleNamespace(device_facts=lambda _: {}))
    pairs: dict[str, list[int]] = {"globaltimer_ns": []}
    calibrator = SimpleNamespace(begin=lambda _: None, read=lambda *_: pairs, step_ns=lambda _: 32)
    monkeypatch.setattr(launches, "Calibrator", lambda *_: calibrator)

    def call(name: str, *arguments: Any, **_: Any) -> Any:
        if name == "cuCtxSetCurrent":
            context.own = arguments[0]
        return {"cuCtxGetCurrent": 100 + context.own, "cuStreamCreate": 50 + context.own}.get(name, 0)

    class OfGpu(Arena):
        def clear_drained(self, _: Drained, stream: int) -> None:
            used.append((context.own, stream))

    monkeypatch.setattr(driver, "call", call)
    monkeypatch.setattr(launches, "Arena", OfGpu)
    keep: Any = SimpleNamespace(add=lambda *_: None)
    own = LaunchRecorder(asked_in_process(Request(rounds=0)), keep)
    kernels = [kernel_of("a"), kernel_of("b")]
    for device in (0, 1, 0, 1):
        context.own, kernels[device]._device, kernels[device].arch = device, device, "sm_90"
        own.launch(kernels[device], SHAPE, RecordOptions(), GIVEN)
        own._rooms[device].read.wait(10)
    assert used == [(100, 50), (101, 51)] * 2


FLAGS = {"CU_STREAM_NON_BLOCKING": 1}
