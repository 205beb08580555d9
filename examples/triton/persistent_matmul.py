"""A persistent matmul in Triton: 132 blocks, say, go over all tiles, which the TMA brings.

    warplens record examples/triton/persistent_matmul.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul_tma(
    a_desc,
    b_desc,
    c_desc,
    rows,
    columns,
    depth,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    across = tl.cdiv(columns, BLOCK_N)
    tiles = tl.cdiv(rows, BLOCK_M) * across
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS):
        at_m = tile // across * BLOCK_M
        at_n = tile % across * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(depth, BLOCK_K)):
            a = a_desc.load([at_m, k * BLOCK_K])
            b = b_desc.load([at_n, k * BLOCK_K])
            total = tl.dot(a, b.T, total)
        c_desc.store([at_m, at_n], total.to(tl.bfloat16))


def checksum(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().view(torch.int16).numpy().tobytes()).hexdigest()


def main() -> None:
    size = 2048
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    tiles = [TensorDescriptor.from_tensor(own, [128, wide]) for own, wide in ((a, 64), (b, 64), (c, 128))]
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "PROGRAMS": programs}
    for _ in range(5):
        matmul_tma[(programs,)](*tiles, size, size, size, **blocks, num_warps=8, num_stages=3)
    assert torch.allclose(c.float(), (a @ b.T).float(), rtol=2e-2, atol=1.0)
    print(checksum(c))


if __name__ == "__main__":
    main()
