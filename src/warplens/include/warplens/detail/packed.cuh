// The storage policy `packed`: a warp keeps its last 26 records in the registers of its lanes, record n in lane 6 + n,
// and writes them with their header as one chunk in one coalesced store. A mark is three instructions (a compare,
// the clock, a select of the code); memory is touched once in 24 records and at the end, and nothing that takes long is
// waited for. Why so, and what the other ways cost: docs/adr/0004-buffers-and-overflow.md.
// In: codes, ids and payloads of marks. Out: chunks as layout.py describes them. Never waits for another warp,
// never writes outside of the chunk that it obtained. Wants whole warps: staged.cuh takes the others.
#ifndef WARPLENS_DETAIL_PACKED_CUH
#define WARPLENS_DETAIL_PACKED_CUH

#include "arena.cuh"
#include "device.cuh"
#include "layout.h"

namespace warplens {
namespace detail {

constexpr u32 kFirstLane = layout::kHeaderWords;  // of record 0

// What one lane writes, and what all know.
struct Batch {
  u32 word;      // word of the chunk: of the header in lanes 0 to 5, a record in the others
  u32 count;     // records
  u32 sequence;  // of the first of them
  u32 index;     // lane 0: of the chunk asked for; kNone elsewhere
  u32 raws;      // bit n: record n is an id or a payload
};

// Space for a chunk, the same in all lanes of `active`; 0 when none is left, and then the loss is counted.
inline __device__ __noinline__ u64 find_chunk(u32 active, u32 index, u32 events) {
  const u32 leader = __ffs(active) - 1;
  u64 chunk = 0;
  if (read_laneid() == leader) {
    chunk = find_address(index != kNone ? index : ask_for_chunk());
    if (chunk == 0) count_lost(events);
  }
  return static_cast<u64>(__shfl_sync(active, high(chunk), leader)) << 32 | __shfl_sync(active, low(chunk), leader);
}

// Six words, of which lane l takes number l % 8: the header in lanes 0 to 5, the block record from lane 24 on.
struct Words {
  u32 values[6];

  __device__ __forceinline__ u32 of(u32 lane) const {
    const u32 first = select(lane & 1u, values[1], values[0]);
    const u32 second = select(lane & 1u, values[3], values[2]);
    const u32 third = select(lane & 1u, values[5], values[4]);
    return select(lane & 4u, third, select(lane & 2u, second, first));
  }
};
static_assert(layout::kWordBlock == 0 && layout::kWordMeta == 1 && layout::kWordGrid == 2 &&
                  layout::kWordSequence == 3 && layout::kWordBaseLow == 4 && layout::kWordBaseHigh == 5,
              "the order of Words in a header");
static_assert(layout::kBlockRecordWord % 8u == 0 && layout::kBlockGlobaltimerBegin == 0 &&
                  layout::kBlockGlobaltimerLow == 1 && layout::kBlockGlobaltimerHigh == 2 && layout::kBlockSm == 3 &&
                  layout::kBlockSitesHash == 4 && layout::kBlockGridHigh == 5,
              "the order of Words in a block record");

// What the first warp of a block notes at its begin, and the globaltimer at its end.
struct BlockFacts {
  u32 begin_globaltimer;
  u32 sm;
  u64 globaltimer;

  template <u32 kSitesHash>
  __device__ __forceinline__ Words words() const {
    return {{begin_globaltimer, low(globaltimer), high(globaltimer), sm, kSitesHash, high(read_gridid())}};
  }
};

// The rare way to write: lanes are missing or disagree, or the cursor is at its end. Each run of neighbouring records
// that are there becomes a chunk; what stood in absent lanes is a gap in `sequence`.
template <u32 kSitesHash>
__device__ __noinline__ void write_unusual(Batch batch, u64 base, u32 flags, BlockFacts block) {
  const u32 active = __activemask();
  const u32 lane = read_laneid();
  const u32 leader = __ffs(active) - 1;
  if (active != kFullMask) flags |= layout::kFlagPartial;
  if (!__all_sync(active, batch.count == __shfl_sync(active, batch.count, leader))) flags |= layout::kFlagNonuniform;
  u32 pending = __ballot_sync(active, lane - kFirstLane < batch.count);
  // Lanes that have parted may disagree: what decides how often they shuffle is the same in all of them.
  const u32 raws = __ballot_sync(active, (batch.raws << kFirstLane >> lane & 1u) != 0);
  const u32 count = __shfl_sync(active, batch.count, leader);
  // Records at the end that lie in lanes that are elsewhere: an empty chunk behind them makes them a gap.
  bool tail = (flags & layout::kFlagLast) != 0 && count != 0 && (pending >> (kFirstLane + count - 1u) & 1u) == 0;
  if (pending == 0 && count != 0 && !tail) return;  // what is kept lies in lanes that are elsewhere
  do {
    const bool empty = pending == 0;
    const u32 start = empty ? kFirstLane + (tail ? count : 0u) : __ffs(pending) - 1;
    if (empty) tail = false;
    if (!empty && ((pending & raws) >> start & 1u) != 0) {  // its event is missing: the bare word means nothing
      pending &= pending - 1u;
      continue;
    }
    const u32 length = empty ? 0u : __ffs(~(pending >> start)) - 1;  // at most 26 bits are set
    const u32 run = empty ? 0u : ((1u << length) - 1u) << start;
    pending &= ~run;
    const u64 chunk = find_chunk(active, batch.index, __popc(run & ~raws));
    batch.index = kNone;
    if (chunk == 0) continue;
    u32 run_flags = pending != 0 || tail ? flags & ~layout::kFlagLast : flags;
    const bool block_record = (run_flags & layout::kFlagLast) != 0 && linear_warp() == 0 && active == kFullMask &&
                              length <= layout::kBlockRecordSlots;
    if (block_record) run_flags |= layout::kFlagBlockRecord;
    if (lane == leader) {
      store_words(chunk, linear_block(), chunk_meta(linear_warp(), read_smid(), length, run_flags), low(read_gridid()),
                  batch.sequence + start - kFirstLane);
      store_word(chunk + 4u * layout::kWordBaseLow, low(base));
      store_word(chunk + 4u * layout::kWordBaseHigh, high(base));
    }
    if (lane >= start && lane < start + length) {
      store_word(chunk + 4u * (layout::kHeaderWords + lane - start), batch.word);
    }
    if (block_record && lane >= layout::kBlockRecordWord) {
      store_word(chunk + 4u * lane, block.template words<kSitesHash>().of(lane));
    }
  } while (pending != 0 || tail);
}

template <u32 kCodeBits, u32 kSitesHash>
class Packed {
 public:
  // What a block does before its first loads are under way costs most: the first mark reads the timers, and little
  // else. Thread and block are asked for in front of it, as the kernel would do: behind it their answer would come
  // late.
  __device__ __forceinline__ Packed() {
    mode_ = load_mode(threadIdx.x >> 10);  // + 0, which ptxas does not know
    ask_for(linear_thread(), linear_block());
  }

  // Up to three words: the event, then its id and its payload where the code says so.
  __device__ __forceinline__ void put(u32 code, u32 id, u32 payload, bool after_wait) {
    if (after_wait) settle();
    keep_event(code);
    if ((code & layout::kCodeId) != 0) keep_raw(id);
    if ((code & layout::kCodePayload) != 0) keep_raw(payload);
    if (count_ > limit_) make_room();
  }

  // Index that the next record will have in the warp's own count.
  __device__ __forceinline__ u32 next_sequence() const { return sequence_ + count_; }

  __device__ __forceinline__ void finish(bool after_wait) {
    if (after_wait) settle();
    const u64 base = read_clock();
    if (!begun_) {  // no mark was passed
      lane_ = linear_thread() % 32u;
      block_.begin_globaltimer = low(read_globaltimer());
    }
    if (linear_warp() == 0) block_.globaltimer = read_globaltimer();
    if (limit_ == kUnasked) make_room();
    if (!kArenaKnown && limit_ == kOff) return;
    // A block record needs the room of the last records: warp 0 may have to write twice.
    if (count_ > layout::kBlockRecordSlots && linear_warp() == 0) {
      write<false>(base);
      begin_chunk();
    }
    write<true>(base);
  }

 private:
  // The most records that may be kept when a mark is done; one takes up to three words.
  static constexpr u32 kUnasked = 1;  // until the second record
  static constexpr u32 kAsked = layout::kRecordSlots - 3u;
  static constexpr u32 kOff = 0x7ffffff0u;  // of a warp that is not recorded

  // Every lane from that of record `count` on takes time and code; the next record overwrites all but the first of
  // them. The lanes of the header are written over at the end.
  __device__ __forceinline__ void keep_event(u32 code) {
    if (begun_) {
      take_clock(time_, code_, lane_, kFirstLane + count_, code);
    } else {
      read_timers(time_, block_.begin_globaltimer, linear_thread());
      lane_ = lane_behind_timers(linear_thread());
      code_ = code;
    }
    begun_ = true;
    ++count_;
  }

  __device__ __forceinline__ void keep_raw(u32 word) {
    raws_ |= 1u << (count_ % 32u);  // of a warp that is not recorded it grows on
    time_ = lane_ >= kFirstLane + count_ ? word : time_;
    ++count_;
  }

  // Space is asked for at the second record: behind the kernel's own first loads, so that the answer arrives behind
  // the rest of the kernel.
  __device__ __forceinline__ void make_room() {
    if (limit_ == kUnasked) {
      limit_ = kAsked;
      if (linear_warp() == 0) block_.sm = read_smid();
      if (mode_ != layout::kModeAll && !is_recorded(mode_)) {
        limit_ = kOff;
      } else if (lane_ == 0) {
        index_ = ask_for_chunk();
      }
    } else if (!kArenaKnown && limit_ == kOff) {
      count_ = 0;
    } else {
      write<false>(read_clock());
      begin_chunk();
    }
  }

  __device__ __forceinline__ void begin_chunk() {
    sequence_ += count_;
    count_ = 0;
    raws_ = 0;
    if (lane_ == 0) index_ = ask_for_chunk();
  }

  // Writes the records kept; the whole warp stores one chunk where all is as usual. What is stored is worked out in
  // front of the branch, while the shuffle is under way.
  template <bool kLast>
  __device__ __forceinline__ void write(u64 base) {
    constexpr u32 kFlags = kLast ? layout::kFlagLast : 0u;
    const u32 active = __activemask();
    const u32 index = __shfl_sync(active, index_, 0);
    // Lanes that have passed as many marks agree on which of them keep a record.
    const u32 kept = __ballot_sync(active, lane_ - kFirstLane < count_);
    const u32 warp = linear_warp();
    const bool is_raw = (raws_ << kFirstLane >> lane_ & 1u) != 0;
    const u32 record = is_raw ? time_ : (time_ << kCodeBits) + code_;
    const u32 word = select(lane_ < kFirstLane, header(base, warp, kFlags).of(lane_), record);
    const u64 chunk = chunk_address(index);
    const u64 address = static_cast<u64>(high(chunk)) << 32 | low(chunk) | lane_ * 4u;  // chunks are aligned
    const bool usual = active == kFullMask && kept == ((1u << count_) - 1u) << kFirstLane && index < shared_chunks();
    if (!__all_sync(active, usual)) {
      write_unusual<kSitesHash>({record, count_, sequence_, index_, raws_}, base, kFlags, block_);
      return;
    }
    if (kLast && warp == 0) {
      const u32 flags = (kFlags | layout::kFlagBlockRecord) << layout::kMetaFlagsShift;
      const u32 own = lane_ == layout::kWordMeta ? word | flags : word;
      const bool in_record = lane_ >= layout::kBlockRecordWord;
      store_word(address, select(in_record, block_.template words<kSitesHash>().of(lane_), own));
    } else if (lane_ < ((layout::kHeaderWords + count_ + 7u) & ~7u)) {  // whole sectors of 32 bytes
      store_word(address, word);
    }
  }

  __device__ __forceinline__ Words header(u64 base, u32 warp, u32 flags) const {
    // Where all warps are recorded the block's first one tells the SM for all of them.
    const u32 sm = kArenaKnown ? layout::kMetaSmUnknown : read_smid();
    return {
        {linear_block(), chunk_meta(warp, sm, count_, flags), low(read_gridid()), sequence_, low(base), high(base)}};
  }

  bool begun_ = false;
  u32 mode_;
  u32 lane_;
  u32 time_;      // low half of clock64, or a raw word
  u32 code_ = 0;  // of the same record
  u32 count_ = 0;
  u32 limit_ = kUnasked;
  u32 index_ = kNone;
  u32 sequence_ = 0;
  u32 raws_ = 0;
  BlockFacts block_;
};

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_PACKED_CUH
