// Stands for detail/device.cuh on the CPU, so that the recorder's own headers run there: lanes are fibers, and an
// operation of a warp waits until all lanes of its mask have come to it. Included in front of all else.
#ifndef WARPLENS_DETAIL_DEVICE_CUH
#define WARPLENS_DETAIL_DEVICE_CUH

#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define WARPLENS_DETAIL_CALLED inline __noinline__
#define __constant__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

namespace emulated {

struct Dim {
  unsigned x, y, z;
};

enum class Wait { kNothing, kActive, kShuffle, kBallot, kMatch, kAll, kSync, kEnded };

extern Dim block, grid, threads_of_block;
extern unsigned sm;
Dim thread();
unsigned lane();
uint64_t clock();
uint64_t clock_again();  // the last one read, if one was at this mark
unsigned load(uint64_t address);
uint64_t globaltimer();
// What a lane gets of an operation of its warp.
__attribute__((noinline)) unsigned operate(Wait kind, unsigned mask, unsigned value, unsigned source);
void store(uint64_t address, unsigned value);
unsigned add(uint64_t address, unsigned value);
unsigned exchange(uint64_t address, unsigned value);
void store_state(uint64_t address, unsigned value);
void least(uint64_t address, unsigned value);
bool in_front_of_loops();
void count(uint64_t address, uint64_t value);
extern unsigned char shared[];

}  // namespace emulated

#define threadIdx (emulated::thread())
#define blockIdx (emulated::block)
#define gridDim (emulated::grid)
#define blockDim (emulated::threads_of_block)
#define __activemask() emulated::operate(emulated::Wait::kActive, 0, 0, 0)
#define __shfl_sync(mask, value, source) emulated::operate(emulated::Wait::kShuffle, mask, value, source)
#define __ballot_sync(mask, test) emulated::operate(emulated::Wait::kBallot, mask, (test) ? 1u : 0u, 0)
#define __match_any_sync(mask, value) emulated::operate(emulated::Wait::kMatch, mask, value, 0)
#define __all_sync(mask, test) (emulated::operate(emulated::Wait::kAll, mask, (test) ? 1u : 0u, 0) != 0)
#define __syncwarp(mask) emulated::operate(emulated::Wait::kSync, mask, 0, 0)
#define __popc __builtin_popcount
#define __ffs __builtin_ffs
// Addresses of shared memory are offsets in emulated::shared: the recorder's one array lies there.
#define __cvta_generic_to_shared(pointer) (static_cast<void>(pointer), 0)

namespace warplens {
namespace detail {

using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 kFullMask = 0xffffffffu;

// What runs here is a loop over a program, so a compiler knows no count; the tests say which way is meant.
#ifdef UNTOLD
#define WARPLENS_DETAIL_CAN_TELL 0
#else
#define WARPLENS_DETAIL_CAN_TELL 1
#endif
#if defined(COUNTED) || defined(UNTOLD)
#define WARPLENS_DETAIL_KNOWN(value) true
#elif defined(MIXED)
#define WARPLENS_DETAIL_KNOWN(value) emulated::in_front_of_loops()
#else
#define WARPLENS_DETAIL_KNOWN(value) false
#endif

constexpr u32 low(u64 value) { return static_cast<u32>(value); }
constexpr u32 high(u64 value) { return static_cast<u32>(value >> 32); }

inline u64 read_clock() { return emulated::clock(); }
inline u32 read_clock_low() { return low(emulated::clock()); }
inline u64 read_globaltimer() { return emulated::globaltimer(); }
inline u32 read_laneid() { return emulated::lane(); }
inline u32 read_warpid() { return emulated::lane() / 32; }
inline u32 read_smid() { return emulated::sm; }
inline u64 read_gridid() { return 1; }
inline u32 linear_block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
inline u32 linear_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline u32 linear_warp() { return linear_thread() / 32u; }
inline u32 select(u32 condition, u32 yes, u32 no) { return condition != 0 ? yes : no; }
inline void settle() {}
inline u32 opaque(u32 value) { return value; }
inline u64 by_lane(u64 value) { return value; }
inline void ask_for(u32, u32) {}
inline u32 lane_behind_timers(u32 thread) { return thread % 32u; }
inline u32 rotate_right(u32 value, u32 bits) { return value >> bits | value << (31u & (32u - bits)); }
inline u32 load_word(u64 address) { return emulated::load(address); }
inline u64 load_wide(u64 address) { return static_cast<u64>(load_word(address + 4)) << 32 | load_word(address); }
inline void load_words(u64 address, u32& a, u32& b, u32& c, u32& d) {
  a = load_word(address), b = load_word(address + 4), c = load_word(address + 8), d = load_word(address + 12);
}

inline void read_timers(u32& clock, u32& code, u32& globaltimer, u32 thread, u32 its_code) {
  clock = low(emulated::clock_again());
  code = its_code;
  globaltimer = thread < 32u ? low(read_globaltimer()) : 0;
}
inline void take_clock(u32& time, u32& code, u32 lane, u32 first, u32 its_code) {
  const u32 now = read_clock_low();
  if (lane >= first) time = now, code = its_code;
}

inline void keep_clock(u32& time, u32& its_high, u32& code, int slot, u32 first, u64 clock, u32 its_code) {
  if (slot >= static_cast<int>(first)) time = low(clock), its_high = high(clock), code = its_code;
}

inline void store_word(u64 address, u32 value) { emulated::store(address, value); }
inline void store_if(bool condition, u32 address_low, u32 address_high, u32 value) {
  if (condition) store_word(static_cast<u64>(address_high) << 32 | address_low, value);
}
inline void fence_system() {}
inline void fence_block() {}
inline void store_words(u64 address, u32 a, u32 b, u32 c, u32 d) {
  const u32 words[] = {a, b, c, d};
  for (u32 i = 0; i < 4; ++i) emulated::store(address + 4 * i, words[i]);
}
inline void store_shared(u32 address, u32 value) { std::memcpy(emulated::shared + address, &value, 4); }
inline void store_shared(u32 address, u32 a, u32 b) {
  store_shared(address, a);
  store_shared(address + 4, b);
}
inline u32 load_shared(u32 address) {
  u32 value;
  std::memcpy(&value, emulated::shared + address, 4);
  return value;
}
inline void load_shared(u32 address, u32& a, u32& b) {
  a = load_shared(address);
  b = load_shared(address + 4);
}
inline u32 fetch_or_shared(u32 address, u32 value) {
  const u32 old = load_shared(address);
  store_shared(address, old | value);
  return old;
}
inline u32 fetch_add(u64 address, u32 value) { return emulated::add(address, value); }
inline u32 exchange(u64 address, u32 value) { return emulated::exchange(address, value); }
inline void store_released(u64 address, u32 value) { emulated::store_state(address, value); }
inline void add_to_counter(u64 address, u64 value) { emulated::count(address, value); }
inline void clamp_cursor(u64 address, u32 limit) { emulated::least(address, limit); }

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_DEVICE_CUH
