"""`warplens record` and a program that uses Triton: what is told of it. Triton is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.synthesis import fake_recording
from warplens.capture.notes import read_notes
from warplens.capture.recording import Recording
from warplens.capture.request import Asked, Request
from warplens.cli.record import _tell_left_out, _tell_what_ran
from warplens.kernel.process import _Process
from warplens.trace.file import read_file

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
        ({"cache": "/proc/none"}, "note: Triton's cache /proc/none cannot be written"),
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


def test_of_a_kernel_for_amd_one_line_says_that_it_is_not_recorded(tmp_path: Path) -> None:
    """It has no PTX, which was a second line."""
    program = PROGRAM.replace("kernel.launch", "kernel.asm = {'amdgcn': ''}\nkernel.launch")
    said = recorded(tmp_path, program, backend="hip").stderr
    assert [line for line in said.splitlines() if line.startswith(("not recorded", "note"))] == [
        "not recorded: Triton compiles for hip: only kernels of NVIDIA GPUs are recorded"
    ]


def test_kernels_that_ran_without_marks_are_listed(tmp_path: Path) -> None:
    done = recorded(tmp_path)
    assert "1  k  (has no marks that ran)" in done.stderr


def test_a_kernel_with_marks_that_is_not_recorded_is_not_said_to_have_none(tmp_path: Path) -> None:
    program = PROGRAM.replace("kernel.launch", "kernel.asm = {'ptx': 'warplens_device', 'cubin': b''}\nkernel.launch")
    lines = recorded(tmp_path, program).stderr.splitlines()
    assert lines[1].startswith("not recorded: k: this module is not a 64-bit ELF file")
    assert "          1  k" in lines


def test_kernels_that_were_not_asked_for_are_listed_and_run_as_ever(tmp_path: Path) -> None:
    done = recorded(tmp_path, options=("-k", "other"))
    assert "1  k  (does not match -k)" in done.stderr
    assert "not recorded: k" not in done.stderr


def test_launches_that_were_not_all_counted_are_listed_as_so_many_or_more(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [{"name": name, "launches": 100, "or_more": name == "k", "matches": False} for name in ("k", "l")]
    _tell_what_ran(
        [{"kernels": kernels}, {"kernels": [{**kernels[0], "launches": 3, "or_more": False}]}], Request(kernels="x")
    )
    said = capsys.readouterr().err
    assert "  103 or more  k  (does not match -k)" in said
    assert "        100  l  (does not match -k)" in said


def test_a_triton_that_fails_at_its_import_fails_as_ever(tmp_path: Path) -> None:
    done = recorded(tmp_path, "import triton", version='" + 1 + "')
    assert "TypeError" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    "before",
    [
        "import importlib.util\nassert importlib.util.find_spec('triton') is not None",
        "import sys\npath, sys.path[:] = sys.path[:], []\ntry: import triton\nexcept ImportError: sys.path[:] = path",
    ],
    ids=["asked for", "not found at first"],
)
def test_kernels_are_seen_of_a_triton_that_was(before: str, tmp_path: Path) -> None:
    done = recorded(tmp_path, f"{before}\n{PROGRAM}")
    assert "1  k  (has no marks that ran)" in done.stderr


def test_a_fork_does_not_record_for_its_parent(tmp_path: Path) -> None:
    program = PROGRAM.replace("sys.exit(3)", "import os\nif os.fork() == 0: raise SystemExit\nos.wait()")
    done = recorded(tmp_path, program)
    assert (done.stdout.count("ran"), done.stderr.count("k is not marked")) == (1, 1)


CUPY = """
import sys
from types import ModuleType, SimpleNamespace
__version__ = "8.0"
cuda = SimpleNamespace(runtime=SimpleNamespace(is_hip=False))
for name in ("_core", "_core.raw", "_core.core", "cuda", "cuda.compiler"):
    sys.modules["cupy." + name] = ModuleType("cupy." + name)
"""
NUMBA = """
from types import SimpleNamespace
config = SimpleNamespace(ENABLE_CUDASIM=1)
"""


def test_each_package_is_waited_for_and_what_cannot_be_recorded_of_it_is_one_line(tmp_path: Path) -> None:
    other = tmp_path / "lib" / "cupy"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text(CUPY, encoding="utf-8")
    (tmp_path / "lib" / "numba" / "cuda").mkdir(parents=True)
    (tmp_path / "lib" / "numba" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "lib" / "numba" / "cuda" / "__init__.py").write_text(NUMBA, encoding="utf-8")
    done = recorded(tmp_path, f"import cupy, numba\nfrom numba import cuda\n{PROGRAM}")
    assert done.returncode == 3
    why = "Numba simulates its kernels on the CPU (NUMBA_ENABLE_CUDASIM): none of them is recorded"
    assert done.stderr.count(f"not recorded: {why}") == 1, done.stderr
    why = "CuPy 8.0 has no cupy._core.raw._get_raw_module, as CuPy 14 has: none of its kernels is recorded"
    assert done.stderr.count(f"not recorded: {why}") == 1, done.stderr
    assert "1  k  (has no marks that ran)" in done.stderr
    assert "Traceback" not in done.stderr


LAUNCH = """
import multiprocessing, os, sys
def launch():
    import triton
    sys.modules["triton.compiler.compiler"].CompiledKernel().launch_metadata((1,), 0)
def fork(then):
    if os.fork() == 0: then(); sys.exit()
    os.wait()
def worker():
    own = multiprocessing.get_context("fork").Process(target=launch)
    own.start(); own.join()
"""
FORKED = [
    "import triton; fork(launch)",
    "import triton; fork(lambda: fork(launch))",
    "import triton; worker()",
    "worker()",
]


@pytest.mark.parametrize("how", FORKED)
def test_a_child_of_fork_that_uses_triton_is_a_process_like_others(how: str, tmp_path: Path) -> None:
    done = recorded(tmp_path, LAUNCH + how)
    assert done.stderr.count("not recorded: k is not marked") == 1, done.stderr
    assert "1  k  (has no marks that ran)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_is_ended_before_its_records_were_read_has_left_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = _Process(Asked(Request(), str(tmp_path)))
    process.capture._doors.append(SimpleNamespace(package="Triton"))
    process._seen()
    assert read_notes(tmp_path) == []  # nothing is on the GPU yet
    process.capture._gpu = SimpleNamespace()  # type: ignore[assignment]
    process._seen()
    _tell_what_ran(read_notes(tmp_path), Request())
    said = capsys.readouterr().err
    assert f"not recorded: kernels of Triton in process {os.getpid()}: it ended before its records were read" in said
    assert "no launch was seen" not in said
    made = fake_recording(blocks=2, warps=1, sms=1)
    process._write(Recording(made.manifest, made.records))
    assert [path.suffix for path in tmp_path.iterdir()] == [".wlens"]


def test_what_is_whole_is_not_written_over_by_what_was_saved_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where the program ends by the Ctrl-C at which `record` asks for what is under way."""
    process = _Process(Asked(Request(), str(tmp_path)))
    made = fake_recording(blocks=2, warps=1, sms=1)
    part = Recording({**made.manifest, "complete": False, "stopped": None}, made.records)

    def unfinished(_: str) -> Recording:
        process._write(Recording(made.manifest, made.records))
        return part

    monkeypatch.setattr(process.capture, "unfinished", unfinished)
    assert process._save("Ctrl-C came while it ran") == (False, "")
    (path,) = tmp_path.glob("*.wlens")
    assert read_file(path).manifest["complete"]


def test_a_recording_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = _Process(Asked(Request(), str(tmp_path / "gone")))
    made = fake_recording(blocks=2, warps=1, sms=1)
    process._write(Recording(made.manifest, made.records))
    process.finish()
    assert "are not recorded: cannot write" in capsys.readouterr().err


def test_what_is_not_marked_is_listed_as_far_as_it_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_left_out([{"remarks": [f"k: {number} waits not marked" for number in range(40)]}])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "note: k: 0 waits not marked"
    assert lines[-1] == "note: 10 more lines, in the traces' manifests"
    assert len(lines) == 31
