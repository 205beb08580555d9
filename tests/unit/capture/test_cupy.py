"""Recording kernels of CuPy: what is marked, told and left behind, and launches from the first to the trace.

CuPy, the driver and its memory are stand-ins; the marked PTX runs on the machine of tests/ptx_machine.py.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warplens
from tests.unit.capture import cupy_stand_in as stand_in
from tests.unit.capture.cupy_stand_in import STREAM, CompileError, Fake, RawKernel, RawModule
from tests.unit.capture.gpu_stand_in import DESCRIPTOR, GRAPH_STREAM, Gpu, assemble, install, trace_of
from warplens import layout
from warplens.capture import cupy_builds, python_builds
from warplens.capture.cupy import CupyDoor
from warplens.capture.python import PythonCapture, PythonOptions
from warplens.errors import KernelWarning, PtxError
from warplens.instrument import Selection

STRAIGHT = '\nextern "C" __global__ void straight(int* n) { __syncthreads(); }'
BOTH = "__global__ void __launch_bounds__(64) straight(int* n) {}\n__global__ void loop(int* n) {}"
TEMPLATE = "template <typename T>\n__global__ void straight(T* n) {}  // void straight_float(void straight_double("


@pytest.fixture(autouse=True, scope="module")
def _only_own_objects() -> Iterator[None]:
    """What is there before is not looked through: collecting the garbage of a long run's many objects takes a while."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(python_builds, "assemble", assemble)
    monkeypatch.setattr(cupy_builds, "_files", {})
    gc.collect()  # kernels of other tests
    return Fake().install(monkeypatch)


@pytest.fixture
def gpu(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    fake.gpu = install(monkeypatch)
    return fake.gpu


def record(program: Callable[[], Any], **options: Any) -> PythonCapture:
    capture = PythonCapture(PythonOptions(capacity_bytes=8 << 20, **options), quiet=True)
    capture.join(CupyDoor)
    try:
        program()
    finally:
        capture.stop()
    return capture


def launched(kernel: RawKernel, grid: int = 3, **named: Any) -> RawKernel:
    kernel((grid,), (64,), (), **named)
    return kernel


def is_marked(text: str) -> bool:
    return layout.DESCRIPTOR_SYMBOL in text


def test_everything_is_as_before_when_the_recording_ends_and_no_cache_holds_a_mark(fake: Fake) -> None:
    before = fake.state()

    def program() -> None:
        assert fake.state() != before
        assert RawKernel(STRAIGHT, "straight").kernel

    capture = record(program)
    assert fake.state() == before
    assert [is_marked(text) for text in fake.loaded] == [True]
    assert fake.cache == {}
    assert capture.notes == []
    assert RawKernel(BOTH, "straight").kernel
    assert not is_marked(fake.loaded[-1])
    assert [is_marked(cubin.decode()) for cubin in fake.cache.values()] == [False]


def test_code_that_cupys_folder_has_is_compiled_anew(fake: Fake) -> None:
    fake.cache[STRAIGHT] = b"no PTX"
    record(lambda: RawKernel(STRAIGHT, "straight").kernel)
    assert [is_marked(text) for text in fake.loaded] == [True]
    assert fake.cache == {STRAIGHT: b"no PTX"}


def test_launches_of_all_kernels_are_told_apart_and_have_their_source(gpu: Gpu) -> None:
    del gpu

    def program() -> None:
        alone, module = RawKernel(STRAIGHT, "straight"), RawModule(code=BOTH)
        launched(alone, 3)
        launched(module.get_function("loop"), 2)
        launched(module.get_function("straight"), 1, shared_mem=512)
        launched(alone, 4)
        launched(module.get_function("loop"), 5)

    capture = record(program)
    trace = trace_of(capture)
    kernels = [own["name"] for own in trace.manifest["kernels"]]
    assert kernels == ["straight", "loop", "straight"]
    found = [(own["kernel"], own["grid"], own["shared_bytes"], own["grid_id"]) for own in trace.manifest["launches"]]
    grids = [3, 2, 1, 4, 5]
    numbers = [0, 1, 2, 0, 1]
    assert found == [
        (kernel, [grid, 1, 1], 512 if number == 3 else 0, number)
        for number, (kernel, grid) in enumerate(zip(numbers, grids, strict=True), 1)
    ]
    assert {(tuple(own["block"]), own["stream"]) for own in trace.manifest["launches"]} == {((64, 1, 1), STREAM)}
    assert capture.ran == {"straight": (3, 3), "loop": (2, 2)}
    recording = capture.recording()
    assert recording is not None
    assert recording.sources == {"cupy/straight.cu": STRAIGHT, "cupy/straight-2.cu": BOTH}
    sites = trace.manifest["site_sets"][0]["sites"]
    assert ("cupy/straight.cu", 2) in {(own["file"], own["line"]) for own in sites}
    assert "straight.cu:2 wait barrier 0" in {own["name"] for own in sites}
    assert trace.manifest["cupy"] == "14.2.0"


def test_templates_have_the_names_that_the_program_gives_them(gpu: Gpu) -> None:
    del gpu

    def program() -> None:
        module = RawModule(
            code=TEMPLATE.replace("void straight_float(", "").replace("straight(T", "straight_float(T"),
            name_expressions=NAMES,
        )
        for name in NAMES:
            launched(module.get_function(name))

    capture = record(program, kernels="<double>")
    assert capture.ran == {"straight<float>": (1, 0), "straight<double>": (1, 1)}
    assert [own["name"] for own in trace_of(capture).manifest["kernels"]] == ["straight<double>"]
    assert capture.notes == []


NAMES = ("straight<float>", "straight<double>")


@pytest.mark.parametrize(("skip", "count", "kept"), [(0, 2, [1, 2]), (2, 1, [3]), (3, None, [4, 5]), (9, None, [])])
def test_launches_that_are_not_asked_for_write_nothing(gpu: Gpu, skip: int, count: int | None, kept: list[int]) -> None:
    del gpu
    kernel = RawKernel(STRAIGHT, "straight")
    capture = record(lambda: [launched(kernel) for _ in range(5)], launch_skip=skip, launch_count=count)
    if not kept:
        assert capture.recording() is None
        return
    assert [own["grid_id"] for own in trace_of(capture).manifest["launches"]] == kept


def test_a_kernel_that_is_not_asked_for_writes_nothing_beside_one_that_is(gpu: Gpu) -> None:
    module = RawModule(code=BOTH)

    def program() -> None:
        for name in ("loop", "straight", "loop"):
            launched(module.get_function(name))

    assert record(program).ran == {"loop": (2, 2), "straight": (1, 1)}
    capture = record(program, kernels="loop")  # all kernels of the module have the marks of the first recording
    assert [own["grid_id"] for own in trace_of(capture).manifest["launches"]] == [4, 6]
    assert capture.ran == {"loop": (2, 2), "straight": (1, 0)}
    assert gpu.grids == 6


def test_behind_the_recording_a_marked_kernel_records_nothing(gpu: Gpu) -> None:
    kernel = RawKernel(STRAIGHT, "straight")
    record(lambda: launched(kernel))
    assert [gpu.memory[DESCRIPTOR + 4 * n] for n in range(6)] == [0] * 6
    gpu.machine.touched.clear()
    launched(kernel)
    assert all(address < 1 << 40 for address in gpu.machine.touched)


def test_a_later_recording_takes_marked_kernels_as_they_are(gpu: Gpu) -> None:
    del gpu
    kernel, clean = RawKernel(STRAIGHT, "straight"), RawModule(code=BOTH)
    record(lambda: [launched(kernel), launched(clean.get_function("straight"))], kernels="other")
    fresh = RawKernel(STRAIGHT + " ", "straight")
    first = record(lambda: launched(fresh), selection=Selection("off"))
    assert len(trace_of(first).manifest["launches"]) == 1
    capture = record(lambda: [launched(kernel), launched(fresh)])
    assert len(trace_of(capture).manifest["launches"]) == 1
    assert capture.notes == [
        "straight was loaded without marks by an earlier recording: it is not recorded",
        "straight has the marks of an earlier recording, which loaded it",
    ]


def test_a_module_stays_one_for_its_kernels_and_its_variables(fake: Fake) -> None:
    del fake
    module = RawModule(code=BOTH)
    kernels: list[RawKernel] = []
    record(lambda: kernels.append(module.get_function("straight")))
    assert module.module is kernels[0].kernel.module
    assert module.get_function("loop").kernel.module is module.module


def test_a_module_stays_loaded_until_its_records_are_read(gpu: Gpu, fake: Fake) -> None:
    del gpu

    def program() -> None:
        launched(RawKernel(STRAIGHT, "straight"))
        fake._memo.clear()  # as cupy.clear_memo does
        gc.collect()
        assert fake.unloaded == 0

    assert len(trace_of(record(program)).manifest["launches"]) == 1
    gc.collect()
    assert fake.unloaded == 1


def test_kernels_that_were_loaded_before_are_named_once(gpu: Gpu) -> None:
    del gpu
    early, module = RawKernel(STRAIGHT, "straight"), RawModule(code=BOTH)
    launched(early)
    loop = launched(module.get_function("loop"))

    def program() -> None:
        launched(early)
        launched(loop)
        launched(module.get_function("straight"))

    capture = record(program)
    assert capture.recording() is None
    too_late = "loaded before the recording began, and so not recorded: CuPy's"
    assert capture.notes == [f"{too_late} loop, straight", f"{too_late} straight"]
    assert record(program, kernels="other").notes == []


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"enable_cooperative_groups": True}, "it is launched cooperatively, and marks could leave too few blocks"),
        ({"options": ("-dc",)}, "it is compiled to be linked (-rdc), and its PTX is no whole program"),
        ({"options": ("-G",)}, "it is compiled for debugging (-G)"),
    ],
)
def test_code_that_can_have_no_marks_runs_as_ever(gpu: Gpu, fake: Fake, named: dict[str, Any], why: str) -> None:
    del gpu
    kernel = RawKernel(STRAIGHT, "straight", **named)
    capture = record(lambda: [launched(kernel), launched(kernel)])
    assert [note.startswith(f"straight is not marked: {why}") for note in capture.notes] == [True]
    assert list(fake.cache) == [STRAIGHT]
    assert not is_marked(fake.loaded[0])
    assert record(lambda: RawKernel(STRAIGHT + " ", "straight", **named).kernel, kernels="other").notes == []


def test_a_function_that_is_launched_cooperatively_is_not_recorded(gpu: Gpu) -> None:
    del gpu
    kernel = RawKernel(STRAIGHT, "straight")

    def program() -> None:
        kernel.kernel((2,), (64,), (), enable_cooperative_groups=True)
        kernel.kernel((1,), (64,), ())

    capture = record(program)
    assert [own["grid"][0] for own in trace_of(capture).manifest["launches"]] == [1]
    assert capture.notes == ["straight is launched cooperatively: such launches are not recorded"]


def test_a_file_is_loaded_as_it_stands_and_that_is_told(fake: Fake) -> None:
    capture = record(lambda: RawModule(path="/some/kernels.ptx").get_function("straight"))
    assert capture.notes == ["CuPy loads kernels.ptx as it stands (RawModule(path=...)): its kernels are not recorded"]
    assert fake.loaded == ["of a file"]


def test_an_error_in_the_source_is_the_programs_own(fake: Fake) -> None:
    del fake
    with pytest.raises(CompileError) as alone:
        assert RawKernel("error", "straight").kernel
    notes: list[str] = []

    def program() -> None:
        with pytest.raises(CompileError, match="^" + str(alone.value).replace("(", r"\(").replace(")", r"\)")):
            assert RawKernel("error", "straight").kernel

    notes += record(program).notes
    assert notes == []


def test_code_that_no_assembler_takes_runs_clean(gpu: Gpu, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    del gpu

    def refuse(*_: Any) -> Any:
        raise PtxError("nothing here turns PTX into machine code for sm_90: ptxas: not found")

    monkeypatch.setattr(python_builds, "assemble", refuse)
    kernel = RawKernel(STRAIGHT, "straight")
    capture = record(lambda: [launched(kernel), launched(kernel)])
    assert capture.notes == [
        "straight is not marked: nothing here turns PTX into machine code for sm_90: ptxas: not found"
    ]
    assert capture.ran == {"straight": (2, 0)}
    assert not is_marked(fake.loaded[0])


def test_machine_code_that_the_driver_refuses_is_loaded_clean(
    gpu: Gpu, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    del gpu
    load = stand_in.Module.load

    def refuse(module: Any, cubin: bytes) -> None:
        if is_marked(cubin.decode()):
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")
        load(module, cubin)

    monkeypatch.setattr(stand_in.Module, "load", refuse)
    kernel = RawKernel(STRAIGHT, "straight")
    capture = record(lambda: launched(kernel))
    assert capture.notes == ["straight is not marked: CUDA_ERROR_INVALID_IMAGE"]
    assert [is_marked(text) for text in fake.loaded] == [False]


def test_nvcc_makes_ptx_that_is_marked(gpu: Gpu, fake: Fake) -> None:
    del gpu
    kernel = RawKernel(STRAIGHT, "straight", ("-O3",), backend="nvcc")
    capture = record(lambda: launched(kernel))
    assert fake.compiled[-1] == ("straight.cu ptx", ("-O3", "-lineinfo"))
    sites = trace_of(capture).manifest["site_sets"][0]["sites"]
    assert ("cupy/straight.cu", 2) in {(own["file"], own["line"]) for own in sites}
    assert fake.cache == {}


def test_lines_are_asked_for_and_the_source_has_a_name(fake: Fake) -> None:
    record(lambda: RawKernel(BOTH, "loop", ("-std=c++17",)).kernel)
    assert fake.compiled == [("default_program", ()), ("cupy/straight.cu", ("-std=c++17", "-arch=sm_90", "-lineinfo"))]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"hip": True}, "CuPy 14.2.0 is for AMD's GPUs: only kernels of NVIDIA GPUs are recorded"),
        (
            {"version": "8.0"},
            "CuPy 8.0 has no cupy.cuda.compiler._NVRTCProgram, as CuPy 14 has: none of its kernels is",
        ),
    ],
)
def test_a_cupy_that_cannot_be_recorded_is_told(how: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(**how).install(monkeypatch)
    if "version" in how:
        del fake.modules["cupy.cuda.compiler"].__dict__["_NVRTCProgram"]
    before = fake.state()
    with pytest.warns(KernelWarning, match=why), warplens.record(Path(os.devnull).parent / "shm" / "no.wlens"):
        assert fake.state() == before


def test_there_is_one_recording_at_a_time(fake: Fake) -> None:
    del fake
    inner: list[PythonCapture] = []
    record(lambda: inner.append(record(lambda: None)))
    assert inner[0].notes == ["another recording of CuPy's kernels is under way in this process: this one records none"]


def test_what_somebody_else_has_set_meanwhile_stays(fake: Fake) -> None:
    core = fake.modules["cupy._core.core"]
    calls: list[str] = []

    def program() -> None:
        before = core.__dict__["compile_with_cache"]

        def theirs(source: str, *more: Any, **named: Any) -> Any:
            calls.append(source)
            return before(source, *more, **named)

        core.__dict__["compile_with_cache"] = theirs
        assert RawKernel(STRAIGHT, "straight").kernel

    capture = record(program)
    assert capture.notes == ["compile_with_cache was set by somebody else meanwhile, and stays as it is"]
    assert RawKernel(STRAIGHT + " ", "straight").kernel
    assert [is_marked(text) for text in fake.loaded] == [True, False]
    assert len(calls) == 2


def test_a_launch_in_a_graph_is_captured(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = RawKernel(STRAIGHT, "straight")
    graph: Any = type("Stream", (), {"ptr": GRAPH_STREAM})()

    def program() -> None:
        launched(kernel, 1)
        with monkeypatch.context() as captured:
            captured.setattr(gpu, "launch", lambda *_: None)
            kernel.kernel((2,), (64,), (), stream=graph)
        for _ in range(2):
            gpu.run(stand_in.fake.loaded[0], 2, 20)

    trace = trace_of(record(program))
    found = [(own["replay"], own["grid"][0], own["stream"]) for own in trace.manifest["launches"]]
    assert found == [(0, 1, STREAM), (0, 2, GRAPH_STREAM), (1, 2, GRAPH_STREAM)]


def test_with_warplens_record_a_programs_kernels_go_into_one_file(gpu: Gpu, tmp_path: Path) -> None:
    del gpu
    kernel = RawKernel(STRAIGHT, "straight")
    with warplens.record(tmp_path / "run.wlens", launch_count=2, capacity_bytes=8 << 20) as rec:
        for _ in range(3):
            launched(kernel)
    assert (rec.files, rec.ran, rec.notes) == ([tmp_path / "run.wlens"], {"straight": (3, 2)}, [])
    assert rec.trace is not None
    assert rec.trace.launches.height == 2
    assert "cupy" in sys.modules
