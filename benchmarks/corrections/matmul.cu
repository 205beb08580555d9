// C = A B in tiles of 64 x 64 through shared memory, marked: a loop over k with two barriers a step.
// In: A (m x k) and B (k x n), row-major, m and n multiples of 64, k of 16. Out: C (m x n).
// Launch: grid = (n / 64, m / 64), block = 256.
#include <warplens/warplens.cuh>

#define MATMUL_SITES(X)                    \
  X(begin, "begin", phase, "")             \
  X(load_tile, "load_tile", phase, "")     \
  X(filled, "filled", wait, "tile full")   \
  X(multiply, "multiply", phase, "")       \
  X(emptied, "emptied", wait, "tile free") \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(matmul, MATMUL_SITES);

constexpr unsigned kTile = 64, kDepth = 16, kOwn = 4;

template <bool kTrace>
__global__ void matmul_tiled(const float* a, const float* b, float* c, unsigned n, unsigned k) {
  warplens::Recorder<matmul, kTrace> rec;
  rec.phase(matmul::begin);
  __shared__ float tile_a[kDepth][kTile], tile_b[kDepth][kTile];
  const unsigned row = threadIdx.x / 16 * kOwn, column = threadIdx.x % 16 * kOwn;
  float sums[kOwn][kOwn] = {};
#pragma unroll 1
  for (unsigned step = 0; step < k; step += kDepth) {
    rec.phase(matmul::load_tile);
    for (unsigned i = threadIdx.x; i < kTile * kDepth; i += 256) {
      tile_a[i % kDepth][i / kDepth] = a[(blockIdx.y * kTile + i / kDepth) * k + step + i % kDepth];
      tile_b[i / kTile][i % kTile] = b[(step + i / kTile) * n + blockIdx.x * kTile + i % kTile];
    }
    rec.wait(matmul::filled);
    __syncthreads();
    rec.phase(matmul::multiply);
#pragma unroll
    for (unsigned depth = 0; depth < kDepth; ++depth) {
#pragma unroll
      for (unsigned i = 0; i < kOwn; ++i) {
#pragma unroll
        for (unsigned j = 0; j < kOwn; ++j) sums[i][j] += tile_a[depth][row + i] * tile_b[depth][column + j];
      }
    }
    rec.wait(matmul::emptied);
    __syncthreads();
  }
  rec.phase(matmul::store);
  for (unsigned i = 0; i < kOwn; ++i) {
    for (unsigned j = 0; j < kOwn; ++j) {
      c[(blockIdx.y * kTile + row + i) * n + blockIdx.x * kTile + column + j] = sums[i][j];
    }
  }
}
