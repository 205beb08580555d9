// What the steps of RMSNorm share: 128-bit vectors of bfloat16 or half, their sums of squares, the sum over a warp.
// A vector is kept packed, as it was loaded; values are widened to float where they are used.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned kWarpSize = 32;
constexpr unsigned kVector = 8;  // values of a 128-bit vector

__device__ inline float2 unpack(unsigned word, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
}

__device__ inline float2 unpack(unsigned word, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}

__device__ inline unsigned pack(float2 values, __nv_bfloat16) {
  const __nv_bfloat162 pair = __float22bfloat162_rn(values);
  return reinterpret_cast<const unsigned&>(pair);
}

__device__ inline unsigned pack(float2 values, __half) {
  const __half2 pair = __float22half2_rn(values);
  return reinterpret_cast<const unsigned&>(pair);
}

template <typename T>
__device__ float sum_of_squares(uint4 vector) {
  float sum = 0.0f;
  for (unsigned word : {vector.x, vector.y, vector.z, vector.w}) {
    const float2 pair = unpack(word, T{});
    sum += pair.x * pair.x + pair.y * pair.y;
  }
  return sum;
}

template <typename T>
__device__ unsigned scaled(unsigned word, unsigned gain_word, float scale) {
  const float2 pair = unpack(word, T{});
  const float2 gains = unpack(gain_word, T{});
  return pack({pair.x * scale * gains.x, pair.y * scale * gains.y}, T{});
}

template <typename T>
__device__ uint4 scaled(uint4 vector, uint4 gains, float scale) {
  return {scaled<T>(vector.x, gains.x, scale), scaled<T>(vector.y, gains.y, scale), scaled<T>(vector.z, gains.z, scale),
          scaled<T>(vector.w, gains.w, scale)};
}

// 1 / sqrt(mean of the squares + eps).
__device__ inline float row_scale(float row_sum, unsigned hidden, float eps) {
  return rsqrtf(__fdividef(row_sum, static_cast<float>(hidden)) + eps);
}

// The sum over the warp's lanes, in every lane. Takes whole warps only.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (unsigned distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
