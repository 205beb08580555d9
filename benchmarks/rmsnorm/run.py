"""RMSNorm forward on the GPU: every step against torch, Liger-Kernel, QuACK, FlashInfer and a device copy.

In: a GPU and torch, or with --draw a result of an earlier run and no GPU. Out: JSON with all raw times and how they
were made, the plots drawn from it, and a short table.

    python benchmarks/rmsnorm/run.py -o benchmarks/results/rmsnorm.json
    python benchmarks/rmsnorm/run.py -o benchmarks/results/rmsnorm.json --draw
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import draw

REPOSITORY = Path(__file__).parents[2]
PLOTS = REPOSITORY / "docs" / "images"
HIDDEN = 5120
ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
GRID_HIDDEN = (1024, 2048, 4096, 8192, 16384)  # and HIDDEN, at ROWS
MIN_ROUNDS = 5
METHOD = {
    "warm": "a CUDA graph of many launches over pairs of x and y of three times the L2 in all, each pair used in turn; "
    "a round replays every kernel's graph once, in random order",
    "cold": "a graph of (read clean memory of twice the L2, launch), less a graph of the reads, of the same round; the "
    "inputs were written before",
    "host": "one call in Python of the function that a user calls, arguments checked and y made where the function "
    "does so: alone, until its result is there, and many in a row",
    "bytes": "x read and y written; the weight and rstd are not counted",
    "y": "the document's kernel, the steps, FlashInfer and the copy write into y; the others make theirs",
}


def main(arguments: list[str]) -> None:
    """Measure or read, write the JSON, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write, or to draw from")
    parser.add_argument("--rounds", type=int, default=9, help=f"timed rounds, {MIN_ROUNDS} at least (default 9)")
    parser.add_argument("--draw", action="store_true", help="draw from the JSON file and measure nothing")
    parser.add_argument("--plots", type=Path, default=PLOTS, help="folder for the plots (default docs/images)")
    options = parser.parse_args(arguments)
    if options.rounds < MIN_ROUNDS:
        parser.error(f"--rounds {options.rounds}: expected {MIN_ROUNDS} at least")
    if options.draw:
        result = json.loads(options.output.read_text(encoding="utf-8"))
    else:
        result = measure(options.rounds)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(compact(result) + "\n", encoding="utf-8")
        print(f"wrote {options.output}")
    for path in draw.plots(result, options.plots):
        print(f"wrote {path}")
    print(draw.table(result))


def measure(rounds: int) -> dict[str, Any]:
    """All that a GPU is needed for."""
    import kernels
    import peers
    import timing

    sys.path.insert(0, str(REPOSITORY / "benchmarks" / "rmsnorm_overhead"))
    import run_facts

    before = run_facts.nvidia_smi()
    ours, our_facts = kernels.load("bfloat16")
    others, other_facts = peers.load()
    calls = {**ours, **others}
    sizes = [
        measure_size(calls, rows, hidden, rounds)
        for hidden in (HIDDEN, *GRID_HIDDEN)
        for rows in ROWS
    ]
    cold = [
        {"rows": rows, "hidden": HIDDEN, "ns": timing.time_cold(calls, timing.make_buffers(rows, HIDDEN, "bfloat16"), rounds)}
        for rows in ROWS
    ]
    return {
        "benchmark": "rmsnorm",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/rmsnorm/run.py", f"--rounds={rounds}", "-o=rmsnorm.json"],
        "method": METHOD,
        "clocks": {"before": before, "after": run_facts.nvidia_smi()},
        "kernels": {**our_facts, **other_facts},
        "sizes": sizes,
        "cold": cold,
        "host": [],
    }
