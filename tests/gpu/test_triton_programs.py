"""Programs of examples/triton, unchanged, from one command each: what they compute, and what is seen of them.

Needs an NVIDIA GPU, torch and Triton 3.6: pytest -m gpu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import warplens

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples" / "triton"
BAD = {"gap", "no_end", "foreign_chunk", "unknown_record", "duplicate_chunk", "lost_events"}


@pytest.fixture(autouse=True, scope="module")
def _with_triton() -> None:
    """Not when the module is collected: where these tests are not asked for, they are no skip either."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")


@cache
def alone(program: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def record(program: Path, place: Path, *options: str, **variables: str) -> tuple[str, str, list[Path]]:
    """The last line of what the program prints, what record says, and the files."""
    command = [sys.executable, "-m", "warplens", "record", *options, str(program)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1], done.stderr, sorted(place.glob("*.wlens"))


@pytest.mark.parametrize(
    ("program", "kernel", "launches", "resources"),
    [
        ("matmul.py", "matmul", 5, {"cp.async", "wgmma"}),
        ("persistent_matmul.py", "matmul_tma", 5, {"mbarrier", "wgmma"}),
        ("specialized_matmul.py", "specialized_matmul", 5, {"mbarrier", "wgmma"}),
        ("attention.py", "attention", 5, {"cp.async", "wgmma"}),
        ("layer_norm.py", "layer_norm", 5, {"barrier"}),
    ],
)
def test_a_program_computes_the_same_and_its_kernel_is_seen(
    program: str, kernel: str, launches: int, resources: set[str], tmp_path: Path
) -> None:
    printed, said, files = record(EXAMPLES / program, tmp_path)
    assert printed == alone(program)
    assert len(files) == 1, said
    trace = warplens.open(files[0])
    assert {own["name"] for own in trace.manifest["kernels"]} == {kernel}
    assert trace.launches.height == launches
    assert not BAD & set(trace.problems["kind"]), trace.problems
    sites = trace.manifest["site_sets"][0]["sites"]
    waits = {re.split(r"[ +]", site["resource"])[0] for site in sites if site["kind"] == "wait"}
    assert resources <= waits
    reached = set(trace.spans["site"].unique().to_list())
    named = [trace.sites["name"][site] for site in reached]
    assert sum(name.startswith(f"{program}:") for name in named) > len(named) // 2, named


def test_what_torch_compile_makes_is_seen_from_workers_and_from_its_caches(tmp_path: Path) -> None:
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    printed = []
    for number in range(2):  # the second time all comes from the caches of the first
        place = tmp_path / str(number)
        place.mkdir()
        last, said, files = record(EXAMPLES / "gated_mlp.py", place, **own)
        printed.append(last)
        assert len(files) == 1, said
        trace = warplens.open(files[0])
        names = {own["name"] for own in trace.manifest["kernels"]}
        assert names
        assert all(name.startswith("triton_") for name in names), names
        assert trace.launches.height == 5 * len(names), (said, names)
        assert not BAD & set(trace.problems["kind"]), trace.problems
        assert all(own["records"] for own in trace.manifest["launches"])
    environment = {**os.environ, **own}
    command = [sys.executable, str(EXAMPLES / "gated_mlp.py")]
    clean = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert set(printed) == {clean.stdout.splitlines()[-1]}


def test_marks_of_the_source_are_ranges_and_phases(tmp_path: Path) -> None:
    printed, _, (file,) = record(EXAMPLES / "marked_matmul.py", tmp_path)
    assert printed == alone("marked_matmul.py")
    trace = warplens.open(file)
    counts = dict(trace.spans.group_by("site").len().iter_rows())
    by_name = {trace.sites["name"][site]: count for site, count in counts.items()}
    warps, turns = 5 * 16 * 16 * 8, 2048 // 64
    assert {by_name["load"], by_name["multiply"]} == {warps * turns}
    assert by_name["store"] == warps


def test_a_script_with_a_kernel_that_does_not_compile_fails_as_ever(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = "import torch, triton, triton.language as tl\n@triton.jit\ndef k(p):\n    tl.store(p, tl.nothing(p))\n"
    program.write_text(text + "k[(1,)](torch.zeros(1, device='cuda'))\n", encoding="utf-8")
    alone, recorded = (
        subprocess.run([sys.executable, *how, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=200)
        for how in ([], ["-m", "warplens", "record"])
    )
    assert (alone.returncode, recorded.returncode) == (1, 1)
    assert "has no attribute 'nothing'" in alone.stderr
    ours = re.compile(r'  File "[^"]*/warplens/[^"]*", line .*\n(?:    .*\n)*')  # the hook's frame among Triton's
    assert ours.sub("", recorded.stderr).startswith(alone.stderr)
    assert "nothing was recorded" in recorded.stderr
