// A libcuda.so.1 without a GPU: device memory is host memory, and streams do at once what they are asked for.
// FAKE_NO_MEMORY: allocations fail. FAKE_DELAY_US: an event has passed only so long after it was recorded.
// FAKE_HANG: no event passes, FAKE_HANG_FROM=N: from the N-th record on; FAKE_STUCK: no copy comes that is asked for
// meanwhile; FAKE_LOCKED: who asks for such an event does not come back. FAKE_BUSY: the device never comes to an end.
// It tells where the device, or the default stream, is waited for. FAKE_PEER: `fake_cell` is another device's. It is
// NVML too: host_nvml.hpp. Only what detail/host_driver.hpp asks for, of the form that cuda.h gives it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {
using Clock = std::chrono::steady_clock;
struct Event {
  Clock::time_point recorded;
  int number = 0;  // of all records
};
const char* setting(const char* name) { return std::getenv(name); }
std::uint64_t now_ns() {
  return 1795000000000000000ull +
         static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()) % 1000000000000000ull;
}
int capture_status = 0;
thread_local void* context = nullptr;
}  // namespace

extern "C" {
void fake_set_capturing(int on) { capture_status = on; }
void fake_set_context(void* value) { context = value; }

int cuCtxGetCurrent(void** out) { return *out = context, 0; }
int cuCtxSetCurrent(void* value) { return context = value, 0; }
int cuCtxGetDevice(int* out) { return *out = 0, 0; }
int cuCtxSynchronize() {
  std::fputs("waited for the device\n", stderr);
  if (setting("FAKE_BUSY") != nullptr) std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
}
int cuDeviceGetName(char* out, int size, int) {
  return std::snprintf(out, static_cast<std::size_t>(size), "Fake GPU"), 0;
}
int cuDeviceGetAttribute(int* out, int which, int) {
  switch (which) {
    case 16:
      *out = 2;
      break;  // SMs
    case 97:
      *out = 227 << 10;
      break;  // shared memory, opt-in
    case 38:
      *out = 50 << 20;
      break;
    case 75:
      *out = 9;
      break;
    default:
      *out = 0;
  }
  return 0;
}
int cuDeviceGetPCIBusId(char* out, int size, int) {
  return std::snprintf(out, static_cast<std::size_t>(size), "0000:00:00.0"), 0;
}
int cuDriverGetVersion(int* out) { return *out = 13000, 0; }
int cuMemAlloc_v2(unsigned long long* out, std::size_t size) {
  if (setting("FAKE_NO_MEMORY") != nullptr) return 2;
  void* memory = std::aligned_alloc(256, (size + 255) / 256 * 256);
  *out = reinterpret_cast<unsigned long long>(memory);
  return memory == nullptr ? 2 : 0;
}
int cuMemFree_v2(unsigned long long address) { return std::free(reinterpret_cast<void*>(address)), 0; }
// Only `cell`, which the program's launches write to, is memory that an argument can point to.
unsigned fake_cell[2] = {};
int cuMemGetAddressRange_v2(unsigned long long* base, std::size_t* size, unsigned long long) {
  return *base = reinterpret_cast<unsigned long long>(fake_cell), *size = sizeof fake_cell, 0;
}
int cuPointerGetAttribute(void* out, int which, unsigned long long address) {
  if (address != reinterpret_cast<unsigned long long>(fake_cell)) return 1;
  if (which == 9) return *static_cast<int*>(out) = setting("FAKE_PEER") != nullptr, 0;
  return *static_cast<unsigned*>(out) = which == 2 ? 2 : 0, 0;
}
int cuKernelGetParamInfo(void*, std::size_t index, std::size_t* offset, std::size_t* size) {
  return *offset = 0, *size = 8, index == 0 ? 0 : 1;
}
int cuMemHostAlloc(void** out, std::size_t size, unsigned) { return *out = std::malloc(size), 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t size, void*) {
  return std::memcpy(reinterpret_cast<void*>(to), from, size), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t size, void*) {
  return std::memcpy(to, reinterpret_cast<void*>(from), size), 0;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t size, void*) {
  return std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size), 0;
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t size, void*) {
  return std::memset(reinterpret_cast<void*>(to), value, size), 0;
}
int cuStreamCreate(void** out, unsigned) { return *out = new int, 0; }
int cuStreamSynchronize(void* stream) {
  if (stream == nullptr) std::fputs("waited for the program's stream\n", stderr);
  return 0;
}
int cuStreamQuery(void*) { return setting("FAKE_STUCK") != nullptr ? 600 : 0; }
int cuStreamIsCapturing(void*, int* out) { return *out = capture_status, 0; }
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }
int cuEventCreate(void** out, unsigned) { return *out = new Event, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), 0; }
int cuEventRecord(void* event, void*) {
  static int records = 0;
  static_cast<Event*>(event)->number = ++records;
  return static_cast<Event*>(event)->recorded = Clock::now(), 0;
}
int cuEventQuery(void* event) {
  if (setting("FAKE_HANG") != nullptr) return 600;
  const char* from = setting("FAKE_HANG_FROM");
  if (from != nullptr && static_cast<Event*>(event)->number >= std::atoi(from)) {
    if (setting("FAKE_LOCKED") != nullptr) std::this_thread::sleep_for(std::chrono::hours(1));
    return 600;
  }
  const char* delay = setting("FAKE_DELAY_US");
  const auto ready =
      static_cast<Event*>(event)->recorded + std::chrono::microseconds(delay != nullptr ? std::atoi(delay) : 0);
  return Clock::now() < ready ? 600 : 0;
}
int cuEventElapsedTime(float* out, void*, void*) { return *out = 0.005f, 0; }
int cuFuncGetAttribute(int* out, int which, void*) { return *out = which == 4 ? 32 : 0, 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, void*, int, std::size_t) { return *out = 8, 0; }
int cuKernelGetFunction(void** out, void* kernel) { return *out = kernel, 0; }
// A kernel's handle is the address of its name here.
int cuKernelGetName(const char** out, void* kernel) { return *out = static_cast<const char*>(kernel), 0; }
// The two kernels of calibrate.cu: pairs of every SM, and values of globaltimer, 32 ns apart.
int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                   void** arguments, void**) {
  auto* out = *static_cast<std::uint64_t**>(arguments[0]);
  const unsigned count = *static_cast<unsigned*>(arguments[1]);
  if (std::string(static_cast<const char*>(function)) == "calibrate") {
    for (unsigned sm = 0; sm < grid; ++sm) {
      for (unsigned i = 0; i < count; ++i, out += 3) {
        const std::uint64_t ns = now_ns() / 32 * 32 + 4000 * i;
        out[0] = ns, out[1] = ns * 2, out[2] = sm;
      }
    }
  } else {
    for (unsigned i = 0; i < count; ++i) out[i] = 1795000000000000000ull + i / 3 * 32;
  }
  return 0;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** out) {
  return *out = &capture_status, std::strcmp(address, "0000:00:00.0") == 0 ? 0 : 6;
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) { return std::snprintf(out, size, "580.1"), 0; }
int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* pending) { return *now = *pending = 1, 0; }
int nvmlDeviceGetClockInfo(void*, int which, unsigned* out) { return *out = which == 1 ? 1980 : 3201, 0; }
int nvmlDeviceGetPowerUsage(void*, unsigned* out) { return *out = 120500, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* out) { return *out = 0x24, 0; }
}
