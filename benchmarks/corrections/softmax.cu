// Softmax over rows of 4096 values, a block a row, marked: two reductions over the block.
// In: x (rows x 4096). Out: y, of x's shape.
// Launch: grid = rows, block = 256.
#include <warplens/warplens.cuh>

#define SOFTMAX_SITES(X)                      \
  X(load, "load", phase, "")                  \
  X(reduce_max, "reduce_max", phase, "")      \
  X(barrier, "barrier", wait, "partials")     \
  X(exponentiate, "exponentiate", phase, "")  \
  X(reduce_sum, "reduce_sum", phase, "")      \
  X(barrier_2, "barrier_2", wait, "partials") \
  X(store, "store", phase, "")
WARPLENS_SITES_FROM(softmax, SOFTMAX_SITES);

constexpr unsigned kValues = 16, kThreads = 256, kWarps = kThreads / 32;

template <bool kTrace>
__global__ void softmax_rows(const float* x, float* y) {
  warplens::Recorder<softmax, kTrace> rec;
  rec.phase(softmax::load);
  __shared__ float maxima[kWarps], sums[kWarps];
  const size_t first = static_cast<size_t>(blockIdx.x) * kValues * kThreads + threadIdx.x;
  const unsigned warp = threadIdx.x / 32;
  float values[kValues];
  float most = -3.4e38f;
#pragma unroll
  for (unsigned i = 0; i < kValues; ++i) values[i] = x[first + i * kThreads];
#pragma unroll
  for (unsigned i = 0; i < kValues; ++i) most = fmaxf(most, values[i]);

  rec.phase(softmax::reduce_max);
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
  }
  maxima[warp] = most;
  rec.wait(softmax::barrier);
  __syncthreads();

  rec.phase(softmax::exponentiate);
#pragma unroll
  for (unsigned i = 0; i < kWarps; ++i) most = fmaxf(most, maxima[i]);
  float sum = 0.0f;
#pragma unroll
  for (unsigned i = 0; i < kValues; ++i) {
    values[i] = __expf(values[i] - most);
    sum += values[i];
  }

  rec.phase(softmax::reduce_sum);
  for (unsigned distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  sums[warp] = sum;
  rec.wait(softmax::barrier_2);
  __syncthreads();

  rec.phase(softmax::store);
  float total = 0.0f;
#pragma unroll
  for (unsigned i = 0; i < kWarps; ++i) total += sums[i];
#pragma unroll
  for (unsigned i = 0; i < kValues; ++i) y[first + i * kThreads] = __fdividef(values[i], total);
}
