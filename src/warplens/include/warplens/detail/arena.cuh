// Space for chunks: 1024 cursors with a share of the arena each, and a pool for those whose share is spent.
// In: the descriptor that the host wrote into the module. Out: addresses of chunks, counts of what was lost.
// Every address lies inside of the arena; nothing here waits for another warp.
#ifndef WARPLENS_DETAIL_ARENA_CUH
#define WARPLENS_DETAIL_ARENA_CUH

#include "device.cuh"
#include "layout.h"

// One for the module, written by the host. All zero: nothing is recorded.
#ifdef __CUDACC_RTC__
extern "C" __constant__ warplens::detail::layout::Descriptor warplens_device = {0, 0, 0, 0, 0, 0, 0};
#else
static __constant__ warplens::detail::layout::Descriptor warplens_device = {0, 0, 0, 0, 0, 0, 0};
#endif

namespace warplens {
namespace detail {

constexpr u32 kNone = 0xffffffffu;  // no answer of a cursor

// A host that compiles for one arena and records every warp names both here, and then no warp waits for the first read
// of the module's constant memory, which takes longer than one of global memory. All else reads the descriptor.
#ifdef WARPLENS_ARENA
constexpr bool kArenaKnown = true;
__device__ __forceinline__ u64 control_address() { return WARPLENS_ARENA; }
__device__ __forceinline__ u32 shared_chunks() { return WARPLENS_SHARED_CHUNKS; }
#else
constexpr bool kArenaKnown = false;
__device__ __forceinline__ u64 control_address() { return warplens_device.control; }
__device__ __forceinline__ u32 shared_chunks() { return warplens_device.shared_chunks; }
#endif

// Reads the mode now, not where it is used: the first read of constant memory takes as long as one of global memory.
// `zero` is one that ptxas does not know to be 0 before sm_100; without it, and from sm_100 on, it loads at the use.
__device__ __forceinline__ u32 load_mode(u32 zero) {
  if (kArenaKnown) return layout::kModeAll;
  return load_constant(&warplens_device.mode, zero);
}

// Is this warp of this block recorded, in a mode other than ALL?
__device__ __forceinline__ bool is_recorded(u32 mode) {
  return mode == layout::kModeNarrowed && linear_block() % warplens_device.every == 0 &&
         (warplens_device.warp_mask >> linear_warp() & 1u) != 0;
}

// Where a warp asks: neighbouring warps at different cursors, since one address serves about one request a
// nanosecond. The low five bits of the thread's number fall away, so that the warp's number need not be worked out.
__device__ __forceinline__ u32 cursor_offset() {
  constexpr u32 kMask = layout::kCursorCount * layout::kCursorStride - layout::kCursorStride;
  return (linear_block() * (33u * layout::kCursorStride) + linear_thread()) & kMask;
}

__device__ __forceinline__ u64 cursor_address() {
  return (control_address() | cursor_offset()) + layout::kControlCursors;  // the control block is aligned to 32 KiB
}

static_assert(layout::kCursorCount * layout::kCursorStride <= layout::kControlAlignment,
              "an offset of a cursor fits below the control block's alignment");

// Asks for a chunk without waiting for the answer: its index. Call it in one lane.
__device__ __forceinline__ u32 ask_for_chunk() { return fetch_add(cursor_address(), layout::kCursorCount); }

__device__ __forceinline__ u64 chunk_address(u32 index) {
  return control_address() + layout::kArenaOffset + static_cast<u64>(index) * layout::kChunkBytes;
}

// Where the chunk lies that a cursor answered with, or one of the rest; 0 when no space is left. Call it in one lane.
__device__ __forceinline__ u64 find_address(u32 index) {
  if (index < shared_chunks()) return chunk_address(index);
  const u64 rest_cursor = control_address() + layout::kControlPoolCursor;
  const u32 other = fetch_add(rest_cursor, 1u);
  // Cursors that ran over are set back, or they would wrap to 0 after 2^32 requests.
  clamp_cursor(cursor_address(), shared_chunks() + cursor_offset() / layout::kCursorStride);
  if (other < warplens_device.chunks) return chunk_address(other);
  clamp_cursor(rest_cursor, warplens_device.chunks);
  return 0;
}

__device__ __forceinline__ void count_lost(u32 events) {
  add_to_counter(control_address() + layout::kControlLostEvents, events);
  add_to_counter(control_address() + layout::kControlLostChunks, 1u);
}

__device__ __forceinline__ u32 chunk_meta(u32 warp, u32 sm, u32 count, u32 flags) {
  return warp | sm << layout::kMetaSmShift | count << layout::kMetaCountShift | flags << layout::kMetaFlagsShift |
         layout::kMetaMarker << layout::kMetaMarkerShift;
}

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_ARENA_CUH
