"""Programs whose source knows nothing of warplens, built by `warplens nvcc` and recorded, on a real GPU.

Needs an NVIDIA GPU of compute capability 9.0 and nvcc: pytest -m gpu.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import warplens
from warplens.analyze.arrivals import Basis, find_arrivals

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).parents[2] / "examples" / "hopper_gemm" / "gemm.cu"
FLAGS = ["-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", str(SOURCE)]
BLOCKS, STEPS = 16 * 16, 4096 // 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemm")
    marked = [sys.executable, "-m", "warplens", "nvcc", "--warplens-level=all", *FLAGS, "-o", str(folder / "marked")]
    builds = [subprocess.Popen(command) for command in (["nvcc", *FLAGS, "-o", str(folder / "clean")], marked)]
    assert [build.wait(timeout=200) for build in builds] == [0, 0]
    return folder


def output(command: list[str], place: Path) -> str:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()[0]


def test_a_hopper_matmul_gives_the_same_bits_and_tells_what_its_warps_wait_for(folder: Path, tmp_path: Path) -> None:
    clean = output([str(folder / "clean")], tmp_path)
    assert clean.endswith(" 0 wrong")
    assert output([str(folder / "marked")], tmp_path) == clean
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "-k", "gemm", "--launch-count", "2"]
    assert output([*command, "--rounds", "0", "--", str(folder / "marked")], tmp_path) == clean
    trace = warplens.open(tmp_path / "run.wlens")
    assert trace.launches.height == 2
    assert not trace.problems["severity"].is_in(["loss", "error"]).any(), trace.problems
    assert trace.manifest["kernels"][0]["policy"] == "stream"
    named = dict(zip(trace.sites["resource"], trace.sites["site"], strict=True))
    spans = trace.spans.filter(trace.spans["launch"] == 0)
    sites = trace.sites
    waits = {row["resource"]: row["site"] for row in sites.iter_rows(named=True) if row["kind"] == "wait"}
    assert {"mbarrier full[4]", "mbarrier empty[4]", "wgmma", "barrier 0"} <= set(waits), named
    counts = {resource: (spans["site"] == site).sum() for resource, site in waits.items()}
    assert counts["mbarrier full[4]"] == BLOCKS * 8 * STEPS  # eight warps multiply
    assert counts["wgmma"] == BLOCKS * 8 * STEPS
    assert counts["mbarrier empty[4]"] == BLOCKS * STEPS  # one thread loads
    assert counts["barrier 0"] == BLOCKS * 12
    found = find_arrivals(trace.spans, trace.blocks, trace.launches, trace.sites)
    site, basis = trace.spans["site"].to_numpy()[found.wait], found.basis
    assert set(basis[site == waits["mbarrier full[4]"]]) == {
        Basis.HARDWARE
    }  # filled by TMA; an arrival tells the bytes
    freed = basis[
        site == waits["mbarrier empty[4]"]
    ]  # two warpgroups free a stage; its parity lets the first turn pass
    assert set(freed) == {Basis.OPEN, Basis.INFERRED}
    assert (freed == Basis.OPEN).sum() == 2 * BLOCKS * 4
