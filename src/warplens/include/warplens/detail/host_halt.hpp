// How a recorded process hears that it is to save what a kernel that hangs has recorded.
// In: the file `stop` that `warplens record` makes in the folder of the run before it stops the program
// (capture/halt.py), and SIGINT and SIGTERM where they would end the process without a word. Out: what is asked, to a
// thread that looks for it; its answer, in a file. A signal is given back when that is done, and then ends the process.
#ifndef WARPLENS_DETAIL_HOST_HALT_HPP
#define WARPLENS_DETAIL_HOST_HALT_HPP

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "host_thread.hpp"

namespace warplens {
namespace detail {
namespace host {

// As HEARD_S and ANSWER_S in capture/halt.py: for a signal to be heard, and for what is done then.
constexpr auto kLongestUnheard = std::chrono::seconds(5);
constexpr auto kLongestAnswer = std::chrono::seconds(30);

// The last signal that came, of the process that looks for it. `heard`: that is being done. Where the thread that looks
// waits within the driver, which a copy behind a hung kernel keeps to itself, nobody hears it: another thread, which
// makes no call to the driver and sleeps until a signal comes, then ends the process; so does the second signal, at
// once.
struct Signals {
  std::atomic<int> came{0};
  std::atomic<bool> heard{false};
  std::atomic<pid_t> owner{0};
  sem_t arrived;
  static Signals& own() {
    static Signals* signals = new Signals;
    return *signals;
  }
  Signals() { sem_init(&arrived, 0, 0); }
  static void restore(int number) {
    struct sigaction usual = {};
    usual.sa_handler = SIG_DFL;
    sigaction(number, &usual, nullptr);
  }
  // In a child of fork, and before and behind the watching, it does what it did without.
  static void handle(int number) {
    Signals& signals = own();
    if (signals.owner == getpid() && (signals.came.exchange(number) == 0 || signals.heard)) {
      sem_post(&signals.arrived);
      return;
    }
    restore(number);
    raise(number);
  }
  static void give_back(int number) {
    restore(number);
    kill(getpid(), number);
  }
  // The thread that waits for signals which nobody answers.
  void guard() {
    while (true) {
      while (sem_wait(&arrived) != 0) {
      }
      const auto begin = std::chrono::steady_clock::now();
      const auto is_late = [&] {
        return std::chrono::steady_clock::now() - begin > (heard ? kLongestAnswer : kLongestUnheard);
      };
      while (came != 0 && !is_late()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const int number = came;
      if (number != 0 && owner == getpid()) give_back(number);
    }
  }
};

class Halt {
 public:
  struct Asked {
    std::string number, why;
    int signal = 0;
  };

  // From now on; `base`: of the process's file. Called once, by the program's thread.
  void begin(const std::string& folder, const std::string& base) {
    stop_ = folder + "/stop";
    base_ = base;
    touch(base_ + ".watch", "");
    Signals::own().owner = getpid();
    if (!start_apart([] { Signals::own().guard(); })) return;  // signals do as they did
    for (const int number : {SIGINT, SIGTERM}) {
      struct sigaction now = {}, ours = {};
      if (sigaction(number, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) {
        continue;  // the program hears it itself
      }
      ours.sa_handler = Signals::handle;
      ours.sa_flags = SA_RESTART;
      sigemptyset(&ours.sa_mask);
      sigaction(number, &ours, nullptr);
    }
  }

  void end() {
    if (base_.empty()) return;
    Signals::own().owner = 0;
    unlink((base_ + ".watch").c_str());
    const int number = Signals::own().came.exchange(0);
    if (number != 0) Signals::give_back(number);
  }

  // Whether something is asked that has not been answered. Looks for the file ten times a second at most.
  bool is_asked(Asked& out) {
    if (base_.empty()) return false;
    out.signal = Signals::own().came;
    if (out.signal != 0) {
      Signals::own().heard = true;
      out.why = out.signal == SIGINT ? "Ctrl-C came while it ran" : "SIGTERM came while it ran";
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < std::chrono::milliseconds(100)) return false;
    looked_ = now;
    std::FILE* file = std::fopen(stop_.c_str(), "re");
    if (file == nullptr) return false;
    char text[1024];
    const std::string found(text, std::fread(text, 1, sizeof text, file));
    std::fclose(file);
    const std::size_t line = found.find('\n');
    if (line == std::string::npos || found.compare(0, line, answered_) == 0) return false;
    out.number = found.substr(0, line);
    out.why = found.substr(line + 1, found.find('\n', line + 1) - line - 1);
    say(out.number, "working");  // `record` waits longer for one that has begun
    return true;
  }

  // `text`: "saved", or why nothing was, or nothing.
  void answer(const Asked& asked, const std::string& text) {
    if (asked.signal != 0) {
      Signals::own().came = 0;
      Signals::own().heard = false;
      return Signals::give_back(asked.signal);
    }
    answered_ = asked.number;
    say(asked.number, text);
  }

 private:
  void say(const std::string& number, const std::string& text) const {
    touch(base_ + ".answer.new", number + "\n" + text + "\n");
    std::rename((base_ + ".answer.new").c_str(), (base_ + ".answer").c_str());
  }
  static void touch(const std::string& path, const std::string& text) {
    std::FILE* file = std::fopen(path.c_str(), "we");
    if (file == nullptr) return;  // the folder is gone: nobody asks
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }

  std::string stop_, base_, answered_;
  std::chrono::steady_clock::time_point looked_{};
};

}  // namespace host
}  // namespace detail
}  // namespace warplens

#endif  // WARPLENS_DETAIL_HOST_HALT_HPP
