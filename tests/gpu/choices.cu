// A program with several kernels, shapes, graphs, threads and open files: `choices MODE LAUNCHES`. Prints a sum of what
// its kernels wrote. See test_choices.py.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <warplens/host.hpp>

WARPLENS_SITES(adding, load, store);
WARPLENS_SITES(tripling, read, write);

constexpr int kThreads = 64, kBlocks = 8, kMore = 16;

// Long enough that the GPU has work while the next launch is handed over.
__device__ void linger() {
  for (const long long begin = clock64(); clock64() - begin < 200000;) {
  }
}

template <bool kTrace>
__global__ void add_one(unsigned* p) {
  warplens::Recorder<adding, kTrace> rec;
  rec.phase(adding::load);
  const unsigned old = p[blockIdx.x * blockDim.x + threadIdx.x];
  linger();
  rec.phase(adding::store, old);  // how many launches were before
  p[blockIdx.x * blockDim.x + threadIdx.x] = old + 1;
}
WARPLENS_PAIR(add_one<true>, add_one<false>);

template <bool kTrace>
__global__ void triple(unsigned* p) {
  warplens::split<tripling, kTrace>([&](auto& rec) {
    rec.phase(tripling::read);
    const unsigned old = p[blockIdx.x * blockDim.x + threadIdx.x];
    linger();
    rec.phase(tripling::write);
    p[blockIdx.x * blockDim.x + threadIdx.x] = 3 * old;
  });
}
WARPLENS_PAIR(triple<true>, triple<false>);

// Adds what lies on another GPU.
template <bool kTrace>
__global__ void add_other(unsigned* p, const unsigned* other) {
  warplens::Recorder<adding, kTrace> rec;
  rec.phase(adding::load);
  const unsigned more = other[blockIdx.x * blockDim.x + threadIdx.x];
  rec.phase(adding::store);
  p[blockIdx.x * blockDim.x + threadIdx.x] += more;
}
WARPLENS_PAIR(add_other<true>, add_other<false>);

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(3);
}

unsigned* make(unsigned value = 0) {
  const std::vector<unsigned> values(kMore * kThreads, value);
  unsigned* p = nullptr;
  check(cudaMalloc(&p, values.size() * sizeof value));
  check(cudaMemcpy(p, values.data(), values.size() * sizeof value, cudaMemcpyHostToDevice));
  return p;
}

unsigned sum(const unsigned* p) {
  std::vector<unsigned> values(kMore * kThreads);
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(values.data(), p, values.size() * sizeof values[0], cudaMemcpyDeviceToHost));
  unsigned out = 0;
  for (const unsigned value : values) out = out * 31 + value;
  return out;
}

// Those of files below this folder: CUDA's own stay.
void close_its_files() {
  char here[256] = {};
  if (getcwd(here, sizeof here) == nullptr) std::exit(4);
  for (int number = 3; number < 1024; ++number) {
    char target[256] = {};
    const std::string place = "/proc/self/fd/" + std::to_string(number);
    if (readlink(place.c_str(), target, sizeof target - 1) > 0 && std::strstr(target, here) == target) close(number);
  }
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "shapes";
  const int launches = argc > 2 ? std::atoi(argv[2]) : 8;
  if (mode == "close") {  // as a daemon does, before CUDA begins
    for (int number = 3; number < 1024; ++number) close(number);
  }
  unsigned* p = make(1);
  if (mode == "shapes") {
    for (int i = 0; i < launches; ++i) {
      for (const int blocks : {kBlocks, kMore}) {
        add_one<false><<<blocks, kThreads>>>(p);
        triple<false><<<blocks, kThreads>>>(p);
      }
    }
  } else if (mode == "graphs") {  // of two grids, replayed in turn
    cudaStream_t stream;
    check(cudaStreamCreate(&stream));
    cudaGraphExec_t ready[2];
    for (int i = 0; i < 2; ++i) {
      cudaGraph_t graph;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      if (i == 0) {
        add_one<false><<<kBlocks, kThreads, 0, stream>>>(p);
      } else {
        add_one<false><<<kMore, kThreads, 0, stream>>>(p);
      }
      check(cudaStreamEndCapture(stream, &graph));
      check(cudaGraphInstantiate(&ready[i], graph, 0));
    }
    for (int i = 0; i < launches; ++i) {
      for (cudaGraphExec_t graph : ready) check(cudaGraphLaunch(graph, stream));
    }
  } else if (mode == "devices") {  // a graph on each of two GPUs
    cudaGraphExec_t ready[2];
    cudaStream_t streams[2];
    unsigned* memory[2];
    for (int i = 0; i < 2; ++i) {
      cudaGraph_t graph;
      check(cudaSetDevice(i));
      memory[i] = make();
      check(cudaStreamCreate(&streams[i]));
      check(cudaStreamBeginCapture(streams[i], cudaStreamCaptureModeGlobal));
      add_one<false><<<kBlocks, kThreads, 0, streams[i]>>>(memory[i]);
      check(cudaStreamEndCapture(streams[i], &graph));
      check(cudaGraphInstantiate(&ready[i], graph, 0));
    }
    for (int i = 0; i < 2 * launches; ++i) {
      check(cudaSetDevice(i % 2));
      check(cudaGraphLaunch(ready[i % 2], streams[i % 2]));
    }
    for (int i = 0; i < 2; ++i) {
      check(cudaSetDevice(i));
      std::printf("%u\n", sum(memory[i]));
    }
    check(cudaSetDevice(0));
  } else if (mode == "threads") {  // each on the default stream, which is its own where compiled so
    std::vector<std::thread> threads;
    unsigned sums[4];
    for (unsigned& own : sums) {
      threads.emplace_back([&own, launches] {
        unsigned* mine = make();
        for (int i = 0; i < launches; ++i) add_one<false><<<kBlocks, kThreads>>>(mine);
        own = sum(mine);
      });
    }
    for (auto& thread : threads) thread.join();
    for (const unsigned own : sums) std::printf("%u\n", own);
  } else if (mode == "window") {  // a part of the run, as the program says
    for (int i = 0; i < 3 * launches; ++i) {
      if (i == launches) warplens::start_recording();
      if (i == 2 * launches) warplens::stop_recording();
      add_one<false><<<kBlocks, kThreads>>>(p);
    }
  } else if (mode == "close") {
    const int own = open("own.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (int i = 0; i < launches; ++i) add_one<false><<<kBlocks, kThreads>>>(p);
    check(cudaDeviceSynchronize());
    usleep(300000);  // the launches have been written by then
    if (write(own, "mine", 4) != 4) return 4;
    close_its_files();
    const int more = open("more.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (int i = 0; i < launches; ++i) add_one<false><<<kBlocks, kThreads>>>(p);
    check(cudaDeviceSynchronize());
    usleep(300000);
    if (write(more, "mine", 4) != 4) return 4;
  } else if (mode == "peer") {
    check(cudaSetDevice(1));
    unsigned* other = make(2);
    check(cudaSetDevice(0));
    check(cudaDeviceEnablePeerAccess(1, 0));
    for (int i = 0; i < launches; ++i) add_other<false><<<kBlocks, kThreads>>>(p, other);
  }
  check(cudaGetLastError());
  std::printf("%u\n", sum(p));
  return 0;
}
