"""What four marks a step of k cost a pipelined matmul: clean, packed (both builds), stream.

In: a GPU. Out: JSON with all raw times and how they were made, and a short table. Needs torch and cuda-bindings.
Timed as benchmarks/rmsnorm_overhead does it: each variant is a CUDA graph of many launches, a round replays every
variant once in random order, ratios to the clean kernel are paired by round.

    python benchmarks/matmul/run.py -o benchmarks/results/matmul.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

sys.path.insert(0, str(Path(__file__).parents[1] / "stress"))
sys.path.insert(0, str(Path(__file__).parents[1] / "rmsnorm_overhead"))
from launching import count_events, point
from run import SEED, capture, device_facts, nvidia_smi, ratio_interval, replay_rounds, versions
from variants import checked

from warplens import layout
from warplens.capture.arena import Arena
from warplens.capture.cuda import CudaKernel
from warplens.capture.options import RecordOptions

HERE = Path(__file__).parent
SIZE, TILE, DEPTH, THREADS, SHARED_BYTES = 4096, 128, 64, 256, 3 * 2 * 128 * 64 * 2
LAUNCHES = 10
MARKS = 2 + 4 * (SIZE // DEPTH)  # a warp: begin, four a step, store
MOST_RATIO = 1.02
CODE_BITS = layout.code_bits(6)
BUILDS: dict[str, dict[str, Any] | None] = {
    "clean": None,
    "packed": {"policy": "packed", "loops": False},
    "packed, built for loops": {"policy": "packed", "loops": True},
    "stream": {"policy": "stream"},
}


@dataclass(frozen=True)
class Workload:
    """C = A B^T of bfloat16, and the number of launches in a graph."""

    a: Any
    b: Any
    c: Any
    launches: int = LAUNCHES

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks, a tile each."""
        return SIZE // TILE, SIZE // TILE, 1

    @property
    def warps(self) -> int:
        """Of a launch."""
        return (SIZE // TILE) ** 2 * THREADS // 32


class Variant:
    """One build of the kernel, with an arena that holds all launches of a graph."""

    def __init__(self, name: str, kernel: CudaKernel, workload: Workload, arena: Arena) -> None:
        self.name, self.workload, self.arena = name, workload, arena
        wanted = BUILDS[name]
        if wanted is None:
            self.build = kernel._build(str(kernel.clean), ())
        else:
            options = RecordOptions(shared_bytes=SHARED_BYTES, **wanted)
            self.build, self.entry = kernel.traced_build(workload.grid, (THREADS, 1, 1), options, arena)
            point(self.build, arena)
        self.build.function.allow_shared_bytes(SHARED_BYTES)

    def launch(self, stream: int, index: int) -> None:  # noqa: ARG002
        """Put a launch into `stream`."""
        work = self.workload
        values = (work.a.data_ptr(), work.b.data_ptr(), work.c.data_ptr(), SIZE, SIZE)
        types = (*[ctypes.c_void_p] * 3, ctypes.c_uint, ctypes.c_uint)
        shape = (*work.grid, THREADS, 1, 1)
        checked(driver.cuLaunchKernel(self.build.function.handle, *shape, SHARED_BYTES, stream, (values, types), 0))

    def reset(self) -> None:
        """Let the next replay write over what the last one wrote. (The clean build too: it changes what is cached.)"""
        self.arena.clear_cursors(torch.cuda.current_stream().cuda_stream)

    def recorded(self) -> dict[str, int]:
        """Events of the last replay; RuntimeError when any is missing."""
        if self.name == "clean":
            return {}
        drained = self.arena.drain(torch.cuda.current_stream().cuda_stream)
        found = {"events": count_events(drained.chunks, CODE_BITS), "lost_events": drained.lost_events}
        wanted = {"events": self.workload.launches * self.workload.warps * MARKS, "lost_events": 0}
        if found != wanted:
            raise RuntimeError(f"{self.name} recorded {found}; expected {wanted}")
        return {"chunks": len(drained.chunks), **found}


def main(arguments: list[str]) -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds, 20 at least (default 30)")
    options = parser.parse_args(arguments)
    if options.rounds < 20:
        parser.error(f"--rounds {options.rounds}: expected 20 at least")
    before = nvidia_smi()
    variants, error = measure(options.rounds)
    result = {
        "benchmark": "matmul",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [
            "python",
            "benchmarks/matmul/run.py",
            f"--rounds={options.rounds}",
            f"-o={options.output.name}",
        ],
        "device": device_facts(),
        "versions": versions(),
        "clocks": {"before": before, "after": nvidia_smi()},
        "method": {
            "size": [SIZE, SIZE, SIZE],
            "dtype": "bfloat16",
            "marks_per_warp": MARKS,
            "launches_per_graph": LAUNCHES,
            "seed": SEED,
            "ratio": "median over rounds of time / clean time of the same round; 95 % interval by bootstrap",
            "target": f"upper end of the interval at most {MOST_RATIO}",
            "results": "bit-equal to the clean kernel's",
            "largest_error_against_float32": error,
        },
        "variants": variants,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(variants)
    print(f"wrote {options.output}")


def measure(rounds: int) -> tuple[list[dict[str, Any]], float]:
    """An entry for each variant, and the largest error of the clean kernel's results."""
    workload = make_workload()
    kernel = CudaKernel((HERE / "matmul.cu").read_text(encoding="utf-8"), "matmul_pipelined<true>")
    chunks = 4 * LAUNCHES * workload.warps * -(-MARKS // 20)
    arena = Arena(layout.CONTROL_BYTES + chunks * layout.CHUNK_BYTES)
    arena.choose(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        variants = [Variant(name, kernel, workload, arena) for name in BUILDS]
        graphs = {v.name: capture(v, stream) for v in variants}
        error, recorded = check_results(variants, graphs, workload)
        times_ns = replay_rounds(variants, graphs, stream, LAUNCHES, rounds)
    generator = np.random.default_rng(SEED)
    entries = [
        {
            "name": v.name,
            **v.build.function.resources(THREADS, SHARED_BYTES),
            "recorded_by_one_replay": recorded[v.name],
            "median_ns": float(np.median(times_ns[v.name])),
            "tflops": 2e-3 * SIZE**3 / float(np.median(times_ns[v.name])),
            "ratio": ratio_interval(times_ns[v.name], times_ns["clean"], generator),
            "ns_per_launch": [round(t, 1) for t in times_ns[v.name]],
        }
        for v in variants
    ]
    return entries, error


def make_workload() -> Workload:
    """Random matrices."""
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", generator=generator).bfloat16() for _ in range(2))
    workload = Workload(a, b, torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16))
    torch.cuda.synchronize()  # it is used on another stream
    return workload


def check_results(
    variants: list[Variant], graphs: dict[str, Any], workload: Workload
) -> tuple[float, dict[str, dict[str, int]]]:
    """The clean kernel must be right and the others bit-equal to it, with all events recorded; its largest error."""
    reference = workload.a.float() @ workload.b.float().T
    expected, error, recorded = None, 0.0, {}
    for variant in variants:
        workload.c.fill_(float("nan"))
        variant.arena.clear(torch.cuda.current_stream().cuda_stream)  # `stream` is told by zeros where records end
        graphs[variant.name].replay()
        if expected is None:
            expected = workload.c.clone()
            off = (expected.float() - reference).abs()
            error = float(off.max())
            if not bool((off <= reference.abs() * 2**-8 + 0.25).all()):
                raise RuntimeError(f"the clean kernel's results are wrong by up to {error}")
        elif not torch.equal(expected.view(torch.int16), workload.c.view(torch.int16)):
            raise RuntimeError(f"the results of {variant.name} differ from the clean kernel's")
        recorded[variant.name] = variant.recorded()
    return error, recorded


def print_table(variants: list[dict[str, Any]]) -> None:
    """The short table: time a launch, ratio to clean with its interval, and whether it keeps the target."""
    print(f"{'variant':<26} {'us':>8} {'TFLOP/s':>8} {'ratio':>7}  {'95 % interval':<16} {'regs':>4} {'blocks/SM':>9}")
    for v in variants:
        ratio = v["ratio"]
        interval = f"[{ratio['low_95']:.4f}, {ratio['high_95']:.4f}]"
        kept = "" if v["name"] == "clean" else "ok" if ratio["high_95"] <= MOST_RATIO else f"above {MOST_RATIO}"
        print(
            f"{v['name']:<26} {v['median_ns'] / 1e3:>8.2f} {v['tflops']:>8.1f} {ratio['median']:>7.4f}  {interval:<16} "
            f"{v['registers']:>4} {v['resident_blocks']:>9}  {kept}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
