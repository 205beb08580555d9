"""The example with a mainloop of CUTLASS compiles, off and on, without spilling. No GPU; wants nvcc and CUTLASS.

CUTLASS's headers come with the wheel nvidia-cutlass: pip install nvidia-cutlass.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from warplens.capture.compile import get_include
from warplens.capture.modules import read_site_sets

pytestmark = pytest.mark.compile

EXAMPLE = Path(__file__).parents[2] / "examples" / "cutlass" / "matmul.cu"


def test_a_mainloop_of_cutlass_takes_marks_and_spills_nothing(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or spec.origin is None or shutil.which("nvcc") is None:
        pytest.skip("wants nvcc, and pip install nvidia-cutlass")
    cutlass = Path(spec.origin).parent / "source" / "include"
    cubin = tmp_path / "matmul.cubin"
    command = ["nvcc", "-std=c++17", "-arch=sm_90a", "-cubin", "-Xptxas", "-v", f"-I{cutlass}", f"-I{get_include()}"]
    done = subprocess.run([*command, "-o", str(cubin), str(EXAMPLE)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) >= 3  # with marks, without, the naive one; and those that calibrate
    assert set(spills) == {("0", "0")}
    (own,) = read_site_sets(cubin.read_bytes())
    assert [site["name"] for site in own["sites"]] == ["prologue", "wait_stage", "issue", "multiply", "epilogue"]
