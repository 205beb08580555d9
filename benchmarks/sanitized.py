"""A small program with every policy and verb, to be run under compute-sanitizer; and what its summary says.

In: a GPU; with --tool, compute-sanitizer (of the CUDA toolkit). Out: a line a policy, or the tool's findings.

    python benchmarks/sanitized.py --tool memcheck      # or racecheck; without --tool the program alone
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import warplens
from warplens import layout

SOURCE = """#include <warplens/warplens.cuh>
#define SITES(X) X(a, "a", phase, "") X(b, "b", mark, "") X(c, "c", range, "") X(d, "d", wait, "barrier") \\
  X(e, "e", arrive, "barrier")
WARPLENS_SITES_FROM(s, SITES);
template <bool kTrace> __global__ void verbs(float* values, int turns) {
  warplens::Recorder<s, kTrace> r;
  __shared__ float kept[1024];
  float value = values[threadIdx.x];
  r.landed(value);
  r.range_start(s::c, warplens::join(blockIdx.x));
  for (int i = 0; i < turns; ++i) {
    r.iteration(i);
    r.phase(s::a);
    r.phase(s::a, i);
    kept[threadIdx.x] = value + i;
    r.range_push(s::c);
    r.range_push(s::c, i);
    r.mark(s::b);
    r.mark(s::b, i);
    r.arrive(s::e);
    r.arrive(s::e, i);
    r.arrive(s::e, warplens::join(i));
    r.wait(s::d);
    r.wait(s::d, i);
    r.wait(s::d, warplens::join(i));
    __syncthreads();
    r.end_phase();
    if (threadIdx.x % 3 == 0) r.mark_lane(s::b);
    if (threadIdx.x % 32 > 7) warplens::mark<s, kTrace>(s::b, i);
    const auto plain = r.range_start(s::c);
    const auto token = r.range_start(s::c, i);
    value += kept[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    r.range_end(plain);
    r.range_end(token);
    r.range_pop();
    r.range_pop();
  }
  r.range_end(s::c, warplens::join(blockIdx.x));
  if (threadIdx.x % 32 >= 20) return;  // lanes leave before the others
  r.mark(s::b);
  values[threadIdx.x] = value;
}
"""
BUILDS: dict[str, dict[str, Any]] = {
    "packed": {"policy": "packed", "loops": False},
    "packed, built for loops": {"policy": "packed", "loops": True},
    "packed, narrowed": {"policy": "packed", "blocks": (0, 2), "every_iteration": 3},
    "staged": {"policy": "staged"},
    "stream": {"policy": "stream"},
    "live": {"policy": "live"},
}
CAPACITIES = {"with room": 4 << 20, "without": layout.CONTROL_BYTES + 3 * layout.CHUNK_BYTES}
SUMMARY = re.compile(r"=+ (ERROR|RACECHECK) SUMMARY: (.*)")
END = "the program ended"


def main(arguments: list[str]) -> int:
    """Run the program, alone or under a tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=("memcheck", "racecheck"))
    tool = parser.parse_args(arguments).tool
    if tool is None:
        program()
        return 0
    found = under(tool)
    print(found["output_tail"])
    print(f"{tool}: {found['summary']}")
    return 0 if is_clean(found) else 1


def program() -> None:
    """Record the kernel by each policy, with room and without, by whole and odd blocks."""
    kernel = warplens.Kernel(SOURCE, "verbs<true>")
    for name, options in BUILDS.items():
        for room, capacity_bytes in CAPACITIES.items():
            for threads in (64,) if options["policy"] == "packed" else (64, 45):
                values = np.zeros(1024, np.float32)
                trace = kernel.record(
                    3, threads, values, np.int32(5), capacity_bytes=capacity_bytes, rounds=1, warmup=0, audit=False,
                    correct=False, allow_fewer_blocks=True, **options,
                )  # fmt: skip
                launch = trace.launches.row(0, named=True)
                print(f"{name}, {room}, {threads} threads: {launch['events']} events, {launch['lost_events']} lost")
    print(END)


def under(tool: str, timeout_s: float = 150.0) -> dict[str, Any]:
    """The program under a tool of compute-sanitizer: its summary, exit status and last lines."""
    # Errors that the driver answers with are no faults of a kernel: the host asks for parameters until there is none.
    own = ["--report-api-errors", "no"] if tool == "memcheck" else []
    program = [sys.executable, str(Path(__file__).resolve())]
    command = [find_sanitizer(), "--tool", tool, *own, "--error-exitcode", "9", *program]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    return read_output(done.stdout) | {"exit_status": done.returncode, "tool": tool}


def find_sanitizer() -> str:
    """Path of compute-sanitizer, on PATH or in the CUDA toolkit. Raises FileNotFoundError."""
    folders = [os.environ.get("PATH", ""), os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"]
    found = shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if found is None:
        raise FileNotFoundError("compute-sanitizer is not on PATH nor in CUDA_HOME/bin")
    return found


def read_output(text: str) -> dict[str, Any]:
    """What the tool's summary says, whether the program came to its end, and the last lines."""
    summaries = SUMMARY.findall(text)
    return {
        "summary": summaries[-1][1] if summaries else None,
        "counts": [int(number) for number in re.findall(r"\d+", summaries[-1][1])] if summaries else [],
        "program_ended": END in text,
        "output_tail": "\n".join(text.splitlines()[-25:]),
    }


def is_clean(found: dict[str, Any]) -> bool:
    """Whether there is a summary, all its counts are 0, and the program ended well."""
    counted = bool(found["counts"]) and not any(found["counts"])
    return counted and found["program_ended"] and found["exit_status"] == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
