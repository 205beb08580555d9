"""A transpose by Numba, through tiles of shared memory, on two streams.

    warplens record examples/numba/transpose.py

Prints a checksum of the results: the same with and without `warplens record`.
"""

import hashlib

import numpy
from numba import cuda, float32

TILE = 32
WIDTH = TILE + 1  # so that no column of a tile is of one bank
ROWS = 8


@cuda.jit
def transpose(a, b):
    tile = cuda.shared.array((TILE, WIDTH), float32)
    x = cuda.blockIdx.x * TILE + cuda.threadIdx.x
    y = cuda.blockIdx.y * TILE + cuda.threadIdx.y
    for i in range(0, TILE, ROWS):
        tile[cuda.threadIdx.y + i, cuda.threadIdx.x] = a[y + i, x]
    cuda.syncthreads()
    x = cuda.blockIdx.y * TILE + cuda.threadIdx.x
    y = cuda.blockIdx.x * TILE + cuda.threadIdx.y
    for i in range(0, TILE, ROWS):
        b[y + i, x] = tile[cuda.threadIdx.x, cuda.threadIdx.y + i]


def main() -> None:
    n = 1024
    streams = [cuda.stream() for _ in range(2)]
    matrices = [numpy.random.default_rng(seed).standard_normal((n, n), dtype=numpy.float32) for seed in range(2)]
    turned = [cuda.device_array((n, n), numpy.float32) for _ in streams]
    on_gpu = [cuda.to_device(own) for own in matrices]
    cuda.synchronize()
    for _ in range(2):
        for stream, a, b in zip(streams, on_gpu, turned, strict=True):
            transpose[(n // TILE, n // TILE), (TILE, ROWS), stream](a, b)
    cuda.synchronize()
    results = [own.copy_to_host() for own in turned]
    for matrix, result in zip(matrices, results, strict=True):
        assert (result == matrix.T).all()
    print(hashlib.sha256(b"".join(own.tobytes() for own in results)).hexdigest())


if __name__ == "__main__":
    main()
