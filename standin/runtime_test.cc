// Tests that the stand-in's host side refuses what the CUDA runtime refuses,
// and orders the work of streams and events as the runtime does, in every
// schedule.
#include <cuda_runtime.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::Counts;
using standin::CountsOfThisThread;
using standin::DroppedWaits;
using standin::LivePinnedBytes;
using standin::Order;
using standin::ResetCounts;
using standin::SetDevices;
using standin::SetSchedule;

// Expects cudaSuccess, or ncclSuccess.
void Ok(int result, const char* file = __builtin_FILE(),
        int line = __builtin_LINE()) {
  if (result != 0) ADD_FAILURE_AT(file, line) << "error " << result;
}

__global__ void Nothing() {}

cudaError_t Launch(dim3 grid, dim3 block) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  return cudaLaunchKernelEx(&config, Nothing);
}

TEST(LaunchConfigTest, TakesTheLimitsAndRefusesMore) {
  for (const auto& [grid, block] :
       std::vector<std::array<dim3, 2>>{{dim3(1), dim3(1024)},
                                        {dim3(1), dim3(4, 4, 64)},
                                        {dim3(1), dim3(1, 1024, 1)},
                                        {dim3(1, 65535, 1), dim3(1)}}) {
    Ok(Launch(grid, block));
  }
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
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    Ok(cudaGetLastError());
  }
}

TEST(LaunchConfigTest, RefusesWhatIsNotModelledAndDeadStreams) {
  cudaLaunchConfig_t config = {};
  config.numAttrs = 1;
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing), cudaErrorNotSupported);
  config.numAttrs = 0;
  config.dynamicSmemBytes = 1;
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing), cudaErrorNotSupported);
  config.dynamicSmemBytes = 0;
  Ok(cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking));
  Ok(cudaLaunchKernelEx(&config, Nothing));
  Ok(cudaStreamDestroy(config.stream));
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing),
            cudaErrorInvalidResourceHandle);
}

TEST(MemoryTest, FreshMemoryIsNan) {
  float* device = nullptr;
  Ok(cudaMalloc(&device, 3 * sizeof(float)));
  float host[3] = {};
  Ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
  for (const float value : host) EXPECT_TRUE(std::isnan(value));
  Ok(cudaFree(device));
}

TEST(MemoryTest, PinnedMemoryIsNotDeviceMemory) {
  float* device = nullptr;
  float* pinned = nullptr;
  Ok(cudaMalloc(&device, sizeof(float)));
  Ok(cudaMallocHost(&pinned, sizeof(float)));
  EXPECT_EQ(LivePinnedBytes(), sizeof(float));
  EXPECT_TRUE(std::isnan(*pinned));
  *pinned = 3;
  Ok(cudaMemcpy(device, pinned, sizeof(float), cudaMemcpyHostToDevice));
  EXPECT_EQ(cudaMemcpy(pinned, device, sizeof(float), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  Ok(cudaFreeHost(pinned));
  EXPECT_EQ(LivePinnedBytes(), 0);
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
  Ok(cudaFreeHost(nullptr));
  Ok(cudaFree(device));
}

TEST(MemoryTest, RefusesRangesThatAreNotDeviceMemory) {
  std::byte host[16] = {};
  std::byte* device = nullptr;
  Ok(cudaMalloc(&device, 16));
  EXPECT_EQ(cudaMemcpy(device, host, 17, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device + 16, host, 1, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device - 1, 1, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device, 16, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(host, 0, 1), cudaErrorInvalidValue);
  Ok(cudaMemcpy(device + 16, host, 0, cudaMemcpyHostToDevice));
  EXPECT_EQ(cudaFree(host), cudaErrorInvalidValue);
  Ok(cudaFree(device));
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  Ok(cudaFree(nullptr));
}

TEST(StreamTest, RefusesDeadStreams) {
  cudaStream_t stream = nullptr;
  Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Ok(cudaStreamQuery(stream));
  Ok(cudaStreamSynchronize(stream));
  Ok(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(nullptr, 0, 1, stream),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
}

TEST(EventTest, TimesWhatWasRecorded) {
  cudaEvent_t start = nullptr;
  cudaEvent_t end = nullptr;
  cudaEvent_t untimed = nullptr;
  Ok(cudaEventCreate(&start));
  Ok(cudaEventCreate(&end));
  Ok(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end),
            cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {start, end, untimed}) {
    Ok(cudaEventRecord(event));
    Ok(cudaEventSynchronize(event));
    Ok(cudaStreamWaitEvent(nullptr, event));
  }
  Ok(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, untimed),
            cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {start, end, untimed}) {
    Ok(cudaEventDestroy(event));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  }
}

TEST(CountsTest, HostWaitsAreCountedAndQueriesAreNot) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  std::byte* device = nullptr;
  std::byte host = {};
  Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Ok(cudaEventCreate(&event));
  Ok(cudaMalloc(&device, 2));
  ResetCounts();
  Ok(cudaMemset(device, 0, 2));
  Ok(cudaMemcpy(device, device + 1, 1, cudaMemcpyDeviceToDevice));
  Ok(cudaEventRecord(event, stream));
  Ok(cudaStreamWaitEvent(stream, event));
  Ok(cudaEventQuery(event));
  Ok(cudaStreamQuery(stream));
  EXPECT_EQ(Counts().host_waits, 0);
  int waits = 0;
  const auto waited = [&](cudaError_t error) {
    Ok(error);
    EXPECT_EQ(Counts().host_waits, ++waits);
  };
  waited(cudaStreamSynchronize(stream));
  waited(cudaEventSynchronize(event));
  waited(cudaDeviceSynchronize());
  waited(cudaMemcpy(device, &host, 1, cudaMemcpyHostToDevice));
  waited(cudaMemcpy(&host, device, 1, cudaMemcpyDeviceToHost));
  waited(cudaFree(device));
  std::thread([] {
    EXPECT_EQ(CountsOfThisThread().host_waits, 0);
    Ok(cudaDeviceSynchronize());
    EXPECT_EQ(CountsOfThisThread().host_waits, 1);
  }).join();
  EXPECT_EQ(CountsOfThisThread().host_waits, waits);
  EXPECT_EQ(Counts().host_waits, waits + 1);
  ResetCounts();
  EXPECT_EQ(CountsOfThisThread().host_waits, 0);
  Ok(cudaEventDestroy(event));
  Ok(cudaStreamDestroy(stream));
}

// collectives/nccl uses the UUIDs to see whether ranks share a device.
TEST(DeviceTest, ThereAreAsManyAsWereSetAndEachHasItsUuid) {
  for (const int count : {1, 3}) {
    SetDevices({.count = count});
    int found = -1;
    Ok(cudaGetDeviceCount(&found));
    EXPECT_EQ(found, count);
    std::set<std::vector<char>> uuids;
    for (int device = 0; device < count; ++device) {
      cudaDeviceProp properties;
      Ok(cudaGetDeviceProperties(&properties, device));
      uuids.insert({properties.uuid.bytes, properties.uuid.bytes + 16});
      Ok(cudaSetDevice(device));
      Ok(cudaGetDevice(&found));
      EXPECT_EQ(found, device);
    }
    EXPECT_EQ(uuids.size(), count);
    EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  }
  Ok(cudaSetDevice(0));
  SetDevices({.count = 1});
}

TEST(DeviceTest, KernelsAndRecordsNeedAStreamOfTheirDevice) {
  SetDevices({.count = 2});
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 1;
  cudaEvent_t events[2] = {};
  unsigned char* memory = nullptr;
  Ok(cudaMalloc(&memory, 1));
  for (const int device : {0, 1}) {
    Ok(cudaSetDevice(device));
    Ok(cudaEventCreate(&events[device]));
  }
  Ok(cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking));
  Ok(cudaLaunchKernelEx(&config, Nothing));
  Ok(cudaSetDevice(0));
  EXPECT_EQ(cudaLaunchKernelEx(&config, Nothing),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(events[0], config.stream),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  // CUDA accepts these for every device.
  Ok(cudaEventRecord(events[1], config.stream));
  Ok(cudaStreamWaitEvent(nullptr, events[1]));
  Ok(cudaMemcpyAsync(memory, "7", 1, cudaMemcpyHostToDevice, config.stream));
  Ok(cudaStreamSynchronize(config.stream));
  Ok(cudaEventQuery(events[1]));
  Ok(cudaStreamDestroy(config.stream));
  for (const cudaEvent_t event : events) Ok(cudaEventDestroy(event));
  Ok(cudaFree(memory));
  SetDevices({.count = 1});
}

// Two streams, an event, and device memory of one byte each for a and b.
class QueueTest : public testing::Test {
 protected:
  void SetUp() override {
    Ok(cudaStreamCreateWithFlags(&older_, cudaStreamNonBlocking));
    Ok(cudaStreamCreateWithFlags(&newer_, cudaStreamNonBlocking));
    Ok(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    Ok(cudaMalloc(&memory_, 2));
    Ok(cudaMemset(memory_, 0, 2));
  }
  void TearDown() override {
    Ok(cudaDeviceSynchronize());
    Ok(cudaFree(memory_));
    Ok(cudaEventDestroy(event_));
    Ok(cudaStreamDestroy(older_));
    Ok(cudaStreamDestroy(newer_));
    SetSchedule({});
  }

  // One stream writes a, the other copies a to b, with a wait or without.
  // Returns b.
  int Copied(cudaStream_t writer, cudaStream_t reader, bool waits) {
    Ok(cudaMemset(memory_, 0, 2));
    Ok(cudaDeviceSynchronize());
    Ok(cudaMemsetAsync(memory_, 7, 1, writer));
    if (waits) {
      Ok(cudaEventRecord(event_, writer));
      Ok(cudaStreamWaitEvent(reader, event_));
    }
    Ok(cudaMemcpyAsync(memory_ + 1, memory_, 1, cudaMemcpyDeviceToDevice,
                       reader));
    Ok(cudaDeviceSynchronize());
    unsigned char b = 0;
    Ok(cudaMemcpy(&b, memory_ + 1, 1, cudaMemcpyDeviceToHost));
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

// A later record does not move a wait for an earlier one.
TEST_F(QueueTest, WaitsAreForTheRecordBefore) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  Ok(cudaStreamWaitEvent(older_, event_));  // No record yet.
  Ok(cudaEventRecord(event_, newer_));
  Ok(cudaStreamWaitEvent(older_, event_));
  Ok(cudaEventRecord(event_, older_));
  // A query runs all work that may run, and does not hang.
  if (cudaStreamQuery(older_) != cudaSuccess) {
    ADD_FAILURE() << "the older stream waits for its own later record";
    std::abort();  // Its work would block every later test.
  }
}

// The newer stream runs last, unless its priority is higher.
TEST_F(QueueTest, StreamsOfHigherPriorityRunFirst) {
  int least = -1;
  int greatest = -1;
  Ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT_LT(greatest, least);
  SetSchedule({.order = Order::kOldestStreamFirst});
  for (const int priority : {least, greatest - 1}) {
    cudaStream_t urgent = nullptr;
    Ok(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, priority));
    int found = 1;
    Ok(cudaStreamGetPriority(urgent, &found));
    EXPECT_EQ(found, priority == least ? least : greatest);
    EXPECT_EQ(Copied(urgent, older_, /*waits=*/false),
              priority == least ? 0 : 7);
    Ok(cudaStreamDestroy(urgent));
  }
}

// Without an event, the default stream is in order with blocking streams, but
// not with other streams. The latter shows the bug of a cudaMemset before a
// kernel on a non-blocking stream.
TEST_F(QueueTest, TheDefaultStreamWaitsForBlockingStreamsAlone) {
  cudaStream_t blocking = nullptr;
  Ok(cudaStreamCreateWithFlags(&blocking, 0));
  for (const Order order :
       {Order::kAtOnce, Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    SetSchedule({.order = order});
    EXPECT_EQ(Copied(nullptr, blocking, /*waits=*/false), 7);
    EXPECT_EQ(Copied(blocking, nullptr, /*waits=*/false), 7);
    EXPECT_EQ(Copied(nullptr, newer_, /*waits=*/true), 7);
    EXPECT_EQ(Copied(newer_, nullptr, /*waits=*/true), 7);
  }
  SetSchedule({.order = Order::kNewestStreamFirst});
  EXPECT_EQ(Copied(nullptr, newer_, /*waits=*/false), 0);
  SetSchedule({.order = Order::kOldestStreamFirst});
  EXPECT_EQ(Copied(newer_, nullptr, /*waits=*/false), 0);
  Ok(cudaStreamDestroy(blocking));
}

// A stream waits for the default stream of the device that was current when the
// stream was made.
TEST_F(QueueTest, EachDeviceHasItsDefaultStream) {
  SetDevices({.count = 2});
  SetSchedule({.order = Order::kNewestStreamFirst});
  for (const int device : {0, 1}) {
    Ok(cudaSetDevice(1));
    cudaStream_t blocking = nullptr;
    Ok(cudaStreamCreateWithFlags(&blocking, 0));
    Ok(cudaSetDevice(device));
    Ok(cudaMemsetAsync(memory_, 0, 2));
    Ok(cudaDeviceSynchronize());
    Ok(cudaMemsetAsync(memory_, 7, 1));
    Ok(cudaMemcpyAsync(memory_ + 1, memory_, 1, cudaMemcpyDeviceToDevice,
                       blocking));
    Ok(cudaStreamSynchronize(blocking));
    unsigned char b = 1;
    Ok(cudaMemcpy(&b, memory_ + 1, 1, cudaMemcpyDeviceToHost));
    EXPECT_EQ(b, device == 1 ? 7 : 0);
    Ok(cudaStreamDestroy(blocking));
  }
  Ok(cudaSetDevice(0));
  SetDevices({.count = 1});
}

// A copy to or from memory that is not pinned has accessed it when the call
// returns.
TEST_F(QueueTest, PageableCopiesDoNotWaitForTheStreamToTakeThem) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  unsigned char* pinned = nullptr;
  Ok(cudaMallocHost(&pinned, 2));
  unsigned char pageable[2] = {1, 1};
  pinned[0] = 1;
  for (unsigned char* const host : {pageable, pinned}) {
    const bool is_pinned = host == pinned;
    ResetCounts();
    Ok(cudaMemcpyAsync(memory_, host, 1, cudaMemcpyHostToDevice, older_));
    host[0] = 2;
    host[1] = 9;
    EXPECT_EQ(Counts().host_waits, 0);
    Ok(cudaMemcpyAsync(host + 1, memory_, 1, cudaMemcpyDeviceToHost, older_));
    EXPECT_EQ(Counts().host_waits, is_pinned ? 0 : 1);
    EXPECT_EQ(host[1], is_pinned ? 9 : 1);
    Ok(cudaStreamSynchronize(older_));
    EXPECT_EQ(host[1], is_pinned ? 2 : 1);
  }
  Ok(cudaFreeHost(pinned));
}

// A thread that only queries must not wait forever.
TEST_F(QueueTest, OtherThreadsWaitForWorkThatIsHeldBack) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  Ok(cudaEventRecord(event_, older_));
  const auto waiter = std::async(std::launch::async, [&] {
    EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
    Ok(cudaEventSynchronize(event_));
  });
  EXPECT_EQ(waiter.wait_for(std::chrono::seconds(20)),
            std::future_status::ready)
      << "the other thread's wait does not end";
  Ok(cudaStreamQuery(older_));  // Ends the other thread's wait if it hangs.
}

// A thread may wait for one that queries an event for it without pauses.
TEST_F(QueueTest, QueriesWithoutPausesRunWorkThatIsHeldBack) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  Ok(cudaMemsetAsync(memory_, 7, 1, newer_));
  Ok(cudaEventRecord(event_, older_));
  std::thread([&] {
    for (int query = 0; query < 20; ++query) {
      EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(memory_[0], std::byte{0});
    int queries = 1;
    while (cudaEventQuery(event_) == cudaErrorNotReady) ++queries;
    EXPECT_GE(queries, 10);
    EXPECT_LT(queries, 1000);
  }).join();
  EXPECT_EQ(memory_[0], std::byte{7});
}

// Any work on the device may use the memory, whichever thread put it there.
TEST_F(QueueTest, FreeingWaitsForTheDevice) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  std::byte* freed = nullptr;
  Ok(cudaMalloc(&freed, 1));
  std::thread([&] {
    cudaStream_t stream = nullptr;
    Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Ok(cudaMemsetAsync(freed, 7, 1, stream));
    Ok(cudaMemcpyAsync(memory_, freed, 1, cudaMemcpyDeviceToDevice, stream));
    Ok(cudaStreamDestroy(stream));
  }).join();
  Ok(cudaFree(freed));
  EXPECT_EQ(memory_[0], std::byte{7});
}

TEST_F(QueueTest, QueriesLetWorkRun) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  Ok(cudaEventRecord(event_, older_));
  Ok(cudaStreamQuery(older_));
  Ok(cudaEventRecord(event_, older_));
  Ok(cudaEventQuery(event_));
}

TEST_F(QueueTest, DestroyedStreamFinishesItsWork) {
  SetSchedule({.order = Order::kOldestStreamFirst});
  cudaStream_t stream = nullptr;
  Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Ok(cudaEventRecord(event_, newer_));
  Ok(cudaStreamWaitEvent(stream, event_));
  Ok(cudaMemsetAsync(memory_, 7, 1, stream));
  Ok(cudaStreamDestroy(stream));
  Ok(cudaDeviceSynchronize());
  unsigned char a = 0;
  Ok(cudaMemcpy(&a, memory_, 1, cudaMemcpyDeviceToHost));
  EXPECT_EQ(a, 7);
}

}  // namespace
}  // namespace lockstep
