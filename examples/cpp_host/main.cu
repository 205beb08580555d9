// A program that knows nothing of warplens: it applies softmax again and again, by launches or by replays of a graph.
//   softmax [--graph] [LAUNCHES]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "softmax.h"

#define CHECK(call)                                                        \
  do {                                                                     \
    const cudaError_t status = (call);                                     \
    if (status != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
      return 1;                                                            \
    }                                                                      \
  } while (false)

int main(int argc, char** argv) {
  const bool graph = argc > 1 && std::strcmp(argv[1], "--graph") == 0;
  const int launches = argc > 1 + graph ? std::atoi(argv[1 + graph]) : 40;
  const int rows = 528, columns = 4096;
  std::vector<float> host(size_t(rows) * columns);
  for (size_t i = 0; i < host.size(); ++i) host[i] = float(i % 977) * 0.01f;
  float *in, *out;
  CHECK(cudaMalloc(&in, host.size() * sizeof(float)));
  CHECK(cudaMalloc(&out, host.size() * sizeof(float)));
  CHECK(cudaMemcpy(in, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  if (graph) {
    cudaGraph_t captured;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    softmax_forward(in, out, rows, columns, stream);
    CHECK(cudaStreamEndCapture(stream, &captured));
    CHECK(cudaGraphInstantiate(&executable, captured, 0));
    for (int i = 0; i < launches; ++i) CHECK(cudaGraphLaunch(executable, stream));
  } else {
    for (int i = 0; i < launches; ++i) softmax_forward(in, out, rows, columns, stream);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemcpy(host.data(), out, host.size() * sizeof(float), cudaMemcpyDeviceToHost));
  unsigned long long sum = 0;  // of the bits, so that runs can be compared to the last of them
  for (const float value : host) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    sum = sum * 31 + bits;
  }
  std::printf("%d launches, checksum %016llx\n", launches, sum);
  return 0;
}
