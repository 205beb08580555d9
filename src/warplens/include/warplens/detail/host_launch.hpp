// What `warplens record` knows of a program's translation units, sites, kernels and launches, and its words in JSON.
// In: registrations of static objects. Out: entries of the manifest. No call of the driver but for resources.
#ifndef WARPLENS_DETAIL_HOST_LAUNCH_HPP
#define WARPLENS_DETAIL_HOST_LAUNCH_HPP

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "host_device.hpp"
#include "registry.h"

namespace warplens {
namespace detail {
namespace host {

constexpr std::uintptr_t kStreamPerThreadHandle = 2;  // CU_STREAM_PER_THREAD

// A translation unit that includes host.hpp.
struct Unit {
  const char* policy;
  bool relocatable;                                  // -rdc: its kernels may call functions with marks of other units
  int (*symbol)(void** address);                     // of the descriptor, on the current device
  Handle (*kernel_of)(const void* function);         // the driver's handle; nullptr where there is none
  Handle (*calibrator)(bool of_step);                // functions of the driver
  std::map<Handle, Address> symbols;                 // by context
  std::map<Handle, const layout::Descriptor*> rest;  // by context: what stands in the symbol between launches
  Unit* next;
};

// Two builds of one kernel, from WARPLENS_PAIR.
struct Twins {
  const void *traced, *clean;
  Twins* next;
  Twins(const void* traced_, const void* clean_);
};

template <class T>
struct Registered {
  static T*& first() {
    static T* head = nullptr;
    return head;
  }
};

inline Twins::Twins(const void* traced_, const void* clean_)
    : traced(traced_), clean(clean_), next(Registered<Twins>::first()) {
  Registered<Twins>::first() = this;
}

struct Shape {
  unsigned grid[3], block[3], cluster[3];
  std::size_t shared_bytes;
  bool operator==(const Shape& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
  std::uint64_t blocks() const { return std::uint64_t{grid[0]} * grid[1] * grid[2]; }
};

// A kernel that the program launched.
struct Kernel {
  std::string name, symbol;  // as users know it, and as its machine code names the build with marks
  bool matches = false;
  bool other_grid = false, other_range = false;  // launched with grids, or in NVTX ranges, that are not asked for
  bool silent = false;                           // it was recorded once and wrote nothing
  std::uint64_t launches = 0, recorded = 0;
  Handle traced = nullptr, clean = nullptr;  // clean: nullptr where none is known
  const void *traced_function = nullptr, *clean_function = nullptr;
};

// Launches of one kernel and shape: an entry of the manifest's kernels.
struct Group {
  std::size_t index;
  const Kernel* kernel;
  const Unit* unit;
  Shape shape;
  std::uint32_t sites_hash = 0;
  bool replayed = false;  // --replay has timed it
  std::uint64_t turn = 0, timed_clean = 0, timed_traced = 0,
                idle = 0;  // idle: the GPU had nothing to do when it was launched
  std::vector<double> traced_ns, clean_ns, off_ns;
  std::string traced_resources = "null", clean_resources = "null";
};

// One launch as it comes in, and what is to be done with it.
struct Launch {
  Unit* unit;
  Handle kernel;
  const void* function;  // nullptr where the launch names the kernel by its handle
  Shape shape;
  Handle stream;
  void** arguments;
};

// Which stream a thread means: each has its own by the name of the default stream of threads.
struct StreamOf {
  Handle handle = nullptr;
  std::uint64_t thread = 0;
  StreamOf() = default;
  explicit StreamOf(Handle stream) : handle(stream) {
    static std::atomic<std::uint64_t> threads{0};
    thread_local const std::uint64_t own = ++threads;
    if (stream == reinterpret_cast<Handle>(kStreamPerThreadHandle)) thread = own;
  }
  bool operator==(const StreamOf& other) const { return handle == other.handle && thread == other.thread; }
};

struct Pending {
  Device* device = nullptr;
  Group* group = nullptr;
  Slot* slot = nullptr;  // nullptr: it is timed alone
  Handle start = nullptr, stop = nullptr, done = nullptr;
  StreamOf stream;
  bool clean = false, timed = false;
  std::chrono::steady_clock::time_point made{};
};

struct Decision {
  const void* function = nullptr;  // launch this one instead; nullptr: as it came
  bool replay = false;             // and before, again and again, to take times
  Pending pending;
};

// Launches that were not recorded though they were asked for, by reason.
struct LeftOut {
  std::uint64_t overlapped = 0, beside = 0, mixed = 0, crowded = 0, newest = 0, partial = 0, other_captured = 0,
                without_slot = 0;
  std::map<std::string, std::uint64_t> other_policy;  // by the policy that their code was compiled for
  std::string asked_policy;
  bool mixed_graphs = false;
  std::vector<std::string> not_replayed, not_counted;  // of --replay; of graphs

  std::vector<std::string> texts() const {
    std::vector<std::string> out;
    const auto say = [&out](std::uint64_t count, const char* why) {
      if (count > 0) out.push_back(std::to_string(count) + " " + why);
    };
    say(overlapped, "launches beside a recorded one on another stream");
    say(beside, "launches while another thread made one that is recorded");
    say(mixed, "launches that another one wrote beside");
    say(crowded, "launches that found no memory free within 2 s");
    for (const auto& own : other_policy) {
      say(own.second,
          ("launches of code that was compiled for policy " + own.first + ", and --policy asks for " + asked_policy +
           ": compile it with -DWARPLENS_POLICY=" + asked_policy +
           (own.first == "stream" ? ", unless `warplens nvcc` put its marks in," : ",") + " or leave --policy out")
              .c_str());
    }
    say(newest,
        "launches of code that nvcc built, which keeps the oldest records: --keep newest is for warplens.Kernel alone");
    say(partial, "replays that were under way when recording was switched on or off");
    say(other_captured,
        "captured launches of another kernel or shape than the first of their file: one is recorded; -k and --grids "
        "choose it");
    say(without_slot, "captured launches of more files than three on a GPU, or while no memory was free");
    for (const std::string& why : not_replayed) out.push_back("replays of " + why);
    for (const std::string& name : not_counted) {
      out.push_back("captured launches of " + name +
                    ": none was seen to run; the graph was not replayed, or `warplens nvcc` put the marks in, which "
                    "count no replays");
    }
    if (mixed_graphs)
      out.push_back(
          "replays of graphs: kernels or shapes differ, and without WARPLENS_PAIR their marks cannot be told apart");
    return out;
  }
};

// The build that the program did not name; nullptr where it named the wanted one, or there is none.
inline const void* other_build(const Launch& launch, const Kernel& kernel, bool traced) {
  const Handle wanted = traced ? kernel.traced : kernel.clean;
  if (wanted == nullptr || wanted == launch.kernel) return nullptr;
  return traced ? kernel.traced_function : kernel.clean_function;
}

// A launch of a kernel with marks that is none of those to be recorded: the build without, where there is one.
inline Decision unrecorded(const Launch& launch, const Kernel& kernel) {
  Decision decision;
  decision.function = other_build(launch, kernel, false);
  return decision;
}

inline std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 && text != nullptr ? text : name;
  std::free(text);
  // "void rmsnorm<true>(float*)": the name alone. A parenthesis inside of <> is none of the parameters.
  int depth = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] == '<') ++depth;
    if (out[i] == '>') --depth;
    if (out[i] == '(' && depth == 0 && out.compare(i, 11, "(anonymous ") != 0) {
      out.resize(i);
      break;
    }
  }
  const std::string nothing = "void ";
  return out.compare(0, nothing.size(), nothing) == 0 ? out.substr(nothing.size()) : out;
}

inline std::uint32_t hash_of(const char* name) {
  std::uint32_t value = 0x811c9dc5u;
  for (; *name != '\0'; ++name) value = (value ^ static_cast<unsigned char>(*name)) * 0x01000193u;
  return value;
}

// The registered sets, each name once. Two different sets of one name: the first.
inline std::vector<const SiteSet*> site_sets() {
  std::vector<const SiteSet*> out;
  for (const SiteSet* set = first_site_set(); set != nullptr; set = set->next) {
    bool known = false;
    for (const SiteSet* other : out) known |= std::strcmp(other->name, set->name) == 0;
    if (!known) out.push_back(set);
  }
  return out;
}

inline const char* site_set_name(std::uint32_t hash) {
  const auto sets = site_sets();
  for (const SiteSet* set : sets) {
    if (hash_of(set->name) == hash) return set->name;
  }
  return sets.empty() ? "" : sets.back()->name;
}

inline std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

inline std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

// Whether a set is of marks that `warplens nvcc` put in: its sites have a file and a line each.
inline bool is_automatic(const char* text) {
  unsigned fields = 1;
  for (const char* at = text; *at != '\0' && *at != '\x1d' && (at == text || *at != '\x1e'); ++at)
    fields += *at == '\x1f';
  return *text == '\x1e' && fields >= 5;
}

// Whether there are marks of `warplens nvcc` in this process.
inline bool has_automatic_marks() {
  for (const SiteSet* set : site_sets()) {
    if (is_automatic(set->text)) return true;
  }
  return false;
}

// What wrote the records of a set's kernels: automatic marks always do as the policy `stream`.
inline const char* policy_of(std::uint32_t hash, const char* otherwise) {
  for (const SiteSet* set : site_sets()) {
    if (hash_of(set->name) == hash && is_automatic(set->text)) return "stream";
  }
  return otherwise;
}

// The manifest's entry of a set, from the text that WARPLENS_SITES made: as capture/modules.py reads it.
inline std::string site_set_entry(const SiteSet& set) {
  const auto parts = split(set.text, '\x1d');
  const bool is_long = !parts[0].empty() && parts[0][0] == '\x1e';
  std::string sites;
  unsigned id = 0;
  for (const std::string& row : split(is_long ? parts[0].substr(1) : parts[0], is_long ? '\x1e' : ',')) {
    const auto fields = is_long ? split(row, '\x1f') : std::vector<std::string>{trimmed(row), "phase", ""};
    if ((fields.size() != 3 && fields.size() != 5 && fields.size() != 6) || fields[0].empty()) continue;
    const bool placed = fields.size() > 3;
    const std::string file = placed ? fields[3] : parts.size() > 1 ? parts[1] : "";
    const std::string line = placed ? fields[4] : parts.size() > 2 ? parts[2] : "0";
    sites += std::string(sites.empty() ? "" : ",") + "{\"id\":" + std::to_string(++id) +
             ",\"name\":" + json_text(fields[0]) + ",\"kind\":" + json_text(fields[1]) +
             ",\"resource\":" + json_text(fields[2]) + ",\"file\":" + json_text(file) + ",\"line\":" + line;
    if (fields.size() == 6) sites += ",\"arrivals\":" + (fields[5].empty() ? "null" : fields[5]);
    sites += "}";
  }
  std::string left_out;  // what `warplens nvcc` did not mark
  for (std::size_t n = 3; n < parts.size(); ++n) left_out += (n > 3 ? "," : "") + json_text(parts[n]);
  return "{\"name\":" + json_text(set.name) + ",\"hash\":" + std::to_string(hash_of(set.name)) + ",\"sites\":[" +
         sites + "]" + (is_automatic(set.text) ? ",\"left_out\":[" + left_out + "]" : "") + "}";
}

// What the program asked for one build holds for the other.
inline void match_limits(const Driver& driver, Handle from, Handle to) {
  Handle source = nullptr, target = nullptr;
  if (driver.cuKernelGetFunction(&source, from) != kSuccess) return;
  if (driver.cuKernelGetFunction(&target, to) != kSuccess) return;
  for (const int attribute : {kFunctionMaxDynamicShared, kFunctionMaxDynamicShared + 1}) {  // and the carveout
    int value = 0;
    if (driver.cuFuncGetAttribute(&value, attribute, source) == kSuccess) {
      driver.cuFuncSetAttribute(target, attribute, value);
    }
  }
}

inline std::string resources_of(const Driver& driver, Handle kernel, const Shape& shape) {
  Handle function = nullptr;
  int registers = 0, shared = 0, local = 0, blocks = 0;
  const auto threads = static_cast<int>(shape.block[0] * shape.block[1] * shape.block[2]);
  if (kernel == nullptr || driver.cuKernelGetFunction(&function, kernel) != kSuccess ||
      driver.cuFuncGetAttribute(&registers, kFunctionRegisters, function) != kSuccess ||
      driver.cuFuncGetAttribute(&shared, kFunctionSharedBytes, function) != kSuccess ||
      driver.cuFuncGetAttribute(&local, kFunctionLocalBytes, function) != kSuccess ||
      driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, shape.shared_bytes) != kSuccess) {
    return "null";
  }
  return "{\"registers\":" + std::to_string(registers) +
         ",\"shared_bytes\":" + std::to_string(static_cast<std::size_t>(shared) + shape.shared_bytes) +
         ",\"local_bytes\":" + std::to_string(local) + ",\"resident_blocks\":" + std::to_string(blocks) + "}";
}

inline std::string times(const std::vector<double>& values) { return values.empty() ? "null" : listed(values); }

inline std::string group_entry(const Group& group) {
  std::string why = "null";
  if (group.clean_ns.empty() || group.traced_ns.empty()) {
    why = group.kernel->clean == nullptr ? json_text("no clean kernel is known: WARPLENS_PAIR(traced, clean) names one")
          : group.idle > 0 ? json_text("the GPU was idle at these launches, and what was timed would be the host")
                           : json_text("the program did not launch it often enough");
  }
  return "{\"name\":" + json_text(group.kernel->name) + ",\"site_set\":" + json_text(site_set_name(group.sites_hash)) +
         ",\"policy\":" + json_text(policy_of(group.sites_hash, group.unit->policy)) +
         ",\"clean\":" + group.clean_resources + ",\"traced\":" + group.traced_resources +
         ",\"clean_ns\":" + times(group.clean_ns) + ",\"traced_ns\":" + times(group.traced_ns) +
         ",\"switched_off_ns\":" + times(group.off_ns) + ",\"not_measured\":" + why + ",\"mark_cost_cycles\":null}";
}

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_LAUNCH_HPP
