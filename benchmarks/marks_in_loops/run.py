"""Cycles that a mark adds to a turn of a loop of 64 dependent FMAs: each policy, one warp, 8 and 20 warps an SM.

In: a GPU. Out: JSON with the medians of all launches, and a short table. Needs torch and cuda-bindings.

    python benchmarks/marks_in_loops/run.py -o benchmarks/results/marks_in_loops.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

sys.path.insert(0, str(Path(__file__).parents[1] / "rmsnorm_overhead"))
from run import device_facts, nvidia_smi, versions
from variants import checked

from warplens import layout
from warplens.capture.arena import Arena
from warplens.capture.compile import compile_cubin
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions

HERE = Path(__file__).parent
SHAPES = {"1 warp": (1, 32), "8 warps an SM": (132, 256), "20 warps an SM": (132, 640)}
LOOPS = "packed, built for loops"  # the same as packed where NVRTC tells which values it knows
BUILDS: dict[str, dict[str, Any]] = {
    "clean": {},
    "packed": {"policy": "packed"},
    LOOPS: {"policy": "packed"},
    f"{LOOPS}, iterations announced": {"policy": "packed"},
    "packed, narrowable": {"policy": "packed", "warps": tuple(range(32))},
    "packed, switched off": {"policy": "packed", "warps": tuple(range(32))},
    "stream": {"policy": "stream"},
    "live": {"policy": "live"},
    "staged": {"policy": "staged"},
    "mark_lane": {"policy": "packed"},
    "mark_lane by one lane in four": {"policy": "packed"},
    "mark_lane, switched off": {"policy": "packed", "warps": tuple(range(32))},
    "mark without a handle": {"policy": "packed"},
    "packed, keep newest": {"policy": "packed", "keep": "newest"},
}
MARKS = {  # else a phase
    f"{LOOPS}, iterations announced": "rec.iteration(i); rec.phase(loop::turn)",
    "mark_lane": "rec.mark_lane(loop::turn)",
    "mark_lane by one lane in four": "if (threadIdx.x % 4 == 0) rec.mark_lane(loop::turn)",
    "mark_lane, switched off": "rec.mark_lane(loop::turn)",
    "mark without a handle": "warplens::mark<loop, kTrace>(loop::turn)",
}
FORMS = (
    "the loop alone",
    "the first lane stores each record to one place",
    "the first lane stores each record to the next place",
    "kept in lanes, nothing stored",
    "kept in lanes, stored each 24 without a branch",
    "kept in lanes, stored each 24 by a call behind a branch",
    "kept in lanes, and a branch that is never taken",
    "kept in lanes, and a branch that is never taken and known a turn ahead",
    "kept in lanes, stored each 24 behind a branch, without a call",
    "kept in lanes, and each 24 a call of a function that stores nothing",
)
TURNS = 256
LAUNCHES = 15
CAPACITY_BYTES = 192 << 20


def main(arguments: list[str]) -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    output = parser.parse_args(arguments).output
    before = nvidia_smi()
    rows = [row for unroll in (1, 4) for row in measure(unroll)]
    forms = [row for unroll in (1, 4) for row in measure_forms(unroll)]
    result = {
        "benchmark": "marks_in_loops",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/marks_in_loops/run.py", f"-o={output.name}"],
        "device": device_facts(),
        "versions": versions(),
        "clocks": {"before": before, "after": nvidia_smi()},
        "method": {
            "turns": TURNS,
            "launches": LAUNCHES,
            "turn": "64 dependent FMAs",
            "cycles": "median over warps of a launch's cycles a turn, one value a launch; builds in turn",
            "added": "median over launches of (cycles - those of the clean build in the same round)",
        },
        "rows": rows,
        "forms": forms,
    }
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in [*rows, *forms]:
        added = "  ".join(f"{name} {shape['added_cycles']:7.1f}" for name, shape in row["shapes"].items())
        print(f"unroll {row['unroll']}  {row['build']:<58} {added}")
    print(f"wrote {output}")


def measure(unroll: int) -> list[dict[str, Any]]:
    """A row for each build."""
    source, options = (HERE / "loop.cu").read_text(encoding="utf-8"), [f"-DUNROLL={unroll}"]
    usual = CudaKernel(source, "run<true>", options=options)
    others = {name: CudaKernel(source, "run<true>", options=[*options, f"-DMARK={m}"]) for name, m in MARKS.items()}
    cycles = torch.zeros(132 * 20, dtype=torch.int64, device="cuda")
    sums = torch.zeros(132 * 640, device="cuda")
    arenas = {
        (mapped, newest): Arena(CAPACITY_BYTES, mapped=mapped, newest=newest, sm_count=256)
        for mapped, newest in ((False, False), (True, False), (False, True))
    }
    rows = [{"unroll": unroll, "build": name, "shapes": {}} for name in BUILDS]
    for shape, (blocks, threads) in SHAPES.items():
        times: dict[str, list[float]] = {name: [] for name in BUILDS}
        for _ in range(LAUNCHES):
            for name, chosen in BUILDS.items():
                arena = arenas[chosen.get("policy") == "live", chosen.get("keep") == "newest"]
                function = prepared(others.get(name, usual), name, chosen, arena, (blocks, threads))
                values = (cycles.data_ptr(), sums.data_ptr(), TURNS, 1.0001)
                types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float)
                checked(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, (values, types), 0))
                torch.cuda.synchronize()
                times[name].append(float(cycles[: blocks * threads // 32].double().median()) / TURNS)
        for row in rows:
            own = np.array(times[row["build"]])
            added = np.median(own - np.array(times["clean"]))
            row["shapes"][shape] = {"cycles_a_turn": own.round(2).tolist(), "added_cycles": round(float(added), 2)}
    return rows


def measure_forms(unroll: int) -> list[dict[str, Any]]:
    """A row for each bare form of a mark."""
    source = (HERE / "forms.cu").read_text(encoding="utf-8")
    records = torch.zeros(132 * 20 * 64, dtype=torch.int32, device="cuda")
    cycles = torch.zeros(132 * 20, dtype=torch.int64, device="cuda")
    sums = torch.zeros(132 * 640, device="cuda")
    functions, libraries = [], []
    for form in range(len(FORMS)):
        options = [f"-DFORM={form}", f"-DUNROLL={unroll}"]
        cubin = compile_cubin(source, [], arch="sm_90a", options=options, filename="forms.cu").cubin
        libraries.append(checked(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)))
        functions.append(checked(driver.cuKernelGetFunction(checked(driver.cuLibraryGetKernel(libraries[-1], b"run")))))
    rows: list[dict[str, Any]] = [{"unroll": unroll, "build": name, "shapes": {}} for name in FORMS]
    for shape, (blocks, threads) in SHAPES.items():
        times: list[list[float]] = [[] for _ in FORMS]
        for _ in range(LAUNCHES):
            for own, function in zip(times, functions, strict=True):
                values = (cycles.data_ptr(), sums.data_ptr(), TURNS, 1.0001, records.data_ptr())
                types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_void_p)
                checked(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, (values, types), 0))
                torch.cuda.synchronize()
                own.append(float(cycles[: blocks * threads // 32].double().median()) / TURNS)
        for row, own in zip(rows, times, strict=True):
            added = np.median(np.array(own) - np.array(times[0]))
            row["shapes"][shape] = {"cycles_a_turn": np.round(own, 2).tolist(), "added_cycles": round(float(added), 2)}
    return rows


def prepared(kernel: CudaKernel, name: str, options: dict[str, Any], arena: Arena, shape: tuple[int, int]) -> Any:
    """The driver's handle of a build, with an empty arena behind it."""
    if name == "clean":
        return kernel._build(kernel.clean or "", ()).function.handle
    blocks, threads = shape
    build, _ = kernel.traced_build(
        (blocks, 1, 1), (threads, 1, 1), RecordOptions(**options), arena, loops=name.startswith(LOOPS)
    )
    value = arena.descriptor().reshape(1)
    checked(driver.cuMemcpyHtoD(build.library.symbol(layout.DESCRIPTOR_SYMBOL), value.ctypes.data, value.nbytes))
    arena.clear(0)
    arena.choose(0, warp_mask=0 if name.endswith("off") else 0xFFFFFFFF)
    return build.function.handle


if __name__ == "__main__":
    main(sys.argv[1:])
