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
from pathlib import Path
from typing import Any

import warplens

HERE = Path(__file__).parent


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
    """Each figure, bare, with the header and below record."""
    without, with_header = (str(build(folder, n, *f)) for n, f in (("bare", ["-DWITHOUT"]), ("marked", [])))
    out: dict[str, Any] = {}
    small = ["20000"]
    out["bare"] = [run([without, "other", *small], folder) for _ in range(3)]
    out["header, not recorded"] = [run([with_header, "other", *small], folder) for _ in range(3)]
    out["record, nothing matches"] = [
        run(recorded([with_header, "other", *small], "-k", "^nothing$"), folder) for _ in range(3)
    ]
    out["record, beyond the count"] = [
        run(recorded([with_header, "marked", "2000", "100"], "--launch-count", "1", "--rounds", "0"), folder)
    ]
    paced = ["marked", "200", "10000", "3000"]  # behind each launch 3 ms, so that memory is free for the next
    out["paced, bare"] = [run([without, *paced], folder)]
    out["paced, record, each launch"] = [
        run(recorded([with_header, *paced], "--launch-count", "200", "--rounds", "0"), folder)
    ]
    large = ["marked", "1000", "100000"]
    out["1000 launches of 10^5 events, bare"] = [run([without, *large], folder)]
    out["1000 launches of 10^5 events, 100 recorded"] = [
        run(recorded([with_header, *large], "--launch-count", "100", "--rounds", "0"), folder)
    ]
    out["1000 launches of 10^5 events, recorded"] = [
        run(recorded([with_header, *large], "--launch-count", "1000", "--rounds", "0"), folder)
    ]
    out["file_bytes"] = (folder / "cost.wlens").stat().st_size if (folder / "cost.wlens").exists() else None
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
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    text = json.dumps({**facts(), "results": found}, indent=1) + "\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
