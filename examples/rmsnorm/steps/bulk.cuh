// Bulk copies between global and shared memory, and the barrier in shared memory that a copy completes (sm_90 on).
// Addresses and sizes are multiples of 16 bytes. One thread asks for a copy; PTX ISA 8.0, "cp.async.bulk".
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "bulk copies need compute capability 9.0 or newer"
#endif

using Arrival = unsigned long long;

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Set up a barrier for one copy, and let the copy engine see it. Others may wait on it after a __syncthreads.
__device__ inline void init(Arrival& arrival) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&arrival)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Ask for a copy from global to shared memory.
__device__ inline void bulk_load(void* shared, const void* global, unsigned bytes, Arrival& arrival) {
  const unsigned barrier = shared_address(&arrival);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// Ask for a copy from global memory to the L2. Nothing is read yet: what is written there later is seen.
__device__ inline void prefetch(const void* global, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Wait until a copy has arrived: the first, third, fifth of this barrier with parity 0, the others with 1.
__device__ inline void await(Arrival& arrival, unsigned parity) {
  unsigned done = 0;
  while (!done) {
    asm volatile(
        "{\n"
        "  .reg .pred p;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(shared_address(&arrival)), "r"(parity)
        : "memory");
  }
}

// What this thread wrote to shared memory is seen by copies that are asked for after the next barrier.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Ask for a copy from shared to global memory, and wait until it is done.
__device__ inline void bulk_store(void* global, const void* shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
