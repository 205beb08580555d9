"""Programs that are stopped while a recorded kernel hangs, with a driver that needs no GPU: what is saved, and said.

Needs g++; nothing of CUDA.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import warplens
from tests.host import BLOCKS, Built, launches_of, record
from warplens import layout
from warplens.layout import ChunkFlag

pytestmark = pytest.mark.programs

TIME_OUT = ("--rounds", "0", "--timeout", "2")


def open_chunks(built: Built, place: Path) -> str:
    """Chunks as the program's own, of which those of block 2's warp 1 do not say that the warp ended."""
    chunks = built.chunks.copy()
    warp = chunks[:, layout.WORD_META] & ((1 << layout.META_WARP_BITS) - 1)
    at = (chunks[:, layout.WORD_BLOCK] == 2) & (warp == 1)
    assert at.any()
    chunks[at, layout.WORD_META] &= ~np.uint32(int(ChunkFlag.LAST) << layout.META_FLAGS_SHIFT)
    chunks.tofile(place / "open.bin")
    return str(place / "open.bin")


def stopped_after(done: subprocess.CompletedProcess[str], place: Path, whole: int, why: str) -> warplens.Trace:
    """Holds that `whole` launches and then one that had not ended were kept, and that this was said."""
    trace = warplens.open(place / "run.wlens")
    assert trace.launches.height == whole + 1, done.stderr
    assert not trace.manifest["complete"]
    assert trace.manifest["stopped"]["why"] == why
    assert [path.name for path in place.glob("*") if path.suffix != ".bin"] == ["run.wlens"], done.stderr
    assert "what was recorded of the kernel that had not ended is saved" in done.stderr or "--timeout" not in done.args
    assert f"run.wlens: {whole + 1} launch" in done.stderr
    assert "; the last one had not ended" in done.stderr
    return trace


def test_the_time_out_keeps_the_launch_that_hangs_and_says_where_its_warps_were(built: Built, tmp_path: Path) -> None:
    chunks = open_chunks(built, tmp_path)
    done = record(built, tmp_path, "hang", "4", options=TIME_OUT, FAKE_HANG_FROM="3", CHUNKS=chunks)
    assert done.returncode == 124, done.stderr
    trace = stopped_after(done, tmp_path, 2, "the program had not ended by the time-out")
    lines = done.stderr.splitlines()
    at = lines.index(
        "Where each warp was at least (with policy packed a warp keeps up to 24 of its last records in registers):"
    )
    assert lines[at - 1].startswith("scale<true> was stopped after ")
    assert lines[at + 1].startswith("  block 2 warp 1: store")
    assert lines[at + 2] == f"  {2 * BLOCKS - 1} warps had ended"
    assert trace.manifest["stopped"]["after_s"] == pytest.approx(2, abs=1.5)
    assert len(trace.manifest["stopped"]["last"]) == 1


def test_a_program_that_is_recorded_from_its_first_launch_on_and_hangs_there_leaves_that(
    built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "hang", "1", options=TIME_OUT, FAKE_HANG="1", AUTOMATIC="1")
    assert done.returncode == 124, done.stderr
    trace = stopped_after(done, tmp_path, 0, "the program had not ended by the time-out")
    assert [entry["when"] for entry in trace.manifest["calibration"]] == ["before"]
    assert "Where each warp was at least" not in done.stderr  # all have ended, and nothing is held back


def test_a_gpu_that_gives_nothing_out_leaves_the_complete_launches(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "hang", "4", options=TIME_OUT, FAKE_HANG_FROM="3", FAKE_STUCK="1")
    assert done.returncode == 124, done.stderr
    assert "the GPU did not give out what was under way" in done.stderr
    assert launches_of(tmp_path / "run.wlens") == 2
    assert warplens.open(tmp_path / "run.wlens").manifest["stopped"] is None


def test_a_launch_that_was_only_timed_is_not_taken_for_one_that_recorded(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "hang", "2", options=("--timeout", "2"), FAKE_HANG_FROM="5")
    assert done.returncode == 124, done.stderr
    assert "with --rounds 0 each launch is recorded" in done.stderr
    assert launches_of(tmp_path / "run.wlens") == 1


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
@pytest.mark.parametrize("to", ["record", "group"])
def test_a_signal_saves_the_launch_that_hangs_and_then_ends_the_program(
    to: str, number: signal.Signals, name: str, built: Built, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--rounds", "0", "--", built.program]
    chunks = str(built.folder / "chunks.bin")
    variables = {**os.environ, "CHUNKS": chunks, "FAKE_HANG_FROM": "3"}
    with subprocess.Popen(
        [*command, "hang", "4"],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        assert running.stdout is not None
        while "hangs" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(0.5)
        if to == "record":
            running.send_signal(number)
        else:
            os.killpg(running.pid, number)
        out, err = running.communicate(timeout=30)
    done = subprocess.CompletedProcess(command, running.returncode, out, err)
    assert running.returncode == 128 + number, err
    stopped_after(done, tmp_path, 2, f"{name} came while it ran")


@contextmanager
def hanging(built: Built, place: Path) -> Iterator[subprocess.Popen[str]]:
    """The program alone, in a launch that hangs while the driver is locked; its records go to `place`."""
    variables = {**os.environ, "CHUNKS": str(built.folder / "chunks.bin"), "FAKE_HANG_FROM": "3", "FAKE_LOCKED": "1"}
    variables["WARPLENS_RECORD"] = f"version=1&folder={place}&rounds=0"
    with subprocess.Popen([built.program, "hang", "4"], env=variables, text=True, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        while "hangs" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(0.3)
        yield running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_where_the_driver_is_not_to_be_had_one_signal_ends_the_program_after_a_while(
    number: signal.Signals, built: Built, tmp_path: Path
) -> None:
    """The thread that would hear it waits within the driver; another one gives it 5 s."""
    with hanging(built, tmp_path) as running:
        running.send_signal(number)
        assert running.wait(20) == -number


def test_one_sigterm_to_record_ends_a_program_whose_driver_is_not_to_be_had(built: Built, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--rounds", "0", "--", built.program]
    variables = {**os.environ, "CHUNKS": str(built.folder / "chunks.bin"), "FAKE_HANG_FROM": "3", "FAKE_LOCKED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "hang", "4"], cwd=tmp_path, env=variables, **pipes) as running:  # type: ignore[call-overload]
        while "hangs" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(0.3)
        running.terminate()
        _, err = running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGTERM, err
    assert "did not save what was under way in time" in err
    assert launches_of(tmp_path / "run.wlens") == 2  # what had been read before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_where_the_driver_is_not_to_be_had_the_second_signal_ends_the_program(
    number: signal.Signals, built: Built, tmp_path: Path
) -> None:
    """The thread that would hear the first one waits within the driver, and the program is not to live for ever."""
    with hanging(built, tmp_path) as running:
        running.send_signal(number)
        time.sleep(0.3)
        assert running.poll() is None
        running.send_signal(number)
        assert running.wait(10) == -number


@pytest.mark.parametrize("streams", [False, True])
def test_memory_that_is_used_up_is_told_of_the_launch_that_hangs(streams: bool, built: Built, tmp_path: Path) -> None:
    """Before a warp has counted a loss. 1 MiB leaves cursors nothing, and marks in PTX ask nobody else."""
    chunks = built.chunks.copy()
    chunks[0, layout.WORD_META] |= np.uint32(int(ChunkFlag.STREAM) << layout.META_FLAGS_SHIFT) if streams else 0
    chunks.tofile(tmp_path / "own.bin")
    options = ("--capacity", "1MiB", *TIME_OUT)
    own = str(tmp_path / "own.bin")
    done = record(built, tmp_path, "hang", "1", options=options, FAKE_HANG="1", AUTOMATIC="1", CHUNKS=own)
    (launch,) = warplens.open(tmp_path / "run.wlens").manifest["launches"]
    assert (launch["lost_events"], done.returncode) == (0, 124), done.stderr
    told = "the memory for records was used up: warps may be further on than is shown (--capacity)"
    assert (launch.get("full", False), told in done.stderr) == (streams, streams)


def test_a_program_whose_last_launch_does_not_end_waits_says_so_and_keeps_it(built: Built, tmp_path: Path) -> None:
    """The program is built with 3 s in place of 30."""
    begin = time.monotonic()
    done = record(built, tmp_path, "run", "3", options=("--rounds", "0"), FAKE_HANG_FROM="3")
    assert done.stdout.splitlines()[0] == "3"
    assert time.monotonic() - begin < 25
    assert "has ended, and waits for its last launch for 3 s at most: Ctrl-C goes on without" in done.stderr
    stopped_after(done, tmp_path, 2, "the program had ended, and it had not 3 s later")
    assert done.returncode == 4


def test_a_last_launch_that_takes_longer_than_the_program_is_waited_for(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "1", options=("--rounds", "0"), FAKE_DELAY_US="2600000")
    assert done.returncode == 0, done.stderr
    assert launches_of(tmp_path / "run.wlens") == 1
    assert warplens.open(tmp_path / "run.wlens").manifest["complete"]


def test_what_was_saved_makes_room_where_the_launch_ends_after_all(built: Built, tmp_path: Path) -> None:
    """Asked as `record` asks, by a file; the launch takes 2.5 s, and the program then ends as ever."""
    text = f"version=1&folder={tmp_path}&rounds=0"
    variables = {**os.environ, "CHUNKS": str(built.folder / "chunks.bin"), "FAKE_DELAY_US": "2500000"}
    variables["WARPLENS_RECORD"] = text
    with subprocess.Popen([built.program, "run", "2"], env=variables, text=True, stderr=subprocess.PIPE) as running:
        time.sleep(1)
        (tmp_path / "stop").write_text("1\na test asks\n", encoding="utf-8")
        _, err = running.communicate(timeout=30)
    assert (tmp_path / f"{running.pid}.answer").read_text(encoding="utf-8") == "1\nsaved\n", err
    trace = warplens.open(tmp_path / f"{running.pid}.wlens")
    assert trace.manifest["complete"]
    assert trace.manifest["stopped"] is None
    assert launches_of(tmp_path / f"{running.pid}.wlens") == 2


def test_a_replay_that_hangs_is_kept_behind_those_that_ended(built: Built, tmp_path: Path) -> None:
    """The captured launch runs at once here: with it there are four, of which the last has not ended."""
    chunks = open_chunks(built, tmp_path)
    options = ("--timeout", "2")
    done = record(built, tmp_path, "graph", "4", options=options, LAST_BLOCK_HANGS="1", CHUNKS=chunks)
    assert done.returncode == 124, done.stderr
    trace = stopped_after(done, tmp_path, 3, "the program had not ended by the time-out")
    assert [entry["replay"] for entry in trace.manifest["launches"]] == [0, 1, 2, 3]
    assert "  block 2 warp 1: store" in done.stderr
