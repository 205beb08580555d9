// Declaration of sites: an enumeration for the kernel, and a string in the module that the host reads.
// In: the names. Out: a struct that a Recorder is made with. Sites are listed nowhere else.
#ifndef WARPLENS_DETAIL_SITES_CUH
#define WARPLENS_DETAIL_SITES_CUH

#include "layout.h"
#ifndef __CUDACC_RTC__
#include "registry.h"
#endif

namespace warplens {
namespace detail {

// 32-bit FNV-1a; layout.py's sites_hash computes the same.
__host__ __device__ constexpr unsigned hash_name(const char* name) {
  unsigned value = 0x811c9dc5u;
  for (; *name != '\0'; ++name) value = (value ^ static_cast<unsigned char>(*name)) * 0x01000193u;
  return value;
}

__host__ __device__ constexpr unsigned bit_length(unsigned value) {
  unsigned bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

}  // namespace detail
}  // namespace warplens

// Under NVRTC a module is one translation unit, and the host looks for the name; nvcc links many.
#ifdef __CUDACC_RTC__
#define WARPLENS_DETAIL_MODULE_SYMBOL extern "C" __device__
#define WARPLENS_DETAIL_REGISTER(set, ...)
#else
#define WARPLENS_DETAIL_MODULE_SYMBOL static __device__ __attribute__((used))
// A process that is recorded by `warplens record` reads them from this list (host.hpp).
#define WARPLENS_DETAIL_REGISTER(set, ...) \
  static const ::warplens::detail::SiteSet warplens_registered_##set(#set, __VA_ARGS__);
#endif

#define WARPLENS_DETAIL_TEXT_(x) #x
#define WARPLENS_DETAIL_TEXT(x) WARPLENS_DETAIL_TEXT_(x)

#define WARPLENS_DETAIL_SITES(set, text, ...)                                                \
  WARPLENS_DETAIL_MODULE_SYMBOL const char warplens_sites_##set[] =                          \
      text "\x1d" __FILE__ "\x1d" WARPLENS_DETAIL_TEXT(__LINE__);                            \
  WARPLENS_DETAIL_REGISTER(set, text "\x1d" __FILE__ "\x1d" WARPLENS_DETAIL_TEXT(__LINE__))  \
  struct set {                                                                               \
    enum Site : unsigned { warplens_none, __VA_ARGS__ warplens_end };                        \
    static constexpr unsigned kHash = ::warplens::detail::hash_name(#set);                   \
    static constexpr unsigned kCount = warplens_end - 1u;                                    \
    static constexpr unsigned kCodeBits =                                                    \
        ::warplens::detail::layout::kCodeSiteShift + ::warplens::detail::bit_length(kCount); \
    static_assert(kCount >= 1u && kCount <= ::warplens::detail::layout::kMaxSites,           \
                  "warplens: a set holds 1 to 1023 sites");                                  \
  }

#define WARPLENS_DETAIL_ENUMERATOR(id, name, kind, resource) id,
#define WARPLENS_DETAIL_DESCRIPTION(id, name, kind, resource) "\x1e" name "\x1f" #kind "\x1f" resource

// WARPLENS_SITES(rmsnorm, load, reduce, store): sites named as in the code, of kind `phase`.
#define WARPLENS_SITES(set, ...) WARPLENS_DETAIL_SITES(set, #__VA_ARGS__, __VA_ARGS__, )

// The long form, by an X-macro, for names of any text, kinds and resources:
//   #define GEMM_SITES(X) X(full, "wait: tile full", wait, "smem full") X(mma, "multiply", phase, "")
//   WARPLENS_SITES_FROM(gemm, GEMM_SITES);
#define WARPLENS_SITES_FROM(set, LIST) \
  WARPLENS_DETAIL_SITES(set, LIST(WARPLENS_DETAIL_DESCRIPTION), LIST(WARPLENS_DETAIL_ENUMERATOR))

#endif  // WARPLENS_DETAIL_SITES_CUH
