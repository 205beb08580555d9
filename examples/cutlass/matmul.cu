// A matrix product whose mainloop is made of CUTLASS's parts (CuTe), with marks in it. See README.md.
//   matmul [M N K]     sizes that 128, 128 and 32 divide
#include <cstdio>
#include <cstdlib>
#include <cute/tensor.hpp>
#include <vector>
#include <warplens/host.hpp>

WARPLENS_SITES(mainloop, prologue, wait_stage, issue, multiply, epilogue);

using namespace cute;

using Element = half_t;
using BlockTile = Shape<_128, _128, _32>;
constexpr int kStages = 3;
// Rows of 32 elements, turned so that ldmatrix meets no bank twice.
using SharedAtom = decltype(composition(Swizzle<2, 3, 3>{}, Layout<Shape<_8, _32>, Stride<_32, _1>>{}));
using Shared = decltype(tile_to_shape(SharedAtom{}, Shape<_128, _32, Int<kStages>>{}));
using ToShared = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, Element>{},
                                          Layout<Shape<_32, _4>, Stride<_4, _1>>{}, Layout<Shape<_1, _8>>{}));
using Mma =
    decltype(make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, cute::Tile<_32, _32, _16>{}));
using FromShared = Copy_Atom<SM75_U32x4_LDSM_N, Element>;
constexpr int kThreads = size(Mma{});
constexpr int kSharedBytes = 2 * cosize_v<Shared> * sizeof(Element);
static_assert(kThreads == size(ToShared{}) && kThreads == 128);

// c = a b^T: a is M x K, b is N x K, c is M x N, all with rows in one piece.
template <bool kTrace>
__global__ void __launch_bounds__(kThreads) matmul(const Element* a, const Element* b, float* c, int m, int n, int k) {
  warplens::Recorder<mainloop, kTrace> rec;
  rec.phase(mainloop::prologue);
  extern __shared__ __align__(128) Element shared[];
  const auto sa = make_tensor(make_smem_ptr(shared), Shared{});  // (rows, k, stage)
  const auto sb = make_tensor(make_smem_ptr(shared + cosize_v<Shared>), Shared{});
  const auto whole_a = make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(k, _1{}));
  const auto whole_b = make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(k, _1{}));
  const auto whole_c = make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(n, _1{}));
  const auto place = make_coord(blockIdx.x, blockIdx.y, _);
  const auto ga = local_tile(whole_a, BlockTile{}, place, Step<_1, X, _1>{});  // (rows, k, steps)
  const auto gb = local_tile(whole_b, BlockTile{}, place, Step<X, _1, _1>{});
  auto gc = local_tile(whole_c, BlockTile{}, place, Step<_1, _1, X>{});

  const ToShared to_shared;
  const auto its_copy = to_shared.get_slice(threadIdx.x);
  const auto from_a = its_copy.partition_S(ga);
  const auto from_b = its_copy.partition_S(gb);
  auto to_a = its_copy.partition_D(sa);
  auto to_b = its_copy.partition_D(sb);
  const int steps = size<2>(ga);
  const auto fill = [&](int step) {
    if (step < steps) {
      copy(to_shared, from_a(_, _, _, step), to_a(_, _, _, step % kStages));
      copy(to_shared, from_b(_, _, _, step), to_b(_, _, _, step % kStages));
    }
    cp_async_fence();  // also where there is nothing more: waits count groups
  };

  Mma mma;
  const auto its_mma = mma.get_slice(threadIdx.x);
  auto ra = its_mma.partition_fragment_A(sa(_, _, 0));
  auto rb = its_mma.partition_fragment_B(sb(_, _, 0));
  auto rc = its_mma.make_fragment_C(its_mma.partition_C(gc));
  clear(rc);
  const auto load_a = make_tiled_copy_A(FromShared{}, mma);
  const auto load_b = make_tiled_copy_B(FromShared{}, mma);
  const auto its_a = load_a.get_slice(threadIdx.x);
  const auto its_b = load_b.get_slice(threadIdx.x);
  const auto staged_a = its_a.partition_S(sa);
  const auto staged_b = its_b.partition_S(sb);
  auto loaded_a = its_a.retile_D(ra);
  auto loaded_b = its_b.retile_D(rb);

  for (int step = 0; step < kStages - 1; ++step) fill(step);
  for (int step = 0; step < steps; ++step) {
    rec.wait(mainloop::wait_stage);
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the stage is there for all, and the one that is filled next has been read by all
    rec.phase(mainloop::issue);
    fill(step + kStages - 1);
    rec.phase(mainloop::multiply);
    const int stage = step % kStages;
    CUTE_UNROLL
    for (int part = 0; part < size<2>(ra); ++part) {
      copy(load_a, staged_a(_, _, part, stage), loaded_a(_, _, part));
      copy(load_b, staged_b(_, _, part, stage), loaded_b(_, _, part));
      gemm(mma, ra(_, _, part), rb(_, _, part), rc);
    }
  }
  rec.phase(mainloop::epilogue);
  auto out = its_mma.partition_C(gc);
  copy(rc, out);
}
WARPLENS_PAIR(matmul<true>, matmul<false>);

// The same, one thread an element, to compare with.
__global__ void naive(const Element* a, const Element* b, float* c, int n, int k) {
  const int row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += float(a[size_t(row) * k + i]) * float(b[size_t(column) * k + i]);
  c[size_t(row) * n + column] = sum;
}

int main(int argc, char** argv) {
  const int m = argc > 3 ? std::atoi(argv[1]) : 1024, n = argc > 3 ? std::atoi(argv[2]) : 1024,
            k = argc > 3 ? std::atoi(argv[3]) : 512;
  if (m % 128 != 0 || n % 128 != 0 || k % 32 != 0) return std::fprintf(stderr, "sizes: see the top\n"), 2;
  std::vector<Element> ha(size_t(m) * k), hb(size_t(n) * k);
  for (size_t i = 0; i < ha.size(); ++i) ha[i] = Element(float(int(i * 7 % 17) - 8));  // small whole numbers: exact
  for (size_t i = 0; i < hb.size(); ++i) hb[i] = Element(float(int(i * 5 % 13) - 6));
  Element *a, *b;
  float *c, *expected;
  cudaMalloc(&a, ha.size() * sizeof(Element)), cudaMalloc(&b, hb.size() * sizeof(Element));
  cudaMalloc(&c, sizeof(float) * m * n), cudaMalloc(&expected, sizeof(float) * m * n);
  cudaMemcpy(a, ha.data(), ha.size() * sizeof(Element), cudaMemcpyHostToDevice);
  cudaMemcpy(b, hb.data(), hb.size() * sizeof(Element), cudaMemcpyHostToDevice);
  cudaFuncSetAttribute(matmul<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  for (int i = 0; i < 20; ++i) matmul<false><<<dim3(m / 128, n / 128), kThreads, kSharedBytes>>>(a, b, c, m, n, k);
  naive<<<dim3(n / 128, m), 128>>>(a, b, expected, n, k);
  std::vector<float> found(size_t(m) * n), right(found.size());
  cudaMemcpy(found.data(), c, found.size() * sizeof(float), cudaMemcpyDeviceToHost);
  cudaMemcpy(right.data(), expected, right.size() * sizeof(float), cudaMemcpyDeviceToHost);
  if (cudaGetLastError() != cudaSuccess) return std::fprintf(stderr, "CUDA failed\n"), 1;
  std::printf("%s\n", found == right ? "right" : "WRONG");
  return found == right ? 0 : 1;
}
