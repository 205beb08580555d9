"""Recording Triton kernels: what is marked, what is told, and what is left behind. Triton and the GPU are stand-ins."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import synthesis
from tests.unit.capture import triton_stand_in as stand_in
from tests.unit.capture.triton_stand_in import WAITS, Autotuner, CompiledKernel, Fake
from tests.unit.instrument import test_recorder as recorder
from warplens import layout
from warplens.capture import triton_builds
from warplens.capture.python import PythonOptions
from warplens.capture.python_manifest import Kernel, Launch, Loaded, make_recording
from warplens.capture.recording import Recording
from warplens.capture.request import Request
from warplens.capture.residency import Launch as Residency
from warplens.capture.triton import TritonCapture, TritonWarning
from warplens.errors import DeviceError, SitesError, UsageError
from warplens.instrument import Selection
from warplens.trace import Trace
from warplens.trace import open as open_trace
from warplens.triton import record


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake().install(monkeypatch)


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No marks spill here."""
    monkeypatch.setattr(triton_builds, "registers_and_frame", lambda _: (32, 0))


def loaded(text: str = WAITS, **facts: Any) -> tuple[str, Any]:
    """PTX and machine code, here the same, of a kernel that Triton has loaded."""
    kernel = CompiledKernel(text, **facts)
    kernel._init_handles()
    return kernel.asm["ptx"], kernel.loaded.decode()


def test_everything_is_as_before_when_the_block_ends(fake: Fake) -> None:
    before = dict(vars(CompiledKernel)), dict(vars(Autotuner))
    proton = sys.modules["triton.profiler.language"].__dict__["record"]
    with TritonCapture():
        assert CompiledKernel.launch_metadata is not before[0]["launch_metadata"]
        assert fake.knobs.compilation.instrumentation_mode.startswith("warplens-")
        assert sys.modules["triton.profiler.language"].__dict__["record"] is not proton
    assert (dict(vars(CompiledKernel)), dict(vars(Autotuner))) == before
    assert sys.modules["triton.profiler.language"].__dict__["record"] is proton
    assert fake.knobs.runtime.add_stages_inspection_hook is None
    assert fake.knobs.compilation.instrumentation_mode == ""


def test_caches_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {PythonOptions(kernels=k, selection=Selection(level)).key for k in (None, "a") for level in ("waits", "all")}
    assert len(keys) == 4
    newer = Fake(version="3.9.0").install(monkeypatch)
    with TritonCapture(PythonOptions()):
        key, digest = newer.knobs.runtime.add_stages_inspection_hook()
        assert PythonOptions().key in key
        assert digest
        assert newer.knobs.compilation.instrumentation_mode == ""


def test_a_hook_that_was_there_is_called_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def other(*arguments: Any) -> Any:
        calls.append(len(arguments))
        return ("their key", "their hash") if not arguments else None

    theirs = Fake(version="3.9.0", hook=other).install(monkeypatch)
    with TritonCapture():
        hook = theirs.knobs.runtime.add_stages_inspection_hook
        assert hook()[0].startswith("their key")
        hook(None, {}, None, None, 90)
    assert calls == [0, 5]
    assert theirs.knobs.runtime.add_stages_inspection_hook is other


def test_what_somebody_else_set_meanwhile_is_left_alone(fake: Fake) -> None:
    with pytest.warns(TritonWarning, match="set by somebody else"), TritonCapture():
        fake.knobs.compilation.instrumentation_mode = "theirs"
    assert fake.knobs.compilation.instrumentation_mode == "theirs"


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"version": "3.5.1"}, "Triton 3.5.1 is not supported, 3.6 or newer is"),
        ({"version": "main"}, "is not supported"),
        ({"interpret": True}, "TRITON_INTERPRET"),
        ({"mode": "instrumentation"}, "instrumented by something else"),
    ],
)
def test_what_cannot_be_recorded_is_one_line_and_changes_nothing(
    own: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = Fake(**own).install(monkeypatch)
    before = dict(vars(CompiledKernel))
    capture = TritonCapture()
    with pytest.warns(TritonWarning, match=words):
        capture.start()
    assert dict(vars(CompiledKernel)) == before
    assert unfit.knobs.runtime.add_stages_inspection_hook is None
    capture.stop()
    assert len(capture.notes) == 1
    assert capture.recording() is None


@pytest.mark.parametrize("missing", ["triton.knobs", "triton.knobs.compilation", "CompiledKernel.launch_metadata"])
def test_of_a_triton_that_has_not_what_is_needed_one_line_says_so(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Fake(version="5.0.0").install(monkeypatch)
    knobs, hook = newer.knobs, newer.knobs.runtime.add_stages_inspection_hook
    if missing == "triton.knobs":
        del newer.module.__dict__["knobs"]
    elif "knobs" in missing:
        del knobs.compilation
    else:
        monkeypatch.delattr(CompiledKernel, "launch_metadata")
    capture = TritonCapture(quiet=True)
    with capture:
        pass
    (note,) = capture.notes
    assert note.startswith(
        f"Triton 5.0.0 is not supported, for it has no {missing if 'knobs' in missing else 'triton.'}"
    )
    assert note.endswith(": nothing is recorded")
    assert knobs.runtime.add_stages_inspection_hook is hook


def test_what_is_said_of_an_error_is_its_first_line_and_where_something_is_recorded_all_the_same_that_is_no_loss(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.knobs.cache.dir = "/proc/none"

    def no_driver(_: Any) -> Any:
        raise DeviceError("no driver\nand what to do")

    with TritonCapture(quiet=True) as capture:
        monkeypatch.setattr(capture.door, "loaded", no_driver)
        CompiledKernel().launch_metadata((1,), 7)
    assert capture.told == ["k is not recorded: no driver"]
    assert [note.partition(":")[0] for note in capture.notes] == [
        "Triton's cache /proc/none cannot be written",
        "k is not recorded",
    ]


@pytest.mark.usefixtures("fake", "roomy")
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"target": SimpleNamespace(backend="hip", arch="gfx942")}, "compiles for hip"),
        ({"profile_scratch_size": 128}, "k is instrumented by Proton already"),
    ],
)
def test_a_kernel_that_cannot_be_recorded_is_one_line_and_runs_as_it_is(facts: dict[str, Any], words: str) -> None:
    with TritonCapture() as capture:
        with pytest.warns(TritonWarning, match=words):
            assert loaded(**facts) == (WAITS, WAITS)
        loaded(**facts)
    assert len(capture.notes) == 1


@pytest.mark.usefixtures("fake", "roomy")
def test_where_warnings_are_errors_the_program_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(), TritonCapture():
        warnings.simplefilter("error")
        assert loaded(WAITS.replace("sm_90", "sm_70"))[0] == WAITS.replace("sm_90", "sm_70")
    assert "k is not marked" in capsys.readouterr().err


def test_two_recordings_at_once_are_one(fake: Fake) -> None:
    with TritonCapture():
        hooked = CompiledKernel.launch_metadata
        with pytest.warns(TritonWarning, match="under way"), TritonCapture():
            assert CompiledKernel.launch_metadata is hooked
        assert fake.knobs.compilation.instrumentation_mode.startswith("warplens-")


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


@pytest.mark.usefixtures("fake", "roomy")
def test_kernels_whose_name_fits_are_marked() -> None:
    with TritonCapture(PythonOptions(kernels="^k$")):
        marked, cubin = loaded()
        clean, _ = loaded(name="other")
    assert layout.DESCRIPTOR_SYMBOL in marked
    assert cubin == marked
    assert clean == WAITS
    assert loaded() == (WAITS, WAITS)


@pytest.mark.usefixtures("fake", "roomy")
def test_a_kernel_of_a_cache_without_ptx_is_marked_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(WAITS)
    kernel = CompiledKernel()
    del kernel.asm["ptx"]
    kernel.metadata_group["k.ptx"] = str(tmp_path / "k.ptx")
    with TritonCapture():
        kernel._init_handles()
    assert layout.DESCRIPTOR_SYMBOL in kernel.loaded.decode()
    bare = CompiledKernel()
    del bare.asm["ptx"]
    with pytest.warns(TritonWarning, match="k is not marked: Triton kept no PTX of it"), TritonCapture():
        bare._init_handles()
    assert bare.loaded == WAITS.encode()


@pytest.mark.usefixtures("fake", "roomy")
def test_ptx_that_cannot_be_marked_runs_as_it_is() -> None:
    old = WAITS.replace("sm_90", "sm_70")
    with pytest.warns(TritonWarning, match="k is not marked: .*sm_80 or newer"), TritonCapture():
        assert loaded(old) == (old, old)


@pytest.mark.usefixtures("fake", "roomy")
def test_where_ptxas_refuses_marks_the_kernel_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> bytes:
        print("what Triton prints")
        raise RuntimeError("ptxas failed with error code 255\nand a long log")

    monkeypatch.setattr(stand_in.Backend, "assemble", staticmethod(refuse))
    with pytest.warns(TritonWarning, match="k is not marked: ptxas failed with error code 255$"), TritonCapture():
        assert loaded() == (WAITS, WAITS)


@pytest.mark.usefixtures("roomy")
def test_what_an_autotuner_tries_runs_clean_and_compiles_as_without_recording(fake: Fake) -> None:
    tried, chosen = CompiledKernel(), CompiledKernel()
    with TritonCapture():
        assert Autotuner()._bench(tried) == ""
        assert fake.knobs.compilation.instrumentation_mode.startswith("warplens-")
        chosen._init_handles()
    assert tried.loaded == WAITS.encode()
    assert layout.DESCRIPTOR_SYMBOL in chosen.loaded.decode()
    each = CompiledKernel()
    with TritonCapture(PythonOptions(each_config=True)):
        assert Autotuner()._bench(each).startswith("warplens-")
    assert layout.DESCRIPTOR_SYMBOL in each.loaded.decode()


def test_a_cache_that_cannot_be_written_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Fake(cache="/proc/none").install(monkeypatch)
    with pytest.warns(TritonWarning, match="cache /proc/none cannot be written"), TritonCapture():
        assert Path(there.knobs.cache.dir).is_dir()
    assert there.knobs.cache.dir == "/proc/none"


def test_inductors_own_launcher_is_off_while_recording(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.delenv("TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER", raising=False)
    with TritonCapture():
        assert os.environ["TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER"] == "0"
    assert "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER" not in os.environ
    config: Any = ModuleType("torch._inductor.config")
    config.use_static_cuda_launcher = True
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)
    with TritonCapture():
        assert not config.use_static_cuda_launcher
    assert config.use_static_cuda_launcher


@pytest.mark.usefixtures("fake", "roomy")
def test_what_inductors_autotuner_tries_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    heuristics: Any = ModuleType("torch._inductor.runtime.triton_heuristics")

    class CachingAutotuner:
        def bench(self, capture: TritonCapture) -> int:
            return capture.door.hooks.trying

    heuristics.CachingAutotuner = CachingAutotuner
    before = CachingAutotuner.bench
    monkeypatch.setitem(sys.modules, heuristics.__name__, heuristics)
    with TritonCapture() as capture:
        loaded()
        loaded()
        assert CachingAutotuner().bench(capture) == 1
        assert capture.door.hooks.trying == 0
    assert CachingAutotuner.bench is before


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "blocks"),
    [
        (40, 256, 0, 6),
        (41, 256, 0, 5),
        (50, 256, 0, 4),
        (255, 256, 0, 1),
        (32, 1024, 0, 2),
        (16, 32, 100_000, 2),
        (16, 32, 0, 32),
    ],
)
def test_blocks_on_an_sm(registers: int, threads: int, shared: int, blocks: int) -> None:
    launch = Residency(90, threads, shared)
    assert launch.blocks(registers) == blocks
    assert launch.blocks(launch.most_registers(blocks)) >= blocks


MARKED = Loaded("k", "k", 0, 0, b"", {}, "waits", Residency(90, 128, 0))


class FakeMemory:
    """Memory that holds what a machine wrote."""

    device, step_ns, facts = 0, 32, None

    def __init__(self, chunks: Any, lost: tuple[int, int]) -> None:
        self.chunks, self.lost = chunks, lost
        self.state_before, self.calibration = None, list[dict[str, Any]]()

    def drain(self, stream: int) -> tuple[Any, int, int]:
        del stream
        return self.chunks, *self.lost


def test_what_is_read_is_a_trace_also_where_launches_found_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    done = recorder.run(recorder.STRAIGHT.format(threads=64), grid=3, turns=recorder.DESCRIPTOR + 64)
    sites = done.trace.manifest["site_sets"][0]
    monkeypatch.setattr("warplens.capture.machine.clock_state", lambda _: None)

    def fail(_: bytes) -> str:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr("warplens.capture.audited.disassemble", fail)
    resources = {"registers": 40, "shared_bytes": 0, "local_bytes": 0, "resident_blocks": 6}
    entry = {"name": "straight", "site_set": sites["name"], "clean": None, "traced": resources, "clean_ns": None}
    entry |= {"traced_ns": None, "not_measured": "none was added", "mark_cost_cycles": None}
    loaded = Loaded("straight", "straight", 0, 0, b"no cubin", sites, "waits", Residency(90, 64, 0))
    kernel = Kernel(loaded, entry, sites, 0)
    launches = [Launch.of(kernel, (3,), None, None, 0, captured=False, kept=True)] * 2
    memory: Any = FakeMemory(done.chunks, (30, 6))
    recording = make_recording(memory, 0, [kernel], launches, PythonOptions(note="a note"), [])
    assert recording is not None
    trace = Trace.from_recording(recording)
    assert [launch["records"] is None for launch in trace.manifest["launches"]] == [False, True]
    assert sum(launch["lost_events"] for launch in trace.manifest["launches"]) == 30
    assert len(trace.spans) == 3 * 2 * len(sites["sites"])
    assert "lost_events" in set(trace.problems["kind"])
    assert trace.manifest["note"] == "a note"
    assert trace.manifest["kernels"][0]["audit"]["not_audited"] == "the audit failed: not foreseen"
    one = make_recording(memory, 0, [kernel], launches[:1], PythonOptions(blocks=(1,)), [])
    assert one is not None
    assert set(Trace.from_recording(one).spans["block"]) == {1}


def test_options_that_cannot_be_meant_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"kernels": "("}, {"every_block": 0}, {"slab_chunks": 0})
    wrongs += ({"launch_skip": -1}, {"launch_count": 0})
    for wrong in wrongs:
        with pytest.raises(UsageError):
            PythonOptions(**wrong)


@pytest.mark.usefixtures("fake")
def test_a_launch_that_cannot_be_recorded_is_made_all_the_same() -> None:
    kernel = CompiledKernel(layout.DESCRIPTOR_SYMBOL)
    with TritonCapture() as capture:
        with pytest.warns(TritonWarning, match="k is not recorded: .*not a 64-bit ELF"):
            assert kernel.launch_metadata((1, 2), 7, "a") == ((1, 2), 7, ("a",))
        assert kernel.launch_metadata((1, 2), 7, "a") == ((1, 2), 7, ("a",))
    assert capture.recording() is None
    assert capture.ran == {"k": (2, 0)}


class Recorded:
    """Memory that keeps what it was told."""

    def __init__(self) -> None:
        self.switched: list[tuple[bool, int]] = []
        self.own_stream = 99
        self.on = True

    def switch(self, on: bool, stream: int) -> None:
        if on is not self.on:
            self.switched.append((on, stream))
        self.on = on


@pytest.mark.parametrize(
    ("skip", "count", "kept", "switched"),
    [
        (0, None, [0, 1, 2, 3, 7], [(False, 7)]),
        (1, 2, [1, 2], [(False, 7), (True, 7), (False, 7), (True, 99), (False, 7)]),
        (3, 5, [3, 7], [(False, 7), (True, 7), (False, 7)]),
    ],
)
@pytest.mark.usefixtures("fake")
def test_launches_are_chosen_by_their_number(
    skip: int, count: int | None, kept: list[int], switched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warplens.capture.python.is_captured", lambda stream: stream == 5)
    memory = Recorded()
    kernel = CompiledKernel()
    with TritonCapture(PythonOptions(launch_skip=skip, launch_count=count)) as capture:
        capture._gpu = memory  # type: ignore[assignment]
        monkeypatch.setattr(capture.door, "loaded", lambda _: MARKED)
        monkeypatch.setattr(capture, "_point", lambda *_: Kernel(MARKED, {}, {}, 0))
        for number in range(4):
            kernel.launch_metadata((number + 1,), 7)
        kernel.launch_metadata((9,), 5)
        kernel.launch_metadata((8,), 7)  # recording stays on, for the graph may be replayed
        capture.on = False
        kernel.launch_metadata((8,), 7)
        capture._gpu = None
    made = [Launch.of(*own) for own in capture._launches]
    assert [own.grid[0] - 1 for own in made if own.kept and not own.captured] == kept
    assert [own.grid[0] for own in made if not own.kept] == ([] if count is None or skip == 3 else [8])
    assert [own.grid for own in made if own.captured] == [(9, 1, 1)]
    assert memory.switched == switched


@pytest.mark.usefixtures("fake")
def test_grids_and_a_switch_choose_launches_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warplens.capture.python.is_captured", lambda _: False)
    monkeypatch.setattr("warplens.capture.python.time", SimpleNamespace(monotonic=iter(range(1, 99)).__next__))
    kernel, switch = CompiledKernel(), tmp_path / "on"
    with TritonCapture(PythonOptions(grids=((4, 1, 1),), switch=str(switch))) as capture:
        capture._gpu = Recorded()  # type: ignore[assignment]
        monkeypatch.setattr(capture.door, "loaded", lambda _: MARKED)
        monkeypatch.setattr(capture, "_point", lambda *_: Kernel(MARKED, {}, {}, 0))
        kernel.launch_metadata((4,), 7)
        switch.touch()
        kernel.launch_metadata((4,), 7)
        kernel.launch_metadata((5, 1), 7)
        switch.unlink()
        kernel.launch_metadata((4, 1, 1), 7)
        capture._gpu = None
    assert [own[1] for own in capture._launches] == [(4,)]


def test_a_budget_goes_by_the_counts_that_record_left(tmp_path: Path) -> None:
    (tmp_path / "counts").write_text('{"k": [2, {"ptx:8 wait barrier 0": 10}]}', encoding="utf-8")
    asked: Any = SimpleNamespace(request=Request(budget="3", counts=str(tmp_path / "counts")), folder="/f")
    asked.host = asked.command = None
    own = PythonOptions.of(asked)
    assert own.selection.budget is not None
    assert own.selection.budget.of_kernel("k") == {"ptx:8 wait barrier 0": 5.0}
    assert own.key != PythonOptions().key


def test_what_record_asks_for_and_triton_has_not_is_named() -> None:
    request = SimpleNamespace(**{**vars(Request()), "keep": "newest", "policy": "stream"})
    asked: Any = SimpleNamespace(request=request, folder="/f", host=None, command=None)
    asked.request.warp_mask = 1
    assert PythonOptions.of(asked).ignored == ("keep",)
    asked.request.keep = "oldest"
    assert PythonOptions.of(asked).ignored == ()
