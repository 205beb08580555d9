// Captured launches: nothing may be put beside a node of a graph, so the descriptor of its file stays on, in a slot
// that counts launches, and a window of them is recorded when the graph is replayed.
//
// In: launches as they are captured, and when recording is switched. Out: the launches of the window, to the writer.
// Launches are counted by their blocks, so this holds for one kernel and shape of a file and a GPU: the first one that
// is captured. Others run the build without marks; where there is none, nothing of that file is recorded there.
#ifndef WARPLENS_DETAIL_HOST_GRAPHS_HPP
#define WARPLENS_DETAIL_HOST_GRAPHS_HPP

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "host_kernels.hpp"
#include "host_writer.hpp"

namespace warplens {
namespace detail {
namespace host {

// What Graph and Graphs work with.
struct OfGraphs {
  const Driver& driver;
  const Options& options;
  Kernels& kernels;
  Writer& writer;
  LeftOut& left_out;
};

// Captured launches of one file on one GPU.
class Graph {
 public:
  using Words = std::vector<std::uint32_t>;
  // A replay that has not ended: its number, its chunks, and since when it is the one.
  struct Rest {
    std::uint64_t replay = 0;
    Words words;
    std::chrono::steady_clock::time_point since;
    bool full = false;  // as Contents
  };

  // `key`: of the file. On, if `on`, from the first launch.
  Graph(const OfGraphs& of, const Launch& launch, const Unit* key, Kernel& kernel, Device& device, Slot& slot, bool on)
      : of_(of), key_(key), device_(&device), slot_(&slot), group_(&of.kernels.group_of(launch, kernel)) {
    slot.busy = true;
    set_window(0, on);
    launch.unit->rest[device.context] = slot.descriptor;
    const Address symbol = launch.unit->symbols[device.context];
    of_.driver.cuMemcpyHtoDAsync_v2(symbol, slot.descriptor, sizeof *slot.descriptor, device.stream);
    of_.driver.cuStreamSynchronize(device.stream);
  }

  bool is_open() const { return !taken_ && !mixed_; }
  bool is_of(const Device& device) const { return device_ == &device; }
  bool is_of(const Device& device, const Unit* key) const { return is_of(device) && key_ == key; }

  // Another launch of the file; false where it is of another kernel or shape, and may be one without marks.
  bool takes(const Launch& launch, Kernel& kernel) {
    if (group_ == &of_.kernels.group_of(launch, kernel)) return true;
    if (kernel.clean != nullptr) return false;
    if (!mixed_) device_->set_window(*slot_, 0, 0);
    mixed_ = of_.left_out.mixed_graphs = true;
    return true;
  }

  // Graphs may be replayed meanwhile: the first launch recorded is one that had not begun when the GPU could see the
  // window. Those that were under way have marks of some blocks alone, and are left out by `take`.
  void switch_to(bool on) {
    const Relaxed relaxed(of_.driver);
    Handle before = nullptr;
    of_.driver.cuCtxGetCurrent(&before);
    of_.driver.cuCtxSetCurrent(device_->context);
    switched_ = true;
    std::uint64_t ended = device_->blocks_ended(*slot_);
    for (std::uint64_t ahead = 0;; ahead = 2 * ahead + 4) {
      const std::uint64_t first = ended / blocks() + ahead, seen = ended;
      set_window(first, on);
      ended = device_->blocks_ended(*slot_);
      if (!on || ended / blocks() < first + of_.options.skip || (ended == seen && ended % blocks() == 0)) break;
    }
    of_.driver.cuCtxSetCurrent(before);
  }

  // The window once it has passed or, at the end, what there is of it. `lock`: the session's, given up meanwhile.
  void drain(std::unique_lock<std::mutex>& lock, bool at_end) {
    lock.unlock();
    const Relaxed relaxed(of_.driver);
    of_.driver.cuCtxSetCurrent(device_->context);
    const std::uint64_t ended = device_->blocks_ended(*slot_) / blocks();
    if (ended != seen_ || since_ == std::chrono::steady_clock::time_point{}) {
      seen_ = ended, since_ = std::chrono::steady_clock::now();
    }
    if (at_end || ended >= window_end_) take(ended, *lock.mutex());
    lock.lock();
    if (at_end && ended == 0) of_.left_out.not_counted.push_back(group_->kernel->name);
  }

  // While a replay may hang: those before it are kept, as at the end, and what there is of it comes into `rest`. False
  // where none has begun, or the GPU gives nothing out.
  bool look(std::mutex& mutex, Rest& rest) {
    const Relaxed relaxed(of_.driver);
    of_.driver.cuCtxSetCurrent(device_->context);
    rest.replay = device_->blocks_ended(*slot_, true) / blocks();
    rest.since = since_;
    take(rest.replay, mutex, &rest);
    return !rest.words.empty();
  }
  Device& device() const { return *device_; }
  Group& group() const { return *group_; }

 private:
  std::uint64_t blocks() const { return group_->shape.blocks(); }

  // What is recorded from launch `number` on.
  void set_window(std::uint64_t number, bool on) {
    if (on) window_end_ = number + of_.options.skip + of_.options.count;
    device_->set_window(*slot_, number + of_.options.skip, on ? of_.options.count : 0);
  }

  static std::size_t blocks_in(const Words& words) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < words.size(); at += layout::kChunkWords) count += tells_block(&words[at]);
    return count;
  }

  // `ended`: launches that have ended. `rest`: takes what there is of the next one, while the GPU may hang.
  void take(std::uint64_t ended, std::mutex& mutex, Rest* rest = nullptr) {
    taken_ = true;
    if (device_->calibrated) {
      of_.writer.calibration("before", *device_, device_->calibration(rest != nullptr));
      device_->calibrated = false;
    }
    Contents contents;
    std::map<std::uint32_t, Words> launches;
    const auto add = [&](const void* data, std::size_t size) {
      const auto* words = static_cast<const std::uint32_t*>(data);
      for (std::size_t i = 0; i < size / layout::kChunkBytes; ++i, words += layout::kChunkWords) {
        if (rest != nullptr && words[layout::kWordMeta] == 0) continue;  // handed out and not yet written
        Words& into = launches[words[layout::kWordGrid]];
        into.insert(into.end(), words, words + layout::kChunkWords);
      }
      return true;
    };
    const auto any = [](std::uint64_t) { return true; };
    const bool well =
        rest != nullptr ? device_->look(*slot_, contents, any, add) : device_->drain(*slot_, contents, any, add);
    if (rest == nullptr) device_->set_window(*slot_, 0, 0);  // replays go on, and are recorded no more
    if (!well) return;
    if (rest != nullptr) rest->full = contents.full;
    if (rest != nullptr && launches.count(static_cast<std::uint32_t>(ended)) != 0) {
      rest->words = launches[static_cast<std::uint32_t>(ended)];
    }
    if (contents.sites_hash != 0) group_->sites_hash = contents.sites_hash;
    std::size_t most = 0;
    for (const auto& entry : launches) most = std::max(most, blocks_in(entry.second));
    for (const auto& entry : launches) {
      if (entry.first >= ended) continue;  // it has not ended
      if (switched_ && contents.lost_chunks == 0 && blocks_in(entry.second) < most) {
        ++of_.left_out.partial;
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
    const std::uint64_t number = of_.writer.launches();
    if (!of_.writer.begin_records(*device_, own.chunks)) return false;
    if (!of_.writer.add_records(words.data(), words.size() * 4)) return false;
    const std::lock_guard<std::mutex> lock(mutex);
    of_.kernels.count_recorded(*group_);
    of_.writer.add_launch(number, *device_, *group_, own, nullptr, of_.options, true, replay);
    return true;
  }

  OfGraphs of_;
  const Unit* key_;
  Device* device_;
  Slot* slot_;
  Group* group_;
  bool taken_ = false, switched_ = false, mixed_ = false;
  std::uint64_t window_end_ = ~0ull, seen_ = 0;  // seen_: replays that had ended when it was last looked
  std::chrono::steady_clock::time_point since_;
};

class Graphs {
 public:
  explicit Graphs(const OfGraphs& of) : of_(of) {}

  // A launch that becomes a node, on `device`.
  Decision captured(const Launch& launch, Kernel& kernel, Device& device, bool on) {
    Decision decision;
    decision.function = other_build(launch, kernel, true);
    const Relaxed relaxed(of_.driver);
    const Unit* key = launch.unit->relocatable ? nullptr : launch.unit;  // those may call functions of each other
    std::size_t taken = 0;                                               // slots
    for (Graph& graph : graphs_) {
      taken += graph.is_of(device);
      if (!graph.is_of(device, key)) continue;
      if (graph.takes(launch, kernel)) return decision;
      ++of_.left_out.other_captured;
      return unrecorded(launch, kernel);
    }
    Slot* slot = taken + 1 < kSlots ? device.free_slot() : nullptr;  // one stays for launches that are not captured
    if (slot == nullptr) {
      ++of_.left_out.without_slot;
      return unrecorded(launch, kernel);
    }
    graphs_.emplace_back(of_, launch, key, kernel, device, *slot, on);
    return decision;
  }

  void switch_to(bool on) {
    for (Graph& graph : graphs_) {
      if (graph.is_open()) graph.switch_to(on);
    }
  }

  bool has_open(const Device& device) const {
    for (const Graph& graph : graphs_) {
      if (graph.is_open() && graph.is_of(device)) return true;
    }
    return false;
  }

  // While a replay may hang: `then(graph, rest)` for the first one that has one, without `lock`.
  template <class Then>
  void look(std::unique_lock<std::mutex>& lock, Then then) {
    for (std::size_t i = 0; i < graphs_.size(); ++i) {
      Graph& graph = graphs_[i];
      if (!graph.is_open()) continue;
      Graph::Rest rest;
      lock.unlock();
      const bool found = graph.look(*lock.mutex(), rest);
      if (found) then(graph, rest);
      lock.lock();
      if (found) return;
    }
  }

  // Those whose window has passed; all of `ended`, a device on which nothing runs any more. `lock` is given up
  // meanwhile, and others may be captured.
  void drain(std::unique_lock<std::mutex>& lock, const Device* ended) {
    for (std::size_t i = 0; i < graphs_.size(); ++i) {
      Graph& graph = graphs_[i];
      if (graph.is_open() && (ended == nullptr || graph.is_of(*ended))) graph.drain(lock, ended != nullptr);
    }
  }

 private:
  OfGraphs of_;
  std::deque<Graph> graphs_;  // addresses stay
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_GRAPHS_HPP
