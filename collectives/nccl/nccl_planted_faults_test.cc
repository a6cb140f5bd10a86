// Tests of the failures of the nccl backend: on the stand-in, which can inject
// faults.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/nccl/standin_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class NcclPlantedFaultsTest : public NcclStandinTest {};

std::vector<absl::Status> FailAllReduce(int ranks, const NcclOptions& options) {
  return RunNcclRanks(ranks, options, [](NcclCommunicator& communicator) {
    return FailTwice(communicator, AllReduceOnce);
  });
}

// All ranks except `absent` call. That rank stays alive and waits until the
// other ranks have ended.
std::vector<absl::Status> RunWithout(int absent, const NcclOptions& options) {
  constexpr int kRanks = 3;
  std::atomic<int> ended = 0;
  absl::Notification all_ended;
  return RunNcclRanks(
      kRanks, options, [&](NcclCommunicator& communicator) -> absl::Status {
        if (communicator.rank() == absent) {
          return all_ended.WaitForNotificationWithTimeout(kLong)
                     ? absl::OkStatus()
                     : absl::InternalError("the others hang");
        }
        const absl::Status status = FailTwice(communicator, AllReduceOnce);
        if (++ended == kRanks - 1) all_ended.Notify();
        return status;
      });
}

TEST_F(NcclPlantedFaultsTest, RankThatNeverCallsIsNamedAtTheDeadline) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    NcclOptions options = Options(algorithm);
    options.group.timeout = kSoon;
    const auto statuses = RunWithout(1, options);
    EXPECT_THAT(statuses[1], IsOk());
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr(": AllReduce(float32[1000], sum)"),
                               HasSubstr("not finished after 300ms on ranks "
                                         "0, 2; rank 1 has not called it"))));
    EXPECT_EQ(statuses[0], statuses[2]);
  }
}

TEST_F(NcclPlantedFaultsTest, JoiningEndsAtTheDeadlineToo) {
  standin::SetNcclFaults({.stalled_init_rank = 1});
  NcclOptions options = Options();
  options.group.timeout = kSoon;
  EXPECT_THAT(
      RunNcclRanks(2, options, AllReduceOnce),
      Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                    HasSubstr("joining NCCL: not finished after 300ms"))));
}

// The other ranks' calls of NCCL do not return.
TEST_F(NcclPlantedFaultsTest, ARankThatCannotJoinEndsAllAtOnce) {
  standin::SetNcclFaults({.failing_init_rank = 1});
  const NcclOptions options = Options();
  const absl::Time before = absl::Now();
  EXPECT_THAT(RunNcclRanks(3, options, AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kUnavailable,
                            HasSubstr("rank 1: joining NCCL: "
                                      "ncclCommInitRankConfig"))));
  EXPECT_LT(absl::Now() - before, options.group.timeout / 2);
}

TEST_F(NcclPlantedFaultsTest, StalledRankEndsAllAtTheDeadline) {
  standin::SetNcclFaults({.stalled_rank = 2});
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    NcclOptions options = Options(algorithm);
    options.group.timeout = kSoon;
    const auto statuses = FailAllReduce(3, options);
    EXPECT_THAT(statuses,
                Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                              AllOf(HasSubstr("AllReduce(float32[1000], sum)"),
                                    HasSubstr("checked_call.cc"),
                                    HasSubstr("on ranks")))));
    EXPECT_EQ(statuses[0], statuses[1]);
    EXPECT_EQ(statuses[0], statuses[2]);
  }
}

// The failing rank's call does not end; otherwise other ranks' calls might
// succeed before the error.
TEST_F(NcclPlantedFaultsTest, AsyncErrorOfOneRankIsEveryRanks) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing}) {
    standin::SetNcclFaults(
        {.stalled_rank = 1, .failing_rank = 1, .error = ncclRemoteError});
    const absl::Time before = absl::Now();
    const auto statuses = FailAllReduce(3, Options(algorithm));
    EXPECT_LT(absl::Now() - before, absl::Seconds(5));
    EXPECT_THAT(
        statuses,
        Each(StatusIs(absl::StatusCode::kUnavailable,
                      AllOf(HasSubstr("rank 1: AllReduce(float32[1000], sum)"),
                            HasSubstr("NCCL error 6: remote")))));
  }
  // The error occurs in the middle of a ring.
  standin::SetNcclFaults({.stalled_rank = 2,
                          .failing_rank = 2,
                          .error_from = 7,
                          .error = ncclSystemError});
  EXPECT_THAT(FailAllReduce(5, Options(Algorithm::kRing)),
              Each(StatusIs(absl::StatusCode::kUnavailable,
                            HasSubstr("rank 2: AllReduce"))));
}

// The rank leaves while it waits for the other ranks, or has left before.
TEST_F(NcclPlantedFaultsTest, RankThatLeavesIsNamed) {
  for (const absl::Duration later : {absl::ZeroDuration(), absl::Seconds(2)}) {
    const auto statuses =
        RunNcclRanks(3, Options(), [&](NcclCommunicator& communicator) {
          if (communicator.rank() == 2) return absl::OkStatus();
          absl::SleepFor(later);
          return FailTwice(communicator, AllReduceOnce);
        });
    EXPECT_THAT(statuses[2], IsOk());
    for (const int rank : {0, 1}) {
      EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("rank 2")));
    }
  }
}

// A call that fails on every rank; its argument is device memory of 12 float32.
std::vector<absl::Status> FailOnData(int ranks, const DataCall& call) {
  return RunNcclRanks(
      ranks, NcclOptions(),
      [&](NcclCommunicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto memory,
                                  MakeDeviceMemory(Bytes(48)));
        const Buffer data(memory->data(), 12, DataType::kFloat32);
        return FailTwice(communicator,
                         [&](NcclCommunicator& c) { return call(c, data); });
      });
}

// Rank 1 makes a different call than the other ranks: every rank must say so.
void ExpectMismatch(const DataCall& usual, const DataCall& other) {
  const auto statuses = FailOnData(3, [&](NcclCommunicator& c, Buffer data) {
    return c.rank() == 1 ? other(c, data) : usual(c, data);
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(
                  absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr("rank 0 called"), HasSubstr("rank 1 called"),
                        HasSubstr("nccl_planted_faults_test.cc:")))));
  EXPECT_EQ(statuses[0], statuses[1]);
  EXPECT_EQ(statuses[0], statuses[2]);
}

TEST_F(NcclPlantedFaultsTest, DisagreementIsEveryRanks) {
  const auto usual = [](NcclCommunicator& c, Buffer b) {
    return c.AllReduce(b);
  };
  const DataCall others[] = {
      [](NcclCommunicator& c, Buffer b) { return c.AllReduce(b.Part(0, 11)); },
      [](NcclCommunicator& c, Buffer b) {
        return c.AllReduce(b, ReduceOp::kMax);
      },
      [](NcclCommunicator& c, Buffer b) {
        return c.AllReduce({b.data, b.count, DataType::kInt32});
      },
      [](NcclCommunicator& c, Buffer b) { return c.Broadcast(b, 0); },
      [](NcclCommunicator& c, Buffer) { return c.Barrier(); },
      [](NcclCommunicator& c, Buffer) { return c.Allocate(8).status(); },
  };
  for (const DataCall& other : others) ExpectMismatch(usual, other);
  ExpectMismatch(
      [](NcclCommunicator& c, Buffer b) { return c.Broadcast(b, 0); },
      [](NcclCommunicator& c, Buffer b) { return c.Broadcast(b, 2); });
}

TEST_F(NcclPlantedFaultsTest, PartnersDisagreementIsBoths) {
  const auto run = [](int64_t sent, DataType type, bool both_send) {
    return FailOnData(2, [=](NcclCommunicator& c, Buffer data) {
      if (c.rank() == 0) return c.Send({data.data, sent, type}, 1);
      return both_send ? c.Send(data, 0) : c.Receive(data, 0);
    });
  };
  for (const auto& statuses :
       {run(11, DataType::kFloat32, false), run(12, DataType::kInt32, false),
        run(12, DataType::kFloat32, true)}) {
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr("rank 0 called Send"),
                                              HasSubstr("rank 1 called")))));
  }
}

// Expects that every rank rejects a call that is wrong only on rank 1.
void ExpectRefused(const std::string& why, const DataCall& call) {
  EXPECT_THAT(
      FailOnData(2, call),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("rank 1 called"), HasSubstr(why)))));
}

TEST_F(NcclPlantedFaultsTest, WrongArgumentsAreEveryRanksError) {
  ExpectRefused(
      "its input is not device memory", [](NcclCommunicator& c, Buffer b) {
        std::vector<float> host(8);
        return c.AllReduce(c.rank() == 1 ? Buffer(host) : b.Part(0, 8));
      });
  ExpectRefused(
      "its output is not device memory", [](NcclCommunicator& c, Buffer b) {
        std::vector<float> host(8);
        return c.AllGather(b.Part(0, 4),
                           c.rank() == 1 ? Buffer(host) : b.Part(4, 8));
      });
  ExpectRefused("its input is memory of GPU 0, not of its GPU 1",
                [](NcclCommunicator& c, Buffer b) {
                  if (c.rank() == 0) return c.AllReduce(b);
                  cudaSetDevice(0);
                  const auto other = AllocateDeviceMemory(b.size_bytes());
                  return c.AllReduce(Buffer(other->get(), b.count, b.type));
                });
  ExpectRefused("is not aligned", [](NcclCommunicator& c, Buffer b) {
    Buffer moved = b.Part(0, 8);
    if (c.rank() == 1) moved.data = moved.bytes() + 2;
    return c.AllReduce(moved);
  });
  ExpectRefused("the root is outside", [](NcclCommunicator& c, Buffer b) {
    return c.Broadcast(b, c.rank() == 1 ? 2 : 0);
  });
  for (const int peer : {-1, 1, 2}) {
    ExpectRefused("Send", [=](NcclCommunicator& c, Buffer b) {
      return c.rank() == 1 ? c.Send(b, peer) : c.Barrier();
    });
  }
  ExpectRefused("the size is negative", [](NcclCommunicator& c, Buffer) {
    return c.Allocate(c.rank() == 1 ? -1 : 8).status();
  });
}

TEST_F(NcclPlantedFaultsTest, OptionsThatCannotBeHad) {
  NcclOptions none = Options();
  none.chunk_bytes = 24;
  EXPECT_THAT(RunNcclRanks(2, none, AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("chunk_bytes is 24"))));
  EXPECT_THAT(RunNcclRanks(2, Options(Algorithm::kTree), AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("not tree"))));
}

TEST_F(NcclPlantedFaultsTest, RankWithoutItsDeviceIsNamed) {
  std::vector<NcclOptions> options(3, Options());
  for (int rank = 0; rank < 3; ++rank) options[rank].device = rank;
  options[1].device = 99;
  EXPECT_THAT(RunNcclRanks(options, AllReduceOnce),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("rank 1: cudaSetDevice(99)"))));
}

TEST_F(NcclPlantedFaultsTest, RankZerosOptionsHold) {
  std::vector<NcclOptions> options(3, Options());
  for (int rank = 0; rank < 3; ++rank) options[rank].device = rank;
  options[0].group.algorithm = Algorithm::kRing;
  options[0].chunk_bytes = 64;
  EXPECT_THAT(RunNcclRanks(options,
                           [](NcclCommunicator& communicator) {
                             return CheckRingBits(communicator,
                                                  DataType::kFloat32,
                                                  ReduceOp::kSum, 301);
                           }),
              Each(IsOk()));
}

// NCCL registers buffers by itself, except for our own rings.
TEST_F(NcclPlantedFaultsTest, OnlyOurRingsTurnOffRegistration) {
  constexpr const char* kNames[] = {"NCCL_LOCAL_REGISTER",
                                    "NCCL_GRAPH_REGISTER"};
  for (const Algorithm algorithm :
       {Algorithm::kAuto, Algorithm::kRing, Algorithm::kDirect}) {
    for (const char* const name : kNames) unsetenv(name);
    EXPECT_THAT(RunNcclRanks(2, Options(algorithm), AllReduceOnce),
                Each(IsOk()));
    for (const char* const name : kNames) {
      const char* const value = std::getenv(name);
      EXPECT_EQ(value == nullptr ? "unset" : std::string(value),
                algorithm == Algorithm::kAuto ? "unset" : "0");
    }
  }
}

TEST_F(NcclPlantedFaultsTest, ThreadsThatShareAGpuNeedNewerNccl) {
  const auto run = [](NcclCommunicator& communicator, cudaStream_t) {
    if (!communicator.shared_gpu()) return absl::InternalError("not shared");
    return AllReduceOnce(communicator);
  };
  EXPECT_THAT(RunOnStreams(Options(), /*own_gpus=*/false, run),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("threads of one process"))));
  standin::SetNcclFaults({.version = 23000});
  // Kernels of one thread would wait for the launch of the other's.
  ASSERT_EQ(setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/1), 0);
  EXPECT_THAT(RunOnStreams(Options(), /*own_gpus=*/false, run),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT is 1"))));
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  EXPECT_THAT(RunOnStreams(Options(), /*own_gpus=*/false, run), Each(IsOk()));
  EXPECT_STREQ(std::getenv("NCCL_MULTI_RANK_GPU_ENABLE"), "1");
  for (const char* const name :
       {"NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS",
        "NCCL_LAUNCH_ORDER_IMPLICIT"}) {
    unsetenv(name);
  }
}

// NCCL tells GPUs apart by their bus, so slices of one GPU are shared too.
TEST_F(NcclPlantedFaultsTest, MigSlicesShareAGpu) {
  standin::SetDevices({.one_bus = true});
  EXPECT_THAT(
      RunNcclRanks(2, Options(), AllReduceOnce),
      Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr("ranks 0 and 1 are threads of one process"))));
}

// In that mode the threads of one process may share a GPU, and ranks with GPUs
// of their own are not concerned. GpuSharingTest has processes that share one.
TEST_F(NcclPlantedFaultsTest, AGpuForOneProcessServesItsThreads) {
  standin::SetDevices({.exclusive = true});
  EXPECT_THAT(RunNcclRanks(2, Options(), AllReduceOnce), Each(IsOk()));
}

TEST_F(NcclPlantedFaultsTest, RanksThatLeaveInHealthDestroyAndOthersAbort) {
  standin::ResetCounts();
  EXPECT_THAT(RunNcclRanks(3, Options(), UseEverything), Each(IsOk()));
  EXPECT_EQ(standin::Counts().communicators_destroyed, 3);
  EXPECT_EQ(standin::Counts().communicators_aborted, 0);
  standin::SetNcclFaults(
      {.stalled_rank = 1, .failing_rank = 1, .error = ncclRemoteError});
  FailAllReduce(3, Options(Algorithm::kRing));
  EXPECT_EQ(standin::Counts().communicators_destroyed, 3);
  EXPECT_EQ(standin::Counts().communicators_aborted, 3);
}

}  // namespace
}  // namespace lockstep
