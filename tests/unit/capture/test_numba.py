"""Recording kernels of Numba: what is marked, told and left behind, and launches from the first to the trace.

Numba, the driver and its memory are stand-ins; the marked PTX runs on the machine of tests/ptx_machine.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warplens
from tests.unit.capture.gpu_stand_in import DESCRIPTOR, GRAPH_STREAM, Gpu, assemble, install, trace_of
from tests.unit.capture.numba_stand_in import Fake, jit
from warplens import layout
from warplens.capture import driver, python_builds
from warplens.capture.assemble import Wish
from warplens.capture.numba import NumbaDoor
from warplens.capture.python import PythonCapture, PythonOptions
from warplens.errors import KernelWarning, PtxError
from warplens.instrument import Selection


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(python_builds, "assemble", assemble)
    return Fake().install(monkeypatch)


@pytest.fixture
def gpu(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    fake.gpu = install(monkeypatch)
    return fake.gpu


def record(program: Callable[[], Any], **options: Any) -> PythonCapture:
    capture = PythonCapture(PythonOptions(capacity_bytes=8 << 20, **options), quiet=True)
    capture.join(NumbaDoor)
    try:
        program()
    finally:
        capture.stop()
    return capture


def is_marked(text: str) -> bool:
    return layout.DESCRIPTOR_SYMBOL in text


def marked_launches(fake: Fake) -> list[bool]:
    """Of launches since: whether they were of a kernel with marks."""
    out = [is_marked(text) for text, *_ in fake.launches]
    fake.launches.clear()
    return out


@pytest.mark.parametrize("lto", [True, False])
def test_marks_are_there_while_recording_alone_and_the_clean_kernel_stays(gpu: Gpu, fake: Fake, lto: bool) -> None:
    del gpu
    kernel, before = jit("straight", lto=lto), fake.state()
    own: list[Any] = []

    def program() -> None:
        kernel[3, 64](1)
        assert fake.state() != before
        own.append(kernel.overloads[int,])
        assert not is_marked(own[0]._codelibrary.get_cufunc().kernel.text)

    capture = record(program)
    assert fake.state() == before
    kernel[3, 64](1)
    assert marked_launches(fake) == [True, False]
    assert [is_marked(text) for text in fake.loaded] == [False, True]
    assert own[0]._codelibrary.get_cubin().code.decode() in fake.loaded[0]
    assert capture.notes == []


def test_launches_are_told_apart_and_have_their_lines(gpu: Gpu) -> None:
    del gpu
    first, second = jit("straight"), jit("other", lto=False, lineinfo=True)

    def program() -> None:
        first[3, 64](1)
        second[2, 64, 7, 512](1)
        first[4, 64](1)
        first[1, 64](1.0)  # another signature is another kernel

    capture = record(program)
    trace = trace_of(capture)
    assert [own["name"] for own in trace.manifest["kernels"]] == ["straight", "other", "straight"]
    launches = trace.manifest["launches"]
    assert [(own["kernel"], own["grid"][0], own["stream"], own["shared_bytes"]) for own in launches] == [
        (0, 3, 0, 0),
        (1, 2, 7, 512),
        (0, 4, 0, 0),
        (2, 1, 0, 0),
    ]
    assert [own["grid_id"] for own in launches] == [1, 2, 3, 4]
    assert {tuple(own["block"]) for own in launches} == {(64, 1, 1)}
    assert capture.ran == {"straight": (3, 3), "other": (1, 1)}
    for site_set in trace.manifest["site_sets"]:
        assert "program.py:2 wait barrier 0" in {site["name"] for site in site_set["sites"]}
        assert {site["file"] for site in site_set["sites"] if site["line"] == 2} == {"/where/it/is/program.py"}
    assert trace.manifest["numba_cuda"] == "0.30.4"


def test_a_kernel_that_was_launched_before_is_recorded(gpu: Gpu, fake: Fake) -> None:
    del gpu
    kernel = jit("straight")
    kernel[1, 64](1)
    capture = record(lambda: kernel[2, 64](1))
    assert [own["grid"][0] for own in trace_of(capture).manifest["launches"]] == [2]
    assert marked_launches(fake) == [False, True]
    assert capture.notes == []


def test_a_later_recording_takes_what_is_loaded_unless_other_marks_are_asked_for(gpu: Gpu, fake: Fake) -> None:
    del gpu
    kernel = jit("straight")
    for _ in range(2):
        assert len(trace_of(record(lambda: kernel[2, 64](1))).manifest["launches"]) == 1
    assert len(fake.loaded) == 2
    assert record(lambda: kernel[2, 64](1), kernels="none").ran == {"straight": (1, 0)}
    other = trace_of(record(lambda: kernel[2, 64](1), selection=Selection("off")))
    assert len(fake.loaded) == 3
    assert other.manifest["kernels"][0]["instrumented"]["level"] == "off"
    assert fake.compiled == [("straight", False), ("straight", True), ("straight", True)]


def test_behind_the_recording_a_marked_kernel_of_a_graph_records_nothing(gpu: Gpu, fake: Fake) -> None:
    kernel = jit("straight")
    record(lambda: kernel[2, 64](1))
    assert [gpu.memory[DESCRIPTOR + 4 * n] for n in range(6)] == [0] * 6
    gpu.machine.touched.clear()
    gpu.run(fake.loaded[1], 2, 20)
    assert all(address < 1 << 40 for address in gpu.machine.touched)


def test_a_launch_in_a_graph_is_captured(gpu: Gpu, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = jit("straight")

    def program() -> None:
        kernel[1, 64](1)
        with monkeypatch.context() as captured:
            captured.setattr(gpu, "launch", lambda *_: None)
            kernel[2, 64, GRAPH_STREAM](1)
        for _ in range(2):
            gpu.run(fake.loaded[1], 2, 20)

    trace = trace_of(record(program))
    found = [(own["replay"], own["grid"][0], own["stream"]) for own in trace.manifest["launches"]]
    assert found == [(0, 1, 0), (0, 2, GRAPH_STREAM), (1, 2, GRAPH_STREAM)]


@pytest.mark.parametrize(("skip", "count", "kept"), [(0, 2, [1, 2]), (2, 1, [3]), (9, None, [])])
def test_launches_that_are_not_asked_for_write_nothing(gpu: Gpu, skip: int, count: int | None, kept: list[int]) -> None:
    del gpu
    kernel = jit("straight")
    capture = record(lambda: [kernel[2, 64](1) for _ in range(5)], launch_skip=skip, launch_count=count)
    if not kept:
        assert capture.recording() is None
        return
    assert [own["grid_id"] for own in trace_of(capture).manifest["launches"]] == kept
    assert capture.ran == {"straight": (5, len(kept))}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cooperative": True}, "it is launched cooperatively, and marks could leave too few blocks on the GPU"),
        ({"debug": True}, "it is compiled for debugging (debug=True)"),
        ({"link": ("/some/other.cu",)}, "it is linked with other code (other.cu), whose variables a second module"),
    ],
)
def test_a_kernel_that_can_have_no_marks_runs_as_ever(gpu: Gpu, fake: Fake, options: Any, why: str) -> None:
    del gpu
    kernel = jit("straight", **options)
    capture = record(lambda: [kernel[2, 64](1), kernel[2, 64](1)])
    assert [note.startswith(f"straight is not marked: {why}") for note in capture.notes] == [True], capture.notes
    assert capture.ran == {"straight": (2, 0)}
    assert marked_launches(fake) == [False, False]
    assert record(lambda: kernel[2, 64](1), kernels="other").notes == []


def test_what_limits_the_clean_kernel_limits_the_marked_one(gpu: Gpu, fake: Fake, monkeypatch: Any) -> None:
    del gpu
    wishes: list[Wish] = []

    def limited(text: str, wish: Wish) -> tuple[bytes, str]:
        wishes.append(wish)
        return assemble(text)

    monkeypatch.setattr(python_builds, "assemble", limited)
    kernel = jit("straight", max_registers=40, shared_memory_carveout=50)
    record(lambda: kernel[2, 64](1))
    assert set(wishes) == {Wish(40)}
    assert fake.carveouts == [(102, 50)]


def test_code_that_no_assembler_takes_runs_clean(gpu: Gpu, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    del gpu

    def refuse(*_: Any) -> Any:
        raise PtxError("nothing here turns PTX into machine code for sm_90: ptxas: not found\nmore")

    monkeypatch.setattr(python_builds, "assemble", refuse)
    kernel = jit("straight")
    capture = record(lambda: [kernel[2, 64](1), kernel[2, 64](1)])
    assert capture.notes == [
        "straight is not marked: nothing here turns PTX into machine code for sm_90: ptxas: not found"
    ]
    assert marked_launches(fake) == [False, False]


def test_machine_code_that_the_driver_refuses_runs_clean(gpu: Gpu, fake: Fake) -> None:
    del gpu
    fake.refuses = is_marked
    kernel = jit("straight")
    capture = record(lambda: kernel[2, 64](1))
    assert capture.notes == ["straight is not marked: CUDA_ERROR_INVALID_IMAGE"]
    assert marked_launches(fake) == [False]


def test_on_another_gpu_the_kernel_is_the_clean_one(gpu: Gpu, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    del gpu
    kernel, second = jit("straight"), jit("second")

    def program() -> None:
        kernel[1, 64](1)
        fake.current = 1
        monkeypatch.setattr(driver, "ensure_context", lambda: 1)
        kernel[2, 64](1)
        second[2, 64](1)

    capture = record(program)
    assert marked_launches(fake) == [True, False, False]
    assert capture.notes == [
        "second is not recorded: it runs on another GPU than the first kernel: one GPU is recorded"
    ]


def test_where_no_lines_can_be_had_marks_have_the_kernels_own_code(gpu: Gpu, fake: Fake) -> None:
    del gpu
    changed, fails, alone = jit("changed"), jit("fails"), jit("alone")
    vars(changed.py_func)["again"] = True  # each compilation gives other code, as where a global variable changed
    clean = alone.compile((int,))

    def program() -> None:
        changed[1, 64](1)
        clean.launch((1,), (1, 1, 1), (64, 1, 1))
        fake.breaks_with_lines = True
        fails[1, 64](1)

    capture = record(program)
    assert capture.notes == [
        "changed: its marks have no lines of the source: compiled with lines (lineinfo=True) it is not the same code",
        "alone: its marks have no lines of the source: it is not launched by what @cuda.jit made of it",
        "fails: its marks have no lines of the source: no lines today",
    ]
    assert marked_launches(fake) == [True, True, True]
    assert all(re.match(r"ptx:\d+", own["name"]) for own in trace_of(capture).manifest["site_sets"][0]["sites"])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            {"simulates": True},
            "Numba simulates its kernels on the CPU (NUMBA_ENABLE_CUDASIM): none of them is recorded",
        ),
        ({"implementation": "Built-in"}, "numba.cuda is Numba 0.68.0's own: kernels of numba-cuda are recorded"),
        (
            {"version": "0.1"},
            "numba-cuda 0.1 has no numba.cuda.codegen.CUDACodeLibrary.get_lto_ptx, as numba-cuda 0.30",
        ),
        (
            {"version": "0.2"},
            "numba-cuda 0.2 launches with other arguments than numba-cuda 0.30: none of its kernels is",
        ),
    ],
)
def test_a_numba_that_cannot_be_recorded_is_told(how: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(**how).install(monkeypatch)
    if how.get("version") == "0.1":
        monkeypatch.delattr(fake.modules["numba.cuda.codegen"].CUDACodeLibrary, "get_lto_ptx")
    if how.get("version") == "0.2":
        kernel = fake.modules["numba.cuda.dispatcher"]._Kernel
        monkeypatch.setattr(kernel, "launch", lambda self, config, *args: (self, config, args))
    before = fake.state()
    with (
        pytest.warns(KernelWarning, match=re.escape(why)),
        warplens.record(Path(os.devnull).parent / "shm" / "no.wlens"),
    ):
        assert fake.state() == before


def test_there_is_one_recording_at_a_time(fake: Fake) -> None:
    del fake
    inner: list[PythonCapture] = []
    record(lambda: inner.append(record(lambda: None)))
    assert inner[0].notes == [
        "another recording of Numba's kernels is under way in this process: this one records none"
    ]


def test_an_error_of_a_launch_is_the_programs_own(gpu: Gpu, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = jit("straight")

    def stop(*_: Any) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE")

    def program() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "launch", stop)
            with pytest.raises(RuntimeError, match=r"^CUDA_ERROR_INVALID_VALUE$"):
                kernel[2, 64](1)
        assert not is_marked(kernel.overloads[int,]._codelibrary.get_cufunc().kernel.text)

    assert record(program).notes == []
    assert marked_launches(fake) == [True]


def test_with_warplens_record_a_programs_kernels_go_into_one_file(gpu: Gpu, tmp_path: Path) -> None:
    del gpu
    kernel = jit("straight")
    with warplens.record(tmp_path / "run.wlens", launch_count=2, capacity_bytes=8 << 20) as rec:
        for _ in range(3):
            kernel[2, 64](1)
    assert (rec.files, rec.ran, rec.notes) == ([tmp_path / "run.wlens"], {"straight": (3, 2)}, [])
    assert rec.trace is not None
    assert rec.trace.launches.height == 2
