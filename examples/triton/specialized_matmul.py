"""A warp-specialised matmul in Gluon, for Hopper: one warp loads, eight multiply; barriers in shared memory between.

    warplens record examples/triton/specialized_matmul.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

BLOCK_M, BLOCK_N, BLOCK_K, STAGES, WARPS = 128, 128, 64, 3, 8
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # newer Triton calls it otherwise


@gluon.jit
def load_tiles(a_desc, b_desc, a_tiles, b_tiles, empty, full, at_m, at_n, depth):
    stages: gl.constexpr = a_tiles.shape[0]
    block_k: gl.constexpr = a_desc.block_type.shape[1]
    for k in range(gl.cdiv(depth, block_k)):
        stage = k % stages
        mbarrier.wait(empty.index(stage), (k // stages & 1) ^ 1)
        mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        load(a_desc, [at_m, k * block_k], full.index(stage), a_tiles.index(stage))
        load(b_desc, [k * block_k, at_n], full.index(stage), b_tiles.index(stage))


@gluon.jit
def multiply(c_ptr, a_tiles, b_tiles, empty, full, at_m, at_n, depth, columns, num_warps: gl.constexpr):
    stages: gl.constexpr = a_tiles.shape[0]
    block_m: gl.constexpr = a_tiles.shape[1]
    block_k: gl.constexpr = a_tiles.shape[2]
    block_n: gl.constexpr = b_tiles.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, block_n, 16])
    total = gl.zeros((block_m, block_n), gl.float32, layout=layout)
    for k in range(gl.cdiv(depth, block_k)):
        stage = k % stages
        mbarrier.wait(full.index(stage), k // stages & 1)
        total = warpgroup_mma(a_tiles.index(stage), b_tiles.index(stage), total, is_async=True)
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        mbarrier.arrive(empty.index(stage), count=1)
    rows = at_m + gl.arange(0, block_m, gl.SliceLayout(1, layout))
    across = at_n + gl.arange(0, block_n, gl.SliceLayout(0, layout))
    gl.store(c_ptr + rows[:, None] * columns + across[None, :], total.to(gl.bfloat16))


@gluon.jit
def specialized_matmul(a_desc, b_desc, c_ptr, depth, columns, STAGES: gl.constexpr, num_warps: gl.constexpr):
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(empty.index(i), count=1)
        mbarrier.init(full.index(i), count=1)
    at_m = gl.program_id(0) * a_desc.block_type.shape[0]
    at_n = gl.program_id(1) * b_desc.block_type.shape[1]
    gl.warp_specialize(
        [
            (multiply, (c_ptr, a_tiles, b_tiles, empty, full, at_m, at_n, depth, columns, num_warps)),
            (load_tiles, (a_desc, b_desc, a_tiles, b_tiles, empty, full, at_m, at_n, depth)),
        ],
        [1],
        [24],
    )


def main() -> None:
    size = 2048
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    wide = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], gl.bfloat16)
    tall = gl.NVMMASharedLayout.get_default_for([BLOCK_K, BLOCK_N], gl.bfloat16)
    a_desc = TensorDescriptor.from_tensor(a, [BLOCK_M, BLOCK_K], wide)
    b_desc = TensorDescriptor.from_tensor(b, [BLOCK_K, BLOCK_N], tall)
    for _ in range(5):
        grid = (size // BLOCK_M, size // BLOCK_N)
        specialized_matmul[grid](a_desc, b_desc, c, size, size, STAGES=STAGES, num_warps=WARPS)
    assert torch.allclose(c.float(), (a @ b).float(), rtol=2e-2, atol=1.0)
    print(hashlib.sha256(c.cpu().view(torch.int16).numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main()
