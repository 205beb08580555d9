"""How `record` has processes save what is under way, and how they answer: files alone, no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.capture.test_arena import FakeMemory
from warplens.capture import driver, ends, pinned
from warplens.capture.halt import Answers, Halt, Saver
from warplens.cli.watching import Saving
from warplens.errors import DeviceError

posix = pytest.mark.skipif(os.name != "posix", reason="asks whether processes live as POSIX does")


def saver(folder: Path, name: str, answer: Any) -> tuple[Saver, list[str]]:
    asked: list[str] = []

    def save(why: str) -> tuple[bool, str]:
        asked.append(why)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    own = Saver(folder, f"{os.getpid()}-{name}", save)
    own.start()
    return own, asked


def test_nobody_is_asked_where_nothing_was_recorded(tmp_path: Path) -> None:
    assert Halt(tmp_path).ask("why") is None
    assert Halt(tmp_path / "gone").ask("why") is None
    assert list(tmp_path.iterdir()) == []


def test_all_that_record_are_asked_each_time_and_answer(tmp_path: Path) -> None:
    halt = Halt(tmp_path)
    one, first = saver(tmp_path, "kernel", (True, ""))
    other, second = saver(tmp_path, "python", (False, "its clean build was running"))
    try:
        assert halt.ask("Ctrl-C came") == Answers(saved=True, remarks=("its clean build was running",))
        assert halt.ask("the time-out") == Answers(saved=True, remarks=("its clean build was running",))
        assert first == second == ["Ctrl-C came", "the time-out"]
        assert not (tmp_path / "stop").exists()
    finally:
        one.close()
        other.close()
    assert halt.ask("once more") is None


def test_the_end_of_a_process_waits_for_a_save_that_has_begun(tmp_path: Path) -> None:
    """Ctrl-C while the end waits for a launch has both of them write the same file."""
    begun, done = threading.Event(), threading.Event()

    def save(_: str) -> tuple[bool, str]:
        begun.set()
        time.sleep(0.3)
        done.set()
        return True, ""

    own = Saver(tmp_path, f"{os.getpid()}-kernel", save)
    own.start()
    (tmp_path / "stop").write_text("1\nwhy\n", encoding="utf-8")
    assert begun.wait(20)
    own.close()
    assert done.is_set()
    own.close()
    assert (tmp_path / f"{os.getpid()}-kernel.answer").read_text(encoding="utf-8") == "1\nsaved\n"


def test_a_save_that_fails_is_told_and_asked_again(tmp_path: Path) -> None:
    own, asked = saver(tmp_path, "kernel", DeviceError("it fell off the bus"))
    halt = Halt(tmp_path)
    try:
        answers = halt.ask("why")
        assert answers is not None
        assert not answers.saved
        assert "could not be saved: it fell off the bus" in answers.remarks[0]
        assert halt.ask("again") is not None
        assert asked == ["why", "again"]
    finally:
        own.close()


def test_one_that_has_begun_has_more_time_than_one_that_hears_nothing(tmp_path: Path) -> None:
    def save(_: str) -> tuple[bool, str]:
        time.sleep(1)
        return True, ""

    own = Saver(tmp_path, f"{os.getpid()}-kernel", save)
    own.start()
    try:
        assert Halt(tmp_path).ask("why", heard_s=0.5) == Answers(saved=True)
    finally:
        own.close()


@posix
def test_processes_that_ended_are_not_waited_for_and_silent_ones_only_so_long(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        time.sleep(0.5)  # it has ended, and nobody has waited for it
        (tmp_path / f"{ended.pid}.watch").touch()
        begin = time.monotonic()
        assert Halt(tmp_path).ask("why") is None
        (tmp_path / f"{os.getpid()}.watch").touch()
        assert Halt(tmp_path).ask("why", heard_s=0.3) == Answers(saved=False, silent=(os.getpid(),))
        assert time.monotonic() - begin < 3


def test_what_came_of_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, answer in (("one", (False, "a remark")), ("other", (True, ""))):
        (tmp_path / name).mkdir()
        own, _ = saver(tmp_path / name, "kernel", answer)
        assert Saving(tmp_path / name).save("why") is answer[0]
        own.close()
    assert capsys.readouterr().err.splitlines() == [
        "warplens: a remark",
        "warplens: what was recorded of the kernel that had not ended is saved",
    ]
    (tmp_path / "third").mkdir()
    own, _ = saver(tmp_path / "third", "kernel", (False, ""))
    assert not Saving(tmp_path / "third").save("the program had not ended by the time-out")
    own.close()
    assert capsys.readouterr().err == "warplens: no launch that is recorded was under way\n"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU whose copies come when `done` says so."""
    own = SimpleNamespace(done=True)

    def call(name: str, *args: Any, doing: str = "") -> int:  # noqa: ARG001
        if name == "cuMemcpyDtoHAsync":
            FakeMemory.at(args[0], args[2])[:] = FakeMemory.at(args[1], args[2])
        return 7

    monkeypatch.setattr(FakeMemory, "allocated", [], raising=False)
    native = SimpleNamespace(CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1))
    replaced = {"HostMemory": FakeMemory, "call": call, "bindings": lambda: native, "is_done": lambda _: own.done}
    for name, stand_in in replaced.items():
        monkeypatch.setattr(driver, name, stand_in)
    monkeypatch.setattr(pinned, "PIECE_BYTES", 64)
    return own


def test_copies_come_in_pieces_through_memory_that_was_there_before(fake: SimpleNamespace) -> None:
    del fake
    look, memory = pinned.Pinned(), FakeMemory(1000)
    memory.bytes[:] = np.arange(1000) % 251
    before = len(FakeMemory.allocated)
    look.begin()
    found = look.copy(memory.address + 8, (2, 61), "<u2")
    assert (found == memory.bytes[8 : 8 + 244].view("<u2").reshape(2, 61)).all()
    assert len(FakeMemory.allocated) == before
    assert look.copy(memory.address, (0, 32), "<u4").shape == (0, 32)


def test_a_copy_that_does_not_come_is_given_up(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "LONGEST_S", 0.05)
    look, memory = pinned.Pinned(), FakeMemory(100)
    fake.done = False
    look.begin()
    with pytest.raises(DeviceError, match="did not give out what was recorded within"):
        look.copy(memory.address, (25,), "<u4")


def test_the_wait_at_a_programs_end_is_told_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends.wait_at_end(lambda: True, "its launch") is None
    assert capsys.readouterr().err == ""
    assert ends.wait_at_end(lambda: False, "its launch", 0.1) == "the program had ended, and it had not 0.1 s later"
    begun_s = time.monotonic()
    assert ends.wait_at_end(lambda: time.monotonic() - begun_s > 2.3, "its launch") is None
    assert "has ended, and waits for its launch for 30 s at most: Ctrl-C goes on without" in capsys.readouterr().err


def test_ctrl_c_ends_the_wait_at_a_programs_end() -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    assert ends.wait_at_end(interrupted, "its launch") == "Ctrl-C came behind the program's end"


def test_a_copy_from_the_gpu_waits_for_its_stream_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits within a copy keeps the driver to itself: nobody could save what a kernel that hangs has."""
    calls: list[str] = []
    monkeypatch.setattr(driver, "call", lambda name, *_, **__: calls.append(name))
    assert driver.copy_from_device(4096, (3,), np.float32, 7).shape == (3,)
    assert calls == ["cuStreamSynchronize", "cuMemcpyDtoHAsync", "cuStreamSynchronize"]
