"""`warplens.record` and `Kernel.launch`: launches of a program of the user's, on a real GPU.

Needs an NVIDIA GPU of compute capability 8.0 or newer and NVRTC: pytest -m gpu.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warplens
from tests.marked import HEAD
from warplens.capture import driver
from warplens.errors import UsageError

pytestmark = pytest.mark.gpu

SOURCE = (
    HEAD
    + """
template <bool kTrace> __global__ void add(float* p, float v) {
  warplens::Recorder<s, kTrace> r;
  r.phase(s::a);
  const float old = p[blockIdx.x * blockDim.x + threadIdx.x];
  r.phase(s::b);
  p[blockIdx.x * blockDim.x + threadIdx.x] = old + v;
}
"""
)
PROGRAM = f"""
import sys, numpy as np, warplens
kernel = warplens.Kernel({SOURCE!r}, "add<true>")
p = np.zeros(256, np.float32)
for i in range(12):
    kernel.launch(4, 64, p, np.float32(i))
print(int(p.sum()))
sys.stdout.flush()
if "crash" in sys.argv:
    import os
    os._exit(9)
"""


def launched(times: int, **options: Any) -> tuple[Any, Any]:
    kernel = warplens.Kernel(SOURCE, "add<true>")
    p = np.zeros(256, np.float32)
    with warplens.record(options.pop("path"), **options) as rec:
        for i in range(times):
            kernel.launch(4, 64, p, np.float32(i))
    return rec, p


def test_launches_of_a_program_are_chosen_and_none_is_added(tmp_path: Path) -> None:
    path = tmp_path / "run.wlens"
    rec, p = launched(12, path=path, kernels="^add<", launch_skip=2, launch_count=3, rounds=0)
    assert set(p) == {sum(range(12))}
    assert rec.ran == {"add<true>": (12, 3)}
    assert rec.trace.launches.height == 3
    assert rec.trace.spans.height == 3 * 4 * 2 * 2
    assert warplens.open(path).manifest["complete"]


@pytest.mark.parametrize("rounds", [0, 2])
def test_launches_are_recorded_while_another_stream_is_captured_and_leave_the_capture_alone(
    rounds: int, tmp_path: Path
) -> None:
    kernel = warplens.Kernel(SOURCE, "add<true>")
    native = driver.bindings()
    flags, modes = native.CUstream_flags, native.CUstreamCaptureMode
    captured, own = (driver.call("cuStreamCreate", flags.CU_STREAM_NON_BLOCKING) for _ in range(2))
    memory = driver.DeviceMemory(4 * 256)
    given = np.uint64(memory.address), np.float32(1)
    with warplens.record(tmp_path / "run.wlens", rounds=rounds) as rec:
        kernel.launch(4, 64, *given, stream=int(own))  # makes all ready
        driver.call("cuStreamBeginCapture", captured, modes.CU_STREAM_CAPTURE_MODE_GLOBAL)
        for _ in range(8):
            kernel.launch(4, 64, *given, stream=int(own))
        driver.call("cuGraphDestroy", driver.call("cuStreamEndCapture", captured))
    assert rec.trace is not None
    assert rec.ran["add<true>"] == (9, 9 - rounds)
    assert rec.trace.launches.height == 9 - rounds


def test_a_block_that_is_paused_records_from_start_to_stop(tmp_path: Path) -> None:
    kernel = warplens.Kernel(SOURCE, "add<true>")
    p = np.zeros(256, np.float32)
    with warplens.record(tmp_path / "run.wlens", paused=True, rounds=0) as rec:
        for blocks in range(1, 5):
            (rec.start if blocks == 2 else rec.stop)()
            kernel.launch(blocks, 64, p, np.float32(1))
    assert p.sum() == 64 * (1 + 2 + 3 + 4)
    assert rec.trace is not None
    assert rec.trace.launches["grid_x"].to_list() == [2]


def test_a_recording_of_nothing_writes_no_file(tmp_path: Path) -> None:
    rec, p = launched(3, path=tmp_path / "run.wlens", kernels="other")
    assert (rec.trace, list(tmp_path.iterdir())) == (None, [])
    assert set(p) == {3}


def test_recordings_do_not_nest(tmp_path: Path) -> None:
    with (
        warplens.record(tmp_path / "a.wlens"),
        pytest.raises(UsageError, match="under way"),
        warplens.record("b.wlens"),
    ):
        pass


@pytest.mark.parametrize(("argument", "code"), [("whole", 0), ("crash", 9)])
def test_a_python_program_is_recorded_from_its_own_command(argument: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--launch-count", "4", "--rounds", "0"]
    command += ["program.py", argument]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[0]) == (code, str(256 * 66)), done.stderr
    assert (tmp_path / "run.wlens").exists(), done.stderr
    trace = warplens.open(tmp_path / "run.wlens")
    assert trace.launches.height in ((4,) if argument == "whole" else (3, 4))  # the last one may not have been read
    assert trace.manifest["complete"] == (argument == "whole")


def test_replay_leaves_memory_as_it_would_be_without(tmp_path: Path) -> None:
    rec, p = launched(6, path=tmp_path / "run.wlens", replay=True, rounds=4, launch_count=2, cold_l2=True)
    assert set(p) == {sum(range(6))}
    (kernel,) = rec.trace.manifest["kernels"]
    assert (len(kernel["clean_ns"]), len(kernel["traced_ns"]) >= 4) == (4, True)
    assert rec.trace.launches.height == 2
    assert dict(rec.trace.sources) == {"kernel.cu": SOURCE}


@pytest.mark.parametrize("options", [{"policy": "stream"}, {"policy": "live"}, {"keep": "newest"}, {"grids": (4,)}])
def test_policy_keep_and_grid_are_those_that_were_asked_for(options: dict[str, Any], tmp_path: Path) -> None:
    rec, p = launched(3, path=tmp_path / "run.wlens", rounds=0, **options)
    assert set(p) == {3}
    assert rec.trace.spans.height == 3 * 4 * 2 * 2
    assert rec.trace.manifest["keep"] == options.get("keep", "oldest")
    assert rec.trace.manifest["kernels"][0]["policy"] == options.get("policy", "packed")
