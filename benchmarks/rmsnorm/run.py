"""RMSNorm forward on the GPU: every step against torch, Liger-Kernel, QuACK, FlashInfer and a device copy.

In: a GPU and torch, or with --draw the result of an earlier run and no GPU. Out: JSON with all raw times and how they
were made, the plots drawn from it and from the recordings, the tables of docs/gallery/rmsnorm.md, and a short table.

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

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
import draw  # noqa: E402
import page  # noqa: E402

PLOTS = REPOSITORY / "docs" / "images"
HIDDEN = 5120
ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
GRID_HIDDEN = (1024, 2048, 4096, 8192, 16384)  # and HIDDEN, at ROWS
HOST_ROWS = 256
COLD_LAUNCHES = 60  # of a graph: a flush takes ten times as long as a small kernel
MIN_ROUNDS = 5
METHOD = {
    "warm": "a CUDA graph of many launches over pairs of x and y of three times the L2 in all, each pair used in turn; "
    "a round replays every kernel's graph once, in random order",
    "cold": "a graph of (read clean memory of twice the L2, launch), less a graph of the reads, of the same round; the "
    "inputs were written before",
    "host": "one call in Python of the function that a user calls, arguments checked and y made where the function "
    "does so: alone, until its result is there, and many in a row",
    "bytes": "x read and y written; the weight and rstd are not counted",
    "y": "steps, FlashInfer and the copy write into a y that is given; torch, Liger-Kernel and QuACK make theirs",
    "overlap": "FlashInfer (its default on this GPU) and the steps from `overlap` on are launched with programmatic "
    "stream serialisation, the others are not",
}


def main(arguments: list[str]) -> None:
    """Measure or read, write the JSON, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write, or to draw from")
    parser.add_argument("--rounds", type=int, default=9, help=f"timed rounds, {MIN_ROUNDS} at least (default 9)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows to measure (default: all eight)")
    parser.add_argument("--draw", action="store_true", help="draw from the JSON file and measure nothing")
    parser.add_argument("--plots", type=Path, default=PLOTS, help="folder for the plots (default docs/images)")
    options = parser.parse_args(arguments)
    if options.rounds < MIN_ROUNDS:
        parser.error(f"--rounds {options.rounds}: expected {MIN_ROUNDS} at least")
    if options.draw:
        result = json.loads(options.output.read_text(encoding="utf-8"))
    else:
        result = measure(options.rounds, options.rows)
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {options.output}")
    print("\n".join(draw.table(result)))
    for path in (*draw.plots(result, options.plots), *page.pictures(options.plots)):
        print(f"wrote {path}")
    if options.plots == PLOTS:
        text = page.PAGE.read_text(encoding="utf-8")
        page.PAGE.write_text(page.rewritten(text, result), encoding="utf-8", newline="\n")
        print(f"wrote {page.PAGE}")


def measure(rounds: int, rows: list[int]) -> dict[str, Any]:
    """All that a GPU is needed for."""
    import kernels
    import peers
    import timing

    sys.path.insert(0, str(REPOSITORY / "benchmarks" / "rmsnorm_overhead"))
    from run import device_facts, nvidia_smi, versions  # that folder's run.py: this file is __main__

    before = nvidia_smi()
    calls, facts = kernels.load("bfloat16")
    other_calls, other_facts = peers.load()
    calls, facts = {**calls, **other_calls}, {**facts, **other_facts}
    sizes = [measure_size(calls, facts, r, hidden, rounds) for hidden in (HIDDEN, *GRID_HIDDEN) for r in rows]
    cold = []
    for r in rows:
        buffers = timing.make_buffers(r, HIDDEN, "bfloat16", most_launches=COLD_LAUNCHES)
        cold.append({"rows": r, "hidden": HIDDEN, "ns": rounded(timing.time_cold(calls, buffers, rounds))})
    host = timing.host_latency(calls, timing.make_buffers(HOST_ROWS, HIDDEN, "bfloat16"))
    return {
        "benchmark": "rmsnorm",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/rmsnorm/run.py", f"--rounds={rounds}", "-o=rmsnorm.json"],
        "device": device_facts(),
        "versions": versions(),
        "clocks": {"before": before, "after": nvidia_smi()},
        "dtype": "bfloat16",
        "method": METHOD,
        "kernels": facts,
        "sizes": sizes,
        "cold": cold,
        "host": {"rows": HOST_ROWS, "hidden": HIDDEN, "calls": host},
    }


def measure_size(calls: Any, facts: Any, rows: int, hidden: int, rounds: int) -> dict[str, Any]:
    """Times of all kernels that take the size."""
    import timing

    buffers = timing.make_buffers(rows, hidden, "bfloat16")
    takes = {name: call for name, call in calls.items() if facts[name].get("max_hidden", hidden) >= hidden}
    return {
        "rows": rows,
        "hidden": hidden,
        "launches_per_graph": buffers.launches,
        "buffer_sets": len(buffers.xs),
        "ns": rounded(timing.time_calls(takes, buffers, rounds)),
    }


def rounded(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """Times to the ns."""
    return {name: [round(ns) for ns in values] for name, values in times.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
