"""The device headers by themselves: each compiles alone, off leaves nothing, sites are read back. No GPU."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from tests.machine_code import called_functions, disassemble, resources, text_section
from warplens import errors, layout
from warplens.capture.compile import Compiled, compile_cubin
from warplens.capture.modules import read_site_sets, read_symbols

pytestmark = pytest.mark.compile

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
INCLUDE = Path(str(files("warplens") / "include"))
HEADERS = sorted(path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*.cuh"))
POLICIES = ("packed", "staged")

VERBS = """
  auto token = rec.range_start(s::a);
  rec.phase(s::a);
  rec.phase(s::b, n);
  rec.mark(s::a);
  rec.mark(s::b, n);
  if (i % 3 == 0) rec.mark_lane(s::a);
  if (i % 5 == 0) rec.mark_lane(s::b, n);
  rec.range_push(s::a);
  rec.range_push(s::b, n);
  rec.range_pop();
  rec.range_pop();
  rec.range_end(token);
  rec.range_start(s::a, warplens::join(n));
  rec.range_end(s::a, warplens::join(n));
  rec.wait(s::a);
  rec.wait(s::b, n);
  rec.wait(s::a, warplens::join(n));
  rec.arrive(s::a);
  rec.arrive(s::b, n);
  rec.arrive(s::a, warplens::join(n));
  rec.landed(n, p[i]);
  rec.end_phase();
"""
KERNEL = """
__global__ void k(float* p, unsigned n) {
  RECORDER
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
    p[i] = p[i] * 2.0f + 1.0f;
    VERBS
    __syncthreads();
    p[i] += p[(i + 1) % n];
  }
}
"""


def marked(recorder: str, verbs: str = VERBS) -> str:
    kernel = KERNEL.replace("RECORDER", recorder).replace("VERBS", verbs)
    return f"#include <warplens/warplens.cuh>\nWARPLENS_SITES(s, a, b);\n{kernel}"


@cache
def all_verbs(policy: str, arch: str) -> Compiled:
    """A recorder with every verb takes NVRTC a second."""
    return compile_cubin(
        marked("warplens::Recorder<s> rec;"), ["k"], arch=arch, options=[f"-DWARPLENS_POLICY={policy}"]
    )


def machine_code(cubin: bytes) -> bytes:
    """Content of the section .text.<kernel>, found by the kernel's symbol."""
    (code,) = [content for name, content in read_symbols(cubin, "_Z1k") if content]
    return code


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_compiles_alone(header: str, arch: str) -> None:
    compiled = compile_cubin(f"#include <{header}>\n__global__ void k() {{}}\n", [], arch=arch)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert "warning" not in compiled.log


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_verb_compiles_in_every_policy(policy: str, arch: str) -> None:
    compiled = all_verbs(policy, arch)
    assert "error" not in compiled.log
    assert any(True for _ in read_symbols(compiled.cubin, "_Z1k"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_verb_switched_off_leaves_the_machine_code_of_the_bare_kernel(arch: str) -> None:
    off = compile_cubin(marked("warplens::Recorder<s, false> rec;"), ["k"], arch=arch)
    bare = compile_cubin(KERNEL.replace("RECORDER", "").replace("VERBS", ""), ["k"], arch=arch)
    assert machine_code(off.cubin) == machine_code(bare.cubin)
    assert machine_code(all_verbs("packed", arch).cubin) != machine_code(bare.cubin)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("policy", POLICIES)
def test_how_often_marks_are_taken_changes_neither_the_default_nor_the_off_build(policy: str, arch: str) -> None:
    def code(recorder: str, *options: str) -> bytes:
        options = (f"-DWARPLENS_POLICY={policy}", *options)
        return machine_code(compile_cubin(marked(recorder), ["k"], arch=arch, options=options).cubin)

    on, off = "warplens::Recorder<s> rec;", "warplens::Recorder<s, false> rec;"
    default = machine_code(all_verbs(policy, arch).cubin)
    builds = {marks: code(on, f"-DWARPLENS_MARKS={marks}") for marks in (0, 1, 2)}
    assert builds[1] == default
    assert len(builds[0]) < len(default) < len(builds[2])
    assert {code(off, f"-DWARPLENS_MARKS={marks}") for marks in (0, 2)} == {code(off)}


FEW_VERBS = "rec.phase(s::a); rec.phase(s::b, n); rec.mark(s::a); rec.wait(s::b);"
SPLIT = KERNEL.replace("RECORDER", "warplens::split<s, ON>([&](auto& rec) {").replace("VERBS", FEW_VERBS)
SPLIT = f"#include <warplens/warplens.cuh>\nWARPLENS_SITES(s, a, b);\n{SPLIT.rstrip().removesuffix('}')}  }});\n}}\n"
ARENA = ("-DWARPLENS_ARENA=0x100000ull", "-DWARPLENS_CHUNKS=0x200000ull", "-DWARPLENS_SHARED_CHUNKS=1024u")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_split_body_that_is_off_is_the_bare_kernel(arch: str) -> None:
    bare = compile_cubin(KERNEL.replace("RECORDER", "").replace("VERBS", ""), ["k"], arch=arch)
    off = compile_cubin(SPLIT.replace("ON", "false"), ["k"], arch=arch)
    assert machine_code(off.cubin) == machine_code(bare.cubin)


@pytest.mark.parametrize(("chosen", "bodies"), [("-DWARPLENS_ALL_RECORDED", 1), ("-DWARPLENS_STEPS_ONLY", 2)])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_split_body_has_each_mark_once_and_the_kernels_work_twice_unless_all_is_recorded(
    policy: str, chosen: str, bodies: int
) -> None:
    def counts(source: str) -> tuple[int, int]:
        options = [*ARENA, chosen, f"-DWARPLENS_POLICY={policy}"]
        cubin = compile_cubin(source, ["k"], arch="sm_90a", options=options).cubin
        code = disassemble(cubin, "_Z1kPfj")
        return sum("SR_CLOCK" in line for line in code), sum("BAR.SYNC" in line for line in code)

    one, split = counts(marked("warplens::Recorder<s> rec;", FEW_VERBS)), counts(SPLIT.replace("ON", "true"))
    assert split[0] == one[0] > 0
    assert split[1] == bodies * one[1] > 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_split_body_that_nobody_records_comes_first_behind_one_read_and_one_branch(arch: str) -> None:
    code = disassemble(compile_cubin(SPLIT.replace("ON", "true"), ["k"], arch=arch).cubin, "_Z1kPfj")
    clean, marked_body = (next(n for n, own in enumerate(code) if word in own) for word in ("BAR.SYNC", "SR_CLOCK"))
    assert clean < marked_body
    calls = next(n for n, own in enumerate(code) if "CALL" in own)
    assert not [own for own in code[:calls] if "LDG" in own]
    assert sum("BRA" in own for own in code[:calls]) == 1


HANDLE_FREE = """
#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b);
template <bool kTrace> __device__ __noinline__ float deeper(float v, unsigned n) {
  MARK_DEEPER
  return n == 0 ? v : deeper<kTrace>(v * 1.5f + n, n - 1) + 2.0f;
}
__device__ __noinline__ float plain(float v) {
  MARK_PLAIN
  return v * v;
}
__global__ void k(float* p, unsigned n) {
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
    if (p[i] > 0.0f) {
      p[i] = deeper<TRACE>(p[i], i % 4);
    } else {
      MARK_HERE
      p[i] = plain(p[i]);
    }
  }
}
"""
MARKS = {
    "DEEPER": "warplens::mark<s, kTrace>(s::a, n);",
    "PLAIN": "warplens::mark<s>(s::b);",
    "HERE": "warplens::mark<s, TRACE>(s::a);",
}


def handle_free(trace: bool | None) -> str:
    """Marks without a recorder in functions that are called, in branches of single lanes; None: without the marks."""
    source = HANDLE_FREE
    for place, mark in MARKS.items():
        source = source.replace(f"MARK_{place}", "" if trace is None else mark)
    return source.replace("TRACE", "true" if trace else "false")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("policy", ["packed", "staged", "stream", "live"])
def test_marks_without_a_handle_compile_in_called_functions_and_leave_nothing_when_off(policy: str, arch: str) -> None:
    option = f"-DWARPLENS_POLICY={policy}"

    def code(trace: bool | None, *options: str) -> bytes:
        compiled = compile_cubin(handle_free(trace), ["k"], arch=arch, options=[option, *options])
        return text_section(compiled.cubin, compiled.names["k"])  # of the functions that it calls, too

    bare, on = code(None), code(True)
    assert code(False, "-DWARPLENS_ON=false") == bare
    assert code(True, "-DWARPLENS_MARKS=0") == bare
    assert len(on) > len(bare)


STRAIGHT = """
#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b);
__global__ void k(float* p) {
  warplens::Recorder<s> rec;
  rec.phase(s::a);
  float v = p[threadIdx.x];
  rec.phase(s::b);
  v = v * v + 1.0f;
  rec.phase(s::a);
  p[threadIdx.x] = v;
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_compiler_counts_the_records_of_a_doubled_build_as_of_a_single_one(arch: str) -> None:
    # A mark of a kernel without loops is a few instructions, and so must its copy be: else it costs something else.
    options = ["-DWARPLENS_1D", "-DWARPLENS_ALL_RECORDED"]
    options += ["-DWARPLENS_ARENA=0x7f0000008000ull", "-DWARPLENS_CHUNKS=0x7f0000108000ull"]
    options += ["-DWARPLENS_SHARED_CHUNKS=1048576u"]
    lengths = []
    for copies in (1, 2):
        compiled = compile_cubin(STRAIGHT, ["k"], arch=arch, options=[*options, f"-DWARPLENS_MARKS={copies}"])
        lengths.append(len(disassemble(compiled.cubin, compiled.names["k"])))
    assert lengths[1] - lengths[0] <= 2 * 12  # two copies


def test_names_kinds_and_resources_of_any_text_are_read_back() -> None:
    source = r"""#include <warplens/warplens.cuh>
#define LIST(X) X(a, "größe 漢字 \"q\" </script> 🙂", wait, "bar 1, 2") X(b, "", phase, "")
WARPLENS_SITES_FROM(long_form, LIST);
WARPLENS_SITES(short_form, load, store);
"""
    long_form, short_form = read_site_sets(compile_cubin(source, [], arch="sm_90a", filename="x.cu").cubin)
    assert [site["name"] for site in long_form["sites"]] == ['größe 漢字 "q" </script> 🙂', ""]
    assert long_form["sites"][0]["kind"] == "wait"
    assert long_form["sites"][0]["resource"] == "bar 1, 2"
    assert long_form["hash"] == layout.sites_hash("long_form")
    assert [(site["id"], site["name"], site["line"]) for site in short_form["sites"]] == [
        (1, "load", 4),
        (2, "store", 4),
    ]
    assert short_form["sites"][0]["file"] == "x.cu"


@pytest.mark.parametrize("count", [1, 300, layout.MAX_SITES])
def test_a_set_holds_as_many_sites_as_the_layout_allows(count: int) -> None:
    names = ", ".join(f"site_{i}" for i in range(count))
    source = f"""#include <warplens/warplens.cuh>
WARPLENS_SITES(s, {names});
static_assert(s::kCodeBits == {layout.code_bits(count)}, "as layout.py says");
"""
    (found,) = read_site_sets(compile_cubin(source, [], arch="sm_90a").cubin)
    assert len(found["sites"]) == count


def test_one_site_too_many_is_refused_by_the_compiler() -> None:
    names = ", ".join(f"site_{i}" for i in range(layout.MAX_SITES + 1))
    with pytest.raises(errors.CompileError, match="1 to 1023 sites"):
        compile_cubin(f"#include <warplens/warplens.cuh>\nWARPLENS_SITES(s, {names});", [], arch="sm_90a")


def test_a_source_without_sites_has_none_and_a_kind_that_does_not_exist_is_refused() -> None:
    assert read_site_sets(compile_cubin("__global__ void k() {}", [], arch="sm_90a").cubin) == []
    source = '#include <warplens/warplens.cuh>\n#define L(X) X(a, "n", nap, "")\nWARPLENS_SITES_FROM(s, L);'
    with pytest.raises(errors.SitesError, match="nap"):
        read_site_sets(compile_cubin(source, [], arch="sm_90a").cubin)


def test_another_standard_takes_the_place_of_the_default_without_a_warning() -> None:
    is_newer = "static_assert(__cplusplus >= 202002L);\n"
    for option, more in (
        ("--std=c++20", marked("warplens::Recorder<s> rec;")),
        ("-std=c++20", "__global__ void k() {}"),
    ):
        assert "warning" not in compile_cubin(is_newer + more, ["k"], arch="sm_90a", options=[option]).log


def test_compiling_writes_into_no_object_that_python_shares() -> None:
    # NVRTC writes an empty log as one byte, and Python keeps a single object for each bytes of length 1.
    compile_cubin('extern "C" __global__ void k() {}', ["k"], arch="sm_90a")
    assert [bytes([value])[0] for value in range(256)] == list(range(256))


BOUNDED = """
#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b);
template <bool kTrace> __global__ void __launch_bounds__(256) k(float* p) {
  warplens::Recorder<s, kTrace> rec;
  float v[24];
  rec.phase(s::a);
  for (int i = 0; i < 24; ++i) v[i] = p[i * 256 + threadIdx.x];
  rec.phase(s::b);
  for (int i = 0; i < 24; ++i) p[i * 256 + threadIdx.x] = v[i] * v[(i + 5) % 24];
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kernel_with_launch_bounds_takes_a_limit_of_registers(arch: str, tmp_path: Path) -> None:
    # What capture/cuda.py falls back to when the traced build holds fewer blocks; without the second option the
    # kernel's own bounds win.
    limit = "--maxrregcount=32"
    used = {}
    for options in ((), (limit,), (limit, "--ptxas-options=--override-directive-values")):
        compiled = compile_cubin(BOUNDED, ["k<true>"], arch=arch, options=options)
        used[len(options)] = resources(compiled.cubin, compiled.names["k<true>"], tmp_path)["REG"]
    assert used[2] <= 32 < min(used[0], used[1])


ARRIVES = """
#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b, c);
__global__ void k(float* p) {
  __shared__ float shared[64];
  warplens::Recorder<s> rec;
  rec.phase(s::b);
  shared[threadIdx.x] = p[threadIdx.x];
  rec.wait(s::a);
  rec.arrive(s::c);
  __syncthreads();
  rec.phase(s::b);
  p[threadIdx.x] = shared[63 - threadIdx.x];
}
"""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_mark_between_a_wait_and_its_barrier_leaves_the_clock_behind_it_held(policy: str, arch: str) -> None:
    compiled = compile_cubin(ARRIVES, ["k"], arch=arch, options=[f"-DWARPLENS_POLICY={policy}"])
    code = "\n".join(disassemble(compiled.cubin, compiled.names["k"]))
    behind = code.split("BAR.SYNC")[1].partition("SR_CLOCKLO")[0]
    assert behind.count("LDS") == 1


# Functions that marks call, in which one lane does what the others wait for.
RARE = {
    "packed": ("4turn", "27call_write_unusual_of_loops"),
    "stream": ("10open_chunk",),
    "live": ("10open_chunk",),
}


@pytest.mark.parametrize("policy", RARE)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_lanes_that_parted_in_a_call_come_together_in_front_of_its_return(policy: str, arch: str) -> None:
    """ptxas does not bring them together behind the call: it takes the count of records for the same in all lanes."""
    source = marked("warplens::Recorder<s> rec;")
    options = [f"-DWARPLENS_POLICY={policy}", "-DWARPLENS_LOOPS"]
    functions = called_functions(compile_cubin(source, ["k"], arch=arch, options=options).cubin)
    for rare in RARE[policy]:
        code = next(code for name, code in functions.items() if rare in name)
        returns = [at for at, instruction in enumerate(code) if re.search(r"\bRET\.", instruction)]
        assert returns
        for at in returns:
            assert code[at].startswith("RET"), code[at]
            assert re.search(r"WARPSYNC|BRA\.CONV|BRA\.DIV", "\n".join(code[max(at - 30, 0) : at])), (rare, at)


MARK_OF_A_LANE = """#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b);
__global__ void k(float* p, int n) {
  warplens::Recorder<s> rec;
  for (int i = 0; i < n; ++i) {
    rec.phase(s::a);
    if (threadIdx.x % 32 == i % 32) rec.mark_lane(s::b, i);
    p[threadIdx.x] += 1;
  }
}
"""


@pytest.mark.parametrize("keep", ["oldest", "newest"])
@pytest.mark.parametrize("policy", ["packed", "live"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_function_that_a_mark_of_lanes_calls_lets_go_those_that_wait(policy: str, arch: str, keep: str) -> None:
    """A YIELD lets lanes go that wait for the others behind a branch; ptxas puts it where a function has an atomic."""
    options = [f"-DWARPLENS_POLICY={policy}", *(["-DWARPLENS_KEEP_NEWEST"] if keep == "newest" else [])]
    functions = called_functions(compile_cubin(MARK_OF_A_LANE, ["k"], arch=arch, options=options).cubin)
    for called in ("14store_detached", "19call_choose_further"):
        (code,) = [code for name, code in functions.items() if called in name]
        assert not [instruction for instruction in code if "YIELD" in instruction], called


WAITS = """#include <warplens/warplens.cuh>
WARPLENS_SITES_FROM(s, SITES);
__global__ void k(float* p) {
  warplens::Recorder<s> rec;
  rec.phase(s::a);
  p[threadIdx.x] += 1;
  rec.wait(s::b);
  __syncthreads();
  rec.end_phase();
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_memory_of_the_system_is_read_only_where_no_cluster_is_launched(arch: str) -> None:
    """In a cluster that is an illegal instruction: unless the host says otherwise, a word of our own is read."""
    sites = '#define SITES(X) X(a, "a", phase, "") X(b, "b", wait, "barrier")\n'
    own = {}
    for options in ((), ("-DWARPLENS_NO_CLUSTER",)):
        cubin = compile_cubin(sites + WAITS, ["k"], arch=arch, options=["-DWARPLENS_POLICY=packed", *options]).cubin
        own[bool(options)] = b".nv.shared._Z1kPf\0" in cubin
    assert own == {False: True, True: arch == "sm_80"}
