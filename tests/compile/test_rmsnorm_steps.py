"""The steps of the RMSNorm example as machine code, for each architecture that they take. No GPU."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.machine_code import disassemble, resources
from warplens.capture.compile import Compiled, compile_cubin
from warplens.errors import CompileError

pytestmark = pytest.mark.compile

EXAMPLE = Path(__file__).parents[2] / "examples" / "rmsnorm"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
SOURCES = {  # file -> 128-bit loads of global memory, stores, bulk copies, barriers of the clean build
    "1_weight_early.cu": (2, 1, 0, 2),
    "2_one_barrier.cu": (2, 1, 0, 1),
    "3_four_vectors.cu": (8, 4, 0, 1),
    "4_ring.cu": (4, 4, 6, 2),
    "5_bulk.cu": (2, 0, 2, 3),
    "6_aligned.cu": (2, 0, 2, 3),
    "7_overlap.cu": (2, 0, 2, 3),
}
FROM_HOPPER = ("4_ring.cu", "5_bulk.cu", "6_aligned.cu", "7_overlap.cu")
TAKEN = [(f, a) for f in SOURCES for a in ARCHITECTURES if not (a == "sm_80" and f in FROM_HOPPER)]
LAST = "7_overlap.cu"
CLEAN = "rmsnorm_fwd<__nv_bfloat16, false>"
HALF = "rmsnorm_fwd<__half, false>"
TRACED = "rmsnorm_fwd<__nv_bfloat16, true>"


@pytest.fixture(scope="module", autouse=True)
def steps() -> Iterator[ModuleType]:
    if not EXAMPLE.is_dir():
        pytest.skip("not a checkout: examples/ is not installed")
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield importlib.import_module("steps")
    finally:
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop("steps", None)


@cache
def built(file: str, arch: str) -> Compiled:
    path = EXAMPLE / "steps" / file
    source = path.read_text(encoding="utf-8")
    options = [f"--include-path={path.parent}", "-DWARPLENS_1D"]
    names = [
        CLEAN,
        HALF,
        *([TRACED] if arch == "sm_90a" or file == LAST else []),
    ]  # the recorder takes most of the time
    return compile_cubin(source, names, arch=arch, options=options, filename=file)


def test_every_step_but_the_first_has_a_short_file_of_its_own(steps: ModuleType) -> None:
    assert [step.path.name for step in steps.STEPS] == ["rmsnorm.cu", *SOURCES]
    for step in steps.STEPS:
        assert len(step.path.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.parametrize(("file", "arch"), TAKEN)
def test_a_step_compiles_without_spills_and_moves_128_bits_at_a_time(file: str, arch: str, tmp_path: Path) -> None:
    compiled = built(file, arch)
    assert {CLEAN, HALF} <= set(compiled.names)
    found = resources(compiled.cubin, compiled.names[CLEAN], tmp_path)
    assert found["STACK"] == found["LOCAL"] == 0
    code = "\n".join(disassemble(compiled.cubin, compiled.names[CLEAN], tmp_path))
    assert "SR_CLOCK" not in code
    loads, stores, copies, barriers = SOURCES[file]
    memory = re.findall(r"\b(?:LDG|STG)\S*", code)
    assert all(".128" in operation for operation in memory)
    assert sum(operation.startswith("LDG") for operation in memory) == loads
    assert sum(operation.startswith("STG") for operation in memory) == stores
    assert code.count("UBLKCP") == copies
    assert code.count("BAR.SYNC") == barriers


@pytest.mark.parametrize("file", FROM_HOPPER)
def test_bulk_copies_are_refused_by_name_where_there_are_none(file: str) -> None:
    with pytest.raises(CompileError, match=r"bulk copies need compute capability 9\.0 or newer"):
        built(file, "sm_80")


def test_the_last_step_touches_no_global_memory_before_the_launch_before_it_is_over(tmp_path: Path) -> None:
    compiled = built(LAST, "sm_90a")
    code = "\n".join(disassemble(compiled.cubin, compiled.names[CLEAN], tmp_path))
    before, waits, after = code.partition("ACQBULK")
    assert waits
    assert not re.search(r"\b(LDG|STG|UBLKCP)\b", before)
    assert re.search(r"\bLDG\b", after)
