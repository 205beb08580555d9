// RMSNorm forward, step 4, which did not last: blocks stay, and bulk copies fetch their next rows ahead.
// In: x, `rows` rows of `hidden` values; weight, `hidden` values. Out: y, of x's shape.
// Launch: grid = as many blocks as the GPU holds, or rows; block = hidden / 32 threads, rounded up to whole warps;
// dynamic shared memory for kStages rows.
// Takes: hidden a multiple of 8 from 8 to 16384; pointers aligned to 16 bytes; compute capability 9.0 or newer.
#include <warplens/warplens.cuh>

#include "bulk.cuh"
#include "vectors.cuh"

#define RMSNORM_SITES(X)                       \
  X(load, "load", wait, "bulk copy")           \
  X(sumsq, "sumsq", phase, "")                 \
  X(barrier, "barrier", wait, "__syncthreads") \
  X(cross_reduce, "cross_reduce", phase, "")   \
  X(normalize, "normalize", phase, "")         \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(rmsnorm, RMSNORM_SITES);

constexpr unsigned kMaxWarps = 16;
constexpr unsigned kVectors = 4;  // of one thread, a block's width apart
constexpr unsigned kStages = 5;

extern __shared__ __align__(128) uint4 ring[];  // so are the rows in it: their stride is padded

template <typename T, bool kTrace>
__global__ void rmsnorm_fwd(const T* x, const T* weight, T* y, unsigned rows, unsigned hidden, float eps) {
  warplens::Recorder<rmsnorm, kTrace> rec;
  __shared__ float partial[2][kMaxWarps];  // a warp may be a row ahead of the others
  __shared__ Arrival arrivals[kStages];
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned warps = blockDim.x / kWarpSize;
  const unsigned vectors = hidden / kVector;
  const unsigned stride = (vectors + 7) / 8 * 8;
  const auto fetch = [&](unsigned row, unsigned stage) {
    if (row >= rows) return;
    bulk_load(ring + stage * stride, x + static_cast<size_t>(row) * hidden, hidden * sizeof(T), arrivals[stage]);
  };

  if (threadIdx.x == 0) {
    for (Arrival& arrival : arrivals) init(arrival);
    for (unsigned stage = 0; stage < kStages; ++stage) fetch(blockIdx.x + stage * gridDim.x, stage);
  }
  uint4 gains[kVectors];
#pragma unroll
  for (unsigned i = 0; i < kVectors; ++i) {
    const unsigned at = i * blockDim.x + threadIdx.x;
    if (at < vectors) gains[i] = reinterpret_cast<const uint4*>(weight)[at];
  }
  __syncthreads();

  unsigned stage = 0;
  unsigned parity = 0;
  unsigned half = 0;
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    rec.wait(rmsnorm::load);
    await(arrivals[stage], parity);

    rec.phase(rmsnorm::sumsq);
    uint4 values[kVectors];
    float sum = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < kVectors; ++i) {
      const unsigned at = i * blockDim.x + threadIdx.x;
      if (at < vectors) {
        values[i] = ring[stage * stride + at];
        sum += sum_of_squares<T>(values[i]);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[half][warp] = sum;

    rec.wait(rmsnorm::barrier);
    __syncthreads();

    rec.phase(rmsnorm::cross_reduce);
    if (threadIdx.x == 0) fetch(row + kStages * gridDim.x, stage);  // all have read the row that lay there
    const float total = warp_sum(lane < warps ? partial[half][lane] : 0.0f);

    rec.phase(rmsnorm::normalize);
    const float scale = row_scale(total, hidden, eps);
#pragma unroll
    for (unsigned i = 0; i < kVectors; ++i) values[i] = scaled<T>(values[i], gains[i], scale);

    rec.phase(rmsnorm::store);
    uint4* target = reinterpret_cast<uint4*>(y + static_cast<size_t>(row) * hidden);
#pragma unroll
    for (unsigned i = 0; i < kVectors; ++i) {
      const unsigned at = i * blockDim.x + threadIdx.x;
      if (at < vectors) __stcs(target + at, values[i]);
    }
    half ^= 1;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (stage == 0) parity ^= 1;
  }
}
