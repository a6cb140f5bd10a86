// Sums of ints, by shuffles and by a tree in shared memory.
#include <cstddef>

#include "tools/cuda/block_sum.h"
#include "tools/cuda/dynamic_shared.h"

namespace lockstep {
namespace {

constexpr unsigned kAllLanes = 0xffffffff;

__device__ int ThreadSum(const int* input, int64_t n) {
  int sum = 0;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += step) {
    sum += input[i];
  }
  return sum;
}

__device__ int WarpSum(int sum) {
  for (int delta = warpSize / 2; delta > 0; delta /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, delta);
  }
  return sum;
}

__global__ void BlockSumKernel(const int* input, int64_t n, int* total) {
  __shared__ int warp_sums[32];
  const unsigned lane = threadIdx.x % warpSize;
  const unsigned warp = threadIdx.x / warpSize;
  const int sum = WarpSum(ThreadSum(input, n));
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (warp > 0) return;
  const int all = WarpSum(lane < blockDim.x / warpSize ? warp_sums[lane] : 0);
  if (lane == 0) atomicAdd(total, all);
}

__global__ void SharedMemorySumKernel(const int* input, int64_t n, int* total) {
  LOCKSTEP_DYNAMIC_SHARED(int, sums);
  sums[threadIdx.x] = ThreadSum(input, n);
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(total, sums[0]);
}

}  // namespace

cudaError_t BlockSum(const int* input, int64_t n, int* total, int blocks,
                     int threads, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, BlockSumKernel, input, n, total);
}

cudaError_t BlockSumInSharedMemory(const int* input, int64_t n, int* total,
                                   int blocks, int threads,
                                   cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = threads * sizeof(int);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, SharedMemorySumKernel, input, n, total);
}

}  // namespace lockstep
