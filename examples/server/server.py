"""A toy inference server that knows nothing of `warplens record`: spawned workers, each replaying a captured graph.

In: ../torch_extension/norm.cu. Out: a line a worker with a checksum of its answers. `python server.py` runs it as ever.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
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


def main() -> None:
    """Start the workers, hand out requests, print what came back."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=100, help="for each worker")
    asked = parser.parse_args()
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
    for number, digest in sorted(answers.get(timeout=600) for _ in workers):
        print(f"worker {number}: {digest}", flush=True)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
