// Pins: a warp waits until values that it has loaded are there, so that a mark behind it measures their loads.
// In: values of any type that lies in registers. Out: nothing; no value is changed. The wait is that of an instruction
// that reads the values. ptxas deletes one whose result nobody uses, and may move it past a clock read: so its result
// decides whether a load of shared memory is done, which ptxas can neither delete nor move past a clock read. It is
// done by chance alone, and then does no harm.
// tests/compile/test_pins.py holds that each architecture's code waits; the audit (audit/) says so for every kernel.
#ifndef WARPLENS_DETAIL_LANDED_CUH
#define WARPLENS_DETAIL_LANDED_CUH

#include "device.cuh"

namespace warplens {
namespace detail {

// All words or-ed: one instruction takes two more of them, and equal values do not cancel.
template <class Value>
__device__ __forceinline__ u32 or_words(u32 sum, const Value& value) {
  constexpr unsigned kWords = (sizeof(Value) + 3u) / 4u;
  u32 words[kWords] = {};
  memcpy(words, &value, sizeof(Value));
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned i = 0; i < kWords; ++i) sum |= words[i];
  return sum;
}

// Compared with what ptxas does not know: of a number it can work out that no value of 8 bits is equal to it, and then
// nothing is left. The width of the grid stands in constant memory that every kernel reads.
__device__ __forceinline__ void wait_for_word(u32 word) {
#if __CUDA_ARCH__ >= 900
  const u32 address = 0;  // the kilobyte that every block has reserved for the system
#else
  __shared__ u32 own;
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(&own));
#endif
  asm volatile("{.reg .pred p; .reg .u32 t; setp.eq.u32 p, %0, %1; @p ld.volatile.shared.u32 t, [%2];}" ::"r"(word),
               "r"(gridDim.x), "r"(address)
               : "memory");
}

template <class... Values>
__device__ __forceinline__ void wait_for(const Values&... values) {
  u32 sum = 0;
  using Each = int[];
  (void)Each{0, (sum = or_words(sum, values), 0)...};
  wait_for_word(sum);
}

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_LANDED_CUH
