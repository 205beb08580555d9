"""Launches of kernels that are not recorded: so many are counted, and those behind them cost nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture import cupy_stand_in, test_cupy
from tests.unit.capture.gpu_stand_in import assemble
from tests.unit.capture.test_triton import MARKED, Recorded
from tests.unit.capture.triton_stand_in import CompiledKernel, Fake
from warplens.capture import cupy_builds, python_builds
from warplens.capture.python import COUNTED, PythonOptions
from warplens.capture.python_manifest import Kernel
from warplens.capture.triton import TritonCapture

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake().install(monkeypatch)


def names_of(kernel: CompiledKernel) -> list[Any]:
    """The class's own name, and which function sees its launches."""
    own = type(kernel)
    return [own.__name__, own.__qualname__, own.__module__, kernel.launch_metadata.__func__]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fake")
def test_launches_of_kernels_that_are_not_recorded_are_tritons_own_when_enough_were_counted() -> None:
    other, kernel, own = CompiledKernel(), CompiledKernel(), CompiledKernel.launch_metadata
    before = [names_of(one) for one in (other, kernel)]
    with TritonCapture(PythonOptions(kernels="another")) as capture:
        for _ in range(COUNTED - 1):
            kernel.launch_metadata((1,), 7)
        assert kernel.launch_metadata.__func__ is not own  # type: ignore[attr-defined]
        assert capture.uncounted == set()
        for _ in range(9):
            assert kernel.launch_metadata((1,), 7, "a") == ((1,), 7, ("a",))
        assert names_of(kernel) == before[1]
        assert isinstance(kernel, CompiledKernel)
        assert "launch_metadata" not in vars(kernel)
        assert other.launch_metadata.__func__ is not own  # type: ignore[attr-defined]
    assert capture.ran == {"k": (COUNTED, 0)}
    assert capture.uncounted == {"k"}
    assert type(kernel) is CompiledKernel
    assert [names_of(one) for one in (other, kernel)] == before


@pytest.mark.usefixtures("fake")
def test_launches_of_recorded_kernels_are_always_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warplens.capture.python.is_captured", lambda _: False)
    kernel = CompiledKernel()
    with TritonCapture(PythonOptions(grids=((2, 1, 1),))) as capture:
        capture._gpu = Recorded()  # type: ignore[assignment]
        monkeypatch.setattr(capture.door, "loaded", lambda _: MARKED)
        monkeypatch.setattr(capture, "_point", lambda *_: Kernel(MARKED, {}, {}, 0))
        for _ in range(COUNTED + 1):
            kernel.launch_metadata((1,), 7)
        kernel.launch_metadata((2,), 7)
        capture._gpu = None
    assert capture.ran == {"k": (COUNTED + 2, 1)}
    assert capture.uncounted == set()


def test_a_child_of_fork_sees_launches_again_that_its_parent_has_counted() -> None:
    program = """
from tests.unit.capture.triton_stand_in import CompiledKernel, Fake
from warplens.capture.python import COUNTED, PythonOptions
from warplens.capture.triton import TritonCapture
import os, pytest, sys
with pytest.MonkeyPatch.context() as patch:
    Fake().install(patch)
    kernel, begun = CompiledKernel(), []
    capture = TritonCapture(PythonOptions(kernels="another"), forked=lambda: begun.append(os.getpid()))
    with capture:
        for _ in range(COUNTED + 1):
            kernel.launch_metadata((1,), 7)
        assert type(kernel) is not CompiledKernel
        if os.fork() == 0:
            assert type(kernel) is CompiledKernel
            capture.put_back = lambda: None
            kernel.launch_metadata((1,), 7)
            assert begun == [os.getpid()]
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        assert type(kernel) is not CompiledKernel and begun == []
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_of_cupys_kernels_that_are_not_recorded_so_many_launches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_builds, "assemble", assemble)
    monkeypatch.setattr(cupy_builds, "_files", {})
    gc.collect()  # kernels of other tests
    cupy_stand_in.Fake().install(monkeypatch)
    kernel = cupy_stand_in.RawKernel(test_cupy.STRAIGHT, "straight")

    def program() -> None:
        for _ in range(COUNTED + 1):
            test_cupy.launched(kernel)

    for _ in range(2):  # what the first recording has settled the second one sees
        capture = test_cupy.record(program, kernels="another")
        assert capture.ran == {"straight": (COUNTED, 0)}
        assert capture.uncounted == {"straight"}
