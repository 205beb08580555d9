"""Sums of squares by Numba: one row a block, a reduction through shared memory, and a device function.

    warplens record examples/numba/reduction.py

Prints a checksum of the results: the same with and without `warplens record`.
"""

import hashlib

import numpy
from numba import cuda, float32, void

THREADS = 256


@cuda.jit(device=True)
def square(value):
    return value * value


@cuda.jit
def sums(x, out):
    partial = cuda.shared.array(THREADS, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0)
    for column in range(thread, x.shape[1], THREADS):
        total += square(x[row, column])
    partial[thread] = total
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if thread < half:
            partial[thread] += partial[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        out[row] = partial[0]


@cuda.jit(void(float32[:, ::1], float32[::1]))
def scale(x, norms):
    row = cuda.blockIdx.x
    norm = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        norm[0] = norms[row] / x.shape[1]
    cuda.syncthreads()
    for column in range(cuda.threadIdx.x, x.shape[1], THREADS):
        x[row, column] /= norm[0]


def main() -> None:
    rows, width = 1024, 4096
    x = numpy.random.default_rng(0).standard_normal((rows, width), dtype=numpy.float32)
    on_gpu, out = cuda.to_device(x), cuda.device_array(rows, numpy.float32)
    for _ in range(5):
        sums[rows, THREADS](on_gpu, out)
    scale[rows, THREADS](on_gpu, out)
    norms, scaled = out.copy_to_host(), on_gpu.copy_to_host()
    expected = (x.astype(numpy.float64) ** 2).sum(axis=1)
    assert numpy.allclose(norms, expected, rtol=1e-4)
    assert numpy.allclose(scaled, x / (expected / width)[:, None], rtol=1e-3, atol=1e-6)
    print(hashlib.sha256(norms.tobytes() + scaled.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
