"""`record` of Python programs that hang, with no GPU: what it asks of them, says and keeps; and the second Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warplens
from warplens.capture import child

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from tests.synthesis import fake_recording
from tests.unit.trace.test_part import add, add_stopped
from warplens.capture.halt import Saver
from warplens.capture.request import VARIABLE, from_text
from warplens.trace.part import PartWriter

folder = Path(from_text(os.environ[VARIABLE]).folder)
part = fake_recording(blocks=4, warps=2, phases=4)
begun = {**part.manifest, "kernels": [], "launches": [], "complete": False}
writer = PartWriter(folder, str(os.getpid()))
add(writer, begun, part)

def save(why):
    if "clean" in sys.argv:
        return False, "its clean build was running"
    add_stopped(writer, begun, part, why)
    return True, ""

saver = Saver(folder, f"{os.getpid()}-kernel", save)
if "silent" in sys.argv:  # as where the driver is not to be had
    list(map(Path.unlink, folder.glob("*.wlens*")))
    print("hangs", flush=True)
    time.sleep(60)
saver.start()
if "deaf" in sys.argv:  # as a main thread is that waits for the GPU
    signal.signal(signal.SIGINT, lambda *_: print("heard", flush=True))
print("hangs", flush=True)
begin = time.monotonic()
while time.monotonic() - begin < 60:
    time.sleep(1)
"""
ROOT = Path(__file__).parents[3]


def start(place: Path, *options: str, mode: str = "") -> subprocess.Popen[str]:
    (place / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", *options, "program.py", mode]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    running = subprocess.Popen(
        command,
        cwd=place,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "hangs\n"
    return running


def kept(place: Path, why: str | None, launches: int = 2) -> None:
    trace = warplens.open(place / "run.wlens")
    assert trace.launches.height == launches
    stopped = trace.manifest["stopped"]
    assert (stopped and stopped["why"]) == why
    assert [path.name for path in sorted(place.iterdir())] == ["program.py", "run.wlens"]


def test_the_time_out_says_why_and_where_and_keeps_the_launch(tmp_path: Path) -> None:
    _, err = start(tmp_path, "--timeout", "4").communicate(timeout=60)
    kept(tmp_path, "the program had not ended by the time-out")
    assert "what was recorded of the kernel that had not ended is saved" in err
    assert "run.wlens: 2 launches of rmsnorm_fwd<true>; the last one had not ended" in err
    assert "was stopped after 2 s: the program had not ended by the time-out\n  8 warps had ended\n" in err


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    _, err = start(tmp_path, "--timeout", "4", mode="clean").communicate(timeout=60)
    kept(tmp_path, None, launches=1)
    assert "warplens: its clean build was running" in err
    assert "the process was cut off: its complete launches" in err


def test_sigterm_is_handed_on_behind_the_save(tmp_path: Path) -> None:
    running = start(tmp_path)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, err
    kept(tmp_path, "SIGTERM came while it ran")


def test_a_program_that_does_not_hear_ctrl_c_is_ended_by_the_second(tmp_path: Path) -> None:
    running = start(tmp_path, mode="deaf")
    running.send_signal(signal.SIGINT)
    assert running.stdout is not None
    assert running.stdout.readline() == "heard\n"
    time.sleep(0.5)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    begin_s = time.monotonic()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, err
    assert time.monotonic() - begin_s < child.GRACE_S  # it had ended at once, and nothing was waited for
    kept(tmp_path, "Ctrl-C came while it ran")


def test_a_ctrl_c_long_behind_a_save_is_a_first_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's, say, that went on behind the first."""
    saves: list[str] = []
    sent: list[int] = []
    program: Any = SimpleNamespace(poll=lambda: None, send_signal=sent.append, kill=lambda: sent.append(signal.SIGKILL))
    monkeypatch.setattr(child, "AGAIN_S", 0.2)
    monkeypatch.setattr(child, "_in_foreground", lambda: False)
    monkeypatch.setattr(child, "GRACE_S", 60.0)

    def save(why: str) -> bool:
        saves.append(why)
        return True

    with child._patient(child.Watch(save=save)) as begun:
        begun(program)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.3)
        signal.raise_signal(signal.SIGINT)
        assert (len(saves), sent) == (2, [signal.SIGINT] * 2)
        signal.raise_signal(signal.SIGINT)
        assert (len(saves), sent) == (2, [signal.SIGINT, signal.SIGINT, signal.SIGTERM])


def test_a_program_with_nothing_under_way_hears_each_ctrl_c(tmp_path: Path) -> None:
    running = start(tmp_path, mode="deaf")
    (folder,) = tmp_path.glob(".warplens-*")
    for path in folder.glob("*.watch"):
        path.unlink()  # as of a program that has recorded nothing
    for _ in range(3):
        running.send_signal(signal.SIGINT)
        assert running.stdout is not None
        assert running.stdout.readline() == "heard\n"
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, err


def test_of_a_program_that_is_stopped_before_it_said_anything_that_is_told(tmp_path: Path) -> None:
    running = start(tmp_path, "--timeout", "3", mode="silent")
    _, err = running.communicate(timeout=60)
    assert running.returncode == 124, err
    assert "nothing was recorded" in err, err
    assert "what it launched is not known: its processes were stopped before they could say" in err, err
    assert "no launch was seen" not in err, err
