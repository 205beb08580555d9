// A softmax over rows, one block a row, as anybody writes it. It knows nothing of warplens.
#include <cuda_runtime.h>

namespace {

constexpr int kThreads = 256;

__device__ float reduce(float value, float* scratch, bool largest) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, step);
    value = largest ? fmaxf(value, other) : value + other;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < kThreads / 32; ++warp)
    value = largest ? fmaxf(value, scratch[warp]) : value + scratch[warp];
  __syncthreads();
  return value;
}

__global__ void __launch_bounds__(kThreads) softmax_rows(const float* x, float* y, int columns) {
  __shared__ float scratch[kThreads / 32];
  x += static_cast<size_t>(blockIdx.x) * columns;
  y += static_cast<size_t>(blockIdx.x) * columns;
  float largest = -1e30f, sum = 0;
  for (int i = threadIdx.x; i < columns; i += kThreads) largest = fmaxf(largest, x[i]);
  largest = reduce(largest, scratch, true);
  for (int i = threadIdx.x; i < columns; i += kThreads) sum += __expf(x[i] - largest);
  sum = reduce(sum, scratch, false);
  for (int i = threadIdx.x; i < columns; i += kThreads) y[i] = __expf(x[i] - largest) / sum;
}

}  // namespace

void launch_softmax(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  softmax_rows<<<rows, kThreads, 0, stream>>>(x, y, columns);
}
