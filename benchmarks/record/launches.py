"""What recording costs a program that launches `warplens.Kernel`: host time of a launch. See run.py.

`launches.py COUNT EVENTS PAUSE HOW`: EVENTS a launch; PAUSE in us behind each, in which the thread does as HOW says:
`sleep`; `spin`, busy and with Python's lock given up again and again, as one that calls numpy or torch is; `hold`, busy
in Python code that keeps the lock, so that the thread which reads records has to wait for it. The memory is the GPU's
own, so that nothing is copied. Two kernels take turns, `marked` and `other`: where the one alone is recorded, what that
costs is told by one process, for processes differ by more. Out: a line of JSON, of `other` in the key `other`.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import warplens
from warplens.capture import driver

SOURCE = """#include <warplens/warplens.cuh>
WARPLENS_SITES(steps, step);
template <bool kTrace> __global__ void NAME(float* p, int turns) {
  warplens::Recorder<steps, kTrace> rec;
  float v = p[threadIdx.x];
  for (int i = 0; i < turns; ++i) {
    rec.phase(steps::step);
    for (int k = 0; k < 16; ++k) v = v * 1.0001f + 0.5f;
  }
  p[blockIdx.x * blockDim.x + threadIdx.x] = v;
}"""
BLOCKS, THREADS = 132, 128


def pause(seconds: float, how: str) -> None:
    """Let time go by."""
    if how == "sleep":
        time.sleep(seconds)
        return
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        if how == "spin":
            time.sleep(0)  # gives up the lock, and does not sleep


def main() -> None:
    """Launch and measure; the first tenth is not counted."""
    count, events, pause_us = (int(text) for text in sys.argv[1:4])
    how = sys.argv[4] if len(sys.argv) > 4 else "sleep"
    kernels = {name: warplens.Kernel(SOURCE.replace("NAME", name), f"{name}<true>") for name in ("marked", "other")}
    memory = driver.DeviceMemory(4 * BLOCKS * THREADS)
    driver.call("cuMemsetD8", memory.address, 0, memory.size_bytes)
    pointer, turns = np.uint64(memory.address), np.int32(events // (BLOCKS * THREADS // 32))
    took_us: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(count):
        for name, kernel in kernels.items():
            begin_ns = time.perf_counter_ns()
            kernel.launch(BLOCKS, THREADS, pointer, turns)
            took_us[name].append((time.perf_counter_ns() - begin_ns) / 1e3)
            if pause_us:
                pause(pause_us / 1e6, how)
    driver.call("cuCtxSynchronize")
    figures = {name: figures_of(own[count // 10 :]) for name, own in took_us.items()}
    print(json.dumps({"launches": count, **figures["marked"], "other": figures["other"]}))


def figures_of(took_us: list[float]) -> dict[str, float]:
    """Median, 90th percentile and most."""
    p50_us, p90_us = (round(float(value), 3) for value in np.percentile(took_us, [50, 90]))
    return {"p50_us": p50_us, "p90_us": p90_us, "max_us": round(max(took_us), 1)}


if __name__ == "__main__":
    main()
