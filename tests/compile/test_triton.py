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

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install triton"),
]


def run(cache: Path) -> Any:
    program = str(Path(__file__).with_name("with_triton.py"))
    variables = {**os.environ, "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run([sys.executable, program], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kernels_are_marked_while_recording_alone_also_from_a_cache(tmp_path: Path) -> None:
    for _ in range(2):  # the second time Triton compiles nothing
        found = run(tmp_path)
        steps = found["steps"]
        assert steps["norm, before"]["loaded"] == [["layer_norm", False]]
        assert steps["norm"]["loaded"] == [["layer_norm", True]]
        assert steps["marked"]["loaded"] == [["marked_matmul", True]]
        assert steps["tuned"]["loaded"] == [["layer_norm", False], ["layer_norm", False], ["layer_norm", True]]
        assert steps["norm, behind"]["loaded"] == []
        assert steps["marked, behind"]["loaded"] == [["marked_matmul", False]]
        marks = {name: step["marks"] for name, step in steps.items()}
        assert marks == {**dict.fromkeys(steps, 0), "marked": 5}
        assert any("has moved cp.async of line" in note for note in found["notes"])
