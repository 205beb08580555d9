"""What it costs to record nine marks a warp of RMSNorm forward: clean, warplens and three other recorders.

In: a GPU. Out: JSON with all raw times and how they were made, and a short table. Needs torch and cuda-bindings.
Each variant is a CUDA graph of many launches over rotating buffers that do not fit the L2. A round replays every
variant once, in random order; ratios to the clean kernel are paired by round. Reports no single best time.

    python benchmarks/rmsnorm_overhead/run.py -o benchmarks/results/rmsnorm_overhead.json
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import recorders
import torch
from cuda.bindings import driver, nvrtc
from variants import VARIANTS, Variant, Workload, checked, make_variant, make_workload

SIZES = ((432, 5120, 200), (16384, 5120, 50))  # rows, hidden, launches in a graph
MOST_LIVE_BLOCKS = 100_000  # the policy live takes 512 bytes a warp of pinned host memory here
SEED = 2
RESAMPLES = 10_000
BUSY_CYCLES = 400_000  # about 0.2 ms in front of a replay, so that submitting it is not timed
SMI_FIELDS = (
    *("name", "driver_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu"),
    *("clocks_event_reasons.active", "mig.mode.current", "compute_mode"),
)
METHOD = {
    "marks_per_warp": 9,
    "warps_recorded": "all",
    "seed": SEED,
    "bootstrap_resamples": RESAMPLES,
    "ratio": "median over rounds of time / clean time of the same round; 95 % interval by bootstrap over rounds",
    "trace_memory": "in every variant each launch of a graph writes to memory of its own",
    "cold": "x and y rotate over buffers of four times the L2 in all; the weight is shared",
}


def main(arguments: list[str]) -> None:
    """Measure all sizes, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=40, help="timed rounds, 30 at least (default 40)")
    parser.add_argument("--only", help="only these variants beside the clean kernel, with semicolons between them")
    options = parser.parse_args(arguments)
    wanted = tuple((options.only or ";".join(VARIANTS)).split(";"))
    if not set(wanted) <= set(VARIANTS):
        parser.error(f"--only {options.only}: the variants are {'; '.join(VARIANTS)}")
    if options.rounds < 30:
        parser.error(f"--rounds {options.rounds}: expected 30 at least")
    for rival in recorders.RIVALS:
        if not recorders.is_installed(rival):
            print(f"{rival} is left out: it is not installed (pip install {rival})")
    before = nvidia_smi()
    sizes = [measure_size(*size, rounds=options.rounds, wanted=wanted) for size in SIZES]
    result = {
        "benchmark": "rmsnorm_overhead",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [
            "python",
            "benchmarks/rmsnorm_overhead/run.py",
            f"--rounds={options.rounds}",
            *([f"--only={options.only}"] if options.only else []),
            f"-o={options.output.name}",
        ],
        "device": device_facts(),
        "versions": versions(),
        "clocks": {"before": before, "after": nvidia_smi()},
        "method": METHOD,
        "sizes": sizes,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(sizes)
    print(f"wrote {options.output}")


def measure_size(rows: int, hidden: int, launches: int, *, rounds: int, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Time the clean kernel and the variants wanted at one size; the entry of the JSON."""
    workload = make_workload(rows, hidden, launches)
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fits = rows * launches <= MOST_LIVE_BLOCKS
        names = [name for name in VARIANTS if name in wanted or name == "clean"]
        names = [name for name in names if recorders.is_installed(name) and (fits or name != "warplens, live")]
        variants = [make_variant(name, workload, arch) for name in names]
        graphs = {v.name: capture(v, stream) for v in variants}
        check_results(variants, graphs, workload)
        times_ns = replay_rounds(variants, graphs, stream, launches, rounds)
        recorded = {v.name: v.recorded() for v in variants}
    generator = np.random.default_rng(SEED)
    entries = [
        {
            "name": v.name,
            **v.resources(),
            "recorded_by_last_replay": recorded[v.name],
            "median_ns": float(np.median(times_ns[v.name])),
            "ratio": ratio_interval(times_ns[v.name], times_ns["clean"], generator),
            "ns_per_launch": [round(t, 1) for t in times_ns[v.name]],
        }
        for v in variants
    ]
    return {
        "rows": rows,
        "hidden": hidden,
        "dtype": "bfloat16",
        "launches_per_graph": launches,
        "buffer_sets": len(workload.xs),
        "buffer_bytes": workload.buffer_bytes,
        "results_bit_equal": True,  # check_results raised otherwise
        "variants": entries,
    }


def capture(variant: Variant, stream: Any) -> Any:
    """A graph of all launches of the workload; one launch before it loads the kernel."""
    variant.launch(stream.cuda_stream, 0)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(variant.workload.launches):
            variant.launch(stream.cuda_stream, index)
    return graph


def check_results(variants: list[Variant], graphs: dict[str, Any], workload: Workload) -> None:
    """Every variant must write the same bits as the clean one, each y anew."""
    expected: list[Any] = []
    for variant in variants:
        for y in workload.ys:
            y.view(torch.int16).fill_(0x7FFF)  # nan
        variant.reset()
        graphs[variant.name].replay()
        bits = [y.view(torch.int16) for y in workload.ys]
        if variant.name == "clean":
            expected = [b.clone() for b in bits]
            if any(bool(torch.isnan(y).any()) for y in workload.ys):
                raise RuntimeError("the clean kernel left parts of y unwritten")
        elif not all(torch.equal(b, e) for b, e in zip(bits, expected, strict=True)):
            raise RuntimeError(f"y of {variant.name} differs from the clean kernel's at {workload.rows} rows")


def replay_rounds(
    variants: list[Variant], graphs: dict[str, Any], stream: Any, launches: int, rounds: int, warmup: int = 3
) -> dict[str, list[float]]:
    """Nanoseconds a launch, per variant and round; the order within a round is random."""
    times_ns: dict[str, list[float]] = {v.name: [] for v in variants}
    generator = np.random.default_rng(SEED)
    for number in range(-warmup, rounds):
        for position in generator.permutation(len(variants)):
            variant = variants[position]
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            variant.reset()
            torch.cuda._sleep(BUSY_CYCLES)
            begin.record(stream)
            graphs[variant.name].replay()
            end.record(stream)
            stream.synchronize()
            if number >= 0:
                times_ns[variant.name].append(begin.elapsed_time(end) * 1e6 / launches)
    return times_ns


def ratio_interval(times: list[float], clean: list[float], generator: np.random.Generator) -> dict[str, float]:
    """Median over rounds of times / clean, and its 95 % interval by bootstrap over rounds (pairs stay together)."""
    ratios = np.asarray(times) / np.asarray(clean)
    picks = generator.integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return {"median": float(np.median(ratios)), "low_95": float(low), "high_95": float(high)}


def device_facts() -> dict[str, Any]:
    """What torch knows about the GPU."""
    facts = torch.cuda.get_device_properties(0)
    return {
        "name": facts.name,
        "compute_capability": [facts.major, facts.minor],
        "sm_count": facts.multi_processor_count,
        "l2_bytes": facts.L2_cache_size,
        "memory_bytes": facts.total_memory,
    }


def versions() -> dict[str, str]:
    """Versions of what compiled and launched."""
    rivals = {"warpscope": version("warpscope")} if recorders.is_installed("warpscope") else {}
    return {
        **rivals,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_of_torch": str(torch.version.cuda),
        "cuda_bindings": version("cuda-bindings"),
        "cuda_driver_api": str(checked(driver.cuDriverGetVersion())),
        "nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:])),
    }


def nvidia_smi() -> dict[str, str] | None:
    """Clocks, power and throttle reasons as nvidia-smi prints them; None where it is missing."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = next(csv.reader([output.strip()], skipinitialspace=True))
    return dict(zip(SMI_FIELDS, values, strict=True))


def print_table(sizes: list[dict[str, Any]]) -> None:
    """The short table: time a launch and ratio to clean with its interval."""
    print(f"{'size':>14} {'variant':<36} {'us':>8} {'ratio':>7}  {'95 % interval':<16} {'regs':>4} {'blocks/SM':>9}")
    for size in sizes:
        for v in size["variants"]:
            ratio = v["ratio"]
            interval = f"[{ratio['low_95']:.3f}, {ratio['high_95']:.3f}]"
            print(
                f"{size['rows']:>7} x {size['hidden']:<4} {v['name']:<36} {v['median_ns'] / 1e3:>8.2f} "
                f"{ratio['median']:>7.3f}  {interval:<16} {v['registers']:>4} {v['resident_blocks_per_sm']:>9}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
