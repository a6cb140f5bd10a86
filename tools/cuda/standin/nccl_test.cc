// The stand-in for NCCL refuses what NCCL refuses, waits as it waits, and lets
// go when it is aborted. The ranks are one thread's here: nothing blocks.
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "tools/cuda/standin/control.h"
#include "tools/cuda/standin/nccl_faults.h"

namespace lockstep::standin {
namespace {

ncclResult_t Poll(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  return state;
}

// Two ranks with a device, a stream and four floats each.
class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    SetDeviceCount(2);
    ASSERT_EQ(ncclGetUniqueId(&id_), ncclSuccess);
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ASSERT_EQ(ncclCommInitRankConfig(&comms_[rank], 2, id_, rank, &config),
                ncclInProgress);
      ASSERT_EQ(
          cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking),
          cudaSuccess);
      ASSERT_EQ(cudaMalloc(&data_[rank], 4 * sizeof(float)), cudaSuccess);
      if (rank == 0) {
        EXPECT_EQ(Poll(comms_[0]), ncclInProgress);
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(Poll(comms_[rank]), ncclSuccess);
      const float values[4] = {1.0f + rank, 2, 3, 4};
      Write(rank, values);
    }
  }
  void TearDown() override {
    for (int rank = 0; rank < 2; ++rank) {
      if (comms_[rank] != nullptr) Abort(rank);
      EXPECT_EQ(cudaStreamSynchronize(streams_[rank]), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(streams_[rank]), cudaSuccess);
      EXPECT_EQ(cudaFree(data_[rank]), cudaSuccess);
    }
    EXPECT_EQ(LiveNcclCommunicators(), 0);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    SetDeviceCount(1);
    SetNcclFaults({});
  }

  void Write(int rank, const float* values) {
    EXPECT_EQ(cudaMemcpy(data_[rank], values, 4 * sizeof(float),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<float> Read(int rank) {
    std::vector<float> values(4);
    EXPECT_EQ(cudaMemcpy(values.data(), data_[rank], 4 * sizeof(float),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }
  ncclResult_t AllReduce(int rank, size_t count = 4) {
    return ncclAllReduce(data_[rank], data_[rank], count, ncclFloat32, ncclSum,
                         comms_[rank], streams_[rank]);
  }
  // Puts what was asked for on the stream.
  void Submit(int rank) {
    EXPECT_EQ(Poll(comms_[rank]), ncclInProgress);
    EXPECT_EQ(Poll(comms_[rank]), ncclSuccess);
  }
  void Abort(int rank) {
    EXPECT_EQ(ncclCommAbort(comms_[rank]), ncclSuccess);
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
    EXPECT_EQ(cudaStreamQuery(streams_[rank]), cudaSuccess);
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
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclSend(data_[rank], 2, ncclFloat32, 1 - rank, comms_[rank],
                       streams_[rank]),
              ncclSuccess);
    EXPECT_EQ(ncclRecv(data_[rank] + 2, 2, ncclFloat32, 1 - rank, comms_[rank],
                       streams_[rank]),
              ncclSuccess);
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
    EXPECT_EQ(cudaStreamQuery(streams_[rank]), cudaSuccess);
  }
  EXPECT_EQ(Read(0), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(NcclTest, FaultsAreOfTheirRank) {
  SetNcclFaults({.stalled_rank = 0,
                 .failing_rank = 1,
                 .error_from = 0,
                 .error = ncclRemoteError});
  EXPECT_EQ(Poll(comms_[1]), ncclSuccess);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(AllReduce(rank), ncclInProgress);
    EXPECT_EQ(Poll(comms_[rank]), ncclInProgress);
  }
  EXPECT_EQ(Poll(comms_[0]), ncclSuccess);
  EXPECT_EQ(Poll(comms_[1]), ncclRemoteError);
  EXPECT_EQ(cudaStreamQuery(streams_[1]), cudaErrorNotReady);
}

}  // namespace
}  // namespace lockstep::standin
