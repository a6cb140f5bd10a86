// Reductions over the threads of a block. Only .cu files include this header.
#ifndef LOCKSTEP_MODELS_CUDA_BLOCK_REDUCE_H_
#define LOCKSTEP_MODELS_CUDA_BLOCK_REDUCE_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {

// The most threads of a block that calls CombineBlock.
inline constexpr int kMostReduceThreads = 128;

// Returns the threads of a block that reduces this many elements: a power of
// two.
inline int ReduceThreads(int64_t elements) {
  int threads = 32;
  while (threads < kMostReduceThreads && threads < elements) threads *= 2;
  return threads;
}

// Combines the threads' values in an order that depends only on their number,
// which ReduceThreads gives. All threads of the block call it, and all receive
// the result. shared: [kMostReduceThreads] of shared memory.
template <typename T, typename Combine>
__device__ inline T CombineBlock(T value, T* shared, const Combine& combine) {
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = value;
  __syncthreads();
  for (int distance = static_cast<int>(blockDim.x) / 2; distance > 0;
       distance /= 2) {
    if (thread < distance) {
      shared[thread] = combine(shared[thread], shared[thread + distance]);
    }
    __syncthreads();
  }
  const T result = shared[0];
  __syncthreads();
  return result;
}

struct Highest {
  // A NaN wins, so that it reaches the result.
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_BLOCK_REDUCE_H_
