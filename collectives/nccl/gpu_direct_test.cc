// Tests of the window variant on the stand-in, and of its failures.
#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/nccl/standin_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::Order;
using testing::Each;
using testing::HasSubstr;

class GpuDirectTest : public NcclStandinTest {};

absl::Status ReduceInGroupMemory(NcclCommunicator& communicator) {
  return CheckInGroupMemory(communicator,
                            {ExactCall(Operation::kAllReduce, 1000),
                             ExactCall(Operation::kReduceScatter, 67)});
}

TEST_F(GpuDirectTest, DirectReductionsUseNoMessagesAndDoNotWait) {
  EXPECT_THAT(
      RunNcclRanks(3, Options(Algorithm::kDirect),
                   [](NcclCommunicator& communicator) -> absl::Status {
                     LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                               communicator.Allocate(4096));
                     const standin::CallCounts before =
                         standin::CountsOfThisThread();
                     LOCKSTEP_RETURN_IF_ERROR(
                         communicator.AllReduce(buffer.as<float>()));
                     const standin::CallCounts after =
                         standin::CountsOfThisThread();
                     if (after.groups != before.groups ||
                         after.host_waits != before.host_waits) {
                       return absl::InternalError("it calls NCCL, or waits");
                     }
                     return communicator.Wait();
                   }),
      Each(IsOk()));
}

// Host memory is behind PCIe, so a thread of a barrier loads the flag of a
// failed group, and no thread of the reduction does.
TEST_F(GpuDirectTest, FewThreadsLoadHostMemory) {
  standin::ResetCounts();
  EXPECT_THAT(RunNcclRanks(3, Options(Algorithm::kDirect),
                           [](NcclCommunicator& communicator) -> absl::Status {
                             LOCKSTEP_ASSIGN_OR_RETURN(
                                 const GroupBuffer buffer,
                                 communicator.Allocate(64 << 10));
                             LOCKSTEP_RETURN_IF_ERROR(
                                 communicator.AllReduce(buffer.as<float>()));
                             return communicator.Wait();
                           }),
              Each(IsOk()));
  EXPECT_GT(standin::Counts().pinned_loads, 0);
  // Each of the three ranks has two barriers, which may start anew.
  EXPECT_LT(standin::Counts().pinned_loads, 100);
}

TEST_F(GpuDirectTest, DirectFallsBackToTheRing) {
  for (const standin::NcclFaults& faults :
       {standin::NcclFaults{.version = 22707},
        {.windows = false},
        {.host_windows = true},
        {.lsa_ranks = 1}}) {
    standin::SetNcclFaults(faults);
    standin::ResetCounts();
    EXPECT_THAT(
        RunNcclRanks(2, Options(Algorithm::kDirect), ReduceInGroupMemory),
        Each(IsOk()));
    EXPECT_GT(standin::Counts().groups, 0);
  }
}

// A test of kDirect that takes the ring is skipped with the reason.
TEST_F(GpuDirectTest, DirectSaysThatItIsNotReached) {
  const auto check = [] {
    return RunNcclRanks(2, Options(Algorithm::kDirect), CheckIsDirect)[0];
  };
  EXPECT_FALSE(SkippedAsNotReached(check()));
  standin::SetNcclFaults({.lsa_ranks = 1});
  testing::TestPartResultArray parts;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(&parts);
    EXPECT_TRUE(SkippedAsNotReached(check()));
  }
  ASSERT_EQ(parts.size(), 1);
  EXPECT_TRUE(parts.GetTestPartResult(0).skipped());
  EXPECT_THAT(parts.GetTestPartResult(0).message(),
              HasSubstr("kDirect is not reached"));
}

TEST_F(GpuDirectTest, DirectRefusesDisagreement) {
  const auto fail = [](const DataCall& call) {
    return RunNcclRanks(
        2, Options(Algorithm::kDirect),
        [&](NcclCommunicator& communicator) -> absl::Status {
          LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                    communicator.Allocate(4096));
          return FailTwice(communicator, [&](NcclCommunicator& c) {
            return call(c, buffer.as<float>());
          });
        });
  };
  EXPECT_THAT(fail([](NcclCommunicator& c, Buffer b) {
                return c.AllReduce(b.Part(4 * c.rank(), 100));
              }),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("differ in where their data lie"))));
  EXPECT_THAT(fail([](NcclCommunicator& c, Buffer) {
                return c.Allocate(8 << c.rank()).status();
              }),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("ranks disagree"))));
}

// A call has two barriers. The first keeps ranks from reading data that are not
// there yet; the second keeps them from going on before all data are written.
TEST_F(GpuDirectTest, ADroppedBarrierIsRejected) {
  const auto run = [](NcclCommunicator& communicator,
                      cudaStream_t stream) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer data,
                              communicator.Allocate(3000));
    return SumOfOnes(communicator, data.bytes().data(), 3000, stream);
  };
  const auto all_ok = [&](int barrier) {
    standin::SetSchedule(
        {.order = Order::kOldestStreamFirst, .dropped_memory_wait = barrier});
    return AllOk(
        RunOnStreams(Options(Algorithm::kDirect), /*own_gpus=*/true, run));
  };
  EXPECT_TRUE(all_ok(-1));
  EXPECT_FALSE(all_ok(0));
  EXPECT_FALSE(all_ok(1));
}

// Kernels that wait for a rank's memory must end with the group, as NCCL's do,
// and before NCCL unmaps that memory.
TEST_F(GpuDirectTest, DirectReductionsEndAtTheDeadlineToo) {
  NcclOptions options = Options(Algorithm::kDirect);
  options.group.timeout = kSoon;
  absl::Notification ended;
  standin::ResetCounts();
  const auto statuses = RunNcclRanks(
      2, options, [&](NcclCommunicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer buffer,
                                  communicator.Allocate(4096));
        if (communicator.rank() == 1) {
          ended.WaitForNotificationWithTimeout(kLong);
          return absl::OkStatus();
        }
        const absl::Status status =
            FailTwice(communicator, [&](NcclCommunicator& c) {
              return c.AllReduce(buffer.as<float>());
            });
        LOCKSTEP_RETURN_IF_ERROR(
            CudaStatus(cudaStreamSynchronize(nullptr), "the stream is stuck"));
        ended.Notify();
        return status;
      });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("rank 1 has not called it")));
  EXPECT_THAT(statuses[1], IsOk());
  EXPECT_GT(standin::Counts().communicators_aborted, 0);
  EXPECT_EQ(standin::Counts().windows_unmapped_under_work, 0);
}

}  // namespace
}  // namespace lockstep
