// The stand-in runs an ordinary kernel and gets its sums right.
#include "tools/cuda/block_sum.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Sum = cudaError_t (*)(const int*, int64_t, int*, int, int, cudaStream_t);

// The sum of 1 to n as the kernel computes it.
int SumOnDevice(Sum sum, int n, int blocks, int threads) {
  std::vector<int> host(n);
  std::iota(host.begin(), host.end(), 1);
  int* input = nullptr;
  int* total = nullptr;
  EXPECT_EQ(cudaMalloc(&input, n * sizeof(int)), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&total, sizeof(int)), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy(input, host.data(), n * sizeof(int), cudaMemcpyHostToDevice),
      cudaSuccess);
  EXPECT_EQ(cudaMemset(total, 0, sizeof(int)), cudaSuccess);
  EXPECT_EQ(sum(input, n, total, blocks, threads, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  int result = -1;
  EXPECT_EQ(cudaMemcpy(&result, total, sizeof(int), cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(cudaFree(input), cudaSuccess);
  EXPECT_EQ(cudaFree(total), cudaSuccess);
  return result;
}

TEST(BlockSumTest, ShufflesAddEveryElementOnce) {
  for (const int n : {0, 1, 31, 32, 33, 1000, 5003}) {
    for (const int blocks : {1, 2, 5}) {
      for (const int threads : {32, 96, 256}) {
        EXPECT_EQ(SumOnDevice(BlockSum, n, blocks, threads), n * (n + 1) / 2)
            << n << " ints, " << blocks << " blocks of " << threads;
      }
    }
  }
}

TEST(BlockSumTest, SharedMemoryAddsEveryElementOnce) {
  for (const int n : {0, 1, 31, 1000, 5003}) {
    for (const int blocks : {1, 2, 5}) {
      for (const int threads : {1, 2, 64}) {
        EXPECT_EQ(SumOnDevice(BlockSumInSharedMemory, n, blocks, threads),
                  n * (n + 1) / 2)
            << n << " ints, " << blocks << " blocks of " << threads;
      }
    }
  }
}

TEST(BlockSumTest, LargestBlockToo) {
  EXPECT_EQ(SumOnDevice(BlockSum, 5003, 1, 1024), 5003 * 5004 / 2);
  EXPECT_EQ(SumOnDevice(BlockSumInSharedMemory, 5003, 1, 1024),
            5003 * 5004 / 2);
}

}  // namespace
}  // namespace lockstep
