// Streams and events order the stand-in's work as the CUDA runtime's do, in
// every schedule.
#include <cuda_runtime.h>

#include <cstddef>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tools/cuda/standin/devices.h"
#include "tools/cuda/standin/schedule.h"

namespace lockstep::standin {
namespace {

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
}  // namespace lockstep::standin
