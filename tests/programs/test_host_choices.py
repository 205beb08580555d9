"""Programs that record themselves: which of their launches are recorded, with a driver that needs no GPU.

Needs g++; nothing of CUDA.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import warplens
from tests.host import NVTX, Built, launches_of, record
from warplens.capture import nvtx
from warplens.errors import UsageError

pytestmark = pytest.mark.programs


def test_clean_and_traced_launches_take_turns_and_no_launch_is_added(built: Built, tmp_path: Path) -> None:
    # More launches than six, and a slow GPU: one that a busy machine submits late has no time.
    done = record(built, tmp_path, "run", "40", options=("--rounds", "3"), FAKE_DELAY_US="10000")
    assert done.stdout.splitlines()[0] == "40"
    assert "waited for" not in done.stderr
    (kernel,) = warplens.open(tmp_path / "run.wlens").manifest["kernels"]
    assert (len(kernel["clean_ns"]), len(kernel["traced_ns"])) == (3, 3)
    assert kernel["clean_ns"][0] == pytest.approx(5000)


def test_a_time_of_an_idle_gpu_is_not_taken_for_the_kernels(built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, "run", "9", options=("--rounds", "3"))
    (kernel,) = warplens.open(tmp_path / "run.wlens").manifest["kernels"]
    assert kernel["clean_ns"] is None
    assert "idle" in kernel["not_measured"]


def test_without_a_pair_the_time_switched_off_is_not_called_clean(built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, "traced", "9", options=("--rounds", "3"), NO_PAIR="1", FAKE_DELAY_US="50000")
    (kernel,) = warplens.open(tmp_path / "run.wlens").manifest["kernels"]
    assert kernel["clean_ns"] is None
    assert len(kernel["switched_off_ns"]) == 3
    assert "WARPLENS_PAIR" in kernel["not_measured"]


def test_launches_are_chosen_by_name_skip_and_count(built: Built, tmp_path: Path) -> None:
    options = ("-k", "^scale<(true|false)>$", "--launch-skip", "7", "--launch-count", "3", "--rounds", "0")
    record(built, tmp_path, "run", "20", options=options)
    trace = warplens.open(tmp_path / "run.wlens")
    assert [entry["grid_id"] for entry in trace.manifest["launches"]] == [8, 9, 10]


def test_where_nothing_matches_the_kernels_that_ran_are_listed(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "7", options=("-k", "matmul"))
    assert done.returncode == 5
    assert done.stdout == "7\n"
    assert "7  scale<true>  (does not match -k)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_without_marks_is_not_counted_as_recorded(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "threads", "40", options=("--launch-count", "1"))
    assert done.returncode == 5
    assert "other  (has no marks that ran)" in done.stderr


@pytest.mark.parametrize("mode", ["contexts", "streams"])
def test_several_contexts_and_streams_are_recorded_in_one_file(mode: str, built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, mode, "8", options=("--rounds", "0"))
    assert launches_of(tmp_path / "run.wlens") == 8


def test_a_launch_beside_a_recorded_one_is_left_out_and_counted(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "streams", "4", options=("--rounds", "0"), FAKE_DELAY_US="200000")
    assert launches_of(tmp_path / "run.wlens") == 2
    assert "not recorded: 2 launches beside a recorded one on another stream" in done.stderr


def test_so_is_one_on_the_default_stream_of_another_thread(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "per-thread", options=("--rounds", "0"), FAKE_DELAY_US="300000")
    assert done.stdout == "3\n"
    assert "not recorded: 1 launches beside a recorded one on another stream" in done.stderr
    assert launches_of(tmp_path / "run.wlens") == 2


def test_a_launch_while_another_thread_makes_one_is_left_out_and_counted(built: Built, tmp_path: Path) -> None:
    """It would come into the stream between the other's descriptor and its kernel, and take its memory."""
    done = record(built, tmp_path, "beside", options=("--rounds", "0"))
    assert done.stdout == "3\n"
    assert "not recorded: 1 launches while another thread made one that is recorded" in done.stderr
    trace = warplens.open(tmp_path / "run.wlens")
    assert [entry["grid_id"] for entry in trace.manifest["launches"]] == [2, 3]
    assert launches_of(tmp_path / "run.wlens") == 2


def test_replays_of_a_captured_launch_are_chosen_and_numbered(built: Built, tmp_path: Path) -> None:
    options = ("--launch-skip", "50", "--launch-count", "3")
    done = record(built, tmp_path, "graph", "101", options=options)
    assert done.stdout.splitlines()[0] == "101"
    trace = warplens.open(tmp_path / "run.wlens")
    assert [entry["replay"] for entry in trace.manifest["launches"]] == [50, 51, 52]
    assert launches_of(tmp_path / "run.wlens") == 3


def test_a_program_says_itself_from_when_to_when(built: Built, tmp_path: Path) -> None:
    options = ("--paused", "--launch-skip", "1", "--launch-count", "3", "--rounds", "0")
    record(built, tmp_path, "window", options=options)
    assert [entry["grid_id"] for entry in warplens.open(tmp_path / "run.wlens").manifest["launches"]] == [12, 13, 14]


def test_graphs_that_were_captured_before_obey_too(built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, "window", options=("--paused", "--launch-skip", "1"), CAPTURED="1")
    trace = warplens.open(tmp_path / "run.wlens")
    assert [entry["replay"] for entry in trace.manifest["launches"]] == [11, 12, 13, 14, 15]


def test_replay_adds_launches_and_leaves_memory_as_it_would_be_without(built: Built, tmp_path: Path) -> None:
    options = ("--replay", "--rounds", "3", "--launch-count", "2")
    done = record(built, tmp_path, "run", "9", options=options, FAKE_DELAY_US="50000", CELL="1")
    assert done.stdout.split()[:2] == ["15", "9"]  # launches in all; what they added to the memory
    trace = warplens.open(tmp_path / "run.wlens")
    (kernel,) = trace.manifest["kernels"]
    assert (len(kernel["clean_ns"]), len(kernel["traced_ns"])) == (3, 3)
    assert launches_of(tmp_path / "run.wlens") == 2
    assert "not recorded" not in done.stderr


def test_a_launch_with_memory_of_another_gpu_is_not_replayed(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "9", options=("--replay",), FAKE_PEER="1", CELL="1")
    assert done.stdout.split()[:2] == ["9", "9"]
    assert "not recorded: replays of scale<true>: an argument points to memory of another GPU" in done.stderr
    assert launches_of(tmp_path / "run.wlens") == 9


def test_launches_are_chosen_by_grid(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "4", options=("--grids", "7,6x2"))
    assert done.returncode == 5
    assert "4  scale<true>  (other grids than --grids)" in done.stderr
    record(built, tmp_path, "run", "4", options=("--grids", "7,6x1", "--rounds", "0", "--cold-l2"))
    assert launches_of(tmp_path / "run.wlens") == 4
    assert all(entry["cold_l2"] for entry in warplens.open(tmp_path / "run.wlens").manifest["launches"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--policy", "stream"),
            "compiled for policy packed, and --policy asks for stream: compile it with -DWARPLENS_POLICY=stream",
        ),
        (("--keep", "newest"), "which keeps the oldest records: --keep newest is for warplens.Kernel alone"),
    ],
)
def test_code_that_was_compiled_otherwise_is_left_out_and_told(
    options: tuple[str, ...], says: str, built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "run", "4", options=options)
    assert (done.returncode, done.stdout) == (5, "4\n")
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("not recorded: 4 launches of code that ")]
    assert says in told
    assert record(built, tmp_path, "run", "4", options=("--policy", "packed")).returncode == 0


def test_marks_of_warplens_nvcc_are_of_policy_stream_whatever_the_code_was_compiled_for(
    built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "run", "4", options=("--policy", "packed", "--rounds", "0"), AUTOMATIC="1")
    assert (done.returncode, done.stdout) == (5, "4\n")
    assert "4 launches of code that was compiled for policy stream, and --policy asks for packed" in done.stderr
    record(built, tmp_path, "run", "4", options=("--policy", "stream", "--rounds", "0"), AUTOMATIC="1")
    assert launches_of(tmp_path / "run.wlens") == 4


def test_kernels_and_shapes_of_one_process_take_turns_each_by_itself(built: Built, tmp_path: Path) -> None:
    """Two kernels, two grids: four in all, each with its own clean and traced times."""
    done = record(built, tmp_path, "shapes", "8", options=("--rounds", "3"), FAKE_DELAY_US="50000")
    assert done.stdout == "32\n"
    manifest = warplens.open(tmp_path / "run.wlens").manifest
    assert [(kernel["name"], len(kernel["clean_ns"]), len(kernel["traced_ns"])) for kernel in manifest["kernels"]] == [
        ("scale<true>", 3, 3),
        ("shift<true>", 3, 3),
        ("scale<true>", 3, 3),
        ("shift<true>", 3, 3),
    ]
    assert [entry["grid"][0] for entry in manifest["launches"]].count(12) == 2 * 5


def test_each_kernel_and_shape_of_a_process_is_replayed_once(built: Built, tmp_path: Path) -> None:
    options = ("--replay", "--rounds", "3")
    done = record(built, tmp_path, "shapes", "2", options=options, FAKE_DELAY_US="50000", CELL="1")
    assert done.stdout.split() == [str(8 + 4 * 6), "8"]  # launches in all; what they added to the memory
    manifest = warplens.open(tmp_path / "run.wlens").manifest
    assert [(len(kernel["clean_ns"]), len(kernel["traced_ns"])) for kernel in manifest["kernels"]] == [(3, 3)] * 4
    assert len(manifest["launches"]) == 8


def test_a_signal_switches_recording_on_and_off(built: Built, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "warplens",
        "record",
        "-o",
        "run.wlens",
        "--signal",
        "USR1",
        "--rounds",
        "0",
        "-c",
        "9999",
        "--",
    ]
    variables = {**os.environ, "CHUNKS": str(built.folder / "chunks.bin")}
    with subprocess.Popen(
        [*command, built.program, "paced"],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        for state in ("on", "off"):
            assert [running.stdout.readline() for _ in range(2)] == ["50 more\n"] * 2  # half a second at least
            running.send_signal(signal.SIGUSR1)
            assert running.stderr.readline() == f"warplens: recording is {state}\n"
        assert [running.stdout.readline() for _ in range(4)] == ["50 more\n"] * 4
        time.sleep(1.0)
        (tmp_path / "enough").touch()
        launched = int(running.communicate(timeout=30)[0].splitlines()[-1])
    assert running.returncode == 0
    grids = [entry["grid_id"] for entry in warplens.open(tmp_path / "run.wlens").manifest["launches"]]
    assert grids == list(range(grids[0], grids[-1] + 1))
    assert 100 < grids[0] < grids[-1] < launched - 50


def test_a_replay_that_finds_the_gpu_idle_ends_after_four_times_as_many(built: Built, tmp_path: Path) -> None:
    options = ("--replay", "--rounds", "3", "--launch-count", "2")
    done = record(built, tmp_path, "run", "9", options=options, CELL="1")
    assert done.stdout.split()[:2] == ["33", "9"]
    (kernel,) = warplens.open(tmp_path / "run.wlens").manifest["kernels"]
    assert kernel["clean_ns"] is None


def test_launches_are_chosen_by_the_nvtx_ranges_that_are_open(built: Built, tmp_path: Path) -> None:
    if NVTX is None:
        pytest.skip("no nvtx3/nvToolsExt.h below /usr/local/cuda*/include: it comes with the CUDA toolkit")
    done = record(built, tmp_path, "ranges", options=("--nvtx-include", "^step [0-9]$", "--rounds", "0"))
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    launches = warplens.open(tmp_path / "run.wlens").manifest["launches"]
    assert [entry["grid_id"] for entry in launches] == [2, 3, 5, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["run.wlens"]


def test_a_program_without_nvtx_is_in_no_range(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "3", options=("--nvtx-include", "step"))
    assert (done.returncode, done.stdout) == (5, "3\n")
    assert "3  scale<true>  (outside of the ranges of --nvtx-include)" in done.stderr


def test_another_listener_of_nvtx_and_a_missing_compiler_are_told(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "3", options=("--nvtx-include", "x"), NVTX_INJECTION64_PATH="/nsys.so")
    assert (done.returncode, done.stdout) == (2, "")
    assert "another tool listens to NVTX" in done.stderr
    done = record(built, tmp_path, "run", "3", options=("--nvtx-include", "x"), PATH="/nowhere", CXX="")
    assert (done.returncode, done.stdout) == (5, "")
    assert "apt install g++" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_from_which_nothing_may_be_loaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: failed to map segment from shared object")  # as of a mount with noexec

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(UsageError, match="choose another place with -o"):
        nvtx.build(tmp_path)


def test_of_graphs_with_several_shapes_the_first_is_recorded_and_the_others_run_without_marks(
    built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "graphs", "101", options=("--launch-skip", "50", "--launch-count", "3"))
    assert done.stdout == "202\n"
    assert "not recorded: 1 captured launches of another kernel or shape than the first of their file" in done.stderr
    trace = warplens.open(tmp_path / "run.wlens")
    assert [entry["replay"] for entry in trace.manifest["launches"]] == [50, 51, 52]
    assert trace.launches["grid_x"].to_list() == [6, 6, 6]
    assert launches_of(tmp_path / "run.wlens") == 3


def test_a_captured_launch_that_is_never_seen_to_run_is_told(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "graph", "1", NO_PAIR="1")  # its one build has no marks that count
    assert (done.returncode, done.stdout) == (5, "1\n")
    assert "not recorded: captured launches of scale<false>: none was seen to run; the graph was not" in done.stderr


def test_captured_launches_of_each_file_and_gpu_are_recorded(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "files", "101", options=("--launch-skip", "50", "--launch-count", "3"))
    assert done.stdout == "303\n"
    assert "not recorded" not in done.stderr
    trace = warplens.open(tmp_path / "run.wlens")
    names = [trace.manifest["kernels"][entry["kernel"]]["name"] for entry in trace.manifest["launches"]]
    assert Counter(names) == {"scale<true>": 6, "shift<true>": 3}
    assert Counter(entry["replay"] for entry in trace.manifest["launches"]) == {50: 3, 51: 3, 52: 3}
    assert launches_of(tmp_path / "run.wlens") == 9


def test_of_graphs_with_several_shapes_nothing_is_recorded_where_all_builds_have_marks(
    built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "graphs", "101", NO_PAIR="1")
    assert (done.returncode, done.stdout) == (5, "202\n")
    assert "not recorded: replays of graphs: kernels or shapes differ" in done.stderr
