"""What bounds the cost of recording RMSNorm: bytes, instructions and stalls of each build, as Nsight Compute counts.

In: a GPU and ncu (of the CUDA toolkit). Out: JSON with the medians of three launches a build, and a short table. Times
under ncu are with cold caches and nothing before or behind: compare them within this table, not with run.py's.

    python benchmarks/rmsnorm_overhead/limits.py -o benchmarks/results/rmsnorm_limits.json
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SIZES = ((432, 5120, 4), (16384, 5120, 4))  # rows, hidden, launches: the first warms up
NAMES = (
    *("clean", "warplens", "warplens, one block in eight", "warplens, switched off at run time"),
    *("without the store", "marks alone", "document", "flashinfer"),
)
STALLS = ("long_scoreboard", "barrier", "short_scoreboard", "drain", "lg_throttle", "imc_miss", "no_instruction")
METRICS = {
    "time_ns": "gpu__time_duration.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "l2_atomic_sectors": "lts__t_sectors_op_atom.sum",
    "instructions": "smsp__inst_executed.sum",
    "issue_active_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    **{
        f"stall_{stall}_cycles": f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio" for stall in STALLS
    },
}


def main(arguments: list[str]) -> None:
    """Run the launches under ncu, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.launch:
        launch()
        return
    if options.output is None:
        parser.error("-o FILE is needed")
    from run import device_facts, nvidia_smi, versions

    before = nvidia_smi()
    rows = measured(under_ncu())
    result = {
        "benchmark": "rmsnorm_limits",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/rmsnorm_overhead/limits.py", f"-o={options.output.name}"],
        "device": device_facts(),
        "versions": versions(),
        "clocks": {"before": before, "after": nvidia_smi()},
        "metrics": METRICS,
        "rows": rows,
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(rows)
    print(f"wrote {options.output}")


def launch() -> None:
    """Launch each build; ncu watches."""
    import torch
    from variants import make_variant, make_workload

    major, minor = torch.cuda.get_device_capability()
    for rows, hidden, launches in SIZES:
        workload = make_workload(rows, hidden, launches)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for name in NAMES:
                variant = make_variant(name, workload, f"sm_{major}{minor}" + ("a" if major >= 9 else ""))
                variant.reset()
                for index in range(launches):
                    variant.launch(stream.cuda_stream, index)
                stream.synchronize()
                variant.recorded()


def under_ncu() -> list[dict[str, str]]:
    """The rows of ncu's table: one a launch, in the order of the launches."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"])
    ncu = shutil.which("ncu", path=folders)
    if ncu is None:
        raise FileNotFoundError("ncu is not on PATH nor in CUDA_HOME/bin")
    command = [
        *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *("--kernel-name", "regex:rmsnorm_fwd", "--metrics", ",".join(METRICS.values())),
        *(sys.executable, str(Path(__file__).resolve()), "--launch"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or len(lines) < 3:
        raise RuntimeError(f"ncu ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    table = list(csv.DictReader(io.StringIO("\n".join(lines))))
    return table[1:]  # the first row names the units


def measured(table: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Medians by size and build, and what each has more than the clean one."""
    expected = sum(launches for _, _, launches in SIZES) * len(NAMES)
    if len(table) != expected:
        raise RuntimeError(f"ncu saw {len(table)} launches of rmsnorm_fwd; expected {expected}")
    out: list[dict[str, Any]] = []
    at = 0
    for rows, hidden, launches in SIZES:
        clean: dict[str, float] = {}
        for name in NAMES:
            kept = table[at + 1 : at + launches]
            at += launches
            values = {
                key: statistics.median(float(row[metric].replace(",", "")) for row in kept)
                for key, metric in METRICS.items()
            }
            clean = clean or values
            more = {key: values[key] - clean[key] for key in ("dram_write_bytes", "instructions", "time_ns")}
            out.append({"rows": rows, "hidden": hidden, "name": name, **values, "more_than_clean": more})
    return out


def print_table(rows: list[dict[str, Any]]) -> None:
    """A line a build."""
    print(f"{'size':>13} {'build':<36} {'us':>7} {'write MB':>8} {'instr M':>8} {'issue %':>7} {'dram %':>6}  stalls")
    for row in rows:
        stalls = sorted(((row[f"stall_{s}_cycles"], s) for s in STALLS), reverse=True)[:3]
        print(
            f"{row['rows']:>6} x {row['hidden']} {row['name']:<36} {row['time_ns'] / 1e3:>7.2f} "
            f"{row['dram_write_bytes'] / 1e6:>8.2f} {row['instructions'] / 1e6:>8.3f} "
            f"{row['issue_active_percent']:>7.1f} {row['dram_percent']:>6.1f}  "
            + ", ".join(f"{name} {value:.2f}" for value, name in stalls)
        )


if __name__ == "__main__":
    main(sys.argv[1:])
