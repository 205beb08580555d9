"""A Gluon kernel of the corpus: asynchronous copies into shared memory, two stages."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Triton 3.6 calls them otherwise than newer ones.
async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.jit
def copy(x_ptr, y_ptr, steps, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    at = gl.program_id(0) * steps * BLOCK + gl.arange(0, BLOCK, layout)
    buffers = gl.allocate_shared_memory(gl.float32, [2, BLOCK], shared)
    async_load(buffers.index(0), x_ptr + at)
    async_copy.commit_group()
    for step in range(steps):
        async_load(buffers.index((step + 1) % 2), x_ptr + at + BLOCK)
        async_copy.commit_group()
        async_copy.wait_group(1)
        barrier()
        gl.store(y_ptr + at, buffers.index(step % 2).load(layout) * 2.0)
        barrier()
        at += BLOCK
