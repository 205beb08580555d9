"""Measures on a GPU what `warplens record` costs a program: host time a launch, memory, the program's own time.

In: nvcc and a GPU. Out: JSON, by default on stdout. `python benchmarks/record/run.py -o F`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import warplens

HERE = Path(__file__).parent
ROUNDS = 5
KERNEL = {"sleep": "warplens.Kernel", "spin": "spin, warplens.Kernel", "hold": "hold, warplens.Kernel"}
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
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    seconds = time.perf_counter() - begin
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(lines[0]) if lines else {"stdout": done.stdout[-500:]}
    return {**found, "command_seconds": round(seconds, 3), "code": done.returncode, "stderr": done.stderr[-600:]}


def recorded(program: list[str], *options: str) -> list[str]:
    """`program` below `warplens record`."""
    return [sys.executable, "-m", "warplens", "record", "-f", "-o", "cost.wlens", *options, "--", *program]


def measure(folder: Path) -> dict[str, Any]:
    """Each figure, bare, with the header and below record, in turn where they are compared."""
    with ThreadPoolExecutor() as pool:
        without, with_header = (
            str(path) for path in pool.map(lambda own: build(folder, *own), [("bare", "-DWITHOUT"), ("marked",)])
        )
    out: dict[str, Any] = {}

    def add(name: str, command: list[str]) -> None:
        out.setdefault(name, []).append(run(command, folder))

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
        of_kernel = [sys.executable, str(HERE / "launches.py"), "400", "10000", "3000", how]
        add(name, of_kernel)
        add(f"{name}, does not match", recorded(of_kernel, "-k", "^nothing$"))
        add(f"{name}, recorded", recorded(of_kernel, "--launch-count", "400", "--rounds", "0"))
    out["file_bytes"] = (folder / "cost.wlens").stat().st_size if (folder / "cost.wlens").exists() else None
    return out


def reached(found: dict[str, Any]) -> dict[str, float]:
    """What the figures say of the bounds: differences of medians."""

    def middle(name: str, key: str) -> float:
        return median(entry[key] for entry in found[name])

    few, many = (found[f"1000 launches of 10^5 events, {count} recorded"][0] for count in (100, 1000))
    nothing, header = "record, nothing matches", "header, not recorded"
    of_a_launch = {
        f"{of}_launch_us, {how}": middle(f"{how}, {of}", "p50_us") - middle(f"{how}, {header}", "p50_us")
        for how in ("spin", "sleep")
        for of in ("recorded", "recorded or timed")
    }
    of_kernel: dict[str, float] = {}
    for name in KERNEL.values():
        for key, of in (("unrecorded", "does not match"), ("recorded", "recorded")):
            of_kernel[f"{key}_launch_us, {name}"] = middle(f"{name}, {of}", "p50_us") - middle(name, "p50_us")
    return {
        "match_nothing_seconds": middle(nothing, "command_seconds") - middle(header, "command_seconds"),
        "unrecorded_launch_us": middle(nothing, "p50_us") - middle(header, "p50_us"),
        "header_alone_us": middle(header, "p50_us") - middle("bare", "p50_us"),
        **of_a_launch,
        **of_kernel,
        "resident_bytes_100_recorded": few["resident_bytes"],
        "resident_bytes_1000_recorded": many["resident_bytes"],
    }


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
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    text = json.dumps({**facts(), "reached": reached(found), "results": found}, indent=1) + "\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
