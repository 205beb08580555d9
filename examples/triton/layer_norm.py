"""A layer norm in Triton: one row a block, two sums over all warps.

    warplens record examples/triton/layer_norm.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / width
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + at, (centred * scale * w + b).to(tl.bfloat16), mask=inside)


def checksum(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().view(torch.int16).numpy().tobytes()).hexdigest()


def main() -> None:
    rows, width = 4096, 4096
    torch.manual_seed(0)
    x = torch.randn(rows, width, device="cuda").to(torch.bfloat16)
    w, b = (torch.randn(width, device="cuda").to(torch.bfloat16) for _ in range(2))
    y = torch.empty_like(x)
    for _ in range(5):
        layer_norm[(rows,)](x, y, w, b, width, 1e-5, BLOCK=width, num_warps=8)
    expected = torch.nn.functional.layer_norm(x.float(), (width,), w.float(), b.float())
    assert torch.allclose(y.float(), expected, rtol=2e-2, atol=5e-2)
    print(checksum(y))


if __name__ == "__main__":
    main()
