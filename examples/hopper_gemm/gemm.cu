// A matrix product as CUTLASS writes it for Hopper: one warpgroup loads tiles by TMA, two multiply by wgmma, mbarriers
// between them, registers handed from the one to the others. It knows nothing of warplens.
//
//   warplens nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a gemm.cu -o gemm      (or nvcc, as ever)
//   warplens record -o gemm.wlens --launch-count 3 ./gemm 20
//
// C = A B^T, bfloat16 in, float out, as often as the argument says. Prints a checksum of C and how many numbers in it
// are none that a plain kernel makes; on stderr the time of a launch.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                        \
  do {                                                                                     \
    const cudaError_t status = (call);                                                     \
    if (status != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)

namespace {

constexpr int kM = 2048, kN = 2048, kK = 4096;
constexpr int kTileM = 128, kTileN = 128, kTileK = 64, kStages = 4;
constexpr int kTileBytes = (kTileM + kTileN) * kTileK * 2;
constexpr int kSharedBytes = kStages * kTileBytes + 1024;  // tiles begin at multiples of 1024 bytes

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void init(std::uint64_t* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count));
}

__device__ __forceinline__ void expect(std::uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void wait(std::uint64_t* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void load(void* to, const CUtensorMap* map, std::uint64_t* barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}

// K-major tiles of 64 bfloat16 a row, in the swizzle of 128 bytes.
__device__ __forceinline__ std::uint64_t describe(const void* tile) {
  const std::uint64_t start = (shared_address(tile) & 0x3ffff) >> 4;
  return start | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Eight of the 64 sums of a thread.
#define SUMS(c, i)                                                                                            \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])

__device__ __forceinline__ void multiply(float (&c)[64], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;\n"
      : SUMS(c, 0), SUMS(c, 8), SUMS(c, 16), SUMS(c, 24), SUMS(c, 32), SUMS(c, 40), SUMS(c, 48), SUMS(c, 56)
      : "l"(a), "l"(b));
}

struct Tile {
  __nv_bfloat16 a[kTileM * kTileK], b[kTileN * kTileK];
};

__device__ __forceinline__ void produce(const CUtensorMap* a, const CUtensorMap* b, Tile* tiles, std::uint64_t* full,
                                        std::uint64_t* empty) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int k = 0; k < kK / kTileK; ++k) {
    const int stage = k % kStages;
    wait(&empty[stage], (k / kStages & 1) ^ 1);
    expect(&full[stage], kTileBytes);
    load(tiles[stage].a, a, &full[stage], k * kTileK, blockIdx.y * kTileM);
    load(tiles[stage].b, b, &full[stage], k * kTileK, blockIdx.x * kTileN);
  }
}

__device__ __forceinline__ void consume(float* c, Tile* tiles, std::uint64_t* full, std::uint64_t* empty) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int half = threadIdx.x / 128 - 1, thread = threadIdx.x % 128;
  float sums[64] = {};
#pragma unroll 1
  for (int k = 0; k < kK / kTileK; ++k) {
    const int stage = k % kStages;
    wait(&full[stage], k / kStages & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int step = 0; step < kTileK / 16; ++step) {
      multiply(sums, describe(tiles[stage].a + half * 64 * kTileK) + 2 * step, describe(tiles[stage].b) + 2 * step);
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (thread == 0) arrive(&empty[stage]);
  }
  const int row = blockIdx.y * kTileM + half * 64 + thread / 32 * 16 + thread % 32 / 4;
  const int column = blockIdx.x * kTileN + thread % 4 * 2;
  for (int i = 0; i < 64; i += 4) {
    float* at = c + static_cast<std::size_t>(row) * kN + column + i * 2;
    *reinterpret_cast<float2*>(at) = make_float2(sums[i], sums[i + 1]);
    *reinterpret_cast<float2*>(at + 8 * kN) = make_float2(sums[i + 2], sums[i + 3]);
  }
}

__global__ void __launch_bounds__(384, 1)
    gemm(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c) {
  extern __shared__ unsigned char memory[];
  __shared__ std::uint64_t full[kStages], empty[kStages];
  Tile* tiles = reinterpret_cast<Tile*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) & ~std::uintptr_t{1023});
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) init(&full[stage], 1), init(&empty[stage], 2);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    produce(&a, &b, tiles, full, empty);
  } else {
    consume(c, tiles, full, empty);
  }
}

__global__ void plain(const __nv_bfloat16* a, const __nv_bfloat16* b, const float* c, unsigned* wrong) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  float sum = 0;
  for (int k = 0; k < kK; ++k) sum += __bfloat162float(a[row * kK + k]) * __bfloat162float(b[column * kK + k]);
  if (sum != c[row * kN + column]) atomicAdd(wrong, 1u);
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

CUtensorMap tensor_map(Encode encode, void* data, int rows, int tile_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {kK, static_cast<cuuint64_t>(rows)}, strides[] = {kK * 2};
  const cuuint32_t box[] = {kTileK, static_cast<cuuint32_t>(tile_rows)}, steps[] = {1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) std::exit(1);
  return map;
}

// Whole numbers from -2 to 2: their products are exact in float, in whatever order they are added.
__nv_bfloat16* numbers(std::size_t count, unsigned seed) {
  std::vector<__nv_bfloat16> host(count);
  for (auto& value : host) {
    seed = seed * 1664525u + 1013904223u;
    value = __float2bfloat16(static_cast<float>(static_cast<int>(seed >> 24) % 5 - 2));
  }
  __nv_bfloat16* device = nullptr;
  CHECK(cudaMalloc(&device, count * sizeof *device));
  CHECK(cudaMemcpy(device, host.data(), count * sizeof *device, cudaMemcpyHostToDevice));
  return device;
}

}  // namespace

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 8;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
  const auto encode = reinterpret_cast<Encode>(found);
  __nv_bfloat16 *a = numbers(std::size_t{kM} * kK, 1), *b = numbers(std::size_t{kN} * kK, 2);
  std::vector<float> host(std::size_t{kM} * kN);
  float* c = nullptr;
  unsigned *wrong = nullptr, count = 0;
  CHECK(cudaMalloc(&c, host.size() * sizeof *c));
  CHECK(cudaMalloc(&wrong, sizeof *wrong));
  CHECK(cudaMemset(wrong, 0, sizeof *wrong));
  CHECK(cudaFuncSetAttribute(gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const CUtensorMap map_a = tensor_map(encode, a, kM, kTileM), map_b = tensor_map(encode, b, kN, kTileN);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = -1; i < launches; ++i) {  // one more, so that the code is on the GPU before times are taken
    if (i == 0) CHECK(cudaEventRecord(begin));
    gemm<<<dim3(kN / kTileN, kM / kTileM), 384, kSharedBytes>>>(map_a, map_b, c);
  }
  CHECK(cudaEventRecord(end));
  plain<<<dim3(kN / 256, kM), 256>>>(a, b, c, wrong);
  CHECK(cudaMemcpy(host.data(), c, host.size() * sizeof *c, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
  std::uint64_t checksum = 0xcbf29ce484222325ull;
  for (const float value : host) {
    std::uint32_t bits;
    static_assert(sizeof bits == sizeof value, "");
    __builtin_memcpy(&bits, &value, sizeof bits);
    checksum = (checksum ^ bits) * 0x100000001b3ull;
  }
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
  std::fprintf(stderr, "%.0f ns a launch\n", milliseconds * 1e6 / launches);
  std::printf("%016llx %u wrong\n", static_cast<unsigned long long>(checksum), count);
  return count == 0 ? 0 : 1;
}
