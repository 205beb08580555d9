// Captured launches: nothing may be put beside a node of a graph, so the descriptor of its file stays on, in a slot
// that counts launches, and a window of them is recorded when the graph is replayed.
//
// In: launches as they are captured, and when recording is switched. Out: the launches of the window, to the writer.
// Launches are counted by their blocks, so this holds for one kernel and shape: the first one that is captured. Others
// run the build without marks; where there is none, nothing is recorded.
#ifndef WARPLENS_DETAIL_HOST_GRAPHS_HPP
#define WARPLENS_DETAIL_HOST_GRAPHS_HPP

#include <map>
#include <mutex>
#include <vector>

#include "host_kernels.hpp"
#include "host_writer.hpp"

namespace warplens {
namespace detail {
namespace host {

class Graphs {
 public:
  Graphs(const Driver& driver, const Options& options, Kernels& kernels, Writer& writer, LeftOut& left_out)
      : driver_(driver), options_(options), kernels_(kernels), writer_(writer), left_out_(left_out) {}

  // A launch that becomes a node, on `device`.
  Decision captured(const Launch& launch, Kernel& kernel, Device& device, bool on) {
    Decision decision;
    decision.function = other_build(launch, kernel, true);
    const Relaxed relaxed(driver_);
    if (slot_ == nullptr) {
      Slot* slot = device.free_slot();
      if (slot == nullptr) return unrecorded(launch, kernel);
      slot->busy = true;
      device_ = &device, slot_ = slot, group_ = &kernels_.group_of(launch, kernel);
      set_window(0, on);
      launch.unit->rest[device.context] = slot->descriptor;
      const Address symbol = launch.unit->symbols[device.context];
      driver_.cuMemcpyHtoDAsync_v2(symbol, slot->descriptor, sizeof *slot->descriptor, device.stream);
      driver_.cuStreamSynchronize(device.stream);
    } else if (device_ != &device || group_ != &kernels_.group_of(launch, kernel)) {
      if (kernel.clean != nullptr) {
        ++left_out_.other_captured;
        return unrecorded(launch, kernel);
      }
      if (!left_out_.mixed_graphs) device_->set_window(*slot_, 0, 0);
      left_out_.mixed_graphs = true;
    }
    return decision;
  }

  bool is_open() const { return slot_ != nullptr && !taken_ && !left_out_.mixed_graphs; }
  bool is_of(const Device& device) const { return device_ == &device; }

  // Graphs may be replayed meanwhile: the first launch recorded is one that had not begun when the GPU could see the
  // window. Those that were under way have marks of some blocks alone, and are left out by `take`.
  void switch_to(bool on) {
    if (!is_open()) return;
    const Relaxed relaxed(driver_);
    Handle before = nullptr;
    driver_.cuCtxGetCurrent(&before);
    driver_.cuCtxSetCurrent(device_->context);
    switched_ = true;
    std::uint64_t ended = device_->blocks_ended(*slot_);
    for (std::uint64_t ahead = 0;; ahead = 2 * ahead + 4) {
      const std::uint64_t first = ended / blocks() + ahead, seen = ended;
      set_window(first, on);
      ended = device_->blocks_ended(*slot_);
      if (!on || ended / blocks() < first + options_.skip || (ended == seen && ended % blocks() == 0)) break;
    }
    driver_.cuCtxSetCurrent(before);
  }

  // The window once it has passed or, at the end, what there is of it. `lock`: the session's, given up meanwhile.
  void drain(std::unique_lock<std::mutex>& lock, bool at_end) {
    if (!is_open()) return;
    lock.unlock();
    const Relaxed relaxed(driver_);
    driver_.cuCtxSetCurrent(device_->context);
    const std::uint64_t ended = device_->blocks_ended(*slot_) / blocks();
    if (at_end || ended >= window_end_) take(ended, *lock.mutex());
    lock.lock();
  }

 private:
  using Words = std::vector<std::uint32_t>;

  std::uint64_t blocks() const { return group_->shape.blocks(); }

  // What is recorded from launch `number` on.
  void set_window(std::uint64_t number, bool on) {
    if (on) window_end_ = number + options_.skip + options_.count;
    device_->set_window(*slot_, number + options_.skip, on ? options_.count : 0);
  }

  static std::size_t blocks_in(const Words& words) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < words.size(); at += layout::kChunkWords) count += tells_block(&words[at]);
    return count;
  }

  // `ended`: launches that have ended.
  void take(std::uint64_t ended, std::mutex& mutex) {
    taken_ = true;
    if (device_->calibrated) {
      writer_.calibration("before", device_->calibration());
      device_->calibrated = false;
    }
    Contents contents;
    std::map<std::uint32_t, Words> launches;
    const auto add = [&](const void* data, std::size_t size) {
      const auto* words = static_cast<const std::uint32_t*>(data);
      for (std::size_t i = 0; i < size / layout::kChunkBytes; ++i, words += layout::kChunkWords) {
        Words& into = launches[words[layout::kWordGrid]];
        into.insert(into.end(), words, words + layout::kChunkWords);
      }
      return true;
    };
    const bool well = device_->drain(*slot_, contents, [](std::uint64_t) { return true; }, add);
    device_->set_window(*slot_, 0, 0);  // replays go on, and are recorded no more
    if (!well) return;
    group_->sites_hash = contents.sites_hash;
    std::size_t most = 0;
    for (const auto& entry : launches) most = std::max(most, blocks_in(entry.second));
    for (const auto& entry : launches) {
      if (entry.first >= ended) continue;  // it has not ended
      if (switched_ && contents.lost_chunks == 0 && blocks_in(entry.second) < most) {
        ++left_out_.partial;
        continue;
      }
      if (!keep(entry.first, entry.second, contents, mutex)) return;
    }
  }

  bool keep(std::uint32_t replay, const Words& words, Contents& all, std::mutex& mutex) {
    Contents own;
    own.chunks = words.size() / layout::kChunkWords;
    own.lost_events = all.lost_events, own.lost_chunks = all.lost_chunks;  // of all: the first one tells
    all.lost_events = all.lost_chunks = 0;
    const std::uint64_t number = writer_.launches();
    if (!writer_.begin_records(*device_, own.chunks)) return false;
    if (!writer_.add_records(words.data(), words.size() * 4)) return false;
    const std::lock_guard<std::mutex> lock(mutex);
    kernels_.count_recorded(*group_);
    writer_.add_launch(number, *group_, own, nullptr, options_, true, replay);
    return true;
  }

  const Driver& driver_;
  const Options& options_;
  Kernels& kernels_;
  Writer& writer_;
  LeftOut& left_out_;
  Device* device_ = nullptr;
  Slot* slot_ = nullptr;
  Group* group_ = nullptr;
  bool taken_ = false, switched_ = false;
  std::uint64_t window_end_ = ~0ull;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_GRAPHS_HPP
