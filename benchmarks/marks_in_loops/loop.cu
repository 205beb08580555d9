// A loop of 64 dependent FMAs with one mark a turn: what a mark adds to a turn, in cycles.
// In: turns, a factor. Out: per warp the cycles of all turns; a sum, so that nothing falls away.
#include <warplens/warplens.cuh>

WARPLENS_SITES(loop, begin, turn);

#ifndef MARK
#define MARK rec.phase(loop::turn)
#endif
#ifndef UNROLL
#define UNROLL 1
#endif

template <bool kTrace>
__global__ void run(long long* cycles, float* sums, int turns, float factor) {
  warplens::Recorder<loop, kTrace> rec;
  float sum = threadIdx.x;
  rec.phase(loop::begin);
  __syncthreads();
  const long long begin = clock64();
#pragma unroll UNROLL
  for (int i = 0; i < turns; ++i) {
    MARK;
#pragma unroll
    for (int j = 0; j < 64; ++j) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(sum) : "f"(factor));
  }
  const long long end = clock64();
  const unsigned warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) cycles[warp] = end - begin;
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
