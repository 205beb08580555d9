// What recording costs at least: marks with no bounds, header, loss count or question, in the same kernel.
// BARE_KEEP says where a mark's clock goes: 1: into the lane of its number; 2: to shared memory, when the next mark is
// passed, so that behind a barrier it is this store that lets the barrier take effect. BARE_BYTES a warp are written at
// the end, by each warp or, with BARE_BY_BLOCK, by the last one of the block for all.
// In: `trace`, room for 64 bytes a warp. Out: low halves of the clocks.

#include <warplens/detail/device.cuh>

using warplens::detail::load_shared, warplens::detail::store_shared, warplens::detail::store_word;

#define SITE_ENUMERATOR(id, name, kind, resource) id,
#define SITES_FROM(set, LIST)                                       \
  struct set {                                                      \
    enum Site : unsigned { end_mark, LIST(SITE_ENUMERATOR) count }; \
  }

__constant__ unsigned bare_flag = 0;

struct NoRecorder {
  __device__ __forceinline__ constexpr void phase(unsigned) {}
  __device__ __forceinline__ constexpr void wait(unsigned) {}
};

class Recorder {
 public:
  __device__ __forceinline__ explicit Recorder(unsigned long long* trace)
      : trace_(reinterpret_cast<unsigned*>(trace)), slot_(slots() + threadIdx.x / 32u * kSlotBytes) {
    if (BARE_BY_BLOCK && threadIdx.x == 0) store_shared(counter(), 0);
  }

  __device__ __forceinline__ void phase(unsigned) {
    if (BARE_KEEP == 1) {
      asm volatile("{.reg .pred p; setp.ge.u32 p, %1, %2; @p mov.u32 %0, %%clock;}"
                   : "+r"(kept_)
                   : "r"(threadIdx.x % 32u), "r"(count_)
                   : "memory");
    } else {
      if (count_ != 0) store_shared(slot_ + 4u * (count_ - 1u), kept_);
      kept_ = warplens::detail::read_clock_low();
    }
    ++count_;
  }

  __device__ __forceinline__ void wait(unsigned site) { phase(site); }

  __device__ __forceinline__ ~Recorder() {
    phase(0);
    if (BARE_KEEP == 2) store_shared(slot_ + 4u * (count_ - 1u), kept_);
    if (BARE_KEEP == 1 && kept_ == 0x12345678u) store(0, kept_);
    const unsigned lane = threadIdx.x % 32u, warp = threadIdx.x / 32u, warps = blockDim.x / 32u,
                   words = BARE_BYTES / 4u;
    if (BARE_BYTES == 0) return;
    if (!BARE_BY_BLOCK) {
      if (lane < words) store((blockIdx.x * warps + warp) * words + lane, load_shared(slot_ + 4u * lane));
      return;
    }
    unsigned ended = 0;
    warplens::detail::fence_block();
    if (lane == 0) asm volatile("atom.shared.add.u32 %0, [%1], 1;" : "=r"(ended) : "r"(counter()) : "memory");
    if (__shfl_sync(0xffffffffu, ended, 0) != warps - 1u) return;
    for (unsigned i = lane; i < warps * words; i += 32u) {
      store(blockIdx.x * warps * words + i, load_shared(slots() + i / words * kSlotBytes + i % words * 4u));
    }
  }

 private:
  static constexpr unsigned kSlotBytes = 64;

  __device__ __forceinline__ static unsigned slots() {
    __shared__ unsigned words[32 * kSlotBytes / 4 + 1];
    return static_cast<unsigned>(__cvta_generic_to_shared(words));
  }
  __device__ __forceinline__ static unsigned counter() { return slots() + 32u * kSlotBytes; }
  __device__ __forceinline__ void store(unsigned index, unsigned value) {
    store_word(reinterpret_cast<unsigned long long>(trace_ + index), value);
  }

  unsigned* trace_;
  unsigned slot_;
  unsigned kept_ = 0;
  unsigned count_ = 0;
};
