// warplens: look inside a CUDA kernel.
//
//   WARPLENS_SITES(rmsnorm, load, reduce, store);
//   template <bool kTrace> __global__ void rmsnorm_fwd(...) {
//     warplens::Recorder<rmsnorm, kTrace> rec;   // one a thread, at the top of the kernel
//     rec.phase(rmsnorm::load);                  // ends the phase before, begins this one
//     ...
//   }                                            // the destructor ends the last phase, on every return
//
// Marks are warp-uniform: all threads of a warp pass them together. `rec.mark_lane(rmsnorm::load)` need not be, and
// `warplens::mark<rmsnorm, kTrace>(rmsnorm::load)` needs no recorder in reach either. With kTrace false nothing is left
// of them: the machine code is that of the kernel without marks. C++17; NVRTC and nvcc; sm_80 and newer.
#ifndef WARPLENS_WARPLENS_CUH
#define WARPLENS_WARPLENS_CUH

#include "detail/detached.cuh"
#include "detail/direct.cuh"
#include "detail/landed.cuh"
#include "detail/packed.cuh"
#include "detail/sites.cuh"
#include "detail/staged.cuh"

namespace warplens {

// Storage policies. `packed` costs least and wants blocks of whole warps whose lanes stay together at marks;
// `staged` takes any. `stream` writes each event at once; `live` does so to host memory, where it outlives a hang or a
// crash. The default is a macro so that the host can choose by the launch.
struct packed {
  enum : bool { kLive = false };
  template <unsigned kCodeBits, unsigned kSitesHash>
  using Storage = detail::Packed<kCodeBits, kSitesHash>;
};
struct staged {
  enum : bool { kLive = false };
  template <unsigned kCodeBits, unsigned kSitesHash>
  using Storage = detail::Staged<kCodeBits, kSitesHash>;
};
struct stream {
  enum : bool { kLive = false };
  template <unsigned kCodeBits, unsigned kSitesHash>
  using Storage = detail::Direct<kCodeBits, kSitesHash, false>;
};
struct live {
  enum : bool { kLive = true };
  template <unsigned kCodeBits, unsigned kSitesHash>
  using Storage = detail::Direct<kCodeBits, kSitesHash, true>;
};
#ifndef WARPLENS_POLICY
#define WARPLENS_POLICY packed
#endif

// What kOn is where it is not named. The host compiles the clean build with false, for marks in functions that are no
// templates.
#ifndef WARPLENS_ON
#define WARPLENS_ON true
#endif

// How often a mark is taken, in a row: 1. What a mark costs in its place is measured by builds with 2 of each, and the
// whole of them by one with 0 (docs/adr/0008-corrections.md). The first mark of a warp is taken once in all of them.
#ifndef WARPLENS_MARKS
#define WARPLENS_MARKS 1
#endif

// An id that joins a range_start in one warp with a range_end in another (of the same site).
struct Join {
  unsigned id;
};
__device__ __forceinline__ constexpr Join join(unsigned id) { return Join{id}; }

// What range_start returns and range_end takes: a range that may cross others of the same warp.
struct Token {
  unsigned sequence;
};

template <class Sites, bool kOn = WARPLENS_ON, class Policy = WARPLENS_POLICY>
class Recorder {
 public:
  using Site = typename Sites::Site;

  __device__ __forceinline__ Recorder() {}
  __device__ __forceinline__ ~Recorder() { storage_.finish(waits_); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Ends the open phase or wait and begins this phase: one event a boundary.
  __device__ __forceinline__ void phase(Site site) { put(code(site, kVerbPhase)); }
  __device__ __forceinline__ void phase(Site site, unsigned payload) { with_payload(site, kVerbPhase, payload); }
  // Ends the open phase or wait and begins none.
  __device__ __forceinline__ void end_phase() { put(kEndPhase); }

  // An instant.
  __device__ __forceinline__ void mark(Site site) { put(code(site, kVerbMark)); }
  __device__ __forceinline__ void mark(Site site, unsigned payload) { with_payload(site, kVerbMark, payload); }

  // An instant in code that only some lanes take, or that lanes take at different times: those that come here together
  // make one event, whose id is their mask. It is written at once and costs many times what `mark` does.
  __device__ __forceinline__ void mark_lane(Site site) {
    if (!skips_) Detached::put(code(site, kVerbMark), 0, waits_);
  }
  __device__ __forceinline__ void mark_lane(Site site, unsigned payload) {
    if (!skips_) Detached::put(code(site, kVerbMark) | detail::layout::kCodePayload, payload, waits_);
  }

  // Ranges that nest, independent of phases.
  __device__ __forceinline__ void range_push(Site site) { put(code(site, kVerbRangePush)); }
  __device__ __forceinline__ void range_push(Site site, unsigned payload) {
    with_payload(site, kVerbRangePush, payload);
  }
  __device__ __forceinline__ void range_pop() { put(control(detail::layout::kControlCodeRangePop)); }

  // Ranges that may cross others of the same warp.
  __device__ __forceinline__ Token range_start(Site site) {
    const Token token{next_sequence()};
    put(code(site, kVerbRangeStart));
    return token;
  }
  __device__ __forceinline__ Token range_start(Site site, unsigned payload) {
    const Token token{next_sequence()};
    with_payload(site, kVerbRangeStart, payload);
    return token;
  }
  __device__ __forceinline__ void range_end(Token token) {
    put(control(detail::layout::kControlCodeTokenEnd) | detail::layout::kCodeId, token.sequence);
  }

  // Ranges that may begin in one warp and end in another.
  __device__ __forceinline__ void range_start(Site site, Join joined) { with_id(site, kVerbRangeStart, joined.id); }
  __device__ __forceinline__ void range_end(Site site, Join joined) { with_id(site, kVerbRangeEnd, joined.id); }

  // A phase in which the warp waits for the site's resource; it ends as a phase does. Use it for barriers: the mark
  // behind a `phase` can be taken before __syncthreads() has opened.
  __device__ __forceinline__ void wait(Site site) { put(code(site, kVerbWait)); }
  __device__ __forceinline__ void wait(Site site, unsigned payload) { with_payload(site, kVerbWait, payload); }
  __device__ __forceinline__ void wait(Site site, Join joined) { with_id(site, kVerbWait, joined.id); }
  // An instant: the warp has done its part for the site's resource.
  __device__ __forceinline__ void arrive(Site site) { put(code(site, kVerbArrive)); }
  __device__ __forceinline__ void arrive(Site site, unsigned payload) { with_payload(site, kVerbArrive, payload); }
  __device__ __forceinline__ void arrive(Site site, Join joined) { with_id(site, kVerbArrive, joined.id); }

  // Says which iteration of a loop begins. With `packed` its marks then ask together whether there is room for them.
  // And one in n can be recorded, which the host chooses at run time: the open phase ends before the first iteration
  // that is left out, and what was left out is counted.
  __device__ __forceinline__ void iteration(unsigned number) {
    const bool skips = storage_.leaves_out(number);
    if (skips && !skips_) put(kEndPhase);
    skips_ = skips;
    if (WARPLENS_MARKS != 0) storage_.begin_iteration();  // else no mark would take the room
  }

  // No event: the warp waits until these values, which it has loaded, are there. In front of the mark that ends a phase
  // it makes their loads count in that phase.
  template <class... Values>
  __device__ __forceinline__ void landed(const Values&... values) {
    detail::wait_for(values...);
  }

 private:
  using Detached = detail::Detached<Sites::kCodeBits, Policy::kLive, WARPLENS_MARKS != 0>;

  static constexpr unsigned kVerbPhase = detail::layout::kVerbPhase;
  static constexpr unsigned kVerbMark = detail::layout::kVerbMark;
  static constexpr unsigned kVerbRangePush = detail::layout::kVerbRangePush;
  static constexpr unsigned kVerbRangeStart = detail::layout::kVerbRangeStart;
  static constexpr unsigned kVerbRangeEnd = detail::layout::kVerbRangeEnd;
  static constexpr unsigned kVerbWait = detail::layout::kVerbWait;
  static constexpr unsigned kVerbArrive = detail::layout::kVerbArrive;
  static constexpr unsigned kEndPhase = detail::layout::kControlCodePhaseEnd << detail::layout::kCodeVerbShift;

  __device__ __forceinline__ static constexpr unsigned code(unsigned site, unsigned verb) {
    return site << detail::layout::kCodeSiteShift | verb << detail::layout::kCodeVerbShift;
  }
  // A mark behind a barrier must not be taken before the barrier has opened: see detail::settle. While the warp waits
  // that holds for each mark, since the barrier may stand in front of any.
  __device__ __forceinline__ void put(unsigned code, unsigned id = 0, unsigned payload = 0) {
    if (skips_) {
      ++skipped_;
      return;
    }
    if (skipped_ != 0) {
      storage_.put(control(detail::layout::kControlCodeGap) | detail::layout::kCodePayload, 0, skipped_, waits_);
      skipped_ = 0;
    }
#if WARPLENS_MARKS == 1
    storage_.put(code, id, payload, waits_);
#else  // without a loop, in which the compiler would no longer count the records
    if (WARPLENS_MARKS > 0 || !marked_) storage_.put(code, id, payload, waits_);
    if (WARPLENS_MARKS > 1 && marked_) storage_.put(code, id, payload, waits_);
    if (WARPLENS_MARKS > 2 && marked_) storage_.put(code, id, payload, waits_);
    static_assert(WARPLENS_MARKS <= 3, "a mark is taken three times at most");
    marked_ = true;
#endif
    const bool of_site = code >> detail::layout::kCodeSiteShift != 0;
    const unsigned verb = code >> detail::layout::kCodeVerbShift & ((1u << detail::layout::kCodeVerbBits) - 1u);
    if (code == kEndPhase || (of_site && verb == kVerbPhase)) waits_ = false;
    if (of_site && verb == kVerbWait) waits_ = true;
  }
  // Of the next event: what was left out in front of it is two words.
  __device__ __forceinline__ unsigned next_sequence() const {
    return storage_.next_sequence() + (skipped_ != 0 ? 2u : 0u);
  }
  __device__ __forceinline__ static constexpr unsigned control(unsigned what) { return code(0, what); }
  __device__ __forceinline__ void with_payload(unsigned site, unsigned verb, unsigned payload) {
    put(code(site, verb) | detail::layout::kCodePayload, 0, payload);
  }
  __device__ __forceinline__ void with_id(unsigned site, unsigned verb, unsigned id) {
    put(code(site, verb) | detail::layout::kCodeId, id);
  }

#if WARPLENS_MARKS != 1  // one member more changes the allocation of registers, though nothing reads it
  bool marked_ = false;
#endif
  bool waits_ = false;
  bool skips_ = false;
  unsigned skipped_ = 0;
  typename Policy::template Storage<Sites::kCodeBits, Sites::kHash> storage_;
};

// Off: every verb is empty; constexpr, or NVRTC keeps enough of them to change the allocation of registers.
template <class Sites, class Policy>
class Recorder<Sites, false, Policy> {
 public:
  using Site = typename Sites::Site;
  __device__ __forceinline__ Recorder() {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  __device__ __forceinline__ constexpr void phase(Site) {}
  __device__ __forceinline__ constexpr void phase(Site, unsigned) {}
  __device__ __forceinline__ constexpr void end_phase() {}
  __device__ __forceinline__ constexpr void mark(Site) {}
  __device__ __forceinline__ constexpr void mark(Site, unsigned) {}
  __device__ __forceinline__ constexpr void mark_lane(Site) {}
  __device__ __forceinline__ constexpr void mark_lane(Site, unsigned) {}
  __device__ __forceinline__ constexpr void range_push(Site) {}
  __device__ __forceinline__ constexpr void range_push(Site, unsigned) {}
  __device__ __forceinline__ constexpr void range_pop() {}
  __device__ __forceinline__ constexpr Token range_start(Site) { return Token{0}; }
  __device__ __forceinline__ constexpr Token range_start(Site, unsigned) { return Token{0}; }
  __device__ __forceinline__ constexpr void range_end(Token) {}
  __device__ __forceinline__ constexpr void range_start(Site, Join) {}
  __device__ __forceinline__ constexpr void range_end(Site, Join) {}
  __device__ __forceinline__ constexpr void wait(Site) {}
  __device__ __forceinline__ constexpr void wait(Site, unsigned) {}
  __device__ __forceinline__ constexpr void wait(Site, Join) {}
  __device__ __forceinline__ constexpr void arrive(Site) {}
  __device__ __forceinline__ constexpr void arrive(Site, unsigned) {}
  __device__ __forceinline__ constexpr void arrive(Site, Join) {}
  __device__ __forceinline__ constexpr void iteration(unsigned) {}
  template <class... Values>
  __device__ __forceinline__ constexpr void landed(const Values&...) {}
};

// The kernel's body twice: `body(rec)` with a recorder where the block may be recorded, and with one whose verbs are
// empty where it is not. A block that is left out then costs one read of what is recorded, at its begin, and no marks;
// the price is the body's code, twice, and that the read is waited for (docs/adr/0004-buffers-and-overflow.md). Declare
// __shared__ variables outside of the body, or there are two of each.
template <class Sites, bool kOn = WARPLENS_ON, class Policy = WARPLENS_POLICY, class Body>
__device__ __forceinline__ void split(Body&& body) {
  if constexpr (!kOn || detail::kAllRecorded) {
    Recorder<Sites, kOn, Policy> rec;
    body(rec);
  } else {
    detail::ask_for(detail::linear_thread(), detail::linear_block());  // their answer comes beside that of the choice
    if (detail::is_left_out() != 0) {
      Recorder<Sites, false, Policy> rec;
      body(rec);
      detail::end_left_out_block();
    } else {
      Recorder<Sites, true, Policy> rec;
      body(rec);
    }
  }
}

// `mark_lane` without a recorder: for any device function, inlined or not, in any control flow.
template <class Sites, bool kOn = WARPLENS_ON, class Policy = WARPLENS_POLICY>
__device__ __forceinline__ constexpr void mark(typename Sites::Site site) {
  detail::Detached<Sites::kCodeBits, Policy::kLive, kOn && WARPLENS_MARKS != 0>::put(detail::mark_code(site), 0, false);
}
template <class Sites, bool kOn = WARPLENS_ON, class Policy = WARPLENS_POLICY>
__device__ __forceinline__ constexpr void mark(typename Sites::Site site, unsigned payload) {
  detail::Detached<Sites::kCodeBits, Policy::kLive, kOn && WARPLENS_MARKS != 0>::put(
      detail::mark_code(site) | detail::layout::kCodePayload, payload, false);
}

}  // namespace warplens

#endif  // WARPLENS_WARPLENS_CUH
