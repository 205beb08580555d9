// Lets `warplens record ./program` record the launches of a program that nvcc built.
//
//   #include <warplens/host.hpp>      // in each .cu file whose kernels have marks; it brings warplens.cuh
//   WARPLENS_PAIR(rmsnorm_fwd<true>, rmsnorm_fwd<false>);   // optional: the same kernel with marks and without
//   rmsnorm_fwd<false><<<grid, block, 0, stream>>>(...);    // as ever
//
// Outside of `warplens record` a launch costs one test more, and that is all. Within, launches of this file are
// recorded as the command asks; with a pair, those that are not run the build without marks, whichever the program
// named. Needs g++ as the host compiler. docs/adr/0011-record.md says how and why.
#ifndef WARPLENS_HOST_HPP
#define WARPLENS_HOST_HPP

#include <cuda_runtime.h>

#include "warplens.cuh"
#ifndef __CUDA_ARCH__  // in passes that compile for the device nothing of the host's is needed but what kernels hang on
#include "detail/host_session.hpp"
#endif

#ifdef __clang__
#error \
    "warplens/host.hpp: launches are found by renaming the runtime's functions, which clang does not do here; use g++"
#endif
#ifdef WARPLENS_KEEP_NEWEST
#error "warplens/host.hpp: rings (WARPLENS_KEEP_NEWEST) are recorded by warplens.Kernel alone"
#endif

namespace warplens {
namespace detail {
namespace host {
namespace {
namespace gpu {
#define WARPLENS_DETAIL_LINKAGE static
#include "calibrate.cu"
#undef WARPLENS_DETAIL_LINKAGE
}  // namespace gpu
}  // namespace
}  // namespace host
}  // namespace detail
}  // namespace warplens

#ifdef __CUDA_ARCH__
namespace warplens {
namespace detail {
namespace host {
struct Twins {
  Twins(const void*, const void*) {}
};
}  // namespace host
}  // namespace detail
inline void start_recording() {}
inline void stop_recording() {}
}  // namespace warplens
#else

namespace warplens {
namespace detail {
namespace host {
namespace {

// A call of the runtime whose failure must not become the program's: what cudaGetLastError says stays as it was.
template <class Call>
int kept_quiet(Call call) {
  const bool clean = cudaPeekAtLastError() == cudaSuccess;
  const int status = static_cast<int>(call());
  if (clean && status != 0) (void)cudaGetLastError();
  return status;
}

inline int find_symbol(void** address) {
  return kept_quiet([address] { return cudaGetSymbolAddress(address, warplens_device); });
}

inline Handle find_kernel(const void* function) {
  cudaKernel_t kernel = nullptr;
  return kept_quiet([&] { return cudaGetKernel(&kernel, function); }) == 0 ? static_cast<Handle>(kernel) : nullptr;
}

inline Handle find_calibrator(bool of_step) {
  cudaFunction_t function = nullptr;
  const void* which = of_step ? reinterpret_cast<const void*>(&gpu::sample_globaltimer)
                              : reinterpret_cast<const void*>(&gpu::calibrate);
  return kept_quiet([&] { return cudaGetFuncBySymbol(&function, which); }) == 0 ? static_cast<Handle>(function)
                                                                                : nullptr;
}

struct ThisUnit : Unit {
  ThisUnit()
      : Unit{WARPLENS_DETAIL_TEXT(WARPLENS_POLICY),
             kRelocatable,
             find_symbol,
             find_kernel,
             find_calibrator,
             {},
             {},
             Registered<Unit>::first()} {
    Registered<Unit>::first() = this;
  }
#ifdef __CUDACC_RDC__
  static constexpr bool kRelocatable = true;
#else
  static constexpr bool kRelocatable = false;
#endif
};
ThisUnit this_unit;

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
constexpr bool kStreamPerThread = true;
#else
constexpr bool kStreamPerThread = false;
#endif

// Launches by `original(function)`, where nullptr stands for the kernel as it came.
template <class Original>
cudaError_t launch_recorded(Session& session, Handle kernel, const void* function, const Shape& shape,
                            cudaStream_t stream, void** arguments, Original original) {
  if (kernel == nullptr) return original(nullptr);
  if (stream == nullptr && kStreamPerThread) stream = cudaStreamPerThread;
  const Launch launch = {&this_unit, kernel, function, shape, stream, arguments};
  Decision decision = session.begin(launch);
  if (decision.replay) {
    session.replay(launch, decision, [&](const void* build) { return original(build) == cudaSuccess; });
  }
  const cudaError_t status = original(decision.function);
  session.end(launch, decision, status == cudaSuccess);
  return status;
}

inline Shape shape_of(dim3 grid, dim3 block, std::size_t shared) {
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {1, 1, 1}, shared};
}

}  // namespace
}  // namespace host
}  // namespace detail
}  // namespace warplens

// The runtime's functions by another name in this file, so that all its launches come by here; and by their own.
#define WARPLENS_DETAIL_OTHER(name) __asm__("warplens_unit_" #name)
#define WARPLENS_DETAIL_OWN(name) __asm__(WARPLENS_DETAIL_TEXT(name))
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define WARPLENS_DETAIL_HANDLE_LAUNCH __cudaLaunchKernel_ptsz
#else
#define WARPLENS_DETAIL_HANDLE_LAUNCH __cudaLaunchKernel
#endif
#define WARPLENS_DETAIL_PARAMETERS dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream

extern "C" {
#if CUDART_VERSION >= 13000 && !defined(__NV_LEGACY_LAUNCH)
cudaError_t WARPLENS_DETAIL_HANDLE_LAUNCH(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t)
    WARPLENS_DETAIL_OTHER(handle);
cudaError_t warplens_handle(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t)
    WARPLENS_DETAIL_OWN(WARPLENS_DETAIL_HANDLE_LAUNCH);
#endif
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) WARPLENS_DETAIL_OTHER(plain);
cudaError_t warplens_plain(const void*, dim3, dim3, void**, size_t, cudaStream_t) WARPLENS_DETAIL_OWN(cudaLaunchKernel);
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t)
    WARPLENS_DETAIL_OTHER(cooperative);
cudaError_t warplens_cooperative(const void*, dim3, dim3, void**, size_t, cudaStream_t)
    WARPLENS_DETAIL_OWN(cudaLaunchCooperativeKernel);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) WARPLENS_DETAIL_OTHER(configured);
cudaError_t warplens_configured(const cudaLaunchConfig_t*, const void*, void**)
    WARPLENS_DETAIL_OWN(cudaLaunchKernelExC);
}

namespace warplens {
namespace detail {
namespace host {

#if CUDART_VERSION >= 13000 && !defined(__NV_LEGACY_LAUNCH)
static __attribute__((used)) cudaError_t by_handle(cudaKernel_t kernel, WARPLENS_DETAIL_PARAMETERS)
    WARPLENS_DETAIL_OTHER(handle);
static cudaError_t by_handle(cudaKernel_t kernel, WARPLENS_DETAIL_PARAMETERS) {
  Session* session = Session::current();
  if (session == nullptr) return warplens_handle(kernel, grid, block, arguments, shared, stream);
  return launch_recorded(
      *session, kernel, nullptr, shape_of(grid, block, shared), stream, arguments, [&](const void* function) {
        auto* other = function != nullptr ? static_cast<cudaKernel_t>(find_kernel(function)) : kernel;
        return warplens_handle(other, grid, block, arguments, shared, stream);
      });
}
#endif

static __attribute__((used)) cudaError_t by_function(const void* kernel, WARPLENS_DETAIL_PARAMETERS)
    WARPLENS_DETAIL_OTHER(plain);
static cudaError_t by_function(const void* kernel, WARPLENS_DETAIL_PARAMETERS) {
  Session* session = Session::current();
  if (session == nullptr) return warplens_plain(kernel, grid, block, arguments, shared, stream);
  return launch_recorded(*session, find_kernel(kernel), kernel, shape_of(grid, block, shared), stream, arguments,
                         [&](const void* function) {
                           return warplens_plain(function != nullptr ? function : kernel, grid, block, arguments,
                                                 shared, stream);
                         });
}

static __attribute__((used)) cudaError_t cooperatively(const void* kernel, WARPLENS_DETAIL_PARAMETERS)
    WARPLENS_DETAIL_OTHER(cooperative);
static cudaError_t cooperatively(const void* kernel, WARPLENS_DETAIL_PARAMETERS) {
  Session* session = Session::current();
  if (session == nullptr) return warplens_cooperative(kernel, grid, block, arguments, shared, stream);
  return launch_recorded(*session, find_kernel(kernel), kernel, shape_of(grid, block, shared), stream, arguments,
                         [&](const void* function) {
                           return warplens_cooperative(function != nullptr ? function : kernel, grid, block, arguments,
                                                       shared, stream);
                         });
}

static __attribute__((used)) cudaError_t by_configuration(const cudaLaunchConfig_t* configuration, const void* kernel,
                                                          void** arguments) WARPLENS_DETAIL_OTHER(configured);
static cudaError_t by_configuration(const cudaLaunchConfig_t* configuration, const void* kernel, void** arguments) {
  Session* session = Session::current();
  if (session == nullptr) return warplens_configured(configuration, kernel, arguments);
  Shape shape = shape_of(configuration->gridDim, configuration->blockDim, configuration->dynamicSmemBytes);
  for (unsigned i = 0; i < configuration->numAttrs; ++i) {
    if (configuration->attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    const auto& cluster = configuration->attrs[i].val.clusterDim;
    shape.cluster[0] = cluster.x, shape.cluster[1] = cluster.y, shape.cluster[2] = cluster.z;
  }
  return launch_recorded(
      *session, find_kernel(kernel), kernel, shape, configuration->stream, arguments, [&](const void* function) {
        return warplens_configured(configuration, function != nullptr ? function : kernel, arguments);
      });
}

}  // namespace host
}  // namespace detail
}  // namespace warplens

namespace warplens {

// From when to when `warplens record` records, in a program that says so itself; without --paused it begins at once.
// Graphs that were captured before obey too. Outside of `record` they do nothing.
inline void start_recording() {
  if (auto* session = detail::host::Session::current()) session->set_on(true);
}
inline void stop_recording() {
  if (auto* session = detail::host::Session::current()) session->set_on(false);
}

}  // namespace warplens

#endif  // __CUDA_ARCH__

// WARPLENS_PAIR(traced, clean): two kernels of the same parameters that do the same, one with marks. Put a kernel with
// commas in its name into parentheses. One a line.
#define WARPLENS_DETAIL_JOINED_(a, b) a##b
#define WARPLENS_DETAIL_JOINED(a, b) WARPLENS_DETAIL_JOINED_(a, b)
#define WARPLENS_PAIR(traced, clean)                                                             \
  static const ::warplens::detail::host::Twins WARPLENS_DETAIL_JOINED(warplens_pair_, __LINE__)( \
      reinterpret_cast<const void*>(traced), reinterpret_cast<const void*>(clean))

#endif  // WARPLENS_HOST_HPP
