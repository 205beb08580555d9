"""What recording Triton kernels costs the host, and how long a recording takes to become a file.

In: a GPU, torch, Triton. Out: JSON with all raw times. Two parts: the time from the end of 22 launches of a matmul of
4096^3 to a file that is on disk, with its size and the time to read all of its spans; and the host's time of a launch,
not recorded and recorded, each way in turn, in twelve passes, for passes differ: what is told is by how much each way
exceeds the first within a pass.

    python benchmarks/triton_record.py -o benchmarks/results/triton_record.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ptx"))
sys.path.insert(0, str(Path(__file__).parent))
import triton_kernels as kernels
from triton_marks import nvidia_smi

import warplens
from warplens.capture.python import PythonOptions
from warplens.capture.triton import TritonCapture
from warplens.instrument import Selection
from warplens.trace.file import write_file

SIZE, LAUNCHES = 4096, 22
BATCH, ROUNDS, PASSES = 200, 4, 12
FILES: dict[str, PythonOptions] = {
    # One wait and the phase behind it in each k-step, of every second block: as many records as Proton's in the text.
    "11.5 M spans": PythonOptions(selection=Selection(sites="wait wgmma"), every_block=2, capacity_bytes=1 << 30),
    "all waits": PythonOptions(capacity_bytes=2 << 30),
}


def matmul() -> Callable[[], Any]:
    a, b = (torch.randn(SIZE, SIZE, device="cuda").to(torch.bfloat16) for _ in range(2))
    c = torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 8, "num_stages": 3}
    return lambda: kernels.matmul[(SIZE // 128, SIZE // 128)](a, b, c, *[SIZE] * 6, **blocks)


def to_file(options: PythonOptions, folder: Path, *, opened: bool) -> dict[str, Any]:
    """Seconds of each step from the launches' end to a file and, where it is opened, to spans."""
    launch = matmul()
    out: dict[str, Any] = {}
    path = folder / "run.wlens"
    with TritonCapture(options) as capture:
        for _ in range(LAUNCHES):
            launch()
        torch.cuda.synchronize()
        start = time.perf_counter()
    recording = capture.recording()
    assert recording is not None
    out["read_s"] = time.perf_counter() - start
    write_file(path, recording.manifest, records=recording.records, sources=recording.sources)
    out["to_file_s"] = time.perf_counter() - start
    out["file_bytes"] = path.stat().st_size
    out["record_bytes"] = sum(chunks.nbytes for chunks in recording.records.values())
    out["lost_events"] = sum(entry["lost_events"] for entry in recording.manifest["launches"])
    if not opened:
        return out
    start = time.perf_counter()
    trace = warplens.open(path)
    out["spans"] = len(trace.spans)
    out["open_s"] = time.perf_counter() - start
    out["launches"] = len(trace.launches)
    out["problems"] = trace.problems.group_by("kind").len().to_dicts()
    return out


def host_times() -> dict[str, list[list[float]]]:
    """us of a launch of a small kernel on the host, by what is recorded: of each pass, each batch's mean."""
    x = torch.randn(64, 1024, device="cuda").to(torch.bfloat16)
    w, y = torch.randn(1024, device="cuda").to(torch.bfloat16), torch.empty_like(x)

    def launch() -> Any:
        return kernels.layer_norm[(64,)](x, y, w, w, 1024, 1e-5, BLOCK=1024, num_warps=4)

    def batch() -> float:
        launch()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BATCH):
            launch()
        elapsed = time.perf_counter() - start
        torch.cuda.synchronize()
        return elapsed * 1e6 / BATCH

    def batches(options: PythonOptions | None) -> list[float]:
        if options is None:
            return [batch() for _ in range(ROUNDS)]
        with TritonCapture(options):
            batch()  # compiles, and makes the memory
            return [batch() for _ in range(ROUNDS)]

    ways: dict[str, PythonOptions | None] = {
        "not recording": None,
        "recording other kernels": PythonOptions(kernels="another"),
        "recorded": PythonOptions(),
        "marked, beyond launch_count": PythonOptions(launch_count=1),
    }
    batch()
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(PASSES):
        for name, options in ways.items():
            times[name].append(batches(options))
    return times


def beyond(times: list[list[float]], first: list[list[float]]) -> list[float]:
    """us by which the median of each pass exceeds that of another way."""
    return [statistics.median(own) - statistics.median(other) for own, other in zip(times, first, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/triton_record.py",
        "device": nvidia_smi(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "launches": LAUNCHES,
        "size": SIZE,
        "batch": BATCH,
        "files": {},
    }
    result["host_us"] = host_times()
    for name, times in result["host_us"].items():
        more = beyond(times, result["host_us"]["not recording"])
        low, middle, high = statistics.quantiles(more, n=4)
        median = statistics.median(statistics.median(own) for own in times)
        print(
            f"{name:28} {median:6.2f} us, {middle:5.2f} more ({low:.2f} to {high:.2f}: quartiles of passes)", flush=True
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, options in FILES.items():
            few = options.every_block > 1
            result["files"][name] = [to_file(options, Path(folder), opened=few) for _ in range(2 if few else 1)]
            print(name, json.dumps(result["files"][name]), flush=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
