"""Triton kernels with Proton's scopes, which are nothing while Proton does not instrument: for triton_proton.py."""

import triton
import triton.language as tl
import triton.profiler.language as pl

pl.enable_semantic("triton")


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, rows, columns, depth, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    at_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, BLOCK_K)
    a = a_ptr + at_m[:, None] * depth + at_k[None, :]
    b = b_ptr + at_k[:, None] * columns + at_n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(tl.cdiv(depth, BLOCK_K)):
        pl.enter_scope("load")
        a_tile = tl.load(a)
        b_tile = tl.load(b)
        pl.exit_scope("load")
        pl.enter_scope("dot")
        total = tl.dot(a_tile, b_tile, total)
        pl.exit_scope("dot")
        a += BLOCK_K
        b += BLOCK_K * columns
    inside = (at_m[:, None] < rows) & (at_n[None, :] < columns)
    tl.store(c_ptr + at_m[:, None] * columns + at_n[None, :], total.to(tl.bfloat16), mask=inside)


@triton.jit
def rms_norm(x_ptr, y_ptr, w_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    pl.enter_scope("load")
    x = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    pl.exit_scope("load")
    pl.enter_scope("reduce")
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    pl.exit_scope("reduce")
    pl.enter_scope("weight")
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    pl.exit_scope("weight")
    pl.enter_scope("store")
    tl.store(y_ptr + row * width + at, (x * scale * w).to(tl.bfloat16), mask=inside)
    pl.exit_scope("store")
