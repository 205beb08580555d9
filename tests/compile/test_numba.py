"""Recording by the real Numba, without a GPU: what its compiler makes, what it loads and launches, and its cache."""

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

PROGRAM = Path(__file__).with_name("with_numba.py")
FIRST = PROGRAM.read_text(encoding="utf-8").splitlines().index("def turned(x: Any, y: Any) -> None:") + 1
OF_LINES = {
    "turned": [
        f"with_numba.py:{FIRST}-{FIRST + 3} load",
        f"with_numba.py:{FIRST + 4} wait barrier 0",
        f"with_numba.py:{FIRST + 5} store",
    ]
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program tells, which is run once."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("needs Numba: pip install 'numba-cuda[cu13]'")
    folder = tmp_path_factory.mktemp("numba")
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return out


def launched(what: str, grid: int, stream: int = 0) -> dict[str, Any]:
    return {"what": what, "stream": stream, "grid": grid}


@pytest.mark.parametrize("how", ["lto", "ptx"])
def test_launches_while_recording_alone_are_of_marked_kernels_whose_names_are_lines(
    found: dict[str, Any], how: str
) -> None:
    launches, sites = found[how]
    assert launches == [
        launched("clean", 1),
        launched("marked", 2, 2),
        launched("marked", 3, 3),
        launched("marked", 4, 4),
        {"what": "asked of the clean one"},
        launched("marked", 1),
        launched("clean", 5),
    ]
    assert sites == OF_LINES
    assert found[f"notes_{how}"] == []


@pytest.mark.parametrize("how", ["lto", "ptx"])
def test_a_later_recording_takes_what_was_loaded_and_nothing_is_left_on_the_kernel(
    found: dict[str, Any], how: str
) -> None:
    assert found[f"again_{how}"] == [launched("marked", 6)]
    assert found[f"notes_again_{how}"] == []
    assert found[f"loaded_again_{how}"] == 0
    assert found[f"attributes_{how}"] == []
    assert found["put_back"]


def test_numbas_cache_holds_no_mark_and_what_comes_of_it_is_marked(found: dict[str, Any]) -> None:
    assert found["cache"] == [[launched("marked", 1), launched("marked", 2)], OF_LINES]
    assert found["hits"] == [0, 1]
    assert found["cached"] == [1, False]
    assert not found["pickled"]
    assert found["notes_cache"] == []


def test_what_can_have_no_marks_is_told_and_runs_clean(found: dict[str, Any]) -> None:
    launches, sites = found["odd"]
    assert launches == [launched("clean", 1), launched("clean", 1), launched("clean", 2), launched("marked", 3)]
    assert found["notes_odd"] == [
        "grid_wide is not marked: it is launched cooperatively, and marks could leave too few blocks on the GPU",
        "linked is not marked: it is linked with other code (other.cu), whose variables a second module would not have",
        "turning: its marks have no lines of the source: compiled with lines (lineinfo=True) it is not the same code",
    ]
    assert list(sites) == ["turning"]
    assert sum("wait barrier 0" in name for name in sites["turning"]) == 4, "of the code as it was compiled"
    assert found["other"] == [[launched("clean", 1), launched("clean", 2), launched("clean", 3)], {}]
    assert found["notes_other"] == []
