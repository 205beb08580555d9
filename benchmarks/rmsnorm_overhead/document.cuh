// The recorder that "Looking inside your kernels" (Aryan V S, 2026) describes, written anew from its description.
// At a mark the warp synchronises and lane 0 writes an event of 16 bytes (64-bit clock, 32-bit meta) to the warp's
// place in shared memory; at the end lane 0 of each warp copies its events to global memory, one after another.
// Thread 0 of each block reads %globaltimer once, beside a clock: the block's anchor on the global axis.
// In: `trace`, room for gridDim.x * (1 + warps * kMarks) * 16 bytes. Out: per block the anchor (globaltimer,
// clock), then each warp's events in order. No bound is checked, as there.

#define SITE_ENUMERATOR(id, name, kind, resource) id,
#define SITES_FROM(set, LIST)                                       \
  struct set {                                                      \
    enum Site : unsigned { end_mark, LIST(SITE_ENUMERATOR) count }; \
  }

class Recorder {
 public:
  __device__ __forceinline__ explicit Recorder(unsigned long long* trace) {
    const unsigned warp = threadIdx.x / 32;
    const unsigned warps = blockDim.x / 32;
    const size_t block = static_cast<size_t>(blockIdx.x) * (1 + warps * kMarks);
    destination_ = reinterpret_cast<ulonglong2*>(trace) + block + 1 + warp * kMarks;
    events_ = shared_events() + warp * kMarks;
    leader_ = threadIdx.x % 32 == 0;
    if (threadIdx.x == 0) {
      unsigned long long globaltimer;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(globaltimer)::"memory");
      destination_[-1] = make_ulonglong2(globaltimer, read_clock());
    }
  }

  __device__ __forceinline__ void phase(unsigned site) {
    __syncwarp();
    if (leader_) events_[count_] = make_ulonglong2(read_clock(), site);
    ++count_;
  }

  __device__ __forceinline__ void wait(unsigned site) { phase(site); }

  __device__ __forceinline__ ~Recorder() {
    phase(0);
    if (!leader_) return;
    for (unsigned i = 0; i < count_; ++i) destination_[i] = events_[i];
  }

 private:
  static constexpr unsigned kMarks = 9;

  __device__ __forceinline__ static ulonglong2* shared_events() {
    __shared__ ulonglong2 events[32 * kMarks];
    return events;
  }

  __device__ __forceinline__ static unsigned long long read_clock() {
    unsigned long long value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value)::"memory");
    return value;
  }

  ulonglong2* destination_;
  ulonglong2* events_;
  unsigned count_ = 0;
  bool leader_;
};
