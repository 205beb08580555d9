// Which NVTX ranges are open: a library that NVTX itself loads into each process below `warplens record
// --nvtx-include`, which compiles it for that run (capture/nvtx.py) and names it in NVTX_INJECTION64_PATH. In: the
// process's NVTX calls, whichever library makes them. Out: `warplens_in_range`. The few numbers of NVTX's interface
// (nvtxTypes.h, version 3) are written out, so that no header of NVTX is needed.
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "host_options.hpp"

namespace {

using Domain = void*;
using warplens::detail::host::Options;
using warplens::detail::host::Pattern;

constexpr unsigned kCallbacks = 1;      // table of NVTX that leads to its functions
constexpr int kCore = 1, kDomains = 5;  // modules of functions, and their numbers in them
constexpr unsigned kStartEx = 4, kStartA = 5, kStartW = 6, kEnd = 7, kPushEx = 8, kPushA = 9, kPushW = 10, kPop = 11;
constexpr unsigned kDomainStartEx = 2, kDomainEnd = 3, kDomainPushEx = 4, kDomainPop = 5, kRegisterA = 10,
                   kRegisterW = 11;
enum MessageType { kAscii = 1, kUnicode = 2, kRegistered = 3 };

struct Attributes {
  std::uint16_t version, size;
  std::uint32_t category;
  std::int32_t color_type;
  std::uint32_t color;
  std::int32_t payload_type, reserved;
  std::uint64_t payload;
  std::int32_t message_type;
  const void* message;
};
struct Table {
  std::size_t size;
  int (*functions_of)(int module, void (****table)(), unsigned* size);
};

const Pattern& pattern() {
  static const Options& options = *new Options;
  static const Pattern& compiled = *new Pattern(options.nvtx_include);
  return compiled;
}

std::string narrow(const wchar_t* text) {
  std::string out;
  for (; text != nullptr && *text != 0; ++text) out += *text < 128 ? static_cast<char>(*text) : '?';
  return out;
}
std::string text_of(const Attributes* attributes) {
  if (attributes == nullptr || attributes->message == nullptr) return "";
  if (attributes->message_type == kUnicode) return narrow(static_cast<const wchar_t*>(attributes->message));
  if (attributes->message_type == kRegistered) return *static_cast<const std::string*>(attributes->message);
  return attributes->message_type == kAscii ? static_cast<const char*>(attributes->message) : "";
}

// Ranges that a thread pushed and has not popped, each with whether its name fits; and how many of them do.
thread_local std::map<Domain, std::vector<bool>> pushed;
thread_local unsigned fitting = 0;
// Ranges that were started and not ended, by any thread, and whose name fits.
std::atomic<unsigned> started{0};
std::mutex mutex;
std::map<std::uint64_t, bool>& ranges() {
  static auto& all = *new std::map<std::uint64_t, bool>;  // used until the process's very end
  return all;
}

int push(Domain domain, const std::string& name) {
  auto& stack = pushed[domain];
  stack.push_back(pattern().found_in(name));
  fitting += stack.back();
  return static_cast<int>(stack.size()) - 1;
}
int pop(Domain domain) {
  auto& stack = pushed[domain];
  if (stack.empty()) return -1;
  fitting -= stack.back();
  stack.pop_back();
  return static_cast<int>(stack.size());
}
std::uint64_t start(const std::string& name) {
  static std::uint64_t last = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  started += ranges()[++last] = pattern().found_in(name);
  return last;
}
void end(std::uint64_t range) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = ranges().find(range);
  if (found == ranges().end()) return;
  started -= found->second;
  ranges().erase(found);
}

int push_ex(const Attributes* attributes) { return push(nullptr, text_of(attributes)); }
int push_a(const char* name) { return push(nullptr, name != nullptr ? name : ""); }
int push_w(const wchar_t* name) { return push(nullptr, narrow(name)); }
int pop_any() { return pop(nullptr); }
std::uint64_t start_ex(const Attributes* attributes) { return start(text_of(attributes)); }
std::uint64_t start_a(const char* name) { return start(name != nullptr ? name : ""); }
std::uint64_t start_w(const wchar_t* name) { return start(narrow(name)); }
int domain_push(Domain domain, const Attributes* attributes) { return push(domain, text_of(attributes)); }
std::uint64_t domain_start(Domain, const Attributes* attributes) { return start(text_of(attributes)); }
void domain_end(Domain, std::uint64_t range) { end(range); }
void* register_a(Domain, const char* text) { return new std::string(text != nullptr ? text : ""); }
void* register_w(Domain, const wchar_t* text) { return new std::string(narrow(text)); }

struct Functions {
  void (***table)() = nullptr;
  unsigned size = 0;
  template <class Function>
  void set(unsigned number, Function function) const {
    if (number < size) *table[number] = reinterpret_cast<void (*)()>(function);
  }
};

}  // namespace

// Whether this thread launches within a range that fits.
extern "C" int warplens_in_range() { return fitting > 0 || started > 0; }

// NVTX calls it, once for each library that uses NVTX.
extern "C" int InitializeInjectionNvtx2(const void* (*tables)(std::uint32_t)) {
  const auto* callbacks = static_cast<const Table*>(tables(kCallbacks));
  Functions core, domains;
  if (callbacks == nullptr || callbacks->functions_of(kCore, &core.table, &core.size) == 0) return 0;
  core.set(kPushEx, push_ex), core.set(kPushA, push_a), core.set(kPushW, push_w), core.set(kPop, pop_any);
  core.set(kStartEx, start_ex), core.set(kStartA, start_a), core.set(kStartW, start_w), core.set(kEnd, end);
  if (callbacks->functions_of(kDomains, &domains.table, &domains.size) == 0) return 1;
  domains.set(kDomainPushEx, domain_push), domains.set(kDomainPop, pop);
  domains.set(kDomainStartEx, domain_start), domains.set(kDomainEnd, domain_end);
  domains.set(kRegisterA, register_a), domains.set(kRegisterW, register_w);
  return 1;
}
