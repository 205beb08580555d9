// The storage policy `staged`: a warp keeps its last 26 records in shared memory of its own, and one lane writes them.
// It costs more than `packed`, and works in warps of fewer than 32 threads, and where lanes leave
// the kernel before the others; every time is exact, however long a warp waits.
// In: codes, ids and payloads of marks. Out: chunks as layout.py describes them. Never waits for another warp,
// never writes outside of the chunk that it obtained.
#ifndef WARPLENS_DETAIL_STAGED_CUH
#define WARPLENS_DETAIL_STAGED_CUH

#include "arena.cuh"
#include "device.cuh"
#include "layout.h"

// Warps of a block that there is shared memory for; the others of a larger block are not recorded and share the place
// of one more. The host sets it to what a launch needs.
#ifndef WARPLENS_MAX_WARPS
#define WARPLENS_MAX_WARPS 32
#endif

namespace warplens {
namespace detail {

// A kept record is two words: | low half of clock64, or a raw word | bits 32..47 of clock64 : 16 | code or kRaw : 16 |.
constexpr u32 kRecordBytes = 8;
constexpr u32 kRaw = 0xffffu;  // in place of a code: the first word is an id or a payload
// A warp's shared memory: the records, the lanes that have ended, and the globaltimer beside the first record.
constexpr u32 kEndedOffset = layout::kRecordSlots * kRecordBytes;
constexpr u32 kBeginOffset = kEndedOffset + 8;
constexpr u32 kWarpBytes = kBeginOffset + 8;

template <u32 kCodeBits, u32 kSitesHash>
class Staged {
 public:
  __device__ __forceinline__ Staged() {
    constexpr u32 kPlaces = WARPLENS_MAX_WARPS + (WARPLENS_MAX_WARPS < 32 ? 1 : 0);
    __shared__ __align__(8) unsigned char storage[kPlaces * kWarpBytes];
    const u32 warp = linear_warp();
    const u32 place = warp < WARPLENS_MAX_WARPS ? warp : WARPLENS_MAX_WARPS;
    stage_ = static_cast<u32>(__cvta_generic_to_shared(storage)) + place * kWarpBytes;
    const u32 active = __activemask();
    if (speaks(active)) store_shared(stage_ + kEndedOffset, 0, 0);
    __syncwarp(active);
    choice_.ask();
    const Chosen chosen = choice_.choose<false>();
    launch_ = chosen.launch;
    on_ = chosen.recorded && warp < WARPLENS_MAX_WARPS;
  }

  __device__ __forceinline__ void put(u32 code, u32 id, u32 payload, bool after_wait) {
    const bool has_id = (code & layout::kCodeId) != 0;
    const bool has_payload = (code & layout::kCodePayload) != 0;
    if (after_wait) settle();
    const u64 clock = read_clock();
    if (count_ + 1 + (has_id ? 1 : 0) + (has_payload ? 1 : 0) > layout::kRecordSlots) flush(0, clock, 0);
    const bool writes = speaks(__activemask());
    if (sequence_ + count_ == 0 && writes) store_shared(stage_ + kBeginOffset, low(read_globaltimer()), 0);
    keep(writes, low(clock), (high(clock) << 16) | code);
    if (has_id) keep(writes, id, kRaw);
    if (has_payload) keep(writes, payload, kRaw);
  }

  __device__ __forceinline__ bool leaves_out(u32 iteration) const { return choice_.leaves_out(iteration); }
  __device__ __forceinline__ void begin_iteration() {}

  __device__ __forceinline__ u32 next_sequence() const { return sequence_ + count_; }

  // The clock of the end is read first: the fences and the atomic take some hundred cycles, which are the recorder's.
  __device__ __forceinline__ void finish(bool after_wait) {
    if (after_wait) settle();
    const u64 now = read_clock();
    const u64 globaltimer = read_globaltimer();
    const u32 active = __activemask();
    const u32 threads = blockDim.x * blockDim.y * blockDim.z - linear_warp() * 32u;
    const u32 all = threads >= 32u ? kFullMask : (1u << threads) - 1u;
    const u32 leader = __ffs(active) - 1;
    u32 ended = 0;
    fence_block();
    if (read_laneid() == leader) ended = fetch_or_shared(stage_ + kEndedOffset, active);
    choice_.end_block();
    if ((__shfl_sync(active, ended, leader) | active) != all) return;  // the last lanes to leave end the warp
    fence_block();                                                     // and read what the others stored
    flush(layout::kFlagLast | (active == all ? 0u : layout::kFlagPartial), now, globaltimer);
  }

 private:
  // One lane of those that are here together writes: two that store to one address race, though they store the same.
  __device__ __forceinline__ static bool speaks(u32 active) {
    return read_laneid() == static_cast<u32>(__ffs(active) - 1);
  }

  __device__ __forceinline__ void keep(bool writes, u32 first, u32 second) {
    if (writes) store_shared(stage_ + kRecordBytes * count_, first, second);
    ++count_;
  }

  // `now` is no earlier than the records; of a warp's end, with the globaltimer beside it.
  __device__ __forceinline__ void flush(u32 flags, u64 now, u64 globaltimer) {
    const u32 active = __activemask();
    const u32 leader = __ffs(active) - 1;
    __syncwarp(active);  // who reads the records need not be who wrote them
    if (!__all_sync(active, count_ == __shfl_sync(active, count_, leader))) flags |= layout::kFlagNonuniform;
    if (on_ && read_laneid() == leader) write(stage_, count_, sequence_, flags, launch(), now, globaltimer);
    __syncwarp(active);
    sequence_ += count_;
    count_ = 0;
  }

  // Records that fit one base become a chunk: normally all of them.
  __device__ __noinline__ static void write(u32 stage, u32 count, u32 sequence, u32 flags, u32 launch, u64 now,
                                            u64 globaltimer) {
    constexpr u64 kReach = (1ull << (32u - kCodeBits)) - 1ull;
    if ((flags & layout::kFlagLast) != 0 && linear_warp() == 0) flags |= layout::kFlagBlockRecord;
    u32 done = 0;
    bool last = false;
    while (!last) {
      u64 first = now;
      if (done < count) {
        u32 word, code;
        load_shared(stage + kRecordBytes * done, word, code);
        first = time_of(word, code, now);
      }
      const u64 base = now - first <= kReach ? now : first + kReach;
      const u64 chunk = find_address(ask_for_chunk(sequence), sequence);
      u32 length = 0, events = 0;
      for (; done + length < count; ++length) {
        u32 word, code;
        load_shared(stage + kRecordBytes * (done + length), word, code);
        if ((code & 0xffffu) != kRaw) {
          if (base - time_of(word, code, now) > kReach) break;  // of a time behind the base too: that is huge
          ++events;
          word = word << kCodeBits | (code & 0xffffu);
        }
        if (chunk != 0) store_word(chunk + 4u * (layout::kHeaderWords + length), word);
      }
      done += length;
      // The end of a warp is the base of its last chunk: that base must be now.
      last = done == count && (base == now || (flags & layout::kFlagLast) == 0);
      u32 its_flags = last ? flags : flags & ~(layout::kFlagLast | layout::kFlagBlockRecord);
      if ((its_flags & layout::kFlagBlockRecord) != 0 && length > layout::kBlockRecordSlots) {
        last = false;
        its_flags &= ~(layout::kFlagLast | layout::kFlagBlockRecord);
      }
      if (chunk == 0) {
        count_lost(events);
      } else {
        store_words(chunk, linear_block(),
                    chunk_meta(linear_warp(), read_smid(), length, its_flags | layout::kFlagExact), launch, sequence);
        store_word(chunk + 4u * layout::kWordBaseLow, low(base));
        store_word(chunk + 4u * layout::kWordBaseHigh, high(base));
        if ((its_flags & layout::kFlagBlockRecord) != 0) {
          const u64 record = chunk + 4u * layout::kBlockRecordWord;
          store_words(record, load_shared(stage + kBeginOffset), low(globaltimer), high(globaltimer), read_smid());
          store_words(record + 16, kSitesHash, high(read_gridid()), 0, 0);
        }
        close_chunk(chunk, events);
      }
      sequence += length;
    }
  }

  // The whole clock64 of a record, from its 48 bits and a later one: exact up to 39 hours at 2 GHz.
  __device__ __forceinline__ static u64 time_of(u32 first, u32 second, u64 now) {
    const u64 kept = static_cast<u64>(second >> 16) << 32 | first;
    return now - ((now - kept) & 0xffffffffffffull);
  }

  __device__ __forceinline__ u32 launch() const { return kAllRecorded ? low(read_gridid()) : launch_; }

  Choice choice_;
  u32 launch_ = 0;
  u32 stage_;
  u32 count_ = 0;
  u32 sequence_ = 0;
  bool on_;
};

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_STAGED_CUH
