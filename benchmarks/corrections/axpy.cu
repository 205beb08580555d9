// z = a x + y, four vectors of 128 bits a thread, marked: memory alone is busy.
// In: x and y. Out: z, of as many vectors as there are threads, times 4.
// Launch: grid = any, block = whole warps.
#include <warplens/warplens.cuh>

WARPLENS_SITES(axpy, begin, load, combine, store);

template <bool kTrace>
__global__ void axpy_vectors(const float4* x, const float4* y, float4* z, float a) {
  warplens::Recorder<axpy, kTrace> rec;
  rec.phase(axpy::begin);
  const size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x * 4 + threadIdx.x;
#pragma unroll 1
  for (unsigned i = 0; i < 4; ++i) {
    const size_t at = first + i * blockDim.x;
    rec.phase(axpy::load);
    const float4 u = x[at], v = y[at];
    rec.phase(axpy::combine);
    const float4 w = {a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w};
    rec.phase(axpy::store);
    z[at] = w;
  }
}
