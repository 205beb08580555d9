"""`warplens record` and a program that uses Triton: what is told of it. Triton is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warplens.cli.record import _tell_left_out

STAND_IN = """
from types import ModuleType as _Module, SimpleNamespace as _Space
import sys as _sys
__version__ = "{version}"
knobs = _Space(
    runtime=_Space(add_stages_inspection_hook=None, interpret={interpret}),
    compilation=_Space(instrumentation_mode=""), cache=_Space(dir={cache!r}),
)
class CompiledKernel:
    name = "k"
    module = None
    metadata = _Space(target=_Space(backend="{backend}"))
    asm = {{"ptx": "no PTX", "cubin": b"ours"}}
    kernel = b"ours"
    def _init_handles(self):
        self.module = 1
    def launch_metadata(self, grid, stream):
        self._init_handles()
for _name, _own in (
    ("compiler", {{}}), ("compiler.compiler", {{"CompiledKernel": CompiledKernel, "make_backend": None}}),
    ("runtime", {{}}), ("runtime.autotuner", {{"Autotuner": type("Autotuner", (), {{"_bench": None}})}}),
):
    _sys.modules["triton." + _name] = _module = _Module("triton." + _name)
    vars(_module).update(_own)
"""
PROGRAM = """
import triton, sys
kernel = sys.modules["triton.compiler.compiler"].CompiledKernel()
kernel.launch_metadata((1,), 0)
print("ran", kernel.kernel, sys.modules["triton.compiler.compiler"].CompiledKernel.launch_metadata.__name__)
sys.exit(3)
"""


def recorded(
    place: Path, program: str = PROGRAM, *, options: tuple[str, ...] = (), **how: Any
) -> subprocess.CompletedProcess[str]:
    package = place / "lib" / "triton"
    package.mkdir(parents=True)
    facts = {"version": "3.6.0", "interpret": False, "backend": "cuda", "cache": str(place), **how}
    (package / "__init__.py").write_text(STAND_IN.format(**facts), encoding="utf-8")
    (place / "program.py").write_text(program, encoding="utf-8")
    source = str(Path(__file__).parents[3] / "src")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place / "lib"), source])}
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", *options, "program.py"]
    return subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"version": "3.5.1"}, "not recorded: Triton 3.5.1 is not supported, 3.6 or newer is: nothing is recorded"),
        ({"interpret": True}, "not recorded: Triton interprets its kernels (TRITON_INTERPRET)"),
        ({"backend": "hip"}, "not recorded: Triton compiles for hip: only kernels of NVIDIA GPUs are recorded"),
        ({}, "not recorded: k is not marked: this module is not a 64-bit ELF"),
        ({"cache": "/proc/none"}, "not recorded: Triton's cache /proc/none cannot be written"),
    ],
)
def test_what_cannot_be_recorded_is_one_line_and_the_program_goes_on(
    how: dict[str, Any], words: str, tmp_path: Path
) -> None:
    done = recorded(tmp_path, **how)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "ran b'ours' launch_metadata\n"
    assert done.stderr.count(words) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_kernels_that_ran_without_marks_are_listed(tmp_path: Path) -> None:
    done = recorded(tmp_path)
    assert "1  k  (has no marks that ran)" in done.stderr


def test_kernels_that_were_not_asked_for_are_listed_and_run_as_ever(tmp_path: Path) -> None:
    done = recorded(tmp_path, options=("-k", "other"))
    assert "1  k  (does not match -k)" in done.stderr
    assert "not recorded: k" not in done.stderr


def test_a_triton_that_fails_at_its_import_fails_as_ever(tmp_path: Path) -> None:
    done = recorded(tmp_path, "import triton", version='" + 1 + "')
    assert "TypeError" in done.stderr
    assert done.returncode == 1


def test_a_fork_does_not_record_for_its_parent(tmp_path: Path) -> None:
    program = PROGRAM.replace("sys.exit(3)", "import os\nif os.fork() == 0: raise SystemExit\nos.wait()")
    done = recorded(tmp_path, program)
    assert (done.stdout.count("ran"), done.stderr.count("k is not marked")) == (1, 1)


def test_what_is_not_marked_is_listed_as_far_as_it_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_left_out([{"remarks": [f"k: {number} waits not marked" for number in range(40)]}])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "not marked: k: 0 waits not marked"
    assert lines[-1] == "not marked: 10 more, in the traces' manifests"
    assert len(lines) == 31
