// A program whose third launch hangs: warp 1 of block 2 waits for a flag that never comes, after 40 marks. It says
// "hangs", and then waits for the GPU as programs do. Compiled for each policy. See test_hung_programs.py.
//   hung [copy|end]: copy, which waits in a copy to pageable memory; end, which waits for nothing: the program ends
//   while its last launch takes some seconds
#include <cstdio>
#include <string>
#include <warplens/host.hpp>

WARPLENS_SITES(flags, before, counting, waiting, behind);

template <bool kTrace>
__global__ void wait_for_flag(volatile unsigned* flag, unsigned wanted, long long cycles) {
  warplens::Recorder<flags, kTrace> rec;
  rec.phase(flags::before);
  if (blockIdx.x == 2 && threadIdx.x >= 32) {
    for (int i = 0; i < 40; ++i) rec.phase(flags::counting);
    rec.phase(flags::waiting);
    while (*flag < wanted) {
    }
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
  }
  rec.phase(flags::behind);
}
WARPLENS_PAIR(wait_for_flag<true>, wait_for_flag<false>);

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  unsigned *flag = nullptr, two = 2;
  if (cudaMalloc(&flag, sizeof *flag) != cudaSuccess) return 3;
  if (cudaMemcpy(flag, &two, sizeof two, cudaMemcpyHostToDevice) != cudaSuccess) return 3;
  if (mode == "end") {
    wait_for_flag<true><<<4, 64>>>(flag, 1, 12'000'000'000ll);  // 6 s at 2 GHz
    return cudaGetLastError() == cudaSuccess ? 0 : 4;
  }
  for (unsigned launch = 1; launch <= 4; ++launch) wait_for_flag<true><<<4, 64>>>(flag, launch, 0);
  std::puts("hangs");
  std::fflush(stdout);
  const bool copies = mode == "copy";
  const cudaError_t status =
      copies ? cudaMemcpy(&two, flag, sizeof two, cudaMemcpyDeviceToHost) : cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorName(status));
  return 0;
}
