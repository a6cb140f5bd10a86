// Failures of an nccl group that a GPU can show too: every rank gets an error
// in time, which names the culprit, and CUDA works afterwards. Runs on GPUs,
// where ranks are processes, and on the stand-in.
#include <cuda_runtime.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/control.h"
#endif

namespace lockstep {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

// On a GPU the first call of a group connects the ranks, which takes seconds.
constexpr absl::Duration kTimeout =
    kOnStandin ? absl::Seconds(1) : absl::Seconds(10);

// Every rank must have its error within this time after the timeout.
constexpr absl::Duration kSlack = absl::Seconds(5);

constexpr int kAbsent = 1;  // The rank that does not take part.
constexpr int64_t kBytes = 4096;

class NcclFaultsTest : public testing::TestWithParam<Algorithm> {
 protected:
#ifdef LOCKSTEP_CUDA_STANDIN
  void SetUp() override {
    standin::SetDevices({.queries_wait_for_frees = true});
  }
  void TearDown() override { standin::SetDevices({}); }
#endif

  static std::vector<absl::Status> Run(const NcclRankFunction& fn) {
    NcclOptions options;
    options.group.algorithm = GetParam();
    options.group.timeout = kTimeout;
    return RunNcclRanks(NcclWorldSizes({3}).back(), options, fn);
  }
};

// Returns an error unless the device still works for this process.
absl::Status CheckCuda() {
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  const Bytes content(100, std::byte{7});
  LOCKSTEP_ASSIGN_OR_RETURN(const auto memory, MakeDeviceMemory(content));
  return memory->Holds(content) ? absl::OkStatus()
                                : absl::InternalError("CUDA does not work");
}

// Waits for the group's failure, also if this rank makes no call.
absl::Status WaitForFailure(NcclCommunicator& communicator) {
  const Deadline deadline(2 * (kTimeout + kSlack));
  while (!deadline.passed()) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::InternalError("the group did not fail");
}

// Returns the failure that follows `call`, if it comes in time and CUDA works
// afterwards.
absl::Status FailInTime(NcclCommunicator& communicator,
                        const std::function<absl::Status()>& call) {
  const Deadline in_time(kTimeout + kSlack);
  absl::Status failure = call();
  if (failure.ok()) failure = WaitForFailure(communicator);
  if (in_time.passed()) {
    return absl::InternalError(absl::StrCat("too late: ", failure.message()));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckCuda());
  return failure;
}

// Reduces the same buffer on all ranks `times` times, after which the ring
// replays a graph, and then calls `last` on all ranks but one.
absl::Status FailWithoutOneRank(
    NcclCommunicator& communicator, int times,
    const std::function<absl::Status(Buffer)>& last) {
  LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                            communicator.Allocate(kBytes));
  const Buffer data = buffer.as<float>();
  for (int i = 0; i < times; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(data));
    LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
  }
  // A rank that frees memory can block the queries of slower ranks.
  LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
  return FailInTime(communicator, [&]() -> absl::Status {
    return communicator.rank() == kAbsent ? absl::OkStatus() : last(data);
  });
}

// Matches the error of a call that the absent rank has not made.
auto NamesTheAbsentRank() {
  return StatusIs(absl::StatusCode::kDeadlineExceeded,
                  AllOf(HasSubstr("AllReduce(float32[1024], sum)"),
                        HasSubstr("rank 1 has not called it")));
}

absl::Status ReduceWithoutOneRank(NcclCommunicator& communicator, int times) {
  return FailWithoutOneRank(communicator, times, [&](Buffer data) {
    return communicator.AllReduce(data);
  });
}

TEST_P(NcclFaultsTest, AMissingRankIsNamed) {
  if (!HasNcclRanks()) return;
  EXPECT_THAT(Run([](NcclCommunicator& communicator) {
                return ReduceWithoutOneRank(communicator, /*times=*/1);
              }),
              Each(NamesTheAbsentRank()));
}

TEST_P(NcclFaultsTest, AHangInAReplayedGraphEnds) {
  if (!HasNcclRanks()) return;
  EXPECT_THAT(Run([](NcclCommunicator& communicator) {
                return ReduceWithoutOneRank(communicator, /*times=*/3);
              }),
              Each(NamesTheAbsentRank()));
}

TEST_P(NcclFaultsTest, AHangBesideAFreeEnds) {
  if (!HasNcclRanks()) return;
  const auto run = [](NcclCommunicator& communicator) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory other, AllocateDeviceMemory(64));
    return FailWithoutOneRank(
        communicator, 1, [&](Buffer data) -> absl::Status {
          LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(data));
          return CudaStatus(cudaFree(other.release()), "cudaFree");
        });
  };
  // The start of the call may have been seen before the free, or not.
  EXPECT_THAT(Run(run),
              Each(AnyOf(NamesTheAbsentRank(),
                         StatusIs(absl::StatusCode::kDeadlineExceeded,
                                  HasSubstr("CUDA has not answered")))));
}

TEST_P(NcclFaultsTest, ADisagreementNamesBoth) {
  if (!HasNcclRanks()) return;
  const auto run = [](NcclCommunicator& communicator) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                              communicator.Allocate(kBytes));
    const Buffer data = buffer.as<float>();
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(data));
    LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
    return FailInTime(communicator, [&] {
      return communicator.rank() == kAbsent ? communicator.Broadcast(data, 0)
                                            : communicator.AllReduce(data);
    });
  };
  EXPECT_THAT(Run(run),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            AllOf(HasSubstr("rank 0 called AllReduce"),
                                  HasSubstr("rank 1 called Broadcast")))));
}

#ifndef LOCKSTEP_CUDA_STANDIN
// On the stand-in, ranks are threads, which cannot be killed.
TEST_P(NcclFaultsTest, AKilledRankIsNamed) {
  if (!HasNcclRanks()) return;
  const auto run = [](NcclCommunicator& communicator) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                              communicator.Allocate(kBytes));
    const Buffer data = buffer.as<float>();
    LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(data));
    LOCKSTEP_RETURN_IF_ERROR(communicator.Wait());
    if (communicator.rank() == kAbsent) raise(SIGKILL);
    return FailInTime(communicator,
                      [&] { return communicator.AllReduce(data); });
  };
  const std::vector<absl::Status> statuses = Run(run);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_THAT(
        statuses[rank],
        rank == kAbsent
            ? StatusIs(absl::StatusCode::kAborted, HasSubstr("9"))
            : StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Algorithms, NcclFaultsTest,
                         testing::Values(Algorithm::kAuto, Algorithm::kRing,
                                         Algorithm::kDirect),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

}  // namespace
}  // namespace lockstep
