"""A script that uses a torch extension with marks, and knows nothing of `warplens record`.

In: norm.cu beside it. Out: a checksum of the result on stdout. `python train.py` runs it as ever.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
import torch.distributed
from torch.utils.cpp_extension import load_inline

import warplens

STEPS = 40


def main() -> None:
    """Build the extension, run it, print what came out."""
    extension = load_inline(
        name="warplens_norm",
        cpp_sources="torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor weight, double eps);",
        cuda_sources=(Path(__file__).parent / "norm.cu").read_text(encoding="utf-8"),
        functions=["rmsnorm"],
        extra_include_paths=[warplens.get_include()],
        extra_cuda_cflags=["-std=c++17"],
    )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(528, 4096, generator=generator).to(device)
    weight = torch.randn(4096, generator=generator).to(device)
    for _ in range(STEPS):
        y = extension.rmsnorm(x, weight, 1e-6)
    if "WORLD_SIZE" in os.environ:  # below torchrun
        torch.distributed.init_process_group("nccl", device_id=device)
        torch.distributed.all_reduce(y)
        torch.distributed.destroy_process_group()
    digest = hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest()
    print(f"rank {os.environ.get('RANK', '0')}: {digest[:16]}", flush=True)


if __name__ == "__main__":
    main()
