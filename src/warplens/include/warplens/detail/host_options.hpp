// What `warplens record` asks of a program: the one environment variable that it sets.
// In: WARPLENS_RECORD, "key=value&key=value" with %XX for other characters (capture/request.py writes it). Out:
// Options. A variable that cannot be read switches recording off; it never stops the program.
#ifndef WARPLENS_DETAIL_HOST_OPTIONS_HPP
#define WARPLENS_DETAIL_HOST_OPTIONS_HPP

#include <regex.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace warplens {
namespace detail {
namespace host {

constexpr const char* kVariable = "WARPLENS_RECORD";
constexpr int kRequestVersion = 1;

inline std::string decode_percent(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

inline std::map<std::string, std::string> parse_request(const char* text) {
  std::map<std::string, std::string> out;
  const char* at = text;
  while (*at != '\0') {
    const char* end = std::strchr(at, '&');
    const std::string pair(at, end != nullptr ? end : at + std::strlen(at));
    const std::size_t equals = pair.find('=');
    if (equals != std::string::npos) {
      out[decode_percent(pair.substr(0, equals))] = decode_percent(pair.substr(equals + 1));
    }
    at = end != nullptr ? end + 1 : at + std::strlen(at);
  }
  return out;
}

struct Options {
  bool wanted = false;
  bool paused = false;    // until start_recording()
  bool switched = false;  // on while the file `on` is in the folder
  bool replay = false, cold_l2 = false, with_source = true;
  std::string folder;  // where the process leaves its file
  std::string kernels, nvtx_include, policy = "auto", keep = "oldest";
  std::string note = "null", host = "null", command = "null";  // JSON, as they stand in the manifest
  std::uint64_t skip = 0, count = 0, rounds = 0, capacity_bytes = 0;
  std::uint32_t every_block = 1, warp_mask = 0xffffffffu;
  std::vector<std::uint32_t> blocks;
  std::vector<std::array<unsigned, 3>> grids;

  Options() {
    const char* text = std::getenv(kVariable);
    if (text == nullptr) return;
    auto keys = parse_request(text);
    const auto number = [&keys](const char* key, std::uint64_t otherwise) {
      const auto found = keys.find(key);
      return found == keys.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
    };
    if (number("version", 0) != kRequestVersion) return;
    folder = keys["folder"];
    kernels = keys["kernels"];
    nvtx_include = keys["nvtx_include"];
    for (auto& own :
         {std::make_pair("note", &note), std::make_pair("host", &host), std::make_pair("command", &command)}) {
      if (keys.count(own.first) != 0) *own.second = keys[own.first];
    }
    paused = number("paused", 0) != 0;
    switched = number("switched", 0) != 0;
    replay = number("replay", 0) != 0;
    cold_l2 = number("cold_l2", 0) != 0;
    with_source = number("source", 1) != 0;
    for (auto& own : {std::make_pair("policy", &policy), std::make_pair("keep", &keep)}) {
      if (keys.count(own.first) != 0) *own.second = keys[own.first];
    }
    skip = number("launch_skip", 0);
    count = number("launch_count", 100);
    rounds = number("rounds", 10);
    capacity_bytes = number("capacity_bytes", 256u << 20);
    every_block = static_cast<std::uint32_t>(number("every_block", 1));
    warp_mask = static_cast<std::uint32_t>(number("warp_mask", 0xffffffffu));
    for (const char* at = keys["blocks"].c_str(); *at != '\0';) {
      char* end = nullptr;
      blocks.push_back(static_cast<std::uint32_t>(std::strtoul(at, &end, 10)));
      if (end == at) break;
      at = *end == ',' ? end + 1 : end;
    }
    std::array<unsigned, 3> sizes;
    int length = 0;
    for (const char* at = keys["grids"].c_str();
         std::sscanf(at, "%ux%ux%u%n", &sizes[0], &sizes[1], &sizes[2], &length) == 3; at += *at == ',') {
      grids.push_back(sizes);
      at += length;
    }
    wanted = !folder.empty() && every_block > 0;
  }

  bool is_policy(const std::string& of_code) const { return policy == "auto" || policy == of_code; }

  bool takes(const unsigned* grid) const {
    if (grids.empty()) return true;
    for (const auto& sizes : grids) {
      if (std::equal(sizes.begin(), sizes.end(), grid)) return true;
    }
    return false;
  }
};

// A POSIX extended regular expression, searched for in a name; an empty one is found in all.
class Pattern {
 public:
  explicit Pattern(const std::string& text) : empty_(text.empty()) {
    valid_ = !empty_ && regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB) == 0;
  }
  ~Pattern() {
    if (valid_) regfree(&compiled_);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool found_in(const std::string& name) const {
    return empty_ || (valid_ && regexec(&compiled_, name.c_str(), 0, nullptr, 0) == 0);
  }

 private:
  bool empty_, valid_ = false;
  regex_t compiled_ = {};
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_OPTIONS_HPP
