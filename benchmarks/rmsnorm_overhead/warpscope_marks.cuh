// The recorder of warpscope (PyPI, MIT), from its installed package, behind the verbs of the marked kernel.
// A warp is a group and its lane 0 the leader; a mark is an instant, the end its `finalize`. The number of records is
// bounded on the device, as its host side does it.
// In: `trace`, room for 1 + gridDim.x * warps * 9 entries of 8 bytes. Out: entry 0 holds both counts, the rest
// are events.
#include <warpscope.cuh>

#define SITE_ENUMERATOR(id, name, kind, resource) id,
#define SITES_FROM(set, LIST)                                       \
  struct set {                                                      \
    enum Site : unsigned { end_mark, LIST(SITE_ENUMERATOR) count }; \
  }

class Recorder {
 public:
  __device__ __forceinline__ explicit Recorder(unsigned long long* trace) {
    const unsigned groups = blockDim.x / 32;
    profiler_.init(reinterpret_cast<uint64_t*>(trace), gridDim.x * groups, threadIdx.x / 32, groups, gridDim.x,
                   threadIdx.x % 32 == 0, kMarks);
  }
  __device__ __forceinline__ void phase(unsigned site) { profiler_.inst(ws::Ev{site}); }
  __device__ __forceinline__ void wait(unsigned site) { phase(site); }
  __device__ __forceinline__ ~Recorder() { profiler_.finalize(); }

 private:
  static constexpr unsigned kMarks = 9;
  ws::Profiler<true> profiler_;
};
