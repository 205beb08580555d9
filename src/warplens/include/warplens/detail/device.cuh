// Reads of the GPU's special registers and the few memory operations of a recorder, as single PTX instructions.
// In: nothing. Out: warplens::detail functions; not part of the public interface.
#ifndef WARPLENS_DETAIL_DEVICE_CUH
#define WARPLENS_DETAIL_DEVICE_CUH

namespace warplens {
namespace detail {

using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 kFullMask = 0xffffffffu;

// Does the compiler know this value here? NVRTC 13.0 and older cannot say, and nvcc's host compiler would for nvcc's
// device code, which must not ask; there the host says which marks it compiles for: with WARPLENS_LOOPS those in loops.
// It says so for kernels of seconds too: only marks in loops tell wraps of 32 bits.
#if !defined(WARPLENS_DETAIL_CAN_TELL) && defined(__has_builtin) && (defined(__CUDACC_RTC__) || !defined(__CUDACC__))
#if __has_builtin(__builtin_constant_p)
#define WARPLENS_DETAIL_CAN_TELL 1
#endif
#endif
#ifndef WARPLENS_DETAIL_CAN_TELL
#define WARPLENS_DETAIL_CAN_TELL 0
#endif
#if defined(WARPLENS_LOOPS)
#define WARPLENS_DETAIL_KNOWN(value) false
#elif WARPLENS_DETAIL_CAN_TELL
#define WARPLENS_DETAIL_KNOWN(value) __builtin_constant_p(value)
#else
#define WARPLENS_DETAIL_KNOWN(value) true
#endif

// Of functions that are called and not inlined. Across translation units (-rdc) one that others could call gets as many
// registers as it likes, and a kernel with __launch_bounds__ may then not call it.
#ifdef __CUDACC_RDC__
#define WARPLENS_DETAIL_CALLED static __device__ __noinline__
#else
#define WARPLENS_DETAIL_CALLED inline __device__ __noinline__
#endif

__host__ __device__ constexpr u32 low(u64 value) { return static_cast<u32>(value); }
__host__ __device__ constexpr u32 high(u64 value) { return static_cast<u32>(value >> 32); }

// Volatile and with a memory clobber: the compiler keeps loads and stores on the side of the read where they
// were written, and ptxas does not move them across a CS2R.
__device__ __forceinline__ u64 read_clock() {
  u64 value;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(value)::"memory");
  return value;
}

__device__ __forceinline__ u32 read_clock_low() {
  u32 value;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(value)::"memory");
  return value;
}

// Both timers side by side: were the second read on a condition, other warps' turns would come in between. The select,
// and the `and` of lane_behind_timers, keep ptxas from two things: reading globaltimer into a uniform register, which
// waits, and waiting for the thread's number in front of the timers. `globaltimer` is 0 but in a block's first warp.
// `code` goes with the clock in one statement, by which the audit names the mark.
__device__ __forceinline__ void read_timers(u32& clock, u32& code, u32& globaltimer, u32 thread, u32 its_code) {
  asm volatile(
      "{.reg .pred p; .reg .u32 t; mov.u32 %0, %%clock; mov.u32 %1, %4; mov.u32 t, %%globaltimer_lo; "
      "setp.lt.u32 p, %3, 32; selp.u32 %2, t, 0, p;}"
      : "=r"(clock), "=r"(code), "=r"(globaltimer)
      : "r"(thread), "r"(its_code)
      : "memory");
}

__device__ __forceinline__ u32 lane_behind_timers(u32 thread) {
  u32 lane;
  asm volatile("and.b32 %0, %1, 31;" : "=r"(lane) : "r"(thread));
  return lane;
}

// A value that the compiler does not know.
__device__ __forceinline__ u32 opaque(u32 value) {
  asm("mov.u32 %0, %0;" : "+r"(value));
  return value;
}

// The same value, but for all that ptxas knows another one in each lane: so it stays out of uniform registers.
__device__ __forceinline__ u64 by_lane(u64 value) {
  u32 mask;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return value + (mask >> 31);  // at most 31 lanes stand in front of one: bits 0 to 30
}

// Has the values under way here, and not first where they are used.
__device__ __forceinline__ void ask_for(u32 a, u32 b) { asm volatile("" ::"r"(a), "r"(b)); }

// In the lanes from `first` on: the clock into `time`, and `its_code` into `code`.
__device__ __forceinline__ void take_clock(u32& time, u32& code, u32 lane, u32 first, u32 its_code) {
  asm volatile("{.reg .pred p; setp.ge.u32 p, %2, %3; @p mov.u32 %0, %%clock; @p mov.u32 %1, %4;}"
               : "+r"(time), "+r"(code)
               : "r"(lane), "r"(first), "r"(its_code)
               : "memory");
}

// In the lanes whose `slot` is `first` or above: a clock that was read before, both halves. Predicated, the read would
// hold up what stands around it, and in a loop that costs more than one instruction more.
__device__ __forceinline__ void keep_clock(u32& time, u32& its_high, u32& code, int slot, u32 first, u64 clock,
                                           u32 its_code) {
  asm("{.reg .pred p; setp.ge.s32 p, %3, %4; @p mov.u32 %0, %5; @p mov.u32 %1, %6; @p mov.u32 %2, %7;}"
      : "+r"(time), "+r"(its_high), "+r"(code)
      : "r"(slot), "r"(first), "r"(low(clock)), "r"(high(clock)), "r"(its_code));
}

// Four words of global memory, loaded here and not where they are used, and kept in the first-level cache: read beside
// it, one address serves about one warp a nanosecond. A kernel begins with an empty cache, so each launch sees what is
// new.
__device__ __forceinline__ void load_words(u64 address, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(address)
               : "memory");
}

// Weak, as all loads of this file: see YIELD in detached.cuh.
__device__ __forceinline__ u32 load_word(u64 address) {
  u32 value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u64 load_wide(u64 address) {
  u64 value;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u32 rotate_right(u32 value, u32 bits) { return __funnelshift_r(value, value, bits); }

// Lets a barrier take effect. BAR.SYNC does not hold a warp at once: on an H200 a clock right behind it was read 2
// cycles after one in front of it, whoever was still missing; with any instruction in between it was read when all had
// come (benchmarks/results/device_facts.json). That instruction must be one that no compiler leaves out or moves above
// the barrier, and that lanes may execute apart: a load of shared memory whose value nobody waits for. What is read is
// a word of our own; or, where the host says that the kernel is not launched in clusters, the first word of the
// kilobyte that every block has reserved for the system from sm_90 on, which costs no memory. In a cluster to read that
// is an illegal instruction (seen on an H200). tests/gpu holds that a wait is then seen as long as it is.
__device__ __forceinline__ void settle() {
#if __CUDA_ARCH__ >= 900 && defined(WARPLENS_NO_CLUSTER)
  const u32 address = 0;
#else
  __shared__ u32 own;
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(&own));
#endif
  asm volatile("{.reg .u32 t; ld.volatile.shared.u32 t, [%0];}" ::"r"(address) : "memory");
}

__device__ __forceinline__ u64 read_globaltimer() {
  u64 value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

__device__ __forceinline__ u32 read_laneid() {
  u32 value;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(value));
  return value;
}

// The SM's own number of the warp: no two warps of an SM have the same at a time.
__device__ __forceinline__ u32 read_warpid() {
  u32 value;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(value));
  return value;
}

// Volatile: a block may move to another SM when it is preempted.
__device__ __forceinline__ u32 read_smid() {
  u32 value;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
  return value;
}

__device__ __forceinline__ u64 read_gridid() {
  u64 value;
  asm("mov.u64 %0, %%gridid;" : "=l"(value));
  return value;
}

__device__ __forceinline__ u32 linear_block() {
#ifdef WARPLENS_1D
  return blockIdx.x;
#endif
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ u32 linear_thread() {
#ifdef WARPLENS_1D
  return threadIdx.x;
#endif
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ u32 linear_warp() { return linear_thread() / 32u; }

// In PTX, since ptxas would branch otherwise.
__device__ __forceinline__ u32 select(u32 condition, u32 yes, u32 no) {
  u32 value;
  asm("{.reg .pred p; setp.ne.u32 p, %1, 0; selp.u32 %0, %2, %3, p;}"
      : "=r"(value)
      : "r"(condition), "r"(yes), "r"(no));
  return value;
}

// Streaming stores (.cs): a record is read once, by the host, long after.
__device__ __forceinline__ void store_word(u64 address, u32 value) {
  asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_if(bool condition, u32 address_low, u32 address_high, u32 value) {
  asm volatile(
      "{.reg .pred p; .reg .u64 a; setp.ne.u32 p, %0, 0; mov.b64 a, {%1, %2}; @p st.global.cs.u32 [a], %3;}" ::"r"(
          static_cast<u32>(condition)),
      "r"(address_low), "r"(address_high), "r"(value)
      : "memory");
}

// Orders this lane's loads and stores for the others of its block.
__device__ __forceinline__ void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

// What was stored before can be read by the host, whatever happens to the kernel after.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ void store_words(u64 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, u32 a, u32 b) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void load_shared(u32 address, u32& a, u32& b) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address) : "memory");
}

__device__ __forceinline__ u32 load_shared(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ u32 fetch_or_shared(u32 address, u32 value) {
  u32 old;
  asm volatile("atom.shared.or.b32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ u32 fetch_add(u64 address, u32 value) {
  u32 old;
  asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

__device__ __forceinline__ u32 exchange(u64 address, u32 value) {
  u32 old;
  asm volatile("atom.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}

// Whoever sees this value sees all that was stored before it too, on this GPU.
__device__ __forceinline__ void store_released(u64 address, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void add_to_counter(u64 address, u64 value) {
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void clamp_cursor(u64 address, u32 limit) {
  asm volatile("red.global.min.u32 [%0], %1;" ::"l"(address), "r"(limit) : "memory");
}

}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_DEVICE_CUH
