"""Programs built by nvcc and by `warplens nvcc`: whether they compute the same, and what marks cost them.

In: a GPU of compute capability 9.0, nvcc, torch. Out: JSON: checksums, times of a launch with each build (alone, and
below `warplens record`), what was recorded, seconds of each compilation. The programs are examples whose sources know
nothing of warplens.

    python benchmarks/nvcc.py -o benchmarks/results/nvcc.json
    python benchmarks/nvcc.py --compile -o benchmarks/results/nvcc_compile.json

The second needs no GPU: seconds that a file of one kernel takes to compile, which is what host.hpp takes in each file.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import warplens

EXAMPLES = Path(__file__).parents[1] / "examples"
FLAGS = ["-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", str(EXAMPLES / "hopper_gemm" / "gemm.cu")]
OURS = [sys.executable, "-m", "warplens"]
BUILDS = {"clean": None, "waits": "waits", "all": "all"}
ROUNDS = 3


def seconds(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs it to its end: how long it took, and what it said of marks."""
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stdout}\n{done.stderr}")
    said = [line for line in done.stderr.splitlines() if line.startswith("warplens nvcc")]
    return {"seconds": round(time.perf_counter() - begin, 2), "said": said}


def run(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What the program prints: its checksum, and the time of a launch."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {done.stdout}\n{done.stderr}")
    times = re.search(r"(\d+) ns a (?:launch|call)", done.stderr)
    assert times, done.stderr
    return {"checksum": done.stdout.splitlines()[0], "ns": int(times[1])}


def described(path: Path) -> dict[str, Any]:
    """What a recording says of itself."""
    trace = warplens.open(path)
    kernels = trace.manifest["kernels"]
    counts = trace.spans.group_by("site").len()
    by_site = dict(zip(counts["site"].to_list(), counts["len"].to_list(), strict=True))
    return {
        "launches": trace.launches.height,
        "spans": trace.spans.height,
        "lost_events": int(trace.launches["lost_events"].sum()),
        "problems": trace.problems.group_by("kind").len().to_dicts(),
        "kernels": [
            {key: kernel[key] for key in ("name", "policy", "traced", "traced_ns", "switched_off_ns")}
            for kernel in kernels
        ],
        "spans_by_site": {row["name"]: by_site.get(row["site"], 0) for row in trace.sites.iter_rows(named=True)},
    }


def measured(commands: dict[str, tuple[list[str], dict[str, str] | None]], kernel: str, folder: Path) -> dict[str, Any]:
    """Each build alone, in turn, and those with marks below record."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, (command, environment) in commands.items():
            runs[name].append(run(command, environment))
    recorded = {}
    for name, (command, environment) in commands.items():
        if name == "clean":
            continue
        path = folder / f"{name}.wlens"
        record = [*OURS, "record", "-f", "-o", str(path), "-k", kernel, "--launch-count", "3", "--rounds", "3", "--"]
        recorded[name] = {**run([*record, *command], environment), **described(path)}
    checksums = {one["checksum"] for own in runs.values() for one in own} | {r["checksum"] for r in recorded.values()}
    return {"runs": runs, "recorded": recorded, "identical": len(checksums) == 1}


def gemm(folder: Path) -> dict[str, Any]:
    def build(name: str, level: str | None) -> dict[str, Any]:
        own = ["nvcc"] if level is None else [*OURS, "nvcc", "--warplens-verbose", f"--warplens-level={level}"]
        return seconds([*own, *FLAGS, "-o", str(folder / name)])

    with ThreadPoolExecutor() as pool:
        compiled = dict(zip(BUILDS, pool.map(build, BUILDS, BUILDS.values()), strict=True))
    commands: dict[str, Any] = {name: ([str(folder / name), "200"], None) for name in BUILDS}
    return {"compiled": compiled, **measured(commands, "gemm", folder)}


def extension(folder: Path) -> dict[str, Any]:
    compiler = folder / "warplens-nvcc"
    compiler.write_text(f'#!/bin/sh\nexec {shlex.join([*OURS, "nvcc"])} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    command = [sys.executable, str(EXAMPLES / "torch_plain" / "train.py")]
    commands: dict[str, Any] = {}
    for name in ("clean", "waits"):
        (folder / name).mkdir(exist_ok=True)
        own = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder / name), "TORCH_CUDA_ARCH_LIST": "9.0"}
        commands[name] = command, own if name == "clean" else {**own, "PYTORCH_NVCC": str(compiler)}
    with ThreadPoolExecutor() as pool:
        compiled = dict(zip(commands, pool.map(lambda own: seconds(*own), commands.values()), strict=True))
    return {"compiled": compiled, **measured(commands, "softmax", folder)}


SMALL = """__global__ void reversed(float* x) {
  __shared__ float part[32];
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = part[31 - threadIdx.x];
}
int main() { reversed<<<1, 32>>>(nullptr); }
"""
SMALL_OPTIONS = (["-arch=sm_90"], ["-arch=sm_90a"], ["-arch=sm_90", "-O3"])
COMPILE_ROUNDS = 7


def compile_times(folder: Path) -> dict[str, Any]:
    """By nvcc's options, of each compiler in turn: seconds of CPU time of all that it starts, and of the clock."""
    source = folder / "small.cu"
    source.write_text(SMALL, encoding="utf-8")
    found: dict[str, Any] = {}
    for options in SMALL_OPTIONS:
        times: dict[str, list[list[float]]] = {"nvcc": [], "warplens nvcc": []}
        for _ in range(COMPILE_ROUNDS):
            for name, compiler in (("nvcc", ["nvcc"]), ("warplens nvcc", [*OURS, "nvcc"])):
                before = os.times()
                clock = seconds([*compiler, *options, "-c", str(source), "-o", str(folder / "small.o")])["seconds"]
                now = os.times()
                used = now.children_user + now.children_system - before.children_user - before.children_system
                times[name].append([round(used, 2), clock])
        medians = {name: list(map(statistics.median, zip(*own, strict=True))) for name, own in times.items()}
        found[" ".join(options)] = {"cpu_and_clock_s": medians, "rounds": times}
    return found


def processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return f"{(re.findall(r'model name.*: (.*)', text) or ['?'])[0]}, {os.cpu_count()} CPUs"


def device() -> dict[str, str]:
    names = ["name", "driver_version", "clocks.sm", "clocks.mem", "power.limit", "temperature.gpu"]
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(names, (part.strip() for part in done.stdout.splitlines()[0].split(",")), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument(
        "--only", choices=("gemm", "torch_extension"), help="of the result that is there the rest stays"
    )
    parser.add_argument("--compile", action="store_true", help="only how long a small file takes, without a GPU")
    parser.add_argument("--folder", type=Path, help="where what is built stays")
    arguments = parser.parse_args()
    output = arguments.output
    nvcc = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/nvcc.py" + " --compile" * arguments.compile,
        **({"processor": processor()} if arguments.compile else {"device": device()}),
        "nvcc": (re.findall(r"release.*", nvcc) or [nvcc])[0],
        "warplens": warplens.__version__,
    }
    if arguments.compile:
        host = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        with tempfile.TemporaryDirectory() as name:
            result |= {"host_compiler": host, "small": compile_times(Path(name))}
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return
    if arguments.only and output.exists():
        result = {**json.loads(output.read_text(encoding="utf-8")), **result}
    with tempfile.TemporaryDirectory() as name:
        for part, own in (("gemm", gemm), ("torch_extension", extension)):
            if arguments.only not in (None, part):
                continue
            folder = Path(arguments.folder or name, part)
            folder.mkdir(parents=True, exist_ok=True)
            result[part] = own(folder)
            output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(part, "identical:", result[part]["identical"], flush=True)


if __name__ == "__main__":
    main()
