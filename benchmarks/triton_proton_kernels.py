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


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    pl.enter_scope("load")
    x = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    pl.exit_scope("load")
    pl.enter_scope("mean")
    mean = tl.sum(x, axis=0) / width
    pl.exit_scope("mean")
    pl.enter_scope("variance")
    centred = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    pl.exit_scope("variance")
    pl.enter_scope("weight")
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
    pl.exit_scope("weight")
    pl.enter_scope("store")
    tl.store(y_ptr + row * width + at, (centred * scale * w + b).to(tl.bfloat16), mask=inside)
    pl.exit_scope("store")


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, length, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr
):
    head = tl.program_id(1).to(tl.int64) * length * HEAD
    at_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at_d = tl.arange(0, HEAD)
    q = tl.load(q_ptr + head + at_m[:, None] * HEAD + at_d[None, :])
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    out = tl.zeros((BLOCK_M, HEAD), tl.float32)
    for start in range(0, length, BLOCK_N):
        at_n = start + tl.arange(0, BLOCK_N)
        pl.enter_scope("scores")
        k = tl.load(k_ptr + head + at_n[None, :] * HEAD + at_d[:, None])
        score = tl.dot(q, k) * scale
        pl.exit_scope("scores")
        pl.enter_scope("softmax")
        now = tl.maximum(most, tl.max(score, 1))
        p = tl.exp2(score - now[:, None])
        change = tl.exp2(most - now)
        weight = weight * change + tl.sum(p, 1)
        pl.exit_scope("softmax")
        pl.enter_scope("values")
        v = tl.load(v_ptr + head + at_n[:, None] * HEAD + at_d[None, :])
        out = tl.dot(p.to(tl.bfloat16), v, out * change[:, None])
        pl.exit_scope("values")
        most = now
    tl.store(o_ptr + head + at_m[:, None] * HEAD + at_d[None, :], (out / weight[:, None]).to(tl.bfloat16))


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
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=False):
        at_m = tile // across * BLOCK_M
        at_n = tile % across * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(depth, BLOCK_K)):
            pl.enter_scope("load")
            a = a_desc.load([at_m, k * BLOCK_K])
            b = b_desc.load([at_n, k * BLOCK_K])
            pl.exit_scope("load")
            pl.enter_scope("dot")
            total = tl.dot(a, b.T, total)
            pl.exit_scope("dot")
        c_desc.store([at_m, at_n], total.to(tl.bfloat16))
