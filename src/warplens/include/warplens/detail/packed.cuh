// The storage policy `packed`: a warp keeps its last 26 records in the registers of its lanes, record n in lane 6 + n,
// and writes them with their header as one chunk in one coalesced store. Memory is touched once in 24 records and at
// the end, and nothing that takes long is waited for. Where no loop has marks the compiler counts the records, and a
// mark is three instructions without a branch; in a loop it is ten with one. Why so, and what the other ways cost:
// docs/adr/0004-buffers-and-overflow.md and 0009-marks-in-loops.md.
// In: codes, ids and payloads of marks. Out: chunks as layout.py describes them. Never waits for another warp,
// never writes outside of the chunk that it obtained. Wants whole warps: staged.cuh takes the others.
#ifndef WARPLENS_DETAIL_PACKED_CUH
#define WARPLENS_DETAIL_PACKED_CUH

#include "arena.cuh"
#include "device.cuh"
#include "kept.cuh"
#include "layout.h"

namespace warplens {
namespace detail {

constexpr u32 kMarkWords = 3;       // at most: the event, its id and its payload
constexpr u32 kIterationWords = 6;  // that have room behind the begin of an iteration

// The most records that may be kept when a mark is done.
constexpr u32 kUnasked = 1;  // until the second record
constexpr u32 kAsked = layout::kRecordSlots - kMarkWords;
constexpr u32 kNever = 0xffffffffu;  // of a warp that is not recorded: it counts on, and keeps nothing

// What a warp does at its second record: learns whether it is recorded, and asks for a chunk.
template <bool kInLoop>
__device__ __forceinline__ bool ask_at_second(const Choice& choice, u32 lane, Kept& kept, BlockFacts& block) {
  if (linear_warp() == 0) block.sm = read_smid();
  const Chosen chosen = choice.choose<kInLoop>();
  kept.grid = chosen.launch;
  if (chosen.recorded && lane == 0) kept.index = ask_for_chunk(kept.sequence);
  return chosen.recorded;
}

// What comes back of `turn`, in registers.
struct Turned {
  u64 own;
  u32 code, index, grid, flags;
  int slot;
  bool recorded;
};

// What all lanes agree on is worked out in front of the call, where the compiler sees that they do. kStraight: of marks
// that are in no loop, which take one chunk at a time, and give no account of more.
enum Rare : u32 { kBegins = 1, kAsks = 2, kWrites = 4, kStraight = 8 };

// The rare part of a mark in a loop, as one call: little then stands in the way of the others, and the branch around it
// is the same for the whole warp. `now` is the clock of the mark, whose record comes behind the call. The next chunk is
// asked for first, since the function returns when the answer is there.
template <u32 kCodeBits, u32 kSitesHash>
WARPLENS_DETAIL_CALLED Turned turn(u32 what, Kept kept, u32 own_high, u64 now, int slot, bool recorded, Choice choice,
                                   BlockFacts block) {
  const u32 active = __activemask();
  const bool is_first = kept.flags == 0;
  u64 own = is_first ? clock_before(now, kept.time) : static_cast<u64>(own_high) << 32 | kept.time;
  const bool writes = (what & kWrites) != 0 && (kAllRecorded || recorded);
  u32 next = kept.index + layout::kCursorCount, flags = kept.flags - (1u << kLeftShift);
  if (writes && kept.chunks_left() == 0) {
    const u32 more = (what & kStraight) != 0 ? 0u : kept.more_chunks();
    flags = layout::kFlagExact | more << kLeftShift;
    if (linear_thread() % 32u == 0) next = ask_for_chunks(kept.sequence + kept.count, 1u + more);
  }
  const bool usual = writes && (kept.flags & layout::kFlagExact) != 0;
  if (!usual || !store_of_loop<kCodeBits>(kept, own, slot, now)) {
    const u32 lane = linear_thread() % 32u;
    if ((what & kBegins) != 0) {
      u32 clock, code;
      read_timers(clock, code, block.begin_globaltimer, linear_thread(), 0);
      block.begin_globaltimer -= (clock - low(now)) / 2u;  // two cycles a nanosecond are near enough for so few
      own = now;
    }
    if (is_first && (what & kStraight) == 0 && lane < kFirstLane)
      kept.code = kept.header_code(lane, block.begin_globaltimer);
    if ((what & kAsks) != 0) recorded = ask_at_second<true>(choice, lane, kept, block);
    if (!kAllRecorded && (what & kAsks) != 0 && lane == layout::kWordGrid) kept.code = kept.grid;
    // The same in all lanes, and by a vote, since ptxas would guard each mark against lanes that part if it did not
    // know.
    if (!kAllRecorded) recorded = __all_sync(active, recorded);
    if (writes) write_chunk<kCodeBits, kSitesHash, false, false, false>(kept, own, lane, now, block);
    if (is_first && !writes) kept.flags = kept.count == 0 ? layout::kFlagExact : layout::kFlagNear;
    slot = static_cast<int>(lane - kFirstLane);
  }
  if (writes) {
    own = now;
    kept.index = next;
    kept.flags = flags;
  }
  __syncwarp(active);  // as at the end of write_unusual
  return {own, kept.code, kept.index, kept.grid, kept.flags, slot, recorded};
}

// The end of a warp whose count is known at run time only.
template <u32 kCodeBits, u32 kSitesHash>
WARPLENS_DETAIL_CALLED void write_rest(Kept kept, u32 own_high, u64 now, BlockFacts block) {
  const u64 own = kept.flags != 0 ? static_cast<u64>(own_high) << 32 | kept.time : clock_before(now, kept.time);
  const u32 lane = linear_thread() % 32u;
  // No register holds these through the loop.
  if (kept.flags != 0) block.begin_globaltimer = __shfl_sync(__activemask(), kept.code, kBeginLane);
  if (linear_warp() == 0) block.sm = read_smid();
  write_last<kCodeBits, kSitesHash, false, true>(kept, own, lane, now, block);
}

template <u32 kCodeBits, u32 kSitesHash>
class Packed {
 public:
  // What a block does before its first loads are under way costs most: the first mark reads the timers, and little
  // else. Thread and block are asked for in front of it, as the kernel would do: behind it their answer would come
  // late.
  __device__ __forceinline__ Packed() {
    has_more_to_do_ = is_due_ = opaque(1) != 0;
    choice_.ask();
    ask_for(linear_thread(), linear_block());
  }

  // Up to three words: the event, then its id and its payload where the code says so.
  __device__ __forceinline__ void put(u32 code, u32 id, u32 payload, bool after_wait) {
    if (after_wait) settle();
    if (is_counted()) {
      keep_counted(code);
    } else {
      keep_in_loop(code, 1u + (code / layout::kCodeId & 1u) + (code & layout::kCodePayload));
    }
    if ((code & layout::kCodeId) != 0) keep_raw(id);
    if ((code & layout::kCodePayload) != 0) keep_raw(payload);
    if (is_counted() && kept_.count > limit_) make_room();
  }

  __device__ __forceinline__ bool leaves_out(u32 iteration) const { return choice_.leaves_out(iteration); }

  // Of a loop's iteration whose marks follow: they share one question, as far as their words have room. The usual chunk
  // is written here, since a call and its return take longer than that.
  __device__ __forceinline__ void begin_iteration() {
    if (is_counted()) return;
    if (!begun_) {  // the block's begin is that of its first mark
      room_ = 0;
      return;
    }
    constexpr u32 kMore = kIterationWords - kMarkWords;
    if (is_due_) {
      const u64 now = read_clock();  // not a mark
      const bool writes = is_exact_ && kept_.count + kMore > limit_ && limit_ != kUnasked;
      if (writes && store_of_loop<kCodeBits>(kept_, own(), slot_, now)) {
        kept_.template begin_chunk<false>(static_cast<u32>(slot_) + kFirstLane, now);
        own_high_ = high(now);
      } else {
        make_way(now, kMore);
      }
    }
    room_ = kIterationWords;
  }

  // Index that the next record will have in the warp's own count.
  __device__ __forceinline__ u32 next_sequence() const { return kept_.sequence + kept_.count; }

  __device__ __forceinline__ void finish(bool after_wait) {
    if (after_wait) settle();
    const u64 base = read_clock();
    if (!is_counted()) lane_ = linear_thread() % 32u;
    if (!begun_) {  // no mark was passed
      lane_ = linear_thread() % 32u;
      block_.begin_globaltimer = low(read_globaltimer());
      kept_.time = low(base);
    }
    if (linear_warp() == 0) block_.globaltimer = read_globaltimer();
    if (limit_ == kUnasked) make_room();
    choice_.end_block();
    if (!kAllRecorded && !recorded_) return;
    if (is_counted()) {
      write_last<kCodeBits, kSitesHash, kCanTell, false>(kept_, clock_before(base, kept_.time), lane_, base, block_);
    } else {
      write_rest<kCodeBits, kSitesHash>(kept_, own_high_, base, block_);
    }
  }

 private:
  static constexpr bool kCanTell = WARPLENS_DETAIL_CAN_TELL != 0;

  // Does the compiler know here how many records are kept? It does where no loop has marks. A compiler that cannot say
  // so takes the same way in loops: each mark has a branch that vanishes where the count is known, and waits in which
  // the clock's high half changes are told as doubtful.
  __device__ __forceinline__ bool is_counted() const {
    return WARPLENS_DETAIL_KNOWN(begun_) && WARPLENS_DETAIL_KNOWN(kept_.count) && WARPLENS_DETAIL_KNOWN(limit_);
  }

  // Every lane from that of record `count` on takes time and code; the next record overwrites all but the first of
  // them. The lanes of the header keep the clock of the chunk's begin.
  __device__ __forceinline__ void keep_counted(u32 code) {
    if (begun_) {
      take_clock(kept_.time, kept_.code, lane_, kFirstLane + kept_.count, code);
    } else {
      read_timers(kept_.time, kept_.code, block_.begin_globaltimer, linear_thread(), code);
      lane_ = lane_behind_timers(linear_thread());
      begun_ = true;
    }
    ++kept_.count;
  }

  // One branch, and what it asks for is known since the mark before: what a branch asks for just then is waited for
  // (ADR 9). Behind the begin of an iteration there is none for the words that have room there. Each record keeps all
  // of its clock, so that no gap is ever guessed.
  __device__ __forceinline__ void keep_in_loop(u32 code, u32 words) {
    const u64 now = read_clock();
    if (room_ >= words) {
      room_ -= words;
    } else {
      if (has_more_to_do_) make_way(now, 0);
      room_ = 0;
    }
    begun_ = true;  // the first mark has more to do: so the compiler knows it behind each
    keep_clock(kept_.time, own_high_, kept_.code, slot_, kept_.count, now, code);
    ++kept_.count;
    ask_ahead();
  }

  __device__ __forceinline__ void ask_ahead() {
    const u32 limit = opaque(limit_);
    has_more_to_do_ = kept_.count > limit;
    is_due_ = kept_.count + (kIterationWords - kMarkWords) > limit;
  }

  __device__ __forceinline__ void keep_raw(u32 word) {
    kept_.raws |= 1u << (kept_.count % 32u);  // of a warp that is not recorded it grows on
    const bool free = is_counted() ? lane_ >= kFirstLane + kept_.count : slot_ >= static_cast<int>(kept_.count);
    kept_.time = free ? word : kept_.time;
    ++kept_.count;
    if (!is_counted()) ask_ahead();
  }

  // Space is asked for at the second record: behind the kernel's own first loads, so that the answer arrives behind
  // the rest of the kernel.
  __device__ __forceinline__ void make_room() {
    if (limit_ == kUnasked) {
      recorded_ = ask_at_second<false>(choice_, lane_, kept_, block_);
      limit_ = kAsked;
    } else if (!kAllRecorded && !recorded_) {
      kept_.count = 0;
    } else if (kCanTell) {
      const u64 base = read_clock();  // not a mark: audit/names.py reads this
      write_chunk<kCodeBits, kSitesHash, false, true, true>(kept_, base, lane_, base, block_);
      kept_.template begin_chunk<true>(lane_, base);
    } else {
      const u64 now = read_clock();  // not a mark
      const u32 what = kWrites | kStraight;
      kept_.index = turn<kCodeBits, kSitesHash>(what, kept_, 0, now, 0, recorded_, choice_, block_).index;
      kept_.sequence += kept_.count;
      kept_.count = kept_.raws = 0;
      kept_.time = low(now);
    }
  }

  // Before a mark in a loop, or an iteration that needs room for `more` words than that, where there may be no room, or
  // before the first. What all lanes agree on is worked out here, where the compiler sees that they do.
  __device__ __forceinline__ void make_way(u64 now, u32 more) {
    const bool full = kept_.count + more > limit_;
    const bool asks = full && limit_ == kUnasked;
    const bool writes = full && limit_ != kUnasked;
    const u32 what = (begun_ ? 0u : kBegins) | (asks ? kAsks : 0u) | (writes ? kWrites : 0u);
    const Turned turned =
        turn<kCodeBits, kSitesHash>(what, kept_, own_high_, by_lane(now), slot_, recorded_, choice_, block_);
    kept_.time = low(turned.own);
    own_high_ = high(turned.own);
    kept_.code = turned.code;
    kept_.index = turned.index;
    kept_.grid = turned.grid;
    kept_.flags = turned.flags;
    slot_ = turned.slot;
    recorded_ = turned.recorded;
    kept_.sequence += writes ? kept_.count : 0u;
    kept_.raws = writes ? 0u : kept_.raws;
    kept_.count = writes ? 0u : kept_.count;
    // As a vote, or ptxas would not know that all lanes agree about it.
    const bool recorded = kAllRecorded || __all_sync(__activemask(), recorded_);
    if (asks || !recorded) limit_ = recorded ? kAsked : kNever;
    is_exact_ = is_exact_ || kept_.count == 0;
    begun_ = true;
  }

  __device__ __forceinline__ u64 own() const { return static_cast<u64>(own_high_) << 32 | kept_.time; }

  bool begun_ = false;
  bool recorded_ = true;   // until it is known
  bool is_exact_ = false;  // each record has all of its clock
  // With values: ptxas of CUDA 13.0 takes what is set on one way only for set on the other too.
  u32 lane_ = 0;  // where marks are counted
  int slot_ = 0;  // in loops: the record that this lane keeps; less than 0: a word of the header
  u32 limit_ = kUnasked;
  u32 own_high_ = 0;     // high half of the clock of this lane's record, where the mark is in a loop
  u32 room_ = 0;         // words that the next marks in a loop may take without a question
  bool has_more_to_do_;  // at the next mark in a loop
  bool is_due_;          // the same at the next begin of an iteration
  Kept kept_{0, 0, 0, 0, kNone, 0, 0, 0};
  BlockFacts block_;
  Choice choice_;
};

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_PACKED_CUH
