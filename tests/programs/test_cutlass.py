"""The example with a mainloop of CUTLASS compiles, off and on, without spilling; CUTLASS's own kernels, of the corpus,
are marked at their waits. No GPU.

Needs nvcc and CUTLASS's headers, of the wheels nvidia-cuda-nvcc and nvidia-cutlass: pip install 'warplens[dev]'.
"""

from __future__ import annotations

import gzip
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from tests.compile.test_instrument import FOLDER
from tests.machine_code import tool
from warplens.capture.compile import get_include
from warplens.capture.modules import read_site_sets
from warplens.instrument import instrument

pytestmark = pytest.mark.programs

EXAMPLE = Path(__file__).parents[2] / "examples" / "cutlass" / "matmul.cu"


def headers() -> Path:
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None, "pip install 'warplens[dev]'"
    assert spec.origin is not None
    return Path(spec.origin).parent / "source" / "include"


WAITED_FOR = {
    "sm_90a": {"cluster barrier", "mbarrier smem", "wgmma", "barrier ", "bulk copies"},
    "sm_100a": {"mbarrier smem", "tensor memory loads", "barrier ", "bulk copies"},
}


@pytest.mark.parametrize("arch", WAITED_FOR)
def test_a_warp_specialised_matmul_of_cutlass_is_marked_at_each_wait_by_lines_of_its_kernel(arch: str) -> None:
    """Not by the line of the wrapper, which calls all of it."""
    (kernel,) = instrument(gzip.decompress((FOLDER / f"cutlass_{arch}.ptx.gz").read_bytes()).decode()).kernels
    assert kernel.site_set is not None
    assert kernel.left_out == []
    waits = [site for site in kernel.site_set["sites"] if site["kind"] == "wait"]
    assert {site["resource"].rstrip("0123456789+[]") for site in waits} == WAITED_FOR[arch]
    (name,) = {Path(site["file"]).name for site in waits}
    assert re.fullmatch(f"{arch.rstrip('a').replace('_', '')}_gemm_tma_warpspecialized(_cooperative)?.hpp", name)
    assert len({site["line"] for site in waits}) >= 5


def test_a_mainloop_of_cutlass_takes_marks_and_spills_nothing(tmp_path: Path) -> None:
    cutlass = headers()
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
