"""The demo's kernel as machine code: off is the bare kernel, on keeps each phase's work in its phase. No GPU."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest

from tests.machine_code import disassemble, resources, text_section
from warplens.capture.compile import Compiled, compile_cubin, get_include
from warplens.errors import CompileError

pytestmark = pytest.mark.compile

REPOSITORY = Path(__file__).parents[2]
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
TYPES = ("__nv_bfloat16", "__half")
SOURCE = (files("warplens") / "demo" / "rmsnorm.cu").read_text(encoding="utf-8")
MAX_CLEAN_REGISTERS, MAX_TRACED_REGISTERS = 28, 32  # of 32 that a full SM of 2048 threads leaves each
ALL_RECORDED = (
    *("-DWARPLENS_ALL_RECORDED", "-DWARPLENS_ARENA=0x7f0000008000ull", "-DWARPLENS_CHUNKS=0x7f0000108000ull"),
    "-DWARPLENS_SHARED_CHUNKS=4096u",
)
MAX_RECORDER_SHARED_BYTES = 10_240  # three blocks of 640 threads have 33 kB each on the smallest SM (sm_120)


def without_marks(source: str) -> str:
    """The kernel as it was before it was marked: no line that names warplens or the recorder is left."""
    lines = [line for line in source.splitlines() if not re.search(r"(?i)warplens|\brec\.", line)]
    return "\n".join(lines).replace("template <typename T, bool kTrace>", "template <typename T>")


@cache
def marked(arch: str) -> Compiled:
    return compile_cubin(SOURCE, [name(t, on) for t in TYPES for on in (False, True)], arch=arch)


@cache
def limited(arch: str) -> Compiled:
    """As `Kernel.record` builds it, to keep as many blocks resident as the clean kernel has."""
    options = [f"--maxrregcount={MAX_TRACED_REGISTERS}", "-DWARPLENS_1D"]
    return compile_cubin(SOURCE, [name(t, True) for t in TYPES], arch=arch, options=options)


def name(dtype: str, traced: bool) -> str:
    return f"rmsnorm_fwd<{dtype}, {str(traced).lower()}>"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_off_is_the_machine_code_of_the_kernel_without_marks(arch: str, dtype: str) -> None:
    source = without_marks(SOURCE)
    assert "warplens" not in source.lower()
    assert "kTrace" not in source
    assert source.count("__syncthreads();") == 2  # nothing of the kernel itself went with the marks
    bare = compile_cubin(source, [f"rmsnorm_fwd<{dtype}>"], arch=arch)
    off = marked(arch)
    bare_code = text_section(bare.cubin, bare.names[f"rmsnorm_fwd<{dtype}>"])
    off_code = text_section(off.cubin, off.names[name(dtype, False)])
    assert len(bare_code) > 1000
    assert off_code == bare_code


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_both_builds_leave_room_for_a_full_sm(arch: str, dtype: str, tmp_path: Path) -> None:
    compiled = marked(arch)
    clean = resources(compiled.cubin, compiled.names[name(dtype, False)], tmp_path)
    traced = resources(limited(arch).cubin, limited(arch).names[name(dtype, True)], tmp_path)
    assert clean["REG"] <= MAX_CLEAN_REGISTERS
    assert clean["STACK"] == clean["LOCAL"] == 0
    assert traced["REG"] <= MAX_TRACED_REGISTERS
    assert traced["SHARED"] - clean["SHARED"] <= MAX_RECORDER_SHARED_BYTES


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_off_moves_128_bits_at_a_time(arch: str, dtype: str) -> None:
    compiled = marked(arch)
    code = disassemble(compiled.cubin, compiled.names[name(dtype, False)])
    memory = re.findall(r"\b(?:LDG|STG|LDL|STL)[\w.]*", "\n".join(code))
    assert memory == ["LDG.E.128", "LDG.E.128", "STG.E.EF.128"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_phase_holds_its_own_memory_operations(arch: str, dtype: str) -> None:
    compiled = marked(arch)
    code = "\n".join(disassemble(compiled.cubin, compiled.names[name(dtype, True)]))
    hot = code[code.index("SR_CLOCKLO") : code.index("STG.E.EF.128") + len("STG.E.EF.128")]
    operation = r"SR_CLOCKLO|LDG\.E\.128|SHFL\.BFLY|BAR\.SYNC|STG\.E\.EF\.128"
    # A run of clock reads is one boundary: block_reduce between two marks only writes to shared memory.
    boundaries = [kind for kind, _ in groupby(re.findall(operation, hot))]
    between = ["LDG.E.128", "SHFL.BFLY", "BAR.SYNC", "SHFL.BFLY", "BAR.SYNC", "LDG.E.128", "STG.E.EF.128"]
    assert boundaries == [item for kind in between for item in ("SR_CLOCKLO", kind)]
    # The sums wait for the loaded values: their latency lands in load_sumsq, not in the phase after it.
    load_sumsq, _, rest = hot[hot.index("LDG.E.128") :].partition("SR_CLOCKLO")
    arithmetic = re.compile(r"\b(?:FFMA2?|FMUL2?)\b")
    assert len(arithmetic.findall(load_sumsq)) >= 4
    assert not arithmetic.findall(rest[: rest.index("SHFL.BFLY")])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_between_a_barrier_and_the_clock_behind_it_stands_an_instruction(arch: str) -> None:
    # On an H200 a clock right behind BAR.SYNC is read before the barrier has opened (device_facts.json).
    compiled = limited(arch)
    code = "\n".join(disassemble(compiled.cubin, compiled.names[name("__half", True)]))
    behind = [part.partition("SR_CLOCKLO")[0] for part in code.split("BAR.SYNC")[1:3]]
    assert len(behind) == 2
    for instructions in behind:
        assert "LDS R" in instructions


def can_tell() -> bool:
    """Whether this NVRTC knows what a compiler knows (device.cuh); 13.0 and older do not."""
    try:
        compile_cubin('extern "C" __global__ void k(int* p) { *p = __builtin_constant_p(1); }', ["k"], arch="sm_90a")
    except CompileError:
        return False
    return True


def test_a_compiler_that_cannot_count_has_no_code_of_loops_at_the_end() -> None:
    if not can_tell():
        pytest.skip("this NVRTC makes no code to compare with")
    # NVRTC 13.0 and older: code that only marks in loops need cost 8 % of a launch of 432 rows, 0.4 us (2026-12-02).
    found = []
    for told in (0, 1):
        options = ["-DWARPLENS_1D", *ALL_RECORDED, f"-DWARPLENS_DETAIL_CAN_TELL={told}"]
        compiled = compile_cubin(SOURCE, [name("__half", True)], arch="sm_90a", options=options)
        code = disassemble(compiled.cubin, compiled.names[name("__half", True)])
        found.append(sum("FLO" in own for own in code))
    assert found[0] <= found[1]


@pytest.fixture
def recorders() -> ModuleType:
    path = REPOSITORY / "benchmarks" / "rmsnorm_overhead" / "recorders.py"
    if not path.is_file():
        pytest.skip("not a checkout: benchmarks/ is not installed")
    spec = importlib.util.spec_from_file_location("rmsnorm_recorders", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("rival", "timer"),
    [
        ("document", r"CS2R R\d+, SR_CLOCKLO"),
        ("flashinfer", r"CS2R\.32 R\d+, SR_GLOBALTIMERLO"),
        ("warpscope", r"SR_GLOBALTIMERLO"),
    ],
)
def test_the_benchmarks_other_recorders_make_nine_marks_in_the_same_kernel(
    rival: str, timer: str, recorders: ModuleType, tmp_path: Path
) -> None:
    if not recorders.is_installed(rival):
        pytest.skip(f"{rival} is not installed, and its header is read from its package")
    expression, options = recorders.name_expression(traced=True), recorders.rival_options(rival)
    compiled = compile_cubin(recorders.rival_source(rival), [expression], arch="sm_90a", options=options)
    code = disassemble(compiled.cubin, compiled.names[expression])
    anchors = 1 if rival == "document" else 0
    assert len(re.findall(timer, "\n".join(code))) == recorders.MARKS + anchors
    assert resources(compiled.cubin, compiled.names[expression], tmp_path)["REG"] <= MAX_TRACED_REGISTERS


def test_the_parts_that_the_benchmark_leaves_out_stand_in_the_headers_once(recorders: ModuleType) -> None:
    headers = Path(get_include(), "warplens", "detail")
    for parts in recorders.ABLATIONS.values():
        for header, text, _ in parts:
            assert (headers / header).read_text(encoding="utf-8").count(text) == 1, (header, text)


def test_the_benchmarks_bare_forms_read_nine_clocks_and_do_not_spill(recorders: ModuleType, tmp_path: Path) -> None:
    expression = recorders.name_expression(traced=True)
    for form in recorders.BARE:
        source = recorders.bare_source(form)
        compiled = compile_cubin(source, [expression], arch="sm_90a", options=["--maxrregcount=32"])
        code = disassemble(compiled.cubin, compiled.names[expression])
        assert len(re.findall(r"CS2R\.32 R\d+, SR_CLOCKLO", "\n".join(code))) == recorders.MARKS, form
        found = resources(compiled.cubin, compiled.names[expression], tmp_path)
        assert (found["STACK"], found["LOCAL"]) == (0, 0), form
