// RMSNorm forward, step 9: y is stored from registers; no barrier and no copy between a result and its way out.
// In, out, launch and sizes are those of step 7.
#include <warplens/warplens.cuh>

#include "bulk.cuh"
#include "vectors.cuh"

#define RMSNORM_SITES(X)                       \
  X(load, "load", wait, "bulk copy")           \
  X(sumsq, "sumsq", phase, "")                 \
  X(barrier, "barrier", wait, "__syncthreads") \
  X(cross_reduce, "cross_reduce", phase, "")   \
  X(normalize_store, "normalize_store", phase, "")
WARPLENS_SITES_FROM(rmsnorm, RMSNORM_SITES);

constexpr unsigned kMaxWarps = 32;
constexpr unsigned kVectors = 2;         // of one thread, a block's width apart
constexpr size_t kAheadBytes = 8 << 20;  // of x: rows that are on the SMs of an H200 at once, 64 kB each

extern __shared__ __align__(128) uint4 row[];

template <typename T, bool kTrace>
__global__ void rmsnorm_fwd(const T* x, const T* weight, T* y, unsigned hidden, float eps) {
  warplens::Recorder<rmsnorm, kTrace> rec;
  rec.wait(rmsnorm::load);
  __shared__ float partial[kMaxWarps];
  __shared__ Arrival arrival;
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned warps = blockDim.x / kWarpSize;
  const unsigned vectors = hidden / kVector;
  const unsigned bytes = hidden * sizeof(T);
  const size_t first = static_cast<size_t>(blockIdx.x) * hidden;

  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x == 0) {
    init(arrival);
    if (first * sizeof(T) < kAheadBytes) prefetch(x + first, bytes);
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (threadIdx.x == 0) bulk_load(row, x + first, bytes, arrival);
  uint4 gains[kVectors];
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned at = i * blockDim.x + threadIdx.x;
    if (at < vectors) gains[i] = reinterpret_cast<const uint4*>(weight)[at];
  }
  __syncthreads();
  await(arrival, 0);

  rec.phase(rmsnorm::sumsq);
  float sum = 0.0f;
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned at = i * blockDim.x + threadIdx.x;
    if (at < vectors) sum += sum_of_squares<T>(row[at]);
  }
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;

  rec.wait(rmsnorm::barrier);
  __syncthreads();

  rec.phase(rmsnorm::cross_reduce);
  const float total = warp_sum(lane < warps ? partial[lane] : 0.0f);

  rec.phase(rmsnorm::normalize_store);
  const float scale = row_scale(total, hidden, eps);
  uint4* target = reinterpret_cast<uint4*>(y + first);
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned at = i * blockDim.x + threadIdx.x;
    if (at < vectors) target[at] = scaled<T>(row[at], gains[i], scale);
  }
}
