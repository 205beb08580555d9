"""What `warplens record` chooses among many launches, on a real GPU: kernels, shapes, graphs, ranges, threads, windows.

Needs an NVIDIA GPU of compute capability 8.0 or newer and nvcc 13: pytest -m gpu. Those of NVTX need torch and g++,
that of CUTLASS its headers, two of them two GPUs.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import warplens
from tests.machine_code import tool
from tests.marked import HEAD
from warplens.capture import driver

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens"]
EVENTS_A_BLOCK = 2 * 2
"""Of choices.cu: warps, sites."""


def nvcc() -> str:
    """The one in PATH, or that of the wheel."""
    return shutil.which("nvcc") or str(tool("nvcc"))


def compiled(folder: Path, *options: str) -> Path:
    command = [nvcc(), "-std=c++17", "-arch=native", f"-I{warplens.get_include()}", *options]
    subprocess.run([*command, "-o", folder / "choices", Path(__file__).parent / "choices.cu"], check=True, timeout=200)
    return folder / "choices"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("choices"))


@pytest.fixture(scope="module")
def of_threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("per_thread"), "-default-stream", "per-thread")


def output(command: list[str], place: Path) -> tuple[str, str]:
    """stdout and stderr of a command that ends well."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


def recorded(command: list[str], place: Path, *options: str) -> tuple[warplens.Trace, str]:
    """The trace and what `record` says, once it has been seen that the program prints what it does without."""
    alone, _ = output(command, place)
    out, said = output([*RECORD, *options, "--", *command], place)
    assert out == alone
    trace = warplens.open(place / "run.wlens")
    worse = trace.problems.filter(trace.problems["severity"].is_in(["loss", "error"]))
    assert worse.select("kind", "text").rows() == []
    return trace, said


def is_whole(trace: warplens.Trace) -> None:
    """Each launch of choices.cu has all its spans."""
    blocks = sum(entry["grid"][0] for entry in trace.manifest["launches"])
    assert trace.spans.height == blocks * EVENTS_A_BLOCK


def test_kernels_and_shapes_take_turns_each_by_itself(program: Path, tmp_path: Path) -> None:
    trace, _ = recorded([str(program), "shapes", "20"], tmp_path, "--rounds", "4")
    is_whole(trace)
    kernels = trace.manifest["kernels"]
    assert Counter(kernel["name"] for kernel in kernels) == {"add_one<true>": 2, "triple<true>": 2}
    assert [len(kernel["clean_ns"] or []) > 0 for kernel in kernels] == [True] * 4, kernels
    assert [min(kernel["clean_ns"]) > 50_000 for kernel in kernels] == [True] * 4  # they linger for 200,000 cycles
    assert trace.launches.height == 4 * 20 - 4 * 4  # the others ran without marks, to compare


def test_each_kernel_and_shape_is_replayed(program: Path, tmp_path: Path) -> None:
    trace, said = recorded([str(program), "shapes", "3"], tmp_path, "--replay", "--rounds", "4", "--cold-l2")
    is_whole(trace)
    times = [(len(kernel["clean_ns"]), len(kernel["traced_ns"]) >= 4) for kernel in trace.manifest["kernels"]]
    assert times == [(4, True)] * 4
    assert trace.launches.height == 4 * 3
    assert "not recorded" not in said


@pytest.mark.parametrize(("options", "blocks", "others"), [((), 8, 1), (("--grids", "16"), 16, 0)])
def test_of_several_captured_shapes_one_is_recorded_as_chosen(
    options: tuple[str, ...], blocks: int, others: int, program: Path, tmp_path: Path
) -> None:
    window = ("--launch-skip", "5", "--launch-count", "3")
    trace, said = recorded([str(program), "graphs", "20"], tmp_path, *window, *options)
    is_whole(trace)
    assert trace.launches["replay"].to_list() == [5, 6, 7]
    assert trace.launches["grid_x"].to_list() == [blocks] * 3
    assert said.count("captured launches of another kernel or shape than the first") == others


def test_default_streams_of_threads_are_recorded_and_told_apart(of_threads: Path, tmp_path: Path) -> None:
    trace, said = recorded([str(of_threads), "threads", "20"], tmp_path, "--rounds", "0")
    is_accounted_for(trace, said)


def test_threads_on_one_default_stream_are_recorded(program: Path, tmp_path: Path) -> None:
    trace, said = recorded([str(program), "threads", "20"], tmp_path, "--rounds", "0")
    is_accounted_for(trace, said)


def is_accounted_for(trace: warplens.Trace, said: str) -> None:
    """Each of four threads made 20 launches: they are recorded, or were left out and counted."""
    is_whole(trace)
    assert trace.launches.height >= 1
    left_out = re.findall("^not recorded: ([0-9]+) launches ", said, re.MULTILINE)
    assert trace.launches.height + sum(map(int, left_out)) == 4 * 20, said
    assert trace.launches["grid_id"].n_unique() == trace.launches.height


def test_a_program_says_itself_from_when_to_when(program: Path, tmp_path: Path) -> None:
    trace, _ = recorded([str(program), "window", "10"], tmp_path, "--paused", "--rounds", "0")
    is_whole(trace)
    assert trace.launches.height == 10
    assert set(trace.spans["payload"].drop_nulls()) == set(range(11, 21))  # what the kernel found: one more a launch


def test_files_that_a_program_opens_in_place_of_closed_ones_are_its_own(program: Path, tmp_path: Path) -> None:
    trace, _ = recorded([str(program), "close", "6"], tmp_path, "--rounds", "0")
    is_whole(trace)
    assert trace.launches.height == 12
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("own.txt", "more.txt")] == ["mine"] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--policy", "stream"), "compiled for policy packed, and --policy asks for stream"),
        (("--keep", "newest"), "--keep newest is for warplens.Kernel alone"),
    ],
)
def test_a_policy_that_code_was_not_compiled_for_is_told(
    options: tuple[str, ...], says: str, program: Path, tmp_path: Path
) -> None:
    command = [*RECORD, *options, "--", str(program), "shapes", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (5, output([str(program), "shapes", "2"], tmp_path)[0])
    assert says in done.stderr


def on_two_gpus() -> None:
    driver.ensure_context()
    if driver.call("cuDeviceGetCount") < 2:
        pytest.skip("one GPU: run it where there are two")


def test_a_graph_on_each_of_two_gpus_is_recorded_and_timed_by_its_own_clocks(program: Path, tmp_path: Path) -> None:
    on_two_gpus()
    options = ("--launch-skip", "5", "--launch-count", "3")
    trace, _ = recorded([str(program), "devices", "20"], tmp_path, *options)
    is_whole(trace)
    assert Counter(entry["device"] for entry in trace.manifest["launches"]) == {0: 3, 1: 3}
    assert "clock_disagrees" not in trace.problems["kind"].to_list()


def test_a_launch_with_memory_of_another_gpu_is_recorded_and_never_replayed(program: Path, tmp_path: Path) -> None:
    on_two_gpus()
    trace, said = recorded([str(program), "peer", "6"], tmp_path, "--replay")
    assert trace.launches.height == 6
    assert "replays of add_other<true>: an argument points to memory of another GPU" in said


NVTX = f"""
import hashlib, sys
sys.path.insert(0, {str(EXAMPLES / "server")!r})
import server, torch
layer = server.extension().rmsnorm
x = torch.rand(264, 4096, generator=torch.Generator().manual_seed(0)).cuda()
weight = torch.ones(4096, device="cuda")
for step in range(10):
    with torch.cuda.nvtx.range(f"step {{step}}"):
        y = layer(x[: step + 1], weight, 1e-6)
    layer(x, weight, 1e-6)
print(hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest())
"""


def test_launches_of_an_extension_are_chosen_by_torchs_nvtx_ranges(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(NVTX, encoding="utf-8")
    options = ("--nvtx-include", "^step [3-5]$", "--rounds", "0")
    trace, _ = recorded([sys.executable, "program.py"], tmp_path, *options)
    assert trace.launches["grid_x"].to_list() == [4, 5, 6]


KERNEL = f"""
import numpy as np, torch, warplens
SOURCE = {HEAD!r} + '''
template <bool kTrace> __global__ void add(float* p, float v) {{
  warplens::Recorder<s, kTrace> r;
  r.phase(s::a);
  p[blockIdx.x * blockDim.x + threadIdx.x] += v;
}}'''
kernel = warplens.Kernel(SOURCE, "add<true>")
p = torch.zeros(3 * 64, device="cuda")
for step in range(10):
    with torch.cuda.nvtx.range(f"step {{step}}"):
        kernel.launch(2, 64, p, np.float32(step))
    kernel.launch(3, 64, p, np.float32(1))
print(p.sum().item())
"""


def test_launches_of_kernel_are_chosen_by_torchs_nvtx_ranges(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(KERNEL, encoding="utf-8")
    options = ("--nvtx-include", "^step [3-5]$", "--rounds", "0")
    trace, _ = recorded([sys.executable, "program.py"], tmp_path, *options)
    assert trace.launches["grid_x"].to_list() == [2, 2, 2]


SHAPES = KERNEL.replace('with torch.cuda.nvtx.range(f"step {step}"):', "if True:").replace(
    "import numpy", "import numpy"
)


@pytest.mark.parametrize("options", [("--rounds", "0"), ("--replay", "--rounds", "3", "--cold-l2")])
def test_shapes_of_kernel_share_one_memory_and_each_is_whole(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SHAPES, encoding="utf-8")
    trace, _ = recorded([sys.executable, "program.py"], tmp_path, *options)
    assert trace.launches["grid_x"].to_list() == [2, 3] * 10
    assert trace.spans.height == 10 * (2 + 3) * 2
    if "--replay" in options:
        times = [(len(kernel["clean_ns"]), len(kernel["traced_ns"]) >= 3) for kernel in trace.manifest["kernels"]]
        assert times == [(3, True)] * 2


def cutlass() -> Path:
    """The folder of CUTLASS's headers, of whichever package brings them."""
    for package, inside in (("cutlass_library", "source/include"), ("flashinfer", "data/cutlass/include")):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent / inside
            if (folder / "cute" / "tensor.hpp").is_file():
                return folder
    pytest.skip("no package here has CUTLASS's headers: pip install nvidia-cutlass")


def test_a_mainloop_of_cutlass_is_recorded_and_computes_the_same(tmp_path: Path) -> None:
    built = tmp_path / "matmul"
    command = [nvcc(), "-std=c++17", "-O3", "-arch=native", f"-I{cutlass()}", f"-I{warplens.get_include()}"]
    subprocess.run([*command, "-o", built, EXAMPLES / "cutlass" / "matmul.cu"], check=True, timeout=300)
    trace, _ = recorded([str(built)], tmp_path, "--launch-count", "3")
    assert output([str(built)], tmp_path)[0] == "right\n"
    assert trace.launches.height == 3
    (kernel,) = trace.manifest["kernels"]
    assert min(kernel[build]["resident_blocks"] for build in ("clean", "traced")) >= 1
    steps, blocks, warps = 512 // 32, 8 * 8, 4
    assert trace.spans.height == 3 * blocks * warps * (2 + 3 * steps)
