// What one thread tells another once, as a std::promise<void> does, without <future>: each file that includes host.hpp
// would compile it anew.
#ifndef WARPLENS_DETAIL_HOST_DONE_HPP
#define WARPLENS_DETAIL_HOST_DONE_HPP

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace warplens {
namespace detail {
namespace host {

class Done {
 public:
  void set() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ = true;
    changed_.notify_all();
  }

  // Whether it is set before that time is over.
  template <class Duration>
  bool wait_for(Duration longest) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, longest, [this] { return is_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ = false;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_DONE_HPP
