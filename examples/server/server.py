"""A toy inference server that knows nothing of `warplens record`: spawned workers, each replaying a captured graph.

In: ../torch_extension/norm.cu. Out: a line a worker with a checksum of its answers. `python server.py` runs it as ever.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import queue
from pathlib import Path
from typing import Any

import torch
from torch.utils.cpp_extension import load_inline

import warplens

ROWS, COLUMNS = 264, 4096
SOURCE = Path(__file__).parents[1] / "torch_extension" / "norm.cu"


def extension() -> Any:
    """The layer; built once, and found there by whoever asks later."""
    return load_inline(
        name="warplens_norm",
        cpp_sources="torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor weight, double eps);",
        cuda_sources=SOURCE.read_text(encoding="utf-8"),
        functions=["rmsnorm"],
        extra_include_paths=[warplens.get_include()],
        extra_cuda_cflags=["-std=c++17"],
    )


def work(number: int, requests: Any, answers: Any) -> None:
    """A worker: captures its layer, then answers requests until there are none."""
    torch.cuda.set_device(number % torch.cuda.device_count())
    layer = extension().rmsnorm
    weight = torch.linspace(0.5, 1.5, COLUMNS, device="cuda")
    x = torch.zeros(ROWS, COLUMNS, device="cuda")
    layer(x, weight, 1e-6)  # whatever is set up at the first call must not be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x, weight, 1e-6)
    digest = hashlib.sha256()
    while (seed := requests.get()) is not None:
        x.copy_(torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        digest.update(y.cpu().numpy().tobytes())
    answers.put((number, digest.hexdigest()[:16]))


def collect(workers: list[Any], answers: Any) -> dict[int, str]:
    """What each worker answered. Where one ends without an answer, all are ended at once, and so is the server."""
    found: dict[int, str] = {}
    while len(found) < len(workers):
        ended = [number for number, worker in enumerate(workers) if not worker.is_alive()]  # asked before its answer
        try:
            number, digest = answers.get(timeout=0.5)
            found[number] = digest
        except queue.Empty:
            lost = [number for number in ended if number not in found]
            if lost:
                for worker in workers:
                    worker.terminate()
                code = workers[lost[0]].exitcode
                raise SystemExit(f"worker {lost[0]} ended with exit code {code} and without an answer") from None
    return found


def main() -> None:
    """Start the workers, hand out requests, print what came back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=100, help="for each worker")
    asked = parser.parse_args()
    if not torch.cuda.is_available():  # torch's compiler of extensions says less
        raise SystemExit("torch finds no GPU here: `warplens doctor` says what is missing")
    extension()
    spawn = multiprocessing.get_context("spawn")
    queues, answers = [spawn.Queue() for _ in range(asked.workers)], spawn.Queue()
    workers = [spawn.Process(target=work, args=(number, own, answers)) for number, own in enumerate(queues)]
    for worker in workers:
        worker.start()
    for seed in range(asked.requests):
        for own in queues:
            own.put(seed)
    for own in queues:
        own.put(None)
    for number, digest in sorted(collect(workers, answers).items()):
        print(f"worker {number}: {digest}", flush=True)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
