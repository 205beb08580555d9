// The storage policies `stream` and `live`: one lane writes each record to its chunk at once, so that what a warp has
// done can be read while the kernel runs. `stream` writes to device memory. `live` writes to mapped host memory, which
// the host reads without a call to the driver while a kernel hangs and after it has crashed; it lets each record arrive
// before the warp goes on, and keeps beside the chunks where each resident warp last was, also when no space is left.
// In: codes, ids and payloads of marks. Out: chunks with the flag STREAM: the header, whose base is the clock of the
// chunk's begin, is written first; records follow, and a word of zeros is not written yet. A warp's end is a record.
// Takes warps of any size; the lowest lane that is there when a chunk begins writes, and speaks for the warp.
// In a ring a chunk is open, and written over by nobody, until its warp begins the next one or ends.
#ifndef WARPLENS_DETAIL_DIRECT_CUH
#define WARPLENS_DETAIL_DIRECT_CUH

#include "arena.cuh"
#include "device.cuh"
#include "layout.h"

namespace warplens {
namespace detail {

// Where the next record goes, in the lane that writes: 0 in the others, and where no space is left.
struct Place {
  u32 low;
  u32 high;
  bool writes;  // this lane does, or would
  bool asked;
  bool on;  // the warp is recorded
  u32 launch;
};

// What a chunk of a ring held goes: the header first, so that who looks while the kernel runs takes no part of it for
// the new one's, and then the records, of which a word of zeros is not written yet.
template <bool kLive>
__device__ __forceinline__ void empty_chunk(u64 chunk) {
  store_words(chunk, 0, 0, 0, 0);
  if (kLive) fence_system();
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (u32 word = 4; word < layout::kChunkWords; word += 4u) store_words(chunk + 4u * word, 0, 0, 0, 0);
  if (kLive) fence_system();
}

// The chunk that `place` is in, in the lane that writes it, has all its events.
template <bool kLive>
__device__ __forceinline__ void leave_chunk(const Place& place, u32 events) {
  if (!kKeepNewest) return;
  const u64 behind = static_cast<u64>(place.high) << 32 | place.low;  // of a full chunk its end
  if (kLive) fence_system();
  close_chunk((behind - 4u) & ~static_cast<u64>(layout::kChunkBytes - 1u), events);
}

// A chunk's header, by the lowest lane of those that are there. `events` stood in the chunk before. One function that
// calls no other: see write_chunk in kept.cuh.
template <u32 kCodeBits, bool kLive>
WARPLENS_DETAIL_CALLED Place open_chunk(Place before, u64 now, u32 sequence, u32 events, Choice choice) {
  Place place = before;
  if (!before.asked) {
    const Chosen chosen = choice.choose<true>();
    place.asked = true;
    place.on = chosen.recorded;
    place.launch = kAllRecorded ? low(read_gridid()) : chosen.launch;
  }
  if (kKeepNewest && before.high != 0) leave_chunk<kLive>(before, events);
  const u32 active = __activemask();
  place.low = place.high = 0;
  place.writes = place.on && linear_thread() % 32u == static_cast<u32>(__ffs(active) - 1);
  if (place.writes) {
    if (before.writes && before.high == 0 && events != 0) count_lost(events);
    const u64 chunk = find_address(ask_for_chunk(sequence), sequence);
    if (chunk != 0) {
      if (kKeepNewest) empty_chunk<kLive>(chunk);
      store_word(chunk + 4u * layout::kWordBaseLow, low(now));
      store_word(chunk + 4u * layout::kWordBaseHigh, high(now));
      if (kKeepNewest && kLive) fence_system();
      const u32 threads = blockDim.x * blockDim.y * blockDim.z - linear_warp() * 32u;
      const u32 whole = threads >= 32u ? kFullMask : (1u << threads) - 1u;
      const u32 flags = layout::kFlagStream | (active == whole ? 0u : layout::kFlagPartial);
      const u32 meta = chunk_meta(linear_warp(), read_smid(), 0, flags);
      store_words(chunk, linear_block(), meta, place.launch, sequence);
      if (kLive) fence_system();
      place.low = low(chunk) + 4u * layout::kHeaderWords;
      place.high = high(chunk);
    }
  }
  __syncwarp(active);  // as at the end of write_unusual in kept.cuh
  return place;
}

template <u32 kCodeBits, u32 kSitesHash, bool kLive>
class Direct {
 public:
  __device__ __forceinline__ Direct() { choice_.ask(); }

  __device__ __forceinline__ void put(u32 code, u32 id, u32 payload, bool after_wait) {
    if (after_wait) settle();
    const u64 now = read_clock();
    const u32 words = 1u + ((code & layout::kCodeId) != 0) + ((code & layout::kCodePayload) != 0);
    if (slots_ < words || low(now >> kEpochShift) - epoch_ > 1u) open(now);
    // The event last: where it is seen, its id and payload are there. The fence behind it holds for the place too.
    const bool has_id = (code & layout::kCodeId) != 0;
    if ((code & layout::kCodePayload) != 0) store(has_id ? 2u : 1u, payload);
    if (has_id) store(1u, id);
    if (kLive) tell_last((low(now) << kCodeBits) + code);
    store(0, (low(now) << kCodeBits) + code);
    place_.low += 4u * words;
    slots_ -= words;
    sequence_ += words;
    ++events_;
  }

  __device__ __forceinline__ bool leaves_out(u32 iteration) const { return choice_.leaves_out(iteration); }
  __device__ __forceinline__ void begin_iteration() {}

  __device__ __forceinline__ u32 next_sequence() const { return sequence_; }

  __device__ __forceinline__ void finish(bool after_wait) {
    constexpr u32 kEnd = layout::kControlCodeEnd << layout::kCodeVerbShift;
    // A block record takes the room of the last eight records; the end takes one.
    if (linear_warp() == 0 && slots_ < layout::kRecordSlots - layout::kBlockRecordSlots + 1u) slots_ = 0;
    put(kEnd, 0, 0, after_wait);
    choice_.end_block();
    if (place_.high == 0) {
      if (place_.writes && events_ > 1u) count_lost(events_ - 1u);
      return;
    }
    if (linear_warp() == 0) end_block();
    leave_chunk<kLive>(place_, events_ - 1u);
  }

 private:
  // Two clocks whose epochs differ by at most one lie less than what a record can tell apart.
  static constexpr u32 kEpochShift = 31u - kCodeBits;

  __device__ __forceinline__ void end_block() const {
    const u64 globaltimer = read_globaltimer();
    const u64 chunk = (static_cast<u64>(place_.high) << 32 | place_.low) & ~static_cast<u64>(layout::kChunkBytes - 1u);
    const u64 record = chunk + 4u * layout::kBlockRecordWord;
    store_words(record, begin_globaltimer_, low(globaltimer), high(globaltimer), read_smid());
    store_words(record + 16u, kSitesHash, high(read_gridid()), 0, 0);
    const u32 flags = layout::kFlagStream | layout::kFlagBlockRecord;
    store_word(chunk + 4u * layout::kWordMeta, chunk_meta(0, read_smid(), 0, flags));
    if (kLive) fence_system();
  }

  __device__ __forceinline__ void store(u32 slot, u32 word) {
    store_if(place_.high != 0, place_.low + 4u * slot, place_.high, word);
    if (kLive) fence_system();
  }

  __device__ __forceinline__ void open(u64 now) {
    if (sequence_ == 0) begin_globaltimer_ = low(read_globaltimer());
    place_ = open_chunk<kCodeBits, kLive>(place_, now, sequence_, events_, choice_);
    epoch_ = low(now >> kEpochShift);
    slots_ = layout::kRecordSlots;
    events_ = 0;
  }

  // Where this warp now is, for one who looks at a kernel that hangs: by SM and by the SM's own number of the warp.
  __device__ __forceinline__ void tell_last(u32 record) const {
    if (!place_.writes) return;
    const u64 entry = last_address() + (read_smid() * layout::kLastWarps + read_warpid()) * layout::kLastBytes;
    store_words(entry, linear_block() + 1u, linear_warp(), sequence_, record);
  }

  u32 epoch_ = 0;     // of the chunk's begin
  u32 slots_ = 0;     // that are left in the chunk
  u32 events_ = 0;    // in the chunk
  u32 sequence_ = 0;  // of the next record
  u32 begin_globaltimer_ = 0;
  Place place_{0, 0, false, false, false, 0};
  Choice choice_;
};

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_DIRECT_CUH
