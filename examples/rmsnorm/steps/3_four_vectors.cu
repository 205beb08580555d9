// RMSNorm forward, step 3: four vectors a thread, so that a fifth of the warps has more bytes under way.
// In: x, rows of `hidden` values; weight, `hidden` values. Out: y, of x's shape. One block a row.
// Launch: grid = rows; block = hidden / 32 threads, rounded up to whole warps.
// Takes: hidden a multiple of 8 from 8 to 16384; pointers aligned to 16 bytes. Sums are kept in float.
#include <warplens/warplens.cuh>

#include "vectors.cuh"

#define RMSNORM_SITES(X)                       \
  X(load_sumsq, "load_sumsq", phase, "")       \
  X(warp_reduce, "warp_reduce", phase, "")     \
  X(block_reduce, "block_reduce", phase, "")   \
  X(barrier, "barrier", wait, "__syncthreads") \
  X(cross_reduce, "cross_reduce", phase, "")   \
  X(normalize, "normalize", phase, "")         \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(rmsnorm, RMSNORM_SITES);

constexpr unsigned kMaxWarps = 16;
constexpr unsigned kVectors = 4;  // of one thread, a block's width apart, so that each load of a warp is 512 bytes

template <typename T, bool kTrace>
__global__ void rmsnorm_fwd(const T* x, const T* weight, T* y, unsigned hidden, float eps) {
  warplens::Recorder<rmsnorm, kTrace> rec;
  rec.phase(rmsnorm::load_sumsq);
  __shared__ float partial[kMaxWarps];
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned warps = blockDim.x / kWarpSize;
  const size_t row = static_cast<size_t>(blockIdx.x) * hidden;

  uint4 values[kVectors] = {};
  uint4 gains[kVectors] = {};
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned column = (i * blockDim.x + threadIdx.x) * kVector;
    if (column < hidden) values[i] = *reinterpret_cast<const uint4*>(x + row + column);
  }
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned column = (i * blockDim.x + threadIdx.x) * kVector;
    if (column < hidden) gains[i] = *reinterpret_cast<const uint4*>(weight + column);
  }
  float sum = 0.0f;
#pragma unroll
  for (uint4 vector : values) sum += sum_of_squares<T>(vector);

  rec.phase(rmsnorm::warp_reduce);
  sum = warp_sum(sum);

  rec.phase(rmsnorm::block_reduce);
  if (lane == 0) partial[warp] = sum;

  rec.wait(rmsnorm::barrier);
  __syncthreads();

  rec.phase(rmsnorm::cross_reduce);
  const float total = warp_sum(lane < warps ? partial[lane] : 0.0f);

  rec.phase(rmsnorm::normalize);
  const float scale = row_scale(total, hidden, eps);
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) values[i] = scaled<T>(values[i], gains[i], scale);

  rec.phase(rmsnorm::store);
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned column = (i * blockDim.x + threadIdx.x) * kVector;
    if (column < hidden) __stcs(reinterpret_cast<uint4*>(y + row + column), values[i]);
  }
}
