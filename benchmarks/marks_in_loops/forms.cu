// What parts of a mark cost in a loop, bare: no header, no chunk, no loss count. FORM says which; 0 is the loop alone.
// In: turns, a factor, memory for records. Out: per warp the cycles of all turns; a sum, so that nothing falls away.
using u32 = unsigned int;
using u64 = unsigned long long;

__device__ __forceinline__ u32 clock_low() {
  u32 value;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(value)::"memory");
  return value;
}

// In lanes from `first` on.
__device__ __forceinline__ void keep(u32& kept, u32 lane, u32 first, u32 word) {
  asm("{.reg .pred p; setp.ge.s32 p, %1, %2; @p mov.u32 %0, %3;}" : "+r"(kept) : "r"(lane), "r"(first), "r"(word));
}

// A value that the compiler does not know: for it a question at the loop's begin is a compare too, and stays a
// predicate.
__device__ __forceinline__ u32 opaque(u32 value) {
  asm("mov.u32 %0, %0;" : "+r"(value));
  return value;
}

extern "C" __device__ __noinline__ void flush(u32 word, u64 address) {
  asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}

extern "C" __device__ __noinline__ void nothing(u32 word) { asm volatile("" ::"r"(word) : "memory"); }

extern "C" __global__ void run(long long* cycles, float* sums, int turns, float factor, u32* records) {
  const u32 lane = threadIdx.x % 32u, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32u;
  const u64 address = reinterpret_cast<u64>(records + warp * 64u + lane);
  const u64 own = reinterpret_cast<u64>(records + warp * 64u);
  u32 kept = 0, count = 0;
  bool full = opaque(0) != 0;
  float sum = threadIdx.x;
  __syncthreads();
  const long long begin = clock64();
#pragma unroll UNROLL
  for (int i = 0; i < turns; ++i) {
    const u32 word = FORM == 0 ? 0u : (clock_low() << 7) + 32u;
#if FORM == 1  // the first lane stores each record, always to the same place
    if (lane == 0) asm volatile("st.global.u32 [%0], %1;" ::"l"(own), "r"(word) : "memory");
#elif FORM == 2  // ... to the next place
    if (lane == 0) asm volatile("st.global.u32 [%0], %1;" ::"l"(own + count), "r"(word) : "memory");
    count = (count + 4u) & 127u;
#elif FORM == 3  // a record is kept in a lane, and nothing is stored
    keep(kept, lane, count, word);
    count = (count + 1u) & 31u;
#elif FORM == 4  // ... and all are stored each 24, without a branch
    keep(kept, lane, count, word);
    ++count;
    asm volatile("{.reg .pred p; setp.gt.u32 p, %0, 23; @p st.global.cs.u32 [%1], %2; selp.b32 %0, 0, %0, p;}"
                 : "+r"(count)
                 : "l"(address), "r"(kept)
                 : "memory");
#elif FORM == 5  // ... by a call behind a branch
    keep(kept, lane, count, word);
    if (++count > 23u) {
      flush(kept, address);
      count = 0;
    }
#elif FORM == 6  // nothing is stored, but there is a branch that is never taken
    keep(kept, lane, count, word);
    if (++count == 99999999u) __trap();
#elif FORM == 7  // ... and what it asks is known a turn ahead
    if (full) __trap();
    keep(kept, lane, count, word);
    full = ++count == opaque(99999999u);
#elif FORM == 8  // all are stored each 24, behind a branch, without a call
    keep(kept, lane, count, word);
    if (++count > 23u) {
      asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(address), "r"(kept) : "memory");
      count = 0;
    }
#elif FORM == 9  // each 24 a function is called that stores nothing
    keep(kept, lane, count, word);
    if (++count > 23u) {
      nothing(kept);
      count = 0;
    }
#endif
#pragma unroll
    for (int j = 0; j < 64; ++j) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(sum) : "f"(factor));
  }
  const long long end = clock64();
  if (lane == 0) cycles[warp] = end - begin;
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum + kept + count + (full ? 1.0f : 0.0f);
}
