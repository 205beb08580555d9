"""Programs as users run them, each recorded by one command in front of its own: torchrun, a server, torch, CMake.

Needs an NVIDIA GPU of compute capability 8.0 or newer, torch, nvcc 13 and CMake: pytest -m gpu. Those of torchrun need
two GPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warplens
from warplens.capture import driver

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAIN = EXAMPLES / "torch_extension" / "train.py"
SERVER = EXAMPLES / "server" / "server.py"
RECORD = [sys.executable, "-m", "warplens", "record"]
WARPS, SITES = 8, 3
"""Of a row of rmsnorm."""


def run(command: list[str], place: Path, timeout_s: float = 150) -> list[str]:
    """The lines that a program prints, sorted: those of ranks come in any order."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]
    return sorted(line for line in done.stdout.splitlines() if line.startswith(("rank", "worker")))


def torchrun() -> list[str]:
    driver.ensure_context()
    if driver.call("cuDeviceGetCount") < 2:
        pytest.skip("one GPU: run it where there are two")
    found = shutil.which("torchrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found is not None
    return [found, "--standalone", "--nproc-per-node", "2"]


def is_whole(trace: warplens.Trace, launches: int, rows: int) -> None:
    assert trace.manifest["complete"]
    assert trace.launches.height == launches
    assert trace.spans.height == launches * rows * WARPS * SITES
    worse = trace.problems.filter(trace.problems["severity"] != "note")
    assert worse.select("kind", "text").rows() == []


def test_a_torch_extension_is_recorded_and_computes_the_same(tmp_path: Path) -> None:
    alone = run([sys.executable, str(TRAIN)], tmp_path)
    assert run([*RECORD, "-o", "run.wlens", "--launch-count", "5", str(TRAIN)], tmp_path) == alone
    trace = warplens.open(tmp_path / "run.wlens")
    is_whole(trace, 5, 528)
    assert trace.manifest["device"]["driver"]
    assert trace.manifest["clock_state"]["before"]["sm_hz"] > 1e8


SETUP = """
import warplens
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
own = CUDAExtension("norm", ["norm.cu", "binding.cpp"], include_dirs=[warplens.get_include()],
                    extra_compile_args={"cxx": ["-std=c++17"], "nvcc": ["-std=c++17"]})
setup(name="norm", ext_modules=[own], cmdclass={"build_ext": BuildExtension})
"""
BINDING = """
#include <torch/extension.h>
torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor weight, double eps);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("rmsnorm", &rmsnorm); }
"""
USES = """
import hashlib, torch, norm
x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0)).cuda()
for _ in range(20):
    y = norm.rmsnorm(x, torch.ones(4096, device="cuda"), 1e-6)
print("rank 0:", hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest())
"""


def test_an_extension_built_by_setuptools_is_recorded_and_computes_the_same(tmp_path: Path) -> None:
    shutil.copy(TRAIN.parent / "norm.cu", tmp_path)
    for name, text in (("setup.py", SETUP), ("binding.cpp", BINDING), ("uses.py", USES)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    alone = run([sys.executable, "uses.py"], tmp_path)
    assert run([*RECORD, "-o", "run.wlens", "--launch-count", "5", "uses.py"], tmp_path) == alone
    is_whole(warplens.open(tmp_path / "run.wlens"), 5, 64)


@pytest.mark.parametrize("inside", [False, True], ids=["record -- torchrun", "torchrun -m warplens record"])
def test_a_job_on_two_gpus_is_recorded_a_file_a_rank(inside: bool, tmp_path: Path) -> None:
    launcher = torchrun()
    alone = run([*launcher, str(TRAIN)], tmp_path)
    assert len(alone) == 2
    options = ["-o", "run-%r.wlens", "--launch-count", "5"]
    if inside:
        command = [*launcher, "-m", "warplens", "record", *options, str(TRAIN)]
    else:
        command = [*RECORD, *options, "--", *launcher, str(TRAIN)]
    assert run(command, tmp_path) == alone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0.wlens", "run-1.wlens"]
    traces = [warplens.open(tmp_path / f"run-{rank}.wlens") for rank in range(2)]
    for rank, trace in enumerate(traces):
        is_whole(trace, 5, 528)
        assert trace.launches["rank"].unique().to_list() == [rank]
    assert [trace.manifest["device"]["ordinal"] for trace in traces] == [0, 1]
    merged = warplens.merge(traces)
    assert merged.spans.height == 2 * 5 * 528 * WARPS * SITES


def test_a_server_is_recorded_in_each_worker_in_a_window_of_its_replays(tmp_path: Path) -> None:
    alone = run([sys.executable, str(SERVER)], tmp_path)
    assert len(alone) == 2
    options = ["-o", "worker-%p.wlens", "--launch-skip", "50", "--launch-count", "3"]
    assert run([*RECORD, *options, str(SERVER)], tmp_path) == alone
    traces = [warplens.open(path) for path in tmp_path.glob("worker-*.wlens")]
    assert len(traces) == 2
    for trace in traces:
        is_whole(trace, 3, 264)
        assert trace.launches["replay"].to_list() == [50, 51, 52]


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built by CMake with the package that the wheel brings."""
    cmake = shutil.which("cmake")
    assert cmake is not None
    place = tmp_path_factory.mktemp("cmake")
    found = subprocess.run(
        [sys.executable, "-m", "warplens", "include", "--cmake"], capture_output=True, text=True, check=True
    )
    source = ["-S", str(EXAMPLES / "cpp_host"), "-B", str(place), f"-Dwarplens_DIR={found.stdout.strip()}"]
    subprocess.run([cmake, *source], check=True, capture_output=True, timeout=100)
    subprocess.run([cmake, "--build", str(place), "-j2"], check=True, capture_output=True, timeout=200)
    return place / "softmax"


def first_line(command: list[str], place: Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()[0]


def test_a_cmake_program_is_recorded_and_computes_the_same(softmax: Path, tmp_path: Path) -> None:
    alone = first_line([str(softmax)], tmp_path)
    command = [*RECORD, "-o", "run.wlens", "--launch-count", "5", "--grids", "528", "--", str(softmax)]
    assert first_line(command, tmp_path) == alone
    trace = warplens.open(tmp_path / "run.wlens")
    assert trace.spans.height == 5 * 528 * 8 * 5
    assert any(path.endswith("softmax.cu") for path in trace.sources)


def test_replay_times_clean_and_traced_and_changes_no_result(softmax: Path, tmp_path: Path) -> None:
    alone = first_line([str(softmax)], tmp_path)
    options = ["-o", "run.wlens", "--launch-count", "2", "--replay", "--rounds", "8", "--cold-l2"]
    assert first_line([*RECORD, *options, "--", str(softmax)], tmp_path) == alone
    trace = warplens.open(tmp_path / "run.wlens")
    (kernel,) = trace.manifest["kernels"]
    assert len(kernel["clean_ns"]) == 8
    assert len(kernel["traced_ns"]) >= 8
    assert trace.spans.height == 2 * 528 * 8 * 5
    assert all(entry["cold_l2"] for entry in trace.manifest["launches"])


def test_a_signal_switches_a_captured_graph_on(softmax: Path, tmp_path: Path) -> None:
    alone = first_line([str(softmax), "--graph", "600000"], tmp_path)
    options = ["-o", "run.wlens", "--signal", "USR1", "--launch-count", "3", "--"]
    with subprocess.Popen(
        [*RECORD, *options, str(softmax), "--graph", "600000"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as running:
        time.sleep(2.0)  # the program takes 5 s or so, and the first second is CUDA's
        running.send_signal(10)
        out, _ = running.communicate(timeout=60)
    assert out.splitlines()[0] == alone
    replays = warplens.open(tmp_path / "run.wlens").launches["replay"].to_list()
    assert replays == list(range(replays[0], replays[0] + 3))
    assert replays[0] > 0
