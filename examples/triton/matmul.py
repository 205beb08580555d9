"""A pipelined, autotuned matmul in Triton: what the tuner tries runs clean, and its choice is recorded.

    warplens record examples/triton/matmul.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64}, num_warps=4, num_stages=4),
]


@triton.autotune(CONFIGS, key=["rows", "columns", "depth"])
@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    rows,
    columns,
    depth,
    stride_a,
    stride_b,
    stride_c,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    at_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    a = a_ptr + at_m[:, None] * stride_a + at_k[None, :]
    b = b_ptr + at_k[:, None] * stride_b + at_n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(tl.cdiv(depth, BLOCK_K)):
        total = tl.dot(tl.load(a), tl.load(b), total)
        a += BLOCK_K
        b += BLOCK_K * stride_b
    inside = (at_m[:, None] < rows) & (at_n[None, :] < columns)
    tl.store(c_ptr + at_m[:, None] * stride_c + at_n[None, :], total.to(tl.bfloat16), mask=inside)


def checksum(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().view(torch.int16).numpy().tobytes()).hexdigest()


def main() -> None:
    size = 2048
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    for _ in range(5):
        matmul[lambda own: (size // own["BLOCK_M"], size // own["BLOCK_N"])](a, b, c, *[size] * 6)
    assert torch.allclose(c.float(), (a @ b).float(), rtol=2e-2, atol=1.0)
    print(checksum(c))


if __name__ == "__main__":
    main()
