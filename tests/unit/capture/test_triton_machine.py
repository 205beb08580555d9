"""Recording from a kernel's first launch to its trace, on a GPU that is the machine of tests/ptx_machine.py.

Triton, the driver and its memory are stand-ins; the marked PTX runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warplens
from tests.unit.capture.gpu_stand_in import BAD, DESCRIPTOR, GRAPH_STREAM, Gpu, install, site_sets, trace_of
from tests.unit.capture.test_arena import FakeMemory
from tests.unit.capture.triton_stand_in import CompiledKernel, Fake
from tests.unit.instrument.test_recorder import LOOP, STRAIGHT
from warplens import layout
from warplens.capture import driver, python, python_manifest, python_memory, triton_builds
from warplens.capture import triton as capture_triton
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.decode.last import with_last
from warplens.decode.manifest import check
from warplens.decode.stopped import where_lines
from warplens.instrument.staged import own_shared_bytes
from warplens.layout import ChunkFlag


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    Fake().install(monkeypatch)
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda _: (32, 0))
    monkeypatch.setattr(triton_builds, "shared_bytes", lambda cubin, _: own_shared_bytes(cubin.decode()))
    monkeypatch.setattr(capture_triton, "read_site_sets", site_sets)
    return install(monkeypatch)


def run(gpu: Gpu, kernel: CompiledKernel, grid: int, grid_id: int) -> None:
    gpu.run(kernel.loaded.decode(), grid, grid_id, 32 * kernel.metadata.num_warps)


def launch(gpu: Gpu, kernel: CompiledKernel, grid: int) -> None:
    """As Triton launches."""
    kernel.launch_metadata((grid,), 7)
    gpu.launch(kernel.loaded.decode(), grid, 32 * kernel.metadata.num_warps)


def kernel_of(text: str, name: str, threads: int) -> CompiledKernel:
    return CompiledKernel(text.format(threads=threads), name=name, num_warps=threads // 32)


def record(gpu: Gpu, program: Callable[[], None], **options: Any) -> TritonCapture:
    del gpu
    capture = TritonCapture(PythonOptions(capacity_bytes=8 << 20, **options), quiet=True)
    with capture:
        program()
    return capture


def test_the_stand_ins_take_no_name_away_that_a_module_imported_later_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: set(vars(module)) for name, module in sys.modules.items() if name.startswith("warplens")}
    Fake().install(monkeypatch)
    install(monkeypatch)
    assert not {name: gone for name, own in before.items() if (gone := own - set(vars(sys.modules[name])))}


def test_launches_of_two_kernels_are_told_apart(gpu: Gpu) -> None:
    one, other = kernel_of(STRAIGHT, "straight", 64), kernel_of(LOOP, "loop", 32)

    def program() -> None:
        for grid, kernel in ((3, one), (2, other), (4, one)):
            launch(gpu, kernel, grid)

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


def test_a_kernel_that_keeps_its_state_in_shared_memory_is_recorded_as_any_other(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean build has 1024 bytes less of shared memory."""

    def spills(cubin: bytes) -> tuple[int, int]:
        return 32, 8 * (b"%wl_" in cubin and b"warplens_state" not in cubin)

    monkeypatch.setattr(triton_builds, "registers_and_frame", spills)
    monkeypatch.setattr(triton_builds, "shared_bytes", lambda own, _: 1024 * own.count(b"warplens_state["))
    taken = {"registers": 32, "shared_bytes": 1024, "local_bytes": 0, "resident_blocks": 32}
    function = SimpleNamespace(resources=lambda *_: taken)
    monkeypatch.setattr(python_manifest, "Function", lambda *_: function)
    kernel = kernel_of(LOOP, "loop", 64)
    trace = trace_of(record(gpu, lambda: launch(gpu, kernel, 3)))
    assert b"warplens_state" in kernel.loaded
    assert len(trace.spans) == 3 * 2 * (1 + 4 * 3)
    assert not BAD & set(trace.problems["kind"])
    entry = trace.manifest["kernels"][0]
    assert (entry["traced"]["shared_bytes"], entry["clean"]["shared_bytes"]) == (1024, 0)
    assert any("state in shared memory" in line for line in entry["instrumented"]["left_out"])


@pytest.mark.parametrize(("skip", "count", "kept"), [(0, 2, [1, 2]), (2, 1, [3]), (3, None, [4, 5]), (9, None, [])])
def test_launches_that_are_not_asked_for_write_nothing(gpu: Gpu, skip: int, count: int | None, kept: list[int]) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)

    def program() -> None:
        for _ in range(5):
            launch(gpu, kernel, 3)

    capture = record(gpu, program, launch_skip=skip, launch_count=count)
    if not kept:
        assert capture.recording() is None
        return
    assert [own["grid_id"] for own in trace_of(capture).manifest["launches"]] == kept


def test_replays_of_a_graph_are_launches_and_are_chosen_by_their_number(gpu: Gpu) -> None:
    one, other = kernel_of(STRAIGHT, "straight", 64), kernel_of(LOOP, "loop", 32)

    def program() -> None:
        launch(gpu, one, 3)
        launch(gpu, other, 2)
        one.launch_metadata((2,), GRAPH_STREAM)
        other.launch_metadata((1,), GRAPH_STREAM)
        for _ in range(4):
            run(gpu, one, 2, 20)
            run(gpu, other, 1, 21)
        launch(gpu, one, 3)

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
    record(gpu, lambda: launch(gpu, kernel, 1))
    assert [gpu.memory[DESCRIPTOR + 4 * n] for n in range(6)] == [0] * 6
    gpu.machine.touched.clear()
    run(gpu, kernel, 2, 9)
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
        launch(gpu, kernel, 3)
        capture.on = True
        launch(gpu, kernel, 3)
        capture.on = False
        launch(gpu, kernel, 3)
    trace = trace_of(capture)
    assert [own["grid_id"] for own in trace.manifest["launches"]] == [2]
    assert set(trace.spans["block"]) == {0, 2}


def test_with_warplens_record_both_kinds_of_kernels_share_one_call(gpu: Gpu, tmp_path: Path) -> None:
    kernel = kernel_of(STRAIGHT, "straight", 64)
    with warplens.record(tmp_path / "run.wlens", launch_count=2, capacity_bytes=8 << 20) as rec:
        for _ in range(3):
            launch(gpu, kernel, 3)
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
            launch(gpu, kernel, 3)
        assert capture._reader is not None
        capture._reader.join(60)
        assert [len(own.manifest["launches"]) for own in done] == [2]
        launch(gpu, kernel, 3)
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


def unwrite_last(of: Any, block: int) -> int:
    """Takes the last record of a block's first warp out of memory, as if the warp had not come so far; the record."""
    chunks = FakeMemory.at(of.chunks_address, of.chunks * layout.CHUNK_BYTES).view(np.uint32).reshape(-1, 32)
    warp = chunks[:, layout.WORD_META] & ((1 << layout.META_WARP_BITS) - 1)
    grid = int(chunks[:, layout.WORD_GRID].max())
    own = np.flatnonzero(
        (chunks[:, layout.WORD_META] != 0)
        & (chunks[:, layout.WORD_GRID] == grid)
        & (chunks[:, layout.WORD_BLOCK] == block)
        & (warp == 0)
    )
    row = int(own[np.argmax(chunks[own, layout.WORD_SEQUENCE])])
    chunks[row, layout.BLOCK_RECORD_WORD :] = 0
    chunks[row, layout.WORD_META] &= ~np.uint32(int(ChunkFlag.BLOCK_RECORD) << layout.META_FLAGS_SHIFT)
    at = layout.HEADER_WORDS + int(np.flatnonzero(chunks[row, layout.HEADER_WORDS :])[-1])
    record = int(chunks[row, at])
    chunks[row, at] = 0
    return record


def begun() -> tuple[TritonCapture, CompiledKernel]:
    """A capture that goes on, and a kernel."""
    capture = TritonCapture(PythonOptions(capacity_bytes=8 << 20), quiet=True, outlives=True)
    capture.start()
    return capture, kernel_of(STRAIGHT, "straight", 64)


def test_the_launch_that_hangs_is_the_last_one_and_those_behind_it_have_not_begun(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, kernel = begun()
    for _ in range(3):
        launch(gpu, kernel, 3)
    for _ in range(2):  # made, and the GPU has not come to them
        kernel.launch_metadata((3,), 7)
    memory = capture._gpu
    assert memory is not None
    unwrite_last(memory.arena, 1)
    monkeypatch.setattr(python_memory.Memory, "is_idle", lambda *_: False)
    found = capture.unfinished("the time-out")
    assert found is not None
    assert [own["grid_id"] for own in found.manifest["launches"]] == [1, 2, 3]
    stopped = found.manifest["stopped"]
    assert (stopped["why"], stopped["from"], found.manifest["complete"]) == ("the time-out", "records", False)
    assert found.manifest["kernels"][0]["audit"]["not_audited"] == "the program was being stopped"
    manifest = with_last(check(found.manifest), found.records)
    assert [row[:2] for row in manifest["stopped"]["last"]] == [[1, 0]]
    assert manifest["stopped"]["ended"] == 3 * 2 - 1
    lines = where_lines(manifest, found.records)
    assert lines[0] == "Where each warp last was:"
    assert lines[1].startswith("  block 1 warp 0: ")
    assert capture.unfinished("again") is not None  # it goes on
    capture.stop()


def test_a_gpu_that_has_ended_its_work_leaves_complete_launches_alone(gpu: Gpu) -> None:
    capture, kernel = begun()
    assert capture.unfinished("nothing yet") is None
    for _ in range(2):
        launch(gpu, kernel, 3)
    found = capture.unfinished("the time-out")
    assert found is not None
    assert (found.manifest["stopped"], found.manifest["complete"]) == (None, False)
    assert len(found.manifest["launches"]) == 2
    capture.stop()
    assert len(trace_of(capture).manifest["launches"]) == 2


def test_a_launch_that_came_to_no_mark_is_the_one_that_hangs(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, kernel = begun()
    launch(gpu, kernel, 3)
    kernel.launch_metadata((3,), 7)
    monkeypatch.setattr(python_memory.Memory, "is_idle", lambda *_: False)
    found = capture.unfinished("the time-out")
    assert found is not None
    assert [own["records"] is None for own in found.manifest["launches"]] == [False, True]
    manifest = with_last(check(found.manifest), found.records)
    assert where_lines(manifest, found.records)[0] == "No warp had come to a mark."
    capture.stop()


@pytest.mark.parametrize("used_up", [False, True])
def test_of_a_launch_that_hangs_it_is_told_where_its_memory_is_used_up(
    used_up: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its warps count what they lose when they end, and until then nothing says that they are further on."""
    capture, kernel = begun()
    launch(gpu, kernel, 3)
    assert capture._gpu is not None
    arena = capture._gpu.arena
    unwrite_last(arena, 1)
    if used_up:
        cursor = FakeMemory.at(arena.address + layout.CONTROL_CURSORS, 4).view(np.uint32)
        cursor[0] = arena.shared_chunks
    monkeypatch.setattr(python_memory.Memory, "is_idle", lambda *_: False)
    found = capture.unfinished("the time-out")
    assert found is not None
    manifest = with_last(check(found.manifest), found.records)
    told = "  the memory for records was used up: warps may be further on than is shown (--capacity)"
    assert (told in where_lines(manifest, found.records)) == used_up
    capture.stop()


def test_launches_that_found_no_space_are_told_beside_one_that_may_have_ended(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warp without space records no end: its launch cannot be told from one that hangs."""
    capture, kernel = begun()
    launch(gpu, kernel, 3)
    assert capture._gpu is not None
    arena = capture._gpu.arena
    unwrite_last(arena, 1)
    cursors = FakeMemory.at(arena.address + layout.CONTROL_CURSORS, layout.CURSOR_COUNT * layout.CURSOR_STRIDE)
    cursors.view(np.uint32)[:: layout.CURSOR_STRIDE // 4] = arena.shared_chunks + np.arange(layout.CURSOR_COUNT)
    for _ in range(2):
        launch(gpu, kernel, 3)
    monkeypatch.setattr(python_memory.Memory, "is_idle", lambda *_: False)
    found = capture.unfinished("the time-out")
    assert found is not None
    manifest = with_last(check(found.manifest), found.records)
    text = "2 launches made behind this one left no record, perhaps for want of space"
    assert f"  {text}: it may be there that the program hangs" in where_lines(manifest, found.records)
    assert manifest["launches"][-1]["lost_events"] > 0
    capture.stop()


def test_that_the_gpu_was_idle_once_is_no_answer_to_a_later_question(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at Ctrl-C while a kernel runs, which then ends, and at the program's end while another one hangs."""
    capture, kernel = begun()
    launch(gpu, kernel, 3)
    memory = capture._gpu
    assert memory is not None
    turns = [threading.Event(), threading.Event()]
    ended = iter(turns)

    def wait(name: str, *_: Any, **__: Any) -> Any:
        return name == "cuCtxSynchronize" and next(ended).wait(20)

    with monkeypatch.context() as changed:
        changed.setattr(driver, "call", wait)
        changed.setattr(python_memory, "_SAME_QUESTION_S", 0.2)
        assert not memory.is_idle(0.01)
        turns[0].set()
        time.sleep(0.3)
        assert not memory.is_idle(0.01)
        turns[1].set()
        assert memory.is_idle(20)
    capture.stop()
