// RMSNorm of rows as a torch extension, with marks. See README.md.
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

#include <warplens/host.hpp>

WARPLENS_SITES(rmsnorm, load_square, wait_sum, scale);

// One row a block of 256 threads.
template <bool kTrace>
__global__ void __launch_bounds__(256, 8)
    rmsnorm_rows(const float* x, const float* weight, float* y, int columns, float eps) {
  warplens::Recorder<rmsnorm, kTrace> rec;
  rec.phase(rmsnorm::load_square);
  __shared__ float partial[8];
  const float* row = x + size_t(blockIdx.x) * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] * row[i];
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  rec.wait(rmsnorm::wait_sum);
  __syncthreads();
  rec.phase(rmsnorm::scale);
  sum = 0.0f;
  for (int w = 0; w < 8; ++w) sum += partial[w];
  const float factor = rsqrtf(sum / columns + eps);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    y[size_t(blockIdx.x) * columns + i] = row[i] * factor * weight[i];
  }
}

WARPLENS_PAIR(rmsnorm_rows<true>, rmsnorm_rows<false>);

torch::Tensor rmsnorm(torch::Tensor x, torch::Tensor weight, double eps) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.scalar_type() == torch::kFloat,
              "x: expected contiguous float CUDA");
  auto y = torch::empty_like(x);
  const int columns = static_cast<int>(x.size(-1));
  const auto rows = static_cast<unsigned>(x.numel() / columns);
  rmsnorm_rows<false><<<rows, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), weight.data_ptr<float>(), y.data_ptr<float>(), columns, static_cast<float>(eps));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
