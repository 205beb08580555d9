// --replay: a launch made again and again, to time it with marks and without, with the memory that its arguments point
// to saved before and put back.
// In: a launch, its kernel's two builds. Out: times. Sees the pointers that stand in the parameters themselves, also
// inside of structures; one that stands in memory is not followed. Refuses what another device or the host may read
// meanwhile: a collective that waits for its partners would never end.
#ifndef WARPLENS_DETAIL_HOST_REPLAY_HPP
#define WARPLENS_DETAIL_HOST_REPLAY_HPP

#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "host_device.hpp"
#include "host_launch.hpp"

namespace warplens {
namespace detail {
namespace host {

class Saved {
 public:
  explicit Saved(const Driver& driver) : driver_(driver) {}
  ~Saved() {
    for (auto& entry : ranges_) {
      if (entry.second.copy != 0) driver_.cuMemFree_v2(entry.second.copy);
    }
  }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

  // Copies all there is to copy; false where it cannot be, and `why` then says so.
  bool save(Handle kernel, void** arguments, int device, Handle stream) {
    if (driver_.cuKernelGetParamInfo == nullptr) return refuse("the driver is older than CUDA 12.4");
    std::size_t offset = 0, size = 0;
    for (std::size_t i = 0; driver_.cuKernelGetParamInfo(kernel, i, &offset, &size) == kSuccess; ++i) {
      for (std::size_t at = 0; at + sizeof(Address) <= size; at += sizeof(Address)) {
        Address value = 0;
        std::memcpy(&value, static_cast<const char*>(arguments[i]) + at, sizeof value);
        if (value != 0 && !add(value, device)) return false;
      }
    }
    for (auto& entry : ranges_) {
      Range& range = entry.second;
      if (driver_.cuMemAlloc_v2(&range.copy, range.size) != kSuccess) {
        return refuse("no memory is left to save what its arguments point to");
      }
      if (driver_.cuMemcpyDtoDAsync_v2(range.copy, entry.first, range.size, stream) != kSuccess) {
        return refuse("what its arguments point to cannot be copied");
      }
    }
    return true;
  }

  bool restore(Handle stream) const {
    for (const auto& entry : ranges_) {
      const Range& range = entry.second;
      if (driver_.cuMemcpyDtoDAsync_v2(entry.first, range.copy, range.size, stream) != kSuccess) return false;
    }
    return true;
  }

  std::string why;

 private:
  struct Range {
    std::size_t size;
    Address copy;
  };

  bool refuse(const char* reason) {
    why = reason;
    return false;
  }

  // A word of the parameters, which may be an address.
  bool add(Address value, int device) {
    int kind = 0, owner = 0, managed = 0;
    if (driver_.cuPointerGetAttribute(&kind, kPointerMemoryType, value) != kSuccess) return true;  // it is none
    if (kind != kMemoryOnDevice ||
        (driver_.cuPointerGetAttribute(&managed, kPointerIsManaged, value) == kSuccess && managed != 0)) {
      return refuse("an argument points to memory of the host");
    }
    if (driver_.cuPointerGetAttribute(&owner, kPointerDevice, value) != kSuccess || owner != device) {
      return refuse("an argument points to memory of another GPU, as those of collectives do");
    }
    Address base = 0;
    std::size_t size = 0;
    if (driver_.cuMemGetAddressRange_v2(&base, &size, value) != kSuccess) {
      return refuse("the driver does not say how large the memory is that an argument points to");
    }
    ranges_[base] = {size, 0};
    return true;
  }

  const Driver& driver_;
  std::map<Address, Range> ranges_;  // whole allocations, by their begin
};

class Replay {
 public:
  Replay(const Driver& driver, const Options& options, Device& device, const Launch& launch)
      : driver_(driver), options_(options), device_(device), launch_(launch) {}

  // `launch_as(function)` launches a build; whether it could. Until there are times of `rounds` of each; the GPU gets
  // work first, while they are handed over: one that it waits for has the host's time, and does not count.
  template <class LaunchAs>
  void run(const Kernel& kernel, LaunchAs launch_as) {
    if (kernel.clean_function == nullptr) {
      why = "no clean kernel is known: WARPLENS_PAIR(traced, clean) names one";
      return;
    }
    const Relaxed relaxed(driver_);  // another thread may be capturing
    Saved saved(driver_);
    if (!saved.save(launch_.kernel, launch_.arguments, device_.number, launch_.stream)) {
      why = saved.why;
      return;
    }
    for (std::uint64_t i = 0; i < 8 + 2 * options_.rounds; ++i) device_.flush_l2(launch_.stream);
    std::vector<Timed> timed;
    std::uint64_t times[2] = {0, 0};
    for (std::uint64_t i = 0; i < 8 * options_.rounds && why.empty(); ++i) {
      const bool traced = (i + i / 2) % 2 == 1;  // clean, traced; traced, clean; ...
      if (times[traced] >= options_.rounds) continue;
      timed.emplace_back();
      timed.back().traced = traced;
      const void* build = traced ? kernel.traced_function : kernel.clean_function;
      const bool well = saved.restore(launch_.stream) && one(timed.back(), [&] { return launch_as(build); });
      times[traced] += timed.back().is_time;
      if (!well) why = "a launch failed";
    }
    const bool whole = saved.restore(launch_.stream) && driver_.cuStreamSynchronize(launch_.stream) == kSuccess;
    if (!whole) why = "the memory that it wrote to could not be put back";
    for (const Timed& own : timed) take(own);
  }

  std::vector<double> clean_ns, traced_ns;
  std::string why;  // it was not, or not to the end; empty: it was

 private:
  struct Timed {
    Handle start = nullptr, stop = nullptr;
    bool traced = false, is_time = false;
  };
  template <class LaunchOne>
  bool one(Timed& timed, LaunchOne launch_one) {
    for (Handle* event : {&timed.start, &timed.stop}) {
      if (driver_.cuEventCreate(event, 0) != kSuccess) return false;
    }
    if (options_.cold_l2 && !device_.flush_l2(launch_.stream)) return false;
    if (driver_.cuEventRecord(timed.start, launch_.stream) != kSuccess || !launch_one()) return false;
    timed.is_time = driver_.cuEventQuery(timed.start) == kNotReady;
    return driver_.cuEventRecord(timed.stop, launch_.stream) == kSuccess;
  }

  void take(const Timed& timed) {
    float ms = 0;
    if (timed.is_time && driver_.cuEventElapsedTime(&ms, timed.start, timed.stop) == kSuccess) {
      (timed.traced ? traced_ns : clean_ns).push_back(double{ms} * 1e6);
    }
    for (const Handle event : {timed.start, timed.stop}) {
      if (event != nullptr) driver_.cuEventDestroy_v2(event);
    }
  }

  const Driver& driver_;
  const Options& options_;
  Device& device_;
  const Launch& launch_;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_REPLAY_HPP
