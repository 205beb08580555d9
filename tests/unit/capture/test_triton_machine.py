"""Recording from a kernel's first launch to its trace, on a GPU that is the machine of tests/ptx_machine.py.

Triton, the driver and its memory are stand-ins; the marked PTX runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warplens
from tests.ptx_machine import Machine
from tests.unit.capture.test_arena import FakeMemory
from tests.unit.capture.triton_stand_in import CompiledKernel, Fake
from tests.unit.instrument.test_recorder import LOOP, STRAIGHT
from warplens import layout
from warplens.capture import driver, machine, python, python_manifest, python_memory, triton_builds
from warplens.capture import triton as capture_triton
from warplens.capture.modules import parse_sites
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.trace import Trace

DESCRIPTOR = 0x1000
GRAPH_STREAM = 5
BAD = {"gap", "no_end", "foreign_chunk", "unknown_record", "duplicate_chunk", "lost_events", "unwritten_chunk"}


class Words(dict[int, int]):
    """The machine's memory: words of fake allocations by their addresses, and a few of its own."""

    def __getitem__(self, address: int) -> int:
        if address < 1 << 40:
            return self.get(address, 0)
        return int(FakeMemory.at(address, 4).view(np.uint32)[0])

    def __setitem__(self, address: int, value: int) -> None:
        if address < 1 << 40:
            super().__setitem__(address, value)
        else:
            FakeMemory.at(address, 4).view(np.uint32)[0] = value


class Gpu:
    """A GPU with one module, which runs what was loaded."""

    def __init__(self) -> None:
        self.memory = Words()
        self.machine = Machine({layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0}, memory=self.memory)
        self.grids = 0

    def run(self, kernel: CompiledKernel, grid: int, grid_id: int) -> None:
        threads = 32 * kernel.metadata.num_warps
        self.machine.clock += 1000
        arguments = {"n": 3 if kernel.name == "loop" else DESCRIPTOR + 64}  # turns, or where it stores
        self.machine.run(kernel.loaded.decode(), grid=grid, threads=threads, grid_id=grid_id, arguments=arguments)

    def launch(self, kernel: CompiledKernel, grid: int) -> None:
        """As Triton launches: the launch has a new grid id."""
        kernel.launch_metadata((grid,), 7)
        self.grids += 1
        self.run(kernel, grid, self.grids)

    def call(self, name: str, *args: Any, doing: str = "") -> Any:
        del doing
        if name == "cuMemsetD8Async":
            FakeMemory.at(args[0], args[2])[:] = args[1]
        elif name == "cuMemcpyDtoDAsync":
            FakeMemory.at(args[0], args[2])[:] = FakeMemory.at(args[1], args[2])
        elif name == "cuModuleGetGlobal":
            return DESCRIPTOR, 24
        return {"cuCtxGetCurrent": 1, "cuStreamCreate": 99}.get(name, 0)

    def copy_to(self, address: int, data: Any, stream: int = 0) -> None:
        del stream
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        if address >= 1 << 40:
            FakeMemory.at(address, raw.nbytes)[:] = raw
            return
        for at, word in enumerate(raw.view(np.uint32).tolist()):
            self.memory[address + 4 * at] = word

    def copy_from(self, address: int, shape: Any, dtype: Any, stream: int = 0) -> Any:
        del stream
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.asarray(FakeMemory.at(address, size).copy().view(dtype).reshape(shape))

    def pairs(self) -> dict[str, Any]:
        """What a calibration reads now: every SM has the machine's clock, 2 cycles a ns."""
        now = [self.machine.clock - 20_000, self.machine.clock - 10_000]
        times = {"globaltimer_ns": [self.machine.globaltimer + cycles // 2 for cycles in now], "clock_cycles": now}
        return {"sm": [0, 0], **times}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    Fake().install(monkeypatch)
    own = Gpu()
    monkeypatch.setattr(FakeMemory, "allocated", [], raising=False)
    enums = SimpleNamespace(CU_STREAM_NON_BLOCKING=1, CU_STREAM_CAPTURE_MODE_RELAXED=2)
    native = SimpleNamespace(CUstream_flags=enums, CUstreamCaptureMode=enums, CUmodule=int, CUfunction=int)
    replaced: dict[str, Any] = {"DeviceMemory": FakeMemory, "call": own.call, "bindings": lambda: native}
    replaced |= {"copy_to_device": own.copy_to, "copy_from_device": own.copy_from}
    replaced |= {"ensure_context": lambda: 0, "attribute": lambda *_: 9}
    for name, stand_in in replaced.items():
        monkeypatch.setattr(driver, name, stand_in)
    monkeypatch.setattr(machine, "device_facts", lambda _: None)
    monkeypatch.setattr(machine, "clock_state", lambda _: None)
    calibrator = SimpleNamespace(
        step_ns=lambda _: 32, begin=lambda _: None, read=lambda _, when, __: {"when": when, **own.pairs()}
    )
    monkeypatch.setattr(python_memory, "Calibrator", lambda *_: calibrator)
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda _: (32, 0))
    resources = {"registers": 40, "shared_bytes": 0, "local_bytes": 0, "resident_blocks": 6}
    native_function = SimpleNamespace(resources=lambda *_: resources)
    monkeypatch.setattr(python_manifest, "Function", lambda *_: native_function)
    monkeypatch.delattr(python_manifest, "audit_builds")
    monkeypatch.setattr(python, "is_captured", lambda stream: stream == GRAPH_STREAM)
    monkeypatch.setattr(capture_triton, "read_site_sets", site_sets)
    return own


def site_sets(text: bytes) -> list[dict[str, Any]]:
    """As of machine code, from the table in the PTX."""
    prefix = layout.SITES_SYMBOL_PREFIX
    line = next(line for line in text.decode().splitlines() if prefix in line and "= {" in line)
    name = line.partition(prefix)[2].partition("[")[0]
    return [parse_sites(name, bytes(map(int, line.partition("{")[2].partition("}")[0].split(","))))]


def kernel_of(text: str, name: str, threads: int) -> CompiledKernel:
    return CompiledKernel(text.format(threads=threads), name=name, num_warps=threads // 32)


def trace_of(capture: TritonCapture) -> Trace:
    recording = capture.recording()
    assert recording is not None
    trace = Trace.from_recording(recording)
    assert not BAD & set(trace.problems["kind"]), trace.problems.to_dicts()
    return trace


def record(gpu: Gpu, program: Callable[[], None], **options: Any) -> TritonCapture:
    del gpu
    capture = TritonCapture(PythonOptions(capacity_bytes=8 << 20, **options), quiet=True)
    with capture:
        program()
    return capture


def test_launches_of_two_kernels_are_told_apart(gpu: Gpu) -> None:
    one, other = kernel_of(STRAIGHT, "straight", 64), kernel_of(LOOP, "loop", 32)

    def program() -> None:
        for grid, kernel in ((3, one), (2, other), (4, one)):
            gpu.launch(kernel, grid)

    capture = record(gpu, program)
    trace = trace_of(capture)
    assert [(own["kernel"], own["grid"][0], own["grid_id"]) for own in trace.manifest["launches"]] == [
        (0, 3, 1),
        (1, 2, 2),
        (0, 4, 3),
    ]
    sites = len(trace.manifest["site_sets"][0]["sites"])
    counts = dict(trace.spans.group_by("launch").len().iter_rows())
    assert (counts[0], counts[2]) == (3 * 2 * sites, 4 * 2 * sites)
    assert capture.ran == {"straight": (2, 2), "loop": (1, 1)}
    assert all(own["instrumented"]["left_out"] == [] for own in trace.manifest["kernels"])


@pytest.mark.parametrize(("skip", "count", "kept"), [(0, 2, [1, 2]), (2, 1, [3]), (3, None, [4, 5]), (9, None, [])])
def test_launches_that_are_not_asked_for_write_nothing(gpu: Gpu, skip: int, count: int | None, kept: list[int]) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)

    def program() -> None:
        for _ in range(5):
            gpu.launch(kernel, 3)

    capture = record(gpu, program, launch_skip=skip, launch_count=count)
    if not kept:
        assert capture.recording() is None
        return
    assert [own["grid_id"] for own in trace_of(capture).manifest["launches"]] == kept


def test_replays_of_a_graph_are_launches_and_are_chosen_by_their_number(gpu: Gpu) -> None:
    one, other = kernel_of(STRAIGHT, "straight", 64), kernel_of(LOOP, "loop", 32)

    def program() -> None:
        gpu.launch(one, 3)
        gpu.launch(other, 2)
        one.launch_metadata((2,), GRAPH_STREAM)
        other.launch_metadata((1,), GRAPH_STREAM)
        for _ in range(4):
            gpu.run(one, 2, 20)
            gpu.run(other, 1, 21)
        gpu.launch(one, 3)

    trace = trace_of(record(gpu, program, launch_skip=1, launch_count=2))
    found = [(own["kernel"], own["replay"], own["grid_id"]) for own in trace.manifest["launches"]]
    assert found == [(1, 0, 2), (0, 1, 20), (0, 2, 20), (1, 1, 21), (1, 2, 21), (0, 0, 3)]
    sites = len(trace.manifest["site_sets"][0]["sites"])
    counts = trace.spans.group_by("launch").len().sort("launch")["len"].to_list()
    assert counts[1:3] == [2 * 2 * sites] * 2
    begins = trace.launches["start_ns"].to_list()
    assert begins[1] < begins[3] < begins[2] < begins[4]


def test_behind_the_block_a_marked_kernel_records_nothing(gpu: Gpu) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)
    record(gpu, lambda: gpu.launch(kernel, 1))
    assert [gpu.memory[DESCRIPTOR + 4 * n] for n in range(6)] == [0] * 6
    gpu.machine.touched.clear()
    gpu.run(kernel, 2, 9)
    assert all(address < 1 << 40 for address in gpu.machine.touched)


def test_the_first_launch_of_all_in_a_graph_is_told(gpu: Gpu) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)
    capture = record(gpu, lambda: kernel.launch_metadata((1,), GRAPH_STREAM))
    assert capture.recording() is None
    assert capture.notes == [
        "straight is not recorded: the first launch of all is being captured in a CUDA graph: launch one before"
    ]


def test_blocks_and_paused_parts_are_left_out(gpu: Gpu) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)
    capture = TritonCapture(PythonOptions(capacity_bytes=8 << 20, blocks=(0, 2), paused=True), quiet=True)
    with capture:
        gpu.launch(kernel, 3)
        capture.on = True
        gpu.launch(kernel, 3)
        capture.on = False
        gpu.launch(kernel, 3)
    trace = trace_of(capture)
    assert [own["grid_id"] for own in trace.manifest["launches"]] == [2]
    assert set(trace.spans["block"]) == {0, 2}


def test_with_warplens_record_both_kinds_of_kernels_share_one_call(gpu: Gpu, tmp_path: Path) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)
    with warplens.record(tmp_path / "run.wlens", launch_count=2, capacity_bytes=8 << 20) as rec:
        for _ in range(3):
            gpu.launch(kernel, 3)
    assert (rec.files, rec.ran) == ([tmp_path / "run.wlens"], {"straight": (3, 2)})
    assert rec.trace is not None
    assert rec.trace.launches.height == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.wlens"]


def test_what_a_process_recorded_is_written_when_it_is_enough(gpu: Gpu) -> None:
    """A server may never end: its launches are read while it goes on."""
    kernel = kernel_of(STRAIGHT, "straight", 64)
    done: list[Any] = []
    capture = TritonCapture(PythonOptions(capacity_bytes=8 << 20, launch_count=2), quiet=True, done=done.append)
    with capture:
        for _ in range(3):
            gpu.launch(kernel, 3)
        assert capture._reader is not None
        capture._reader.join(60)
        assert [len(own.manifest["launches"]) for own in done] == [2]
        gpu.launch(kernel, 3)
    assert len(done) == 1
    assert capture.notes == []


def test_threads_that_launch_their_first_kernels_at_once_share_one_memory(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    del gpu
    made: list[Any] = []

    def memory(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.2)
        made.append(python_memory.Memory(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(python, "Memory", memory)
    kernels = [kernel_of(STRAIGHT, name, 64) for name in ("one", "two", "two")]
    kernels[2] = kernels[1]
    capture = TritonCapture(PythonOptions(capacity_bytes=8 << 20), quiet=True)
    with capture:
        threads = [threading.Thread(target=own.launch_metadata, args=((2,), 7)) for own in kernels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 1
    assert len(capture._kernels) == 2
    assert capture.ran == {"one": (1, 1), "two": (2, 2)}
