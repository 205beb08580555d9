// CUDA C++ kernels of the corpus: waits and arrivals as hand-written kernels have them. Compiled by NVRTC and nvcc
// (make.py), never run. Asynchronous copies and barriers are written as PTX, in the way that CUTLASS writes them.

extern "C" __global__ void guarded(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float total = 0;
  for (int k = 0; k < 64; ++k) total += x[i + k * n] * 0.5f;
  y[i] = total;
}

extern "C" __global__ __launch_bounds__(256, 2) void reduce(const float* x, float* y, int n) {
  __shared__ float part[8];
  float total = 0;
  for (int i = threadIdx.x; i < n; i += 256) total += x[blockIdx.x * n + i];
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x < 32) {
    total = threadIdx.x < 8 ? part[threadIdx.x] : 0.0f;
    for (int step = 4; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x == 0) y[blockIdx.x] = total;
  }
}

extern "C" __global__ void pipelined(const float4* x, float4* y, int steps) {
  extern __shared__ float4 stages[];
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&stages[threadIdx.x]));
  const unsigned size = blockDim.x * 16u;
  float4 total = {0, 0, 0, 0};
  for (int k = 0; k < 2; ++k) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + k * size),
                 "l"(x + k * blockDim.x + threadIdx.x));
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int k = 0; k < steps; ++k) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    const float4 v = stages[(k % 3) * blockDim.x + (threadIdx.x ^ 1)];
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    const float4* next = x + (k + 2) * blockDim.x + threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + (k + 2) % 3 * size), "l"(next));
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

// A flag in global memory, as grids that wait for each other have it; with a pause between questions.
extern "C" __global__ void after_flag(volatile int* flag, int* y, int wanted) {
  if (threadIdx.x == 0) {
    while (*flag != wanted) {
    }
  }
  __syncthreads();
  while (*flag < wanted + 1) __nanosleep(100);
  y[blockIdx.x * blockDim.x + threadIdx.x] = wanted;
  asm volatile("bar.arrive 3, 512;" ::: "memory");
}

__device__ __noinline__ float apart(float x, int n) {
  for (int k = 0; k < n; ++k) {
    __syncthreads();
    x = x * 1.5f + 1.0f;
  }
  return x;
}

extern "C" __global__ void calls(float* y, int n) {
  __syncthreads();
  y[threadIdx.x] = apart(y[threadIdx.x], n);
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred P1;\nLAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ bool elected() {
  unsigned chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
}

// A producer warp that loads by TMA's bulk copies, and consumers that give its buffers back.
extern "C" __global__ __launch_bounds__(160) void produced(const char* x, float* y, int steps) {
  __shared__ alignas(128) float buffers[4][1024];
  __shared__ alignas(8) unsigned long long full[4], empty[4];
  const unsigned first_full = static_cast<unsigned>(__cvta_generic_to_shared(full));
  const unsigned first_empty = static_cast<unsigned>(__cvta_generic_to_shared(empty));
  if (threadIdx.x == 0) {
    for (int s = 0; s < 4; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(first_full + 8 * s));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 4;" ::"r"(first_empty + 8 * s));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  __syncthreads();
  const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (warp == 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    for (int k = 0; k < steps; ++k) {
      const unsigned s = k % 4;
      wait_for(first_empty + 8 * s, (k / 4 & 1) ^ 1);
      if (elected()) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(buffers[s]));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" ::"r"(first_full + 8 * s) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 4096, [%2];" ::"r"(to),
            "l"(x + k * 4096), "r"(first_full + 8 * s)
            : "memory");
      }
      __syncwarp();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
    float total = 0;
    for (int k = 0; k < steps; ++k) {
      const unsigned s = k % 4;
      wait_for(first_full + 8 * s, k / 4 & 1);
      total += buffers[s][threadIdx.x * 7 % 1024];
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      if (threadIdx.x % 32 == 0) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(first_empty + 8 * s) : "memory");
      }
      __syncwarp();
    }
    y[blockIdx.x * 128 + threadIdx.x] = total;
  }
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

extern "C" __global__ __cluster_dims__(2, 1, 1) void clustered(float* y) {
  y[threadIdx.x] = 1.0f;
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  y[threadIdx.x + 1024] = y[threadIdx.x];
}
#endif
