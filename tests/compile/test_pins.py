"""Pins in the machine code: a warp waits for the loads of all kinds of values, in front of the clock read. No GPU."""

from __future__ import annotations

from functools import cache

import pytest

from tests.machine_code import audited, sections, text_section
from warplens.audit import pick_section
from warplens.audit.marks import is_ours
from warplens.audit.sass import Instruction
from warplens.capture.audited import LINE_INFO
from warplens.capture.compile import Compiled, compile_cubin

pytestmark = pytest.mark.compile

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
# type of the memory, how the two values are made of it, how their sum is
VALUES = {
    "float": ("float", "float a = p[i], b = p[i + n];", "a + b"),
    "int": ("int", "int a = p[i], b = p[i + n];", "a - b"),
    "double": ("double", "double a = p[i], b = p[i + n];", "a + b"),
    "long long": ("long long", "long long a = p[i], b = p[i + n];", "a + b"),
    "unsigned short": ("unsigned short", "unsigned short a = p[i], b = p[i + n];", "a + b"),
    "signed char": ("signed char", "signed char a = p[i], b = p[i + n];", "a + b"),
    "float4": ("float4", "float4 a = p[i], b = p[i + n];", "float4({a.x + b.x, a.y * b.y, a.z - b.z, b.w})"),
    "uint4": ("uint4", "uint4 a = p[i], b = p[i + n];", "uint4({a.x + b.x, a.y * b.y, a.z - b.z, b.w})"),
    "half2": ("__half2", "__half2 a = p[i], b = p[i + n];", "__hadd2(a, b)"),
    "bfloat162": ("__nv_bfloat162", "__nv_bfloat162 a = p[i], b = p[i + n];", "__hadd2(a, b)"),
    "bfloat16 made float": ("__nv_bfloat16", "float a = p[i], b = p[i + n];", "__nv_bfloat16(a + b)"),
    "array": (
        "float",
        "float a[4], b[4]; for (int k = 0; k < 4; ++k) a[k] = p[i * k], b[k] = p[i + n * k];",
        "a[0] + b[3]",
    ),
}
HEAD = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <warplens/warplens.cuh>
WARPLENS_SITES(s, load, add, put);
"""
KERNEL = """template <bool kTrace> __global__ void NAME(const TYPE* p, TYPE* out, int n) {
  warplens::Recorder<s, kTrace> rec;
  const unsigned i = threadIdx.x;
  rec.phase(s::load);
  MAKE
  PIN
  rec.phase(s::add);
  const TYPE sum = SUM;
  rec.phase(s::put);
  out[i] = sum;
}
"""
PIN = "rec.landed(a, b);"


def name_of(kind: str, traced: bool) -> str:
    """Of a kernel of the module that has those of all kinds."""
    return f"k_{kind.replace(' ', '_')}<{str(traced).lower()}>"


def source(*kinds: str, pin: str = PIN) -> str:
    text = HEAD
    for kind in kinds:
        memory, make, total = VALUES[kind]
        kernel = KERNEL.replace("NAME", name_of(kind, True).partition("<")[0]).replace("TYPE", memory)
        text += kernel.replace("MAKE", make).replace("PIN", pin).replace("SUM", total)
    return text


ALL = source(*VALUES)


@cache
def compiled(text: str, arch: str, kinds: tuple[str, ...] = tuple(VALUES)) -> Compiled:
    names = [name_of(kind, traced) for kind in kinds for traced in (True, False)]
    return compile_cubin(text, names, arch=arch, options=["-DWARPLENS_1D", LINE_INFO], filename="k.cu")


@cache
def off(text: str, arch: str) -> Compiled:
    """Without options: recording is off by the kernels' names."""
    return compile_cubin(text, [name_of(kind, False) for kind in VALUES], arch=arch)


def code_of(build: Compiled, name: str) -> list[Instruction]:
    return pick_section(list(sections(build.cubin)), build.names[name]).code


def is_of_pin(instruction: Instruction) -> bool:
    return any(frame.file.endswith("landed.cuh") for frame in instruction.frames)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_load_has_been_waited_for_at_the_pin_and_the_clock_is_read_behind_it(arch: str, kind: str) -> None:
    code = code_of(compiled(ALL, arch), name_of(kind, True))
    guard = next(n for n, own in enumerate(code) if is_of_pin(own) and own.name == "LDS")
    loads = [(n, own) for n, own in enumerate(code[:guard]) if own.name == "LDG" and not is_ours(own)]
    assert len(loads) >= 2
    for at, load in loads:  # whoever waits: the pin's own instruction, or one in front of it
        assert any(own.control.wait >> load.control.write & 1 for own in code[at + 1 : guard + 1]), load
    assert any("SR_CLOCK" in own.operands for own in code[guard:])
    between = code[loads[0][0] : guard]
    assert not any("SR_CLOCK" in own.operands for own in between)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_audit_proves_the_pin_and_finds_the_phase_right(arch: str, kind: str) -> None:
    build, name = compiled(ALL, arch), name_of(kind, True)
    rows, _ = audited(build, name, ALL, "k.cu", (build, name_of(kind, False)))
    load, pin, add = rows[:3]
    assert [row["verb"] for row in rows[:3]] == ["phase", "landed", "phase"]
    assert (load["name"], load["severity"]) == ("load", "")
    pins = [line for line, text in enumerate(ALL.splitlines(), 1) if text == f"  {PIN}"]
    assert pin["line"] == pins[list(VALUES).index(kind)]
    assert (pin["outstanding_loads"], add["outstanding_loads"]) == (0, 0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_without_the_pin_the_same_phase_is_found_to_claim_too_much(arch: str) -> None:
    text = source("float", pin="")
    rows, _ = audited(compiled(text, arch, ("float",)), name_of("float", True), text, "k.cu")
    line = text.splitlines().index("  float a = p[i], b = p[i + n];") + 1
    assert rows[0]["severity"] == "warning"
    assert rows[0]["finding"].startswith(f"2 loads of line {line} are still under way at its end")
    assert rows[1]["outstanding_loads"] == 2


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_with_recording_off_a_pin_leaves_the_machine_code_of_the_bare_kernel(arch: str, kind: str) -> None:
    lines = [line for line in ALL.splitlines() if "rec." not in line and "Recorder" not in line and "SITES" not in line]
    bare, pinned = off("\n".join(lines), arch), off(ALL, arch)
    name = name_of(kind, False)
    assert text_section(pinned.cubin, pinned.names[name]) == text_section(bare.cubin, bare.names[name])
