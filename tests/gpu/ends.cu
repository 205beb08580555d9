// A program that ends in the ways that programs end, with a marked kernel: `ends MODE LAUNCHES`. Prints a sum of what
// the kernel wrote. See test_ends.py.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <warplens/host.hpp>

WARPLENS_SITES(adding, load, store);

template <bool kTrace>
__global__ void add_one(unsigned* p) {
  warplens::Recorder<adding, kTrace> rec;
  rec.phase(adding::load);
  const unsigned old = p[blockIdx.x * blockDim.x + threadIdx.x];
  rec.phase(adding::store);
  p[blockIdx.x * blockDim.x + threadIdx.x] = old + 1;
}
WARPLENS_PAIR(add_one<true>, add_one<false>);

__global__ void wild(unsigned* p) { *(unsigned*)8 = *p; }

constexpr int kBlocks = 8, kThreads = 64;

unsigned* make() {
  unsigned* p = nullptr;
  if (cudaMalloc(&p, kBlocks * kThreads * sizeof *p) != cudaSuccess) std::exit(3);
  cudaMemset(p, 0, kBlocks * kThreads * sizeof *p);
  return p;
}

unsigned sum(const unsigned* p) {
  static unsigned host[kBlocks * kThreads];
  if (cudaMemcpy(host, p, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) std::exit(4);
  unsigned out = 0;
  for (const unsigned value : host) out += value;
  return out;
}

void run(unsigned* p, int launches) {
  for (int i = 0; i < launches; ++i) add_one<false><<<kBlocks, kThreads>>>(p);
}

void print(unsigned value) {
  std::printf("%u\n", value);
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "run";
  const int launches = argc > 2 ? std::atoi(argv[2]) : 8;
  if (mode == "fork") {
    const pid_t child = fork();
    if (child == 0) {  // it has no CUDA yet, and gets its own
      unsigned* own = make();
      run(own, launches);
      std::exit(sum(own) == unsigned(launches) * kBlocks * kThreads ? 7 : 8);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 7) return 1;
  }
  unsigned* p = make();
  if (mode == "exhaust") {  // to the last MiB; the kernel's code must be there by then
    cudaFuncAttributes loaded;
    if (cudaFuncGetAttributes(&loaded, add_one<false>) != cudaSuccess) return 2;
    void* rest = nullptr;
    for (std::size_t size = std::size_t{64} << 30; size >= std::size_t{1} << 20;) {
      if (cudaMalloc(&rest, size) != cudaSuccess) size /= 2;
    }
    (void)cudaGetLastError();
  }
  run(p, launches);
  print(sum(p));
  if (mode == "contexts") {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto create = reinterpret_cast<int (*)(void**, unsigned, int)>(dlsym(library, "cuCtxCreate_v2"));
    void* context = nullptr;
    if (create(&context, 0, 0) != 0) return 2;
    unsigned* other = make();
    run(other, launches);
    print(sum(other));
  }
  if (mode == "devices") {
    cudaSetDevice(1);
    unsigned* other = make();
    run(other, launches);
    print(sum(other));
  }
  if (mode == "late-fork") {  // a child that has the parent's CUDA in its memory, and ends as programs do
    const pid_t child = fork();
    if (child == 0) std::exit(7);
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 7) return 1;
    run(p, launches);
    print(sum(p));
  }
  if (mode == "_exit" || mode == "exec" || mode == "crash") usleep(300000);  // the launches have been written by then
  if (mode == "_exit") _exit(5);
  if (mode == "exec") execl(argv[0], argv[0], "run", argv[2], nullptr);
  if (mode == "crash") {
    wild<<<1, 1>>>(p);
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    std::fflush(stdout);
    std::abort();
  }
  return cudaGetLastError() == cudaSuccess ? 0 : 6;
}
