"""Waiting for a kernel that hangs or crashes, and the watchdog: signals, time-outs, what is saved. Needs no GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import live
from tests.synthesis import sm_clocks
from warplens import errors
from warplens.capture import driver, machine
from warplens.capture.arena import Drained
from warplens.capture.options import RecordOptions
from warplens.capture.session import Session
from warplens.capture.stopped import Stop, last_places, wait
from warplens.capture.watchdog import TIMED_OUT, Watchdog
from warplens.kernel.kernel import Kernel
from warplens.trace import Trace
from warplens.trace import open as open_trace

posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


def never() -> bool:
    return False


def after(calls: int) -> Any:
    """A question that is answered with yes after so many times."""
    answers = iter([False] * calls)
    return lambda: next(answers, True)


def test_a_kernel_that_ends_is_waited_for() -> None:
    assert wait(after(5), timeout_s=5.0) is None


def test_a_kernel_that_hangs_is_given_up_when_its_time_is_over() -> None:
    stop = wait(never, timeout_s=0.2)
    assert stop is not None
    assert stop.why == "it had not ended by the time-out"
    assert 0.2 <= stop.after_s < 1.0


def test_a_crash_is_told_in_the_drivers_words_whichever_call_meets_it() -> None:
    def crash() -> bool:
        raise errors.DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)")

    def fails() -> None:
        raise errors.DeviceError("cuLaunchKernelEx failed while launching calibrate: ...")

    for first in (None, fails):
        stop = wait(crash, None, first)
        assert stop is not None
        assert stop.why == "it crashed: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"
        assert isinstance(stop.cause, errors.DeviceError)


def test_what_fails_beside_a_kernel_that_ends_well_is_its_own_error() -> None:
    def fails() -> None:
        raise errors.DeviceError("no memory")

    with pytest.raises(errors.DeviceError, match="no memory"):
        wait(after(1), None, fails)


@posix
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_the_wait_at_once(number: signal.Signals, name: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    stop = wait(never, timeout_s=10.0)
    assert stop is not None
    assert stop.why == f"{name} came while it ran"
    assert stop.after_s < 2.0
    assert signal.getsignal(signal.SIGTERM) is before


@posix
def test_a_handler_of_the_programs_own_keeps_its_signal() -> None:
    class MineError(Exception):
        pass

    def handler(*_: Any) -> None:
        raise MineError

    before = signal.signal(signal.SIGTERM, handler)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(MineError):
            wait(never, timeout_s=10.0)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_of_two_places_of_one_warp_the_later_counts() -> None:
    table = np.array([[1, 0, 3, 30], [2, 1, 5, 50], [1, 0, 9, 90]], np.uint32)
    assert last_places(table) == [[0, 0, 9, 90], [1, 1, 5, 50]]


def test_after_a_stop_calls_fail_at_once_until_the_gpu_has_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    freed, recovered = list[int](), list[int]()
    native = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0), cuCtxGetDevice=lambda: (0, 7), cuMemFree=freed.append
    )
    monkeypatch.setattr(driver, "bindings", lambda: native)
    monkeypatch.setattr(driver, "_given_up", None)
    driver.give_up("k was stopped", lambda: bool(recovered))
    with pytest.raises(errors.DeviceError, match="k was stopped; start a new one"):
        driver.call("cuCtxGetDevice")
    driver.release("cuMemFree", 1)
    assert freed == []
    recovered.append(1)
    assert driver.call("cuCtxGetDevice") == 7
    driver.release("cuMemFree", 2)
    assert freed == [2]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "2"])
def test_a_time_out_is_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(errors.UsageError, match="timeout_s is"):
        RecordOptions(policy="live", timeout_s=value)


@pytest.mark.parametrize("policy", ["auto", "packed", "staged", "stream"])
def test_a_time_out_wants_the_policy_that_outlives_a_hang(policy: str) -> None:
    with pytest.raises(errors.UsageError, match="timeout_s wants policy='live'"):
        RecordOptions(policy=policy, timeout_s=2)
    assert RecordOptions(policy="live", timeout_s=2).timeout_s == 2


def test_the_error_says_what_where_and_what_to_do() -> None:
    error = errors.StoppedError("k was stopped after 2 s: it had not ended by the time-out", recording=object())
    error.where = ("Where each warp last was:", "  block 0 warp 1: b, since 1.9 s")
    assert str(error).splitlines()[:3] == [
        "k was stopped after 2 s: it had not ended by the time-out",
        "Where each warp last was:",
        "  block 0 warp 1: b, since 1.9 s",
    ]
    assert "error.recording holds" in str(error)
    error.trace = object()
    assert 'error.trace.save("stopped.wlens")' in str(error)
    assert error.exit_code == errors.DeviceError.exit_code


class Saves(list[tuple[str, float]]):
    """What a watchdog saved: why, and after how long."""

    def save(self, why: str, after_s: float) -> None:
        self.append((why, after_s))


def test_the_watchdog_saves_when_time_is_over_and_ends_the_process() -> None:
    saves, ended = Saves(), list[int]()
    with Watchdog(saves.save, timeout_s=0.2, signals=(), end=ended.append):
        time.sleep(0.6)
    assert [why for why, _ in saves] == ["the program had not ended by the time-out"]
    assert 0.2 <= saves[0][1] < 0.6
    assert ended == [TIMED_OUT]


def test_the_watchdog_saves_on_request_and_not_when_it_is_left() -> None:
    saves = Saves()
    with Watchdog(saves.save, timeout_s=60, signals=()) as watchdog:
        watchdog.request("the program asked")
        assert [why for why, _ in saves] == ["the program asked"]
    assert len(saves) == 1
    watchdog.close()  # again: nothing


def test_a_failure_to_save_is_printed_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)

    def save(why: str, after_s: float) -> None:
        raise OSError(f"no space, {why}, {after_s}")

    with Watchdog(save, signals=()) as watchdog:
        watchdog.request("x")
        watchdog.request("y")
    assert [args.exc_type for args in shown] == [OSError, OSError]


@posix
def test_a_program_that_can_handle_its_signal_does_after_the_watchdog_saved() -> None:
    saves, ended, handled = Saves(), list[int](), list[int]()

    def handler(*_: Any) -> None:
        handled.append(len(saves))

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with Watchdog(saves.save, grace_s=0.1, end=ended.append):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handled == [1]
    assert [why for why, _ in saves] == ["SIGTERM came while it ran"]
    assert ended == []


@posix
def test_ctrl_c_raises_in_a_program_that_runs_python() -> None:
    saves = Saves()

    def interrupt() -> None:
        with Watchdog(saves.save):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert [why for why, _ in saves] == ["Ctrl-C came while it ran"]


@posix
def test_a_signal_of_a_forked_child_is_not_taken_for_one_of_the_parent() -> None:
    saves = Saves()
    code = "import os, signal, sys; sys.exit(0)"
    with Watchdog(saves.save, end=lambda _: None):
        child = subprocess.Popen([sys.executable, "-c", code], preexec_fn=lambda: os.kill(os.getpid(), signal.SIGTERM))
        child.wait(30)
        time.sleep(0.3)
    assert child.returncode == -signal.SIGTERM
    assert saves == []


BLOCKED = """
import ctypes, os, sys, threading
from tests import live
from tests.synthesis import sm_clocks
from warplens.capture.stopped import Stop, mark_stopped
from warplens.capture.watchdog import Watchdog
from warplens.trace.file import write_file
recording = live.stopped_recording(2)
chunks, last = live.stopped_blocks(2, clocks=live.sm_clocks(2))  # what a fake arena shows
def save(why, after_s):
    done = mark_stopped(recording, Stop(why, after_s), last)
    write_file(sys.argv[1], done.manifest, records=done.records, sources=done.sources)
    bad = sorted({name.partition(".")[0] for name in sys.modules} & {"polars", "matplotlib", "torch"})
    print("saved", bad, flush=True)
mutex = ctypes.create_string_buffer(64)  # of glibc and musl, unlocked; locking it twice never returns, as a hung GPU
libc = ctypes.CDLL(None)
timeout_s = float(sys.argv[2]) or None
with Watchdog(save, timeout_s=timeout_s, grace_s=0.3):
    libc.pthread_mutex_lock(mutex)
    print("blocked", flush=True)
    libc.pthread_mutex_lock(mutex)
"""


@contextlib.contextmanager
def child_that_blocks(path: Path, timeout_s: float = 0) -> Any:
    """A process whose main thread sits in C and never comes back; killed if it outlives the test."""
    command = [sys.executable, "-c", BLOCKED, str(path), str(timeout_s)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        killer = threading.Timer(60, child.kill)
        killer.start()
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "blocked\n"
            yield child
        finally:
            child.kill()
            killer.cancel()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks a mutex of Linux' C library twice")
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_saves_and_ends_a_process_whose_main_thread_is_blocked(
    number: signal.Signals, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "stopped.wlens"
    with child_that_blocks(path) as child:
        time.sleep(0.2)
        child.send_signal(number)
        assert child.stdout.read() == "saved []\n"  # nothing heavy was imported
        assert child.wait(30) == 128 + number
    trace = open_trace(path)
    assert trace.manifest["stopped"]["why"] == f"{name} came while it ran"
    assert trace.spans.height == 22
    assert not trace.manifest["complete"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks a mutex of Linux' C library twice")
def test_a_time_out_saves_and_ends_a_process_whose_main_thread_is_blocked(tmp_path: Path) -> None:
    path = tmp_path / "stopped.wlens"
    with child_that_blocks(path, timeout_s=1.0) as child:
        assert child.stdout.read() == "saved []\n"
        assert child.wait(30) == TIMED_OUT
    assert open_trace(path).manifest["stopped"]["why"] == "the program had not ended by the time-out"


def test_a_recording_that_was_stopped_keeps_what_was_prepared() -> None:
    recording = live.stopped_recording(why="x")
    assert recording.manifest["stopped"]["after_s"] == live.AFTER_S
    assert len(recording.manifest["stopped"]["last"]) == 4
    assert Stop("x", 1.0).cause is None


class Calls:
    """Stands for arena, calibrator and library of a session: takes any call, and tells in which order they came."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.chunks, self.last = live.stopped_blocks(1, clocks=sm_clocks(2))

    def look(self) -> Any:
        return self.chunks, self.last

    def read(self, memory: Any, when: str, stream: int) -> Any:
        self.names.append(f"read {when}")
        assert (memory, stream) == (None, 0)
        return live.calibration_with_rate(sm_clocks(2)) | {"when": when}

    def step_ns(self, stream: int) -> int:
        return 32 + stream

    def drain(self, stream: int) -> Drained:
        return Drained(self.chunks, stream, 0)

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.names.append(name)

        return call


def session(monkeypatch: pytest.MonkeyPatch, *, hangs_at: int) -> tuple[Any, Calls]:
    """A session of policy live whose launch number `hangs_at` (from 0) never ends."""
    calls, launched = Calls(), list[Any]()
    monkeypatch.setattr(driver, "is_done", lambda _: len(launched) <= hangs_at)
    monkeypatch.setattr(driver, "_given_up", None)
    monkeypatch.setattr(driver, "call", lambda *_, **__: 1.0)
    monkeypatch.setattr(machine, "clock_state", lambda _: {})
    own = object.__new__(Session)
    facts = live.stopped_recording().manifest
    kernel = SimpleNamespace(name="k<true>", clean="k<false>", filename="k.cu", source="", site_sets=facts["site_sets"])
    kernel._device, kernel._where = 0, lambda recording: Kernel._where(None, recording)  # type: ignore[arg-type]
    own.__dict__ |= {"kernel": kernel, "grid": (1, 1, 1), "block": (128, 1, 1), "stream": 0, "live": True, "kept": []}
    own.__dict__ |= {
        "options": RecordOptions(policy="live", timeout_s=0.1, rounds=2, warmup=1, launches=2, audit=False)
    }
    own.__dict__ |= {"arena": calls, "calibrator": calls, "traced": calls, "clean": object(), "calibration": []}
    own.__dict__ |= {"entry": facts["kernels"][0] | {"policy": "live", "not_measured": None}, "flush": None}
    own.__dict__ |= {"facts": {}, "state_before": {}, "step_ns": None}

    def launch(build: Any, _: Any) -> None:
        launched.append(build)
        calls.names.append("launch")

    monkeypatch.setattr(own, "_launch", launch)
    monkeypatch.setattr(own, "_switch_on", lambda: None)
    return own, calls


@pytest.mark.parametrize(("hangs_at", "launches"), [(0, 1), (1, 2), (3, 3), (5, 3)])
def test_whichever_traced_launch_hangs_is_the_last_of_the_recording(
    monkeypatch: pytest.MonkeyPatch, hangs_at: int, launches: int
) -> None:
    own, calls = session(monkeypatch, hangs_at=hangs_at)  # two are kept, then clean and traced: warm-up, first round
    with pytest.raises(errors.StoppedError) as caught:
        own.run(None)
    text, manifest = str(caught.value), caught.value.recording.manifest
    assert text.startswith("k<true> was stopped after 0.1")
    assert "block 0 warp 1: b" in text
    assert (", since" in text) == (hangs_at < 2)  # in a launch that is timed there is no calibration before it
    assert len(manifest["launches"]) == launches
    assert len(caught.value.recording.records) == launches
    trace = Trace.from_recording(caught.value.recording)
    assert trace.spans.filter(launch=launches - 1).height == 11
    assert not driver.is_usable()
    if hangs_at == 0:
        order = [name for name in calls.names if name in ("clear", "allocate", "begin", "read before", "launch")]
        assert order == ["clear", "allocate", "begin", "read before", "launch", "begin"]


def test_a_clean_launch_that_hangs_says_so_and_the_launches_before_it_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = session(monkeypatch, hangs_at=2)
    with pytest.raises(errors.StoppedError, match=r"k<false> was stopped .* its clean build, which records nothing"):
        own.run(None)


def test_a_kernel_under_policy_live_that_ends_is_a_recording_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = session(monkeypatch, hangs_at=99)
    recording = own.run(None)
    assert recording.manifest["complete"]
    assert [entry["when"] for entry in recording.manifest["calibration"]] == ["before", "after"] * 2
    assert calls.names.count("launch") == 2 + 2 * (1 + 2)
    assert recording.manifest["kernels"][0]["clean_ns"] == [1e6, 1e6]
