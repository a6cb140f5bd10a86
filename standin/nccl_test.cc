// Tests NCCL's stand-in: ranks' calls meet, wait and are aborted as NCCL's are,
// and its faults are those that were planted.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"
#include "standin/include/device_code.h"

namespace lockstep {
namespace {

using standin::Counts;
using standin::LiveNcclCommunicators;
using standin::NcclFaults;
using standin::ResetCounts;
using standin::SetDevices;
using standin::SetNcclFaults;

// Expects cudaSuccess, or ncclSuccess.
void Ok(int result, const char* file = __builtin_FILE(),
        int line = __builtin_LINE()) {
  if (result != 0) ADD_FAILURE_AT(file, line) << "error " << result;
}

ncclResult_t Poll(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  Ok(ncclCommGetAsyncError(comm, &state));
  return state;
}

// Two ranks with a device, a stream and four floats each. A rank that waits for
// the other rank runs in a thread.
class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    SetDevices({.count = 2});
    for (int rank = 0; rank < 2; ++rank) {
      Ok(cudaSetDevice(rank));
      Ok(cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking));
      const float values[4] = {1.0f + rank, 2, 3, 4};
      Ok(cudaMalloc(&data_[rank], sizeof(values)));
      Ok(cudaMemcpy(data_[rank], values, sizeof(values),
                    cudaMemcpyHostToDevice));
    }
    Ok(ncclGetUniqueId(&id_));
    ForEachRank([this](int rank) { Ok(Init(rank)); });
    ResetCounts();
  }
  void TearDown() override {
    SetNcclFaults({});
    for (int rank = 0; rank < 2; ++rank) {
      if (comms_[rank] != nullptr) Ok(ncclCommAbort(comms_[rank]));
      Ok(cudaStreamSynchronize(streams_[rank]));
      Ok(cudaStreamDestroy(streams_[rank]));
      Ok(cudaFree(data_[rank]));
    }
    EXPECT_EQ(LiveNcclCommunicators(), 0);
    Ok(cudaSetDevice(0));
    SetDevices({.count = 1});
  }

  static void ForEachRank(const std::function<void(int)>& call) {
    std::thread other([&] {
      Ok(cudaSetDevice(1));
      call(1);
    });
    Ok(cudaSetDevice(0));
    call(0);
    other.join();
  }

  ncclResult_t Init(int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    return ncclCommInitRankConfig(&comms_[rank], 2, id_, rank, &config);
  }
  ncclResult_t AllReduce(int rank, size_t count = 1) {
    return ncclAllReduce(data_[rank], data_[rank], count, ncclFloat32, ncclSum,
                         comms_[rank], streams_[rank]);
  }
  void Destroy(int rank) {
    Ok(ncclCommDestroy(comms_[rank]));
    comms_[rank] = nullptr;
  }
  std::vector<float> ReadAll(int rank) {
    std::vector<float> values(4);
    Ok(cudaMemcpy(values.data(), data_[rank], 4 * sizeof(float),
                  cudaMemcpyDeviceToHost));
    return values;
  }
  float Read(int rank) { return ReadAll(rank).front(); }

  ncclUniqueId id_;
  ncclComm_t comms_[2] = {};
  cudaStream_t streams_[2] = {};
  float* data_[2] = {};
};

TEST_F(NcclTest, CallsMeet) {
  Ok(AllReduce(0, 4));
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  Ok(AllReduce(1, 4));
  for (const int rank : {0, 1}) {
    Ok(cudaStreamQuery(streams_[rank]));
    EXPECT_EQ(ReadAll(rank), (std::vector<float>{3, 4, 6, 8}));
  }
}

TEST_F(NcclTest, RefusesBadArguments) {
  float host[4] = {};
  const auto reduce = [&](void* data, ncclDataType_t type,
                          cudaStream_t stream) {
    return ncclAllReduce(data, data, 4, type, ncclSum, comms_[0], stream);
  };
  EXPECT_EQ(reduce(host, ncclFloat32, streams_[0]), ncclInvalidArgument);
  EXPECT_EQ(reduce(data_[0], ncclFloat64, streams_[0]), ncclInvalidArgument);
  // The stream of another device.
  EXPECT_EQ(reduce(data_[0], ncclFloat32, streams_[1]), ncclUnhandledCudaError);
  EXPECT_EQ(reduce(data_[0], static_cast<ncclDataType_t>(0), streams_[0]),
            ncclInvalidArgument);
  EXPECT_EQ(ncclSend(data_[0], 4, ncclFloat32, 2, comms_[0], streams_[0]),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  ncclComm_t other = nullptr;
  ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ncclCommInitRankConfig(&other, 2, id_, 0, &blocking),
            ncclInvalidUsage);  // Rank 0 exists already.
  EXPECT_EQ(ncclCommInitRankConfig(&other, 2, id_, 2, &blocking),
            ncclInvalidArgument);
  ncclConfig_t polled = NCCL_CONFIG_INITIALIZER;
  polled.blocking = 0;  // Not modelled.
  EXPECT_EQ(ncclCommInitRankConfig(&other, 2, id_, 0, &polled),
            ncclInvalidArgument);
}

// Both ranks send and then receive. In a group the calls meet; one after the
// other they do not.
TEST_F(NcclTest, MessagesOfAGroupGoTogether) {
  for (const int rank : {0, 1}) {
    Ok(ncclGroupStart());
    Ok(ncclSend(data_[rank], 2, ncclFloat32, 1 - rank, comms_[rank],
                streams_[rank]));
    Ok(ncclRecv(data_[rank] + 2, 2, ncclFloat32, 1 - rank, comms_[rank],
                streams_[rank]));
    Ok(ncclGroupEnd());
  }
  EXPECT_EQ(ReadAll(0), (std::vector<float>{1, 2, 2, 2}));
  EXPECT_EQ(ReadAll(1), (std::vector<float>{2, 2, 1, 2}));
}

TEST_F(NcclTest, MessagesOneByOneWaitForEachOther) {
  for (const int rank : {0, 1}) {
    Ok(ncclSend(data_[rank], 2, ncclFloat32, 1 - rank, comms_[rank],
                streams_[rank]));
    Ok(ncclRecv(data_[rank] + 2, 2, ncclFloat32, 1 - rank, comms_[rank],
                streams_[rank]));
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ(cudaStreamQuery(streams_[rank]), cudaErrorNotReady);
  }
}

TEST_F(NcclTest, CallsThatDoNotFitNeverEndUntilAborted) {
  Ok(AllReduce(0, 4));
  Ok(AllReduce(1, 3));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(cudaStreamQuery(streams_[rank]), cudaErrorNotReady);
    Ok(ncclCommAbort(comms_[rank]));
    comms_[rank] = nullptr;
    Ok(cudaStreamQuery(streams_[rank]));
  }
  EXPECT_EQ(ReadAll(0), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(NcclTest, FaultsAreOfTheirRank) {
  SetNcclFaults({.stalled_rank = 0,
                 .failing_rank = 1,
                 .error_from = 0,
                 .error = ncclRemoteError});
  Ok(Poll(comms_[1]));
  for (const int rank : {0, 1}) {
    Ok(AllReduce(rank));
  }
  Ok(Poll(comms_[0]));
  EXPECT_EQ(Poll(comms_[1]), ncclRemoteError);
  EXPECT_EQ(cudaStreamQuery(streams_[1]), cudaErrorNotReady);
}

TEST_F(NcclTest, CallsAreOnTheirStreamsWhenTheyReturn) {
  Ok(AllReduce(0));
  Ok(AllReduce(0));
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  Ok(ncclGroupStart());
  Ok(AllReduce(1));
  Ok(AllReduce(1));
  Ok(ncclGroupEnd());
  EXPECT_EQ(Counts().groups, 3);
  EXPECT_EQ(Counts().host_waits, 0);
  for (const int rank : {0, 1}) {
    Ok(cudaStreamQuery(streams_[rank]));
    EXPECT_EQ(Read(rank), 6);
  }
}

TEST_F(NcclTest, FinalizeWaitsForWhatIsOnStreams) {
  Ok(AllReduce(0));
  std::thread watchdog([&] {
    ncclResult_t state = ncclInternalError;
    Ok(ncclCommGetAsyncError(comms_[0], &state));
    Ok(state);
    Ok(ncclCommFinalize(comms_[0]));
    EXPECT_EQ(Read(0), 3);
  });
  Ok(AllReduce(1));
  watchdog.join();
  EXPECT_EQ(AllReduce(0), ncclInvalidUsage);
  Destroy(0);
  Destroy(1);  // Finalizes the communicator too.
  EXPECT_EQ(Counts().communicators_destroyed, 2);
  EXPECT_EQ(Counts().communicators_aborted, 0);
}

TEST_F(NcclTest, FinalizeOfWhatNeverEndsFailsAndAbortLetsGo) {
  SetNcclFaults({.finalize_limit = std::chrono::milliseconds(5)});
  Ok(AllReduce(0));
  EXPECT_EQ(ncclCommDestroy(comms_[0]), ncclInternalError);
  EXPECT_EQ(LiveNcclCommunicators(), 2);
  std::thread([&] { Ok(ncclCommAbort(comms_[0])); }).join();
  comms_[0] = nullptr;
  Ok(cudaStreamQuery(streams_[0]));
  EXPECT_EQ(Counts().communicators_aborted, 1);
}

TEST_F(NcclTest, AStalledRankIsWaitedForInInit) {
  SetNcclFaults({.stalled_init_rank = 1});
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  for (const int rank : {0, 1}) {
    std::thread([id, rank] {
      ncclComm_t comm = nullptr;
      Ok(cudaSetDevice(rank));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;
      ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      ADD_FAILURE() << "rank " << rank << " has returned";
    }).detach();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(LiveNcclCommunicators(), 2);  // The fixture's communicators.
}

// The id is that of the parent process.
TEST_F(NcclTest, ARankOfAnotherProcessIsRefused) {
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  const pid_t child = fork();
  if (child == 0) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const bool refused =
        ncclCommInitRankConfig(&comm, 2, id, 1, &config) == ncclInvalidUsage;
    const bool says_why = std::strstr(ncclGetLastError(nullptr),
                                      "must be threads of one process");
    _exit(refused && says_why ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(NcclTest, RanksOnOneDeviceAreRefused) {
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  ForEachRank([&](int rank) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    Ok(cudaSetDevice(0));
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config),
              ncclInvalidUsage);
  });
}

TEST_F(NcclTest, ALateRankStartsAfterSoManyQuestions) {
  constexpr int64_t kPolls = 20;
  SetNcclFaults({.late_rank = 1, .late_polls = kPolls});
  Ok(AllReduce(0));
  Ok(AllReduce(1));
  int64_t polls = 1;
  while (cudaStreamQuery(streams_[0]) == cudaErrorNotReady) ++polls;
  // Threads that the test above left behind query too.
  EXPECT_GT(polls, 1);
  EXPECT_LE(polls, kPolls);
  Ok(AllReduce(0));
  Ok(AllReduce(1));
  Ok(cudaStreamSynchronize(streams_[1]));  // Queries until the stream is done.
}

// A rank that replays its call meets a rank that makes the call anew each time.
TEST_F(NcclTest, CallsInGraphsMeetAtEachReplay) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Ok(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
  Ok(AllReduce(0));
  Ok(cudaStreamEndCapture(streams_[0], &graph));
  Ok(cudaGraphInstantiate(&executable, graph));
  Ok(cudaGraphDestroy(graph));
  Ok(AllReduce(0));
  for (int i = 0; i < 3; ++i) {
    if (i > 0) Ok(cudaGraphLaunch(executable, streams_[0]));
    EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
    Ok(AllReduce(1));
    Ok(cudaStreamQuery(streams_[0]));
    EXPECT_EQ(Read(0), 3 << i);
  }
  SetNcclFaults({.finalize_limit = std::chrono::milliseconds(5)});
  EXPECT_EQ(ncclCommFinalize(comms_[0]), ncclInternalError);
  std::thread destroys([&] { Ok(cudaGraphExecDestroy(executable)); });
  SetNcclFaults({});
  Ok(ncclCommFinalize(comms_[0]));
  destroys.join();
}

TEST_F(NcclTest, GraphsOfAnAbortedCommunicatorAreAFault) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Ok(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
  Ok(AllReduce(0));
  Ok(cudaStreamEndCapture(streams_[0], &graph));
  Ok(cudaGraphInstantiate(&executable, graph));
  Ok(cudaGraphLaunch(executable, streams_[0]));
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  SetNcclFaults({.finalize_limit = std::chrono::milliseconds(50)});
  // Withdraws the calls on streams, and waits for the graph.
  EXPECT_EQ(ncclCommAbort(comms_[0]), ncclInternalError);
  comms_[0] = nullptr;
  Ok(cudaStreamQuery(streams_[0]));
  Ok(cudaGraphLaunch(executable, streams_[0]));
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorLaunchFailure);
  Ok(cudaGraphExecDestroy(executable));
  Ok(cudaGraphDestroy(graph));
}

// The contents of a rank's window.
struct WindowContents {
  float sum;
  float term;
  int turns[2];           // How often each rank has come here.
  int block_turns[2][2];  // The same for each rank's blocks.
  int ends[2];            // How often each of the rank's blocks has ended.
};

__device__ WindowContents& WindowContentsOf(ncclWindow_t window, int peer) {
  return *static_cast<WindowContents*>(ncclGetLsaPointer(window, 0, peer));
}

__global__ void MeetRanks(ncclWindow_t window, int rank, int turn) {
  if (threadIdx.x == 0) {
    for (const int peer : {0, 1})
      WindowContentsOf(window, peer).turns[rank] = turn;
  }
  __syncthreads();
  const WindowContents& own = WindowContentsOf(window, rank);
  standin::WaitForMemory(
      [&own, turn] { return own.turns[0] >= turn && own.turns[1] >= turn; },
      {__FILE__, __LINE__});
}

// Each block meets the other rank's block of the same number twice.
__global__ void MeetInBlocks(ncclWindow_t window, int rank, int first_block) {
  const int block = first_block + static_cast<int>(blockIdx.x);
  WindowContents& own = WindowContentsOf(window, rank);
  for (const int turn : {1, 2}) {
    if (threadIdx.x == 0) {
      for (const int peer : {0, 1})
        WindowContentsOf(window, peer).block_turns[rank][block] = turn;
    }
    __syncthreads();
    standin::WaitForMemory(
        [&own, block, turn] {
          return own.block_turns[0][block] >= turn &&
                 own.block_turns[1][block] >= turn;
        },
        {__FILE__, __LINE__});
  }
  if (threadIdx.x == 0) ++own.ends[block];
}

__global__ void AddUp(ncclWindow_t window, int rank) {
  float sum = 0;
  for (const int peer : {0, 1}) sum += WindowContentsOf(window, peer).term;
  WindowContentsOf(window, rank).sum = sum;
}

// Each rank has a window.
class WindowTest : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    Ok(cudaStreamCreateWithFlags(&reader_, cudaStreamNonBlocking));
    ForEachRank([this](int rank) {
      Ok(ncclMemAlloc(&memory_[rank], sizeof(WindowContents)));
      Ok(cudaMemset(memory_[rank], 0, sizeof(WindowContents)));
      Ok(Register(rank, &windows_[rank]));
    });
  }
  void TearDown() override {
    standin::SetSchedule({});
    for (const int rank : {0, 1}) {
      Ok(ncclCommWindowDeregister(comms_[rank], windows_[rank]));
      Ok(ncclMemFree(memory_[rank]));
    }
    Ok(cudaStreamDestroy(reader_));
    NcclTest::TearDown();
  }

  ncclResult_t Register(int rank, ncclWindow_t* window) {
    return ncclCommWindowRegister(comms_[rank], memory_[rank],
                                  sizeof(WindowContents), window,
                                  NCCL_WIN_DEFAULT);
  }
  void Meet(int rank) {
    const cudaLaunchConfig_t config = Config(rank, 1);
    Ok(cudaLaunchKernelEx(&config, MeetRanks, windows_[rank], rank,
                          ++turns_[rank]));
  }
  void MeetBlocks(int rank, int first, int blocks) {
    const cudaLaunchConfig_t config = Config(rank, blocks);
    Ok(cudaLaunchKernelEx(&config, MeetInBlocks, windows_[rank], rank, first));
  }
  cudaLaunchConfig_t Config(int rank, int blocks) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = 64;
    config.stream = streams_[rank];
    Ok(cudaSetDevice(rank));
    return config;
  }
  // Gives the rank's term, waits for the other ranks' terms and adds them up.
  void Exchange(int rank, float term) {
    Ok(cudaMemcpyAsync(&static_cast<WindowContents*>(memory_[rank])->term,
                       &term, sizeof(term), cudaMemcpyHostToDevice,
                       streams_[rank]));
    Meet(rank);
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 1;
    config.stream = streams_[rank];
    Ok(cudaLaunchKernelEx(&config, AddUp, windows_[rank], rank));
  }
  float Sum(int rank) { return Contents(rank).sum; }
  WindowContents Contents(int rank) {
    WindowContents contents;
    Ok(cudaMemcpyAsync(&contents, memory_[rank], sizeof(contents),
                       cudaMemcpyDeviceToHost, reader_));
    Ok(cudaStreamSynchronize(reader_));
    return contents;
  }

  void* memory_[2] = {};
  ncclWindow_t windows_[2] = {};
  int turns_[2] = {};
  cudaStream_t reader_ = nullptr;  // Waits for no other stream.
};

TEST_F(WindowTest, KernelsReadPeersMemoryAfterABarrier) {
  for (const float term : {1.0f, 5.0f}) {
    Exchange(0, term);
    EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
    Exchange(1, 10 * term);
    for (const int rank : {0, 1}) {
      Ok(cudaStreamQuery(streams_[rank]));
      EXPECT_EQ(Sum(rank), 11 * term);
    }
    for (const int rank : {0, 1}) Meet(rank);  // Before the next terms.
  }
}

// The control: both ranks' second exchange does not wait, so rank 0 reads rank
// 1's old term.
TEST_F(WindowTest, ADroppedWaitShows) {
  standin::SetSchedule({.dropped_memory_wait = 1});
  for (const float term : {1.0f, 5.0f}) {
    for (const int rank : {0, 1}) Exchange(rank, rank == 0 ? term : 10 * term);
  }
  EXPECT_EQ(Sum(0), 15);  // Rank 1's new term was not there yet.
  EXPECT_EQ(Sum(1), 55);
}

// Rank 0's blocks are suspended and resumed by themselves.
TEST_F(WindowTest, EachBlockWaitsForItself) {
  MeetBlocks(0, 0, 2);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  EXPECT_EQ(Contents(0).block_turns[0][1], 1);
  EXPECT_THAT(Contents(0).ends, testing::ElementsAre(0, 0));
  MeetBlocks(1, 1, 1);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  EXPECT_THAT(Contents(0).ends, testing::ElementsAre(0, 1));
  MeetBlocks(1, 0, 1);
  for (const int rank : {0, 1}) {
    Ok(cudaStreamQuery(streams_[rank]));
    EXPECT_THAT(Contents(rank).ends, testing::ElementsAre(1, 1));
  }
}

// The control: the launch's second wait has no effect.
TEST_F(WindowTest, ADroppedSecondWaitShows) {
  standin::SetSchedule({.dropped_memory_wait = 1});
  MeetBlocks(0, 0, 2);
  // Rank 1 has reached its first meeting, and neither of its blocks the second.
  WindowContents contents = Contents(0);
  EXPECT_THAT(contents.ends, testing::ElementsAre(0, 0));
  for (int& turn : contents.block_turns[1]) turn = 1;
  Ok(cudaMemcpyAsync(memory_[0], &contents, sizeof(contents),
                     cudaMemcpyHostToDevice, reader_));
  Ok(cudaStreamSynchronize(streams_[0]));
  EXPECT_THAT(Contents(0).ends, testing::ElementsAre(1, 1));
}

TEST_F(WindowTest, WindowsAreOfTheirMemoryAlone) {
  const auto refused = [&](void* memory, int flags) {
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comms_[0], memory, 4, &window, flags),
              ncclInvalidArgument);
  };
  refused(data_[0], NCCL_WIN_DEFAULT);
  refused(&static_cast<WindowContents*>(memory_[0])->term, NCCL_WIN_DEFAULT);
  refused(memory_[0], NCCL_WIN_COLL_SYMMETRIC);
  EXPECT_EQ(ncclMemFree(memory_[0]), ncclInvalidUsage);
  EXPECT_EQ(cudaFree(memory_[0]), cudaErrorInvalidValue);
}

TEST_F(WindowTest, RanksMayNotReachEachOther) {
  EXPECT_EQ(ncclTeamLsa(comms_[1]).nRanks, 2);
  EXPECT_EQ(ncclTeamLsa(comms_[1]).rank, 1);
  SetNcclFaults({.lsa_ranks = 1});
  EXPECT_EQ(ncclTeamLsa(comms_[1]).nRanks, 1);
  EXPECT_EQ(ncclTeamLsa(comms_[1]).rank, 0);
  SetNcclFaults({.windows = false});
  ForEachRank([&](int rank) {
    ncclWindow_t window = windows_[rank];
    Ok(Register(rank, &window));
    EXPECT_EQ(window, nullptr);
  });
}

}  // namespace
}  // namespace lockstep
