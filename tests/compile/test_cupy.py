"""Recording by the real CuPy, without a GPU: what its compiler makes, and what its cache holds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile


@pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None, reason="needs CuPy: pip install cupy-cuda13x nvidia-nvjitlink"
)
def test_modules_are_marked_while_recording_alone_and_no_cache_has_them(tmp_path: Path) -> None:
    program = str(Path(__file__).with_name("with_cupy.py"))
    variables = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mapping"] == {"scale<float>": "_Z5scaleIfEvPT_", "scale<double>": "_Z5scaleIdEvPT_"}
    assert found["kernels"] == {
        "softmax": ["softmax.cu:2-5 load", "softmax.cu:6 wait barrier 0", "softmax.cu:7-8 store"],
        **{
            f"scale<{own}>": [
                f"softmax.cu:10{what}" for what in (" load, store", " wait barrier 0", " load, store (2)")
            ]
            for own in ("float", "double")
        },
    }
    assert found["is_source"]
    assert found["marked"] == [True, False]
    assert found["cache"] == ["asked for cubin"]  # for the source with an error, which CuPy then compiles as ever
    assert found["cache_behind"] == ["asked for cubin", "given clean code"]
    assert 'identifier "x" is undefined' in found["error"]
    assert found["notes"] == []
    assert found["put_back"]
    assert found["is_theirs"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
