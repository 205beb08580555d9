"""Triton kernels recorded with no change to their source."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import warplens
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.instrument import Selection
from warplens.trace import Trace

pytestmark = pytest.mark.gpu
torch: Any
triton: Any
kernels: Any
ROWS, WIDTH = 264, 2048
SIZE = 512


@pytest.fixture(autouse=True, scope="module")
def _with_triton() -> None:
    """Not when the module is collected: where these tests are not asked for, they are no skip either."""
    global torch, triton, kernels
    torch = pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    kernels = importlib.import_module("tests.ptx.triton_kernels")


def norm(out: Any, x: Any, w: Any) -> Any:
    return kernels.layer_norm[(ROWS,)](x, out, w, w, WIDTH, 1e-5, BLOCK=WIDTH, num_warps=8)


def noise(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def multiply(out: Any, a: Any, b: Any) -> Any:
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    grid = (SIZE // 128, SIZE // 128)
    return kernels.matmul[grid](a, b, out, SIZE, SIZE, SIZE, SIZE, SIZE, SIZE, **blocks)


def trace_of(capture: TritonCapture) -> Trace:
    recording = capture.recording()
    assert recording is not None
    return Trace.from_recording(recording)


def bits(tensor: Any) -> Any:
    return tensor.view(torch.int16).clone()


def test_a_layer_norm_is_recorded_and_computes_the_same() -> None:
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    norm(out, x, w)
    expected = bits(out)
    out.zero_()
    with TritonCapture() as capture:
        for _ in range(3):
            norm(out, x, w)
    assert torch.equal(bits(out), expected)
    trace = trace_of(capture)
    sites = trace.manifest["site_sets"][0]["sites"]
    assert len(trace.launches) == 3
    assert len(trace.spans) == 3 * ROWS * 8 * len(sites)
    assert {site["kind"] for site in sites} == {"phase", "wait"}
    assert all("triton_kernels.py:" in site["name"] for site in sites)
    assert sum(launch["lost_events"] for launch in trace.manifest["launches"]) == 0
    assert not {"gap", "no_end", "foreign_chunk", "unknown_record"} & set(trace.problems["kind"])


@pytest.mark.parametrize("level", ["coarse", "waits", "all"])
def test_a_pipelined_matmul_is_recorded_at_every_level(level: str) -> None:
    a, b, out = noise(SIZE, SIZE), noise(SIZE, SIZE), torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    multiply(out, a, b)
    expected = bits(out)
    out.zero_()
    with TritonCapture(PythonOptions(selection=Selection(level), slab_chunks=1)) as capture:
        multiply(out, a, b)
    assert torch.equal(bits(out), expected)
    trace = trace_of(capture)
    assert not {"gap", "no_end", "foreign_chunk", "unknown_record"} & set(trace.problems["kind"])
    counts = dict(trace.spans.group_by("site").len().iter_rows())
    warps = (SIZE // 128) ** 2 * 8
    turns = SIZE // 64
    looped = {site for site, count in counts.items() if count == warps * turns}
    assert set(counts.values()) <= {warps, warps * turns}
    assert bool(looped) == (level != "coarse")


def test_small_memory_loses_events_and_counts_them() -> None:
    a, b, out = noise(SIZE, SIZE), noise(SIZE, SIZE), torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    with TritonCapture(PythonOptions(slab_chunks=1)) as whole:
        multiply(out, a, b)
    with TritonCapture(PythonOptions(slab_chunks=1, capacity_bytes=1 << 18)) as part:
        multiply(out, a, b)
    every, some = trace_of(whole), trace_of(part)
    lost = some.manifest["launches"][0]["lost_events"]
    assert lost > 0
    assert lost + len(some.spans) == len(every.spans)  # a span is an event, and one more is a warp's end


def test_nothing_is_left_behind() -> None:
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    before = triton.knobs.runtime.add_stages_inspection_hook, triton.compiler.CompiledKernel.launch_metadata
    with TritonCapture():
        marked = norm(out, x, w)
    assert before == (
        triton.knobs.runtime.add_stages_inspection_hook,
        triton.compiler.CompiledKernel.launch_metadata,
    )
    clean = norm(out, x, w)
    assert "warplens" in marked.asm["ptx"]
    assert "warplens" not in clean.asm["ptx"]


def test_narrowed_to_every_fourth_block() -> None:
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    with TritonCapture(PythonOptions(every_block=4, warp_mask=0b101)) as capture:
        norm(out, x, w)
    trace = trace_of(capture)
    assert set(trace.spans["block"]) == set(range(0, ROWS, 4))
    assert set(trace.spans["warp"]) == {0, 2}


def graph_of(launch: Any) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        launch()
    return graph


def test_replays_of_a_cuda_graph_are_recorded_each() -> None:
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    norm(out, x, w)
    expected = bits(out)
    out.zero_()
    with TritonCapture(PythonOptions(launch_skip=1, launch_count=3)) as capture:
        norm(out, x, w)  # the ordinary launch that is skipped
        graph = graph_of(lambda: norm(out, x, w))
        for _ in range(6):
            graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(bits(out), expected)
    trace = trace_of(capture)
    assert trace.launches["replay"].to_list() == [1, 2, 3]
    sites = trace.manifest["site_sets"][0]["sites"]
    assert trace.spans.group_by("launch").len()["len"].to_list() == [ROWS * 8 * len(sites)] * 3
    assert not {"gap", "no_end", "foreign_chunk", "duplicate_chunk"} & set(trace.problems["kind"])
    begins = trace.launches["start_ns"].to_list()
    assert begins == sorted(begins)


def test_the_choice_of_an_autotuner_alone_is_recorded_and_it_chooses_as_ever() -> None:
    tuned = triton.autotune([triton.Config({}, num_warps=warps) for warps in (4, 8)], key=[])(kernels.layer_norm)
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    with TritonCapture() as capture:
        for _ in range(3):
            tuned[(ROWS,)](x, out, w, w, WIDTH, 1e-5, BLOCK=WIDTH)
    trace = trace_of(capture)
    assert len(trace.manifest["kernels"]) == 1
    assert trace.launches.height == 3
    warps = tuned.best_config.num_warps
    assert trace.manifest["launches"][0]["block"] == [32 * warps, 1, 1]


def test_marks_in_the_source_leave_no_instruction_when_not_recorded() -> None:
    marked: Any = importlib.import_module("examples.triton.marked_matmul").marked_matmul
    plain = kernels.matmul
    a, b, out = noise(SIZE, SIZE), noise(SIZE, SIZE), torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    machine = [
        kernel[(4, 4)](a, b, out, *[SIZE] * 6, **blocks).asm["sass"].replace("marked_matmul", "matmul")
        for kernel in (marked, plain)
    ]
    codes = [[line.split("/*")[0].strip() for line in text.splitlines() if ";" in line] for text in machine]
    assert codes[0] == codes[1]
    assert len(codes[0]) > 100


def test_a_gluon_kernel_is_recorded() -> None:
    gluon: Any = importlib.import_module("tests.ptx.gluon_kernels")
    steps, block = 4, 1024
    x = torch.randn(8 * steps * block + block, device="cuda")
    out = torch.empty(8 * steps * block, device="cuda")
    gluon.copy[(8,)](x, out, steps, BLOCK=block)
    expected = out.clone()
    out.zero_()
    with TritonCapture() as capture:
        gluon.copy[(8,)](x, out, steps, BLOCK=block)
    assert torch.equal(out, expected)
    trace = trace_of(capture)
    waits = trace.spans.filter(trace.spans["site"].is_in([n for n, k in enumerate(trace.sites["kind"]) if k == "wait"]))
    assert len(waits) >= 8 * 4 * steps
    assert not {"gap", "no_end", "foreign_chunk"} & set(trace.problems["kind"])


def test_with_warplens_record_the_same_is_seen(tmp_path: Path) -> None:
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    with warplens.record(tmp_path / "run.wlens", kernels="norm", launch_skip=1, launch_count=2, rounds=0) as rec:
        for _ in range(5):
            norm(out, x, w)
    assert rec.trace is not None
    assert rec.trace.launches.height == 2
    assert rec.ran == {"layer_norm": (5, 2)}


def test_launches_that_are_enough_are_read_while_the_program_goes_on() -> None:
    done: list[Any] = []
    x, w, out = noise(ROWS, WIDTH), noise(WIDTH), torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    capture = TritonCapture(PythonOptions(launch_count=2), done=done.append)
    with capture:
        for _ in range(3):
            norm(out, x, w)
        assert capture._reader is not None
        capture._reader.join()
        assert len(done) == 1
        norm(out, x, w)
    assert len(done) == 1
    assert len(Trace.from_recording(done[0]).launches) == 2
