// A kernel that uses what kernels use (static and dynamic shared memory,
// barriers, shuffles, atomics): the subject of the stand-in's own test.
#ifndef LOCKSTEP_TOOLS_CUDA_BLOCK_SUM_H_
#define LOCKSTEP_TOOLS_CUDA_BLOCK_SUM_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {

// Adds input[0, n) to *total, with `blocks` blocks of `threads` threads, a
// multiple of 32. input, total: device memory. The sums are of ints, so their
// order does not show. Only enqueues; returns the launch error.
cudaError_t BlockSum(const int* input, int64_t n, int* total, int blocks,
                     int threads, cudaStream_t stream);

// The same, by a tree in dynamic shared memory; `threads` is a power of two.
cudaError_t BlockSumInSharedMemory(const int* input, int64_t n, int* total,
                                   int blocks, int threads,
                                   cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_TOOLS_CUDA_BLOCK_SUM_H_
