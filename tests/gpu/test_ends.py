"""Programs below `warplens record` that end badly, fork, fill the GPU's memory or use several contexts, on a real GPU.

Needs an NVIDIA GPU of compute capability 8.0 or newer and nvcc 13: pytest -m gpu.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warplens
from warplens.capture import driver

pytestmark = pytest.mark.gpu

LAUNCHES, EVENTS = 8, 8 * 2 * 2
"""Of each mode; events of a launch: blocks, warps, sites."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ends") / "ends"
    command = ["nvcc", "-std=c++17", "-arch=native", f"-I{warplens.get_include()}", "-o", str(out)]
    subprocess.run([*command, str(Path(__file__).parent / "ends.cu")], check=True, timeout=200)
    return out


def ends(command: list[str], place: Path) -> tuple[int, str, str]:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def recorded(program: Path, mode: str, place: Path) -> tuple[list[warplens.Trace], str]:
    """What a mode leaves, once it has been seen that code and output are those without `record`; and stderr."""
    alone = ends([str(program), mode, str(LAUNCHES)], place)
    options = ["--rounds", "0", "--capacity", "32MiB", "-o", "run.wlens"]
    command = [sys.executable, "-m", "warplens", "record", *options, "--", str(program), mode, str(LAUNCHES)]
    code, out, err = ends(command, place)
    shell_code = 128 - alone[0] if alone[0] < 0 else alone[0]
    assert out == alone[1], err
    if mode != "exhaust":  # where nothing can be recorded it says so by its code
        assert code in (shell_code, 4 if shell_code == 0 else shell_code), err
    return [warplens.open(path) for path in sorted(place.glob("*.wlens"))], err


@pytest.mark.parametrize(
    ("mode", "launches"),
    [
        ("run", [LAUNCHES]),
        ("crash", [LAUNCHES]),
        ("_exit", [LAUNCHES]),
        ("exec", [LAUNCHES, LAUNCHES]),
        ("late-fork", [2 * LAUNCHES]),
        ("contexts", [2 * LAUNCHES]),
    ],
)
def test_what_was_complete_is_kept_and_the_program_ends_as_ever(
    mode: str, launches: list[int], program: Path, tmp_path: Path
) -> None:
    traces, _ = recorded(program, mode, tmp_path)
    assert [trace.launches.height for trace in traces] == launches
    assert [trace.spans.height for trace in traces] == [EVENTS * number for number in launches]


def test_a_program_that_forks_before_its_first_launch_is_recorded_and_so_is_the_child_or_told(
    program: Path, tmp_path: Path
) -> None:
    traces, _ = recorded(program, "fork", tmp_path)
    assert all(trace.launches.height == LAUNCHES for trace in traces)
    assert len(traces) in (1, 2)


def test_two_gpus_in_one_process_are_recorded_in_one_file(program: Path, tmp_path: Path) -> None:
    driver.ensure_context()
    if driver.call("cuDeviceGetCount") < 2:
        pytest.skip("one GPU: run it where there are two")
    (trace,), _ = recorded(program, "devices", tmp_path)
    assert trace.spans.height == EVENTS * 2 * LAUNCHES


def test_a_program_that_fills_the_gpus_memory_runs_as_ever(program: Path, tmp_path: Path) -> None:
    traces, err = recorded(program, "exhaust", tmp_path)
    assert traces == []
    assert "is not recorded further: the device has no memory left for records" in err


def test_signals_codes_are_a_shells(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--", str(program), "crash", "2"]
    assert ends(command, tmp_path)[0] == 128 + signal.SIGABRT
