// Sums of powers over tiles that arrive by cp.async while the one before is worked on, marked: loads hide behind FMAs.
// In: x, tiles x 256 vectors of 128 bits a block. Out: y, a value a thread.
// Launch: grid = any, block = 256.
#include <warplens/warplens.cuh>

#define PIPELINE_SITES(X)               \
  X(begin, "begin", phase, "")          \
  X(ask, "ask", phase, "")              \
  X(arrived, "arrived", wait, "tile")   \
  X(compute, "compute", phase, "")      \
  X(release, "release", wait, "buffer") \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(pipeline, PIPELINE_SITES);

constexpr unsigned kThreads = 256, kRounds = 24;

// One vector of 16 bytes, asynchronously; each call is a group of its own.
__device__ __forceinline__ void copy_async(float4* target, const float4* source, bool wanted) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(target));
  if (wanted) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(source) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <bool kTrace>
__global__ void pipeline_sums(const float4* x, float* y, unsigned tiles) {
  warplens::Recorder<pipeline, kTrace> rec;
  rec.phase(pipeline::begin);
  __shared__ float4 buffers[2][kThreads];
  const float4* own = x + static_cast<size_t>(blockIdx.x) * tiles * kThreads + threadIdx.x;
  float sum = 0.0f;
  copy_async(&buffers[0][threadIdx.x], own, true);
#pragma unroll 1
  for (unsigned tile = 0; tile < tiles; ++tile) {
    rec.phase(pipeline::ask);
    copy_async(&buffers[(tile + 1) % 2][threadIdx.x], own + (tile + 1) * kThreads, tile + 1 < tiles);
    rec.wait(pipeline::arrived);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    rec.phase(pipeline::compute);
    const float4 value = buffers[tile % 2][threadIdx.x ^ 32u];
    float power = 1.0f;
#pragma unroll 4
    for (unsigned round = 0; round < kRounds; ++round) {
      power = power * value.x + value.y;
      sum += power * value.z + value.w;
    }
    rec.wait(pipeline::release);
    __syncthreads();
  }
  rec.phase(pipeline::store);
  y[blockIdx.x * kThreads + threadIdx.x] = sum;
}
