"""Programs with a kernel that hangs, below `warplens record`, on a real GPU: the time-out, Ctrl-C and SIGTERM.

What was recorded is saved, and the command says where each warp last was. Each failure prints what the command said.
Needs an NVIDIA GPU of compute capability 8.0 or newer, nvcc 13 and NVRTC; Triton's test Triton and torch, CuPy's CuPy:
pytest -m gpu.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import warplens
from tests.marked import HEAD
from warplens.render.stopped import last_sites

pytestmark = pytest.mark.gpu

HARD_LIMIT_S = 150
TIME_OUT_S = 6
"""Until then a program has made its context and compiled its kernel."""
WHY = "the program had not ended by the time-out"
HELD = " (with policy packed a warp keeps up to 24 of its last records in registers)"
BAD = {"foreign_chunk", "unknown_record", "cut_record", "duplicate_chunk"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `hung.cu`, compiled for each policy."""
    out = tmp_path_factory.mktemp("hung")
    base = ["nvcc", "-std=c++17", "-arch=native", f"-I{warplens.get_include()}", str(Path(__file__).parent / "hung.cu")]
    builds = [
        subprocess.Popen([*base, f"-DWARPLENS_POLICY={policy}", "-o", str(out / policy)])
        for policy in ("packed", "staged", "stream", "live")
    ]
    assert [build.wait(timeout=300) for build in builds] == [0] * 4
    return out


def record(place: Path, *command: str, number: signal.Signals | None = None, after: str = "hangs") -> tuple[int, str]:
    """Exit code and all that was printed of `warplens record`; `number` is sent to it once the program says `after`."""
    words = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", "--rounds", "0", *command]
    with subprocess.Popen(
        words,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as running:
        killer = threading.Timer(HARD_LIMIT_S, os.killpg, (running.pid, signal.SIGKILL))
        killer.start()
        try:
            said = ""
            assert running.stdout is not None
            if number is not None:
                for line in running.stdout:
                    said += line
                    if line.startswith(after):
                        break
                time.sleep(2)
                running.send_signal(number)
            rest, _ = running.communicate()
            return running.returncode, said + rest
        finally:
            killer.cancel()


def stopped(place: Path, said: str, why: str, launches: int) -> warplens.Trace:
    """The trace, once it has been seen that its last launch is the one that hung."""
    path = place / "run.wlens"
    assert path.exists(), said
    trace = warplens.open(path)
    print(said, trace.manifest["stopped"], trace.problems, sep="\n")
    assert trace.launches.height == launches, said
    assert not trace.manifest["complete"], said
    assert trace.manifest["stopped"]["why"] == why, said
    assert "what was recorded of the kernel that had not ended is saved" in said
    assert not BAD & set(trace.problems["kind"].to_list()), trace.problems
    return trace


@pytest.mark.parametrize("policy", ["stream", "live", "packed", "staged"])
def test_a_cpp_program_that_hangs_leaves_where_its_warps_were(policy: str, programs: Path, tmp_path: Path) -> None:
    code, said = record(tmp_path, "--timeout", str(TIME_OUT_S), "--", str(programs / policy))
    assert code == 124, said
    trace = stopped(tmp_path, said, WHY, 3)
    assert re.search(r"wait_for_flag<true> was stopped after \d", said), said
    if policy in ("stream", "live"):
        assert "Where each warp last was:\n  block 2 warp 1: waiting\n  7 warps had ended\n" in said, said
        assert [row["site"] for row in last_sites(trace)] == ["waiting", None]
    else:
        found = re.search(r"Where each warp was at least \(with policy \w+ .*\):\n  block 2 warp 1: (\w+)", said)
        assert found is not None, said
        assert found[1] == "counting", said
        assert "  7 warps had ended\n" in said, said
    assert HELD in said or policy != "packed", said
    summary = [sys.executable, "-m", "warplens", "summary", "run.wlens"]
    shown = subprocess.run(summary, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert WHY in " ".join(shown.stdout.split()), shown.stdout + shown.stderr


def test_of_a_program_that_waits_in_a_copy_it_is_told_that_nothing_could_be_read(
    programs: Path, tmp_path: Path
) -> None:
    """The driver serves one thread at a time, and a copy keeps it."""
    code, said = record(tmp_path, "--timeout", str(TIME_OUT_S), "--", str(programs / "stream"), "copy")
    assert code == 124, said
    assert "did not save what was under way in time (where it waits within a copy" in said, said
    assert "what it launched is not known" in said, said


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_saves_what_a_cpp_program_has_and_ends_it(
    number: signal.Signals, name: str, programs: Path, tmp_path: Path
) -> None:
    code, said = record(tmp_path, "--", str(programs / "stream"), number=number)
    assert code == 128 + number, said
    stopped(tmp_path, said, f"{name} came while it ran", 3)
    assert "  block 2 warp 1: waiting\n" in said, said


def test_a_program_that_ends_before_its_last_launch_waits_for_it(programs: Path, tmp_path: Path) -> None:
    code, said = record(tmp_path, "--", str(programs / "stream"), "end")
    assert code == 0, said
    assert "has ended, and waits for its last launch for 30 s at most" in said, said
    assert warplens.open(tmp_path / "run.wlens").launches.height == 1, said


KERNEL = (
    HEAD
    + """
template <bool kTrace> __global__ void k(volatile float* p, float wanted) {
  warplens::Recorder<s, kTrace> r;
  r.phase(s::a);
  if (blockIdx.x == 1 && threadIdx.x >= 32) {
    for (int i = 0; i < 40; ++i) r.phase(s::b);
    r.phase(s::c);
    while (p[0] < wanted) {}
  }
  r.phase(s::a);
}
"""
)
OF_KERNEL = f"""
import numpy as np, warplens
kernel = warplens.Kernel({KERNEL!r}, "k<true>")
p = np.full(64, 2, np.float32)
for wanted in (1, 2, 3):
    if wanted == 3:
        print("hangs", flush=True)
    kernel.launch(3, 64, p, np.float32(wanted))  # copies p back, for which it waits
"""


AGAIN = "threading.Timer(20, os.kill, (os.getppid(), signal.SIGINT)).start()"


def program(place: Path, text: str) -> str:
    (place / "program.py").write_text(text, encoding="utf-8")
    return str(place / "program.py")


@pytest.mark.parametrize("policy", ["packed", "stream", "live"])
def test_a_program_of_warplens_kernel_that_hangs_leaves_where_its_warps_were(policy: str, tmp_path: Path) -> None:
    options = ["--timeout", "20", "--policy", policy]
    code, said = record(tmp_path, *options, program(tmp_path, OF_KERNEL))
    assert code == 124, said
    stopped(tmp_path, said, WHY, 3)
    site = "b" if policy == "packed" else "c"
    assert re.search(rf"  block 1 warp 1: {site}(, since \d+\.\d s)?\n", said), said
    assert "  5 warps had ended\n" in said, said
    assert (HELD in said) == (policy == "packed"), said


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_saves_while_a_python_program_waits_for_the_gpu(
    number: signal.Signals, name: str, tmp_path: Path
) -> None:
    """SIGINT alone does not end such a program: the second one does."""
    text = OF_KERNEL
    if number == signal.SIGINT:  # 20 s after the program's begin: the first one comes 2 s after it hangs
        text = f"import os, signal, threading\n{AGAIN}\n{text}"
    code, said = record(tmp_path, "--policy", "stream", program(tmp_path, text), number=number)
    assert code in (128 + number, 128 + signal.SIGTERM), said
    stopped(tmp_path, said, f"{name} came while it ran", 3)
    assert "  block 1 warp 1: c" in said, said


OF_TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def wait_for(flag, out, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(out + at)
    if pid == 1:
        while tl.atomic_cas(flag, 1, 1) != 1:
            pass
    tl.debug_barrier()
    tl.store(out + at, x + 1)

flag, out = torch.ones(1, dtype=torch.int32, device="cuda"), torch.zeros(4 * 128, device="cuda")
for launch in range(4):
    wait_for[(4,)](flag, out, BLOCK=128)
    if launch == 1:
        torch.cuda.synchronize()
        flag.zero_()
print("hangs", flush=True)
torch.cuda.synchronize()
"""


def test_a_triton_program_that_hangs_leaves_where_its_warps_were(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    code, said = record(tmp_path, "--timeout", "40", program(tmp_path, OF_TRITON))
    assert code == 124, said
    trace = stopped(tmp_path, said, WHY, 3)
    assert re.search(r"wait_for was stopped after \d", said), said
    assert re.search(r"  block 1 warps? 0[-,\d]*: ", said), said
    assert "  12 warps had ended\n" in said, said
    assert {row["block"] for row in last_sites(trace) if row["site"] is not None} == {1}, said


ENDS = (
    OF_TRITON.partition("for launch")[0]
    + """
wait_for[(4,)](flag, out, BLOCK=128)
torch.cuda.synchronize()
torch.cuda._sleep(8_000_000_000)  # 4 s at 2 GHz
wait_for[(4,)](flag, out, BLOCK=128)
"""
)
OF_CUPY = r"""
import cupy
kernel = cupy.RawKernel(r'''
extern "C" __global__ void wait_for(volatile unsigned* flag, unsigned wanted) {
  __shared__ unsigned own[64];
  own[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (blockIdx.x == 1) {
    while (*flag < wanted + own[0]) {}
  }
  __syncthreads();
}
''', "wait_for")
flag = cupy.full(1, 2, cupy.uint32)
for wanted in (1, 2, 3, 4):
    kernel((3,), (64,), (flag, cupy.uint32(wanted)))
print("hangs", flush=True)
cupy.cuda.runtime.deviceSynchronize()
"""


def test_a_cupy_program_that_hangs_leaves_where_its_warps_were(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    code, said = record(tmp_path, "--timeout", "40", program(tmp_path, OF_CUPY))
    assert code == 124, said
    stopped(tmp_path, said, WHY, 3)
    assert re.search(r"  block 1 warps 0-1: .*\(2 warps\)", said), said
    assert "  4 warps had ended\n" in said, said


def test_a_triton_program_that_ends_before_its_last_launch_waits_for_it(tmp_path: Path) -> None:
    """As a program that forgets to wait: what is on the GPU takes some seconds, and is recorded."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    code, said = record(tmp_path, program(tmp_path, ENDS))
    assert code == 0, said
    assert "waits for launches of Triton's kernels for 30 s at most" in said, said
    assert warplens.open(tmp_path / "run.wlens").launches.height == 2, said
