"""The example with a mainloop of CUTLASS compiles, off and on, without spilling. No GPU.

Needs nvcc and CUTLASS's headers, of the wheels nvidia-cuda-nvcc and nvidia-cutlass: pip install 'warplens[dev]'.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.machine_code import tool
from warplens.capture.compile import get_include
from warplens.capture.modules import read_site_sets

pytestmark = pytest.mark.compile

EXAMPLE = Path(__file__).parents[2] / "examples" / "cutlass" / "matmul.cu"


def test_a_mainloop_of_cutlass_takes_marks_and_spills_nothing(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None, "pip install 'warplens[dev]'"
    assert spec.origin is not None
    cutlass = Path(spec.origin).parent / "source" / "include"
    cubin = tmp_path / "matmul.cubin"
    command = [
        tool("nvcc"),
        "-std=c++17",
        "-arch=sm_90a",
        "-cubin",
        "-Xptxas",
        "-v",
        f"-I{cutlass}",
        f"-I{get_include()}",
    ]
    done = subprocess.run([*command, "-o", str(cubin), str(EXAMPLE)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) >= 3  # with marks, without, the naive one; and those that calibrate
    assert set(spills) == {("0", "0")}
    (own,) = read_site_sets(cubin.read_bytes())
    assert [site["name"] for site in own["sites"]] == ["prologue", "wait_stage", "issue", "multiply", "epilogue"]
