// A recorder in the style of FlashInfer's intra-kernel profiler and its family, written anew.
// At a mark the warp fences (__threadfence_block) and its leader lane stores 8 bytes straight to global memory:
// a tag (block and group, event, kind) and %globaltimer_lo. A warp is a group. The events of one warp lie
// `blocks * groups` entries apart, so that the k-th events of a block's warps are neighbours, as there.
// In: `trace`, room for 1 + gridDim.x * warps * 9 entries of 8 bytes. Out: entry 0 holds both counts, the rest
// are events. No bound is checked, as there.

#define SITE_ENUMERATOR(id, name, kind, resource) id,
#define SITES_FROM(set, LIST)                                       \
  struct set {                                                      \
    enum Site : unsigned { end_mark, LIST(SITE_ENUMERATOR) count }; \
  }

class Recorder {
 public:
  __device__ __forceinline__ explicit Recorder(unsigned long long* trace) {
    const unsigned groups = blockDim.x / 32;
    const unsigned group = blockIdx.x * groups + threadIdx.x / 32;
    stride_ = gridDim.x * groups;
    tag_ = group << kGroupShift;
    leader_ = threadIdx.x % 32 == 0;
    destination_ = reinterpret_cast<uint2*>(trace) + 1 + group;
    if (blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<uint2*>(trace) = make_uint2(gridDim.x, groups);
  }

  __device__ __forceinline__ void phase(unsigned site) {
    __threadfence_block();
    if (!leader_) return;
    unsigned time;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time)::"memory");
    *destination_ = make_uint2(tag_ | (site << kEventShift) | kInstant, time);
    destination_ += stride_;
  }

  __device__ __forceinline__ void wait(unsigned site) { phase(site); }

  __device__ __forceinline__ ~Recorder() { phase(0); }

 private:
  static constexpr unsigned kGroupShift = 12;
  static constexpr unsigned kEventShift = 2;
  static constexpr unsigned kInstant = 2;

  uint2* destination_;
  unsigned stride_;
  unsigned tag_;
  bool leader_;
};
