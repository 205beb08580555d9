// Memory for records on one context, and how it is emptied while the program runs on.
// In: the driver and the options. Out: slots that one launch each writes to, and their chunks, piece by piece. The
// layout is that of layout.py. Nothing here synchronises more than its own stream.
#ifndef WARPLENS_DETAIL_HOST_DEVICE_HPP
#define WARPLENS_DETAIL_HOST_DEVICE_HPP

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "host_driver.hpp"
#include "host_file.hpp"
#include "host_options.hpp"
#include "layout.h"

namespace warplens {
namespace detail {
namespace host {

constexpr unsigned kSlots = 4;  // launches that can be under way or wait to be copied out
constexpr std::size_t kPieceBytes = 8u << 20;
constexpr auto kLongestLook = std::chrono::seconds(5);  // 256 MiB take less than 0.1 s on a GPU that answers
constexpr unsigned kEdges = 9, kGapNs = 4000;           // as capture/calibrate.py

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// Memory that one launch writes to.
struct Slot {
  layout::Descriptor* descriptor = nullptr;  // in pinned memory, to be copied to the module's symbol
  Address memory = 0;
  Handle start = nullptr, stop = nullptr, done = nullptr;  // events
  bool busy = false;
};

// What was in a slot, but for the chunks themselves.
struct Contents {
  std::uint64_t chunks = 0, lost_events = 0, lost_chunks = 0;
  std::set<std::uint32_t> grids;  // three at most
  std::uint32_t sites_hash = 0;
  bool streams = false;  // there are chunks of a recorder that streams, as that of marks in PTX
  bool full = false;     // of a launch that has not ended: a warp may have found no space, and count that at its end
};

// Whether a chunk says how its block began: there is one such a block.
inline bool tells_block(const std::uint32_t* chunk) {
  const std::uint32_t meta = chunk[layout::kWordMeta];
  const std::uint32_t flags = meta >> layout::kMetaFlagsShift & ((1u << layout::kMetaFlagsBits) - 1u);
  return meta >> layout::kMetaMarkerShift == layout::kMetaMarker && flags != layout::kDetachedFlags &&
         (flags & layout::kFlagBlockRecord) != 0;
}

struct Pair {
  std::uint64_t globaltimer_ns, clock_cycles, sm;
};

class Device {
 public:
  // The current context's. Throws nothing: `error` says what is missing.
  Device(const Driver& driver, const Options& options) : driver_(driver), options_(options) {
    driver_.cuCtxGetCurrent(&context);
    driver_.cuCtxGetDevice(&number);
    if (!allocate() && error.empty()) error = "the device has no memory left for records";
  }

  bool launching = false;  // a thread is about to make a launch that is recorded or timed

  // A slot that no launch uses; nullptr where all are in use.
  Slot* free_slot() {
    for (Slot& slot : slots_) {
      if (!slot.busy) return &slot;
    }
    return nullptr;
  }

  int attribute(int which) const {
    int value = 0;
    driver_.cuDeviceGetAttribute(&value, which, number);
    return value;
  }

  // Copies out what a launch left, whose `done` event has passed, and makes room for the next. `begin` is told how many
  // chunks there are; then come the chunks. False where the driver fails, or a receiver says so.
  bool drain(Slot& slot, Contents& contents, const std::function<bool(std::uint64_t)>& begin,
             const std::function<bool(const void*, std::size_t)>& add) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Taken taken;
    if (!read_taken(slot, contents, taken)) return false;
    const bool passed_on = pass_on(slot, contents, taken, begin, add);
    return clear(slot, taken) && passed_on;
  }

  // As `drain`, while the launch may hang: what it wrote until now stays there, and nothing waits for the GPU longer
  // than kLongestLook in all.
  bool look(const Slot& slot, Contents& contents, const std::function<bool(std::uint64_t)>& begin,
            const std::function<bool(const void*, std::size_t)>& add) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Looking looking(*this);
    Taken taken;
    if (!read_taken(slot, contents, taken) || !pass_on(slot, contents, taken, begin, add)) return false;
    const bool no_others = taken.others == slot.descriptor->chunks - shared_;
    contents.full = taken.used_up && (no_others || contents.streams);  // marks in PTX ask their cursor alone
    return true;
  }

  // Blocks that have ended in a slot whose launches are counted. `looking`: while a kernel may hang.
  std::uint64_t blocks_ended(const Slot& slot, bool looking = false) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Looking bounded(*this, looking);
    std::uint64_t value = 0;
    if (!copy_out(control_, slot.descriptor->control + layout::kControlBlocksEnded, 8)) return 0;
    std::memcpy(&value, control_, 8);
    return value;
  }
  // Lets a slot count launches and record those of a window (chunks then name the launch by its number), or none.
  // Kernels may run meanwhile: what they count is not written to, and none is recorded before it can see the whole
  // window.
  bool set_window(const Slot& slot, std::uint64_t first, std::uint64_t launches) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uint64_t window[] = {first, launches};
    std::uint32_t choice[4];
    std::memcpy(choice, choice_, sizeof choice);
    choice[0] = launches > 0 ? options_.warp_mask : 0;
    choice[3] |= layout::kChoiceWindow;
    const bool windowed = launches == 0 || copy_in(slot.descriptor->control + layout::kControlWindowFirst, window);
    return windowed && copy_in(slot.descriptor->control + layout::kControlChoice, choice);
  }

  // Pairs of clock and globaltimer of every SM, by a kernel in `own` that holds each SM alone.
  bool calibrate(Handle function, Handle own) {
    int shared = attribute(kAttributeSharedOptin) - 1024;
    unsigned edges = kEdges, gap = kGapNs;
    void* arguments[] = {&pairs_, &edges, &gap};
    driver_.cuFuncSetAttribute(function, kFunctionMaxDynamicShared, shared);
    const auto sms = static_cast<unsigned>(attribute(kAttributeSmCount));
    return driver_.cuLaunchKernel(function, sms, 1, 1, 32, 1, 1, static_cast<unsigned>(shared), own, arguments,
                                  nullptr) == kSuccess;
  }
  // What `calibrate` measured, once its stream has come so far. `looking`: while a kernel may hang.
  std::vector<Pair> calibration(bool looking = false) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Looking bounded(*this, looking);
    std::vector<Pair> out(static_cast<std::size_t>(attribute(kAttributeSmCount)) * kEdges);
    if (!copy_out(staging_, pairs_, out.size() * sizeof(Pair))) return {};
    std::memcpy(out.data(), staging_, out.size() * sizeof(Pair));
    return out;
  }
  // The step of globaltimer in ns, 0 where it is not known.
  std::uint64_t step_ns(Handle function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Slot* slot = free_slot();  // its chunks are zeros, and need not be so any more: this is at the end
    unsigned count = 8192;
    if (slot == nullptr || slot->descriptor->chunks * std::uint64_t{layout::kChunkBytes} < count * 8u) return 0;
    Address samples = slot->descriptor->arena;
    void* arguments[] = {&samples, &count};
    std::vector<std::uint64_t> values(count), steps;
    for (int i = 0; i < 2; ++i) {
      if (driver_.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr) != kSuccess) return 0;
    }
    if (!copy_out(staging_, samples, count * 8u)) return 0;
    std::memcpy(values.data(), staging_, count * 8u);
    bool first = true;
    std::uint64_t last = values[0];
    for (const std::uint64_t value : values) {
      if (value == last) continue;
      if (!first) steps.push_back(value - last);  // the first edge's own step began before
      last = value;
      first = false;
    }
    if (steps.empty()) return 0;
    std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
    return steps[steps.size() / 2];
  }

  // Puts other data into the L2 cache, in `own`.
  bool flush_l2(Handle own) {
    return make_flushed() && driver_.cuMemsetD8Async(flushed_, 0, flushed_bytes(), own) == kSuccess;
  }

  std::string pci_address() const {
    char text[64] = "";
    driver_.cuDeviceGetPCIBusId(text, sizeof text, number);
    return text;
  }

  // `version` and `mig`: what NVML says.
  std::string facts(const std::string& version, const std::string& mig) const {
    char name[256] = "";
    int cuda = 0;
    driver_.cuDeviceGetName(name, sizeof name, number);
    driver_.cuDriverGetVersion(&cuda);
    return "{\"name\":" + json_text(name) + ",\"compute_capability\":[" + std::to_string(attribute(kAttributeMajor)) +
           "," + std::to_string(attribute(kAttributeMinor)) +
           "],\"sm_count\":" + std::to_string(attribute(kAttributeSmCount)) +
           ",\"l2_bytes\":" + std::to_string(attribute(kAttributeL2Bytes)) + ",\"driver\":" + version +
           ",\"cuda_driver_version\":" + std::to_string(cuda) + ",\"mig\":" + mig +
           ",\"multi_process\":null,\"ordinal\":" + std::to_string(number) + "}";
  }

  const layout::Descriptor* off() const { return off_; }

  Handle context = nullptr, stream = nullptr;
  std::pair<Handle, Handle> calibrators;  // functions: pairs of all SMs, steps of globaltimer
  bool calibrated = false;                // pairs were asked for and not yet read
  int number = 0;
  std::string error;

 private:
  struct Taken {
    std::vector<std::uint32_t> of_cursor;  // chunks that it handed out
    std::uint32_t depth = 0, others = 0;
    std::uint64_t chunks = 0;
    bool used_up = false;  // a cursor has none left
  };

  // Copies ask whether they have come, and give up in time: see copy_out.
  struct Looking {
    explicit Looking(Device& device, bool on = true) : device_(device) {
      device_.looking_ = on;
      device_.until_ = std::chrono::steady_clock::now() + kLongestLook;
    }
    ~Looking() { device_.looking_ = false; }
    Looking(const Looking&) = delete;
    Looking& operator=(const Looking&) = delete;
    Device& device_;
  };

  bool allocate() {
    const std::uint64_t each = options_.capacity_bytes / kSlots;
    const auto sms = static_cast<std::uint64_t>(attribute(kAttributeSmCount));
    // Behind the chunks lie the last places of policy `live`, which a kernel may have chosen by itself.
    last_bytes_ = sms * layout::kLastWarps * layout::kLastBytes;
    const std::uint64_t chunks =
        each > layout::kControlBytes ? (each - layout::kControlBytes) / layout::kChunkBytes : 0;
    if (chunks < layout::kCursorCount || chunks >= (1u << 25)) {  // a member of the file stays below 4 GiB
      error = "a capacity of " + std::to_string(options_.capacity_bytes) + " bytes: 1 MB to 16 GB can be used";
      return false;
    }
    const std::size_t pinned = kPieceBytes + layout::kControlBytes + 64 * (kSlots + 1);
    void* host = nullptr;
    if (driver_.cuStreamCreate(&stream, kStreamNonBlocking) != kSuccess) return false;
    if (driver_.cuMemHostAlloc(&host, pinned, kHostPortableMapped) != kSuccess) return false;
    staging_ = static_cast<unsigned char*>(host);
    control_ = staging_ + kPieceBytes;
    auto* descriptors = control_ + layout::kControlBytes;
    off_ = at<layout::Descriptor>(descriptors + 64 * kSlots);
    std::memset(descriptors, 0, 64 * (kSlots + 1));
    if (driver_.cuMemAlloc_v2(&pairs_, sms * kEdges * sizeof(Pair)) != kSuccess) return false;
    if (!make_fresh(static_cast<std::uint32_t>(chunks))) return false;
    for (unsigned i = 0; i < kSlots; ++i) {
      slots_[i].descriptor = at<layout::Descriptor>(descriptors + 64 * i);
      if (!make_slot(slots_[i], static_cast<std::uint32_t>(chunks))) return false;
    }
    if (options_.cold_l2 && !make_flushed()) return false;
    return driver_.cuStreamSynchronize(stream) == kSuccess;
  }

  // What lies there, at a place that has its alignment.
  template <class T>
  static T* at(unsigned char* bytes) {
    return static_cast<T*>(static_cast<void*>(bytes));
  }

  std::size_t flushed_bytes() const { return 2 * static_cast<std::size_t>(attribute(kAttributeL2Bytes)); }
  bool make_flushed() { return flushed_ != 0 || driver_.cuMemAlloc_v2(&flushed_, flushed_bytes()) == kSuccess; }

  // What a control block holds before its launch.
  bool make_fresh(std::uint32_t chunks) {
    shared_ = chunks / 2 / layout::kCursorCount * layout::kCursorCount;
    std::memset(control_, 0, layout::kControlBytes);
    auto* choice = at<std::uint32_t>(control_ + layout::kControlChoice);
    std::uint32_t odd = options_.every_block, twos = 0, inverse = 1;
    for (; odd % 2 == 0; odd /= 2) ++twos;
    for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;  // Newton's: as layout.choice
    choice[0] = options_.warp_mask;
    choice[1] = inverse;
    choice[2] = 0xffffffffu / options_.every_block;
    choice[3] = twos | (options_.blocks.empty() ? 0u : layout::kChoiceList);
    std::memcpy(choice_, choice, sizeof choice_);
    if (!options_.blocks.empty() && !make_list()) return false;
    std::memcpy(control_ + layout::kControlPoolCursor, &shared_, 4);
    for (std::uint32_t i = 0; i < layout::kCursorCount; ++i) {
      std::memcpy(control_ + layout::kControlCursors + i * layout::kCursorStride, &i, 4);
    }
    if (driver_.cuMemAlloc_v2(&fresh_, layout::kControlBytes) != kSuccess) return false;
    return driver_.cuMemcpyHtoDAsync_v2(fresh_, control_, layout::kControlBytes, stream) == kSuccess &&
           driver_.cuStreamSynchronize(stream) == kSuccess;
  }

  bool make_list() {
    const std::uint32_t most = *std::max_element(options_.blocks.begin(), options_.blocks.end());
    std::vector<std::uint32_t> bits(most / 32 + 1);
    for (const std::uint32_t block : options_.blocks) bits[block / 32] |= 1u << block % 32;
    const std::uint64_t count = bits.size() * 32;
    Address address = 0;
    if (bits.size() * 4 > kPieceBytes || driver_.cuMemAlloc_v2(&address, bits.size() * 4) != kSuccess) return false;
    std::memcpy(staging_, bits.data(), bits.size() * 4);
    std::memcpy(control_ + layout::kControlListAddress, &address, 8);
    std::memcpy(control_ + layout::kControlListBlocks, &count, 8);
    return driver_.cuMemcpyHtoDAsync_v2(address, staging_, bits.size() * 4, stream) == kSuccess &&
           driver_.cuStreamSynchronize(stream) == kSuccess;
  }

  bool make_slot(Slot& slot, std::uint32_t chunks) {
    const std::uint64_t bytes = std::uint64_t{chunks} * layout::kChunkBytes + last_bytes_;
    const std::uint64_t all = layout::kControlAlignment + layout::kControlBytes + bytes;
    if (driver_.cuMemAlloc_v2(&slot.memory, all) != kSuccess) return false;
    slot.descriptor->control = round_up(slot.memory, layout::kControlAlignment);
    slot.descriptor->arena = slot.descriptor->control + layout::kControlBytes;
    slot.descriptor->shared_chunks = shared_;
    slot.descriptor->chunks = chunks;
    for (Handle* event : {&slot.start, &slot.stop}) {
      if (driver_.cuEventCreate(event, 0) != kSuccess) return false;
    }
    if (driver_.cuEventCreate(&slot.done, kEventNoTiming) != kSuccess) return false;
    return driver_.cuMemsetD8Async(slot.descriptor->arena, 0, bytes, stream) == kSuccess && refresh(slot);
  }

  bool refresh(const Slot& slot) {
    return driver_.cuMemcpyDtoDAsync_v2(slot.descriptor->control, fresh_, layout::kControlBytes, stream) == kSuccess;
  }

  bool copy_out(void* to, Address from, std::size_t size) {
    if (driver_.cuMemcpyDtoHAsync_v2(to, from, size, stream) != kSuccess) return false;
    if (!looking_) return driver_.cuStreamSynchronize(stream) == kSuccess;
    int status = kNotReady;
    while ((status = driver_.cuStreamQuery(stream)) == kNotReady && std::chrono::steady_clock::now() < until_) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return status == kSuccess;
  }

  bool read_taken(const Slot& slot, Contents& contents, Taken& taken) {
    if (!copy_out(control_, slot.descriptor->control, layout::kControlBytes)) return false;
    contents.lost_events = read_control<std::uint64_t>(layout::kControlLostEvents);
    contents.lost_chunks = read_control<std::uint64_t>(layout::kControlLostChunks);
    taken = find_taken(slot);
    contents.chunks = taken.chunks;
    return true;
  }

  bool pass_on(const Slot& slot, Contents& contents, const Taken& taken,
               const std::function<bool(std::uint64_t)>& begin,
               const std::function<bool(const void*, std::size_t)>& add) {
    return begin(taken.chunks) && pieces(slot, taken, [&](const void* data, std::size_t size) {
             inspect(contents, static_cast<const std::uint32_t*>(data), size / layout::kChunkBytes);
             return add(data, size);
           });
  }

  template <class T>
  bool copy_in(Address to, const T& value) {
    std::memcpy(control_, &value, sizeof value);
    return driver_.cuMemcpyHtoDAsync_v2(to, control_, sizeof value, stream) == kSuccess &&
           driver_.cuStreamSynchronize(stream) == kSuccess;
  }

  template <class T>
  T read_control(std::size_t at) const {
    T value;
    std::memcpy(&value, control_ + at, sizeof value);
    return value;
  }

  // As Arena.drain of capture/arena.py: each cursor tells how many of its share were handed out.
  Taken find_taken(const Slot& slot) const {
    Taken out;
    const std::uint32_t chunks = slot.descriptor->chunks;
    out.others = std::min(read_control<std::uint32_t>(layout::kControlPoolCursor), chunks) - shared_;
    out.chunks = out.others;
    for (std::uint32_t i = 0; i < layout::kCursorCount; ++i) {
      const auto cursor = read_control<std::uint32_t>(layout::kControlCursors + i * layout::kCursorStride);
      out.used_up = out.used_up || cursor >= shared_;
      out.of_cursor.push_back(std::min(cursor / layout::kCursorCount, shared_ / layout::kCursorCount));
      out.depth = std::max(out.depth, out.of_cursor.back());
      out.chunks += out.of_cursor.back();
    }
    return out;
  }

  // All chunks that were handed out, in pieces of pinned memory: rows of a chunk a cursor, then the others.
  WARPLENS_DETAIL_FAST bool pieces(const Slot& slot, const Taken& taken,
                                   const std::function<bool(const void*, std::size_t)>& add) {
    constexpr std::size_t kRow = std::size_t{layout::kCursorCount} * layout::kChunkBytes;
    constexpr std::uint32_t kRows = kPieceBytes / kRow;
    for (std::uint32_t row = 0; row < taken.depth; row += kRows) {
      const std::uint32_t rows = std::min(kRows, taken.depth - row);
      if (!copy_out(staging_, slot.descriptor->arena + row * kRow, rows * kRow)) return false;
      std::size_t kept = 0;  // moved together, in place
      for (std::uint32_t r = 0; r < rows; ++r) {
        for (std::uint32_t i = 0; i < layout::kCursorCount; ++i) {
          if (row + r >= taken.of_cursor[i]) continue;
          const std::size_t from = r * kRow + i * layout::kChunkBytes;
          if (kept != from) std::memmove(staging_ + kept, staging_ + from, layout::kChunkBytes);
          kept += layout::kChunkBytes;
        }
      }
      if (kept > 0 && !add(staging_, kept)) return false;
    }
    const std::uint64_t size = std::uint64_t{taken.others} * layout::kChunkBytes;
    for (std::uint64_t at = 0; at < size; at += kPieceBytes) {
      const std::size_t piece = std::min<std::uint64_t>(kPieceBytes, size - at);
      const Address from = slot.descriptor->arena + std::uint64_t{shared_} * layout::kChunkBytes + at;
      if (!copy_out(staging_, from, piece) || !add(staging_, piece)) return false;
    }
    return true;
  }

  static void inspect(Contents& contents, const std::uint32_t* words, std::size_t chunks) {
    for (std::size_t i = 0; i < chunks; ++i, words += layout::kChunkWords) {
      const std::uint32_t meta = words[layout::kWordMeta];
      if (meta >> layout::kMetaMarkerShift != layout::kMetaMarker) continue;
      contents.streams = contents.streams || (meta >> layout::kMetaFlagsShift & layout::kFlagStream) != 0;
      if (contents.grids.size() < 3) contents.grids.insert(words[layout::kWordGrid]);
      if (tells_block(words)) {
        contents.sites_hash = words[layout::kBlockRecordWord + layout::kBlockSitesHash];
      }
    }
  }

  bool clear(const Slot& slot, const Taken& taken) {
    const std::uint64_t rows = std::uint64_t{taken.depth} * layout::kCursorCount * layout::kChunkBytes;
    const std::uint64_t others = std::uint64_t{taken.others} * layout::kChunkBytes;
    const Address behind = slot.descriptor->arena + std::uint64_t{shared_} * layout::kChunkBytes;
    return (rows == 0 || driver_.cuMemsetD8Async(slot.descriptor->arena, 0, rows, stream) == kSuccess) &&
           (others == 0 || driver_.cuMemsetD8Async(behind, 0, others, stream) == kSuccess) && refresh(slot) &&
           driver_.cuStreamSynchronize(stream) == kSuccess;
  }

  const Driver& driver_;
  const Options& options_;
  std::mutex mutex_;  // of the pinned memory, which launches and the draining thread share
  unsigned char *staging_ = nullptr, *control_ = nullptr;  // pinned
  layout::Descriptor* off_ = nullptr;
  Address fresh_ = 0, pairs_ = 0, flushed_ = 0;
  std::uint32_t shared_ = 0, choice_[4] = {};
  std::uint64_t last_bytes_ = 0;
  bool looking_ = false;
  std::chrono::steady_clock::time_point until_;
  Slot slots_[kSlots];
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_DEVICE_HPP
