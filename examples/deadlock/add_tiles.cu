// Adds the tiles of x, four warps a block, all of one block. Hangs where `tiles` is no multiple of 4: then the last
// warps have one tile less, leave the loop a round early, and never come to the barrier that the others wait at.
#include <warplens/warplens.cuh>

#define ADD_TILES_SITES(X)                      \
  X(add, "add a tile", phase, "")               \
  X(round, "barrier of the round", wait, "1")   \
  X(done, "barrier behind the loop", wait, "2") \
  X(store, "store", phase, "")

WARPLENS_SITES_FROM(add_tiles_sites, ADD_TILES_SITES);

constexpr int kWarps = 4;

// A barrier of its own for each use: bar.sync 0 is __syncthreads().
template <int kBarrier>
__device__ void wait_for_all_warps() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kWarps * 32) : "memory");
}

// x: tiles of 32 values. y: 32 sums.
template <bool kTrace>
__global__ void add_tiles(const float* x, float* y, int tiles) {
  warplens::Recorder<add_tiles_sites, kTrace> rec;
  __shared__ float partial[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  float sum = 0.0f;
  for (int tile = warp; tile < tiles; tile += kWarps) {  // not as often in each warp
    rec.phase(add_tiles_sites::add, tile);
    sum += x[tile * 32 + lane];
    rec.wait(add_tiles_sites::round);
    wait_for_all_warps<1>();
  }
  partial[warp][lane] = sum;
  rec.wait(add_tiles_sites::done);
  wait_for_all_warps<2>();
  rec.phase(add_tiles_sites::store);
  if (warp > 0) return;
  y[lane] = partial[0][lane] + partial[1][lane] + partial[2][lane] + partial[3][lane];
}
