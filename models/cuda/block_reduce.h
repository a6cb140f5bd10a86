// Reductions over the threads of a block. Only .cu files include this header.
#ifndef LOCKSTEP_MODELS_CUDA_BLOCK_REDUCE_H_
#define LOCKSTEP_MODELS_CUDA_BLOCK_REDUCE_H_

#include <cuda_runtime.h>

namespace lockstep {

// The threads of a block that calls CombineBlock; a power of two.
inline constexpr int kReduceThreads = 128;

// Combines the threads' values in an order that depends on nothing else. All
// threads of the block call it, and all receive the result. shared:
// [kReduceThreads] of shared memory.
template <typename T, typename Combine>
__device__ inline T CombineBlock(T value, T* shared, const Combine& combine) {
  const int thread = static_cast<int>(threadIdx.x);
  shared[thread] = value;
  __syncthreads();
  for (int distance = kReduceThreads / 2; distance > 0; distance /= 2) {
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
