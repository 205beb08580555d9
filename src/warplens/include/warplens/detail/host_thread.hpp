// What the recording needs of the system so that it is never the program that pays: threads to which the program's
// signals do not come, files whose descriptors the program does not take for its own, writes that no limit on a file's
// size ends by a signal.
#ifndef WARPLENS_DETAIL_HOST_THREAD_HPP
#define WARPLENS_DETAIL_HOST_THREAD_HPP

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <memory>
#include <new>
#include <utility>

namespace warplens {
namespace detail {
namespace host {

// std::thread ends the program where no thread can be had, and a program that waits for a signal (`sigwait`) would lose
// it to a thread that has not blocked it.
class Thread {
 public:
  // False where the system gives none.
  template <class Body>
  bool start(Body body) {
    Body* own = new (std::nothrow) Body(std::move(body));
    if (own == nullptr) return false;
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    joinable_ = pthread_create(&thread_, nullptr, run<Body>, own) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!joinable_) delete own;
    return joinable_;
  }
  bool joinable() const { return joinable_; }
  void join() {
    pthread_join(thread_, nullptr);
    joinable_ = false;
  }
  void detach() {
    pthread_detach(thread_);
    joinable_ = false;
  }

 private:
  template <class Body>
  static void* run(void* body) {
    const std::unique_ptr<Body> own(static_cast<Body*>(body));
    (*own)();
    return nullptr;
  }

  pthread_t thread_ = {};
  bool joinable_ = false;
};

// As Thread::start, for one that nobody joins.
template <class Body>
bool start_apart(Body body) {
  Thread thread;
  if (!thread.start(std::move(body))) return false;
  thread.detach();
  return true;
}

// Above the numbers that a program gets when it opens a file, or takes for its standard streams: what it writes to one
// that it closed itself must not come into the trace.
inline int open_apart(const char* path, int flags) {
  constexpr int kFirst = 200;
  const int file = open(path, flags | O_CLOEXEC, 0666);
  const int apart = file >= 0 ? fcntl(file, F_DUPFD_CLOEXEC, kFirst) : -1;
  if (apart < 0) return file;  // there are not so many
  close(file);
  return apart;
}

// While it lives a write beyond the limit on a file's size fails (EFBIG), as on a full disk, and sends no signal.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    sigemptyset(&size_);
    sigaddset(&size_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &size_, &before_);
  }
  ~NoSizeSignal() {
    const int why = errno;
    const timespec at_once = {0, 0};
    while (!was_pending_ && sigtimedwait(&size_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = why;
  }
  NoSizeSignal(const NoSizeSignal&) = delete;
  NoSizeSignal& operator=(const NoSizeSignal&) = delete;

 private:
  sigset_t size_, before_;
  bool was_pending_ = false;
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_THREAD_HPP
