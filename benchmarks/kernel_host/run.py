"""What a launch of `warplens.Kernel` costs the host, and what recording adds, without a GPU: the driver (driver.cpp)
launches nothing, so that the time is Python's own.

In: g++, NVRTC; `--warplens` says which code of warplens it is, where that is not this checkout's. Out: JSON, to which
each run adds its own entry: microseconds of a launch, in a tight loop, and with a pause of 0.5 ms behind each, in which
the thread is busy and gives up Python's lock again and again: other code and other threads then have the processor's
caches, in every state. A launch that is recorded is made when the one before has been read.

    python benchmarks/kernel_host/run.py -o benchmarks/results/kernel_host.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "record")]

ROUNDS, LAUNCHES = 5, 1000
STATES: dict[str, dict[str, Any] | None] = {
    "not recording": None,
    "does not match": {"kernels": "^nothing$"},
    "recorded": {"rounds": 0, "launch_count": 10**6, "capacity_bytes": 1 << 20},
}
PAUSES = {"in a tight loop": 0.0, "with a pause": 500e-6}
COMPILE = """import pickle, sys
from warplens.capture.compile import compile_cubin
source, names, options = pickle.load(sys.stdin.buffer)
pickle.dump(compile_cubin(source, names, **options), sys.stdout.buffer)"""


def compile_elsewhere(source: str, names: list[str], **options: Any) -> Any:
    """As compile_cubin, in a process with the system's own driver, if there is one: NVRTC looks for it too."""
    variables = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    given = pickle.dumps((source, names, options))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], input=given, env=variables, stdout=subprocess.PIPE, check=True
    )
    return pickle.loads(done.stdout)


def measured(folder: Path, pause_s: float) -> dict[str, list[float]]:
    """Microseconds of each launch by state, with so long a pause behind each; the states take turns."""
    import numpy as np
    from launches import SOURCE

    import warplens
    from warplens.capture import calibrate, cuda

    for module in (cuda, calibrate):
        module.compile_cubin = compile_elsewhere  # type: ignore[assignment]
    kernel = warplens.Kernel(SOURCE, "marked<true>")
    pointer, turns = np.uint64(1 << 20), np.int32(18)
    out: dict[str, list[float]] = {name: [] for name in STATES}
    for number in range(ROUNDS):
        for name, options in STATES.items():
            block = contextlib.nullcontext()
            if options is not None:
                block = warplens.record(folder / f"{number}-{pause_s}.wlens", **options)  # type: ignore[assignment]
            with block as recording:
                recorder = None if options is None else recording._recorder
                for launch in range(LAUNCHES + 20):
                    begin_ns = time.perf_counter_ns()
                    kernel.launch(132, 128, pointer, turns)
                    took_us = (time.perf_counter_ns() - begin_ns) / 1e3
                    end_s = time.perf_counter() + pause_s
                    while time.perf_counter() < end_s or not (recorder is None or recorder.is_read()):
                        time.sleep(0)  # gives up Python's lock, and does not sleep
                    if launch >= 20:
                        out[name].append(took_us)
    return out


def main() -> None:
    """Build the driver, measure in a process that finds it, and add the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to add to")
    parser.add_argument("--warplens", default="this checkout's", help="which code of warplens is imported")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        times = {how: measured(arguments.measure, pause_s) for how, pause_s in PAUSES.items()}
        arguments.output.write_text(json.dumps(times), encoding="utf-8")
        return
    from machine import described

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", HERE / "driver.cpp"]
        subprocess.run(build, check=True)
        variables = {**os.environ, "LD_LIBRARY_PATH": name}
        command = [sys.executable, __file__, "--measure", name, "-o", folder / "times.json"]
        subprocess.run(command, env=variables, check=True)
        times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    entry = described("python benchmarks/kernel_host/run.py", "cuda-bindings", warplens=arguments.warplens)
    for how, of_state in times.items():
        middle = {state: statistics.median(own) for state, own in of_state.items()}
        entry[how] = {
            "median_us": {state: round(value, 2) for state, value in middle.items()},
            "least_us": {state: round(min(own), 2) for state, own in of_state.items()},
            "beyond_us": {state: round(value - middle["not recording"], 2) for state, value in middle.items()},
        }
    before = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.exists() else []
    arguments.output.write_text(json.dumps([*before, entry], indent=1) + "\n", encoding="utf-8")
    print(arguments.warplens, {how: entry[how] for how in PAUSES})


if __name__ == "__main__":
    main()
