"""Kernels of Numba's @cuda.jit: what unchanged programs compute, what is seen of them and left behind.

Needs an NVIDIA GPU and numba-cuda 0.30: pytest -m gpu.
"""

from __future__ import annotations

import importlib
import importlib.util
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
from warplens.cli.exits import MISSING
from warplens.trace import Trace

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples" / "numba"
BAD = {"gap", "no_end", "foreign_chunk", "unknown_record", "duplicate_chunk", "lost_events"}
KERNELS = Path(__file__).with_name("numba_kernels.py")


@pytest.fixture(autouse=True, scope="module")
def _with_numba() -> None:
    """Not when the module is collected: where these tests are not asked for, they are no skip either."""
    pytest.importorskip("numba_cuda")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Kernels that no other test has launched, without Numba's warnings of small grids."""
    monkeypatch.setattr(importlib.import_module("numba.cuda.dispatcher").config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)
    spec = importlib.util.spec_from_file_location("numba_kernels", KERNELS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "numba_kernels", module)
    spec.loader.exec_module(module)
    return module


def run(program: Path, *before: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *before, str(program)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment, check=False)
    assert done.returncode == code, done.stderr
    return done


@cache
def alone(program: str) -> str:
    return run(EXAMPLES / program).stdout.splitlines()[-1]


def good(trace: Trace | None, notes: Any = "") -> Trace:
    assert trace is not None, notes
    assert not BAD & set(trace.problems["kind"]), trace.problems
    return trace


def lines_of(file: Path, what: str) -> set[int]:
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if what in line}


@pytest.mark.parametrize(
    ("program", "grids"),
    [
        ("reduction.py", {"sums": [[1024, 1, 1]] * 5, "scale": [[1024, 1, 1]]}),
        ("transpose.py", {"transpose": [[32, 32, 1]] * 4}),
    ],
)
def test_a_program_computes_the_same_and_its_kernels_are_seen(
    program: str, grids: dict[str, Any], tmp_path: Path
) -> None:
    expected = alone(program)
    done = run(EXAMPLES / program, "-m", "warplens", "record", "-o", str(tmp_path / "run.wlens"))
    assert done.stdout.splitlines()[-1] == expected, done.stderr
    assert "not recorded" not in done.stderr, done.stderr
    assert "no lines of the source" not in done.stderr, done.stderr

    trace = good(warplens.open(tmp_path / "run.wlens"), done.stderr)
    names = [own["name"] for own in trace.manifest["kernels"]]
    assert names == list(grids), done.stderr
    seen: dict[str, list[Any]] = {name: [] for name in names}
    for launch in trace.manifest["launches"]:
        seen[names[launch["kernel"]]].append(launch["grid"])
    assert seen == grids
    assert len({launch["grid_id"] for launch in trace.manifest["launches"]}) == len(trace.manifest["launches"])
    barriers = lines_of(EXAMPLES / program, "syncthreads")
    assert trace.sources[str(EXAMPLES / program)] == (EXAMPLES / program).read_text(encoding="utf-8")
    for site_set in trace.manifest["site_sets"]:
        waits = [site for site in site_set["sites"] if site["kind"] == "wait"]
        assert waits, site_set
        assert {site["line"] for site in waits} <= barriers, (waits, barriers)
        for site in waits:
            assert re.fullmatch(rf"{program}:\d+ wait barrier 0( \(\d+\))?", site["name"]), site
    reached = set(trace.spans["site"].unique().to_list())
    assert len(reached) > len(names)
    for own in trace.manifest["kernels"]:
        assert own["clean"] is not None, own
        fewer = own["clean"]["resident_blocks"] - own["traced"]["resident_blocks"]
        assert fewer <= 0 or f"{own['name']}: its marks leave" in done.stderr, own
        assert own["audit"] is not None
    assert len({launch["stream"] for launch in trace.manifest["launches"]}) == (2 if program == "transpose.py" else 1)
    assert trace.manifest["numba_cuda"]


def test_some_launches_of_some_kernels_are_recorded(tmp_path: Path) -> None:
    own = ("-m", "warplens", "record", "-o", str(tmp_path / "run.wlens"), "-k", "su.s", "--launch-count", "2")
    done = run(EXAMPLES / "reduction.py", *own)
    assert done.stdout.splitlines()[-1] == alone("reduction.py"), done.stderr
    trace = good(warplens.open(tmp_path / "run.wlens"), done.stderr)
    assert [own["name"] for own in trace.manifest["kernels"]] == ["sums"]
    assert trace.launches.height == 2


def test_the_simulator_is_told_and_the_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = "import numpy\nfrom numba import cuda\n@cuda.jit\ndef one(x):\n    x[cuda.grid(1)] = 1\n"
    program.write_text(text + "x = numpy.zeros(4)\none[1, 4](x)\nprint(x.sum())\n", encoding="utf-8")
    own = ("-m", "warplens", "record", "-o", str(tmp_path / "run.wlens"))
    done = run(program, *own, code=MISSING, NUMBA_ENABLE_CUDASIM="1")
    assert done.stdout == "4.0\n"
    assert done.stderr.count("not recorded: Numba simulates its kernels on the CPU") == 1, done.stderr


def launch(kernel: Any, blocks: int = 8, stream: Any = 0) -> np.ndarray[Any, Any]:
    from numba import cuda

    x = cuda.to_device(np.arange(128 * blocks, dtype=np.int32), stream)
    y = cuda.device_array_like(x)
    kernel[blocks, 128, stream](x, y)
    out: np.ndarray[Any, Any] = y.copy_to_host(stream=stream)
    cuda.synchronize()
    return out


def by_hand(blocks: int = 8, times: int = 2) -> np.ndarray[Any, Any]:
    return np.arange(128 * blocks, dtype=np.int32).reshape(blocks, 128)[:, ::-1].reshape(-1) * times


def clean_function(kernel: Any) -> tuple[Any, int]:
    """What Numba keeps of a kernel that was launched with one signature: its machine code, and the registers."""
    (own,) = kernel.overloads.values()
    return own._codelibrary.get_cubin().code, own.regs_per_thread


@pytest.mark.parametrize("name", ["lazy", "signed", "lined", "limited", "without_lto", "carved"])
def test_a_kernel_is_recorded_and_behind_the_recording_it_is_as_before(name: str, kernels: Any, tmp_path: Path) -> None:
    kernel = getattr(kernels, name)
    assert (launch(kernel) == by_hand()).all()
    before = clean_function(kernel)
    with warplens.record(tmp_path / "run.wlens") as rec:
        assert (launch(kernel) == by_hand()).all()
        assert (launch(kernel, 16) == by_hand(16)).all()
        assert clean_function(kernel) == before
    assert rec.notes == []
    assert rec.ran == {"reverse": (2, 2)}
    trace = good(rec.trace, rec.notes)
    assert [own["grid"][0] for own in trace.manifest["launches"]] == [8, 16]
    names = {site["name"] for site in trace.manifest["site_sets"][0]["sites"]}
    barriers = lines_of(KERNELS, "syncthreads()  # of reverse")
    assert {f"numba_kernels.py:{line} wait barrier 0" for line in barriers} <= names
    assert clean_function(kernel) == before
    assert layout.DESCRIPTOR_SYMBOL.encode() not in before[0]
    assert (launch(kernel) == by_hand()).all()


def test_a_second_recording_with_other_marks(kernels: Any, tmp_path: Path) -> None:
    counts = []
    for auto in ("waits", "off", "waits"):
        with warplens.record(tmp_path / "run.wlens", auto=auto) as rec:
            assert (launch(kernels.lazy) == by_hand()).all()
        counts.append(good(rec.trace, rec.notes).spans.height)
    assert counts[0] == counts[2] > counts[1]


@pytest.mark.parametrize(
    ("kind", "name", "times", "why"),
    [
        ("debugged", "reverse", 2, "it is compiled for debugging (debug=True)"),
        (
            "linked",
            "calls",
            3,
            "it is linked with other code (times.cu), whose variables",
        ),
        (
            "grid_wide",
            "waits_for_grid",
            2,
            "it is launched cooperatively, and marks could",
        ),
    ],
)
def test_what_cannot_be_marked_is_told_and_runs(
    kind: str, name: str, times: int, why: str, kernels: Any, tmp_path: Path
) -> None:
    kernel = kernels.linked() if kind == "linked" else getattr(kernels, kind)
    with warplens.record(tmp_path / "run.wlens") as rec:
        assert (launch(kernel) == by_hand(times=times)).all()
    assert rec.trace is None
    assert [note.startswith(f"{name} is not marked: {why}") for note in rec.notes] == [True], rec.notes
    assert rec.ran == {name: (1, 0)}


def test_a_cache_on_disk_is_left_without_marks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KERNELS.read_text(encoding="utf-8") + CACHED, encoding="utf-8")
    folder = tmp_path / "cache"
    printed = []
    for number in range(3):  # the first fills the cache, and is recorded too
        own = ("-m", "warplens", "record", "-o", str(tmp_path / f"{number}.wlens")) if number < 2 else ()
        done = run(program, *own, NUMBA_CACHE_DIR=str(folder))
        printed.append(done.stdout)
        if own:
            trace = good(warplens.open(tmp_path / f"{number}.wlens"), done.stderr)
            assert trace.launches.height == 1
            assert any("program.py:" in site["name"] for site in trace.manifest["site_sets"][0]["sites"]), done.stderr
        files = {path: path.read_bytes() for path in folder.rglob("*.nb?")}
        assert files
        assert not [path for path, content in files.items() if layout.DESCRIPTOR_SYMBOL.encode() in content]
    assert [line.split()[1] for line in printed] == ["0", "1", "1"], printed
    assert len({line.split()[0] for line in printed}) == 1, printed


CACHED = """
import hashlib
import numpy
kept = cuda.jit(reverse, cache=True)
x, y = numpy.arange(1024, dtype=numpy.int32), numpy.zeros(1024, numpy.int32)
kept[8, 128](x, y)
print(hashlib.sha256(y.tobytes()).hexdigest(), sum(kept.stats.cache_hits.values()))
"""


def test_launches_of_streams_and_threads_are_told_apart(kernels: Any, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from numba import cuda

    streams = [cuda.stream() for _ in range(2)]
    kernel = kernels.lazy
    with warplens.record(tmp_path / "run.wlens") as rec:
        for blocks, stream in enumerate(streams, 1):
            assert (launch(kernel, blocks, stream) == by_hand(blocks)).all()
        with ThreadPoolExecutor(2) as pool:
            for out in pool.map(lambda blocks: launch(kernel, blocks), (3, 3)):
                assert (out == by_hand(3)).all()
    assert rec.notes == []
    launches = good(rec.trace, rec.notes).manifest["launches"]
    assert [own["grid"][0] for own in launches] == [1, 2, 3, 3]
    assert [own["stream"] for own in launches[:2]] == [int(stream.handle) for stream in streams]


def test_the_size_of_blocks_that_numba_chooses_is_that_of_the_clean_kernel(kernels: Any, tmp_path: Path) -> None:
    from numba import cuda

    def sizes() -> np.ndarray[Any, Any]:
        out = cuda.device_array(4096, np.int32)
        kernels.block_size.forall(4096)(out)
        result: np.ndarray[Any, Any] = out.copy_to_host()
        return result

    expected = sizes()
    with warplens.record(tmp_path / "run.wlens") as rec:
        assert (sizes() == expected).all()
    assert rec.ran == {"own_size": (1, 1)}
    assert good(rec.trace, rec.notes).launches.height == 1
