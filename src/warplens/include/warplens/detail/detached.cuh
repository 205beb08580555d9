// Detached events: an instant in a chunk of its own, written at once by one lane. Nothing is kept from one to the next,
// so a mark needs no recorder in reach, and lanes may part, come together at other places, or come alone.
// In: the code and payload of a mark. Out: a chunk with DETACHED_FLAGS as layout.py describes it, or a count of 1 lost.
// Never waits for another lane or warp, never writes outside of the chunk that it obtained.
#ifndef WARPLENS_DETAIL_DETACHED_CUH
#define WARPLENS_DETAIL_DETACHED_CUH

#include "arena.cuh"
#include "device.cuh"
#include "layout.h"

namespace warplens {
namespace detail {

__device__ __forceinline__ constexpr u32 mark_code(u32 site) {
  return site << layout::kCodeSiteShift | layout::kVerbMark << layout::kCodeVerbShift;
}

// One event, by one lane for those of the mask. In a function of its own, out of the way of the code that has the mark.
template <bool kLive>
WARPLENS_DETAIL_CALLED void store_detached(u64 chunk, u64 now, u32 launch, u32 record, u32 payload, u32 lanes) {
  const u32 count = 2u + (record & layout::kCodePayload);
  const u32 meta = chunk_meta(linear_warp(), read_smid(), count, layout::kDetachedFlags);
  if (kKeepNewest && kLive) {  // what the chunk held goes, its header first: see empty_chunk in direct.cuh
    store_words(chunk, 0, 0, 0, 0);
    fence_system();
    store_words(chunk + 16u, 0, 0, 0, 0);
    fence_system();
  }
  // The record last: where it is seen, all else is there.
  store_words(chunk, linear_block(), meta, launch, layout::kDetachedSequence);
  store_word(chunk + 32u, payload);
  if (kLive) fence_system();
  store_words(chunk + 16u, low(now), high(now), record, lanes);
  if (kLive) fence_system();
}
static_assert(layout::kWordBlock == 0 && layout::kWordMeta == 1 && layout::kWordGrid == 2 &&
                  layout::kWordSequence == 3 && layout::kWordBaseLow == 4 && layout::kWordBaseHigh == 5 &&
                  layout::kHeaderWords == 6,
              "the order of a header; a record, its id and its payload follow it");

// By the lowest of the lanes that are here together with the same payload. It asks anew whether the warp is recorded,
// since keeping the answer would take registers of the kernel. What asks for a chunk stands here and in no function
// that is called: ptxas begins a function that has an atomic with a result, or a load or store that is not weak, with a
// YIELD, and a YIELD lets go the lanes that wait behind the branch which has the mark. They would be apart from then
// on, and their marks too.
template <bool kLive>
__device__ __forceinline__ void write_detached(u64 now, u32 record, u32 payload) {
  const u32 here = __activemask();
  const u32 lanes = (record & layout::kCodePayload) != 0 ? __match_any_sync(here, payload) : here;
  if (read_laneid() == static_cast<u32>(__ffs(lanes) - 1)) {
    Choice choice;
    choice.ask();
    const Chosen chosen = choice.choose<false>();
    if (chosen.recorded) {
      const u32 spread = low(now);  // over a ring's cursors, as the sequence of a warp's own chunks
      const u64 chunk = find_address(ask_for_chunk(spread), spread);
      if (chunk == 0) {
        count_lost(1u);
      } else {
        const u32 launch = kAllRecorded ? low(read_gridid()) : chosen.launch;
        store_detached<kLive>(chunk, now, launch, record, payload, lanes);
        close_chunk(chunk, 1u);
      }
    }
  }
  __syncwarp(here);  // as at the end of write_unusual in kept.cuh
}

template <u32 kCodeBits, bool kLive, bool kOn>
struct Detached {
  __device__ __forceinline__ static void put(u32 code, u32 payload, bool after_wait) {
    if (after_wait) settle();
    const u64 now = read_clock();
    write_detached<kLive>(now, (low(now) << kCodeBits) + (code | layout::kCodeId), payload);
  }
};

// Off: constexpr for the reason that warplens.cuh gives.
template <u32 kCodeBits, bool kLive>
struct Detached<kCodeBits, kLive, false> {
  __device__ __forceinline__ static constexpr void put(u32, u32, bool) {}
};

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_DETACHED_CUH
