"""Recording Triton kernels: what is hooked, what is told, and what is left behind. Triton and the GPU are stand-ins."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import synthesis
from tests.unit.instrument import test_recorder as recorder
from tests.unit.instrument.test_read import SMALL
from warplens import layout
from warplens.capture import triton as capture_triton
from warplens.capture import triton_builds
from warplens.capture.recording import Recording
from warplens.capture.residency import Launch
from warplens.capture.triton import TritonCapture, TritonOptions, TritonWarning
from warplens.errors import SitesError, UsageError
from warplens.instrument import Selection
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.triton import record

WAITS = SMALL.replace("\tret;", "\tbar.sync 0;\n\tst.global.u32 [%r1], 1;\n\tret;")


class CompiledKernel:
    """As Triton's, as far as it is looked at."""

    def launch_metadata(self, grid: Any, stream: Any, *arguments: Any) -> Any:
        return grid, stream, arguments


@dataclass
class Fake:
    """A module that stands for triton."""

    version: str = "3.6.0"
    backend: str = "cuda"
    interpret: bool = False
    mode: str = ""
    hook: Any = None
    no_gpu: bool = False
    module: ModuleType = field(default_factory=lambda: ModuleType("triton"))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Fake:
        def target() -> Any:
            if self.no_gpu:
                raise RuntimeError("0 active drivers")
            return SimpleNamespace(backend=self.backend)

        runtime = SimpleNamespace(add_stages_inspection_hook=self.hook, interpret=self.interpret)
        compilation = SimpleNamespace(instrumentation_mode=self.mode)
        active = SimpleNamespace(get_current_target=target)
        self.module.__dict__.update(
            __version__=self.version,
            knobs=SimpleNamespace(runtime=runtime, compilation=compilation),
            runtime=SimpleNamespace(driver=SimpleNamespace(active=active)),
        )
        compiler = ModuleType("triton.compiler.compiler")
        compiler.__dict__["CompiledKernel"] = CompiledKernel
        for name, module in (("triton", self.module), ("triton.compiler.compiler", compiler)):
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "triton.compiler", ModuleType("triton.compiler"))
        return self

    @property
    def knobs(self) -> Any:
        return self.module.__dict__["knobs"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake().install(monkeypatch)


def compiled(fake: Fake, text: str = WAITS, name: str = "k") -> tuple[str, Any]:
    """What the stages make of PTX: the text, and the machine code, here the text too."""
    stages: dict[str, Any] = {"ptx": lambda source, _: source, "cubin": lambda source, _: source}
    fake.knobs.runtime.add_stages_inspection_hook(None, stages, None, None, 90)
    metadata = {"name": name, "num_warps": 4, "shared": 0}
    ptx = stages["ptx"](text, metadata)
    return ptx, stages["cubin"](ptx, metadata)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No marks spill here."""
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda _: (32, 0))


def test_everything_is_as_before_when_the_block_ends(fake: Fake) -> None:
    before = CompiledKernel.launch_metadata
    with TritonCapture():
        assert CompiledKernel.launch_metadata is not before
        assert fake.knobs.compilation.instrumentation_mode.startswith("warplens-")
    assert CompiledKernel.launch_metadata is before
    assert fake.knobs.runtime.add_stages_inspection_hook is None
    assert fake.knobs.compilation.instrumentation_mode == ""


def test_caches_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {TritonOptions(kernels=k, selection=Selection(level)).key for k in (None, "a") for level in ("waits", "all")}
    assert len(keys) == 4
    newer = Fake(version="3.9.0").install(monkeypatch)
    with TritonCapture(TritonOptions()):
        key, digest = newer.knobs.runtime.add_stages_inspection_hook()
        assert TritonOptions().key in key
        assert digest
        assert newer.knobs.compilation.instrumentation_mode == ""


@pytest.mark.usefixtures("roomy")
def test_a_hook_that_was_there_is_called_first_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def other(*arguments: Any) -> Any:
        calls.append(len(arguments))
        return ("their key", "their hash") if not arguments else None

    theirs = Fake(version="3.9.0", hook=other).install(monkeypatch)
    with TritonCapture():
        assert theirs.knobs.runtime.add_stages_inspection_hook()[0].startswith("their key")
        compiled(theirs)
    assert calls == [0, 5]
    assert theirs.knobs.runtime.add_stages_inspection_hook is other


def test_what_somebody_else_set_meanwhile_is_left_alone(fake: Fake) -> None:
    def other() -> None: ...

    with pytest.warns(TritonWarning, match="set by somebody else"), TritonCapture():
        fake.knobs.runtime.add_stages_inspection_hook = other
    assert fake.knobs.runtime.add_stages_inspection_hook is other


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"version": "3.5.1"}, "Triton 3.5.1 is not supported, 3.6 or newer is"),
        ({"version": "main"}, "is not supported"),
        ({"interpret": True}, "TRITON_INTERPRET"),
        ({"backend": "hip"}, "compiles for hip"),
        ({"mode": "instrumentation"}, "instrumented by something else"),
        ({"no_gpu": True}, "finds no GPU"),
    ],
)
def test_what_cannot_be_recorded_is_one_line_and_changes_nothing(
    own: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = Fake(**own).install(monkeypatch)
    before = CompiledKernel.launch_metadata
    capture = TritonCapture()
    with pytest.warns(TritonWarning, match=words):
        capture.start()
    assert CompiledKernel.launch_metadata is before
    assert unfit.knobs.runtime.add_stages_inspection_hook is None
    capture.stop()
    assert len(capture.notes) == 1
    assert capture.recording() is None


def test_without_triton_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(TritonWarning, match="cannot be imported"), record() as recorded:
        pass
    with pytest.raises(SitesError, match="nothing was recorded: Triton cannot be imported"):
        _ = recorded.trace


def test_a_program_that_fails_keeps_what_was_recorded(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    made = synthesis.fake_recording()
    kept = Recording(made.manifest, made.records)
    monkeypatch.setattr(TritonCapture, "recording", lambda _: kept)

    def program() -> None:
        with record(tmp_path / "run.wlens"):
            raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program"):
        program()
    assert len(open_trace(tmp_path / "run.wlens").spans) > 0


@pytest.mark.usefixtures("roomy")
def test_kernels_whose_name_fits_are_marked(fake: Fake) -> None:
    with TritonCapture(TritonOptions(kernels="^k$")):
        marked, cubin = compiled(fake)
        clean, _ = compiled(fake, name="other")
    assert layout.DESCRIPTOR_SYMBOL in marked
    assert cubin == marked
    assert clean == WAITS


def test_ptx_that_cannot_be_marked_runs_as_it_is(fake: Fake, roomy: None) -> None:
    del roomy
    with pytest.warns(TritonWarning, match="k is not marked: .*sm_80 or newer"), TritonCapture():
        ptx, _ = compiled(fake, WAITS.replace("sm_90", "sm_70"))
    assert ptx == WAITS.replace("sm_90", "sm_70")


def test_marks_that_spill_give_way_to_fewer_and_in_the_end_to_none(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda text: (40, 8 * text.count("wait barrier 0")))
    monkeypatch.setattr(triton_builds, "instrument", stand_in)
    with pytest.warns(TritonWarning, match="k has no registers for all of its marks"), TritonCapture():
        fewer, _ = compiled(fake)
    assert fewer.startswith("// coarse ()")
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda text: (40, 8 * ("//" in text)))
    with pytest.warns(TritonWarning, match="k is not marked: its registers would spill"), TritonCapture():
        none, _ = compiled(fake)
    assert none == WAITS


def stand_in(text: str, selection: Selection, *, most_registers: int | None = None) -> Any:
    """Says in the text what was asked for."""
    waits = "" if selection.kinds == () else "wait barrier 0"
    head = f"// {selection.level} {selection.kinds} {waits} {most_registers}\n"
    return SimpleNamespace(text=head + text, kernels=[])


def test_marks_that_leave_fewer_blocks_are_tried_with_fewer_registers(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 threads: six blocks with 40 registers, four with 50."""
    text = WAITS.replace(".visible .entry k(.param .u32 n)", ".visible .entry k(.param .u32 n)\n.reqntid 256")
    registers = {True: 40, False: 50}
    monkeypatch.setattr(
        triton_builds,
        "registers_and_frame",
        lambda own: (40 if "warplens" not in own else registers[".maxnreg 40" in own], 0),
    )
    with TritonCapture() as capture:
        limited, _ = compiled(fake, text)
    assert ".maxnreg 40" in limited
    assert capture.notes == []
    registers[True] = 50
    with pytest.warns(TritonWarning, match="its marks leave 4 blocks on an SM instead of 6"), TritonCapture():
        wide, _ = compiled(fake, text)
    assert ".maxnreg" not in wide


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "blocks"),
    [(40, 256, 0, 6), (41, 256, 0, 5), (50, 256, 0, 4), (255, 256, 0, 1), (32, 1024, 0, 2), (16, 32, 100_000, 2)],
)
def test_blocks_on_an_sm(registers: int, threads: int, shared: int, blocks: int) -> None:
    launch = Launch(90, threads, shared)
    assert launch.blocks(registers) == blocks
    assert launch.blocks(launch.most_registers(blocks)) >= blocks


def chunks_of(*grids: tuple[int, int]) -> Any:
    """A last chunk for each (grid id, hash of its site set)."""
    out = np.zeros((len(grids), layout.CHUNK_WORDS), np.uint32)
    for row, (grid, digest) in zip(out, grids, strict=True):
        row[layout.WORD_GRID] = grid
        row[layout.WORD_META] = layout.ChunkFlag.BLOCK_RECORD << layout.META_FLAGS_SHIFT
        row[layout.BLOCK_RECORD_WORD + layout.BLOCK_SITES_HASH] = digest
    return out


def test_grids_go_to_launches_of_their_kernel_in_order() -> None:
    launches = [1, 2, 1, 1]
    assert capture_triton._launch_grids(chunks_of((9, 1), (7, 1), (8, 2)), launches) == [7, 8, 9, None]
    assert capture_triton._launch_grids(chunks_of((8, 2)), launches) == [None, 8, None, None]
    assert capture_triton._launch_grids(chunks_of(), launches) == [None] * 4


class FakeGpu:
    """Memory that holds what a machine wrote."""

    device, step_ns, facts = 0, 32, None

    def __init__(self, chunks: Any, lost: tuple[int, int]) -> None:
        self.chunks, self.lost = chunks, lost
        self.state_before, self.calibration = None, list[dict[str, Any]]()

    def drain(self) -> tuple[Any, int, int]:
        return self.chunks, *self.lost


def test_what_is_read_is_a_trace_also_where_launches_found_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    done = recorder.run(recorder.STRAIGHT.format(threads=64), grid=3, turns=recorder.DESCRIPTOR + 64)
    sites = done.trace.manifest["site_sets"][0]
    monkeypatch.setattr("warplens.capture.machine.clock_state", lambda _: None)
    monkeypatch.delattr(capture_triton, "audit_builds")
    capture = TritonCapture(TritonOptions(note="a note"))
    resources = {"registers": 40, "shared_bytes": 0, "local_bytes": 0, "resident_blocks": 6}
    entry = {"name": "straight", "site_set": sites["name"], "clean": None, "traced": resources, "clean_ns": None}
    entry |= {"traced_ns": None, "not_measured": "none was added", "mark_cost_cycles": None}
    kernel = capture_triton._Kernel("straight", entry, sites, 0, 2, 0, (1, 1, 1), b"no cubin")
    capture._kernels.append(kernel)
    capture._launches += [(kernel, (3, 1, 1), 0), (kernel, (3, 1, 1), 0)]
    recording = capture._read(FakeGpu(done.chunks, (30, 6)))  # type: ignore[arg-type]
    trace = Trace.from_recording(recording)
    assert [launch["records"] is None for launch in trace.manifest["launches"]] == [False, True]
    assert sum(launch["lost_events"] for launch in trace.manifest["launches"]) == 30
    assert len(trace.spans) == 3 * 2 * len(sites["sites"])
    assert "lost_events" in set(trace.problems["kind"])
    assert trace.manifest["note"] == "a note"
    assert "the audit failed" in trace.manifest["kernels"][0]["audit"]["not_audited"]


def test_options_that_cannot_be_meant_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"kernels": "("}, {"every_block": 0}, {"slab_chunks": 0})
    for wrong in wrongs:
        with pytest.raises(UsageError):
            TritonOptions(**wrong)


def test_a_launch_that_cannot_be_recorded_is_made_all_the_same(fake: Fake) -> None:
    del fake
    kernel = CompiledKernel()
    kernel.__dict__.update(name="k", asm={"ptx": layout.DESCRIPTOR_SYMBOL, "cubin": b"damaged"})
    with pytest.warns(TritonWarning, match="k is not recorded: .*not a 64-bit ELF"), TritonCapture() as capture:
        assert kernel.launch_metadata((1, 2), 7, "a") == ((1, 2), 7, ("a",))
    assert capture.recording() is None
    assert importlib.import_module("triton.compiler.compiler").CompiledKernel is CompiledKernel
