// The stand-in's host side refuses what the CUDA runtime refuses.
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

__global__ void Nothing() {}

cudaError_t Launch(dim3 grid, dim3 block, size_t shared = 0) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  return cudaLaunchKernelEx(&config, Nothing);
}

TEST(LaunchConfigTest, TakesTheLimits) {
  EXPECT_EQ(Launch(1, 1024), cudaSuccess);
  EXPECT_EQ(Launch(1, dim3(4, 4, 64)), cudaSuccess);
  EXPECT_EQ(Launch(1, dim3(1, 1024, 1)), cudaSuccess);
  EXPECT_EQ(Launch(dim3(1, 65535, 1), 1), cudaSuccess);
  EXPECT_EQ(Launch(1, 1, 48 << 10), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(LaunchConfigTest, RefusesMore) {
  for (const auto& [grid, block] : std::vector<std::array<dim3, 2>>{
           {dim3(0), dim3(1)},
           {dim3(1, 0, 1), dim3(1)},
           {dim3(1), dim3(0)},
           {dim3(1), dim3(32, 0, 1)},
           {dim3(1), dim3(1025)},
           {dim3(1), dim3(32, 33, 1)},
           {dim3(1), dim3(1, 1, 65)},
           {dim3(1), dim3(0x80000000, 2, 0x80000000)},
           {dim3(1, 65536, 1), dim3(1)},
           {dim3(1, 1, 65536), dim3(1)},
           {dim3(0x80000000), dim3(1)}}) {
    EXPECT_EQ(Launch(grid, block), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  EXPECT_EQ(Launch(1, 1, (48 << 10) + 1), cudaErrorInvalidValue);
}

TEST(LaunchConfigTest, RefusesAttributesAndDeadStreams) {
  cudaLaunchConfig_t config = {};
  config.numAttrs = 1;
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing), cudaErrorNotSupported);
  config.numAttrs = 0;
  ASSERT_EQ(cudaStreamCreate(&config.stream), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(config.stream), cudaSuccess);
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing),
            cudaErrorInvalidResourceHandle);
}

TEST(MemoryTest, FreshMemoryIsNan) {
  float* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 3 * sizeof(float)), cudaSuccess);
  float host[3] = {};
  ASSERT_EQ(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (const float value : host) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(MemoryTest, CopiesAndSets) {
  std::byte* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(device, "abcdefgh", 8, cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(cudaMemset(device + 2, 'x', 3), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device, device + 6, 2, cudaMemcpyDeviceToDevice),
            cudaSuccess);
  char host[8] = {};
  EXPECT_EQ(cudaMemcpy(host, device, 8, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(std::memcmp(host, "ghxxxfgh", 8), 0);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(MemoryTest, PinnedMemoryIsNotDeviceMemory) {
  float* device = nullptr;
  float* pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(float)), cudaSuccess);
  EXPECT_TRUE(std::isnan(*pinned));
  *pinned = 3;
  EXPECT_EQ(cudaMemcpy(device, pinned, sizeof(float), cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpy(pinned, device, sizeof(float), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(MemoryTest, RefusesRangesThatAreNotDeviceMemory) {
  std::byte host[16] = {};
  std::byte* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(device, host, 17, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device + 16, host, 1, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device - 1, 1, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device, 16, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device + 16, host, 0, cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

TEST(StreamTest, RefusesDeadStreams) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(nullptr, 0, 1, stream),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
}

TEST(EventTest, TimesWhatWasRecorded) {
  cudaEvent_t start = nullptr;
  cudaEvent_t end = nullptr;
  cudaEvent_t untimed = nullptr;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming),
            cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end),
            cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {start, end, untimed}) {
    EXPECT_EQ(cudaEventRecord(event), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(nullptr, event), cudaSuccess);
  }
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, untimed),
            cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {start, end, untimed}) {
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  }
}

TEST(DeviceTest, ThereIsOne) {
  int count = -1;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
  cudaDeviceProp properties;
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "stand-in");
  int threads = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerBlock, 0),
            cudaSuccess);
  EXPECT_EQ(threads, properties.maxThreadsPerBlock);
}

}  // namespace
}  // namespace lockstep
