// Tests of the watchdog's deadlines, and of its threads while CUDA does not
// answer: on the stand-in, which can block queries.
#include "collectives/nccl/watchdog.h"

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/call_poller.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/nccl/standin_ranks.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

class WatchdogTest : public NcclStandinTest {};

// A kernel that hangs until the host sets the flag.
__global__ void WaitForFlag(const std::atomic<bool>* flag) {
  standin::WaitForMemory([flag] { return flag->load(); }, {__FILE__, __LINE__});
}

// A rank without NCCL, whose calls may follow a kernel that hangs.
struct WatchedRank {
  WatchedRank() = default;
  ~WatchedRank() {
    ends_hang = true;
    if (stream != nullptr) cudaStreamSynchronize(stream.get());
  }

  // failure_ends_hang: whether the group's failure sets `ends_hang`.
  absl::Status Create(Communicator& control, bool failure_ends_hang) {
    LOCKSTEP_ASSIGN_OR_RETURN(stream, MakeStream());
    LOCKSTEP_ASSIGN_OR_RETURN(auto owned, control.Split(0, 0));
    watchdog.emplace(
        std::move(owned),
        Watchdog::Options{.timeout = timeout,
                          .health = [] { return absl::OkStatus(); },
                          .abort =
                              [this, failure_ends_hang] {
                                if (failure_ends_hang) ends_hang = true;
                              }});
    return absl::OkStatus();
  }

  absl::Status Begin() {
    return watchdog->Begin({.operation = Operation::kBarrier}, absl::OkStatus())
        .status();
  }

  // Puts the kernel on the stream, and the call.
  absl::Status IssueBehindAHang() {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(1);
    config.stream = stream.get();
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaLaunchKernelEx(&config, WaitForFlag, &ends_hang),
                   "cudaLaunchKernelEx"));
    return Issue();
  }
  absl::Status Issue() {
    LOCKSTEP_ASSIGN_OR_RETURN(auto events, watchdog->TakeEvents());
    for (const Event* const event : {&events->started, &events->done}) {
      LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
          cudaEventRecord(event->get(), stream.get()), "cudaEventRecord"));
    }
    watchdog->Issued(std::move(events));
    return absl::OkStatus();
  }

  absl::Duration timeout = kSoon;
  std::atomic<bool> ends_hang = false;
  Stream stream;
  std::optional<Watchdog> watchdog;
};

// The deadline of a call counts from its turn on the stream, also if the
// watchdog saw the call before the call was on the stream.
TEST_F(WatchdogTest, DeadlineCountsFromTheCallsTurnOnTheStream) {
  const auto call_late = [](Communicator& control) -> absl::Status {
    WatchedRank rank;
    LOCKSTEP_RETURN_IF_ERROR(rank.Create(control, /*failure_ends_hang=*/true));
    LOCKSTEP_RETURN_IF_ERROR(rank.Begin());
    absl::SleepFor(kSoon / 2);  // The watchdog looks a hundred times.
    LOCKSTEP_RETURN_IF_ERROR(rank.IssueBehindAHang());
    absl::SleepFor(kSoon);
    rank.ends_hang = true;
    const absl::Status status = rank.watchdog->WaitForCalls();
    rank.watchdog->Leave();
    return status;
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, 2, call_late), Each(IsOk()));
}

// Frees memory, and returns an error if that takes too long.
absl::Status Free(DeviceMemory memory) {
  const absl::Time before = absl::Now();
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaFree(memory.release()), "cudaFree"));
  return absl::Now() - before < absl::Seconds(5)
             ? absl::OkStatus()
             : absl::InternalError("cudaFree took too long");
}

// A thread that frees memory waits for a kernel that hangs, and the queries of
// other threads wait for that thread. The deadline ends all of them.
TEST_F(WatchdogTest, HangBesideAFreeEndsAtTheDeadlineToo) {
  standin::SetDevices({.queries_wait_for_frees = true});
  struct Case {
    Algorithm algorithm;
    int64_t bytes;  // Allocated by the group; without, kDirect uses messages.
  };
  for (const Case each :
       {Case{Algorithm::kAuto, 0}, Case{Algorithm::kRing, 0},
        Case{Algorithm::kDirect, 4000}, Case{Algorithm::kDirect, 0}}) {
    NcclOptions options = Options(each.algorithm);
    options.group.timeout = kSoon;
    absl::Notification ended;
    const auto statuses = RunNcclRanks(
        2, options, [&](NcclCommunicator& communicator) -> absl::Status {
          LOCKSTEP_ASSIGN_OR_RETURN(const GroupBuffer data,
                                    communicator.Allocate(each.bytes));
          if (communicator.rank() == 1) {
            ended.WaitForNotificationWithTimeout(kLong);
            return absl::OkStatus();
          }
          LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory other,
                                    AllocateDeviceMemory(16));
          LOCKSTEP_ASSIGN_OR_RETURN(const DeviceMemory own,
                                    AllocateDeviceMemory(4000));
          const Buffer reduced(each.bytes > 0 ? data.bytes().data() : own.get(),
                               1000, DataType::kFloat32);
          const absl::Status status =
              FailTwice(communicator, [&](NcclCommunicator& c) -> absl::Status {
                LOCKSTEP_RETURN_IF_ERROR(c.AllReduce(reduced));
                return Free(std::move(other));
              });
          ended.Notify();
          return status;
        });
    // The start of the call may have been seen before the free, or not.
    EXPECT_THAT(
        statuses[0],
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr("rank 0: AllReduce(float32[1000], sum)"),
                       AnyOf(HasSubstr("rank 1 has not called it"),
                             HasSubstr("CUDA has not answered for 300ms")))));
    EXPECT_THAT(statuses[1], IsOk());
  }
}

// The kernel that hangs is the caller's, and the call has not started.
TEST_F(WatchdogTest, CallsEndIfCudaDoesNotAnswer) {
  standin::SetDevices({.queries_wait_for_frees = true});
  const auto call_behind_a_hang = [](Communicator& control) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(16));
    WatchedRank rank;
    LOCKSTEP_RETURN_IF_ERROR(rank.Create(control, /*failure_ends_hang=*/true));
    LOCKSTEP_RETURN_IF_ERROR(rank.Begin());
    LOCKSTEP_RETURN_IF_ERROR(rank.IssueBehindAHang());
    LOCKSTEP_RETURN_IF_ERROR(Free(std::move(memory)));
    return rank.watchdog->WaitForCalls();
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, 2, call_behind_a_hang),
              Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                            HasSubstr("CUDA has not answered for 300ms"))));
}

// Another thread of the rank frees memory, and CUDA answers no query until the
// kernel ends, which does not end with the group. The caller's wait ends at the
// deadline all the same.
TEST_F(WatchdogTest, AWaitEndsWhileCudaDoesNotAnswer) {
  standin::SetDevices({.queries_wait_for_frees = true});
  const auto wait_beside_a_free = [](Communicator& control) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(16));
    WatchedRank rank;
    LOCKSTEP_RETURN_IF_ERROR(rank.Create(control, /*failure_ends_hang=*/false));
    LOCKSTEP_RETURN_IF_ERROR(rank.Begin());
    LOCKSTEP_RETURN_IF_ERROR(rank.IssueBehindAHang());
    std::thread frees([&memory] { cudaFree(memory.release()); });
    const absl::Time before = absl::Now();
    absl::Status status = rank.watchdog->WaitForCalls();
    const absl::Duration waited = absl::Now() - before;
    rank.ends_hang = true;
    frees.join();
    if (waited > absl::Seconds(5)) {
      return absl::InternalError("the wait took too long");
    }
    return status;
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, 2, wait_beside_a_free),
              Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                            HasSubstr("CUDA has not answered for 300ms"))));
}

// While a thread waits, the call is queried without pauses: the stand-in then
// runs the call, and otherwise after a second.
TEST_F(WatchdogTest, AWaitDoesNotPauseBetweenQueries) {
  standin::SetSchedule({.order = standin::Order::kOldestStreamFirst});
  const auto wait_often = [](Communicator& control) -> absl::Status {
    WatchedRank rank;
    rank.timeout = kLong;
    LOCKSTEP_RETURN_IF_ERROR(rank.Create(control, /*failure_ends_hang=*/true));
    const absl::Time before = absl::Now();
    for (int call = 0; call < 10; ++call) {
      LOCKSTEP_RETURN_IF_ERROR(rank.Begin());
      LOCKSTEP_RETURN_IF_ERROR(rank.Issue());
      LOCKSTEP_RETURN_IF_ERROR(rank.watchdog->WaitForCalls());
    }
    const absl::Duration waited = absl::Now() - before;
    rank.watchdog->Leave();
    return waited < absl::Seconds(5)
               ? absl::OkStatus()
               : absl::InternalError(absl::FormatDuration(waited));
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, 2, wait_often), Each(IsOk()));
}

}  // namespace
}  // namespace lockstep
