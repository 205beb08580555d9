// The records that a warp keeps in the registers of its lanes, record n in lane 6 + n, and how they become a chunk: by
// the whole warp in one coalesced store, or the rare way, where lanes are missing or disagree, the cursor is at its
// end, or time has run too far. Policy `packed` (packed.cuh) says when. In: what lanes keep, a clock for the chunk.
// Out: chunks as layout.py describes them. Never waits for another warp, never writes outside of the chunk that it
// obtained.
#ifndef WARPLENS_DETAIL_KEPT_CUH
#define WARPLENS_DETAIL_KEPT_CUH

#include "arena.cuh"
#include "device.cuh"
#include "layout.h"

namespace warplens {
namespace detail {

constexpr u32 kFirstLane = layout::kHeaderWords;  // of record 0
constexpr u32 kLeftShift = 16;                    // above all flags of a chunk
constexpr u32 kBeginLane = layout::kWordBaseLow;  // Kept::header_code

// Records that a warp keeps: time and code by lane, the rest the same in all lanes but `index`.
struct Kept {
  u32 time;      // low half of clock64, or a raw word; in the header's lanes that of a clock at the chunk's begin
  u32 code;      // of the same record
  u32 count;     // records
  u32 sequence;  // of the first of them
  u32 index;     // lane 0: of the chunk asked for; kNone elsewhere
  u32 raws;      // bit n: record n is an id or a payload
  u32 grid;      // what a chunk says of its launch, where that is not known without asking
  u32 flags;     // 0 until a mark in a loop, kFlagExact if all are of such, else kFlagNear; above them chunks_left()

  __device__ __forceinline__ bool is_raw(u32 lane) const { return (raws << kFirstLane >> lane & 1u) != 0; }

  __device__ __forceinline__ u32 launch() const { return kAllRecorded ? low(read_gridid()) : grid; }

  template <u32 kCodeBits>
  __device__ __forceinline__ u32 record(u32 lane) const {
    return is_raw(lane) ? time : (time << kCodeBits) + code;
  }

  // What a lane of the header keeps in `code`, which no record needs, from the warp's first mark in a loop on: what
  // does not change of the header's word, and one lane the low half of globaltimer at the block's begin.
  __device__ __forceinline__ u32 header_code(u32 lane, u32 begin_globaltimer) const {
    if (lane == layout::kWordBlock) return linear_block();
    if (lane == layout::kWordMeta) return chunk_meta(linear_warp(), kAllRecorded ? layout::kMetaSmUnknown : 0u, 0, 0);
    if (lane == layout::kWordGrid) return launch();
    return begin_globaltimer;
  }

  __device__ __forceinline__ u32 written_flags() const {
    return (flags & layout::kFlagExact) != 0 ? layout::kFlagExact : layout::kFlagNear;
  }

  // Forgets the records, which were written, and takes the next chunk: one that the warp has already, if it can have
  // any.
  template <bool kCounted>
  __device__ __forceinline__ void begin_chunk(u32 lane, u64 base) {
    sequence += count;
    count = raws = 0;
    time = low(base);
    if (!kCounted && chunks_left() != 0) {
      index += layout::kCursorCount;
      flags -= 1u << kLeftShift;
    } else if (lane == 0) {
      index = ask_for_chunk(sequence);
    }
  }

  // Of a warp whose marks are in loops: how many chunks more than one it asks for at once. The more it has written, the
  // more, since it waits for the answer. A ring has none to spare.
  __device__ __forceinline__ u32 more_chunks() const {
    constexpr u32 kRecordsAChunkMore = 64, kMostMore = 7;
    const u32 more = kKeepNewest ? 0u : (sequence + count) / kRecordsAChunkMore;
    return more < kMostMore ? more : kMostMore;
  }

  // Chunks behind that of `index`, kCursorCount apart, that are this warp's too.
  __device__ __forceinline__ u32 chunks_left() const { return flags >> kLeftShift; }

  // Says of each chunk left that there was nothing to write to it: by a header without records and without an SM. What
  // is left is lane 0's to say, which takes the chunks: without it they stay as they are.
  __device__ __forceinline__ void leave_rest(u32 lane, u64 base) const {
    const u32 active = __activemask();
    const u32 leader = __ffs(active) - 1;
    const u32 first = __shfl_sync(active, index, leader), left = __shfl_sync(active, chunks_left(), leader);
    const u32 meta = chunk_meta(linear_warp(), layout::kMetaSmUnknown, 0, layout::kFlagExact);
    if ((active & 1u) == 0) return;
    for (u32 own = __popc(active & ((1u << lane) - 1u)) + 1u; own <= left; own += __popc(active)) {
      const u32 rest = first + own * layout::kCursorCount;
      if (rest >= shared_chunks()) return;
      const u64 chunk = chunk_address(rest);
      store_words(chunk, linear_block(), meta, launch(), sequence + count);
      store_words(chunk + 16u, low(base), high(base), 0, 0);
    }
  }
};

// The clock whose low half is `time`, not later than `now` and less than 2^32 cycles before it.
__device__ __forceinline__ u64 clock_before(u64 now, u32 time) { return now - (low(now) - time); }

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

// What a warp stores together: the header in the first six lanes, a record in each of the next, and in a block's first
// warp the block record from lane 24 on.
template <u32 kCodeBits, u32 kSitesHash>
__device__ __forceinline__ void store_together(const Kept& kept, u32 lane, u64 chunk, u32 word, bool block_record,
                                               const BlockFacts& block) {
  const u64 address = static_cast<u64>(high(chunk)) << 32 | low(chunk) | lane * 4u;  // chunks are aligned
  if (block_record) {
    const u32 flag = layout::kFlagBlockRecord << layout::kMetaFlagsShift;
    const u32 own = lane == layout::kWordMeta ? word | flag : word;
    const bool in_record = lane >= layout::kBlockRecordWord;
    store_word(address, select(in_record, block.template words<kSitesHash>().of(lane), own));
  } else if (lane < ((layout::kHeaderWords + kept.count + 7u) & ~7u)) {  // whole sectors of 32 bytes
    store_word(address, word);
  }
}

// One event with its id and payload, or none, in a chunk of its own, by the lane that calls it.
__device__ __forceinline__ void store_alone(const Kept& kept, u64 chunk, u32 sequence, u32 count, u32 flags, u64 base,
                                            u32 record, u32 second, u32 third) {
  store_words(chunk, linear_block(), chunk_meta(linear_warp(), read_smid(), count, flags), kept.launch(), sequence);
  store_words(chunk + 16u, low(base), high(base), record, second);
  store_word(chunk + 32u, third);
}
static_assert(layout::kWordBaseLow == 4 && layout::kHeaderWords == 6, "words 4 to 8 of a chunk");

// The rare way to write: lanes are missing or disagree, the cursor is at its end, or the records reach farther back
// than one chunk can tell. A whole warp still writes one chunk where that can be; else each event gets a chunk of its
// own from the lane that holds it, and what stood in absent lanes is a gap in `sequence`. There is no loop here: with
// one, ptxas would guard each mark in a loop of the kernel against lanes that part, which costs 40 cycles a mark.
// `own` is the clock of this lane's record, `base` that of the last one or later.
template <u32 kCodeBits, u32 kSitesHash>
__device__ __forceinline__ void write_unusual(Kept kept, u64 own, u64 base, u32 flags, BlockFacts block) {
  constexpr u32 kReach = (1u << (32u - kCodeBits)) - 1u;
  const u32 active = __activemask();
  const u32 lane = linear_thread() % 32u;
  const u32 leader = __ffs(active) - 1;
  const u32 count = __shfl_sync(active, kept.count, leader);
  const bool agree = __all_sync(active, kept.count == count);
  const u32 held = __ballot_sync(active, lane - kFirstLane < kept.count);
  const u32 raws = __ballot_sync(active, kept.is_raw(lane));
  const bool is_event = (held & ~raws) >> lane & 1u;
  const bool near = __all_sync(active, !is_event || base - own <= kReach);
  u32 index = (active & 1u) != 0 ? __shfl_sync(active, kept.index, 0) : kNone;
  const bool exact = kept.written_flags() == layout::kFlagExact;  // else what a clock's low half tells
  if (active == kFullMask && agree && near) {
    flags |= kept.written_flags();
    u64 chunk = 0;
    if (lane == 0) chunk = find_address(index != kNone ? index : ask_for_chunk(kept.sequence), kept.sequence);
    chunk = static_cast<u64>(__shfl_sync(active, high(chunk), 0)) << 32 | __shfl_sync(active, low(chunk), 0);
    const Words header{{linear_block(), chunk_meta(linear_warp(), read_smid(), kept.count, flags), kept.launch(),
                        kept.sequence, low(base), high(base)}};
    const u32 word = select(lane < kFirstLane, header.of(lane), kept.record<kCodeBits>(lane));
    const bool last = (flags & layout::kFlagLast) != 0;
    if (chunk != 0) {
      store_together<kCodeBits, kSitesHash>(kept, lane, chunk, word, last && linear_warp() == 0, block);
    } else if (lane == 0) {
      count_lost(__popc(held & ~raws));
    }
    if (kKeepNewest) __syncwarp(active);
    if (kKeepNewest && lane == 0 && chunk != 0) close_chunk(chunk, __popc(held & ~raws));
  } else {
    if (active != kFullMask) flags |= layout::kFlagPartial;
    if (!agree) flags |= layout::kFlagNonuniform;
    const u32 second = __shfl_sync(active, kept.time, lane + 1u), third = __shfl_sync(active, kept.time, lane + 2u);
    const u32 extra = (kept.code & layout::kCodePayload) + (kept.code / layout::kCodeId & 1u);
    const u32 needed = ((1u << extra) - 1u) << 1u << lane;
    const bool whole = (active & needed) == needed;  // else its id or payload stood in a lane that is not here
    if (is_event && !whole) count_lost(1u);
    if (is_event && whole) {
      const bool first = (held & ~raws & ((1u << lane) - 1u)) == 0;
      const u64 chunk = find_address(first && index != kNone ? index : ask_for_chunk(kept.sequence), kept.sequence);
      const u32 own_flags = (flags & ~layout::kFlagLast) | layout::kFlagExact | (exact ? 0u : layout::kFlagNear);
      if (chunk == 0) {
        count_lost(1u);
      } else {
        store_alone(kept, chunk, kept.sequence + lane - kFirstLane, 1u + extra, own_flags, own,
                    kept.record<kCodeBits>(lane), second, third);
        close_chunk(chunk, 1u);
      }
    }
    if ((flags & layout::kFlagLast) != 0 && lane == leader) {
      const bool asked = (held & ~raws) == 0 && index != kNone;
      const u64 chunk = find_address(asked ? index : ask_for_chunk(kept.sequence), kept.sequence);
      const bool block_record = linear_warp() == 0 && active == kFullMask;
      if (block_record) flags |= layout::kFlagBlockRecord;
      if (chunk == 0) {
        count_lost(0u);
      } else {
        store_alone(kept, chunk, kept.sequence + count, 0, flags | layout::kFlagExact, base, 0, 0, 0);
      }
      if (chunk != 0 && block_record) {
        const u64 record = chunk + 4u * layout::kBlockRecordWord;
        store_words(record, block.begin_globaltimer, low(block.globaltimer), high(block.globaltimer), block.sm);
        store_words(record + 16u, kSitesHash, high(read_gridid()), 0, 0);
      }
      if (kKeepNewest && chunk != 0) close_chunk(chunk, 0u);
    }
  }
  __syncwarp(active);  // the lanes that came together leave together: nobody else brings them together again
}

template <u32 kCodeBits, u32 kSitesHash>
WARPLENS_DETAIL_CALLED void call_write_unusual(Kept kept, u64 base, u32 flags, BlockFacts block) {
  write_unusual<kCodeBits, kSitesHash>(kept, clock_before(base, kept.time), base, flags, block);
}

template <u32 kCodeBits, u32 kSitesHash>
WARPLENS_DETAIL_CALLED void call_write_unusual_of_loops(Kept kept, u64 own, u64 base, u32 flags, BlockFacts block) {
  write_unusual<kCodeBits, kSitesHash>(kept, own, base, flags, block);
}

// Writes the records kept; the whole warp stores one chunk where all is as usual. What is stored is worked out in front
// of the branch, while the shuffle is under way. kCounted: the compiler knows the count, so that lanes which are here
// together agree about it. Where they are not counted, all stands in one function that calls no other: ptxas guards a
// call of one that does against lanes that part, at 40 cycles for each mark in a loop. In a ring all is written the
// rare way, which asks for each chunk. `own` is the clock of this lane's record, and in lane 0 that of the chunk's
// begin.
template <u32 kCodeBits, u32 kSitesHash, bool kLast, bool kCounted, bool kCalls>
__device__ __forceinline__ void write_chunk(const Kept& kept, u64 own, u32 lane, u64 base, const BlockFacts& block) {
  constexpr u32 kOddFlags = kLast ? layout::kFlagLast : 0u;
  const u32 flags = kOddFlags | kept.written_flags();
  constexpr u32 kReach = (1u << (32u - kCodeBits)) - 1u;
  const u32 active = __activemask();
  const u32 warp = linear_warp();
  const bool near = kCounted ? low(base) - kept.time <= kReach : base - own <= kReach;
  const u32 index = __shfl_sync(active, near ? kept.index : kNone, 0);
  // Where all warps are recorded the block's first one tells the SM for all of them.
  const u32 sm = kAllRecorded ? layout::kMetaSmUnknown : read_smid();
  const Words header{
      {linear_block(), chunk_meta(warp, sm, kept.count, flags), kept.launch(), kept.sequence, low(base), high(base)}};
  const u32 word = select(lane < kFirstLane, header.of(lane), kept.record<kCodeBits>(lane));
  // Each part is the same in all lanes that are here. Where they are not counted that takes a vote: a lane of the
  // header that counts otherwise changes nobody's mask but its own.
  u32 odd = (active ^ kFullMask) | (!kKeepNewest && index < shared_chunks() ? 0u : 1u);
  if (!kCounted) {
    const u32 held = __ballot_sync(active, lane - kFirstLane < kept.count);
    odd |= __all_sync(active, held == ((1u << kept.count) - 1u) << kFirstLane) ? 0u : 1u;
  }
  if (odd != 0 && kCalls && kCounted) {
    call_write_unusual<kCodeBits, kSitesHash>(kept, base, kOddFlags, block);
  } else if (odd != 0 && kCalls) {
    call_write_unusual_of_loops<kCodeBits, kSitesHash>(kept, own, base, kOddFlags, block);
  } else if (odd != 0) {
    write_unusual<kCodeBits, kSitesHash>(kept, own, base, kOddFlags, block);
  } else {
    store_together<kCodeBits, kSitesHash>(kept, lane, chunk_address(index), word, kLast && warp == 0, block);
  }
}

// The usual chunk of a warp whose marks are in loops: all lanes are here and agree, and each record has all of its
// clock. Stores it as store_together does; false, and nothing is stored, where it is not so.
template <u32 kCodeBits>
__device__ __forceinline__ bool store_of_loop(const Kept& kept, u64 own, int slot, u64 base) {
  constexpr u32 kReach = (1u << (32u - kCodeBits)) - 1u;
  constexpr int kFirst = kFirstLane;
  if (kKeepNewest) return false;
  const u32 active = __activemask();
  const u32 index = __shfl_sync(active, base - own <= kReach ? kept.index : kNone, 0);
  const u32 held = __ballot_sync(active, static_cast<u32>(slot) < kept.count);
  const bool agree = held == ((1u << kept.count) - 1u) << kFirstLane && index < shared_chunks();
  const bool fits = __all_sync(active, agree && active == kFullMask);
  const u32 sm = kAllRecorded ? 0u : read_smid() << layout::kMetaSmShift;
  const u32 meta = sm | kept.count << layout::kMetaCountShift | layout::kFlagExact << layout::kMetaFlagsShift;
  u32 word = slot == static_cast<int>(layout::kWordMeta) - kFirst ? kept.code + meta : kept.code;
  word = slot == static_cast<int>(layout::kWordSequence) - kFirst ? kept.sequence : word;
  word = slot == static_cast<int>(layout::kWordBaseLow) - kFirst ? low(base) : word;
  word = slot == static_cast<int>(layout::kWordBaseHigh) - kFirst ? high(base) : word;
  word = slot < 0 ? word : kept.record<kCodeBits>(static_cast<u32>(slot) + kFirstLane);
  const u64 address = chunk_address(index) | static_cast<u32>(slot + kFirst) * 4u;
  const bool in_sectors = slot + kFirst < static_cast<int>((kFirstLane + kept.count + 7u) & ~7u);
  store_if(fits && in_sectors, low(address), high(address), word);
  return fits;
}

// What is left to do of a warp that may have to write twice: a block record needs the room of the last records.
// kInLoops: only a warp whose marks are in loops has chunks to leave.
template <u32 kCodeBits, u32 kSitesHash, bool kCounted, bool kInLoops>
__device__ __forceinline__ void write_last(Kept kept, u64 own, u32 lane, u64 base, const BlockFacts& block) {
  if (kept.count > layout::kBlockRecordSlots && linear_warp() == 0) {
    write_chunk<kCodeBits, kSitesHash, false, kCounted, true>(kept, own, lane, base, block);
    kept.template begin_chunk<kCounted>(lane, base);
    own = base;
  }
  write_chunk<kCodeBits, kSitesHash, true, kCounted, true>(kept, own, lane, base, block);
  if (kInLoops) kept.leave_rest(lane, base);
}

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_KEPT_CUH
