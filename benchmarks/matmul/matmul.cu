// C = A B^T in bfloat16 on tensor cores (mma.sync), through shared memory that three stages of cp.async fill; marked
// with four marks a step of k. Sums are kept in float.
// In: a (m x k) and b (n x k), row-major, aligned to 16 bytes; m and n multiples of 128, k of 64, 128 at least.
// Out: c (m x n). Launch: grid = (n / 128, m / 128), block = 256, kSharedBytes of dynamic shared memory.
#include <cuda_bf16.h>

#include <warplens/warplens.cuh>

#define MATMUL_SITES(X)                        \
  X(begin, "begin", phase, "")                 \
  X(stage, "stage", phase, "")                 \
  X(barrier, "barrier", wait, "__syncthreads") \
  X(issue, "issue", phase, "")                 \
  X(multiply, "multiply", phase, "")           \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(matmul, MATMUL_SITES);

constexpr unsigned kTile = 128, kDepth = 64, kThreads = 256, kStages = 3;
constexpr unsigned kRowBytes = kDepth * 2, kChunk = 16;  // a chunk is what one cp.async copies: 8 values
constexpr unsigned kTileBytes = kTile * kRowBytes, kStageBytes = 2 * kTileBytes;
constexpr unsigned kSharedBytes = kStages * kStageBytes;
static_assert(kSharedBytes <= 112u * 1024u, "an SM of sm_90 holds two blocks");

// Where a chunk of a tile's row lies: turned by the row, so that the eight rows that ldmatrix reads together lie in
// different banks.
__device__ __forceinline__ unsigned place(unsigned row, unsigned chunk) {
  return row * kRowBytes + (chunk ^ (row % 8u)) * kChunk;
}

__device__ __forceinline__ void copy_async(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&words)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Asks for the tiles of one step: a thread copies four chunks of each, 32 rows apart.
__device__ __forceinline__ void issue_stage(unsigned stage, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                            unsigned k) {
  const unsigned row = threadIdx.x / 8u, chunk = threadIdx.x % 8u;
#pragma unroll
  for (unsigned i = 0; i < kTile; i += kThreads / 8u) {
    copy_async(stage + place(row + i, chunk), a + static_cast<size_t>(row + i) * k + chunk * 8u);
    copy_async(stage + kTileBytes + place(row + i, chunk), b + static_cast<size_t>(row + i) * k + chunk * 8u);
  }
}

// 64 x 32 of the block's tile, by one warp, over one stage.
__device__ __forceinline__ void multiply_stage(float (&sums)[4][4][4], unsigned stage, unsigned row, unsigned column) {
  const unsigned lane = threadIdx.x % 32u;
#pragma unroll
  for (unsigned step = 0; step < kDepth / 16u; ++step) {
    unsigned a[4][4], b[2][4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      load_matrices(a[i], stage + place(row + 16u * i + lane % 16u, 2u * step + lane / 16u));
    }
#pragma unroll
    for (unsigned j = 0; j < 2; ++j) {
      const unsigned own = column + 16u * j + lane / 16u * 8u + lane % 8u;
      load_matrices(b[j], stage + kTileBytes + place(own, 2u * step + lane / 8u % 2u));
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <bool kTrace>
__global__ void __launch_bounds__(kThreads, 2)
    matmul_pipelined(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* c, unsigned n, unsigned k) {
  warplens::Recorder<matmul, kTrace> rec;
  rec.phase(matmul::begin);
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const unsigned warp = threadIdx.x / 32u, lane = threadIdx.x % 32u;
  const unsigned row = warp / 4u * 64u, column = warp % 4u * 32u;
  const unsigned steps = k / kDepth;
  a += static_cast<size_t>(blockIdx.y) * kTile * k;
  b += static_cast<size_t>(blockIdx.x) * kTile * k;
#pragma unroll
  for (unsigned i = 0; i < kStages - 1u; ++i) {
    issue_stage(shared + i * kStageBytes, a, b, k);
    asm volatile("cp.async.commit_group;" ::: "memory");
    a += kDepth;
    b += kDepth;
  }
  float sums[4][4][4] = {};
  unsigned full = shared, empty = shared + (kStages - 1u) * kStageBytes;
#pragma unroll 1
  for (unsigned step = 0; step < steps; ++step) {
    rec.iteration(step);  // its marks share one question
    rec.phase(matmul::stage);
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2u) : "memory");
    rec.wait(matmul::barrier);
    __syncthreads();  // all chunks of this stage are there; nobody reads the one before any more
    rec.phase(matmul::issue);
    if (step + kStages - 1u < steps) issue_stage(empty, a, b, k);
    asm volatile("cp.async.commit_group;" ::: "memory");
    a += kDepth;
    b += kDepth;
    rec.phase(matmul::multiply);
    multiply_stage(sums, full, row, column);
    empty = full;
    full = full == shared + (kStages - 1u) * kStageBytes ? shared : full + kStageBytes;
  }
  rec.phase(matmul::store);
  c += (static_cast<size_t>(blockIdx.y) * kTile + row + lane / 4u) * n + blockIdx.x * kTile + column + lane % 4u * 2u;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      __nv_bfloat16* own = c + static_cast<size_t>(16u * i) * n + 8u * j;
      *reinterpret_cast<__nv_bfloat162*>(own) = __floats2bfloat162_rn(sums[i][j][0], sums[i][j][1]);
      *reinterpret_cast<__nv_bfloat162*>(own + 8u * static_cast<size_t>(n)) =
          __floats2bfloat162_rn(sums[i][j][2], sums[i][j][3]);
    }
  }
}
