"""Measures on a GPU what `warplens record` costs a program: host time a launch, memory, the program's own time.

In: nvcc and a GPU. Out: JSON, by default on stdout. `python benchmarks/record/run.py -o F`. What a recorded launch of
`warplens.Kernel` costs is the difference to one between that is not recorded, in the same process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import warplens

HERE = Path(__file__).parent
ROUNDS = 5
KERNEL = {
    "sleep": "warplens.Kernel",
    "spin": "spin, warplens.Kernel",
    "hold": "hold, warplens.Kernel",
    "": "in a tight loop, warplens.Kernel",
}
"""How launches.py passes the time between launches, and what the figures of that are called."""


def build(folder: Path, name: str, *flags: str) -> Path:
    """launches.cu as a program."""
    program = folder / name
    source = HERE / "launches.cu"
    include = f"-I{warplens.get_include()}"
    subprocess.run(["nvcc", "-std=c++17", "-O3", "-arch=native", include, *flags, "-o", program, source], check=True)
    return program


def run(command: list[str], folder: Path) -> dict[str, Any]:
    """The program's own figures, and how long the whole command took."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}  # as of a package that is installed
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, env=environment)
    seconds = time.perf_counter() - begin
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(lines[0]) if lines else {"stdout": done.stdout[-500:]}
    return {**found, "command_seconds": round(seconds, 3), "code": done.returncode, "stderr": done.stderr[-600:]}


def recorded(program: list[str], *options: str) -> list[str]:
    """`program` below `warplens record`."""
    return [sys.executable, "-m", "warplens", "record", "-f", "-o", "cost.wlens", *options, "--", *program]


def measure(folder: Path, done: Callable[[dict[str, Any]], None]) -> None:
    """Each figure, bare, with the header and below record, in turn where they are compared. `done`: takes all that has
    been measured, behind each program."""
    with ThreadPoolExecutor() as pool:
        without, with_header = (
            str(path) for path in pool.map(lambda own: build(folder, *own), [("bare", "-DWITHOUT"), ("marked",)])
        )
    out: dict[str, Any] = {}

    def add(name: str, command: list[str]) -> None:
        out.setdefault(name, []).append(run(command, folder))
        print(f"{name}: {out[name][-1]['command_seconds']} s", file=sys.stderr, flush=True)
        done(out)

    # Behind each launch 3 ms, so that memory is free for the next; in these the thread sleeps, or is busy.
    paced = {how: ["marked", "200", "10000", "3000", how] for how in ("sleep", "spin")}
    for _ in range(ROUNDS):
        add("bare", [without, "other", "20000"])
        add("header, not recorded", [with_header, "other", "20000"])
        add("record, nothing matches", recorded([with_header, "other", "20000"], "-k", "^nothing$"))
    for how in [*paced] * 3:
        add(f"{how}, header, not recorded", [with_header, *paced[how]])
        for rounds, of in (("0", "recorded"), ("400", "recorded or timed")):
            options = ("--launch-count", "200", "--rounds", rounds)
            add(f"{how}, {of}", recorded([with_header, *paced[how]], *options))
    options = ("--launch-count", "1", "--rounds", "0")
    add("record, beyond the count", recorded([with_header, "marked", "2000", "100"], *options))
    large = ["marked", "1000", "100000"]
    add("1000 launches of 10^5 events, header, not recorded", [with_header, *large])
    for count in ("100", "1000"):
        options = ("--launch-count", count, "--rounds", "0")
        add(f"1000 launches of 10^5 events, {count} recorded", recorded([with_header, *large], *options))
    for how, name in [*KERNEL.items()] * 3:
        of_kernel = [sys.executable, str(HERE / "launches.py"), "200", "10000", *(["3000", how] if how else ["0"])]
        add(name, of_kernel)
        add(f"{name}, does not match", recorded(of_kernel, "-k", "^nothing$"))
        if how:
            options = ("-k", "^marked", "--launch-count", "200", "--rounds", "0")
            add(f"{name}, recorded", recorded(of_kernel, *options))


def reached(found: dict[str, Any]) -> dict[str, float]:
    """What the figures say of the bounds, as far as they have been measured: differences of medians."""
    nothing, header = "record, nothing matches", "header, not recorded"
    compared = {
        "match_nothing_seconds": (nothing, header, "command_seconds"),
        "unrecorded_launch_us": (nothing, header, "p50_us"),
        "header_alone_us": (header, "bare", "p50_us"),
    }
    for how in ("spin", "sleep"):
        for of in ("recorded", "recorded or timed"):
            compared[f"{of}_launch_us, {how}"] = f"{how}, {of}", f"{how}, {header}", "p50_us"
    for name in KERNEL.values():
        compared[f"unrecorded_launch_us, {name}"] = f"{name}, does not match", name, "p50_us"
    out = {}
    for what, (one, other, key) in compared.items():
        if one in found and other in found:
            first, second = (median(entry[key] for entry in found[name]) for name in (one, other))
            out[what] = first - second
    for name in KERNEL.values():
        beyond = [entry["p50_us"] - entry["other"]["p50_us"] for entry in found.get(f"{name}, recorded", [])]
        if beyond:
            out[f"recorded_launch_us, {name}"] = median(beyond)
    for count in (100, 1000):
        for entry in found.get(f"1000 launches of 10^5 events, {count} recorded", []):
            out[f"resident_bytes_{count}_recorded"] = entry["resident_bytes"]
    return out


def facts() -> dict[str, Any]:
    """Device, driver, clocks and date."""
    keys = ["name", "driver_version", "clocks.sm", "clocks.mem"]
    ask = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader"]
    values = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[-2]
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    command = "python benchmarks/record/run.py"
    return {"date": date, "command": command, "device": dict(zip(keys, values, strict=True)), "nvcc": nvcc}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    head, text = facts(), ""

    def done(found: dict[str, Any]) -> None:
        nonlocal text
        text = json.dumps({**head, "reached": reached(found), "results": found}, indent=1) + "\n"
        if arguments.output:
            arguments.output.write_text(text, encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), done)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
