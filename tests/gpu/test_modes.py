"""Kernels whose marks keep their state in shared memory, or whose roles have other registers: the same results, bit by
bit, and the same records as with the state in registers."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.full_kernels import roles
from warplens.capture import driver, triton_builds
from warplens.capture.assemble import assemble
from warplens.capture.chosen import Ways
from warplens.capture.library import Library
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.instrument import Mode, Selection, State, instrument
from warplens.trace import Trace

pytestmark = pytest.mark.gpu
torch: Any
kernels: Any
SIZE = 512
Case = Callable[[], Any]
numbers = itertools.count(1)


@pytest.fixture(autouse=True, scope="module")
def _with_triton() -> None:
    """Not when the module is collected: where these tests are not asked for, they are no skip either."""
    global torch, kernels
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    kernels = importlib.import_module("tests.ptx.triton_kernels")


def noise(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def norm() -> Case:
    x, w, out = noise(264, 1024), noise(1024), torch.empty(264, 1024, device="cuda", dtype=torch.bfloat16)

    def run() -> Any:
        out.zero_()
        kernels.layer_norm[(264,)](x, out, w, w, 1024, 1e-5, BLOCK=1024, num_warps=8)
        return out

    return run


def matmul() -> Case:
    a, b, out = noise(SIZE, SIZE), noise(SIZE, SIZE), torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}

    def run() -> Any:
        out.zero_()
        kernels.matmul[SIZE // 128, SIZE // 128](a, b, out, *[SIZE] * 6, **blocks)
        return out

    return run


def persistent() -> Case:
    """Copies by TMA with a swizzle, whose shared memory must stay aligned to 1024 bytes."""
    descriptor: Any = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
    a, b, out = noise(SIZE, SIZE), noise(SIZE, SIZE), torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    tiles = [descriptor.from_tensor(own, shape) for own, shape in ((a, [128, 64]), (b, [128, 64]), (out, [128, 128]))]
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "PROGRAMS": 8, "SPECIALIZED": False}

    def run() -> Any:
        out.zero_()
        kernels.matmul_tma[(8,)](*tiles, SIZE, SIZE, SIZE, **blocks, num_warps=4, num_stages=3)
        return out

    return run


def specialised() -> Case:
    """Two roles with setmaxnreg: 24 and 240 registers of 168 at launch."""
    own: Any = importlib.import_module("examples.triton.specialized_matmul")
    a, b, out = noise(SIZE, SIZE), noise(SIZE, SIZE), torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    wide = own.gl.NVMMASharedLayout.get_default_for([own.BLOCK_M, own.BLOCK_K], own.gl.bfloat16)
    tall = own.gl.NVMMASharedLayout.get_default_for([own.BLOCK_K, own.BLOCK_N], own.gl.bfloat16)
    a_tiles = own.TensorDescriptor.from_tensor(a, [own.BLOCK_M, own.BLOCK_K], wide)
    b_tiles = own.TensorDescriptor.from_tensor(b, [own.BLOCK_K, own.BLOCK_N], tall)
    grid = SIZE // own.BLOCK_M, SIZE // own.BLOCK_N

    def run() -> Any:
        out.zero_()
        own.specialized_matmul[grid](a_tiles, b_tiles, out, SIZE, SIZE, STAGES=own.STAGES, num_warps=own.WARPS)
        return out

    return run


def recorded(run: Case, level: str, **options: Any) -> tuple[Any, Trace, list[str]]:
    """The bits of the result, the trace, and what the capture noted. What Triton has marked before is not taken again,
    for each time the sites are chosen by another expression, which all of them match."""
    selection = Selection(level, "(?:)" * next(numbers))
    with TritonCapture(PythonOptions(selection=selection, slab_chunks=1, **options), quiet=True) as capture:
        bits = run().view(torch.int16).clone()
    recording = capture.recording()
    assert recording is not None
    return bits, Trace.from_recording(recording), list(capture.notes)


def only(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[Mode], bool]) -> list[str]:
    """Lets kernels have such modes alone; the names of those that are tried."""
    modes = Ways.modes
    tried: list[str] = []

    def chosen(self: Ways, what: str, selection: Selection) -> list[tuple[str, Mode]]:
        found = [(name, mode) for name, mode in modes(self, what, selection) if wanted(mode)]
        tried.extend(name for name, _ in found)
        return found

    monkeypatch.setattr(Ways, "modes", chosen)
    return tried


def counts(trace: Trace) -> dict[Any, int]:
    """How often each warp passed each wait. Phases can be fewer, where arithmetic goes ahead of waits."""
    sites = enumerate(zip(trace.sites["name"], trace.sites["kind"], strict=True))
    waits = {number: name for number, (name, kind) in sites if kind == "wait"}
    rows = trace.spans.group_by("block", "warp", "site").len().rows()
    return {(block, warp, waits[site]): passed for block, warp, site, passed in rows if site in waits}


def compare(
    make: Callable[[], Case], level: str, wanted: Callable[[Mode], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make()
    expected = run().view(torch.int16).clone()
    bits, in_registers, _ = recorded(run, level, staged=False)
    assert torch.equal(bits, expected)
    tried = only(monkeypatch, wanted)
    bits, trace, notes = recorded(run, level)
    assert tried, "no such mode for this kernel"
    assert torch.equal(bits, expected)
    assert counts(trace) == counts(in_registers), notes
    assert sum(launch["lost_events"] for launch in trace.manifest["launches"]) == 0
    assert not {"gap", "no_end", "foreign_chunk", "unknown_record", "wrapped"} & set(trace.problems["kind"])


@pytest.mark.parametrize("level", ["waits", "all"])
@pytest.mark.parametrize("state", [State.FEWER_REGISTERS, State.SHARED, State.LOCAL])
@pytest.mark.parametrize("make", [norm, matmul, persistent, specialised])
def test_with_its_state_elsewhere_a_kernel_computes_and_records_the_same(
    make: Callable[[], Case], state: State, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state is State.LOCAL:  # as where a block can have no more shared memory
        monkeypatch.setattr(triton_builds, "_crowded", lambda *_: "crowded")
    compare(make, level, lambda mode: mode.state is state and not mode.setmaxnreg, monkeypatch)


@pytest.mark.parametrize("level", ["waits", "all"])
@pytest.mark.parametrize("state", [State.STAGED, State.STAGED_FEWER])
@pytest.mark.parametrize("make", [matmul, persistent, specialised])
def test_where_records_wait_in_shared_memory_a_kernel_computes_and_records_the_same(
    make: Callable[[], Case], state: State, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(make, level, lambda mode: mode.state is state, monkeypatch)


@pytest.mark.parametrize(
    ("make", "slot_bytes"), [(matmul, 2048), (matmul, 4096), (persistent, 1024), (persistent, 2048), (persistent, 8192)]
)
def test_in_slots_of_any_size_a_kernel_computes_and_records_the_same(
    make: Callable[[], Case], slot_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = Ways.modes

    def sized(self: Ways, what: str, selection: Selection) -> Iterator[tuple[str, Mode]]:
        return ((name, replace(mode, slot_bytes=slot_bytes)) for name, mode in modes(self, what, selection))

    monkeypatch.setattr(Ways, "modes", sized)
    compare(make, "waits", lambda mode: mode.state is State.STAGED, monkeypatch)


@pytest.mark.parametrize("shared_state", [False, True])
def test_with_registers_moved_between_its_roles_a_kernel_computes_and_records_the_same(
    shared_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(mode: Mode) -> bool:
        return mode.setmaxnreg is not None and (mode.state is State.SHARED) == shared_state

    compare(specialised, "waits", moved, monkeypatch)


def test_small_memory_loses_events_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = matmul()
    only(monkeypatch, lambda mode: mode.state is State.SHARED)
    _, every, _ = recorded(run, "waits")
    _, some, _ = recorded(run, "waits", capacity_bytes=1 << 18)
    lost = some.manifest["launches"][0]["lost_events"]
    assert lost > 0
    assert lost + len(some.spans) == len(every.spans)  # a span is an event, and one more is a warp's end


MODES = {
    "marks": Mode(Selection()),
    "fewer registers": Mode(Selection(), state=State.FEWER_REGISTERS),
    "state in shared memory": Mode(Selection(), state=State.SHARED),
    "state in local memory": Mode(Selection(), state=State.LOCAL),
    "32 and 232": Mode(Selection(), setmaxnreg={24: 32, 240: 232}),
    "40 and 232": Mode(Selection(), setmaxnreg={24: 40, 240: 232}),
    "56 and 224": Mode(Selection(), setmaxnreg={24: 56, 240: 224}),
    "40 and 232, state in shared memory": Mode(Selection(), state=State.SHARED, setmaxnreg={24: 40, 240: 232}),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_roles_that_ask_for_other_registers_end_and_compute_the_same(mode: Mode) -> None:
    """Not recorded: the descriptor is empty. A warp that waits for registers for ever would let this test hang."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the kernel is for sm_90a")
    text = roles(12, 100)
    blocks, turns, words = 264, 50, 384 * 256
    source = torch.randint(1 << 20, (words,), device="cuda", dtype=torch.int32)
    results = []
    for own in (text, instrument(text, modes={"roles": mode}).text):
        library = Library(assemble(own)[0])
        function = library.function("roles")
        out = torch.zeros(words, device="cuda", dtype=torch.int32)
        values = np.array([source.data_ptr(), out.data_ptr(), turns], np.uint64)
        table = np.array([values.ctypes.data + 8 * number for number in range(3)], np.uint64)
        function.launch((blocks, 1, 1), (384, 1, 1), table.ctypes.data, 0, 0)
        driver.call("cuCtxSynchronize")
        results.append(out)
    assert torch.equal(*results)
    assert results[0].count_nonzero() > 0
