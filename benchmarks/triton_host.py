"""What recording costs the host at each launch of a Triton kernel, without a GPU: a driver that launches nothing.

In: Triton; `--warplens` says which code of warplens it is, where that is not this checkout's. Out: JSON, to which each
run adds its own entry: CPU time of a launch in microseconds, batches of 400 launches of one kernel in four states, in
turn. `beyond` (`launch_count`) and `recorded` are without what a launch asks of the driver.

    python benchmarks/triton_host.py -o benchmarks/results/triton_host.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "ptx"), str(HERE.parent / "tests" / "compile")]
sys.modules.setdefault("torch", SimpleNamespace(Tensor=type("Tensor", (), {})))  # type: ignore[arg-type]

import triton  # noqa: E402
import triton_kernels as kernels  # noqa: E402
import with_driver  # noqa: E402
from machine import described  # noqa: E402

from warplens.capture import python  # noqa: E402
from warplens.capture.triton import TritonCapture  # noqa: E402

ROUNDS, BATCHES, LAUNCHES = 8, 25, 400


class Memory:
    """In place of the GPU's: it is on, and switching it costs nothing."""

    on, own_stream = True, 0

    def switch(self, on: bool, _stream: int) -> None:
        """As the GPU's does, in the order of a stream."""
        self.on = on


def batch(memory: Any) -> float:
    """Microseconds of CPU time of a launch."""
    kernels.layer_norm[(64,)](memory, memory, memory, memory, 1024, 1e-5, BLOCK=1024, num_warps=4)
    begin_ns = time.process_time_ns()
    for _ in range(LAUNCHES):
        kernels.layer_norm[(64,)](memory, memory, memory, memory, 1024, 1e-5, BLOCK=1024, num_warps=4)
    return (time.process_time_ns() - begin_ns) / LAUNCHES / 1000


def measured() -> dict[str, list[float]]:
    with_driver.activate()
    memory = with_driver.Memory()
    python.is_captured = lambda _stream: False  # asks the driver
    out: dict[str, list[float]] = {name: [] for name in ("not recording", "other kernels", "recorded", "beyond")}
    states = {
        "not recording": None,
        "other kernels": {"kernels": "another"},
        "recorded": {},
        "beyond": {"launch_count": 1},
    }
    for _ in range(ROUNDS):
        for name, options in states.items():
            if options is None:
                out[name] += [batch(memory) for _ in range(BATCHES)]
                continue
            capture = TritonCapture(python.PythonOptions(**options), quiet=True)  # type: ignore[arg-type]
            if name != "other kernels":
                capture._point = lambda *_: SimpleNamespace(entry=0)
                capture._gpu = Memory()
            with capture:
                batch(memory)  # the kernel is compiled, and counted
                out[name] += [batch(memory) for _ in range(BATCHES)]
                capture._gpu = None
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to add to")
    parser.add_argument("--warplens", default="this checkout's", help="which code of warplens is imported")
    arguments = parser.parse_args()
    times = measured()
    least = min(times["not recording"])
    entry = described("python benchmarks/triton_host.py", triton=triton.__version__, warplens=arguments.warplens)
    entry["beyond_us"] = {name: round(min(own) - least, 2) for name, own in times.items()}
    entry["median_us"] = {name: round(statistics.median(own), 2) for name, own in times.items()}
    entry["batches_us"] = {name: [round(value, 2) for value in own] for name, own in times.items()}
    before = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.exists() else []
    arguments.output.write_text(json.dumps([*before, entry], indent=1) + "\n", encoding="utf-8")
    print(triton.__version__, arguments.warplens, entry["beyond_us"], entry["median_us"])


if __name__ == "__main__":
    main()
