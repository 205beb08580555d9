"""Recording by the real Triton, without a GPU: which kernels get marks, and what its caches give afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.compile


def run(cache: Path, name: str, *arguments: str) -> Any:
    program = str(Path(__file__).with_name(name))
    variables = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    variables |= {"TRITON_CACHE_DIR": str(cache / "triton")}
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kernels_are_marked_while_recording_alone_also_from_a_cache(tmp_path: Path) -> None:
    for _ in range(2):  # the second time Triton compiles nothing
        found = run(tmp_path, "with_triton.py")
        steps = found["steps"]
        assert steps["norm, before"]["loaded"] == [["layer_norm", False]]
        assert steps["norm"]["loaded"] == [["layer_norm", True]]
        assert steps["marked"]["loaded"] == [["marked_matmul", True]]
        assert steps["tuned"]["loaded"] == [["layer_norm", False], ["layer_norm", False], ["layer_norm", True]]
        assert steps["norm, behind"]["loaded"] == []
        assert steps["marked, behind"]["loaded"] == [["marked_matmul", False]]
        marks = {name: step["marks"] for name, step in steps.items()}
        assert marks == {**dict.fromkeys(steps, 0), "marked": 5}
        assert found["logs"]
        assert all(found["logs"])  # ptxas' own words are seen, and Triton is not left printing them
        assert not found["variable"]
        assert any("has moved cp.async of line" in note for note in found["notes"])


def test_marks_of_the_source_do_not_get_into_the_cache_of_a_program_that_sets_its_own_hook(tmp_path: Path) -> None:
    for _ in range(2):  # the second time Triton compiles nothing, and says as much
        found = run(tmp_path, "with_triton.py", "hook")
        by_options = tuple(map(int, found["version"].split(".")[:2])) < (3, 7)
        assert found["steps"]["marked"] == {"marks": 5 if by_options else 0, "loaded": [["marked_matmul", True]]}
        assert sum("the program set a hook of its own" in note for note in found["notes"]) == (not by_options)
    if not by_options:
        kept = [path for path in tmp_path.rglob("*.ptx") if b"warplens.mark" in path.read_bytes()]
        assert kept == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install torch")
@pytest.mark.parametrize("threads", [1, 2], ids=["in the process", "by a worker"])
def test_what_inductor_compiles_is_marked_as_it_is_loaded_also_from_its_caches(threads: int, tmp_path: Path) -> None:
    for _ in range(2):
        found = run(tmp_path, "with_inductor.py", str(threads))
        assert found["notes"] == []
        assert set(map(tuple, found["loaded"])) == {("triton_poi_fused_silu_0", True)}
        assert found["seen"] == ["triton_poi_fused_silu_0"]
        assert found["own_launcher"]
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".cubin" for path in kept)
    assert not [path for path in kept if b"warplens_device" in path.read_bytes()]
