"""The recorder under stress: floods, absurd capacities, graphs with PDL, two processes, canary words, a minute's run.

In: a GPU. Out: JSON and a line for each thing that must hold, with `ok` or `FAILED`; exit status 1 where one failed.
Each part runs in a process of its own with a time limit, so that one that fails does not take the others along. The
short parts run side by side; those whose times count run alone behind them.

    python benchmarks/stress.py -o benchmarks/results/stress.json
    python benchmarks/stress.py --part canaries          # one of them, in this process
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "stress")]
MARK = "ROW "  # in front of a row in a part's output

Rows = Iterator[dict[str, Any]]


def _random_launches() -> Rows:
    from canaries import random_launches

    return random_launches()


def _capacities() -> Rows:
    from canaries import capacities

    return capacities()


def _many_sites() -> Rows:
    from floods import many_sites

    return many_sites()


def _billion() -> Rows:
    from floods import billion

    return billion()


def _graphs() -> Rows:
    from replays import graphs

    return graphs()


def _processes() -> Rows:
    from replays import processes

    return processes()


def _minute() -> Rows:
    from minute import minute

    return minute()


def _sanitizer(tool: str) -> Rows:
    from launching import row
    from sanitized import is_clean, under

    found = under(tool)
    yield row(f"compute-sanitizer {tool}, every policy and verb", is_clean(found), **found)


TOGETHER: dict[str, tuple[Callable[[], Rows], int]] = {
    "canaries": (_random_launches, 90),
    "capacities": (_capacities, 90),
    "sites": (_many_sites, 90),
    "graphs": (_graphs, 90),
    "processes": (_processes, 90),
    "memcheck": (lambda: _sanitizer("memcheck"), 170),
    "racecheck": (lambda: _sanitizer("racecheck"), 170),
}
ALONE: dict[str, tuple[Callable[[], Rows], int]] = {"billion": (_billion, 90), "minute": (_minute, 120)}
"""Parts: what makes the rows (imported there, so that a part that cannot be imported fails alone), seconds at most."""
PARTS = TOGETHER | ALONE


def main(arguments: list[str]) -> int:
    """Run all parts, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--part", choices=PARTS, help="run one part in this process")
    parser.add_argument("--only", help="parts to run, with commas between them (default: all)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        from replays import worker

        worker()
        return 0
    if options.part:
        for row in PARTS[options.part][0]():
            print(MARK + json.dumps(row), flush=True)
        return 0
    names = options.only.split(",") if options.only else list(PARTS)
    if options.output is None or not set(names) <= set(PARTS):
        parser.error(f"-o FILE, and parts of {', '.join(PARTS)}, are needed")
    before = _facts()
    parts = run_parts(names)
    result = {
        "benchmark": "stress",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "benchmarks/stress.py", *([f"--only={options.only}"] if options.only else []),
                    f"-o={options.output.name}"],
        **before,
        "parts": parts,
    }  # fmt: skip
    result["clocks"] = {"before": before["clocks"], "after": _facts()["clocks"]}
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print_table(parts)
    print(f"wrote {options.output}")
    return 0 if all(row["passed"] is not False for part in parts.values() for row in part["rows"]) else 1


def run_parts(names: list[str]) -> dict[str, dict[str, Any]]:
    """The rows and the seconds of each part, by name."""
    together = [name for name in names if name in TOGETHER]
    with ThreadPoolExecutor(max(len(together), 1)) as pool:
        done = dict(zip(together, pool.map(run_part, together), strict=True))
    return done | {name: run_part(name) for name in names if name in ALONE}


def run_part(name: str) -> dict[str, Any]:
    """A part in a process of its own."""
    limit_s = PARTS[name][1]
    begin = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve()), "--part", name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as child:
        try:
            output, errors = child.communicate(timeout=limit_s)
            ended = f"exit status {child.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with the processes that it has started
            output, errors = child.communicate()
            ended = f"was stopped after {limit_s} s"
    return {"seconds": round(time.monotonic() - begin, 2), "rows": rows_of(name, output, errors, ended)}


def rows_of(name: str, output: str, errors: str, ended: str) -> list[dict[str, Any]]:
    """The rows that a part printed; one more that failed where it did not come to its end or printed none."""
    rows = [json.loads(line.removeprefix(MARK)) for line in output.splitlines() if line.startswith(MARK)]
    if ended != "exit status 0" or not rows:
        tail = "\n".join((errors or output).splitlines()[-15:])
        rows.append({"line": f"{name} {ended}", "passed": False, "output_tail": tail})
    return rows


def _facts() -> dict[str, Any]:
    """Device, versions and clocks, as the benchmark of RMSNorm states them."""
    sys.path.insert(0, str(HERE / "rmsnorm_overhead"))
    from run import device_facts, nvidia_smi, versions  # imports torch

    return {"device": device_facts(), "versions": versions(), "clocks": nvidia_smi()}


def print_table(parts: dict[str, dict[str, Any]]) -> None:
    """A line a row; what failed with its numbers."""
    words = {True: "ok", False: "FAILED", None: "measured"}
    for name, part in parts.items():
        for row in part["rows"]:
            print(f"{name:<11} {part['seconds']:>6.1f} s  {words[row['passed']]:<9} {row['line']}")
            if row["passed"] is not True:
                for key, value in row.items():
                    if key not in ("line", "passed"):
                        print(f"{'':>31}{key}: {value}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
