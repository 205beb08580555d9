"""What is imported when, seen from fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("numpy", "polars", "matplotlib", "torch", "triton", "cuda", "click", "rich")


def output_of(statement: str, folder: Path | None = None) -> list[str]:
    """Lines that a fresh interpreter in `folder` writes; the last one: its modules after `statement`, as JSON."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def modules_after(statement: str, folder: Path | None = None) -> set[str]:
    """Whole names of the modules that a fresh interpreter holds after `statement`."""
    return set(json.loads(output_of(statement, folder)[-1]))


def loaded_after(statement: str) -> set[str]:
    """As `modules_after`, their top-level names alone."""
    return {name.split(".")[0] for name in modules_after(statement)}


def test_the_probe_sees_what_is_imported() -> None:
    assert "numpy" in loaded_after("import numpy")


def test_import_warplens_imports_nothing_heavy() -> None:
    assert loaded_after("import warplens").isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "module", ["warplens.capture", "warplens.trace.file", "warplens.triton", "warplens.instrument"]
)
def test_what_runs_in_the_traced_process_imports_neither_polars_nor_matplotlib(module: str) -> None:
    assert loaded_after(f"import {module}").isdisjoint({"polars", "matplotlib", "torch", "triton", "rich", "click"})


def test_decode_imports_neither_polars_nor_matplotlib() -> None:
    assert loaded_after("import warplens.decode").isdisjoint({"polars", "matplotlib", "cuda"})


@pytest.mark.parametrize("module", ["warplens", "warplens.decode", "warplens.instrument"])
def test_names_that_are_imported_when_asked_for_are_there_beforehand(module: str) -> None:
    """For whoever completes names, and for `import *`."""
    program = f"import {module} as own\nassert {{*own.__all__}} <= {{*dir(own)}}\nfrom {module} import *"
    assert output_of(f"{program}\nassert all(globals()[name] is not None for name in own.__all__)")


def test_help_imports_no_tables_and_no_pictures() -> None:
    run_help = "import warplens.cli\ntry:\n    warplens.cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert loaded_after(run_help).isdisjoint({"numpy", "polars", "matplotlib", "cuda", "torch", "triton"})


SLOW_TO_START = {"numpy", "polars", "matplotlib", "cuda", "warplens.layout", "warplens.instrument.module"}
"""Whole names. What imports numpy in this package imports warplens.layout."""


@pytest.mark.parametrize("arguments", [["--version"], ["record", "--help"]])
def test_a_command_that_only_says_something_imports_nothing_slow(arguments: list[str]) -> None:
    program = f"import warplens.cli\ntry:\n    warplens.cli.main({arguments})\nexcept SystemExit:\n    pass"
    assert modules_after(program).isdisjoint(SLOW_TO_START)


def test_record_of_a_program_that_matches_nothing_imports_nothing_slow_here_or_in_the_program(tmp_path: Path) -> None:
    own = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    arguments = ["record", "-k", "^nothing$", "-o", "run.wlens", "--", sys.executable, "-c", own]
    program = (
        f"import warplens.cli\ntry:\n    warplens.cli.main({arguments})\nexcept SystemExit as end:\n    code = end.code"
    )
    of_program, of_record = (set(json.loads(line)) for line in output_of(f"{program}\nassert code == 5", tmp_path))
    assert "warplens.capture.child" in of_record
    assert of_record.isdisjoint(SLOW_TO_START)
    assert "sitecustomize" in of_program
    assert not {name for name in of_program if name.split(".")[0] in ("warplens", "numpy")}
    assert list(tmp_path.iterdir()) == []


def fastest(arguments: list[str], runs: int = 7) -> float:
    """Seconds of the fastest of several runs: the others tell how busy the machine was."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True, timeout=60)
        times.append(time.perf_counter() - begin)
    return min(times)


def test_import_takes_less_than_200_ms_more_than_an_empty_interpreter() -> None:
    assert fastest(["-c", "import warplens"]) - fastest(["-c", "pass"]) < 0.2


def test_a_process_whose_kernels_are_not_wanted_reads_no_ptx_and_no_machine_code() -> None:
    """What `record` imports into a program that has imported Triton, before a kernel of its choice is there."""
    loaded = modules_after("import warplens.kernel.process, warplens.capture.triton")
    late = (
        "instrument.module",
        "audit",
        "capture.chosen",
        "capture.cupy",
        "capture.numba",
        "capture.cuda",
        "kernel.kernel",
    )
    assert loaded.isdisjoint(f"warplens.{name}" for name in late)
