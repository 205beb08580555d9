// Kernels that are recorded in ways in which nobody would: floods, odd shapes, programmatic launches, a minute's run.
// In: said at each. Out: next to nothing but their marks.
#include <warplens/warplens.cuh>

WARPLENS_SITES(stress, a, b, c);

using u64 = unsigned long long;

__device__ __forceinline__ unsigned own_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ u64 own_globaltimer() {
  u64 value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

// `turns` events a warp.
template <bool kTrace>
__global__ void flood(int turns) {
  warplens::Recorder<stress, kTrace> rec;
#pragma unroll 1
  for (int i = 0; i < turns; ++i) rec.mark(stress::a);
}

// 4 * (turns + warp % 3) events a warp, one with a payload, and a range by token.
template <bool kTrace>
__global__ void loops(unsigned* sum, int turns) {
  warplens::Recorder<stress, kTrace> rec;
  const int own = turns + static_cast<int>(own_thread() / 32 % 3);
#pragma unroll 1
  for (int i = 0; i < own; ++i) {
    rec.phase(stress::a, i);
    rec.mark(stress::b);
    const warplens::Token token = rec.range_start(stress::c);
    if (own_thread() == 0) atomicAdd(sum, 1u);
    rec.range_end(token);
  }
}

// 2 * (turns + warp % 3) events a warp, every other one a mark of its first lane alone.
template <bool kTrace>
__global__ void lanes(unsigned* sum, int turns) {
  warplens::Recorder<stress, kTrace> rec;
  const int own = turns + static_cast<int>(own_thread() / 32 % 3);
#pragma unroll 1
  for (int i = 0; i < own; ++i) {
    rec.phase(stress::a);
    if (own_thread() == 0) atomicAdd(sum, 1u);
    if (own_thread() % 32 == 0) rec.mark_lane(stress::c, i);
  }
}

// 30 events a warp in a straight line; of 45 records, so that a warp has more than a chunk.
template <bool kTrace>
__global__ void line(unsigned* sum, int) {
  warplens::Recorder<stress, kTrace> rec;
#pragma unroll
  for (int i = 0; i < 15; ++i) {
    rec.phase(stress::a);
    if (own_thread() == 0) atomicAdd(sum, 1u);
    rec.mark(stress::b, i);
  }
}

// A node of a chain of programmatic launches: lets the next one begin early, and waits for the one before in front of
// the recorder (kFirst) or behind its first mark. times[2 * number + 0, 1]: the earliest begin, the latest end. 3
// events a warp.
template <bool kTrace, bool kFirst>
__global__ void node(u64* times, int number) {
  const u64 begin = own_globaltimer();
  if (kFirst) asm volatile("griddepcontrol.wait;" ::: "memory");
  warplens::Recorder<stress, kTrace> rec;
  rec.phase(stress::a);
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!kFirst) asm volatile("griddepcontrol.wait;" ::: "memory");
  rec.phase(stress::b, number);
  if (own_thread() == 0) atomicMin(times + 2 * number, begin);
  const u64 wake = own_globaltimer() + 10000;
  while (own_globaltimer() < wake) {
  }
  __syncwarp();
  rec.phase(stress::c);
  if (own_thread() == 0) atomicMax(times + 2 * number + 1, own_globaltimer());
}

// Waits, each warp beginning elsewhere in the list. stamps[4 * (warp * count + i)]: globaltimer and clock64 at the i-th
// wait's begin, then at its end; its phase has i as payload. kCount: 0, or as many waits in a straight line.
template <bool kTrace, int kCount>
__global__ void waits(const long long* cycles, int count, u64* stamps) {
  warplens::Recorder<stress, kTrace> rec;
  const unsigned warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const auto one = [&](int i) {
    const long long wanted = cycles[(i + 7 * static_cast<int>(warp)) % count];
    rec.phase(stress::a, i);
    const u64 begin_ns = own_globaltimer();
    const long long begin = clock64();
    long long end;
    do {
      end = clock64();
    } while (end - begin < wanted);
    __syncwarp();
    const u64 end_ns = own_globaltimer();
    rec.phase(stress::b);
    if (threadIdx.x % 32 == 0) {
      u64* own = stamps + 4 * (static_cast<u64>(warp) * count + i);
      own[0] = begin_ns;
      own[1] = begin;
      own[2] = end_ns;
      own[3] = end;
    }
  };
  if constexpr (kCount != 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) one(i);
  } else {
#pragma unroll 1
    for (int i = 0; i < count; ++i) one(i);
  }
}
