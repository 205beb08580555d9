"""The audit on real machine code: the demo's kernel on four architectures, every verb, planted faults. No GPU."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest

from tests.compile.test_headers import KERNEL, VERBS
from tests.machine_code import audited, text_section
from warplens.capture.audited import LINE_INFO
from warplens.capture.builds import Build
from warplens.capture.compile import Compiled, compile_cubin
from warplens.capture.cuda import CudaKernel
from warplens.capture.modules import read_site_sets

pytestmark = pytest.mark.compile

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
POLICIES = ("packed", "staged", "stream", "live")
DEMO = (files("warplens") / "demo" / "rmsnorm.cu").read_text(encoding="utf-8")
SITES = "#include <warplens/warplens.cuh>\nWARPLENS_SITES(s, load, use, other, put);\n"


@cache
def built(source: str, name: str, arch: str, *options: str) -> Compiled:
    return compile_cubin(source, [name], arch=arch, options=["-DWARPLENS_1D", *options], filename="k.cu")


@cache
def module(arch: str, policy: str) -> Compiled:
    """All kernels of `PARTS`, each in a namespace and in a file of its own."""
    parts = [f'namespace {name} {{\n#line 1 "{name}.cu"\n{text}\n}}\n' for name, text in PARTS.items()]
    names = [f"{name}::k<{traced}>" for name in PARTS for traced in ("true", "false")]
    options = ["-DWARPLENS_1D", LINE_INFO, f"-DWARPLENS_POLICY={policy}"]
    return compile_cubin(SITES + "".join(parts), names, arch=arch, options=options, filename="k.cu")


def rows_of(part: str, arch: str, policy: str = "packed") -> list[dict[str, Any]]:
    build = module(arch, policy)
    return audited(build, f"{part}::k<true>", PARTS[part], f"{part}.cu", (build, f"{part}::k<false>"))[0]


def line_of(source: str, text: str) -> int:
    (line,) = [number for number, line in enumerate(source.splitlines(), 1) if text in line]
    return line


def demo_name(traced: bool) -> str:
    return f"rmsnorm_fwd<__nv_bfloat16, {str(traced).lower()}>"


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_line_information_changes_no_machine_code_of_the_demo(arch: str, traced: bool) -> None:
    name = demo_name(traced)
    with_lines, without = built(DEMO, name, arch, LINE_INFO), built(DEMO, name, arch)
    assert text_section(with_lines.cubin, with_lines.names[name]) == text_section(without.cubin, without.names[name])


def verbs(policy: str, arch: str, *options: str) -> tuple[Compiled, str]:
    kernel = KERNEL.replace("RECORDER", "warplens::Recorder<s> rec;").replace("VERBS", VERBS)
    source = f"#include <warplens/warplens.cuh>\nWARPLENS_SITES(s, a, b);\n{kernel}"
    return built(source, "k", arch, f"-DWARPLENS_POLICY={policy}", *options), source


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_line_information_changes_no_machine_code_of_any_verb(arch: str, policy: str) -> None:
    with_lines, without = verbs(policy, arch, LINE_INFO)[0], verbs(policy, arch)[0]
    assert text_section(with_lines.cubin, with_lines.names["k"]) == text_section(without.cubin, without.names["k"])


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_demos_phases_measure_what_their_names_say(arch: str) -> None:
    name = demo_name(True)
    clean = (built(DEMO, demo_name(False), arch, LINE_INFO), demo_name(False))
    rows, facts = audited(built(DEMO, name, arch, LINE_INFO), name, DEMO, "k.cu", clean)
    assert [(row["verb"], row["name"]) for row in rows] == [
        ("phase", "load_sumsq"),
        ("phase", "warp_reduce"),
        ("phase", "block_reduce"),
        ("wait", "barrier"),
        ("phase", "cross_reduce"),
        ("wait", "barrier_2"),
        ("phase", "normalize"),
        ("phase", "store"),
        ("end", ""),
    ]
    marks = [number for number, line in enumerate(DEMO.splitlines(), 1) if "rec." in line]
    assert [row["line"] for row in rows[:8]] == marks
    # No load is under way at any mark: the sums wait for x within load_sumsq, normalize waits for the weight.
    assert [row["outstanding_loads"] for row in rows] == [0] * 9
    ends = {before["name"]: row["waits_on"] for before, row in pairwise(rows)}
    assert f"LDG line {line_of(DEMO, 'load_vector(x + first')}" in ends["load_sumsq"]
    assert f"LDG line {line_of(DEMO, 'load_vector(weight')}" in ends["normalize"]
    assert "SHFL line" in ends["warp_reduce"]
    assert "BAR.SYNC" in ends["barrier"]
    assert "BAR.SYNC" in ends["barrier_2"]
    assert [(row["name"], row["severity"]) for row in rows if row["finding"]] == [("store", "note")]
    assert facts["traced"]["loads"] == facts["clean"]["loads"] == 4
    assert facts["traced"]["loads_in_flight"] == facts["clean"]["loads_in_flight"]
    assert facts["traced"]["instructions"] > facts["clean"]["instructions"]


EACH = """
template <bool kTrace> __global__ void k(const float* p, float* out, unsigned n) {
  warplens::Recorder<s, kTrace> rec;
  rec.mark(s::load);
  out[0] = p[0];
  auto token = rec.range_start(s::use);
  out[1] = p[1];
  rec.range_push(s::other, n);
  out[2] = p[2];
  rec.arrive(s::put, warplens::join(n));
  out[3] = p[3];
  rec.range_pop();
  out[4] = p[4];
  rec.range_end(token);
  out[5] = p[5];
  rec.phase(s::other);
  out[6] = p[6];
  rec.range_start(s::load, warplens::join(n));
  out[7] = p[7];
  rec.range_end(s::load, warplens::join(n));
  out[8] = p[8];
  rec.wait(s::use, n);
  __syncthreads();
  rec.end_phase();
  out[9] = p[9];
}
"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_verb_is_named_with_its_site_and_line_and_no_clock_read_of_the_recorders_own_is_a_mark(
    arch: str, policy: str
) -> None:
    rows = rows_of("each", arch, policy)
    expected = [
        ("mark", "load"),
        ("range_start", "use"),
        ("range_push", "other"),
        ("arrive", "put"),
        ("range_pop", ""),
        ("range_end", ""),
        ("phase", "other"),
        ("range_start", "load"),
        ("range_end", "load"),
        ("wait", "use"),
        ("end_phase", ""),
    ]
    named = [(row["verb"], row["name"]) for row in rows if row["verb"] != "end"]
    assert named == expected
    marks = [number for number, line in enumerate(EACH.splitlines(), 1) if "rec." in line]
    assert [row["line"] for row in rows if row["verb"] != "end"] == marks
    assert [row["verb"] for row in rows].count("end") == 1
    assert not any("cannot be told" in row["finding"] for row in rows)


LOOP = """
template <bool kTrace> __global__ void k(const float* p, float* out, int n) {
  warplens::Recorder<s, kTrace> rec;
  rec.phase(s::other);
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    rec.phase(s::load);
    float value = p[threadIdx.x + i * 256];
    PIN
    rec.phase(s::use);
    sum += value * value;
  }
  rec.phase(s::put);
  out[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_marks_in_an_unrolled_loop_part_its_loads_and_that_is_found(arch: str, policy: str) -> None:
    source = PARTS["loop"]
    rows = rows_of("loop", arch, policy)
    lines = {row["name"]: row["line"] for row in rows}
    assert lines["load"] == line_of(source, "rec.phase(s::load)")
    assert lines["use"] == line_of(source, "rec.phase(s::use)")
    names = [row["name"] for row in rows if row["name"] in ("load", "use")]
    assert names == ["load", "use"] * (len(names) // 2)  # the lines of the copies are mixed up; their numbers are not
    assert names
    load = line_of(source, "float value")
    claims = [row for row in rows if row["name"] == "load" and row["severity"] == "warning"]
    assert claims  # for sm_80 ptxas waits for the load of the last copy in its phase
    assert all(f"load of line {load} is still under way at its end" in row["finding"] for row in claims)
    assert any(
        f"changed the schedule: of the loads of line {load}, up to 4 are under way together in the clean build"
        in row["finding"]
        for row in rows
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_pin_in_that_loop_makes_the_load_phase_right_and_says_that_it_changed_the_schedule(arch: str) -> None:
    rows = rows_of("pinned", arch)
    assert all(row["severity"] == "" for row in rows if row["name"] == "load")
    pins = [row for row in rows if row["verb"] == "landed"]
    assert pins
    assert {row["outstanding_loads"] for row in pins} == {0}
    assert [row["severity"] for row in pins if "the pin changed the schedule" in row["finding"]] == ["note"]


COPIES = """
template <bool kTrace> __global__ void k(const float4* p, float4* out) {
  extern __shared__ float4 tile[];
  warplens::Recorder<s, kTrace> rec;
  rec.phase(s::load);
  for (int i = 0; i < 2; ++i) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.commit_group;" ::"r"(
        (unsigned)__cvta_generic_to_shared(tile + threadIdx.x + i * 32)), "l"(p + threadIdx.x + i * 32) : "memory");
  }
  rec.wait(s::other);
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  rec.wait(s::use);
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  rec.phase(s::put);
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_groups_of_asynchronous_copies_are_followed_to_their_waits(arch: str) -> None:
    rows = rows_of("copies", arch)
    assert [(row["name"], row["outstanding_loads"]) for row in rows[:4]] == [
        ("load", 0),
        ("other", 2),
        ("use", 1),
        ("put", 0),
    ]
    assert "2 loads" in rows[0]["finding"]
    assert (rows[1]["finding"], rows[2]["finding"]) == ("", "")


BARRIERS = """
template <bool kTrace> __global__ void k(const float* p, float* out) {
  __shared__ float shared[64];
  warplens::Recorder<s, kTrace> rec;
  rec.phase(s::other);
  shared[threadIdx.x] = p[threadIdx.x];
  rec.MARK(s::use);
  __syncthreads();
  rec.phase(s::put);
  out[threadIdx.x] = shared[63 - threadIdx.x];
}
"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_barrier_in_a_wait_is_settled(arch: str, policy: str) -> None:
    found = rows_of("barriers", arch, policy)
    assert next(row["finding"] for row in found if row["name"] == "use") == ""


ITERATIONS = """
template <bool kTrace> __global__ void k(const float* p, float* out, unsigned n) {
  warplens::Recorder<s, kTrace> rec;
  for (unsigned i = 0; i < n; ++i) {
    rec.iteration(i);
    rec.phase(s::other);
    out[i] = p[i];
    rec.phase(s::use);
    out[i] += p[i + 1];
  }
}
"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_gap_that_stands_for_iterations_left_out_is_no_mark(arch: str, policy: str) -> None:
    rows = rows_of("iterations", arch, policy)
    assert {(row["verb"], row["name"]) for row in rows} <= {
        ("phase", "other"),
        ("phase", "use"),
        ("end_phase", ""),
        ("end", ""),
    }
    assert {"other", "use"} <= {row["name"] for row in rows}


def test_a_kernels_entry_holds_its_marks_and_is_made_once() -> None:
    kernel: Any = object.__new__(CudaKernel)  # its constructor wants a GPU
    source = SITES + LOOP.replace("PIN", "")
    kernel.source, kernel.name, kernel.clean, kernel.filename = source, "k<true>", "k<false>", "k.cu"
    traced = built(source, "k<true>", "sm_90a", LINE_INFO)
    clean = built(source, "k<false>", "sm_90a", LINE_INFO)
    library: Any = None
    builds = [Build(library, library, compiled, ()) for compiled in (traced, clean)]
    kernel._builds = {("k<false>", ()): builds[1]}
    kernel._audits = {}
    kernel._site_sets = read_site_sets(traced.cubin)
    entry = kernel.audited(builds[0], "s")
    assert entry["not_audited"] is None
    assert entry["facts"]["clean"]["loads_in_flight"] == 4
    assert {0, 1, 3} <= set(entry["columns"]["site"])
    assert kernel.audited(builds[0], "s") is entry
    json.dumps(entry)  # it goes into the manifest


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_marks_of_one_line_are_told_apart_in_a_build_for_one_arena(arch: str, policy: str) -> None:
    source = SITES + (
        "template <bool kTrace> __global__ void k(float* p) { warplens::Recorder<s, kTrace> rec; "
        "rec.phase(s::load); p[threadIdx.x] += 1; rec.phase(s::put); }"
    )
    arena = ("-DWARPLENS_ARENA=0x7f0000000000ull", "-DWARPLENS_CHUNKS=0x7f0000010000ull")
    options = (*arena, "-DWARPLENS_SHARED_CHUNKS=1024u", "-DWARPLENS_ALL_RECORDED", f"-DWARPLENS_POLICY={policy}")
    rows, _ = audited(built(source, "k<true>", arch, LINE_INFO, *options), "k<true>", source, "k.cu")
    assert [(row["verb"], row["name"]) for row in rows if row["verb"] != "end"] == [("phase", "load"), ("phase", "put")]


DETACHED = """template <bool T> __device__ __noinline__ float called(float v) {
  warplens::mark<s, T>(s::other);
  return v * v;
}
template <bool T> __global__ void k(float* p) {
  warplens::Recorder<s, T> rec;
  rec.phase(s::load);
  float v = p[threadIdx.x];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (threadIdx.x % (3 + i) == 0) {
      rec.mark_lane(s::put, i);
      v = called<T>(v);
    }
  }
  rec.phase(s::use);
  p[threadIdx.x] = v;
}
"""

PARTS = {
    "each": EACH,
    "loop": LOOP.replace("PIN", ""),
    "pinned": LOOP.replace("PIN", "rec.landed(value);"),
    "copies": COPIES,
    "barriers": BARRIERS.replace("MARK", "wait"),
    "iterations": ITERATIONS,
    "detached": DETACHED,
}
"""A module holds them all: nvdisasm takes as long for one kernel as for ten."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_marks_of_lanes_are_named_where_they_stand(arch: str, policy: str) -> None:
    rows = rows_of("detached", arch, policy)
    found = [(row["verb"], row["name"], row["line"]) for row in rows if row["verb"] == "mark"]
    called, taken = line_of(DETACHED, "warplens::mark"), line_of(DETACHED, "mark_lane")
    assert sorted(found) == [("mark", "other", called), ("mark", "put", taken), ("mark", "put", taken)]
