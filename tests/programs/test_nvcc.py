"""`warplens nvcc`: what it makes is what nvcc makes, with marks, and its sites known to the program.

Needs the nvcc of the wheels nvidia-cuda-nvcc, nvidia-nvvm and nvidia-cuda-runtime, g++ and CMake; no GPU.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import warplens
from tests.machine_code import tool
from tests.unit.instrument.test_recorder import LOOP
from tests.unit.instrument.test_recorder import run as run_on_cpu
from warplens.capture.modules import read_site_sets
from warplens.capture.nvcc import Wish, shadow

pytestmark = pytest.mark.programs

KERNEL = """
template <class T> __global__ void __launch_bounds__(256) swap_halves(T* data) {
  __shared__ T part[256];
  part[threadIdx.x] = data[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  data[blockIdx.x * 256 + threadIdx.x] = part[255 - threadIdx.x];
}
"""
MAIN = f"""
#include <cstdio>
{KERNEL}
int main() {{
  swap_halves<float><<<4, 256>>>(nullptr);
  std::printf("%d\\n", cudaGetLastError() != cudaSuccess);
}}
"""
SM_90 = ["-gencode", "arch=compute_90,code=sm_90"]
OURS = [sys.executable, "-m", "warplens", "nvcc"]
MARKS_ALONE = ["-DWARPLENS_HOST_HPP", "-include", f"{warplens.get_include()}/warplens/warplens.cuh"]
"""host.hpp is held to be there already, and what marks need of it comes alone: for tests of what is marked and said.
To compile host.hpp takes three times as long as all the rest."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a.cu, in which a script `nvcc` that calls NVIDIA's comes first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    folder.joinpath("nvcc").write_text(f'#!/bin/sh\nexec {shlex.quote(tool("nvcc"))} "$@"\n', encoding="utf-8")
    folder.joinpath("nvcc").chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH", "WARPLENS_NVCC", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("a.cu").write_text(MAIN, encoding="utf-8")
    return tmp_path


def nvcc(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*OURS, *arguments], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stderr
    return done


def sites_of(path: str) -> list[list[str]]:
    """Names of the sites of each kernel, in the machine code that a file holds."""
    subprocess.run([tool("cuobjdump"), "-xelf", "all", path], check=True, capture_output=True)
    cubins = sorted(Path().glob("*.cubin"))
    found = [[site["name"] for site in own["sites"]] for cubin in cubins for own in read_site_sets(cubin.read_bytes())]
    for cubin in cubins:
        cubin.unlink()
    return found


def test_a_program_holds_marks_and_the_names_of_its_sites(place: Path) -> None:
    nvcc(*SM_90, "a.cu", "-o", "a")
    (sites,) = sites_of("a")
    assert sites == ["a.cu:4-6 load", "a.cu:7 wait barrier 0", "a.cu:8-9 store"]
    data = (place / "a").read_bytes()
    assert b"\x1ea.cu:7 wait barrier 0\x1fwait\x1fbarrier 0\x1f" in data
    done = subprocess.run([place / "a"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"  # there is no GPU, and the program says so itself
    command = [*OURS[:-1], "record", "./a"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr.splitlines()
    assert said[1] == "not recorded: no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)"
    assert said[-2:] == ["          1  (name not known)", "try: warplens doctor, which says what recording needs"]
    assert sorted(path.name for path in place.iterdir()) == ["a", "a.cu", "bin"]


def test_a_budget_goes_by_a_first_run(place: Path) -> None:
    ptx = LOOP.replace("loop(", "_Z11swap_halvesIfEvPT_(").replace("\tbar.sync 0;", "\t.loc 1 7 0\n\tbar.sync 0;")
    first = run_on_cpu(ptx.format(threads=64) + '.file 1 "a.cu"\n', turns=9).trace  # as if its barrier were in a loop
    assert "a.cu:7 wait barrier 0" in first.sites["name"].to_list()
    first.save(place / "run.wlens")
    budget = ["--warplens-budget=30%", "--warplens-counts=run.wlens"]
    said = nvcc(*SM_90, *MARKS_ALONE, *budget, "-c", "a.cu").stderr
    assert "left out for the budget: a.cu:7 wait barrier 0: 18 events a launch" in said
    assert sites_of("a.o") == [["a.cu:4-9 load, store"]]
    assert "both are needed" in nvcc(budget[0], "-c", "a.cu", code=2).stderr
    assert "run.wlen:" in nvcc(budget[0], "--warplens-counts=run.wlen", "-c", "a.cu", code=3).stderr


def test_functions_that_are_not_inlined_are_named_in_the_program(place: Path) -> None:
    function = "__device__ __noinline__ void meet() { __syncthreads(); }\n"
    (place / "a.cu").write_text(function + MAIN.replace("__syncthreads();", "meet();"), encoding="utf-8")
    line = next(n for n, text in enumerate((place / "a.cu").read_text().splitlines(), 1) if "  meet();" in text)
    said = nvcc(*SM_90, *MARKS_ALONE, "--warplens-verbose", "a.cu", "-o", "a").stderr
    told = f"call of _Z4meetv (a.cu:{line}): what it does is not marked, 1 wait among it"
    assert b"\x1d" + told.encode() in (place / "a").read_bytes()
    assert told in said


def test_nvcc_runs_the_commands_that_it_would_run_but_for_two_tools(place: Path) -> None:
    folder = place / "links"
    folder.mkdir()
    started = shadow(str(place / "bin" / "nvcc"), folder, Wish())

    def steps(program: Path) -> list[str]:
        command = [str(program), "--dryrun", "-rdc=true", "-lineinfo", *SM_90, "a.cu", "-o", "a"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        said = re.sub(r"tmpxft_[0-9a-f]+_", "", said).replace(str(folder), str(Path(tool("nvcc")).parent.parent))
        return [line for line in said.splitlines() if not line.startswith("#$ PATH=")]

    clean = steps(place / "bin" / "nvcc")
    assert steps(started) == clean
    assert sum(" ptxas " in line or "fatbinary " in line for line in clean) == 3
    assert [(started.parent / name).is_symlink() for name in ("cudafe++", "ptxas", "fatbinary")] == [True, False, False]


def test_relocatable_code_and_several_gpus_and_threads_are_marked_alike(place: Path) -> None:
    (place / "b.cu").write_text(KERNEL + "template __global__ void swap_halves<float>(float*);", encoding="utf-8")
    more = ["-gencode", "arch=compute_80,code=[sm_80,compute_80]", "-t", "2"]
    nvcc(*SM_90, *more, "-rdc=true", "-c", "a.cu", "b.cu")
    nvcc(*SM_90, *more, "-rdc=true", "a.o", "b.o", "-o", "both")  # the kernel is in both of them
    for name in ("a.o", "b.o"):
        assert [len(sites) for sites in sites_of(name)] == [3, 3]
    assert [len(sites) for sites in sites_of("both")] == [3, 3, 3, 3]  # the sites of each are named by its file
    text = subprocess.run([tool("cuobjdump"), "-ptx", "a.o"], capture_output=True, text=True, check=True).stdout
    assert "warplens_sites_" in text


def test_what_is_marked_is_chosen_by_options_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc(*SM_90, *MARKS_ALONE, "--warplens-level=coarse", "--warplens-sites=wait", "-c", "a.cu")
    assert sites_of("a.o") == [["a.cu:4-6 load", "a.cu:7 wait barrier 0", "a.cu:8-9 store"]]
    monkeypatch.setenv("WARPLENS_NVCC", "--warplens-kernels=other")
    told = nvcc(*SM_90, "-c", "a.cu").stderr
    assert told == (
        "warplens nvcc: a.cu (sm_90): compiled without marks: "
        "no kernel without marks has a name that holds 'other': there are _Z11swap_halvesIfEvPT_\n"
    )
    assert sites_of("a.o") == []
    done = subprocess.run([*OURS[:-1], "doctor", "--binary", "a.o"], capture_output=True, text=True, check=False)
    assert "a.o: record does not see it" in done.stdout
    assert done.returncode == 5
    monkeypatch.delenv("WARPLENS_NVCC")
    told = nvcc(*SM_90, "--warplens-sites=nothing", "-c", "a.cu").stderr
    assert told == (
        "warplens nvcc: a.cu (sm_90): no site has a name that holds 'nothing': begin and end alone are marked\n"
    )
    done = subprocess.run([*OURS[:-1], "doctor", "--binary", "a.o"], capture_output=True, text=True, check=True)
    assert "a.o: record sees it" in done.stdout
    nvcc(*SM_90, *MARKS_ALONE, "--warplens-kernels=swap", "-c", "a.cu")  # what is given counts more
    assert len(sites_of("a.o")) == 1


STRICT = "-Wall,-Wextra,-Werror,-Wshadow,-Wconversion,-Wsign-conversion,-Wuseless-cast,-Wcast-qual,-Wdouble-promotion"
STRICT += ",-Wcast-align=strict,-Wnon-virtual-dtor,-Wnull-dereference,-Wmissing-declarations,-Wextra-semi,-Wformat=2"
"""Of g++; what nvcc's own headers do not pass (-Wpedantic, -Wold-style-cast, -Wundef) no build can ask for."""


def test_what_a_build_takes_for_errors_is_looked_for_in_its_own_code_alone(place: Path) -> None:
    nvcc(*SM_90, "-O3", "-Xcompiler", f"{STRICT},-Weffc++", "-Werror", "all-warnings", "-c", "a.cu")
    assert len(sites_of("a.o")) == 1
    (place / "a.cu").write_text(MAIN + "inline int f(int n) { { int n = 1; return n; } }\n", encoding="utf-8")
    said = nvcc(*SM_90, *MARKS_ALONE, "-Xcompiler", STRICT, "-c", "a.cu", code=1).stderr
    assert set(re.findall(r"error: .*\[-Werror=(\w+)\]", said)) == {"shadow"}


def test_a_source_that_includes_the_header_itself_compiles_without_a_warning(place: Path) -> None:
    (place / "a.cu").write_text("#include <warplens/host.hpp>\n" + MAIN, encoding="utf-8")
    command = ["nvcc", *SM_90, "-std=c++17", "-O3", "-Xcompiler", STRICT, f"-I{warplens.get_include()}", "-c", "a.cu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--warplens-level=some"], "--warplens-level=some: expected one of coarse, waits, all"),
        (["--warplens-depth=3"], "'--warplens-depth=3': expected one of --warplens-level"),
        (["--warplens-kernels=("], "no regular expression"),
        (["--warplens-nvcc=/nowhere/nvcc"], "/nowhere/nvcc cannot be started: No such file"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(arguments: list[str], said: str) -> None:
    code = 5 if "nowhere" in arguments[0] else 2
    assert said in nvcc(*arguments, "-c", "a.cu", code=code).stderr


def test_errors_of_a_source_are_nvccs_own(place: Path) -> None:
    (place / "a.cu").write_text("__global__ void k() { nothing(); }", encoding="utf-8")
    clean = subprocess.run(["nvcc", *SM_90, "-c", "a.cu"], capture_output=True, text=True, check=False)
    assert clean.returncode
    assert nvcc(*SM_90, "-c", "a.cu", code=clean.returncode).stderr == clean.stderr
    (place / "a.cu").write_text('__global__ void k() { asm("nothing;"); }', encoding="utf-8")
    assert "nothing" in nvcc(*SM_90, *MARKS_ALONE, "-c", "a.cu", code=255).stderr


def test_where_marks_cannot_be_it_compiles_without_and_says_why(place: Path) -> None:
    assert "marks need sm_80" in nvcc("-arch=sm_75", "-c", "a.cu").stderr
    assert "needs C++17" in nvcc(*SM_90, "-std=c++14", "-c", "a.cu").stderr
    assert "-cubin makes no program that could record itself" in nvcc(*SM_90, "-cubin", "a.cu", "-o", "a.bin").stderr
    assert read_site_sets((place / "a.bin").read_bytes()) == []
    lto = ["-gencode", "arch=compute_90,code=lto_90", "-rdc=true"]
    assert "link-time optimisation shows no PTX" in nvcc(*lto, *MARKS_ALONE, "-c", "a.cu").stderr
    assert "release" in nvcc("--version").stdout
    (place / "b.cpp").write_text("int other() { return 1; }", encoding="utf-8")
    assert nvcc("-c", "b.cpp").stderr == ""


def test_a_kernel_with_too_many_sites_gets_fewer_and_the_others_what_was_asked_for(place: Path) -> None:
    steps = "\n".join(f"  p[threadIdx.x + {n}] = {n}; __syncthreads();" for n in range(600))
    (place / "a.cu").write_text(f"{MAIN}\n__global__ void large(float* p) {{\n{steps}\n}}\n", encoding="utf-8")
    told = nvcc(*SM_90, *MARKS_ALONE, "-c", "a.cu").stderr.splitlines()
    why = "1,201 sites are too many to tell apart (at most 1,023): it gets begin and end"
    assert told == [f"warplens nvcc: a.cu (sm_90): _Z5largePf: {why}"]
    assert sorted(map(len, sites_of("a.o"))) == [1, 3]


def test_a_source_with_marks_of_its_own_keeps_them(place: Path) -> None:
    own = """#include <warplens/host.hpp>
WARPLENS_SITES(mine, first);
__global__ void by_hand(float* p) { warplens::Recorder<mine> r; r.phase(mine::first); __syncthreads(); *p = 1; }
"""
    (place / "a.cu").write_text(own + MAIN, encoding="utf-8")
    nvcc(*SM_90, f"-I{warplens.get_include()}", "-c", "a.cu")
    assert sorted(map(len, sites_of("a.o"))) == [1, 3]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_a_cmake_project_takes_it_for_its_compiler(place: Path) -> None:
    compiler = place / "bin" / "warplens-nvcc"
    start = "import sys; from warplens.cli.nvcc import program; program()"
    compiler.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", start])} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    project = "cmake_minimum_required(VERSION 3.24)\nproject(p LANGUAGES CUDA)\nadd_executable(p a.cu)\n"
    (place / "CMakeLists.txt").write_text(project, encoding="utf-8")
    command = ["cmake", "-S", ".", "-B", "build", f"-DCMAKE_CUDA_COMPILER={compiler}", "-DCMAKE_CUDA_ARCHITECTURES=90"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    subprocess.run(["cmake", "--build", "build"], check=True, capture_output=True, timeout=300)
    assert [len(sites) for sites in sites_of("build/p")] == [3]
