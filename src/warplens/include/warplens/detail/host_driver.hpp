// The CUDA driver as `warplens record` uses it: found when it is first needed, never linked.
// In: libcuda.so.1. Out: a table of its functions. The driver's calls and not the runtime's: a failure of ours must not
// become the program's cudaGetLastError.
#ifndef WARPLENS_DETAIL_HOST_DRIVER_HPP
#define WARPLENS_DETAIL_HOST_DRIVER_HPP

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace warplens {
namespace detail {
namespace host {

using Handle = void*;  // of a context, stream, event, kernel or function
using Address = unsigned long long;

// Values of cuda.h; written out, so that this compiles without the CUDA headers.
constexpr int kSuccess = 0;
constexpr int kNotReady = 600;
constexpr int kAttributeSharedOptin = 97;
constexpr int kAttributeSmCount = 16;
constexpr int kAttributeL2Bytes = 38;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kPointerMemoryType = 2;
constexpr int kPointerIsManaged = 8;
constexpr int kPointerDevice = 9;
constexpr int kMemoryOnDevice = 2;
constexpr int kFunctionSharedBytes = 1;
constexpr int kFunctionLocalBytes = 3;
constexpr int kFunctionRegisters = 4;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr int kEventBlockingSync = 1;
constexpr int kEventNoTiming = 2;
constexpr int kStreamNonBlocking = 1;
constexpr int kHostPortableMapped = 3;
constexpr int kCaptureNone = 0;
constexpr int kCaptureRelaxed = 2;

#define WARPLENS_DETAIL_DRIVER(X)                                                  \
  X(cuCtxGetCurrent, (Handle*))                                                    \
  X(cuCtxSetCurrent, (Handle))                                                     \
  X(cuCtxGetDevice, (int*))                                                        \
  X(cuCtxSynchronize, ())                                                          \
  X(cuDeviceGetName, (char*, int, int))                                            \
  X(cuDeviceGetAttribute, (int*, int, int))                                        \
  X(cuDeviceGetPCIBusId, (char*, int, int))                                        \
  X(cuDriverGetVersion, (int*))                                                    \
  X(cuMemAlloc_v2, (Address*, std::size_t))                                        \
  X(cuMemFree_v2, (Address))                                                       \
  X(cuMemGetAddressRange_v2, (Address*, std::size_t*, Address))                    \
  X(cuPointerGetAttribute, (void*, int, Address))                                  \
  X(cuMemHostAlloc, (void**, std::size_t, unsigned))                               \
  X(cuMemcpyHtoDAsync_v2, (Address, const void*, std::size_t, Handle))             \
  X(cuMemcpyDtoHAsync_v2, (void*, Address, std::size_t, Handle))                   \
  X(cuMemcpyDtoDAsync_v2, (Address, Address, std::size_t, Handle))                 \
  X(cuMemsetD8Async, (Address, unsigned char, std::size_t, Handle))                \
  X(cuStreamCreate, (Handle*, unsigned))                                           \
  X(cuStreamQuery, (Handle))                                                       \
  X(cuStreamSynchronize, (Handle))                                                 \
  X(cuStreamIsCapturing, (Handle, int*))                                           \
  X(cuThreadExchangeStreamCaptureMode, (int*))                                     \
  X(cuEventCreate, (Handle*, unsigned))                                            \
  X(cuEventDestroy_v2, (Handle))                                                   \
  X(cuEventRecord, (Handle, Handle))                                               \
  X(cuEventQuery, (Handle))                                                        \
  X(cuEventElapsedTime, (float*, Handle, Handle))                                  \
  X(cuFuncGetAttribute, (int*, int, Handle))                                       \
  X(cuFuncSetAttribute, (Handle, int, int))                                        \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int*, Handle, int, std::size_t)) \
  X(cuKernelGetFunction, (Handle*, Handle))                                        \
  X(cuKernelGetName, (const char**, Handle))                                       \
  X(cuLaunchKernel,                                                                \
    (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**))

struct Driver {
#define WARPLENS_DETAIL_MEMBER(name, arguments) int(*name) arguments = nullptr;
  WARPLENS_DETAIL_DRIVER(WARPLENS_DETAIL_MEMBER)
#undef WARPLENS_DETAIL_MEMBER
  int (*cuKernelGetParamInfo)(Handle, std::size_t, std::size_t*, std::size_t*) = nullptr;  // from CUDA 12.4 on
  const char* missing = nullptr;  // why nothing is recorded; nullptr: all is there

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) missing = "no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)";
#define WARPLENS_DETAIL_FIND(name, arguments)                                                  \
  if (library != nullptr) {                                                                    \
    name = reinterpret_cast<int(*) arguments>(dlsym(library, #name));                          \
    if (name == nullptr) missing = "the driver is older than CUDA 12.3 (it has no " #name ")"; \
  }
    WARPLENS_DETAIL_DRIVER(WARPLENS_DETAIL_FIND)
#undef WARPLENS_DETAIL_FIND
    if (library == nullptr) return;
    cuKernelGetParamInfo = reinterpret_cast<decltype(cuKernelGetParamInfo)>(dlsym(library, "cuKernelGetParamInfo"));
  }
};

// Lets this thread allocate and copy while a stream is being captured, and puts the mode back.
class Relaxed {
 public:
  explicit Relaxed(const Driver& driver) : driver_(driver) { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_DRIVER_HPP
