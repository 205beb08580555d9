// A program with launches, without nvcc and without a GPU: what a translation unit with host.hpp does, by hand.
//   program MODE LAUNCHES     MODE: run, crash, _exit, fork, exec, close, contexts, streams, graph, window, unmarked,
//   threads, paced, ranges, graphs, shapes, per-thread, beside, files, hang, sigwait, garble
// A launch copies the chunks in the file CHUNKS to where the descriptor says, as a kernel would, and counts in
// `result`.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "warplens/detail/host_session.hpp"
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define WITH_NVTX
#endif

extern "C" int cuCtxGetCurrent(void** out);
extern "C" void fake_set_capturing(int on);
extern "C" void fake_set_context(void* value);
extern "C" unsigned fake_cell[2];  // device memory, which launches add to

using namespace warplens::detail;
using namespace warplens::detail::host;

namespace {

int contexts[2] = {};                   // as the driver's: of two GPUs
layout::Descriptor symbols[2][2] = {};  // of each unit, in each context
const char kTraced[] = "_Z5scaleILb1EEvPf", kClean[] = "_Z5scaleILb0EEvPf", kOther[] = "_Z5otherPf";
const char kTraced2[] = "_Z5shiftILb1EEvPf", kClean2[] = "_Z5shiftILb0EEvPf";
const char kByHand[] =
    "load_sumsq, warp_reduce, normalize, store\x1d"
    "program.cpp\x1d"
    "7";
#define PLACED(name, kind, resource, line) "\x1e" name "\x1f" kind "\x1f" resource "\x1f/src/a.cu\x1f" line "\x1f"
const char kAutomatic[] =
    PLACED("a.cu:1 load", "phase", "", "1") PLACED("a.cu:2 wait mbarrier b", "wait", "mbarrier b", "2") "128"
        PLACED("a.cu:3", "phase", "", "3") PLACED("a.cu:4 \"store\"", "phase", "", "4") "\x1d/src/a.cu\x1d" "1\x1d" "call of f (a.cu:3)";
const SiteSet sites("rmsnorm", std::getenv("AUTOMATIC") != nullptr ? kAutomatic : kByHand);

layout::Descriptor& symbol_of(int unit) {
  Handle context = nullptr;
  cuCtxGetCurrent(&context);
  return symbols[unit][context == &contexts[1]];
}
template <int kUnit>
int find_symbol(void** out) {
  return *out = &symbol_of(kUnit), 0;
}
Handle find_kernel(const void* function) { return const_cast<void*>(function); }
Handle find_calibrator(bool of_step) { return const_cast<char*>(of_step ? "sample_globaltimer" : "calibrate"); }

struct ThisUnit : Unit {
  explicit ThisUnit(int (*symbol)(void**))
      : Unit{"packed", false, symbol, find_kernel, find_calibrator, {}, {}, Registered<Unit>::first()} {
    Registered<Unit>::first() = this;
  }
} units[2] = {ThisUnit(find_symbol<0>), ThisUnit(find_symbol<1>)};

std::vector<char> chunks;
unsigned result = 0, grid_id = 0, grid_x = 6, counted = 0;

std::uint32_t& word(unsigned long long address) { return *reinterpret_cast<std::uint32_t*>(address); }

// What a kernel with marks does where the symbol points at something.
void run_kernel(bool traced, int unit = 0) {
  ++result;
  ++grid_id;
  ++fake_cell[0];
  counted += traced;
  const layout::Descriptor to = symbol_of(unit);
  if (!traced || to.control == 0) return;
  std::uint32_t launch = grid_id;
  if ((word(to.control + 12) & layout::kChoiceWindow) != 0) {
    auto& ended = *reinterpret_cast<std::uint64_t*>(to.control + layout::kControlBlocksEnded);
    launch = static_cast<std::uint32_t>(ended / 6);
    ended += 6;
    const auto first = *reinterpret_cast<std::uint64_t*>(to.control + layout::kControlWindowFirst);
    const auto count = *reinterpret_cast<std::uint64_t*>(to.control + layout::kControlWindowLaunches);
    if (launch < first || launch - first >= count) return;
  }
  if (word(to.control) == 0) return;  // the mask of warps
  for (std::size_t at = 0, i = 0; at < chunks.size(); at += layout::kChunkBytes, ++i) {
    std::uint32_t& cursor = word(to.control + layout::kControlCursors + i % 7 * layout::kCursorStride);
    std::uint32_t index = cursor;
    cursor += layout::kCursorCount;
    if (index >= to.shared_chunks) {
      std::uint32_t& pool = word(to.control + layout::kControlPoolCursor);
      index = pool;
      if (index >= to.chunks) {
        *reinterpret_cast<std::uint64_t*>(to.control + layout::kControlLostEvents) += 1;
        *reinterpret_cast<std::uint64_t*>(to.control + layout::kControlLostChunks) += 1;
        continue;
      }
      ++pool;
    }
    const auto place = to.arena + std::uint64_t{index} * layout::kChunkBytes;
    std::memcpy(reinterpret_cast<void*>(place), &chunks[at], layout::kChunkBytes);
    word(place + 4 * layout::kWordGrid) = launch;
  }
}

void launch(const char* kernel = kClean, Handle stream = nullptr, const std::function<void()>& meanwhile = [] {}) {
  const int unit = kernel == kTraced2 || kernel == kClean2;
  const auto run = [=](const void* which) { run_kernel(which == kTraced || which == kTraced2, unit); };
  Session* session = Session::current();
  if (session == nullptr) return run(kernel);
  void* cell = fake_cell;
  void* arguments[] = {&cell};
  const Launch launch = {
      &units[unit], const_cast<char*>(kernel), kernel, {{grid_x, 1, 1}, {64, 1, 1}, {1, 1, 1}, 0}, stream, arguments};
  Decision decision = session->begin(launch);
  meanwhile();
  if (decision.replay) session->replay(launch, decision, [&](const void* build) { return run(build), true; });
  run(decision.function != nullptr ? decision.function : kernel);
  session->end(launch, decision, true);
}

void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(300)); }

}  // namespace

#ifdef LIBRARY  // for loader.cpp
extern "C" __attribute__((visibility("default"))) int library_main(int argc, char** argv) {
#else
int main(int argc, char** argv) {
#endif
  const std::string mode = argc > 1 ? argv[1] : "run";
  const int launches = argc > 2 ? std::atoi(argv[2]) : 4;
  std::ifstream file(std::getenv("CHUNKS"), std::ios::binary);
  const std::vector<char> one{std::istreambuf_iterator<char>(file), {}};
  const char* repeat = std::getenv("REPEAT");
  for (int i = 0; i < (repeat != nullptr ? std::atoi(repeat) : 1); ++i)
    chunks.insert(chunks.end(), one.begin(), one.end());
  fake_set_context(&contexts[0]);
  static const Twins* twins = std::getenv("NO_PAIR") == nullptr ? new Twins(kTraced, kClean) : nullptr;
  static const Twins others(kTraced2, kClean2);
  (void)twins;
  if (mode == "sigwait") {  // as a server ends
    for (int i = 0; i < launches; ++i) launch();
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
    kill(getpid(), SIGUSR1);
    int got = 0;
    sigwait(&awaited, &got);
    std::printf("ended by %s\n", got == SIGUSR1 ? "USR1" : "another");
  } else if (mode == "garble") {  // writes on to a stream that it has closed
    launch();
    wait_a_moment();
    close(2);
    for (int i = 1; i < launches; ++i) {
      launch();
      for (int k = 0; k < 200; ++k) {
        if (write(2, "GARBAGE", 7) < 0) continue;
      }
    }
  } else if (mode == "close") {
    launch();
    wait_a_moment();
    for (int i = 3; i < 256; ++i) close(i);
    const int own = open("own.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (int i = 1; i < launches; ++i) launch();
    wait_a_moment();
    if (write(own, "mine", 4) != 4) return 1;
  } else if (mode == "fork") {
    launch();
    const pid_t child = fork();
    if (child == 0) {
      launch();
      std::exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 7) return 1;
    for (int i = 1; i < launches; ++i) launch();
  } else if (mode == "graph") {
    fake_set_capturing(1);
    launch();
    fake_set_capturing(0);
    for (int i = 1; i < launches; ++i) run_kernel(true);  // replays, which no call announces
    if (std::getenv("LAST_BLOCK_HANGS") != nullptr) {
      auto& ended = *reinterpret_cast<std::uint64_t*>(symbol_of(0).control + layout::kControlBlocksEnded);
      ended -= 1;  // of the last replay
      std::puts("hangs"), std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::minutes(1));
    }
  } else if (mode == "graphs") {  // two, of different grids
    const char* kernel = std::getenv("NO_PAIR") == nullptr ? kClean : kTraced;
    fake_set_capturing(1);
    launch(kernel);
    const unsigned marked = counted;
    grid_x = 12;
    launch(kernel);
    fake_set_capturing(0);
    const bool other_is_traced = counted != marked;
    for (int i = 1; i < launches; ++i) run_kernel(true), run_kernel(other_is_traced);
  } else if (mode == "files") {  // captured: of two files, and on two GPUs
    fake_set_capturing(1);
    launch(kClean), launch(kClean2);
    fake_set_context(&contexts[1]);
    launch(kClean);
    fake_set_capturing(0);
    for (int i = 1; i < launches; ++i) {
      fake_set_context(&contexts[0]);
      run_kernel(true), run_kernel(true, 1);
      fake_set_context(&contexts[1]);
      run_kernel(true);
    }
  } else if (mode == "window") {  // launches and replays: 10 before, 6 within, 10 behind
    const bool captured = std::getenv("CAPTURED") != nullptr;
    const auto some = [&](int count) {
      for (int i = 0; i < count; ++i) captured ? run_kernel(true) : launch();
    };
    fake_set_capturing(captured);
    launch();
    fake_set_capturing(0);
    some(9);
    Session::current()->set_on(true);
    some(6);
    Session::current()->set_on(false);
    some(10);
  } else if (mode == "paced") {  // until there is a file `enough`, of which its parent decides
    for (int i = 0; access("enough", F_OK) != 0; ++i) {
      launch();
      if (i % 50 == 49) std::puts("50 more"), std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } else if (mode == "per-thread") {  // each thread on the default stream of its own, which all name alike
    const auto its_own = reinterpret_cast<Handle>(std::uintptr_t{2});
    launch(kClean, its_own), launch(kClean, its_own);
    std::thread([&] { fake_set_context(&contexts[0]), launch(kClean, its_own); }).join();
  } else if (mode == "beside") {  // another thread launches while this one does
    launch(kClean, nullptr, [&] { std::thread([&] { fake_set_context(&contexts[0]), launch(); }).join(); });
    launch();
  } else if (mode == "shapes") {  // of two kernels, in turn
    for (int i = 0; i < launches; ++i) {
      for (const unsigned grid : {6u, 12u}) {
        grid_x = grid;
        launch(kClean), launch(kClean2);
      }
    }
#ifdef WITH_NVTX
  } else if (mode == "ranges") {
    launch();
    nvtxRangePushA("step 1");
    launch();
    nvtxRangePushA("inner");
    launch();
    nvtxRangePop();
    nvtxRangePop();
    nvtxRangePushW(L"other");
    launch();
    nvtxRangePop();
    const nvtxRangeId_t range = nvtxRangeStartA("step 2");
    std::thread([&] { fake_set_context(&contexts[0]), launch(); }).join();
    nvtxRangeEnd(range);
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("layers");
    nvtxEventAttributes_t named = {};
    named.version = NVTX_VERSION, named.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    named.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    named.message.registered = nvtxDomainRegisterStringA(domain, "step 3");
    nvtxDomainRangePushEx(domain, &named);
    launch();
    nvtxDomainRangePop(domain);
    launch();
#endif
  } else if (mode == "threads") {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        fake_set_context(&contexts[0]);
        for (int i = 0; i < launches / 4; ++i) launch(kOther);
      });
    }
    for (auto& thread : threads) thread.join();
  } else {
    for (int i = 0; i < launches; ++i) {
      if (mode == "contexts") fake_set_context(&contexts[i % 2]);
      launch(mode == "unmarked" ? kOther
             : mode == "traced" ? kTraced
                                : kClean,
             mode == "streams" ? &contexts[i % 2] : nullptr);
    }
  }
  if (mode == "crash" || mode == "_exit" || mode == "exec") wait_a_moment();
  if (mode == "hang") {  // waits for the GPU as a program does, in C
    std::puts("hangs"), std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  }
  std::printf("%u\n", result);
  if (std::getenv("CELL") != nullptr) std::printf("%u\n", fake_cell[0]);
  std::fflush(stdout);
  if (mode == "crash") std::abort();
  if (mode == "_exit") _exit(5);
  if (mode == "exec") execl(argv[0], argv[0], "run", argv[2], nullptr);
  return 0;
}
