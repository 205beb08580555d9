"""A softmax in CUDA C++ by CuPy's RawKernel: one row a block, two reductions through shared memory.

    warplens record examples/cupy/softmax.py

Prints a checksum of the result: the same with and without `warplens record`.
"""

import hashlib

import cupy
import numpy

SOFTMAX = cupy.RawKernel(
    r"""
extern "C" __global__ void __launch_bounds__(256) softmax(const float* x, float* y, int width) {
  __shared__ float partial[256];
  const float* row = x + (size_t)blockIdx.x * width;
  float most = -1e30f;
  for (int i = threadIdx.x; i < width; i += 256) most = fmaxf(most, row[i]);
  partial[threadIdx.x] = most;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
    __syncthreads();
  }
  most = partial[0];
  __syncthreads();
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += 256) sum += expf(row[i] - most);
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  sum = partial[0];
  for (int i = threadIdx.x; i < width; i += 256) y[(size_t)blockIdx.x * width + i] = expf(row[i] - most) / sum;
}
""",
    "softmax",
)


def main() -> None:
    rows, width = 1024, 4096
    x = numpy.random.default_rng(0).standard_normal((rows, width), dtype=numpy.float32)
    on_gpu, y = cupy.asarray(x), cupy.empty((rows, width), cupy.float32)
    for _ in range(5):
        SOFTMAX((rows,), (256,), (on_gpu, y, numpy.int32(width)))
    result = cupy.asnumpy(y)
    expected = numpy.exp(x - x.max(axis=1, keepdims=True))
    assert numpy.allclose(result, expected / expected.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)
    print(hashlib.sha256(result.tobytes()).hexdigest())


if __name__ == "__main__":
    main()
