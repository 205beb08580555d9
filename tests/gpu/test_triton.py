"""Triton kernels recorded with no change to their source."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from warplens.capture.triton import TritonCapture, TritonOptions
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
    with TritonCapture(TritonOptions(selection=Selection(level), slab_chunks=1)) as capture:
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
    with TritonCapture(TritonOptions(slab_chunks=1)) as whole:
        multiply(out, a, b)
    with TritonCapture(TritonOptions(slab_chunks=1, capacity_bytes=1 << 18)) as part:
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
    with TritonCapture(TritonOptions(every_block=4, warp_mask=0b101)) as capture:
        norm(out, x, w)
    trace = trace_of(capture)
    assert set(trace.spans["block"]) == set(range(0, ROWS, 4))
    assert set(trace.spans["warp"]) == {0, 2}
