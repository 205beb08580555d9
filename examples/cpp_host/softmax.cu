// A softmax of rows, one a block, with marks: the kernel of the example. See README.md.
#include <cmath>
#include <warplens/host.hpp>

#include "softmax.h"

WARPLENS_SITES(softmax, load_max, wait_max, exponentials, wait_sum, store);

namespace {

__device__ float warp_max(float v) {
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}
__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

}  // namespace

// Blocks of 256 threads; columns up to 4096.
template <bool kTrace>
__global__ void __launch_bounds__(256, 8) softmax_rows(const float* in, float* out, int columns) {
  warplens::Recorder<softmax, kTrace> rec;
  rec.phase(softmax::load_max);
  __shared__ float partial[2][8];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* row = in + size_t(blockIdx.x) * columns;
  float most = -INFINITY, sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
  most = warp_max(most);
  if (lane == 0) partial[0][warp] = most;
  rec.wait(softmax::wait_max);
  __syncthreads();
  rec.phase(softmax::exponentials);
  for (int w = 0; w < 8; ++w) most = fmaxf(most, partial[0][w]);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - most);
  sum = warp_sum(sum);
  if (lane == 0) partial[1][warp] = sum;
  rec.wait(softmax::wait_sum);
  __syncthreads();
  rec.phase(softmax::store);
  sum = 0.0f;
  for (int w = 0; w < 8; ++w) sum += partial[1][w];
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    out[size_t(blockIdx.x) * columns + i] = expf(row[i] - most) / sum;
  }
}

WARPLENS_PAIR(softmax_rows<true>, softmax_rows<false>);

void softmax_forward(const float* in, float* out, int rows, int columns, cudaStream_t stream) {
  softmax_rows<false><<<rows, 256, 0, stream>>>(in, out, columns);
}
