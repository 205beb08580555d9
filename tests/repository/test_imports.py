"""What is imported when, seen from fresh interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

HEAVY = ("numpy", "polars", "matplotlib", "torch", "triton", "cuda", "click", "rich")


def loaded_after(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after `statement`."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


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


def test_help_imports_no_tables_and_no_pictures() -> None:
    run_help = "import warplens.cli\ntry:\n    warplens.cli.main(['--help'])\nexcept SystemExit:\n    pass"
    assert loaded_after(run_help).isdisjoint({"numpy", "polars", "matplotlib", "cuda", "torch", "triton"})


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
