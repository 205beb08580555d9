// One recorded process: which of its launches are recorded, and the thread that empties memory behind them.
// In: every launch of the translation units that include host.hpp, before and behind it. Out: a file in the folder that
// `warplens record` named (docs/adr/0011-record.md). Adds no launch of the program's kernels, never waits for the
// device, and where anything fails lets the program go on unrecorded.
#ifndef WARPLENS_DETAIL_HOST_SESSION_HPP
#define WARPLENS_DETAIL_HOST_SESSION_HPP

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "host_done.hpp"
#include "host_graphs.hpp"
#include "host_halt.hpp"
#include "host_replay.hpp"
#include "host_unfinished.hpp"

namespace warplens {
namespace detail {
namespace host {

#ifndef WARPLENS_DETAIL_LONGEST_END_S
#define WARPLENS_DETAIL_LONGEST_END_S 30  // as capture/ends.py
#endif
constexpr auto kLongestWait = std::chrono::seconds(2);                             // of a launch for memory
constexpr auto kLongestEnd = std::chrono::seconds(WARPLENS_DETAIL_LONGEST_END_S);  // at the end, for the last launch

class Session {
 public:
  // The process's own; nullptr where nothing is to be recorded.
  static Session* current() {
    static Session* session = make();
    return session;
  }

  Decision begin(const Launch& launch) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopped_) return {};
    watch_switch();
    Kernel& kernel = kernels_.of(launch);
    ++kernel.launches;
    if (kernel.silent) return {};
    if (!kernel.matches) return unrecorded(launch, kernel);
    if (!options_.takes(launch.shape.grid)) {
      kernel.other_grid = true;
      return unrecorded(launch, kernel);
    }
    if (!options_.nvtx_include.empty() && !in_range()) {
      kernel.other_range = true;
      return unrecorded(launch, kernel);
    }
    if (!options_.is_policy(launch.unit->policy) && !(options_.policy == "stream" && has_automatic_marks())) {
      ++left_out_.other_policy[launch.unit->policy];
      return unrecorded(launch, kernel);
    }
    if (options_.keep != "oldest") {
      ++left_out_.newest;
      return unrecorded(launch, kernel);
    }
    const bool past = !on_ || matched_++ < options_.skip || ended_;
    void* made = nullptr;
    Handle context = current_context();
    if (context == nullptr) {
      launch.unit->symbol(&made);  // a thread's first call: the runtime gives it one
      context = current_context();
    }
    int capture = kCaptureNone;
    if (driver_.cuStreamIsCapturing(launch.stream, &capture) != kSuccess) return {};
    if (capture != kCaptureNone) {
      Device* device = device_of(launch, context, true);
      return device == nullptr || !device->error.empty() ? Decision{} : graphs_.captured(launch, kernel, *device, on_);
    }
    if (past || kept_ >= options_.count) return unrecorded(launch, kernel);
    Device* device = device_of(launch, context);
    if (device == nullptr || !device->error.empty()) return unrecorded(launch, kernel);
    if (is_beside(launch, *device)) return unrecorded(launch, kernel);
    Group& group = kernels_.group_of(launch, kernel);
    const bool clean = !options_.replay && group.timed_clean < options_.rounds && group.turn++ % 2 == 1;
    return clean ? timed(launch, kernel, group, *device) : recorded(lock, launch, kernel, group, *device);
  }

  // Behind the launch: `launched` says whether the driver took it.
  void end(const Launch& launch, Decision& decision, bool launched) {
    Pending& pending = decision.pending;
    if (pending.group == nullptr) return;
    std::lock_guard<std::mutex> lock(mutex_);
    pending.device->launching = false;
    // Had the GPU come to the start before the kernel was there, the time would be the host's.
    if (pending.start != nullptr) {
      pending.timed = driver_.cuEventQuery(pending.start) == kNotReady;
      driver_.cuEventRecord(pending.stop, launch.stream);
    }
    if (pending.slot != nullptr) {
      write_descriptors(launch, *pending.device, nullptr);
      driver_.cuEventRecord(pending.done, launch.stream);
    }
    if (!launched) {
      release(pending);
      return;
    }
    if (pending.slot != nullptr) ++kept_;
    pending.made = std::chrono::steady_clock::now();
    queue_.push_back(pending);
    wake_.notify_all();
  }

  // Launches while it is off run without being recorded or counted; graphs that were captured already obey too.
  void set_on(bool on) {
    const std::lock_guard<std::mutex> lock(mutex_);
    switch_to(on);
  }

  // With --replay, before the launch itself: times of clean and traced ones. `launch_as(function)` makes another one of
  // that build. Waits for the stream.
  template <class LaunchAs>
  void replay(const Launch& launch, Decision& decision, LaunchAs launch_as) {
    Pending& pending = decision.pending;
    Replay replay(driver_, options_, *pending.device, launch);
    replay.run(*pending.group->kernel, launch_as);
    Contents left;  // what the traced ones wrote
    const auto forget = [](const void*, std::size_t) { return true; };
    pending.device->drain(*pending.slot, left, [](std::uint64_t) { return true; }, forget);
    const std::lock_guard<std::mutex> lock(mutex_);
    Group& group = *pending.group;
    group.clean_ns.insert(group.clean_ns.end(), replay.clean_ns.begin(), replay.clean_ns.end());
    group.traced_ns.insert(group.traced_ns.end(), replay.traced_ns.begin(), replay.traced_ns.end());
    if (!replay.why.empty()) left_out_.not_replayed.push_back(group.kernel->name + ": " + replay.why);
    write_descriptors(launch, *pending.device, pending.slot->descriptor);
  }

  // At the program's end: what is under way is waited for, which is told, and the file gets its manifest and its name.
  // A launch that does not end in time is the file's last one, as far as it got.
  void finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (stopped_) return;
    ended_ = true;
    const auto is_idle = [this] { return queue_.empty() && !draining_; };
    if (!room_.wait_for(lock, std::min<std::chrono::seconds>(kLongestWait, kLongestEnd), is_idle)) {
      writer_.tell_wait(WARPLENS_DETAIL_LONGEST_END_S);
      if (!room_.wait_for(lock, kLongestEnd, is_idle)) {
        late_ = true;  // the draining thread saves it
        room_.wait_for(lock, kLongestLook + kLongestWait, [this, is_idle] { return !late_ || is_idle(); });
      }
    }
    const bool whole = is_idle();
    stopped_ = true;
    wake_.notify_all();
    lock.unlock();
    halt_.end();
    if (!whole) {
      drainer_.detach();  // it waits for a kernel that has not ended, and must not hold up the program
      return;
    }
    if (drainer_.joinable()) drainer_.join();
    // Another kernel of the program's may not end, for which these calls would wait: then the file stays a part.
    const auto finished = std::make_shared<Done>();
    const bool started = start_apart([this, finished] {
      for (auto& entry : devices_) finish_device(*entry.second);
      finished->set();
    });
    if (started && finished->wait_for(kLongestWait)) writer_.finish(driver_, summary());
  }

 private:
  static Session* make() {
    // Nothing of this is freed: launches may come after static objects are gone.
    const Options& options = *new Options;
    if (!options.wanted) return nullptr;
    const Driver& driver = *new Driver;
    auto* session = new Session(driver, options);
    if (session->writer_.failed()) return nullptr;
    instance() = session;
    std::atexit([] { instance()->finish(); });
    // A child of fork has no threads and no CUDA: it records nothing, and leaves the file alone.
    pthread_atfork([] { instance()->mutex_.lock(); }, [] { instance()->mutex_.unlock(); },
                   [] {
                     instance()->stopped_ = true;
                     instance()->mutex_.unlock();
                   });
    return session;
  }
  static Session*& instance() {
    static Session* session = nullptr;
    return session;
  }

  Session(const Driver& driver, const Options& options)
      : driver_(driver),
        options_(options),
        on_(!options.paused),
        kernels_(driver, options),
        writer_(options),
        graphs_({driver, options, kernels_, writer_, left_out_}),
        unfinished_(driver, options, kernels_, writer_, mutex_) {
    left_out_.asked_policy = options.policy;
    if (driver_.missing != nullptr) ended_ = true;
  }

  // Of NVTX; the library that knows has been loaded once a range was opened (nvtx_ranges.cpp).
  bool in_range() {
    if (ask_range_ == nullptr) {
      const char* path = std::getenv("NVTX_INJECTION64_PATH");
      void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
      if (library != nullptr) ask_range_ = reinterpret_cast<int (*)()>(dlsym(library, "warplens_in_range"));
    }
    return ask_range_ != nullptr && ask_range_() != 0;
  }

  void switch_to(bool on) {
    if (stopped_ || on_ == on) return;
    on_ = on;
    graphs_.switch_to(on);
  }

  // `warplens record` was sent a signal: it makes or removes a file, which is looked for ten times a second at most.
  void watch_switch() {
    if (!options_.switched) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < std::chrono::milliseconds(100)) return;
    looked_ = now;
    const bool asked = access((options_.folder + "/on").c_str(), F_OK) == 0;
    if (asked != switched_on_) switch_to(switched_on_ = asked);
  }

  Handle current_context() const {
    Handle context = nullptr;
    return driver_.cuCtxGetCurrent(&context) == kSuccess ? context : nullptr;
  }

  // `capturing`: the launch's stream takes nodes of a graph, and nothing of ours.
  Device* device_of(const Launch& launch, Handle context, bool capturing = false) {
    if (context == nullptr) return nullptr;
    const auto known = devices_.find(context);
    if (known != devices_.end() && launch.unit->symbols.count(context) != 0) return known->second.get();
    const Relaxed relaxed(driver_);
    auto& device = devices_[context];
    if (device == nullptr) {
      device = std::make_unique<Device>(driver_, options_);
      if (device->error.empty() && !drainer_.joinable()) {
        const bool started = drainer_.start([this] { drain_all(); });
        if (started) halt_.begin(options_.folder, writer_.base());
        if (!started) device->error = "the system gives no thread that could read what launches record";
      }
      if (!device->error.empty()) {
        writer_.complain(device->error);
        return device.get();
      }
      const Handle calibrator = launch.unit->calibrator(false);
      device->calibrators = {calibrator, launch.unit->calibrator(true)};
      device->calibrated =
          calibrator != nullptr && device->calibrate(calibrator, capturing ? device->stream : launch.stream);
    }
    if (launch.unit->symbols.count(context) == 0) {
      void* address = nullptr;
      if (launch.unit->symbol(&address) != 0) return nullptr;
      launch.unit->symbols[context] = reinterpret_cast<Address>(address);
    }
    return device.get();
  }

  // The descriptors that decide about this launch: of its unit or, where functions of other units may be called, of all
  // those that were seen on this context. nullptr: what stands there between launches.
  void write_descriptors(const Launch& launch, Device& device, const layout::Descriptor* value) {
    const auto write = [&](Unit& unit) {
      const auto symbol = unit.symbols.find(device.context);
      if (symbol == unit.symbols.end()) return;
      const auto rest = unit.rest.find(device.context);
      const layout::Descriptor* now = value != nullptr ? value : rest != unit.rest.end() ? rest->second : device.off();
      driver_.cuMemcpyHtoDAsync_v2(symbol->second, now, sizeof *now, launch.stream);
    };
    if (!launch.unit->relocatable) return write(*launch.unit);
    for (Unit* unit = Registered<Unit>::first(); unit != nullptr; unit = unit->next) {
      if (unit->relocatable) write(*unit);
    }
  }

  // Two launches at once would share one descriptor: the later one is left out, and counted. So it is where a thread is
  // between `begin` and `end`, since what is put into the stream meanwhile would come before its kernel.
  bool is_beside(const Launch& launch, const Device& device) {
    if (device.launching) return ++left_out_.beside, true;
    const StreamOf stream(launch.stream);
    for (const Pending& pending : queue_) {
      if (pending.device == &device && pending.slot != nullptr && !(pending.stream == stream) &&
          driver_.cuEventQuery(pending.done) == kNotReady) {
        return ++left_out_.overlapped, true;
      }
    }
    return false;
  }

  Decision timed(const Launch& launch, const Kernel& kernel, Group& group, Device& device) {
    Decision decision;
    Pending& pending = decision.pending;
    if (spare_.empty()) {
      Handle events[2] = {nullptr, nullptr};
      for (Handle& event : events) {
        if (driver_.cuEventCreate(&event, 0) != kSuccess) return unrecorded(launch, kernel);
      }
      spare_.push_back({events[0], events[1]});
    }
    pending.start = spare_.back().first;
    pending.stop = pending.done = spare_.back().second;
    spare_.pop_back();
    pending.device = &device, pending.group = &group, pending.stream = StreamOf(launch.stream), pending.clean = true;
    ++group.timed_clean;
    device.launching = true;
    decision.function = other_build(launch, kernel, false);
    if (options_.cold_l2) device.flush_l2(launch.stream);
    driver_.cuEventRecord(pending.start, launch.stream);
    return decision;
  }

  Decision recorded(std::unique_lock<std::mutex>& lock, const Launch& launch, const Kernel& kernel, Group& group,
                    Device& device) {
    Slot* slot = device.free_slot();
    if (slot == nullptr) {
      room_.wait_for(lock, kLongestWait, [&] { return (slot = device.free_slot()) != nullptr || stopped_; });
      if (slot != nullptr && is_beside(launch, device)) return unrecorded(launch, kernel);  // others came meanwhile
    }
    if (slot == nullptr || stopped_) {
      ++left_out_.crowded;
      return unrecorded(launch, kernel);
    }
    slot->busy = device.launching = true;
    Decision decision;
    Pending& pending = decision.pending;
    pending.device = &device, pending.group = &group, pending.slot = slot, pending.stream = StreamOf(launch.stream);
    pending.done = slot->done;
    if (!options_.replay && group.timed_traced < options_.rounds) {
      ++group.timed_traced;
      pending.start = slot->start, pending.stop = slot->stop;
    }
    decision.function = other_build(launch, kernel, true);
    write_descriptors(launch, device, slot->descriptor);
    if (options_.replay && !group.replayed) decision.replay = group.replayed = true;
    if (options_.cold_l2) device.flush_l2(launch.stream);
    if (pending.start != nullptr) driver_.cuEventRecord(pending.start, launch.stream);
    return decision;
  }

  void release(Pending& pending) {
    if (pending.slot != nullptr) {
      pending.slot->busy = false;
    } else {
      spare_.push_back({pending.start, pending.stop});
    }
    room_.notify_all();
  }

  void drain_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait_for(lock, std::chrono::milliseconds(100), [this] { return stopped_ || !queue_.empty(); });
      if (stopped_) return;
      watch_switch();
      if (queue_.empty()) {
        draining_ = true;
        graphs_.drain(lock, nullptr);
        unfinished_.obey(halt_, graphs_, lock);
        draining_ = false;
        continue;
      }
      Pending pending = queue_.front();
      draining_ = true;
      lock.unlock();
      driver_.cuCtxSetCurrent(pending.device->context);
      int status = kNotReady;
      // Asked and not waited for: an event to wait on would take the lock of a context whose kernel hangs.
      for (unsigned us = 20; (status = driver_.cuEventQuery(pending.done)) == kNotReady && !stopped_;
           us = us < 1000 ? us * 2 : us) {
        obey(&pending);
        std::this_thread::sleep_for(std::chrono::microseconds(us));
      }
      if (status == kSuccess) take(pending);
      lock.lock();
      queue_.pop_front();
      draining_ = false;
      if (status != kSuccess && status != kNotReady) {
        writer_.complain("the GPU stopped: error " + std::to_string(status));
        ended_ = true;
      }
      release(pending);
    }
  }

  // Saves `pending`, the launch that the GPU works at, where that is asked. In the draining thread, without the lock.
  void obey(const Pending* pending) {
    unfinished_.obey(halt_, pending);
    if (!late_) return;
    unfinished_.save(pending,
                     "the program had ended, and it had not " + std::to_string(kLongestEnd.count()) + " s later");
    const std::lock_guard<std::mutex> lock(mutex_);
    late_ = false;
    room_.notify_all();
  }

  // Times of a launch that has ended and, where it was recorded, its chunks. Without the lock, which launches wait for.
  void take(Pending& pending) {
    const Relaxed relaxed(driver_);
    float ms = 0;
    const bool has_time = pending.timed && driver_.cuEventElapsedTime(&ms, pending.start, pending.stop) == kSuccess;
    if (pending.slot == nullptr) {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& into = pending.group->kernel->clean != nullptr ? pending.group->clean_ns : pending.group->off_ns;
      if (has_time) into.push_back(double{ms} * 1e6);
      pending.group->idle += !has_time;
      return;
    }
    if (pending.device->calibrated) {
      writer_.calibration("before", *pending.device, pending.device->calibration());
      pending.device->calibrated = false;
    }
    Contents contents;
    const std::uint64_t number = writer_.launches();
    const bool well = pending.device->drain(
        *pending.slot, contents,
        [&](std::uint64_t chunks) { return chunks == 0 || writer_.begin_records(*pending.device, chunks); },
        [&](const void* data, std::size_t size) { return writer_.add_records(data, size); });
    std::lock_guard<std::mutex> lock(mutex_);
    Group& group = *pending.group;
    if (well && contents.chunks == 0 && contents.lost_chunks == 0) {
      if (options_.blocks.empty()) kernels_.silence(group);
      --kept_;
      return;
    }
    const std::string policy = policy_of(contents.sites_hash, group.unit->policy);
    if (well && !options_.is_policy(policy)) {
      ++left_out_.other_policy[policy];
      --kept_;
      writer_.drop_records();
      return;
    }
    if (!well || contents.grids.size() > 1) {
      if (well) ++left_out_.mixed;  // another launch wrote beside it: whose is whose is not known
      writer_.drop_records();
      return;
    }
    if (has_time) group.traced_ns.push_back(double{ms} * 1e6);
    if (contents.sites_hash != 0) group.sites_hash = contents.sites_hash;
    kernels_.count_recorded(group);
    writer_.add_launch(number, *pending.device, group, contents, pending.stream.handle, options_, false, 0);
  }

  void finish_device(Device& device) {
    if (!device.error.empty() || driver_.cuCtxSetCurrent(device.context) != kSuccess) return;
    if (graphs_.has_open(device)) {
      driver_.cuCtxSynchronize();
      std::unique_lock<std::mutex> lock(mutex_);
      graphs_.drain(lock, &device);
    }
    if (device.calibrators.first == nullptr || writer_.launches() == 0) return;
    if (device.calibrate(device.calibrators.first, device.stream)) {
      writer_.calibration("after", device, device.calibration());
      writer_.set_step(device.step_ns(device.calibrators.second));
    }
  }

  Summary summary() const {
    Summary out;
    out.groups = kernels_.groups();
    out.ran = kernels_.ran();
    out.left_out = left_out_.texts();
    if (driver_.missing != nullptr) out.left_out.push_back(driver_.missing);
    return out;
  }

  const Driver& driver_;
  const Options& options_;
  std::mutex mutex_;
  std::condition_variable wake_, room_;  // something to drain; a slot is free
  Thread drainer_;
  std::atomic<bool> stopped_{false}, late_{false};
  bool on_, switched_on_ = false, ended_ = false, draining_ = false;
  std::uint64_t matched_ = 0, kept_ = 0;
  LeftOut left_out_;
  int (*ask_range_)() = nullptr;
  std::chrono::steady_clock::time_point looked_{};
  Kernels kernels_;
  std::map<Handle, std::unique_ptr<Device>> devices_;
  std::deque<Pending> queue_;
  std::vector<std::pair<Handle, Handle>> spare_;
  Writer writer_;
  Graphs graphs_;
  Halt halt_;
  Unfinished unfinished_;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_SESSION_HPP
