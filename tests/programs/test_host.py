"""Programs that record themselves: every end that a program can come to, with a driver that needs no GPU.

Needs g++; nothing of CUDA.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import warplens
from tests.host import Built, build_libraries, launches_of, record, run
from warplens import layout

pytestmark = pytest.mark.programs


def test_a_recorded_program_leaves_a_whole_file_with_what_its_kernels_wrote(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "run", "12", options=("--launch-count", "5", "--rounds", "0", "--note", "n=1"))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "12")
    assert "waited for" not in done.stderr
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


def test_another_kernel_that_hangs_does_not_hold_it_up_either(built: Built, tmp_path: Path) -> None:
    begin = time.monotonic()
    done = record(built, tmp_path, "graph", "3", FAKE_BUSY="1")
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


@pytest.mark.parametrize("ignored", ["trap '' XFSZ", ":"])  # else the signal would end the program
@pytest.mark.parametrize(("blocks", "is_kept"), [(4, False), (64, True)])
def test_a_full_disk_stops_the_recording_alone_and_what_was_complete_is_kept(
    blocks: int, is_kept: bool, ignored: str, built: Built, tmp_path: Path
) -> None:
    # A limit on a file's size: what can be had without mounting. A launch is 12 chunks of 128 bytes and more.
    limited = f"ulimit -f {blocks}; {ignored}; exec {built.program} _exit 40"
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


def test_where_the_system_gives_no_thread_the_program_runs_on_and_it_is_told(built: Built, tmp_path: Path) -> None:
    source, library = tmp_path / "none.cpp", tmp_path / "none.so"
    source.write_text('#include <cerrno>\nextern "C" int pthread_create(...) { return EAGAIN; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    done = record(built, tmp_path, "run", "5", LD_PRELOAD=str(library))
    assert (done.returncode, done.stdout) == (5, "5\n")
    assert "the system gives no thread" in done.stderr


def test_a_program_that_waits_for_a_signal_gets_it(built: Built, tmp_path: Path) -> None:
    for number in range(5):  # it depends on which thread the system chooses
        done = record(built, tmp_path, "sigwait", "3", options=("-f", "--rounds", "0"))
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ended by USR1"), number
        assert launches_of(tmp_path / "run.wlens") == 3


def test_what_a_program_writes_to_a_stream_that_it_closed_is_not_in_the_trace(built: Built, tmp_path: Path) -> None:
    done = record(built, tmp_path, "garble", "60", options=("--rounds", "0", "-c", "1000"))
    assert done.returncode == 0
    assert launches_of(tmp_path / "run.wlens") == 60


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
    """Processor time of launches of kernels that do nothing, four threads at once; real figures are in ADR 11."""

    def seconds(*command: str) -> float:
        """Of 200,000 launches, without the begin of the processes."""
        used = []
        for launches in ("4", "200000"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(built, tmp_path, [*command, built.program, "threads", launches])
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return used[1] - used[0]

    bare = seconds()
    recorded = seconds(sys.executable, "-m", "warplens", "record", "-k", "nothing", "--")
    assert (recorded - bare) / 200_000 < 5e-6


@pytest.mark.parametrize(("flags", "files"), [((), 1), (("-fvisibility=hidden",), 2)], ids=["shared", "hidden"])
def test_shared_objects_that_are_loaded_later_are_recorded_too(
    flags: tuple[str, ...], files: int, built: Built, tmp_path: Path
) -> None:
    """With one session for all, or one each where their symbols are hidden."""
    loader, *libraries = build_libraries(built, *flags)
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--rounds", "0", "--"]
    done = run(built, tmp_path, [*command, loader, "run", "4", *libraries])
    assert (done.returncode, done.stdout) == (0, "4\n4\n"), done.stderr
    found = sorted(tmp_path.iterdir())
    assert len(found) == files
    assert sum(launches_of(path) for path in found) == 8


def resident_bytes(built: Built, place: Path, launches: int, options: list[str]) -> int:
    """The most memory that the program had below record."""
    command = [sys.executable, "-m", "warplens", "record", *options, "--", sys.executable, "-c", MEASURE]
    done = run(built, place, [*command, built.program, "run", str(launches)])
    assert done.stdout.splitlines()[0] == str(launches), done.stderr
    return int(done.stdout.splitlines()[-1]) << 10


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("options", [["-k", "nothing"], ["-c", "20", "--rounds", "5"], ["--signal", "USR1"]])
def test_memory_does_not_grow_with_the_number_of_launches(options: list[str], built: Built, tmp_path: Path) -> None:
    few, many = (resident_bytes(built, tmp_path, launches, [*options, "-f"]) for launches in (2_000, 200_000))
    assert many - few < 4 << 20


def test_nothing_is_written_but_beside_the_output(built: Built, tmp_path: Path) -> None:
    """As on a node of a cluster, whose home and packages may be read-only and whose TMPDIR is small."""
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir()
    package = Path(warplens.__file__).parent
    before = {path for path in package.rglob("*") if "__pycache__" not in path.parts}
    elsewhere = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    for program in ([built.program, "run", "4"], [sys.executable, "-c", "print(1)"]):
        command = [sys.executable, "-m", "warplens", "record", "-f", "-o", "of-%r.wlens", "--", *program]
        run(built, tmp_path / "work", command, SLURM_PROCID="3", **elsewhere)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["of-3.wlens"]
    assert list((tmp_path / "home").iterdir()) + list((tmp_path / "tmp").iterdir()) == []
    assert {path for path in package.rglob("*") if "__pycache__" not in path.parts} == before


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
