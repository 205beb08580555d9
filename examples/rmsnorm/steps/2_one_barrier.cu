// RMSNorm forward, step 2: every warp adds the warps' sums itself, so that nobody waits for warp 0.
// In, out, launch and sizes are those of step 1.
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

constexpr unsigned kMaxWarps = 32;

template <typename T, bool kTrace>
__global__ void rmsnorm_fwd(const T* x, const T* weight, T* y, unsigned hidden, float eps) {
  warplens::Recorder<rmsnorm, kTrace> rec;
  rec.phase(rmsnorm::load_sumsq);
  __shared__ float partial[kMaxWarps];
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned warps = blockDim.x / kWarpSize;
  const unsigned column = threadIdx.x * kVector;
  const size_t first = static_cast<size_t>(blockIdx.x) * hidden + column;
  const bool in_row = column < hidden;  // the last warp may reach past the row

  uint4 values = {};
  uint4 gains = {};
  if (in_row) {
    values = *reinterpret_cast<const uint4*>(x + first);
    gains = *reinterpret_cast<const uint4*>(weight + column);
  }
  float sum = sum_of_squares<T>(values);

  rec.phase(rmsnorm::warp_reduce);
  sum = warp_sum(sum);

  rec.phase(rmsnorm::block_reduce);
  if (lane == 0) partial[warp] = sum;

  rec.wait(rmsnorm::barrier);
  __syncthreads();

  rec.phase(rmsnorm::cross_reduce);
  const float total = warp_sum(lane < warps ? partial[lane] : 0.0f);

  rec.phase(rmsnorm::normalize);
  const uint4 result = scaled<T>(values, gains, row_scale(total, hidden, eps));

  rec.phase(rmsnorm::store);
  if (in_row) __stcs(reinterpret_cast<uint4*>(y + first), result);  // streaming: y is not read here again
}
