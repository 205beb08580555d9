// Runs programs of marks on the emulated device, one warp after the other, and prints what was written to the arena.
// In (stdin): the number of cases; for each the arena, the launch, and a program a warp (read_case). Out: for each the
// chunks handed out, the losses, and what must not happen: an access outside, a foreign chunk, lanes that wait forever,
// and of a ring (WARPLENS_KEEP_NEWEST) a store into a chunk that is not open.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "warplens/warplens.cuh"

WARPLENS_SITES(emulation, a, b, c, d, e, f, g, h);

namespace layout = warplens::detail::layout;
using emulated::Wait;
using warplens::detail::kKeepNewest;

namespace emulated {

Dim block, grid, threads_of_block;
unsigned sm;
unsigned char shared[1 << 16];

struct Step {
  unsigned lanes;
  char verb;
  unsigned site, value;
  uint64_t clock;
};

constexpr size_t kStackBytes = 1 << 16;
constexpr size_t kUsedBytes = 1 << 14;  // of a stack; to fill all of it took a third of a run

struct Fiber {
  ucontext_t begin;
  jmp_buf place_of_rest;
  bool begun;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  Wait waits;
  unsigned mask, value, source, result;
  std::pair<const void*, const void*> place;  // in the code, and its caller: lanes that are elsewhere do not join
  size_t step;
  unsigned reads;
};

Fiber fibers[32];
Fiber* running;
jmp_buf scheduler;
std::vector<Step> program;
unsigned warp;

std::vector<unsigned char> memory;
uint64_t control;
unsigned chunks;
uint64_t chunks_at;  // behind the control block and the states
std::map<uint64_t, uint64_t> owners;
std::vector<std::string> faults;
std::mt19937 random_bits;

void fault(const std::string& text) {
  if (faults.size() < 20) faults.push_back(text);
}

unsigned char* at(uint64_t address, const char* what);
unsigned lane() { return static_cast<unsigned>(running - fibers); }
Dim thread() {
  const unsigned number = warp * 32 + lane(), plane = threads_of_block.x * threads_of_block.y;
  return {number % threads_of_block.x, number / threads_of_block.x % threads_of_block.y, number / plane};
}
uint64_t clock() { return program[running->step].clock + 2 * running->reads++; }
uint64_t clock_again() {
  return running->reads == 0 ? clock() : program[running->step].clock + 2 * (running->reads - 1);
}
unsigned load(uint64_t address) {
  unsigned value;
  std::memcpy(&value, at(address, "load"), 4);
  return value;
}
uint64_t globaltimer() {
  const uint64_t ns = 1795000000000000000ull + static_cast<uint64_t>((clock() - 8000000000000ull) / 1.98);
  return ns - ns % 32;
}

// By jumps: swapcontext asks the system for the mask of signals each time.
void rest() {
  if (_setjmp(running->place_of_rest) == 0) _longjmp(scheduler, 1);
}
void resume() {
  if (_setjmp(scheduler) != 0) return;
  if (running->begun) _longjmp(running->place_of_rest, 1);
  running->begun = true;
  setcontext(&running->begin);
}

unsigned operate(Wait kind, unsigned mask, unsigned value, unsigned source) {
  Fiber& self = *running;
  self.waits = kind, self.mask = mask, self.value = value, self.source = source;
  self.place = {__builtin_return_address(0), __builtin_return_address(1)};
  rest();
  return self.result;
}

unsigned char* at(uint64_t address, const char* what) {
  if (address >= control && address + 8 <= control + memory.size()) return memory.data() + (address - control);
  fault(std::string(what) + " outside of the arena");
  static unsigned char nowhere[8];
  return nowhere;
}
void store(uint64_t address, unsigned value) {
  const uint64_t offset = address - control;
  const uint64_t chunk = (offset - chunks_at) / layout::kChunkBytes;
  if (offset >= chunks_at + static_cast<uint64_t>(chunks) * layout::kChunkBytes) {  // where warps last were
    std::memcpy(at(address, "store"), &value, 4);
    return;
  }
  if (offset < chunks_at) return fault("store outside of the chunks");
  const uint64_t self = static_cast<uint64_t>(block.x) << 8 | warp;
  if (kKeepNewest && owners.count(chunk) == 0) return fault("store into a chunk that is not open");
  if (owners.emplace(chunk, self).first->second != self) fault("store into the chunk of another warp");
  std::memcpy(at(address, "store"), &value, 4);
}
template <class T, class Change>
T change(uint64_t address, Change by) {
  T old;
  std::memcpy(&old, at(address, "atomic"), sizeof old);
  const T now = by(old);
  std::memcpy(at(address, "atomic"), &now, sizeof now);
  return old;
}
unsigned add(uint64_t address, unsigned value) {
  return change<unsigned>(address, [=](unsigned old) { return old + value; });
}
unsigned exchange(uint64_t address, unsigned value) {
  const unsigned held = change<unsigned>(address, [=](unsigned) { return value; });
  const uint64_t self = static_cast<uint64_t>(block.x) << 8 | warp;
  if (held != layout::kStateOpen) owners.emplace((address - control - layout::kControlStates) / 4, self);
  return held;
}
void store_state(uint64_t address, unsigned value) {
  const auto owned = owners.find((address - control - layout::kControlStates) / 4);
  const uint64_t self = static_cast<uint64_t>(block.x) << 8 | warp;
  if (owned == owners.end() || owned->second != self) return fault("close of a chunk that is not the warp's own");
  owners.erase(owned);
  std::memcpy(at(address, "close"), &value, 4);
}
bool in_front_of_loops() { return running->step < 3; }
void least(uint64_t address, unsigned value) {
  change<unsigned>(address, [=](unsigned old) { return std::min(old, value); });
}
void count(uint64_t address, uint64_t value) {
  change<uint64_t>(address, [=](uint64_t old) { return old + value; });
}

bool is_detached(char verb) { return std::string("lLfF").find(verb) != std::string::npos; }
// Lanes of the warp that no step before this one had leave.
unsigned lanes_left() {
  const unsigned threads = threads_of_block.x * threads_of_block.y * threads_of_block.z - warp * 32;
  unsigned lanes = threads >= 32 ? ~0u : (1u << threads) - 1;
  for (size_t i = 0; i < running->step; ++i)
    if (program[i].verb == 'X') lanes &= ~program[i].lanes;
  return lanes;
}
__attribute__((noinline)) void mark_detached(warplens::Recorder<emulation>& rec, const Step& step) {
  const auto site = static_cast<emulation::Site>(step.site);
  switch (step.verb) {
    case 'l':
      return rec.mark_lane(site);
    case 'L':
      return rec.mark_lane(site, step.value);
    case 'f':
      return warplens::mark<emulation>(site);
    default:
      return warplens::mark<emulation>(site, step.value);
  }
}
__attribute__((noinline)) void run_steps() {
  warplens::Recorder<emulation> rec;
  warplens::Token tokens[16];
  for (; running->step + 1 < program.size(); ++running->step) {
    running->reads = 0;
    const Step& step = program[running->step];
    if (is_detached(step.verb)) {
      if ((step.lanes >> lane() & 1) != 0) mark_detached(rec, step);
      operate(Wait::kSync, lanes_left(), 0, 0);
      continue;
    }
    if ((step.lanes >> lane() & 1) == 0) continue;
    const auto site = static_cast<emulation::Site>(step.site);
    const auto join = warplens::join(step.value);
    switch (step.verb) {
      case 'p':
        rec.phase(site);
        break;
      case 'P':
        rec.phase(site, step.value);
        break;
      case 'e':
        rec.end_phase();
        break;
      case 'm':
        rec.mark(site);
        break;
      case 'M':
        rec.mark(site, step.value);
        break;
      case '(':
        rec.range_push(site);
        break;
      case '[':
        rec.range_push(site, step.value);
        break;
      case ')':
        rec.range_pop();
        break;
      case 's':
        tokens[step.value % 16] = rec.range_start(site);
        break;
      case 't':
        rec.range_end(tokens[step.value % 16]);
        break;
      case 'j':
        rec.range_start(site, join);
        break;
      case 'k':
        rec.range_end(site, join);
        break;
      case 'w':
        rec.wait(site);
        break;
      case 'W':
        rec.wait(site, step.value);
        break;
      case 'x':
        rec.wait(site, join);
        break;
      case 'a':
        rec.arrive(site);
        break;
      case 'y':
        rec.arrive(site, join);
        break;
      case 'i':
        rec.iteration(step.value);
        break;
      case 'X':
        return;  // these lanes leave
    }
  }
  running->reads = 0;
}
void run_lane() {
  run_steps();
  running->waits = Wait::kEnded;
  rest();
}

// Lanes whose operation can take place now: of one place, all that its mask names; for the active mask all or some.
unsigned choose() {
  std::map<std::pair<size_t, decltype(Fiber::place)>, std::map<unsigned, unsigned>> places;
  for (unsigned i = 0; i < 32; ++i) {
    const Fiber& fiber = fibers[i];
    if (fiber.waits == Wait::kEnded) continue;
    places[{fiber.step, fiber.place}][fiber.waits == Wait::kActive ? 0 : fiber.mask] |= 1u << i;
  }
  std::vector<unsigned> ready;
  for (const auto& place : places)
    for (const auto& [mask, lanes] : place.second)
      if (mask == 0 || mask == lanes) ready.push_back(lanes);
  if (ready.empty()) return 0;
  return ready[random_bits() % ready.size()];
}

void run_warp() {
  const unsigned threads = threads_of_block.x * threads_of_block.y * threads_of_block.z;
  for (unsigned i = 0; i < 32; ++i) {
    Fiber& fiber = fibers[i];
    std::fill(fiber.stack.end() - kUsedBytes, fiber.stack.end(), static_cast<char>(0xa5 + i));  // what is not set shows
    getcontext(&fiber.begin);
    fiber.begin.uc_stack.ss_sp = fiber.stack.data();
    fiber.begin.uc_stack.ss_size = fiber.stack.size();
    fiber.begin.uc_link = nullptr;
    makecontext(&fiber.begin, run_lane, 0);
    fiber.begun = false;
    fiber.step = fiber.reads = 0;
    fiber.waits = warp * 32 + i < threads ? Wait::kNothing : Wait::kEnded;
  }
  for (;;) {
    for (Fiber& fiber : fibers) {
      if (fiber.waits != Wait::kNothing) continue;
      running = &fiber;
      resume();
    }
    if (std::all_of(fibers, fibers + 32, [](const Fiber& f) { return f.waits == Wait::kEnded; })) return;
    const unsigned lanes = choose();
    if (lanes == 0) return fault("lanes wait for others that never come");
    unsigned ballot = 0;
    for (unsigned i = 0; i < 32; ++i) ballot |= (lanes >> i & 1) != 0 && fibers[i].value != 0 ? 1u << i : 0u;
    unsigned results[32];
    for (unsigned i = 0; i < 32; ++i) {
      if ((lanes >> i & 1) == 0) continue;
      const Fiber& fiber = fibers[i];
      const bool inside = (lanes >> fiber.source & 1) != 0;
      switch (fiber.waits) {
        case Wait::kActive:
          results[i] = lanes;
          break;
        case Wait::kShuffle:
          results[i] = inside ? fibers[fiber.source].value : 0xdeadbeefu;
          break;
        case Wait::kBallot:
          results[i] = ballot;
          break;
        case Wait::kMatch:
          results[i] = 0;
          for (unsigned other = 0; other < 32; ++other)
            results[i] |= (lanes >> other & 1) != 0 && fibers[other].value == fiber.value ? 1u << other : 0u;
          break;
        case Wait::kAll:
          results[i] = ballot == lanes;
          break;
        default:
          results[i] = 0;
      }
    }
    for (unsigned i = 0; i < 32; ++i) {
      if ((lanes >> i & 1) == 0) continue;
      fibers[i].result = results[i];
      fibers[i].waits = Wait::kNothing;
    }
  }
}

unsigned& word(uint64_t offset) { return *reinterpret_cast<unsigned*>(memory.data() + offset); }
unsigned& cursor(unsigned number) { return word(layout::kControlCursors + number * layout::kCursorStride); }

// Index of each chunk that was handed out. Of a ring: that is not free.
std::vector<unsigned> taken_chunks(unsigned shared_chunks) {
  std::vector<unsigned> taken;
  if (kKeepNewest) {
    for (unsigned i = 0; i < chunks; ++i)
      if (word(layout::kControlStates + layout::kStateBytes * i) != layout::kStateFree) taken.push_back(i);
    return taken;
  }
  for (unsigned i = 0; i < layout::kCursorCount; ++i)
    for (unsigned index = i; index < std::min(cursor(i), shared_chunks); index += layout::kCursorCount)
      taken.push_back(index);
  for (unsigned i = shared_chunks; i < std::min(word(layout::kControlPoolCursor), chunks); ++i) taken.push_back(i);
  return taken;
}

unsigned lost_events() {
  unsigned lost = word(layout::kControlLostEvents);
  for (unsigned i = 0; kKeepNewest && i < layout::kCursorCount; ++i)
    lost += word(layout::kControlCursors + i * layout::kCursorStride + layout::kCursorLostEvents);
  return lost;
}

void run_case() {
  unsigned seed, shared_chunks, stuck, choice[4];
  size_t programs;
  std::cin >> seed >> chunks >> shared_chunks >> stuck;
  for (unsigned& word : choice) std::cin >> word;
  std::cin >> grid.x >> threads_of_block.x >> threads_of_block.y >> threads_of_block.z >> programs;
  grid.y = grid.z = 1;
  random_bits.seed(seed);
  faults.clear(), owners.clear();
  chunks_at = layout::kControlBytes;
  if (kKeepNewest) chunks_at += (chunks * layout::kStateBytes + 127ull) / 128 * 128;
  const size_t behind = 8 + 16 * layout::kLastWarps * layout::kLastBytes;
  memory.assign(chunks_at + static_cast<size_t>(chunks) * layout::kChunkBytes + behind, 0);
  control = 7ull << 40;
  word(layout::kControlPoolCursor) = shared_chunks;
  for (unsigned i = 0; i < layout::kCursorCount; ++i) cursor(i) = i;
  for (unsigned i = 0; i < stuck; ++i) {  // chunks that another warp has open all the time
    const unsigned index = random_bits() % chunks;
    word(layout::kControlStates + layout::kStateBytes * index) = layout::kStateOpen;
    owners[index] = ~0ull;
  }
  for (unsigned i = 0; i < 4; ++i) word(layout::kControlChoice + 4 * i) = choice[i];
  warplens_device = {control, control + chunks_at, shared_chunks, chunks};
  const unsigned warps = (threads_of_block.x * threads_of_block.y * threads_of_block.z + 31) / 32;
  for (size_t number = 0; number < programs; ++number) {
    size_t steps;
    std::cin >> steps >> sm;
    program.assign(steps + 1, {});
    for (size_t i = 0; i < steps; ++i) {
      Step& step = program[i];
      std::cin >> step.lanes >> step.verb >> step.site >> step.value >> step.clock;
    }
    std::cin >> program[steps].clock;
    block = {static_cast<unsigned>(number / warps), 0, 0};
    warp = number % warps;
    if (warp == 0) std::fill(std::begin(shared), std::end(shared), 0x5a);
    run_warp();
  }
  const std::vector<unsigned> taken = taken_chunks(shared_chunks);
  std::printf("%zu %u %zu\n", taken.size(), lost_events(), faults.size());
  for (const std::string& text : faults) std::puts(text.c_str());
  for (unsigned index : taken) {
    for (unsigned i = 0; i < layout::kChunkWords; ++i)
      std::printf("%u ", word(chunks_at + static_cast<uint64_t>(index) * layout::kChunkBytes + 4 * i));
    std::printf("%u\n", kKeepNewest ? word(layout::kControlStates + layout::kStateBytes * index) : 0u);
  }
}

}  // namespace emulated

int main() {
  size_t cases;
  std::cin >> cases;
  while (cases-- > 0) emulated::run_case();
}
