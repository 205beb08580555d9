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
    "8_ahead.cu": (2, 0, 2, 3),
    "9_direct.cu": (2, 2, 1, 2),
    "10_shaped.cu": (2, 2, 1, 2),
}
FROM_HOPPER = tuple(SOURCES)[3:]
OVERLAPPING = tuple(SOURCES)[6:]
AHEAD = tuple(SOURCES)[7:]
TAKEN = [(f, a) for f in SOURCES for a in ARCHITECTURES if not (a == "sm_80" and f in FROM_HOPPER)]
LAST = "10_shaped.cu"


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


def name(file: str, dtype: str = "__nv_bfloat16", *, traced: bool = False, vectors: int = 2) -> str:
    shape = f", {vectors}" if file == LAST else ""
    return f"rmsnorm_fwd<{dtype}, {str(traced).lower()}{shape}>"


@cache
def built(file: str, arch: str) -> Compiled:
    path = EXAMPLE / "steps" / file
    source = path.read_text(encoding="utf-8")
    options = [f"--include-path={path.parent}", *([] if file == LAST else ["-DWARPLENS_1D"])]
    names = [name(file), name(file, "__half")]
    if file == LAST:
        names += [name(file, vectors=4), name(file, "__half", vectors=4), name(file, traced=True, vectors=4)]
    if arch == "sm_90a" or file == LAST:  # the recorder takes most of the time
        names.append(name(file, traced=True))
    return compile_cubin(source, names, arch=arch, options=options, filename=file)


def test_every_step_but_the_first_has_a_short_file_of_its_own(steps: ModuleType) -> None:
    assert [step.path.name for step in steps.STEPS] == ["rmsnorm.cu", *SOURCES]
    for step in steps.STEPS:
        assert len(step.path.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.parametrize(("file", "arch"), TAKEN)
def test_a_step_compiles_without_spills_and_moves_128_bits_at_a_time(file: str, arch: str, tmp_path: Path) -> None:
    compiled = built(file, arch)
    assert {name(file), name(file, "__half")} <= set(compiled.names)
    found = resources(compiled.cubin, compiled.names[name(file)], tmp_path)
    assert found["STACK"] == found["LOCAL"] == 0
    code = "\n".join(disassemble(compiled.cubin, compiled.names[name(file)]))
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


@pytest.mark.parametrize("file", OVERLAPPING)
def test_no_global_memory_is_read_or_written_before_the_launch_before_is_over(file: str) -> None:
    compiled = built(file, "sm_90a")
    code = "\n".join(disassemble(compiled.cubin, compiled.names[name(file)]))
    before, waits, after = code.partition("ACQBULK")
    assert waits
    assert not re.search(r"\b(LDG|STG|UBLKCP)\b", before)
    assert re.search(r"\bLDG\b", after)
    assert ("UBLKPF.L2" in before) == (file in AHEAD)  # a prefetch into the L2, where later writes of x land too
    assert "UBLKPF" not in after


@pytest.mark.parametrize(("vectors", "threads", "blocks"), [(2, 512, 4), (4, 512, 3)])
def test_the_last_step_leaves_room_for_64_kb_of_rows_an_sm(
    vectors: int, threads: int, blocks: int, tmp_path: Path
) -> None:
    # On an H200: hidden 8192 with two vectors, four blocks of 16 kB; 16384 with four, three of 32 kB.
    compiled = built(LAST, "sm_90a")
    found = resources(compiled.cubin, compiled.names[name(LAST, vectors=vectors)], tmp_path)
    assert found["STACK"] == found["LOCAL"] == 0
    registers_of_warp = -(-found["REG"] // 8) * 8 * 32
    assert 65536 // (registers_of_warp * threads // 32) >= blocks
