"""A GPU that is the machine of tests/whole_warps.py: the driver and its memory are stand-ins, and PTX runs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.capture.test_arena import FakeMemory
from tests.whole_warps import Warps
from warplens import layout
from warplens.capture import audited, driver, machine, python, python_manifest, python_memory
from warplens.capture.modules import parse_sites
from warplens.capture.python import PythonCapture
from warplens.errors import CompileError
from warplens.instrument.shared_state import SHARED_STATE
from warplens.instrument.staged import NEED, STAGE
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
        symbols = {layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0}
        symbols |= {SHARED_STATE: 0x800, STAGE: 0x2000, NEED: 0x4800}
        self.machine = Warps(symbols, memory=self.memory)
        self.grids = 0

    def run(self, text: str, grid: int, grid_id: int, threads: int = 64, kernel: str | None = None) -> None:
        """Runs a kernel of a module, the first by default."""
        self.machine.clock += 1000
        turns = ".entry loop" in text if kernel is None else kernel == "loop"
        arguments = {"n": 3 if turns else DESCRIPTOR + 64}  # turns, or where it stores
        self.machine.run(text, grid=grid, threads=threads, grid_id=grid_id, arguments=arguments, kernel=kernel)

    def launch(self, text: str, grid: int, threads: int = 64, kernel: str | None = None) -> None:
        """The launch has a new grid id."""
        self.grids += 1
        self.run(text, grid, self.grids, threads, kernel)

    def call(self, name: str, *args: Any, doing: str = "") -> Any:
        del doing
        if name == "cuMemsetD8Async":
            FakeMemory.at(args[0], args[2])[:] = args[1]
        elif name in ("cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync"):
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


def install(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Puts it where the driver is."""
    own = Gpu()
    monkeypatch.setattr(FakeMemory, "allocated", [], raising=False)
    enums = SimpleNamespace(CU_STREAM_NON_BLOCKING=1, CU_STREAM_CAPTURE_MODE_RELAXED=2)
    handles = dict.fromkeys(("CUmodule", "CUfunction", "CUlibrary", "CUkernel"), int)
    native = SimpleNamespace(CUstream_flags=enums, CUstreamCaptureMode=enums, **handles)
    replaced: dict[str, Any] = {"DeviceMemory": FakeMemory, "call": own.call, "bindings": lambda: native}
    replaced |= {"copy_to_device": own.copy_to, "copy_from_device": own.copy_from}
    replaced |= {"HostMemory": FakeMemory, "is_done": lambda _: True}
    replaced |= {"ensure_context": lambda: 0, "attribute": lambda *_: 9}
    for name, stand_in in replaced.items():
        monkeypatch.setattr(driver, name, stand_in)
    monkeypatch.setattr(machine, "device_facts", lambda _: None)
    monkeypatch.setattr(machine, "clock_state", lambda _: None)
    calibrator = SimpleNamespace(
        step_ns=lambda _: 32, begin=lambda _: None, read=lambda _, when, __: {"when": when, **own.pairs()}
    )
    monkeypatch.setattr(python_memory, "Calibrator", lambda *_: calibrator)
    resources = {"registers": 40, "shared_bytes": 0, "local_bytes": 0, "resident_blocks": 6}
    native_function = SimpleNamespace(resources=lambda *_: resources)
    monkeypatch.setattr(python_manifest, "Function", lambda *_: native_function)
    monkeypatch.setattr(audited, "disassemble", no_machine_code)  # no module has this name of its own
    monkeypatch.setattr(python, "is_captured", lambda stream: stream == GRAPH_STREAM)
    return own


def no_machine_code(_: bytes) -> str:
    """In nvdisasm's place."""
    raise CompileError("the stand-in's machine code is PTX")


def assemble(text: str, wish: Any = None) -> tuple[bytes, str]:
    """Takes the place of warplens' own: machine code is PTX, and nothing spills."""
    del wish
    names = re.findall(r"\.entry (\w+)", text)
    log = "".join(
        f"ptxas info : Compiling entry function '{name}' for 'sm_90'\n"
        "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info : Used 32 registers\n"
        for name in names
    )
    return text.encode(), log


def site_sets(text: bytes) -> list[dict[str, Any]]:
    """As of machine code, from the table in the PTX."""
    prefix = layout.SITES_SYMBOL_PREFIX
    line = next(line for line in text.decode().splitlines() if prefix in line and "= {" in line)
    name = line.partition(prefix)[2].partition("[")[0]
    return [parse_sites(name, bytes(map(int, line.partition("{")[2].partition("}")[0].split(","))))]


def trace_of(capture: PythonCapture) -> Trace:
    """What was recorded, in which nothing is odd."""
    recording = capture.recording()
    assert recording is not None
    trace = Trace.from_recording(recording)
    assert not BAD & set(trace.problems["kind"]), trace.problems.to_dicts()
    return trace
