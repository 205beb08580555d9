// Reads every SM's clock at edges of the globaltimer: waits for it to change, then reads the clock at once.
// pairs[block * edges + i] = {globaltimer, clock64, SM}, `gap_ns` apart. One block an SM: the host asks for the shared
// memory that forces it.
#ifndef WARPLENS_DETAIL_LINKAGE  // host.hpp has its own copy in each translation unit
#define WARPLENS_DETAIL_LINKAGE extern "C"
#endif

struct Pair {
  unsigned long long globaltimer_ns, clock_cycles, sm;
};

WARPLENS_DETAIL_LINKAGE __global__ void calibrate(Pair* pairs, unsigned edges, unsigned gap_ns) {
  if (threadIdx.x != 0) return;
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  for (unsigned i = 0; i < edges; ++i) {
    unsigned long long before, now, clock;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(before)::"memory");
    do {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
    } while (now == before);
    pairs[blockIdx.x * edges + i] = {now, clock, sm};
    const unsigned long long wake = now + gap_ns;
    do {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    } while (now < wake);
  }
}

// One thread. Reads globaltimer as fast as it can: what it steps by shows in the samples. It tests no value, so that
// two reads lie less than a step apart.
WARPLENS_DETAIL_LINKAGE __global__ void sample_globaltimer(unsigned long long* samples, unsigned count) {
#pragma unroll 8
  for (unsigned i = 0; i < count; ++i) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(samples[i])::"memory");
}
