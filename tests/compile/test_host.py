"""Programs that record themselves: every end that a program can come to, with a driver that needs no GPU.

Needs g++; nothing of CUDA.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import warplens
from tests.host import EVENTS, NVTX, Built, build, record, run
from warplens import layout
from warplens.capture import nvtx
from warplens.errors import UsageError

pytestmark = pytest.mark.compile


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("host"))


def launches_of(path: Path) -> int:
    trace = warplens.open(path)
    assert trace.spans.height == EVENTS * trace.launches.height
    return trace.launches.height


def test_a_recorded_program_leaves_a_whole_file_with_what_its_kernels_wrote(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "12", options=("--launch-count", "5", "--rounds", "0", "--note", "n=1"))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "12")
    trace = warplens.open(tmp_path / "run.wlens")
    assert trace.launches.height == 5
    assert trace.note == "n=1"
    assert trace.manifest["complete"]
    assert trace.manifest["globaltimer_step_ns"] == 32
    assert [entry["when"] for entry in trace.manifest["calibration"]] == ["before", "after"]
    assert trace.manifest["kernels"][0]["name"] == "scale<true>"
    assert [site["name"] for site in trace.manifest["site_sets"][0]["sites"]] == [
        "load_sumsq",
        "warp_reduce",
        "normalize",
        "store",
    ]
    for number in range(5):
        wrote = trace._contents.records[f"records/{number:06d}.u32"].copy()
        assert len(set(wrote[:, layout.WORD_GRID])) == 1
        wrote[:, layout.WORD_GRID] = built.chunks[0, layout.WORD_GRID]
        assert sorted(map(bytes, wrote)) == sorted(map(bytes, built.chunks))
    assert zipfile.ZipFile(tmp_path / "run.wlens").testzip() is None
    assert [path.name for path in tmp_path.iterdir()] == ["run.wlens"]


def test_sites_of_automatic_marks_have_a_place_each_and_their_policy_is_stream(built: Built, tmp_path: Path) -> None:
    """As `warplens nvcc` leaves them, in a file whose own marks would be of another policy."""
    record(built, tmp_path, "run", "3", options=("--rounds", "0"), AUTOMATIC="1")
    manifest = warplens.open(tmp_path / "run.wlens").manifest
    sites = manifest["site_sets"][0]["sites"]
    assert [(site["name"], site["kind"], site["resource"], site["line"]) for site in sites] == [
        ("a.cu:1 load", "phase", "", 1),
        ("a.cu:2 wait mbarrier b", "wait", "mbarrier b", 2),
        ("a.cu:3", "phase", "", 3),
        ('a.cu:4 "store"', "phase", "", 4),
    ]
    assert {site["file"] for site in sites} == {"/src/a.cu"}
    assert [site["arrivals"] for site in sites] == [None, 128, None, None]
    assert manifest["site_sets"][0]["left_out"] == ["call of f (a.cu:3)"]
    assert manifest["kernels"][0]["policy"] == "stream"


def test_clean_and_traced_launches_take_turns_and_no_launch_is_added(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "9", options=("--rounds", "3"), FAKE_DELAY_US="2000")
    assert done.stdout.splitlines()[0] == "9"
    (kernel,) = warplens.open(tmp_path / "run.wlens").manifest["kernels"]
    assert (len(kernel["clean_ns"]), len(kernel["traced_ns"])) == (3, 3)
    assert kernel["clean_ns"][0] == pytest.approx(5000)


def test_a_time_of_an_idle_gpu_is_not_taken_for_the_kernels(built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, "run", "9", options=("--rounds", "3"))
    (kernel,) = warplens.open(tmp_path / "run.wlens").manifest["kernels"]
    assert kernel["clean_ns"] is None
    assert "idle" in kernel["not_measured"]


def test_without_a_pair_the_time_switched_off_is_not_called_clean(built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, "traced", "9", options=("--rounds", "3"), NO_PAIR="1", FAKE_DELAY_US="2000")
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


@pytest.mark.parametrize(("mode", "code"), [("crash", 128 + signal.SIGABRT), ("_exit", 5)])
def test_a_program_that_ends_without_warning_keeps_its_complete_launches(
    mode: str, code: int, built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, mode, "6", options=("--rounds", "0"))
    assert done.returncode == code
    assert launches_of(tmp_path / "run.wlens") == 6
    assert not warplens.open(tmp_path / "run.wlens").manifest["complete"]
    assert "cut off" in done.stderr


def test_a_child_of_fork_records_nothing_and_harms_nothing(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "fork", "6", options=("--rounds", "0"))
    assert done.returncode == 0
    assert launches_of(tmp_path / "run.wlens") == 6


def test_a_program_that_becomes_another_leaves_a_file_of_each(built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, "exec", "4", options=("--rounds", "0"))
    found = sorted(tmp_path.iterdir())
    assert len(found) == 2
    assert [launches_of(path) for path in found] == [4, 4]


def test_closed_descriptors_are_the_programs_own_again(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "close", "6", options=("--rounds", "0"))
    assert done.returncode == 0
    assert (tmp_path / "own.txt").read_text(encoding="utf-8") == "mine"
    assert launches_of(tmp_path / "run.wlens") == 6


@pytest.mark.parametrize("mode", ["contexts", "streams"])
def test_several_contexts_and_streams_are_recorded_in_one_file(mode: str, built: Built, tmp_path: Path) -> None:
    record(built, tmp_path, mode, "8", options=("--rounds", "0"))
    assert launches_of(tmp_path / "run.wlens") == 8


def test_a_launch_beside_a_recorded_one_is_left_out_and_counted(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "streams", "4", options=("--rounds", "0"), FAKE_DELAY_US="200000")
    assert launches_of(tmp_path / "run.wlens") == 2
    assert "not recorded: 2 launches beside a recorded one on another stream" in done.stderr


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


def test_what_does_not_fit_is_counted_and_reaches_the_exit_code(built: Built, tmp_path: Path) -> None:
    # A quarter of 1 MiB less the control block, 262,144 - 33,024 bytes, are 1,790 chunks; 200 times 12 are written.
    done = record(built, tmp_path, "run", "2", options=("--capacity", "1MiB", "--rounds", "0"), REPEAT="200")
    assert done.returncode == 4
    launches = warplens.open(tmp_path / "run.wlens").manifest["launches"]
    assert [entry["lost_chunks"] for entry in launches] == [610, 610]
    assert "1,220 events lost" in done.stderr


def test_no_memory_on_the_device_stops_the_recording_alone(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "6", FAKE_NO_MEMORY="1")
    assert done.stdout == "6\n"
    assert "no memory left" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_hangs_does_not_hold_up_the_programs_end(built: Built, tmp_path: Path) -> None:
    begin = time.monotonic()
    done = record(built, tmp_path, "run", "3", options=("--rounds", "0"), FAKE_HANG="1")
    assert done.stdout == "3\n"
    assert time.monotonic() - begin < 15


def test_a_program_beyond_its_time_is_stopped_and_its_launches_kept(built: Built, tmp_path: Path) -> None:
    shell = f"{built.program} _exit 3; exec sleep 30"
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--rounds", "0", "--timeout", "2"]
    done = run(built, tmp_path, [*command, "--", "sh", "-c", shell])
    assert done.returncode == 124
    assert launches_of(tmp_path / "run.wlens") == 3


def test_ctrl_c_ends_the_program_and_keeps_what_there_is(built: Built, tmp_path: Path) -> None:
    shell = f"{built.program} _exit 3; echo ready; exec sleep 30"
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--rounds", "0", "--", "sh", "-c", shell]
    variables = {**os.environ, "CHUNKS": str(built.folder / "chunks.bin")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as running:
        assert running.stdout is not None
        while "ready" not in running.stdout.readline():
            pass
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGINT
    assert launches_of(tmp_path / "run.wlens") == 3


@pytest.mark.parametrize(("blocks", "is_kept"), [(4, False), (64, True)])
def test_a_full_disk_stops_the_recording_alone_and_what_was_complete_is_kept(
    blocks: int, is_kept: bool, built: Built, tmp_path: Path
) -> None:
    # A limit on a file's size: what can be had without mounting. A launch is 12 chunks of 128 bytes and more.
    limited = f"ulimit -f {blocks}; trap '' XFSZ; exec {built.program} _exit 40"
    command = [
        sys.executable,
        "-m",
        "warplens",
        "record",
        "-o",
        "run.wlens",
        "--rounds",
        "0",
        "--",
        "sh",
        "-c",
        limited,
    ]
    done = run(built, tmp_path, command)
    assert done.returncode == 5  # the program's own
    assert "is not recorded further: cannot write" in done.stderr
    if is_kept:
        assert 1 <= launches_of(tmp_path / "run.wlens") < 40


@pytest.mark.parametrize("folder", ["none", "/proc"])  # not there; read-only, for root too
def test_a_folder_that_cannot_be_written_is_told_before_the_program_runs(
    folder: str, built: Built, tmp_path: Path
) -> None:
    place = tmp_path / folder / "run.wlens"
    command = [sys.executable, "-m", "warplens", "record", "-o", str(place), "--", built.program, "run", "3"]
    done = run(built, tmp_path, command)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "choose another place with -o" in done.stderr


def test_a_folder_that_is_gone_while_the_program_runs_stops_the_recording_alone(built: Built, tmp_path: Path) -> None:
    command = ["sh", "-c", f"rm -rf .warplens-*; exec {built.program} run 5"]
    done = run(built, tmp_path, [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--", *command])
    assert (done.returncode, done.stdout) == (5, "5\n")
    assert "is not recorded further" in done.stderr
    assert "vanished while the program ran" in done.stderr


def test_outside_of_record_nothing_is_written(built: Built, tmp_path: Path) -> None:
    done = run(built, tmp_path, [built.program, "run", "5"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_variable_of_another_version_switches_recording_off(built: Built, tmp_path: Path) -> None:
    done = run(built, tmp_path, [built.program, "run", "5"], WARPLENS_RECORD=f"version=99&folder={tmp_path}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_launch_that_is_not_recorded_costs_little(built: Built, tmp_path: Path) -> None:
    """Of 200,000 launches of kernels that do nothing; the bound is loose, for other processes share this machine."""

    def seconds(*command: str) -> float:
        begin = time.perf_counter()
        run(built, tmp_path, [*command, built.program, "threads", "200000"])
        return time.perf_counter() - begin

    bare = seconds()
    recorded = seconds(sys.executable, "-m", "warplens", "record", "-k", "nothing", "--")
    assert (recorded - bare) / 200_000 < 5e-6


def test_the_note_of_a_process_says_what_ran(built: Built, tmp_path: Path) -> None:
    text = f"version=1&folder={tmp_path}&kernels=nothing"
    run(built, tmp_path, [built.program, "run", "5"], WARPLENS_RECORD=text)
    (path,) = tmp_path.glob("*.json")
    note = json.loads(path.read_text(encoding="utf-8"))
    assert note["process"]["program"] == "program"
    assert note["kernels"] == [
        {
            "name": "scale<true>",
            "launches": 5,
            "recorded": 0,
            "matches": False,
            "other_grid": False,
            "other_range": False,
            "without_marks": False,
        }
    ]
    assert np.isfinite(note["process"]["pid"])


def test_replay_adds_launches_and_leaves_memory_as_it_would_be_without(built: Built, tmp_path: Path) -> None:
    options = ("--replay", "--rounds", "3", "--launch-count", "2")
    done = record(built, tmp_path, "run", "9", options=options, FAKE_DELAY_US="2000", CELL="1")
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


@pytest.mark.parametrize("options", [("--policy", "stream"), ("--keep", "newest")])
def test_code_that_was_compiled_otherwise_is_left_out_and_told(
    options: tuple[str, ...], built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "run", "4", options=options)
    assert (done.returncode, done.stdout) == (5, "4\n")
    assert "not recorded: 4 launches of code that was compiled for another policy" in done.stderr


@pytest.mark.parametrize(("option", "sources"), [("--source", {"program.cpp": "// marked\n"}), ("--no-source", {})])
def test_the_source_of_sites_and_the_state_of_the_gpu_are_in_the_file(
    option: str, sources: dict[str, str], built: Built, tmp_path: Path
) -> None:
    (tmp_path / "program.cpp").write_text("// marked\n", encoding="utf-8")
    record(built, tmp_path, "run", "4", options=(option,))
    trace = warplens.open(tmp_path / "run.wlens")
    assert dict(trace.sources) == sources
    assert (trace.manifest["device"]["driver"], trace.manifest["device"]["mig"]) == ("580.1", True)
    state = trace.manifest["clock_state"]
    assert state["before"] == state["after"]
    assert state["before"] == {
        "sm_hz": 1.98e9,
        "memory_hz": 3.201e9,
        "power_w": 120.5,
        "temperature_c": None,
        "throttle_reasons": ["software thermal slowdown", "software power cap"],
        "other_processes": None,
    }


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
    assert "not recorded: 1 captured launches of another kernel, shape or GPU" in done.stderr
    trace = warplens.open(tmp_path / "run.wlens")
    assert [entry["replay"] for entry in trace.manifest["launches"]] == [50, 51, 52]
    assert trace.launches["grid_x"].to_list() == [6, 6, 6]
    assert launches_of(tmp_path / "run.wlens") == 3


def test_of_graphs_with_several_shapes_nothing_is_recorded_where_all_builds_have_marks(
    built: Built, tmp_path: Path
) -> None:
    done = record(built, tmp_path, "graphs", "101", NO_PAIR="1")
    assert (done.returncode, done.stdout) == (5, "202\n")
    assert "not recorded: replays of graphs: kernels or shapes differ" in done.stderr
