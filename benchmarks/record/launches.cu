// What recording costs a program: host time of a launch, and the memory of the process. See run.py.
//   launches KERNEL COUNT EVENTS PAUSE HOW     KERNEL: marked, other; EVENTS a launch; PAUSE in us behind each, in
//   which the thread does as HOW says: sleep, or spin
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#ifndef WITHOUT
#include <warplens/host.hpp>

WARPLENS_SITES(steps, step);

template <bool kTrace>
__global__ void marked(float* p, int turns) {
  warplens::Recorder<steps, kTrace> rec;
  float v = p[threadIdx.x];
  for (int i = 0; i < turns; ++i) {
    rec.phase(steps::step);
    for (int k = 0; k < 16; ++k) v = v * 1.0001f + 0.5f;
  }
  p[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
WARPLENS_PAIR(marked<true>, marked<false>);
#else
#include <cuda_runtime.h>
template <bool kTrace>
__global__ void marked(float* p, int turns) {
  float v = p[threadIdx.x];
  for (int i = 0; i < turns; ++i) {
    for (int k = 0; k < 16; ++k) v = v * 1.0001f + 0.5f;
  }
  p[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
#endif

__global__ void other(float* p) { p[threadIdx.x] += 1.0f; }

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "other";
  const int count = argc > 2 ? std::atoi(argv[2]) : 1000, events = argc > 3 ? std::atoi(argv[3]) : 0,
            pause = argc > 4 ? std::atoi(argv[4]) : 0;
  const bool spins = argc > 5 && std::string(argv[5]) == "spin";
  constexpr int kBlocks = 132, kThreads = 128;
  const int turns = events / (kBlocks * kThreads / 32);
  float* p;
  if (cudaMalloc(&p, sizeof(float) * kBlocks * kThreads) != cudaSuccess) return 1;
  cudaMemset(p, 0, sizeof(float) * kBlocks * kThreads);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  using Clock = std::chrono::steady_clock;
  std::vector<double> us;
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (i % 64 == 63 && which == "other") cudaStreamSynchronize(stream);  // or the queue's length is what is measured
    const auto before = Clock::now();
    if (which == "other") {
      other<<<kBlocks, kThreads, 0, stream>>>(p);
    } else {
      marked<false><<<kBlocks, kThreads, 0, stream>>>(p, turns);
    }
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
    const auto until = Clock::now() + std::chrono::microseconds(pause);
    if (pause > 0 && !spins) std::this_thread::sleep_until(until);
    while (spins && Clock::now() < until) {
    }
  }
  cudaStreamSynchronize(stream);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(us.begin(), us.end());
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"launches\": %d, \"p50_us\": %.3f, \"p90_us\": %.3f, \"max_us\": %.1f, \"seconds\": %.4f, "
      "\"resident_bytes\": %lld, \"error\": \"%s\"}\n",
      count, us[us.size() / 2], us[us.size() * 9 / 10], us.back(), seconds,
      static_cast<long long>(usage.ru_maxrss) * 1024, cudaGetErrorString(cudaGetLastError()));
  return 0;
}
