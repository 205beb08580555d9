"""Programs of the examples, built by nvcc and recorded from their own command, on a real GPU.

Needs an NVIDIA GPU of compute capability 8.0 or newer and nvcc 13: pytest -m gpu.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import warplens

pytestmark = pytest.mark.gpu

WARPS, SITES = 528 * 8, 5


@pytest.fixture(scope="module", params=[[], ["-rdc=true"], ["-legacy-launch-seq"]], ids=["plain", "rdc", "legacy"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("softmax")
    source = Path(__file__).parents[2] / "examples" / "cpp_host"
    include = f"-I{warplens.get_include()}"
    command = ["nvcc", "-std=c++17", "-arch=native", include, *request.param, "-o", str(folder / "softmax")]
    subprocess.run([*command, str(source / "main.cu"), str(source / "softmax.cu")], check=True, timeout=200)
    return folder / "softmax"


def record(program: Path, place: Path, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """What the program prints below record; `place` gets run.wlens."""
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", *options, "--", str(program), *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()[0]


def test_a_program_gives_the_same_bits_with_and_without_record(program: Path, tmp_path: Path) -> None:
    alone = subprocess.run([program, "200"], capture_output=True, text=True, timeout=60, check=True).stdout
    recorded = record(program, tmp_path, "200", options=("--launch-count", "5", "--rounds", "4"))
    assert recorded == alone.splitlines()[0]
    trace = warplens.open(tmp_path / "run.wlens")
    assert trace.launches.height == 5
    assert trace.spans.height == 5 * WARPS * SITES
    assert not trace.problems["severity"].is_in(["loss", "error"]).any()
    (kernel,) = trace.manifest["kernels"]
    assert kernel["clean"]["resident_blocks"] == kernel["traced"]["resident_blocks"]


def test_replays_of_a_graph_are_recorded_as_chosen(program: Path, tmp_path: Path) -> None:
    alone = subprocess.run([program, "--graph", "100"], capture_output=True, text=True, timeout=60, check=True).stdout
    options = ("--launch-skip", "50", "--launch-count", "3")
    assert record(program, tmp_path, "--graph", "100", options=options) == alone.splitlines()[0]
    trace = warplens.open(tmp_path / "run.wlens")
    assert trace.launches["replay"].to_list() == [50, 51, 52]
    assert trace.spans.height == 3 * WARPS * SITES
