"""The ring of chunks under threads: the recorder's own arena.cuh with real atomics, on the CPU. No GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.machine_code import disassemble
from warplens.capture.arena import ring_cursors
from warplens.capture.compile import compile_cubin, get_include

pytestmark = pytest.mark.compile

HERE = Path(__file__).parents[1] / "emulation"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120")
POLICIES = ("packed", "staged", "stream", "live")


def build(folder: Path, *options: str) -> Path:
    assert COMPILER, "no C++ compiler was found: apt install g++"
    program = folder / f"threads{''.join(options)}"
    include = [f"-I{get_include()}", "-include", str(HERE / "device.h")]
    flags = ["-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", *options, *include]
    subprocess.run([COMPILER, *flags, "-o", program, HERE / "threads.cpp"], check=True)
    return program


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("threads"))


def told(program: Path, warps: int, chunks: int, rounds: int, seed: int) -> tuple[int, ...]:
    """Events, kept, lost, chunks torn, left open, refused."""
    numbers = warps, chunks, rounds, seed, ring_cursors(chunks)
    out = subprocess.run([program, *map(str, numbers)], capture_output=True, text=True, check=True, timeout=300)
    return tuple(map(int, out.stdout.split()))


@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 64, 1000, 1024, 1025, 5000])
def test_no_chunk_is_written_by_two_and_what_is_lost_is_counted_to_the_event(chunks: int, threads: Path) -> None:
    for seed, warps in enumerate((1, 2, 8, 32)):
        rounds = 6400 // warps
        events, kept, lost, torn, left_open, _ = told(threads, warps, chunks, rounds, seed)
        assert (torn, left_open) == (0, 0)
        assert kept + lost == events
        assert lost > 0


def test_a_ring_with_more_chunks_than_warps_refuses_none(threads: Path) -> None:
    assert told(threads, 32, 5000, 500, 9)[-1] == 0


def test_the_thread_sanitizer_sees_each_chunk_handed_over(tmp_path: Path) -> None:
    # It reports a store into a chunk that does not come behind the release of the warp before.
    program = build(tmp_path, "-fsanitize=thread")
    for chunks in (1, 3, 64):
        events, kept, lost, torn, _, _ = told(program, 4, chunks, 400, chunks)
        assert torn == 0
        assert kept + lost == events


def test_a_ring_without_chunks_loses_all(threads: Path) -> None:
    events, kept, lost, *_ = told(threads, 4, 0, 100, 1)
    assert (kept, lost) == (0, events)


KERNEL = """
#include <warplens/warplens.cuh>
WARPLENS_SITES(s, a, b);
__global__ void k(float* p, int n) {
  warplens::Recorder<s> rec;
  for (int i = 0; i < n; ++i) {
    rec.phase(s::a, i);
    p[threadIdx.x] += 1;
    rec.mark(s::b);
  }
}
"""
RING = ("-DWARPLENS_KEEP_NEWEST", "-DWARPLENS_RING_CHUNKS=4096u")
KNOWN = ("-DWARPLENS_ARENA=0x7f0000008000ull", "-DWARPLENS_CHUNKS=0x7f0000108000ull", "-DWARPLENS_SHARED_CHUNKS=256u")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_compiles_for_a_ring_known_or_not(policy: str, arch: str) -> None:
    for options in ((), KNOWN, (*KNOWN, "-DWARPLENS_ALL_RECORDED", "-DWARPLENS_1D")):
        own = (f"-DWARPLENS_POLICY={policy}", *options)
        newest, oldest = (compile_cubin(KERNEL, ["k"], arch=arch, options=[*own, *more]) for more in (RING, ()))
        assert newest.log == oldest.log
        assert b"warning" not in newest.log.encode()
        assert newest.cubin != oldest.cubin


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_ring_costs_those_who_keep_the_oldest_no_instruction(policy: str, arch: str) -> None:
    code = {}
    for name, ring in (("newest", RING), ("oldest", ())):
        options = (f"-DWARPLENS_POLICY={policy}", *KNOWN, *ring)
        compiled = compile_cubin(KERNEL, ["k"], arch=arch, options=options)
        code[name] = "\n".join(disassemble(compiled.cubin, compiled.names["k"]))
    assert ".EXCH" in code["newest"]
    assert "MEMBAR" in code["newest"]
    assert ".EXCH" not in code["oldest"]
    if policy != "live":  # its fences reach the host, and empty the first-level cache
        assert not re.search(r"MEMBAR(?!\S*\.CTA)", code["oldest"])  # `staged` orders what it keeps within its block
        assert "CCTL" not in code["newest"]
