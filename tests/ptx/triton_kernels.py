"""Triton kernels of the corpus: what `make.py` compiles, and what tests/gpu records. Imported only where Triton is."""

import triton
import triton.language as tl


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
    SPECIALIZED: tl.constexpr,
):
    across = tl.cdiv(columns, BLOCK_N)
    tiles = tl.cdiv(rows, BLOCK_M) * across
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=False, warp_specialize=SPECIALIZED):
        at_m = tile // across * BLOCK_M
        at_n = tile % across * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(depth, BLOCK_K)):
            a = a_desc.load([at_m, k * BLOCK_K])
            b = b_desc.load([at_n, k * BLOCK_K])
            total = tl.dot(a, b.T, total)
        c_desc.store([at_m, at_n], total.to(tl.bfloat16))


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


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    length,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD: tl.constexpr,
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
        k = tl.load(k_ptr + head + at_n[None, :] * HEAD + at_d[:, None])
        score = tl.dot(q, k) * scale
        now = tl.maximum(most, tl.max(score, 1))
        p = tl.exp2(score - now[:, None])
        change = tl.exp2(most - now)
        weight = weight * change + tl.sum(p, 1)
        v = tl.load(v_ptr + head + at_n[:, None] * HEAD + at_d[None, :])
        out = tl.dot(p.to(tl.bfloat16), v, out * change[:, None])
        most = now
    tl.store(o_ptr + head + at_m[:, None] * HEAD + at_d[None, :], (out / weight[:, None]).to(tl.bfloat16))


@triton.jit
def spin(flag_ptr, out_ptr, BLOCK: tl.constexpr):
    while tl.atomic_cas(flag_ptr, 1, 0) != 1:
        pass
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, at)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr, 1)
