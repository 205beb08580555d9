"""Kernels that hang, crash or are interrupted on a real GPU: what they had recorded is kept, and names the place.

Each runs in a process of its own, which is killed whatever happens.
Needs an NVIDIA GPU of compute capability 8.0 or newer and NVRTC: pytest -m gpu.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.marked import kernel, losses
from warplens.render.stopped import last_sites
from warplens.trace import Trace
from warplens.trace import open as open_trace

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
HARD_LIMIT_S = 120
"""Compiling takes seconds, each hang two."""

STOPS = {
    "hang": "if (threadIdx.x >= 32) { r.phase(s::b); while (*(volatile float*)p < 1e9f) {} }",
    "trap": "if (threadIdx.x >= 32) { r.phase(s::b); __trap(); }",
    # A load whose value decides what comes next: a store that fails is told when the warp is already further on.
    "illegal": "if (threadIdx.x >= 32) { r.phase(s::b); if (((volatile float*)16)[threadIdx.x] > 0) p[0] = 1; }",
    "mbarrier": """
  __shared__ unsigned long long gate;  // two arrivals are wanted, one comes
  const unsigned address = (unsigned)__cvta_generic_to_shared(&gate);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 2;" :: "r"(address) : "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(address) : "memory");
  }
  if (threadIdx.x >= 32) {
    r.wait(s::b);
    for (unsigned open = 0; open == 0;) {
      asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                   : "=r"(open) : "r"(address) : "memory");
    }
  }""",
}
WHY = {
    "hang": "it had not ended by the time-out",
    "trap": "it crashed: CUDA_ERROR",
    "illegal": "it crashed: CUDA_ERROR",
    "mbarrier": "it had not ended by the time-out",
}

HEAD = """
import os, sys, threading, time
import numpy as np
import warplens
from warplens.errors import DeviceError, StoppedError
source, path, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
"""
RECORD = (
    HEAD
    + """
k = warplens.Kernel(source, "k<true>")
try:
    k.record(blocks, 64, np.zeros(64, np.float32), policy="live", rounds=1, warmup=1, timeout_s=2)
except StoppedError as error:
    print(error, flush=True)
    error.trace.save(path)
    try:  # what comes after fails at once instead of waiting
        k.record(3, 64, np.zeros(64, np.float32))
    except DeviceError as again:
        print("again:", again, flush=True)
    os._exit(0)
"""
)
WAIT = (
    HEAD
    + """
k = warplens.Kernel(source, "k<true>")
def tell():
    while k._arena is None or len(k._arena.look()[1]) < 2:
        time.sleep(0.01)
    time.sleep(0.2)
    print("hangs", flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    k.record(1, 64, np.zeros(64, np.float32), policy="live", capacity_bytes=1 << 20)
except StoppedError as error:
    print(error, flush=True)
    error.trace.save(path)
    os._exit(0)
"""
)
SYNCHRONISE = (
    HEAD
    + """
import ctypes
from warplens.capture import cuda
from warplens.capture.session import Session
from warplens.capture.arena import Drained
from warplens.capture.arguments import Arguments
from warplens.capture.options import RecordOptions
from warplens.capture.stopped import Stop, mark_stopped
from warplens.capture.watchdog import Watchdog
from warplens.trace.file import write_file
k = cuda.CudaKernel(source, "k<true>", clean=None)
options = RecordOptions(policy="live", capacity_bytes=1 << 20)
session = Session(k, ((1, 1, 1), (64, 1, 1)), options)
session._switch_on()
session.arena.clear(0)
session.calibration.append(session.calibrator.read(session.calibrator.begin(0), "before", 0))
arguments = Arguments([np.zeros(64, np.float32)], None)
def save(why, after_s):
    chunks, last = session.arena.look()
    done = mark_stopped(session._recording([Drained(chunks, 0, 0)], None), Stop(why, after_s), last)
    write_file(path, done.manifest, records=done.records, sources=done.sources)
    print("saved", [name for name in ("polars", "matplotlib") if name in sys.modules], flush=True)
    return last
with Watchdog(save, grace_s=0.5):
    session._launch(session.traced, arguments)
    def tell():
        while len(session.arena.look()[1]) < 2:
            time.sleep(0.01)
        time.sleep(0.5)  # until the main thread waits
        print("hangs", flush=True)
    threading.Thread(target=tell, daemon=True).start()
    ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()  # as torch.cuda.synchronize() waits: in C, without Python's lock
"""
)
SLOW = (
    HEAD
    + """
k = warplens.Kernel(source, "k<true>")
p = np.zeros(64, np.float32)
try:
    k.record(1, 64, p, np.int64(2_000_000_000), policy="live", timeout_s=0.3)
except StoppedError as error:
    print(error, flush=True)
time.sleep(8)  # 2e9 cycles take less
k.record(1, 64, p, np.int64(1000), policy="live", timeout_s=5, rounds=1, warmup=0).save(path)
"""
)


def source(how: str) -> str:
    """A kernel whose second warp stops in b."""
    return kernel("r.phase(s::a); " + STOPS[how] + " r.phase(s::c);")


@contextlib.contextmanager
def child(program: str, text: str, path: Path, blocks: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `program` on a source; killed after HARD_LIMIT_S, and in any case when it is left."""
    command = [sys.executable, "-c", program, text, str(path), str(blocks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        killer = threading.Timer(HARD_LIMIT_S, process.kill)
        killer.start()
        try:
            yield process
        finally:
            process.kill()
            killer.cancel()


def run(program: str, text: str, path: Path, blocks: int = 1) -> tuple[int, str]:
    """Exit code and output of a process that ends by itself."""
    with child(program, text, path, blocks) as process:
        printed, _ = process.communicate()
        return process.returncode, printed


def when_it_hangs(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Sends the signal when the process says that its kernel hangs; its exit code and what it prints from then on."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if line == "hangs\n":
            break
    else:
        pytest.fail(f"the kernel did not start: {seen}")
    process.send_signal(number)
    text, _ = process.communicate()
    return process.returncode, text


def stopped_in_b(trace: Trace, why: str) -> None:
    """Holds that the trace has what warp 1 did until it stopped in b, and says so."""
    assert not trace.manifest["complete"]
    assert why in trace.manifest["stopped"]["why"]
    assert "b" in [row["site"] for row in last_sites(trace)]
    sites = trace.spans.filter(pl.col("warp") == 1, pl.col("block") == 0)["site"].to_list()
    assert sites == [0, 1]
    assert trace.problems.filter(kind="stopped").height == 1
    assert not set(losses(trace)["kind"].to_list()) & {"foreign_chunk", "unknown_record", "cut_record", "gap"}


@pytest.mark.parametrize("how", sorted(STOPS))
def test_what_a_kernel_recorded_before_it_stopped_is_kept_and_names_the_place(how: str, tmp_path: Path) -> None:
    path = tmp_path / "stopped.wlens"
    code, text = run(RECORD, source(how), path)
    assert code == 0, text
    assert "block 0 warp 1: b" in text
    assert WHY[how] in text
    assert "again: CUDA cannot be used any more in this process" in text
    stopped_in_b(open_trace(path), WHY[how])


def test_a_kernel_that_hangs_says_for_how_long_its_warps_have_been_there(tmp_path: Path) -> None:
    code, text = run(RECORD, source("hang"), tmp_path / "stopped.wlens", blocks=3)
    assert code == 0, text
    assert re.search(r"blocks 0-2 warp 1: b, since (1\.9|2\.\d) s \(3 warps\)", text), text
    assert "3 warps had ended" in text


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_while_the_kernel_hangs_ends_the_recording(number: signal.Signals, name: str, tmp_path: Path) -> None:
    path = tmp_path / "stopped.wlens"
    with child(WAIT, source("hang"), path) as process:
        code, text = when_it_hangs(process, number)
    assert code == 0, text
    assert "block 0 warp 1: b" in text
    stopped_in_b(open_trace(path), f"{name} came while it ran")


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_saves_while_the_main_thread_sits_in_a_synchronise(
    number: signal.Signals, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "stopped.wlens"
    with child(SYNCHRONISE, source("hang"), path) as process:
        code, text = when_it_hangs(process, number)
    assert text == "saved []\n"
    assert code == 128 + number
    stopped_in_b(open_trace(path), f"{name} came while it ran")


def test_a_kernel_that_was_only_slow_gives_cuda_back_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "again.wlens"
    body = "r.phase(s::a); const long long t = clock64(); while (clock64() - t < n) {} r.phase(s::b);"
    code, text = run(SLOW, kernel(body, "float* p, long long n"), path)
    assert code == 0, text
    assert "block 0 warps 0-1: a" in text
    assert losses(open_trace(path)).is_empty()


def test_the_deadlock_example_prints_what_its_tutorial_shows(tmp_path: Path) -> None:
    path = tmp_path / "stopped.wlens"
    example = [sys.executable, str(ROOT / "examples/deadlock/deadlock.py")]
    limits: dict[str, Any] = {"timeout": HARD_LIMIT_S, "cwd": tmp_path}
    done = subprocess.run(example, capture_output=True, text=True, check=False, **limits)
    assert done.returncode == 1, done.stdout + done.stderr
    page = (ROOT / "docs/tutorials/hung-kernel.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    times = re.compile(r"\d+(\.\d+)? (s|ms)\b")
    printed = times.sub("", done.stdout)
    assert len(shown.splitlines()) >= 4
    for line in shown.splitlines():
        assert times.sub("", line) in printed, done.stdout
    assert "add a tile" in open_trace(path).sites["name"].to_list()
    subprocess.run([*example, "--tiles", "16"], check=True, **limits)
    assert losses(open_trace(path)).is_empty()
