// The kernels that a recorded program launched, and the shapes it launched them with.
// In: launches. Out: entries of the manifest and of the list that is shown where nothing was recorded. Asks the driver
// for names and resources alone.
#ifndef WARPLENS_DETAIL_HOST_KERNELS_HPP
#define WARPLENS_DETAIL_HOST_KERNELS_HPP

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "host_launch.hpp"
#include "host_options.hpp"

namespace warplens {
namespace detail {
namespace host {

class Kernels {
 public:
  Kernels(const Driver& driver, const Options& options) : driver_(driver), pattern_(options.kernels) {}

  Kernel& of(const Launch& launch) {
    Kernel& kernel = kernels_[launch.kernel];
    if (!kernel.name.empty()) return kernel;
    const char* name = nullptr;
    if (driver_.missing == nullptr) driver_.cuKernelGetName(&name, launch.kernel);
    kernel.name = name != nullptr ? demangled(name) : "(name not known)";
    kernel.symbol = name != nullptr ? name : "";
    kernel.matches = driver_.missing == nullptr && pattern_.found_in(kernel.name);
    kernel.traced = launch.kernel;
    for (Twins* twins = Registered<Twins>::first(); twins != nullptr; twins = twins->next) {
      const Handle traced = launch.unit->kernel_of(twins->traced), clean = launch.unit->kernel_of(twins->clean);
      if (traced == nullptr || clean == nullptr || (launch.kernel != traced && launch.kernel != clean)) continue;
      kernel.traced = traced, kernel.clean = clean;
      kernel.traced_function = twins->traced, kernel.clean_function = twins->clean;
      if (launch.kernel == clean && driver_.cuKernelGetName(&name, traced) == kSuccess) {
        kernel.name = demangled(name), kernel.symbol = name;
      }
      kernel.matches |= pattern_.found_in(kernel.name);
      match_limits(driver_, launch.kernel == clean ? clean : traced, launch.kernel == clean ? traced : clean);
    }
    return kernel;
  }

  Group& group_of(const Launch& launch, const Kernel& kernel) {
    for (Group& group : groups_) {
      if (group.kernel->traced == kernel.traced && group.shape == launch.shape) return group;
    }
    groups_.push_back({});
    Group& group = groups_.back();
    group.index = groups_.size() - 1;
    group.kernel = &kernel;
    group.unit = launch.unit;
    group.shape = launch.shape;
    group.traced_resources = resources_of(driver_, kernel.traced, launch.shape);
    group.clean_resources = resources_of(driver_, kernel.clean, launch.shape);
    return group;
  }

  // Of the set of sites of a group's kernel, as launches of other shapes told it, or as it has the kernel's name, which
  // that of `warplens nvcc` has; 0 where it is not known.
  std::uint32_t sites_hash(const Group& of) const {
    for (const SiteSet* set : site_sets()) {
      if (of.kernel->symbol == set->name) return hash_of(set->name);
    }
    for (const Group& group : groups_) {
      if (group.kernel->traced == of.kernel->traced && group.sites_hash != 0) return group.sites_hash;
    }
    return 0;
  }

  // It was recorded and wrote nothing: it has no marks.
  void silence(const Group& group) {
    kernels_[group.kernel->traced].silent = true;
    if (group.kernel->clean != nullptr) kernels_[group.kernel->clean].silent = true;
  }
  void count_recorded(const Group& group) { ++kernels_[group.kernel->traced].recorded; }

  std::vector<std::string> groups() const {
    std::vector<std::string> out;
    for (const Group& group : groups_) out.push_back(group_entry(group));
    return out;
  }
  std::vector<std::string> ran() const {
    std::vector<std::string> out;
    for (const auto& entry : kernels_) {
      const Kernel& kernel = entry.second;
      if (kernel.name.empty()) continue;
      out.push_back("{\"name\":" + json_text(kernel.name) + ",\"launches\":" + std::to_string(kernel.launches) +
                    ",\"recorded\":" + std::to_string(kernel.recorded) + ",\"matches\":" +
                    (kernel.matches ? "true" : "false") + ",\"other_grid\":" + (kernel.other_grid ? "true" : "false") +
                    ",\"other_range\":" + (kernel.other_range ? "true" : "false") +
                    ",\"without_marks\":" + (kernel.silent ? "true" : "false") + "}");
    }
    return out;
  }

 private:
  const Driver& driver_;
  Pattern pattern_;
  std::unordered_map<Handle, Kernel> kernels_;
  std::deque<Group> groups_;  // addresses stay
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_KERNELS_HPP
