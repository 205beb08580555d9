"""Marks in the source of Triton kernels: what they leave for the compiler, and when."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import warplens.triton
from tests.unit.capture.triton_stand_in import CompiledKernel, Fake
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture, TritonWarning
from warplens.instrument.source import marker


def semantic_of(key: str) -> Any:
    """What the compiler hands over, of a compilation whose options have this key."""
    return SimpleNamespace(builder=SimpleNamespace(options=SimpleNamespace(instrumentation_mode=key)))


SEMANTIC = semantic_of(PythonOptions().key)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake().install(monkeypatch)


def marks() -> None:
    """As Triton's compiler calls them."""
    warplens.triton.phase(SimpleNamespace(value="load"), _semantic=SEMANTIC)  # type: ignore[arg-type]
    warplens.triton.mark("here", _semantic=SEMANTIC)
    with warplens.triton.range("all", _semantic=SEMANTIC):
        pass


def test_marks_leave_nothing_unless_the_kernel_is_recorded(fake: Fake) -> None:
    marks()
    assert fake.emitted == []
    with TritonCapture() as capture:
        marks()
        with capture.door.hooks.set_aside():
            marks()
    marks()
    verbs = [("phase", "load"), ("mark", "here"), ("range_push", "all"), ("range_pop", "all")]
    assert fake.emitted == [marker(verb, name) for verb, name in verbs]


def test_a_compilation_without_the_recordings_key_gets_no_marks(fake: Fake) -> None:
    """Inductor's, with Triton 3.6: what it makes goes into the caches of clean kernels."""
    with TritonCapture():
        warplens.triton.phase("load", _semantic=semantic_of(""))
    assert fake.emitted == []


LEFT_OUT = "are left out: the program set a hook of its own after Triton was imported"


def theirs(*arguments: Any) -> Any:
    return None if arguments else ("theirs", "their hash")


def test_under_a_key_of_the_programs_own_hook_no_marks_are_left_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton 3.7 and newer: the hook's key is all that keeps marked kernels out of the program's cache."""
    fake = Fake(version="3.9.0").install(monkeypatch)
    with TritonCapture(quiet=True) as capture:
        fake.knobs.runtime.add_stages_inspection_hook = theirs
        marks()
        with capture.door.hooks.set_aside():  # an autotuner tries kernels as the program has them compiled
            assert fake.knobs.runtime.add_stages_inspection_hook is theirs
        marks()
        fake.knobs.runtime.add_stages_inspection_hook = None
        marks()
        fake.knobs.runtime.add_stages_inspection_hook = theirs
    assert fake.emitted == []
    assert [LEFT_OUT in note for note in capture.notes] == [True]
    assert fake.knobs.runtime.add_stages_inspection_hook is theirs


def test_kernels_of_a_cache_without_marks_are_told_of_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled then that could be asked."""
    fake = Fake(version="3.9.0").install(monkeypatch)
    with TritonCapture(PythonOptions(kernels="none of them")) as capture:
        fake.knobs.runtime.add_stages_inspection_hook = theirs
        with pytest.warns(TritonWarning, match=LEFT_OUT):
            CompiledKernel()._init_handles()
    assert len(capture.notes) == 1


def test_a_hook_that_asks_the_one_that_was_there_has_marks_until_the_recording_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Fake(version="3.9.0").install(monkeypatch)
    with TritonCapture() as capture:
        ours = fake.knobs.runtime.add_stages_inspection_hook

        def asks(*arguments: Any) -> Any:
            return ours(*arguments) if arguments else ("theirs" + ours()[0], "their hash" + ours()[1])

        fake.knobs.runtime.add_stages_inspection_hook = asks
        marks()
        assert PythonOptions().key in asks()[0]
        with capture.door.hooks.set_aside():
            assert asks() == ("theirs", "their hash")
    assert len(fake.emitted) == 4
    assert capture.notes == []
    assert asks() == ("theirs", "their hash")


def test_a_kernel_that_marks_keep_from_compiling_is_compiled_without(fake: Fake) -> None:
    def compiles(_: Any) -> str:
        before = len(fake.emitted)
        marks()
        if len(fake.emitted) > before:
            raise RuntimeError("PassManager::run failed\nand much more")
        return "compiled"

    def never(_: Any) -> str:
        marks()
        raise ValueError("an error of the kernel")

    function = sys.modules["triton.runtime.jit"].__dict__["JITFunction"]
    function._do_compile = compiles
    words = r"does not compile with the marks of its source \(PassManager::run failed\): they are left out"
    with pytest.warns(TritonWarning, match=words), TritonCapture():
        assert function()._do_compile() == "compiled"
    assert function._do_compile is compiles
    function._do_compile = never
    with TritonCapture() as capture, pytest.raises(ValueError, match="an error of the kernel"):
        function()._do_compile()
    assert capture.notes == []


def test_marks_do_nothing_where_kernels_are_interpreted(fake: Fake) -> None:
    with TritonCapture():
        warplens.triton.phase("load")
    assert fake.emitted == []


def test_a_name_that_is_no_text_is_an_error_of_the_kernel() -> None:
    with pytest.raises(TypeError, match="a mark's name is 3"):
        warplens.triton.phase(3, _semantic=SEMANTIC)  # type: ignore[arg-type]


def test_protons_scopes_become_ranges_unless_proton_instruments(fake: Fake) -> None:
    proton = sys.modules["triton.profiler.language"].__dict__
    with TritonCapture():
        proton["record"](True, SimpleNamespace(value="load"), SEMANTIC)
        proton["record"](is_start=False, scope_name="load", semantic=SEMANTIC)
        sys.modules["triton.profiler.flags"].__dict__["flags"].instrumentation_on = True
        proton["record"](True, "load", SEMANTIC)
    assert fake.emitted == [marker("range_push", "load"), marker("range_pop", "load"), "proton True load"]
