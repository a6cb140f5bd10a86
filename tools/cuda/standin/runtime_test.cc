// The stand-in's host side refuses what the CUDA runtime refuses, and orders
// the work of streams and events as it does, in every schedule.
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tools/cuda/standin/control.h"

namespace lockstep {
namespace {

using standin::DroppedWaits;
using standin::Order;
using standin::SetDeviceCount;
using standin::SetSchedule;

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

// Two streams, an event, and device memory of one byte each for a and b.
class QueueTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&older_, cudaStreamNonBlocking),
              cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&newer_, cudaStreamNonBlocking),
              cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
              cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, 2), cudaSuccess);
    ASSERT_EQ(cudaMemset(memory_, 0, 2), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(older_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(newer_), cudaSuccess);
    SetSchedule({});
  }

  // One stream writes a, the other copies a to b: with a wait or without.
  // Returns b.
  int Copied(cudaStream_t writer, cudaStream_t reader, bool waits) {
    EXPECT_EQ(cudaMemset(memory_, 0, 2), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(memory_, 7, 1, writer), cudaSuccess);
    if (waits) {
      EXPECT_EQ(cudaEventRecord(event_, writer), cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(reader, event_), cudaSuccess);
    }
    EXPECT_EQ(cudaMemcpyAsync(memory_ + 1, memory_, 1, cudaMemcpyDeviceToDevice,
                              reader),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    unsigned char b = 0;
    EXPECT_EQ(cudaMemcpy(&b, memory_ + 1, 1, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return b;
  }

  cudaStream_t older_ = nullptr;
  cudaStream_t newer_ = nullptr;
  cudaEvent_t event_ = nullptr;
  std::byte* memory_ = nullptr;
};

TEST_F(QueueTest, WaitsHoldInEverySchedule) {
  for (const Order order :
       {Order::kAtOnce, Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    SetSchedule({.order = order});
    EXPECT_EQ(Copied(older_, newer_, /*waits=*/true), 7);
    EXPECT_EQ(Copied(newer_, older_, /*waits=*/true), 7);
  }
}

TEST_F(QueueTest, MissingWaitsShow) {
  SetSchedule({.order = Order::kNewestStreamFirst});
  EXPECT_EQ(Copied(older_, newer_, /*waits=*/false), 0);
  SetSchedule({.order = Order::kOldestStreamFirst});
  EXPECT_EQ(Copied(newer_, older_, /*waits=*/false), 0);
}

TEST_F(QueueTest, DroppedWaitsShow) {
  SetSchedule({.order = Order::kNewestStreamFirst,
               .dropped_waits = DroppedWaits::kOfNewerStreams});
  EXPECT_EQ(Copied(older_, newer_, /*waits=*/true), 0);
  SetSchedule({.order = Order::kOldestStreamFirst,
               .dropped_waits = DroppedWaits::kOfOlderStreams});
  EXPECT_EQ(Copied(newer_, older_, /*waits=*/true), 0);
  SetSchedule({.order = Order::kOldestStreamFirst,
               .dropped_waits = DroppedWaits::kOfNewerStreams});
  EXPECT_EQ(Copied(newer_, older_, /*waits=*/true), 7);
}

TEST_F(QueueTest, QueriesLetWorkRun) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  ASSERT_EQ(cudaEventRecord(event_, older_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(newer_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
}

// A later record does not move a wait for an earlier one.
TEST_F(QueueTest, WaitsAreForTheRecordBefore) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  ASSERT_EQ(cudaStreamWaitEvent(older_, event_), cudaSuccess);  // No record.
  ASSERT_EQ(cudaEventRecord(event_, newer_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(older_, event_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, older_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(older_), cudaSuccess);
}

TEST_F(QueueTest, DestroyedStreamFinishesItsWork) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory_, 7, 1, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  unsigned char a = 0;
  EXPECT_EQ(cudaMemcpy(&a, memory_, 1, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(a, 7);
}

TEST(DevicesTest, HaveTheirOwnUuids) {
  SetDeviceCount(3);
  std::set<std::vector<char>> uuids;
  for (int device = 0; device < 3; ++device) {
    cudaDeviceProp properties;
    ASSERT_EQ(cudaGetDeviceProperties(&properties, device), cudaSuccess);
    uuids.insert({properties.uuid.bytes, properties.uuid.bytes + 16});
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  }
  EXPECT_EQ(uuids.size(), 3);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  SetDeviceCount(1);
}

}  // namespace
}  // namespace lockstep
