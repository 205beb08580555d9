"""Kernels of CuPy's RawKernel and RawModule: what unchanged programs compute, what is seen of them and left behind.

Needs an NVIDIA GPU and CuPy 14: pytest -m gpu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warplens
from warplens import layout
from warplens.capture.chosen import Built
from warplens.trace import Trace

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples" / "cupy"
BAD = {"gap", "no_end", "foreign_chunk", "unknown_record", "duplicate_chunk", "lost_events"}
REVERSE = r"""
__constant__ int added[1];
extern "C" __global__ void reverse%d(const int* x, int* y) {
  __shared__ int held[128];
  held[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 128 + threadIdx.x] = held[127 - threadIdx.x] + added[0];
}
"""
numbers = iter(range(1000))


@pytest.fixture(autouse=True, scope="module")
def _with_cupy() -> None:
    """Not when the module is collected: where these tests are not asked for, they are no skip either."""
    pytest.importorskip("cupy")


@pytest.fixture
def source() -> tuple[str, str]:
    """A source that no other test has, for CuPy keeps what it compiled; and its kernel's name."""
    number = next(numbers)
    return REVERSE % number, f"reverse{number}"


def run(program: Path, folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUPY_CACHE_DIR": str(folder)}
    command = [sys.executable, *before, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done


@cache
def alone(program: str, folder: Path) -> str:
    return run(EXAMPLES / program, folder).stdout.splitlines()[-1]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CuPy's, of these programs."""
    return tmp_path_factory.mktemp("kernel_cache")


def good(trace: Trace) -> Trace:
    assert not BAD & set(trace.problems["kind"]), trace.problems
    return trace


@pytest.mark.parametrize(
    ("program", "file", "kernels", "grids"),
    [
        ("softmax.py", "cupy/softmax.cu", ["softmax"], {"softmax": [[1024, 1, 1]] * 5}),
        (
            "tiles.py",
            "cupy/transpose.cu",
            ["transpose", "matmul<16>", "matmul<32>"],
            {"transpose": [[16, 16, 1]] * 2, "matmul<16>": [[32, 32, 1]] * 2, "matmul<32>": [[16, 16, 1]] * 2},
        ),
    ],
)
def test_a_program_computes_the_same_and_its_kernels_are_seen(
    program: str, file: str, kernels: list[str], grids: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    expected = alone(program, folder)
    kept = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = run(EXAMPLES / program, folder, "-m", "warplens", "record", "-o", str(tmp_path / "run.wlens"))
    assert done.stdout.splitlines()[-1] == expected
    now = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: now.get(name) for name in kept} == kept
    assert not [name for name, content in now.items() if layout.DESCRIPTOR_SYMBOL.encode() in content]

    trace = good(warplens.open(tmp_path / "run.wlens"))
    names = [own["name"] for own in trace.manifest["kernels"]]
    assert names == kernels, done.stderr
    seen: dict[str, list[Any]] = {name: [] for name in names}
    for launch in trace.manifest["launches"]:
        seen[names[launch["kernel"]]].append(launch["grid"])
    assert seen == grids
    assert len({launch["grid_id"] for launch in trace.manifest["launches"]}) == len(trace.manifest["launches"])
    text = (EXAMPLES / program).read_text(encoding="utf-8")
    assert trace.sources[file] in text
    lines = trace.sources[file].splitlines()
    for site_set in trace.manifest["site_sets"]:
        waits = [site for site in site_set["sites"] if site["kind"] == "wait"]
        assert waits
        assert {site["file"] for site in site_set["sites"]} == {file}
        for site in waits:
            assert "__syncthreads" in lines[site["line"] - 1], site
            assert re.fullmatch(r"[\w-]+\.cu:\d+ wait barrier 0( \(\d+\))?", site["name"]), site
    reached = set(trace.spans["site"].unique().to_list())
    assert len(reached) > len(names)
    for own in trace.manifest["kernels"]:
        assert own["clean"] is not None, (own["traced"], done.stderr)  # the driver's blocks are not as computed
        fewer = own["clean"]["resident_blocks"] - own["traced"]["resident_blocks"]
        assert fewer <= 0 or f"{own['name']}: its marks leave" in done.stderr, own
        assert own["audit"] is not None


def test_some_launches_of_some_kernels_are_recorded(folder: Path, tmp_path: Path) -> None:
    own = ("-m", "warplens", "record", "-o", str(tmp_path / "run.wlens"), "-k", "matmul<3", "--launch-count", "1")
    done = run(EXAMPLES / "tiles.py", folder, *own)
    assert done.stdout.splitlines()[-1] == alone("tiles.py", folder)
    trace = good(warplens.open(tmp_path / "run.wlens"))
    assert [own["name"] for own in trace.manifest["kernels"]] == ["matmul<32>"]
    assert trace.launches.height == 1


def launch(kernel: Any, blocks: int = 8, **named: Any) -> np.ndarray[Any, Any]:
    import cupy

    x = cupy.asarray(np.arange(128 * blocks, dtype=np.int32))
    y = cupy.empty_like(x)
    kernel((blocks,), (128,), (x, y), **named)
    out: np.ndarray[Any, Any] = cupy.asnumpy(y)
    return out


def reversed_by_hand(blocks: int = 8, added: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(128 * blocks, dtype=np.int32).reshape(blocks, 128)[:, ::-1].reshape(-1) + added


def test_a_module_and_its_variables_stay_one_through_a_recording(source: tuple[str, str], tmp_path: Path) -> None:
    import cupy

    code, name = source
    module = cupy.RawModule(code=code)

    def add(value: int) -> None:
        cupy.ndarray((1,), cupy.int32, module.get_global("added")).set(np.array([value], np.int32))

    with warplens.record(tmp_path / "run.wlens") as rec:
        kernel = module.get_function(name)
        add(3)
        assert (launch(kernel) == reversed_by_hand(added=3)).all()
        assert (launch(kernel, 16) == reversed_by_hand(16, 3)).all()
    assert rec.notes == []
    assert rec.ran == {name: (2, 2)}
    assert rec.trace is not None
    assert [own["grid"][0] for own in good(rec.trace).manifest["launches"]] == [8, 16]
    add(5)
    assert (launch(kernel) == reversed_by_hand(added=5)).all()
    assert (launch(module.get_function(name)) == reversed_by_hand(added=5)).all()
    with warplens.record(tmp_path / "again.wlens") as again:
        assert (launch(kernel) == reversed_by_hand(added=5)).all()
    assert again.trace is not None
    assert good(again.trace).launches.height == 1
    assert kernel.num_regs > 0


def test_a_kernel_that_was_loaded_before_is_named_and_one_behind_is_clean(
    source: tuple[str, str], tmp_path: Path
) -> None:
    import cupy

    code, name = source
    early = cupy.RawKernel(code, name)
    expected = launch(early)
    with warplens.record(tmp_path / "run.wlens") as rec:
        assert (launch(early) == expected).all()
    assert rec.trace is None
    assert [note for note in rec.notes if name in note] == [
        note for note in rec.notes if note.startswith("loaded before the recording began") and name in note
    ]
    assert any(name in note for note in rec.notes)
    assert type(cupy.RawKernel(code + " ", name).kernel) is cupy.cuda.function.Function


def test_cooperative_launches_and_files_are_told_and_run(source: tuple[str, str], tmp_path: Path) -> None:
    import cupy

    code, name = source
    with warplens.record(tmp_path / "run.wlens") as rec:
        kernel = cupy.RawKernel(code, name, enable_cooperative_groups=True)
        assert (launch(kernel) == reversed_by_hand()).all()
    assert rec.trace is None
    assert any(f"{name} is not marked: it is launched cooperatively" in note for note in rec.notes), rec.notes


def test_a_file_of_ptx_is_told_and_runs(source: tuple[str, str], tmp_path: Path) -> None:
    import cupy

    code, name = source
    program = cupy.cuda.compiler._NVRTCProgram(code, "kern.cu", method="cubin")
    arch = cupy.cuda.Device().compute_capability
    (tmp_path / "kernels.cubin").write_bytes(program.compile((f"-arch=sm_{arch}",))[0])
    with warplens.record(tmp_path / "run.wlens") as rec:
        kernel = cupy.RawModule(path=str(tmp_path / "kernels.cubin")).get_function(name)
        assert (launch(kernel) == reversed_by_hand()).all()
    assert rec.trace is None
    assert any("CuPy loads kernels.cubin as it stands" in note for note in rec.notes), rec.notes


def test_launches_of_streams_and_replays_of_graphs_are_told_apart(source: tuple[str, str], tmp_path: Path) -> None:
    import cupy

    code, name = source
    kernel = cupy.RawKernel(code, name)
    x = cupy.asarray(np.arange(128 * 4, dtype=np.int32))
    y = cupy.empty_like(x)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    with warplens.record(tmp_path / "run.wlens") as rec:
        for blocks, stream in enumerate(streams, 1):
            with stream:
                kernel((blocks,), (128,), (x, y))
            stream.synchronize()
        with streams[0]:
            streams[0].begin_capture()
            kernel((4,), (128,), (x, y))
            graph = streams[0].end_capture()
            for _ in range(3):
                graph.launch(streams[0])
        streams[0].synchronize()
    assert (cupy.asnumpy(y) == reversed_by_hand(4)).all()
    assert rec.trace is not None
    found = [(own["grid"][0], own["replay"]) for own in good(rec.trace).manifest["launches"]]
    assert found == [(1, 0), (2, 0), (4, 0), (4, 1), (4, 2)]
    assert [own["stream"] for own in rec.trace.manifest["launches"][:2]] == [stream.ptr for stream in streams]


@pytest.mark.parametrize("way", ["_by_nvjitlink", "_by_ptxas", "_by_driver"])
def test_a_module_assembled_before_is_told_of_as_at_first(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvJitLink and the driver have a cache, which keeps no log."""
    import cupy

    from warplens.capture import assemble as assembling

    cupy.zeros(1)  # the driver is asked within a context

    def missing(*_: Any) -> Any:
        raise RuntimeError("not asked")

    for name in {"_by_nvjitlink", "_by_ptxas", "_by_driver"} - {way}:
        monkeypatch.setattr(assembling, name, missing)
    text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry assembled_twice() { ret; }\n"
    for _ in range(2):
        cubin, log = assembling.assemble(text)
        assert cubin.startswith(b"\x7fELF")
        assert set(Built.of(log).registers) == {"assembled_twice"}
