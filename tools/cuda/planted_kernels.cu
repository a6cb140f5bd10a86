// The controls of kernel_budgets.py: kernels that each break their budget
// (kernel_budgets.txt) in one way.
#include <cuda_runtime.h>

namespace lockstep {

// Keeps twice as many numbers as there are registers.
__global__ void __launch_bounds__(1024, 1)
    PlantedSpillsKernel(const float4* x, float4* y, int n) {
  float4 kept[32];
#pragma unroll
  for (int k = 0; k < 32; ++k) kept[k] = x[k * 1024 + threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    const float4 in = x[i];
#pragma unroll
    for (int k = 0; k < 32; ++k) kept[k].x += in.x * kept[(k + 1) % 32].w;
#pragma unroll
    for (int k = 0; k < 32; ++k) kept[k].w += in.y * kept[(k + 3) % 32].z;
  }
#pragma unroll
  for (int k = 0; k < 32; ++k) y[k * 1024 + threadIdx.x] = kept[k];
}

// Divides each element.
__global__ void PlantedDivisionKernel(const float4* x, float4* y, int n,
                                      float by) {
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) {
    const float4 in = x[i];
    y[i] = {in.x / by, in.y / by, in.z / by, in.w / by};
  }
}

// Writes a vector element by element.
__global__ void PlantedNarrowStoreKernel(const float4* x, float* y, int n) {
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) {
    const float4 in = x[i];
    y[4 * i] = in.x;
    y[4 * i + 1] = in.y;
    y[4 * i + 2] = in.z;
    y[4 * i + 3] = in.w;
  }
}

__global__ void PlantedRegistersKernel(float* y) { y[threadIdx.x] *= 2; }

__global__ void PlantedUnknownKernel(float* y) { y[threadIdx.x] *= 2; }

__global__ void PlantedLooseKernel(float* y) { y[threadIdx.x] *= 2; }

}  // namespace lockstep
