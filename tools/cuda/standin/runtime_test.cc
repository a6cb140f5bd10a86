// The stand-in's host side refuses what the CUDA runtime and NCCL refuse,
// orders the work of streams and events as the runtime does, in every schedule,
// and waits and is aborted as NCCL is.
#include <cuda_runtime.h>
#include <nccl.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tools/cuda/standin/control.h"

namespace lockstep {
namespace {

using standin::DroppedWaits;
using standin::LiveNcclCommunicators;
using standin::Order;
using standin::SetDeviceCount;
using standin::SetNcclFaults;
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
  EXPECT_TRUE(std::isnan(*pinned));
  *pinned = 3;
  Ok(cudaMemcpy(device, pinned, sizeof(float), cudaMemcpyHostToDevice));
  EXPECT_EQ(cudaMemcpy(pinned, device, sizeof(float), cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  Ok(cudaFreeHost(pinned));
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

// By which collectives/nccl sees whether ranks share one.
TEST(DeviceTest, ThereAreAsManyAsWereSetAndEachHasItsUuid) {
  for (const int count : {1, 3}) {
    SetDeviceCount(count);
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
  SetDeviceCount(1);
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

  // One stream writes a, the other copies a to b: with a wait or without.
  // Returns b.
  int Copied(cudaStream_t writer, cudaStream_t reader, bool waits) {
    Ok(cudaMemset(memory_, 0, 2));
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
  Ok(cudaStreamWaitEvent(older_, event_));  // No record.
  Ok(cudaEventRecord(event_, newer_));
  Ok(cudaStreamWaitEvent(older_, event_));
  Ok(cudaEventRecord(event_, older_));
  Ok(cudaStreamSynchronize(older_));
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

// NCCL: the ranks are one thread's here, so nothing blocks.

ncclResult_t Poll(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  Ok(ncclCommGetAsyncError(comm, &state));
  return state;
}

// Two ranks with a device, a stream and four floats each.
class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    SetDeviceCount(2);
    Ok(ncclGetUniqueId(&id_));
    for (int rank = 0; rank < 2; ++rank) {
      Ok(cudaSetDevice(rank));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ASSERT_EQ(ncclCommInitRankConfig(&comms_[rank], 2, id_, rank, &config),
                ncclInProgress);
      Ok(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking));
      Ok(cudaMalloc(&data_[rank], 4 * sizeof(float)));
      if (rank == 0) {
        EXPECT_EQ(Poll(comms_[0]), ncclInProgress);
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      Ok(Poll(comms_[rank]));
      const float values[4] = {1.0f + rank, 2, 3, 4};
      Write(rank, values);
    }
  }
  void TearDown() override {
    for (int rank = 0; rank < 2; ++rank) {
      if (comms_[rank] != nullptr) Abort(rank);
      Ok(cudaStreamSynchronize(streams_[rank]));
      Ok(cudaStreamDestroy(streams_[rank]));
      Ok(cudaFree(data_[rank]));
    }
    EXPECT_EQ(LiveNcclCommunicators(), 0);
    Ok(cudaSetDevice(0));
    SetDeviceCount(1);
    SetNcclFaults({});
  }

  void Write(int rank, const float* values) {
    Ok(cudaMemcpy(data_[rank], values, 4 * sizeof(float),
                  cudaMemcpyHostToDevice));
  }
  std::vector<float> Read(int rank) {
    std::vector<float> values(4);
    Ok(cudaMemcpy(values.data(), data_[rank], 4 * sizeof(float),
                  cudaMemcpyDeviceToHost));
    return values;
  }
  ncclResult_t AllReduce(int rank, size_t count = 4) {
    return ncclAllReduce(data_[rank], data_[rank], count, ncclFloat32, ncclSum,
                         comms_[rank], streams_[rank]);
  }
  // Puts what was asked for on the stream.
  void Submit(int rank) {
    EXPECT_EQ(Poll(comms_[rank]), ncclInProgress);
    Ok(Poll(comms_[rank]));
  }
  void Abort(int rank) {
    Ok(ncclCommAbort(comms_[rank]));
    comms_[rank] = nullptr;
  }

  ncclUniqueId id_;
  ncclComm_t comms_[2] = {};
  cudaStream_t streams_[2] = {};
  float* data_[2] = {};
};

TEST_F(NcclTest, CallsMeet) {
  EXPECT_EQ(AllReduce(0), ncclInProgress);
  Submit(0);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  EXPECT_EQ(AllReduce(1), ncclInProgress);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  Submit(1);
  for (const int rank : {0, 1}) {
    Ok(cudaStreamQuery(streams_[rank]));
    EXPECT_EQ(Read(rank), (std::vector<float>{3, 4, 6, 8}));
  }
}

TEST_F(NcclTest, TakesNothingBeforeItHasTakenTheLast) {
  EXPECT_EQ(AllReduce(0), ncclInProgress);
  EXPECT_EQ(AllReduce(0), ncclInvalidUsage);
  Submit(0);
  EXPECT_EQ(AllReduce(0), ncclInProgress);
}

TEST_F(NcclTest, RefusesBadArguments) {
  float host[4] = {};
  const auto reduce = [&](void* data, ncclDataType_t type,
                          cudaStream_t stream) {
    return ncclAllReduce(data, data, 4, type, ncclSum, comms_[0], stream);
  };
  EXPECT_EQ(reduce(host, ncclFloat32, streams_[0]), ncclInvalidArgument);
  EXPECT_EQ(reduce(data_[0], ncclFloat64, streams_[0]), ncclInvalidArgument);
  EXPECT_EQ(reduce(data_[0], static_cast<ncclDataType_t>(0), streams_[0]),
            ncclInvalidArgument);
  EXPECT_EQ(ncclSend(data_[0], 4, ncclFloat32, 2, comms_[0], streams_[0]),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  ncclComm_t other = nullptr;
  ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclCommInitRankConfig(&other, 2, id_, 0, &blocking),
            ncclInvalidArgument);
}

// Both send and then receive: in a group they meet, one after the other not.
TEST_F(NcclTest, MessagesOfAGroupGoTogether) {
  for (const int rank : {0, 1}) {
    Ok(ncclGroupStart());
    Ok(ncclSend(data_[rank], 2, ncclFloat32, 1 - rank, comms_[rank],
                streams_[rank]));
    Ok(ncclRecv(data_[rank] + 2, 2, ncclFloat32, 1 - rank, comms_[rank],
                streams_[rank]));
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
    Submit(rank);
  }
  EXPECT_EQ(Read(0), (std::vector<float>{1, 2, 2, 2}));
  EXPECT_EQ(Read(1), (std::vector<float>{2, 2, 1, 2}));
}

TEST_F(NcclTest, MessagesOneByOneWaitForEachOther) {
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ncclSend(data_[rank], 2, ncclFloat32, 1 - rank, comms_[rank],
                       streams_[rank]),
              ncclInProgress);
    Submit(rank);
    EXPECT_EQ(ncclRecv(data_[rank] + 2, 2, ncclFloat32, 1 - rank, comms_[rank],
                       streams_[rank]),
              ncclInProgress);
    Submit(rank);
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ(cudaStreamQuery(streams_[rank]), cudaErrorNotReady);
  }
}

TEST_F(NcclTest, CallsThatDoNotFitNeverEndUntilAborted) {
  EXPECT_EQ(AllReduce(0, 4), ncclInProgress);
  EXPECT_EQ(AllReduce(1, 3), ncclInProgress);
  Submit(0);
  Submit(1);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(cudaStreamQuery(streams_[rank]), cudaErrorNotReady);
    Abort(rank);
    Ok(cudaStreamQuery(streams_[rank]));
  }
  EXPECT_EQ(Read(0), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(NcclTest, FaultsAreOfTheirRank) {
  SetNcclFaults({.stalled_rank = 0,
                 .failing_rank = 1,
                 .error_from = 0,
                 .error = ncclRemoteError});
  Ok(Poll(comms_[1]));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(AllReduce(rank), ncclInProgress);
    EXPECT_EQ(Poll(comms_[rank]), ncclInProgress);
  }
  Ok(Poll(comms_[0]));
  EXPECT_EQ(Poll(comms_[1]), ncclRemoteError);
  EXPECT_EQ(cudaStreamQuery(streams_[1]), cudaErrorNotReady);
}

}  // namespace
}  // namespace lockstep
