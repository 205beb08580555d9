// Saves what a launch that has not ended has written, while its kernel may hang.
// In: that launch, and why it is saved. Out: the last launch of the file, until another one is written over it, and
// what is to be answered. Waits for the GPU no longer than Device::look does.
#ifndef WARPLENS_DETAIL_HOST_UNFINISHED_HPP
#define WARPLENS_DETAIL_HOST_UNFINISHED_HPP

#include <chrono>
#include <mutex>
#include <string>

#include "host_graphs.hpp"
#include "host_halt.hpp"
#include "host_kernels.hpp"
#include "host_writer.hpp"

namespace warplens {
namespace detail {
namespace host {

class Unfinished {
 public:
  Unfinished(const Driver& driver, const Options& options, Kernels& kernels, Writer& writer, std::mutex& mutex)
      : driver_(driver), options_(options), kernels_(kernels), writer_(writer), mutex_(mutex) {}

  // Answers where something is asked. Behind the file `stop` comes a signal, and then it was saved, or could not be.
  void obey(Halt& halt, const Pending* pending) {
    Halt::Asked asked;
    if (!halt.is_asked(asked)) return;
    const auto made = pending != nullptr ? pending->made : std::chrono::steady_clock::time_point{};
    const bool again = asked.signal != 0 && pending != nullptr && made == tried_;
    halt.answer(asked, again ? "" : save(pending, asked.why));
    tried_ = made;
  }

  // The same where no launch is under way but a replay of a graph may be. `lock`: the session's, given up meanwhile.
  void obey(Halt& halt, Graphs& graphs, std::unique_lock<std::mutex>& lock) {
    Halt::Asked asked;
    if (!halt.is_asked(asked)) return;
    std::string said = asked.signal != 0 && writer_.has_stopped() ? "saved" : "";
    if (said.empty()) {
      graphs.look(lock, [&](Graph& graph, Graph::Rest& rest) { said = save(graph, rest, asked.why); });
    }
    halt.answer(asked, said);
  }

  // "saved", or why not. `pending`: nullptr where no launch is under way. The context is current.
  std::string save(const Pending* pending, const std::string& why) {
    if (pending == nullptr) return "";
    if (pending->slot == nullptr) {
      return pending->group->kernel->name +
             " was running without marks, to take its time: with --rounds 0 each launch is recorded";
    }
    const Relaxed relaxed(driver_);
    Device& device = *pending->device;
    if (device.calibrated) {
      const auto pairs = device.calibration(true);
      if (!pairs.empty()) writer_.calibration("before", device, pairs), device.calibrated = false;
    }
    Group& group = *pending->group;
    const std::uint64_t number = writer_.launches();
    const std::string stopped = why_stopped(group, number, why, pending->made);
    bool given_out = true;
    const bool saved = writer_.add_stopped(device, group, stopped, [&]() -> std::string {
      Contents contents;
      given_out = device.look(
          *pending->slot, contents,
          [&](std::uint64_t chunks) { return chunks == 0 || writer_.begin_records(device, chunks); },
          [&](const void* data, std::size_t size) { return writer_.add_records(data, size); });
      if (!given_out) return "";
      return writer_.launch_entry(number, device, group, contents, pending->stream.handle, options_, false, 0);
    });
    if (saved) return "saved";
    return given_out ? "what was under way could not be written" : "the GPU did not give out what was under way";
  }

 private:
  std::string save(Graph& graph, const Graph::Rest& rest, const std::string& why) {
    Group& group = graph.group();
    const std::uint64_t number = writer_.launches();
    const std::string stopped = why_stopped(group, number, why, rest.since);
    const bool saved = writer_.add_stopped(graph.device(), group, stopped, [&]() -> std::string {
      Contents own;
      own.chunks = rest.words.size() / layout::kChunkWords;
      own.full = rest.full;
      if (!writer_.begin_records(graph.device(), own.chunks)) return "";
      if (!writer_.add_records(rest.words.data(), rest.words.size() * 4)) return "";
      return writer_.launch_entry(number, graph.device(), group, own, nullptr, options_, true, rest.replay);
    });
    return saved ? "saved" : "what was under way could not be written";
  }

  // The manifest's `stopped`.
  std::string why_stopped(Group& group, std::uint64_t number, const std::string& why,
                          std::chrono::steady_clock::time_point begun) {
    const std::chrono::duration<double> after = std::chrono::steady_clock::now() - begun;
    const bool guessed = !knows_sites(group);
    return "{\"why\":" + json_text(why) + ",\"after_s\":" + std::to_string(after.count()) +
           ",\"launch\":" + std::to_string(number) + ",\"from\":\"records\",\"last\":[]" +
           (guessed ? ",\"sites_guessed\":true" : "") + "}";
  }

  // Blocks tell which set of sites they have at their end. Where none has ended yet another launch of the kernel may
  // have told, or there is one set alone.
  bool knows_sites(Group& group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group.sites_hash == 0) group.sites_hash = kernels_.sites_hash(group);
    return group.sites_hash != 0 || site_sets().size() == 1;
  }

  const Driver& driver_;
  const Options& options_;
  Kernels& kernels_;
  Writer& writer_;
  std::mutex& mutex_;                            // the session's
  std::chrono::steady_clock::time_point tried_;  // when the launch was made that was last to be saved
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_UNFINISHED_HPP
