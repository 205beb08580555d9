// What a recorded process writes: members of its file as launches end, the manifest, and a note of what ran.
// In: entries and chunks. Out: PID.wlens.part, then PID.wlens, and PID.json in the folder of the run. A place that
// cannot be written ends the writing, never the program; the first reason is told on stderr, in one line.
#ifndef WARPLENS_DETAIL_HOST_WRITER_HPP
#define WARPLENS_DETAIL_HOST_WRITER_HPP

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "host_file.hpp"
#include "host_launch.hpp"
#include "host_nvml.hpp"

namespace warplens {
namespace detail {
namespace host {

constexpr std::size_t kSourcesBytes = 1u << 20;

// What a process says of itself at its end, as JSON.
struct Summary {
  std::vector<std::string> groups, ran, left_out;
};

inline std::string joined(const std::vector<std::string>& values) {
  std::string out = "[";
  for (const std::string& value : values) out += (out.size() > 1 ? "," : "") + value;
  return out + "]";
}

class Writer {
 public:
  explicit Writer(const Options& options) : options_(options) {
    if (!file_.create(options.folder, std::to_string(getpid()))) complain(file_.error());
  }
  bool failed() const { return !file_.error().empty(); }
  std::uint64_t launches() const { return launches_; }

  const std::string& base() const { return file_.base(); }

  bool begin_records(const Device& device, std::uint64_t chunks) {
    begin_file(device);
    const bool well = file_.begin(member(launches_), chunks * layout::kChunkBytes);
    begun_ = well;
    if (!well) complain(file_.error());
    return well;
  }
  bool add_records(const void* data, std::size_t size) {
    const bool well = file_.add(data, size);
    if (!well) complain(file_.error());
    return well;
  }
  void drop_records() { begun_ = false; }  // the next member is written over it

  // A launch that has not ended, with what it wrote so far, until the next member takes its place. `write` writes its
  // records, by `begin_records` and `add_records`, and returns its entry, or nothing; `stopped`: why, as JSON.
  template <class Write>
  bool add_stopped(const Device& device, const Group& group, const std::string& stopped, Write write) {
    begin_file(device);
    const std::size_t place = file_.place();
    const std::string entry = write();
    const bool whole = !entry.empty() && (!begun_ || file_.end());
    begun_ = false;
    if (whole) {
      stopped_ = stopped;
      policy_ = group.unit->policy;
      add("manifest.json", manifest({}, false));
      add(launch_member(launches_), "{\"launch\":" + entry + ",\"kernel\":" + group_entry(group) + "}");
      stopped_ = "null";
    }
    tail_ = whole && !failed();
    file_.back_to(place);
    return tail_;
  }
  // Whether the file ends with a launch that has not ended.
  bool has_stopped() const { return tail_; }

  void add_launch(std::uint64_t number, const Device& device, const Group& group, const Contents& contents,
                  Handle stream, const Options& options, bool replayed, std::uint64_t replay) {
    if (begun_ && !file_.end()) return complain(file_.error());
    const std::string entry = launch_entry(number, device, group, contents, stream, options, replayed, replay);
    begun_ = tail_ = false;
    entries_.push_back(entry);
    policy_ = group.unit->policy;
    add(launch_member(number), "{\"launch\":" + entry + ",\"kernel\":" + group_entry(group) + "}");
    ++launches_;
  }

  std::string launch_entry(std::uint64_t number, const Device& device, const Group& group, const Contents& contents,
                           Handle stream, const Options& options, bool replayed, std::uint64_t replay) const {
    const Shape& shape = group.shape;
    const std::string blocks = options.blocks.empty() ? "null" : listed(options.blocks);
    const std::string grid = replayed || contents.grids.empty() ? "null" : std::to_string(*contents.grids.begin());
    return "{\"kernel\":" + std::to_string(group.index) + ",\"grid\":" + listed(shape.grid) +
           ",\"block\":" + listed(shape.block) + ",\"cluster\":" + listed(shape.cluster) +
           ",\"shared_bytes\":" + std::to_string(shape.shared_bytes) +
           ",\"stream\":" + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) +
           ",\"device\":" + std::to_string(device.number) + ",\"rank\":" + rank() +
           ",\"replay\":" + std::to_string(replay) + ",\"grid_id\":" + grid +
           ",\"records\":" + (begun_ ? json_text(member(number)) : "null") +
           ",\"lost_events\":" + std::to_string(contents.lost_events) +
           ",\"lost_chunks\":" + std::to_string(contents.lost_chunks) +
           ",\"every\":" + std::to_string(options.every_block) + ",\"warp_mask\":" + std::to_string(options.warp_mask) +
           ",\"blocks\":" + blocks + ",\"cold_l2\":" + (options.cold_l2 && !replayed ? "true" : "false") +
           (contents.full ? ",\"full\":true}" : "}");
  }

  void calibration(const char* when, const Device& device, const std::vector<Pair>& pairs) {
    std::string columns[3];
    for (const Pair& pair : pairs) {
      const std::string comma = columns[0].empty() ? "" : ",";
      columns[0] += comma + std::to_string(pair.sm);
      columns[1] += comma + std::to_string(pair.globaltimer_ns);
      columns[2] += comma + std::to_string(pair.clock_cycles);
    }
    calibrations_.push_back("{\"when\":" + json_text(when) + ",\"device\":" + std::to_string(device.number) +
                            ",\"sm\":[" + columns[0] + "],\"globaltimer_ns\":[" + columns[1] + "],\"clock_cycles\":[" +
                            columns[2] + "]}");
  }
  void set_step(std::uint64_t ns) { step_ns_ = ns; }

  void finish(const Driver&, const Summary& summary) {
    if (file_.is_empty()) {
      file_.remove();
    } else {
      state_after_ = Nvml(address_).state();
      if (!(file_.add_member("manifest.json", manifest(summary.groups, true)) && file_.finish("launches/"))) {
        complain(file_.error());
      }
    }
    note(summary);
  }

  void tell_wait(int seconds) const {
    const std::string who = "this process (" + std::to_string(getpid()) + ") has ended, and waits for its last launch";
    const std::string how = " for " + std::to_string(seconds) + " s at most: Ctrl-C goes on without";
    std::fprintf(stderr, "warplens: %s%s\n", who.c_str(), how.c_str());
  }
  // Once a process: it is the program's own stderr.
  void complain(const std::string& why) {
    if (complained_.exchange(true)) return;
    std::fprintf(stderr, "warplens: this process (%d) is not recorded further: %s\n", getpid(), why.c_str());
    why_ = why;
  }

 private:
  void begin_file(const Device& device) {
    if (!file_.is_empty()) return;
    const Nvml nvml(address_ = device.pci_address());
    facts_ = device.facts(nvml.driver(), nvml.mig());
    state_before_ = nvml.state();
    if (options_.with_source) add_sources();
    add("manifest.json", manifest({}, false));
  }
  static std::string launch_member(std::uint64_t number) {
    char name[32];
    std::snprintf(name, sizeof name, "launches/%06llu.json", static_cast<unsigned long long>(number));
    return name;
  }
  static std::string member(std::uint64_t number) {
    char name[32];
    std::snprintf(name, sizeof name, "records/%06llu.u32", static_cast<unsigned long long>(number));
    return name;
  }
  void add(const std::string& name, const std::string& content) {
    if (!file_.add_member(name, content)) complain(file_.error());
  }
  // The texts that sites stand in, where they are to be found; 1 MiB in all, as trace/file.py takes it.
  void add_sources() {
    std::set<std::string> seen;
    std::size_t room = kSourcesBytes;
    for (const SiteSet* set : site_sets()) {
      const auto parts = split(set->text, '\x1d');
      if (parts.size() < 2 || parts[1].empty() || !seen.insert(parts[1]).second) continue;
      std::string text(room + 1, '\0');
      std::FILE* file = std::fopen(parts[1].c_str(), "re");
      if (file == nullptr) continue;
      text.resize(std::fread(&text[0], 1, text.size(), file));
      std::fclose(file);
      const std::string path = json_text(parts[1]);
      if (text.size() > room) {
        left_out_ += (left_out_.empty() ? "" : ",") + path;
        continue;
      }
      room -= text.size();
      const std::string member = "source/" + std::to_string(sources_.size()) + ".txt";
      add(member, text);
      sources_.push_back("{\"path\":" + path + ",\"member\":" + json_text(member) + "}");
    }
  }
  static std::string rank() {
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
      const char* text = std::getenv(name);
      if (text != nullptr && *text >= '0' && *text <= '9')
        return std::to_string(std::strtoul(text, nullptr, 10) & 0xffffffffu);
    }
    return "0";
  }
  static std::string program() {
    char path[4096];
    const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
    const std::string text(path, size > 0 ? static_cast<std::size_t>(size) : 0);
    return text.substr(text.rfind('/') + 1);
  }
  std::string process() const {
    return "{\"pid\":" + std::to_string(getpid()) + ",\"rank\":" + rank() + ",\"program\":" + json_text(program()) +
           "}";
  }
  std::string manifest(const std::vector<std::string>& groups, bool complete) const {
    char created[32];
    const std::time_t now = std::time(nullptr);
    std::tm parts;
    std::strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    std::vector<std::string> sets;
    for (const SiteSet* set : site_sets()) sets.push_back(site_set_entry(*set));
    return "{\"format\":\"wlens\",\"version\":[1,1],\"warplens\":null,\"created\":" + json_text(created) +
           ",\"complete\":" + (complete ? "true" : "false") + ",\"stopped\":" + stopped_ +
           ",\"note\":" + options_.note + ",\"host\":" + options_.host + ",\"command\":" + options_.command +
           ",\"policy\":" + json_text(policy_) +
           ",\"keep\":\"oldest\",\"capacity_bytes\":" + std::to_string(options_.capacity_bytes / kSlots) +
           ",\"device\":" + facts_ + ",\"clock_state\":{\"before\":" + state_before_ + ",\"after\":" + state_after_ +
           "},\"sources\":" + joined(sources_) +
           (left_out_.empty() ? "" : ",\"sources_left_out\":[" + left_out_ + "]") +
           ",\"globaltimer_step_ns\":" + (step_ns_ > 0 ? std::to_string(step_ns_) : "null") +
           ",\"site_sets\":" + joined(sets) + ",\"kernels\":" + joined(groups) +
           ",\"launches\":" + joined(complete ? entries_ : std::vector<std::string>{}) +
           ",\"calibration\":" + joined(calibrations_) + ",\"process\":" + process() + "}";
  }
  // What ran, for the list that is shown where nothing was recorded.
  void note(const Summary& summary) {
    std::vector<std::string> left_out;
    for (const std::string& text : summary.left_out) left_out.push_back(json_text(text));
    const std::string text = "{\"process\":" + process() + ",\"kernels\":" + joined(summary.ran) +
                             ",\"left_out\":" + joined(left_out) +
                             ",\"failed\":" + (why_.empty() ? "null" : json_text(why_)) + "}\n";
    const int file = open_apart((file_.base() + ".json").c_str(), O_WRONLY | O_CREAT | O_TRUNC);
    if (file < 0) return;
    const NoSizeSignal none;
    if (write(file, text.data(), text.size()) < 0) complain(std::strerror(errno));
    close(file);
  }

  const Options& options_;
  File file_;
  bool begun_ = false, tail_ = false;
  std::string stopped_ = "null";
  std::uint64_t launches_ = 0, step_ns_ = 0;
  std::string address_, facts_, policy_ = "packed", why_, left_out_;
  std::string state_before_ = "null", state_after_ = "null";  // of clocks and power
  std::vector<std::string> entries_, calibrations_, sources_;
  std::atomic<bool> complained_{false};
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_WRITER_HPP
