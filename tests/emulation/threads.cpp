// Takes and closes chunks of a ring from many threads at once, by the recorder's own arena.cuh, with real atomics.
// In (arguments): threads, chunks, chunks that each thread writes, a seed, cursors. Out: one line: events written,
// kept and lost, chunks torn (written by two at once, or not whole when closed), chunks left open, chunks that found no
// space. A thread stands for a warp; each writes all words of its chunk, with pauses, and reads them back.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#define WARPLENS_KEEP_NEWEST
#include "warplens/detail/arena.cuh"

namespace layout = warplens::detail::layout;

namespace emulated {

Dim block, grid = {1, 1, 1}, threads_of_block = {1024, 1, 1};
unsigned sm;
unsigned char shared[1];
thread_local unsigned own_warp;
std::vector<unsigned> memory;
std::atomic<unsigned> outside;

// The control block lies at address 0, which is aligned as it wants.
unsigned* at(uint64_t address) {
  if (address % 4 == 0 && address / 4 + 1 < memory.size()) return memory.data() + address / 4;
  ++outside;
  return memory.data();
}
Dim thread() { return {own_warp * 32, 0, 0}; }
unsigned load(uint64_t address) { return __atomic_load_n(at(address), __ATOMIC_RELAXED); }
void store(uint64_t address, unsigned value) { *at(address) = value; }
unsigned add(uint64_t address, unsigned value) { return __atomic_fetch_add(at(address), value, __ATOMIC_RELAXED); }
void count(uint64_t address, uint64_t value) {
  __atomic_fetch_add(reinterpret_cast<uint64_t*>(at(address)), value, __ATOMIC_RELAXED);
}
void least(uint64_t, unsigned) { std::abort(); }  // of those who keep the oldest
// On the GPU the branch on what was held stands for the acquire: no store goes before it.
unsigned exchange(uint64_t address, unsigned value) {
  return __atomic_exchange_n(at(address), value, __ATOMIC_ACQUIRE);
}
void store_state(uint64_t address, unsigned value) { __atomic_store_n(at(address), value, __ATOMIC_RELEASE); }

// What no function of arena.cuh that is called here needs.
unsigned lane() { std::abort(); }
uint64_t clock() { std::abort(); }
uint64_t clock_again() { std::abort(); }
uint64_t globaltimer() { std::abort(); }
unsigned operate(Wait, unsigned, unsigned, unsigned) { std::abort(); }

}  // namespace emulated

namespace {

using namespace warplens::detail;

struct Told {
  uint64_t events = 0;
  unsigned torn = 0, refused = 0;
};

void write_chunks(unsigned warp, unsigned rounds, unsigned seed, Told& told) {
  emulated::own_warp = warp;
  std::mt19937 bits(seed + warp);
  for (unsigned round = 0; round < rounds; ++round) {
    const unsigned events = bits() % (layout::kRecordSlots + 1), mark = warp << 20 | round;
    told.events += events;
    const u64 chunk = find_address(ask_for_chunk(round * 24u), round * 24u);
    if (chunk == 0) {
      count_lost(events);
      ++told.refused;
      continue;
    }
    emulated::store(chunk, events);
    for (unsigned word = 1; word < layout::kChunkWords; ++word) {
      emulated::store(chunk + 4u * word, mark);
      if (bits() % 64 == 0) std::this_thread::yield();
    }
    for (unsigned word = 1; word < layout::kChunkWords; ++word) told.torn += *emulated::at(chunk + 4u * word) != mark;
    close_chunk(chunk, events);
  }
}

}  // namespace

int main(int, char** arguments) {
  const unsigned threads = std::atoi(arguments[1]), chunks = std::atoi(arguments[2]);
  const unsigned rounds = std::atoi(arguments[3]), seed = std::atoi(arguments[4]), cursors = std::atoi(arguments[5]);
  const u64 states_bytes = (chunks * layout::kStateBytes + 127ull) / 128 * 128;
  const u64 chunks_at = layout::kControlStates + states_bytes;
  emulated::memory.assign((chunks_at + chunks * layout::kChunkBytes) / 4 + 2, 0);
  for (unsigned i = 0; i < layout::kCursorCount; ++i)
    *emulated::at(layout::kControlCursors + i * layout::kCursorStride) = i;
  warplens_device = {0, chunks_at, cursors, chunks};
  std::vector<Told> told(threads);
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) running.emplace_back(write_chunks, i, rounds, seed, std::ref(told[i]));
  for (std::thread& thread : running) thread.join();
  uint64_t events = 0, kept = 0, lost = 0;
  unsigned torn = 0, open = 0, refused = 0;
  for (const Told& own : told) events += own.events, torn += own.torn, refused += own.refused;
  for (unsigned i = 0; i < layout::kCursorCount; ++i)
    lost += *emulated::at(layout::kControlCursors + i * layout::kCursorStride + layout::kCursorLostEvents);
  for (unsigned i = 0; i < chunks; ++i) {
    const unsigned state = *emulated::at(state_address(i)), *words = emulated::at(chunks_at + i * layout::kChunkBytes);
    if (state == layout::kStateFree) continue;
    open += state == layout::kStateOpen;
    kept += words[0];
    torn += state != layout::kStateClosed + words[0];
    for (unsigned word = 2; word < layout::kChunkWords; ++word) torn += words[word] != words[1];
  }
  std::printf("%lu %lu %lu %u %u %u\n", events, kept, lost, torn + emulated::outside, open, refused);
}
