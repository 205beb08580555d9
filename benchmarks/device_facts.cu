// What device_facts.py runs: the clocks, the barrier and the losses that docs/adr/0002-clocks.md and detail/device.cuh
// speak of, read with the recorder's own functions. Above each kernel: its launch and what it writes. Clocks are stored
// as they were read: where only their difference is, ptxas makes of the recorder's CS2R an S2UR, which waits.
#include <warplens/warplens.cuh>

WARPLENS_SITES(facts, turn, step);

using warplens::detail::read_clock;
using warplens::detail::read_clock_low;
using warplens::detail::read_globaltimer;
using warplens::detail::u32;
using warplens::detail::u64;

// Any launch; keeps the GPU's clocks up. Writes nothing.
extern "C" __global__ void keep_busy(u32 duration_ns) {
  const u64 begin = read_globaltimer();
  while (read_globaltimer() - begin < duration_ns) {
  }
}

// One thread. samples[i] = {globaltimer, clock64}. It tests no value, so that the reads lie close together: a step is
// missed only where two of them lie farther apart than it lasts, and the clock says where they do.
extern "C" __global__ void globaltimer_samples(ulonglong2* samples, u32 count) {
#pragma unroll 8
  for (u32 i = 0; i < count; ++i) {
    const u64 timer = read_globaltimer();
    samples[i] = make_ulonglong2(timer, read_clock());
  }
}

// One thread. reads[i] = {clock64, globaltimer, clock64, clock64, clock64, clock | clock << 32}, each read right behind
// the one before.
extern "C" __global__ void clock_reads(u64* reads, u32 count) {
#pragma unroll 1
  for (u32 i = 0; i < count; ++i, reads += 6) {
    const u64 first = read_clock();
    const u64 timer = read_globaltimer();
    const u64 second = read_clock();
    const u64 third = read_clock();
    const u64 fourth = read_clock();
    const u32 fifth = read_clock_low();
    const u32 sixth = read_clock_low();
    reads[0] = first;
    reads[1] = timer;
    reads[2] = second;
    reads[3] = third;
    reads[4] = fourth;
    reinterpret_cast<u32*>(reads)[10] = fifth;
    reinterpret_cast<u32*>(reads)[11] = sixth;
  }
}

// Blocks of two warps, of which warp 1 comes `late_cycles` late. clocks[2 * block + warp] = {clock64 in front of the
// barrier, clock64 behind it}; kSettled: what the mark that ends a `wait` does stands between the barrier and the
// clock.
template <bool kSettled>
__global__ void barrier_delay(u64* clocks, u32 late_cycles) {
  if (threadIdx.x >= 32) {
    const u64 begin = read_clock();
    while (read_clock() - begin < late_cycles) {
    }
  }
  const u64 before = read_clock();
  __syncthreads();
  if (kSettled) warplens::detail::settle();
  const u64 behind = read_clock();
  if (threadIdx.x % 32 == 0) {
    const u32 warp = 2 * blockIdx.x + threadIdx.x / 32;
    clocks[2 * warp] = before;
    clocks[2 * warp + 1] = behind;
  }
}

// Blocks of kLoadedWarps warps that come to a barrier at random times, with copies to shared memory under way and more
// of them on their SM. clocks[(block * turns + turn) * kLoadedWarps + warp] = {clock64 in front of the barrier, clock64
// behind it}. No branch stands between the barrier and the clock: all lanes write.
constexpr u32 kLoadedWarps = 8;
template <bool kSettled>
__global__ void __launch_bounds__(32 * kLoadedWarps, 4) barrier_loaded(u64* clocks, const uint4* source, u32 turns) {
  __shared__ uint4 copied[2 * 32 * kLoadedWarps];
  const u32 warp = threadIdx.x / 32;
  const u32 place = static_cast<u32>(__cvta_generic_to_shared(copied + threadIdx.x));
  u32 random = blockIdx.x * 7919u + warp * 104729u + 1u;
  for (u32 turn = 0; turn < turns; ++turn) {
    random = random * 1664525u + 1013904223u;
    const u64 begin = read_clock();
    while (read_clock() - begin < random >> 22) {
    }
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      const u32 row = (blockIdx.x * 977u + turn * 131u + i * 17u) % 1024u;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place + (i & 1u) * 512u * kLoadedWarps),
                   "l"(source + row * 32u * kLoadedWarps + threadIdx.x)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    u64* const out = clocks + 2 * ((static_cast<u64>(blockIdx.x) * turns + turn) * kLoadedWarps + warp);
    const u64 before = read_clock();
    __syncthreads();
    if (kSettled) warplens::detail::settle();
    const u64 behind = read_clock();
    out[0] = before;
    out[1] = behind;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }
}

// Any launch. Each warp records three events a turn, the first with a payload.
template <bool kTrace>
__global__ void many_marks(u32 turns) {
  warplens::Recorder<facts, kTrace> rec;
  for (u32 i = 0; i < turns; ++i) {
    rec.range_push(facts::turn, i);
    rec.mark(facts::step);
    rec.range_pop();
  }
}
