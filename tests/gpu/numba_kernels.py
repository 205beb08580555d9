"""Kernels of test_numba.py: one function, compiled in many ways, and such as can have no marks."""

# mypy: ignore-errors

import tempfile
from pathlib import Path

from numba import cuda, int32, void


@cuda.jit(device=True)
def twice(value):
    return value + value


def reverse(x, y):
    held = cuda.shared.array(128, int32)
    at = cuda.threadIdx.x
    held[at] = x[cuda.grid(1)]
    cuda.syncthreads()  # of reverse
    y[cuda.grid(1)] = twice(held[127 - at])


def waits_for_grid(x, y):
    held = cuda.shared.array(128, int32)
    held[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.cg.this_grid().sync()
    y[cuda.grid(1)] = 2 * held[127 - cuda.threadIdx.x]


def own_size(out):
    at = cuda.grid(1)
    cuda.syncthreads()
    if at < out.size:
        out[at] = cuda.blockDim.x


SIGNATURE = void(int32[::1], int32[::1])
lazy = cuda.jit(reverse)
signed = cuda.jit(SIGNATURE)(reverse)
lined = cuda.jit(reverse, lineinfo=True)
limited = cuda.jit(reverse, max_registers=64, launch_bounds=128, fastmath=True)
without_lto = cuda.jit(reverse, lto=False)
carved = cuda.jit(reverse, shared_memory_carveout="maxshared")
debugged = cuda.jit(reverse, debug=True, opt=False)
grid_wide = cuda.jit(waits_for_grid)
block_size = cuda.jit(own_size)


def linked():
    """A kernel that calls a function of CUDA C++."""
    place = Path(tempfile.mkdtemp(), "times.cu")
    place.write_text('extern "C" __device__ int times(int* out, int value) { *out = 3 * value; return 0; }\n')
    times = cuda.declare_device("times", int32(int32), link=str(place))

    def calls(x, y):
        held = cuda.shared.array(128, int32)
        held[cuda.threadIdx.x] = x[cuda.grid(1)]
        cuda.syncthreads()
        y[cuda.grid(1)] = times(held[127 - cuda.threadIdx.x])

    return cuda.jit(calls)
