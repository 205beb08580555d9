"""A transpose and a tiled matmul in CUDA C++ by CuPy's RawModule, the matmul for two sizes of tiles.

    warplens record examples/cupy/tiles.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import cupy
import numpy

CODE = r"""
__constant__ float scale[1];

extern "C" __global__ void transpose(const float* a, float* b, int n) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8) tile[threadIdx.y + i][threadIdx.x] = a[(y + i) * n + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8) b[(y + i) * n + x] = tile[threadIdx.x][threadIdx.y + i];
}

template <int kTile>
__global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float left[kTile][kTile], right[kTile][kTile];
  int column = blockIdx.x * kTile + threadIdx.x, row = blockIdx.y * kTile + threadIdx.y;
  float sum = 0.f;
  for (int k = 0; k < n; k += kTile) {
    left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum * scale[0];
}
"""
NAMES = ("matmul<16>", "matmul<32>")


def main() -> None:
    n = 512
    module = cupy.RawModule(code=CODE, options=("-std=c++17",), name_expressions=("transpose", *NAMES))
    cupy.ndarray((1,), cupy.float32, module.get_global("scale")).set(numpy.array([0.5], numpy.float32))
    a = numpy.random.default_rng(0).standard_normal((n, n), dtype=numpy.float32)
    on_gpu, turned = cupy.asarray(a), cupy.empty((n, n), cupy.float32)
    products = [cupy.empty((n, n), cupy.float32) for _ in NAMES]
    transpose, small, large = (module.get_function(name) for name in ("transpose", *NAMES))
    for _ in range(2):
        transpose((n // 32, n // 32), (32, 8), (on_gpu, turned, numpy.int32(n)))
        small((n // 16, n // 16), (16, 16), (on_gpu, turned, products[0], numpy.int32(n)))
        large((n // 32, n // 32), (32, 32), (on_gpu, turned, products[1], numpy.int32(n)))
    for product in products:
        assert numpy.allclose(cupy.asnumpy(product), 0.5 * a @ a.T, rtol=1e-3, atol=1e-3)
    print(hashlib.sha256(b"".join(cupy.asnumpy(own).tobytes() for own in (turned, *products))).hexdigest())


if __name__ == "__main__":
    main()
