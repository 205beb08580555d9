// RMSNorm forward, y = x / sqrt(mean(x^2) + eps) * weight, marked with warplens: the kernel of `warplens demo`.
// After "Looking inside your kernels" (Aryan V S, 2026), which instruments this kernel in the same eight phases.
// In: x, rows of `hidden` values; weight, `hidden` values. Out: y, of x's shape. One block a row.
// Launch: grid = rows; block = hidden / 8 threads, rounded up to whole warps.
// Takes: hidden a multiple of 8 from 8 to 8192; pointers aligned to 16 bytes. Sums are kept in float.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <warplens/warplens.cuh>

#define RMSNORM_SITES(X)                           \
  X(load_sumsq, "load_sumsq", phase, "")           \
  X(warp_reduce, "warp_reduce", phase, "")         \
  X(block_reduce, "block_reduce", phase, "")       \
  X(barrier, "barrier", wait, "__syncthreads")     \
  X(cross_reduce, "cross_reduce", phase, "")       \
  X(barrier_2, "barrier_2", wait, "__syncthreads") \
  X(normalize, "normalize", phase, "")             \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(rmsnorm, RMSNORM_SITES);

constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxWarps = 32;
constexpr unsigned kVector = 8;  // values in a 128-bit vector: what one thread loads, keeps and stores

// Two neighbouring values, as they lie in one 32-bit word.
template <typename T>
struct Pair;

template <>
struct Pair<__nv_bfloat16> {
  __device__ static float2 unpack(unsigned word) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
  }
  __device__ static unsigned pack(float2 values) {
    const __nv_bfloat162 pair = __float22bfloat162_rn(values);
    return reinterpret_cast<const unsigned&>(pair);
  }
};

template <>
struct Pair<__half> {
  __device__ static float2 unpack(unsigned word) { return __half22float2(reinterpret_cast<const __half2&>(word)); }
  __device__ static unsigned pack(float2 values) {
    const __half2 pair = __float22half2_rn(values);
    return reinterpret_cast<const unsigned&>(pair);
  }
};

template <typename T>
__device__ void load_vector(const T* source, float2 (&pairs)[kVector / 2]) {
  const uint4 words = *reinterpret_cast<const uint4*>(source);
  pairs[0] = Pair<T>::unpack(words.x);
  pairs[1] = Pair<T>::unpack(words.y);
  pairs[2] = Pair<T>::unpack(words.z);
  pairs[3] = Pair<T>::unpack(words.w);
}

// The sum over the warp's lanes, in every lane. Takes whole warps only.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (unsigned distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// No __restrict__: it would let the compiler move the weight's load above the barriers, out of its phase.
template <typename T, bool kTrace>
__global__ void rmsnorm_fwd(const T* x, const T* weight, T* y, unsigned hidden, float eps) {
  warplens::Recorder<rmsnorm, kTrace> rec;
  rec.phase(rmsnorm::load_sumsq);
  __shared__ float partial[kMaxWarps];
  __shared__ float total;
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned warp = threadIdx.x / kWarpSize;
  const unsigned warps = blockDim.x / kWarpSize;
  const unsigned column = threadIdx.x * kVector;
  const size_t first = static_cast<size_t>(blockIdx.x) * hidden + column;
  const bool in_row = column < hidden;  // the last warp may reach past the row

  float2 values[kVector / 2];
  float sum = 0.0f;
  if (in_row) {
    load_vector(x + first, values);
#pragma unroll
    for (float2 pair : values) sum += pair.x * pair.x + pair.y * pair.y;
  }

  rec.phase(rmsnorm::warp_reduce);
  sum = warp_sum(sum);

  rec.phase(rmsnorm::block_reduce);
  if (lane == 0) partial[warp] = sum;

  rec.wait(rmsnorm::barrier);
  __syncthreads();

  rec.phase(rmsnorm::cross_reduce);
  if (warp == 0) {
    const float row_sum = warp_sum(lane < warps ? partial[lane] : 0.0f);
    if (lane == 0) total = row_sum;
  }

  rec.wait(rmsnorm::barrier_2);
  __syncthreads();

  rec.phase(rmsnorm::normalize);
  uint4 result = {};
  if (in_row) {
    float2 gains[kVector / 2];
    load_vector(weight + column, gains);
    const float scale = rsqrtf(__fdividef(total, static_cast<float>(hidden)) + eps);
    unsigned words[kVector / 2];
#pragma unroll
    for (unsigned i = 0; i < kVector / 2; ++i) {
      words[i] = Pair<T>::pack({values[i].x * scale * gains[i].x, values[i].y * scale * gains[i].y});
    }
    result = {words[0], words[1], words[2], words[3]};
  }

  rec.phase(rmsnorm::store);
  if (in_row) __stcs(reinterpret_cast<uint4*>(y + first), result);  // streaming: y is not read here again
}
