// What NVML says of a GPU, for the manifest: driver, MIG, clocks, power, temperature, throttling, other processes.
// In: libnvidia-ml.so.1, where there is one, and a device's PCI address. Out: JSON, with null for what is not known.
// As capture/machine.py. Asked by the draining thread: it takes milliseconds, and no launch waits for it.
#ifndef WARPLENS_DETAIL_HOST_NVML_HPP
#define WARPLENS_DETAIL_HOST_NVML_HPP

#include <dlfcn.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "host_file.hpp"

namespace warplens {
namespace detail {
namespace host {

class Nvml {
 public:
  // `address`: "0000:3b:00.0".
  explicit Nvml(const std::string& address) {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto init = find<int()>("nvmlInit_v2");
    const auto by_address = find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    there_ = init != nullptr && by_address != nullptr && init() == 0;
    if (there_ && by_address(address.c_str(), &device_) != 0) device_ = nullptr;
  }
  ~Nvml() {
    const auto shutdown = find<int()>("nvmlShutdown");
    if (there_ && shutdown != nullptr) shutdown();  // counted: another user in this process keeps it
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver() const {
    char text[96] = "";
    const auto ask = find<int(char*, unsigned)>("nvmlSystemGetDriverVersion");
    return there_ && ask != nullptr && ask(text, sizeof text) == 0 ? json_text(text) : "null";
  }
  std::string mig() const {
    unsigned now = 0, pending = 0;
    const auto ask = find<int(void*, unsigned*, unsigned*)>("nvmlDeviceGetMigMode");
    if (device_ == nullptr || ask == nullptr || ask(device_, &now, &pending) != 0) return "null";
    return now != 0 ? "true" : "false";
  }
  std::string state() const {
    return "{\"sm_hz\":" + clock(1) + ",\"memory_hz\":" + clock(2) +
           ",\"power_w\":" + scaled(one("nvmlDeviceGetPowerUsage"), 1e-3) +
           ",\"temperature_c\":" + scaled(with("nvmlDeviceGetTemperature", 0), 1.0) +
           ",\"throttle_reasons\":" + throttled() + ",\"other_processes\":" + others() + "}";
  }

 private:
  template <class Signature>
  Signature* find(const char* name) const {
    return library_ == nullptr ? nullptr : reinterpret_cast<Signature*>(dlsym(library_, name));
  }
  // A number, or -1.
  double one(const char* name) const {
    unsigned value = 0;
    const auto ask = find<int(void*, unsigned*)>(name);
    return device_ != nullptr && ask != nullptr && ask(device_, &value) == 0 ? value : -1.0;
  }
  double with(const char* name, int which) const {
    unsigned value = 0;
    const auto ask = find<int(void*, int, unsigned*)>(name);
    return device_ != nullptr && ask != nullptr && ask(device_, which, &value) == 0 ? value : -1.0;
  }
  static std::string scaled(double value, double by) { return value < 0 ? "null" : std::to_string(value * by); }
  std::string clock(int which) const { return scaled(with("nvmlDeviceGetClockInfo", which), 1e6); }  // MHz

  std::string throttled() const {
    unsigned long long mask = 0;
    const auto ask = find<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
    if (device_ == nullptr || ask == nullptr || ask(device_, &mask) != 0) return "null";
    const struct {
      unsigned long long bit;
      const char* text;
    } reasons[] = {{0x08, "hardware slowdown"},
                   {0x40, "hardware thermal slowdown"},
                   {0x80, "hardware power brake"},
                   {0x20, "software thermal slowdown"},
                   {0x04, "software power cap"}};
    std::string out;
    for (const auto& reason : reasons) {
      if ((mask & reason.bit) != 0) out += (out.empty() ? "" : ",") + json_text(reason.text);
    }
    return "[" + out + "]";
  }
  std::string others() const {
    struct Process {
      unsigned pid;
      unsigned long long memory_bytes;
      unsigned gpu_instance, compute_instance;
    };
    std::vector<Process> found(1024);
    auto count = static_cast<unsigned>(found.size());
    const auto ask = find<int(void*, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3");
    if (device_ == nullptr || ask == nullptr || ask(device_, &count, found.data()) != 0) return "null";
    unsigned others = 0;
    for (unsigned i = 0; i < count; ++i) others += found[i].pid != static_cast<unsigned>(getpid());
    return std::to_string(others);
  }

  void *library_ = nullptr, *device_ = nullptr;
  bool there_ = false;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_NVML_HPP
