// Space for chunks: 1024 cursors with a share of the arena each, and a pool for those whose share is spent. Or, where
// the newest are kept, rings: each cursor goes round and round its share, and a chunk that was closed is written over.
// In: the descriptor that the host wrote into the module. Out: addresses of chunks, counts of what was lost. Every
// address lies inside of the arena; nothing here waits for another warp.
#ifndef WARPLENS_DETAIL_ARENA_CUH
#define WARPLENS_DETAIL_ARENA_CUH

#include "device.cuh"
#include "layout.h"

// One for the module, written by the host. All zero: nothing is recorded.
#ifdef __CUDACC_RTC__
extern "C" __constant__ warplens::detail::layout::Descriptor warplens_device = {0, 0, 0, 0};
#else
static __constant__ warplens::detail::layout::Descriptor warplens_device = {0, 0, 0, 0};
#endif

namespace warplens {
namespace detail {

constexpr u32 kNone = 0xffffffffu;  // no answer of a cursor

// A host that compiles for one arena names it here, and then no warp waits for the first read of the module's constant
// memory, which takes longer than one of global memory. One that records every warp says so too, and then nothing at
// all is read. All else reads the descriptor.
#ifdef WARPLENS_ARENA
constexpr bool kArenaKnown = true;
__device__ __forceinline__ u64 control_address() { return WARPLENS_ARENA; }
__device__ __forceinline__ u64 chunks_address() { return WARPLENS_CHUNKS; }
__device__ __forceinline__ u32 shared_chunks() { return WARPLENS_SHARED_CHUNKS; }
#else
constexpr bool kArenaKnown = false;
__device__ __forceinline__ u64 control_address() { return warplens_device.control; }
__device__ __forceinline__ u64 chunks_address() { return warplens_device.arena; }
__device__ __forceinline__ u32 shared_chunks() { return warplens_device.shared_chunks; }
#endif
// A ring: known to the compiler, so that who keeps the oldest pays nothing for it.
#ifdef WARPLENS_KEEP_NEWEST
constexpr bool kKeepNewest = true;
#else
constexpr bool kKeepNewest = false;
#endif
#if defined(WARPLENS_ARENA) && defined(WARPLENS_KEEP_NEWEST)
__device__ __forceinline__ u32 ring_chunks() { return WARPLENS_RING_CHUNKS; }
#else
__device__ __forceinline__ u32 ring_chunks() { return warplens_device.chunks; }
#endif
// A power of two.
__device__ __forceinline__ u32 ring_cursors() { return shared_chunks(); }
#ifdef WARPLENS_ALL_RECORDED
constexpr bool kAllRecorded = true;
#else
constexpr bool kAllRecorded = false;
#endif
// One that chooses by steps and warps alone, never by a list or a window, saves the registers of a call.
#ifdef WARPLENS_STEPS_ONLY
constexpr bool kStepsOnly = true;
#else
constexpr bool kStepsOnly = false;
#endif
// Every n-th block, all warps of it, and no other choice: known to the compiler, so that nothing is read.
#ifdef WARPLENS_EVERY
constexpr u32 kEvery = WARPLENS_EVERY;
#else
constexpr u32 kEvery = 0;
#endif
constexpr bool kChoiceKnown = kAllRecorded || kEvery != 0;

// Whether a warp is recorded, and what its chunks say of the launch. Returned by value: what a call gets by reference
// lies in memory ever after.
struct Chosen {
  bool recorded;
  u32 launch;
};

// Of blocks that a list or a window of launches leaves. In a window the launch is named by its number. Blocks that have
// ended are counted, all of them, over all launches: their number tells the launch, since while a block runs it is not
// among them, unless launches overlap.
__device__ __forceinline__ Chosen choose_further(u32 more) {
  const u64 control = control_address();
  Chosen chosen = {true, low(read_gridid())};
  if ((more & layout::kChoiceList) != 0) {
    const u64 bits = load_wide(control + layout::kControlListAddress);
    const u32 block = linear_block();
    if (block >= load_wide(control + layout::kControlListBlocks)) return {false, 0};
    chosen.recorded = (load_word(bits + block / 32u * 4u) >> block % 32u & 1u) != 0;
  }
  if ((more & layout::kChoiceWindow) != 0) {
    const u64 blocks = static_cast<u64>(gridDim.x) * gridDim.y * gridDim.z;
    const u64 number = load_wide(control + layout::kControlBlocksEnded) / blocks;
    const u64 first = load_wide(control + layout::kControlWindowFirst);
    if (number < first || number - first >= load_wide(control + layout::kControlWindowLaunches)) return {false, 0};
    chosen.launch = low(number);
  }
  return chosen;
}

WARPLENS_DETAIL_CALLED Chosen call_choose_further(u32 more) { return choose_further(more); }

// Which blocks, warps and launches are recorded: asked for at the kernel's begin, used at the second mark, when the
// answer is there. What it says is stated in layout.py.
struct Choice {
  u32 warp_mask = 0;
  u32 every_inverse = 0;
  u32 every_limit = 0;
  u32 more = 0;

  __device__ __forceinline__ void ask() {
    if (kChoiceKnown) return;
    const u64 control = control_address();
    if (kArenaKnown || control != 0) {
      load_words(control + layout::kControlChoice, warp_mask, every_inverse, every_limit, more);
    }
  }

  // kInline: where a call would cost more than its code.
  template <bool kInline>
  __device__ __forceinline__ Chosen choose() const {
    if (kAllRecorded) return {true, 0};
    if (kEvery != 0) return {in_known_step(), low(read_gridid())};
    // n divides a number if and only if the number times the inverse of n's odd part, turned right by the count of n's
    // factors 2, is at most (2^32 - 1) / n (Granlund and Montgomery, 1994).
    const bool in_step = rotate_right(linear_block() * every_inverse, more % 32u) <= every_limit;
    const bool recorded = in_step && (warp_mask >> linear_warp() & 1u) != 0;
    if (!kStepsOnly && recorded && (more & (layout::kChoiceList | layout::kChoiceWindow)) != 0) {
      return kInline ? choose_further(more) : call_choose_further(more);
    }
    return {recorded, low(read_gridid())};
  }

  __device__ __forceinline__ static bool in_known_step() { return linear_block() % (kEvery != 0 ? kEvery : 1u) == 0; }

  // May any warp of this block be recorded? The same for all warps of a block: in a window of launches, which each of
  // them looks up for itself, it may be.
  template <bool kInline>
  __device__ __forceinline__ bool may_record_block() const {
    if (kChoiceKnown) return kAllRecorded || in_known_step();
    if (warp_mask == 0) return false;
    if (rotate_right(linear_block() * every_inverse, more % 32u) > every_limit) return false;
    if (kStepsOnly || (more & (layout::kChoiceList | layout::kChoiceWindow)) != layout::kChoiceList) return true;
    return (kInline ? choose_further(more) : call_choose_further(more)).recorded;
  }

  // Is this iteration of a loop one of those between every n-th?
  __device__ __forceinline__ bool leaves_out(u32 iteration) const {
    const u32 every = kChoiceKnown ? 0u : more >> layout::kChoiceIterationShift;
    return every > 1u && iteration % every != 0;
  }

  // Call it where a block's first warp ends, recorded or not.
  __device__ __forceinline__ void end_block() const {
    if (!kChoiceKnown && (more & layout::kChoiceWindow) != 0 && linear_thread() == 0) {
      add_to_counter(control_address() + layout::kControlBlocksEnded, 1u);
    }
  }
};

WARPLENS_DETAIL_CALLED u32 call_is_left_out() {
  Choice choice;
  choice.ask();
  return choice.may_record_block<true>() ? 0u : 1u;
}

// 0: this block may be recorded. Asked before it does anything else. In a program that nobody records the answer is one
// read of constant memory and a branch; all else is a call, which stands out of the way. What is not 0 is what ptxas
// takes to be usual.
__device__ __forceinline__ u32 is_left_out() {
  if (kChoiceKnown || kArenaKnown) {
    Choice choice;
    choice.ask();
    const u32 left_out = choice.may_record_block<false>() ? 0u : 1u;
    return kChoiceKnown ? left_out : opaque(left_out);
  }
  u32 left_out = 1;
  if (control_address() != 0) left_out = call_is_left_out();
  return left_out;
}

// Where a block ends that was left out. What is recorded is read anew: held through the kernel it would cost registers.
__device__ __forceinline__ void end_left_out_block() {
  if (kChoiceKnown || linear_thread() != 0 || (!kArenaKnown && control_address() == 0)) return;
  Choice choice;
  choice.ask();
  choice.end_block();
}

// Where a warp asks: neighbouring warps at different cursors, since one address serves about one request a
// nanosecond. The low five bits of the thread's number fall away, so that the warp's number need not be worked out.
// In rings a warp goes from cursor to cursor with `sequence`, that of its chunk (multiplicative hashing: Knuth, The
// Art of Computer Programming, volume 3, section 6.4), so that few warps too turn all rings, and evenly.
__device__ __forceinline__ u32 cursor_offset(u32 sequence) {
  constexpr u32 kMask = layout::kCursorCount * layout::kCursorStride - layout::kCursorStride;
  const u32 mask = kKeepNewest ? (ring_cursors() - 1u) * layout::kCursorStride & kMask : kMask;
  const u32 step = kKeepNewest ? (sequence * 0x9e3779b9u >> 22) * layout::kCursorStride : 0u;
  return (linear_block() * (33u * layout::kCursorStride) + linear_thread() + step) & mask;
}

__device__ __forceinline__ u64 cursor_address(u32 sequence) {
  // the control block is aligned to 32 KiB
  return (control_address() | cursor_offset(sequence)) + layout::kControlCursors;
}

static_assert(layout::kCursorCount * layout::kCursorStride <= layout::kControlAlignment,
              "an offset of a cursor fits below the control block's alignment");
static_assert(layout::kCursorCount == 1u << (32 - 22), "what is left of a sequence's hash names a cursor");

// Asks for so many chunks without waiting for the answer: the index of the first, or in rings a ticket. Call it in one
// lane. `sequence` is that of the first one's first record. Each further one lies kCursorCount behind the one before;
// those beyond the cursor's share stand for one of the pool each (find_address).
__device__ __forceinline__ u32 ask_for_chunks(u32 sequence, u32 chunks) {
  return fetch_add(cursor_address(sequence), chunks * layout::kCursorCount);
}

__device__ __forceinline__ u32 ask_for_chunk(u32 sequence) { return ask_for_chunks(sequence, 1u); }

__device__ __forceinline__ u64 chunk_address(u32 index) {
  return chunks_address() + static_cast<u64>(index) * layout::kChunkBytes;
}

// The table of where warps last were lies behind the chunks.
__device__ __forceinline__ u64 last_address() { return chunk_address(warplens_device.chunks); }

__device__ __forceinline__ void count_lost(u32 events) {
  const u64 beside = cursor_address(0);
  const u64 control = control_address();
  add_to_counter(kKeepNewest ? beside + layout::kCursorLostEvents : control + layout::kControlLostEvents, events);
  add_to_counter(kKeepNewest ? beside + layout::kCursorLostChunks : control + layout::kControlLostChunks, 1u);
}

__device__ __forceinline__ u64 state_address(u32 index) {
  return control_address() + layout::kControlStates + static_cast<u64>(index) * layout::kStateBytes;
}

// Chunks of the rings that a warp tries, from its ticket's on; one is skipped that another warp is writing.
constexpr u32 kTries = 4;

// The chunk that a ticket names, or one of the next rings; 0 when all of them are being written. It stays open, and
// nobody else's, until `close_chunk`. Call it in one lane. The ticket says which ring by its low bits, and above them
// how often the ring's cursor was asked before. Each ring keeps its own newest: one ring of all would let cursors that
// drift apart write over each other's. An exchange with "open" changes nothing where the chunk is open already. No
// acquire goes with it: nothing is read of the chunk, and no store is made before what decides about it is there; an
// acquire would empty the first-level cache.
__device__ __forceinline__ u64 take_chunk(u32 ticket) {
  const u32 cursors = ring_cursors(), turn = ring_chunks() / cursors, chunks = turn * cursors;
  if (turn == 0) return 0;
  u32 index = (ticket & (cursors - 1u) & (layout::kCursorCount - 1u)) + ticket / layout::kCursorCount % turn * cursors;
  u32 held = exchange(state_address(index), layout::kStateOpen);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (u32 tried = 1; tried < kTries; ++tried) {  // no loop is left of it: see write_unusual in kept.cuh
    if (held == layout::kStateOpen) {
      index = index + 1 < chunks ? index + 1 : 0;
      held = exchange(state_address(index), layout::kStateOpen);
    }
  }
  if (held == layout::kStateOpen) return 0;
  if (held != layout::kStateFree) count_lost(held - layout::kStateClosed);
  return chunk_address(index);
}

// In a ring: the chunk is whole, and may be written over; its events are lost then. Call it in the lane that found it,
// behind a __syncwarp where others stored too.
__device__ __forceinline__ void close_chunk(u64 chunk, u32 events) {
  if (!kKeepNewest) return;
  store_released(state_address(low((chunk - chunks_address()) / layout::kChunkBytes)), layout::kStateClosed + events);
}

// Where the chunk lies that a cursor answered with, or one of the rest; 0 when no space is left. Call it in one lane.
__device__ __forceinline__ u64 find_address(u32 index, u32 sequence) {
  if (kKeepNewest) return take_chunk(index);
  if (index < shared_chunks()) return chunk_address(index);
  const u64 rest_cursor = control_address() + layout::kControlPoolCursor;
  const u32 other = fetch_add(rest_cursor, 1u);
  // Cursors that ran over are set back, or they would wrap to 0 after 2^32 requests.
  clamp_cursor(cursor_address(sequence), shared_chunks() + cursor_offset(sequence) / layout::kCursorStride);
  if (other < warplens_device.chunks) return chunk_address(other);
  clamp_cursor(rest_cursor, warplens_device.chunks);
  return 0;
}

__device__ __forceinline__ u32 chunk_meta(u32 warp, u32 sm, u32 count, u32 flags) {
  return warp | sm << layout::kMetaSmShift | count << layout::kMetaCountShift | flags << layout::kMetaFlagsShift |
         layout::kMetaMarker << layout::kMetaMarkerShift;
}

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_ARENA_CUH
