// The storage policy `packed`: a warp keeps its last 26 records in the registers of its lanes, record n in lane 6 + n,
// and writes them with their header as one chunk in one coalesced store. A mark is three instructions (the clock,
// a compare, a shift-and-add); memory is touched once in 26 records and at the end, and nothing that takes long is
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

// Word of the block record that belongs into this lane, 24 to 31.
template <u32 kSitesHash>
__device__ __forceinline__ u32 block_record_word(u32 lane, u32 begin_globaltimer, u64 globaltimer) {
  const u32 words[] = {begin_globaltimer, low(globaltimer), high(globaltimer),
                       read_smid(),       kSitesHash,       high(read_gridid())};
  u32 word = 0;
#pragma unroll
  for (u32 i = 0; i < 6; ++i) word = lane == layout::kBlockRecordWord + i ? words[i] : word;
  return word;
}

// The rare way to write: lanes are missing or disagree, or the cursor is at its end. Each run of neighbouring records
// that are there becomes a chunk; what stood in absent lanes is a gap in `sequence`.
template <u32 kSitesHash>
__device__ __noinline__ void write_unusual(Batch batch, u64 base, u64 globaltimer, u32 flags, u32 begin_globaltimer) {
  const u32 active = __activemask();
  const u32 lane = read_laneid();
  const u32 leader = __ffs(active) - 1;
  if (active != kFullMask) flags |= layout::kFlagPartial;
  if (!__all_sync(active, batch.count == __shfl_sync(active, batch.count, leader))) flags |= layout::kFlagNonuniform;
  u32 pending = __ballot_sync(active, lane - kFirstLane < batch.count);
  const u32 raws = batch.raws << kFirstLane;
  if (pending == 0 && batch.count != 0) return;  // what is kept lies in lanes that are elsewhere
  do {
    const u32 start = pending != 0 ? __ffs(pending) - 1 : kFirstLane;
    if ((pending & raws) >> start & 1u) {  // its event is missing: the bare word means nothing
      pending &= pending - 1u;
      continue;
    }
    const u32 length = __ffs(~(pending >> start)) - 1;  // at most 26 bits are set
    const u32 run = ((1u << length) - 1u) << start;
    pending &= ~run;
    const u64 chunk = find_chunk(active, batch.index, __popc(run & ~raws));
    batch.index = kNone;
    if (chunk == 0) continue;
    u32 run_flags = pending != 0 ? flags & ~layout::kFlagLast : flags;
    const bool block_record = (run_flags & layout::kFlagLast) != 0 && linear_warp() == 0 && active == kFullMask &&
                              length <= layout::kBlockRecordSlots;
    if (block_record) run_flags |= layout::kFlagBlockRecord;
    if (lane == leader) {
      store_words(chunk, linear_block(), chunk_meta(linear_warp(), layout::kMetaSmUnknown, length, run_flags),
                  low(read_gridid()), batch.sequence + start - kFirstLane);
      store_word(chunk + 4u * layout::kWordBaseLow, low(base));
      store_word(chunk + 4u * layout::kWordBaseHigh, high(base));
    }
    if (lane >= start && lane < start + length) {
      store_word(chunk + 4u * (layout::kHeaderWords + lane - start), batch.word);
    }
    if (block_record && lane >= layout::kBlockRecordWord) {
      store_word(chunk + 4u * lane, block_record_word<kSitesHash>(lane, begin_globaltimer, globaltimer));
    }
  } while (pending != 0);
}

template <u32 kCodeBits, u32 kSitesHash>
class Packed {
 public:
  // What a block does before its first loads are under way costs most: the first mark reads the clock, nothing else.
  __device__ __forceinline__ Packed() { mode_ = load_mode(threadIdx.x >> 10); }  // + 0, which ptxas does not know

  // Up to three words: the event, then its id and its payload where the code says so.
  __device__ __forceinline__ void put(u32 code, u32 id = 0, u32 payload = 0) {
    const bool has_id = (code & layout::kCodeId) != 0;
    const bool has_payload = (code & layout::kCodePayload) != 0;
    const u32 words = 1 + (has_id ? 1 : 0) + (has_payload ? 1 : 0);
    const u64 clock = read_clock();
    if (count_ == 0 && sequence_ == 0 && linear_warp() == 0) begin_globaltimer_ = low(read_globaltimer());
    if (count_ + words > limit_) make_room(clock);
    keep_event(low(clock), code);
    if (has_id) keep_raw(id);
    if (has_payload) keep_raw(payload);
  }

  // Index that the next record will have in the warp's own count.
  __device__ __forceinline__ u32 next_sequence() const { return sequence_ + count_; }

  __device__ __forceinline__ void finish() {
    const u64 base = read_clock();
    u64 globaltimer = 0;
    if (linear_warp() == 0) globaltimer = read_globaltimer();
    if (limit_ == kUnasked) make_room(base);
    if (limit_ == kOff) return;
    // A block record needs the room of the last records: warp 0 may have to write twice.
    if (count_ > layout::kBlockRecordSlots && linear_warp() == 0) {
      write<false>(base, 0);
      begin_chunk();
    }
    write<true>(base, globaltimer);
  }

 private:
  static constexpr u32 kUnasked = 1;        // limit_ until the second record
  static constexpr u32 kOff = 0x7ffffff0u;  // limit_ of a warp that is not recorded

  // Every lane from that of record `count` on takes the word (at first all lanes: those of the header are written
  // over at the end); the next one overwrites all but the first of them.
  // In PTX, since ptxas would read the clock into a uniform register (S2UR) otherwise, which takes 20 cycles longer.
  __device__ __forceinline__ void keep_event(u32 time, u32 code) {
    if (count_ == 0) {
      word_ = (time << kCodeBits) + code;
    } else {
      asm("{.reg .pred p; .reg .u32 t; setp.ge.u32 p, %1, %2; shl.b32 t, %3, %4; @p add.u32 %0, t, %5;}"
          : "+r"(word_)
          : "r"(lane_), "r"(kFirstLane + count_), "r"(time), "n"(kCodeBits), "r"(code));
    }
    ++count_;
  }

  __device__ __forceinline__ void keep_raw(u32 word) {
    raws_ |= 1u << count_;
    word_ = count_ == 0 || lane_ >= kFirstLane + count_ ? word : word_;
    ++count_;
  }

  // Space is asked for at the second record: behind the kernel's own first loads, so that the answer arrives
  // behind the rest of the kernel. `clock` keeps ptxas from doing any of it earlier.
  __device__ __forceinline__ void make_room(u64 clock) {
    if (limit_ == kUnasked) {
      lane_ = read_laneid();
      const u32 mode = mode_ + (high(clock) >> 31);
      limit_ = layout::kRecordSlots;
      if (mode != layout::kModeAll && !is_recorded(mode)) {
        limit_ = kOff;
      } else if (lane_ == 0) {
        index_ = ask_for_chunk();
      }
    } else if (limit_ == kOff) {
      count_ = 0;
    } else {
      write<false>(clock, 0);
      begin_chunk();
    }
  }

  __device__ __forceinline__ void begin_chunk() {
    sequence_ += count_;
    count_ = 0;
    raws_ = 0;
    if (lane_ == 0) index_ = ask_for_chunk();
  }

  // Writes the records kept; the whole warp stores one chunk where all is as usual.
  template <bool kLast>
  __device__ __forceinline__ void write(u64 base, u64 globaltimer) {
    constexpr u32 kFlags = kLast ? layout::kFlagLast : 0u;
    bool usual = __activemask() == kFullMask;
    u32 index = index_;
    if (usual) {
      index = __shfl_sync(kFullMask, index_, 0);
      // Lanes that have passed as many marks agree on which of them keep a record.
      const u32 kept = __ballot_sync(kFullMask, lane_ - kFirstLane < count_);
      usual =
          __all_sync(kFullMask, kept == ((1u << count_) - 1u) << kFirstLane && index < warplens_device.shared_chunks);
    }
    if (!usual) {
      write_unusual<kSitesHash>({word_, count_, sequence_, index_, raws_}, base, globaltimer, kFlags,
                                begin_globaltimer_);
      return;
    }
    const u64 chunk = chunk_address(index);
    const u32 warp = linear_warp();
    const u32 flags = kLast && warp == 0 ? kFlags | layout::kFlagBlockRecord : kFlags;
    u32 word = word_;
    if (lane_ == layout::kWordBlock) word = linear_block();
    if (lane_ == layout::kWordMeta) word = chunk_meta(warp, layout::kMetaSmUnknown, count_, flags);
    if (lane_ == layout::kWordGrid) word = low(read_gridid());
    if (lane_ == layout::kWordSequence) word = sequence_;
    if (lane_ == layout::kWordBaseLow) word = low(base);
    if (lane_ == layout::kWordBaseHigh) word = high(base);
    u32 words = (layout::kHeaderWords + count_ + 7u) & ~7u;  // whole sectors of 32 bytes
    if (kLast && warp == 0) {
      words = layout::kChunkWords;
      if (lane_ >= layout::kBlockRecordWord)
        word = block_record_word<kSitesHash>(lane_, begin_globaltimer_, globaltimer);
    }
    if (lane_ < words) store_word(chunk + lane_ * 4u, word);
  }

  u32 mode_;
  u32 lane_ = 0;
  u32 word_ = 0;
  u32 count_ = 0;
  u32 limit_ = kUnasked;
  u32 index_ = kNone;
  u32 sequence_ = 0;
  u32 raws_ = 0;
  u32 begin_globaltimer_;  // of the block's first warp
};

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_PACKED_CUH
