// Tests of collectives of host memory over NCCL: with the stand-in, or on GPUs.
#include "collectives/nccl/staged_communicator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/async_communicator.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/run_nccl_ranks.h"
#include "collectives/pending_collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr int kCalls = 6;  // More than a StagedCommunicator has in progress.
constexpr size_t kCount = 300;

// Runs `fn` on each rank of a group on host memory.
std::vector<absl::Status> RunStaged(
    const std::function<absl::Status(StagedCommunicator&)>& fn) {
  return RunNcclRanks(NcclWorldSizes({3}).back(), {},
                      [&](NcclCommunicator& group) -> absl::Status {
                        LOCKSTEP_ASSIGN_OR_RETURN(
                            std::unique_ptr<Communicator> own,
                            group.Split(/*color=*/0, /*key=*/0));
                        LOCKSTEP_ASSIGN_OR_RETURN(
                            const std::unique_ptr<StagedCommunicator> staged,
                            StagedCommunicator::Create(std::move(own)));
                        return fn(*staged);
                      });
}

// The data of some calls: in call i, each rank has i + 1 in each element.
class Sums {
 public:
  // pinned: in memory from Allocate, or else in ordinary memory.
  absl::Status Make(Communicator& communicator, bool pinned) {
    world_size_ = communicator.world_size();
    for (int i = 0; i < kCalls; ++i) {
      ordinary_.emplace_back(kCount);
      std::span<float> data(ordinary_.back());
      if (pinned) {
        LOCKSTEP_ASSIGN_OR_RETURN(
            GroupBuffer memory, communicator.Allocate(kCount * sizeof(float)));
        data = memory.as<float>();
        pinned_.push_back(std::move(memory));
      }
      std::ranges::fill(data, static_cast<float>(i + 1));
      data_.push_back(data);
    }
    return absl::OkStatus();
  }

  std::span<float> operator[](int i) { return data_[static_cast<size_t>(i)]; }

  // Returns an error unless call i has summed its data.
  absl::Status Check(int i) {
    const float sum = static_cast<float>((i + 1) * world_size_);
    for (const float x : (*this)[i]) {
      if (x != sum) {
        return absl::DataLossError(
            absl::StrCat("call ", i, " gave ", x, ", not ", sum));
      }
    }
    return absl::OkStatus();
  }

 private:
  int world_size_ = 1;
  std::vector<std::vector<float>> ordinary_;
  std::vector<GroupBuffer> pinned_;
  std::vector<std::span<float>> data_;
};

TEST(StagedCommunicatorTest, CallsMayEndInAnyOrder) {
  if (!HasNcclRanks()) return;
  for (const bool pinned : {false, true}) {
    for (const bool from_the_last : {false, true}) {
      const auto run = [&](StagedCommunicator& communicator) -> absl::Status {
        Sums sums;
        LOCKSTEP_RETURN_IF_ERROR(sums.Make(communicator, pinned));
        std::vector<PendingCollective> calls;
        for (int i = 0; i < kCalls; ++i) {
          calls.push_back(communicator.Start(Collective::AllReduce(sums[i])));
        }
        for (int i = 0; i < kCalls; ++i) {
          const int waited = from_the_last ? kCalls - 1 - i : i;
          const PendingCollective& call = calls[static_cast<size_t>(waited)];
          LOCKSTEP_RETURN_IF_ERROR(call.Wait());
          if (!call.done()) return absl::InternalError("not done after Wait");
          LOCKSTEP_RETURN_IF_ERROR(sums.Check(waited));
        }
        return absl::OkStatus();
      };
      EXPECT_THAT(RunStaged(run), Each(IsOk()));
    }
  }
}

// A trainer's calls: sums of gradients are started while the calls of another
// group are made. One thread begins both, so every rank begins them in the same
// order.
TEST(StagedCommunicatorTest, OneThreadUsesTwoGroups) {
  if (!HasNcclRanks()) return;
  const auto run = [&](StagedCommunicator& communicator) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> other,
                              communicator.Split(/*color=*/0, /*key=*/0));
    Sums sums;
    LOCKSTEP_RETURN_IF_ERROR(sums.Make(communicator, /*pinned=*/true));
    AsyncCommunicator async(communicator);
    for (int i = 0; i < kCalls; ++i) {
      async.Start(Collective::AllReduce(sums[i]));
      std::vector<int32_t> ones(10, 1);
      LOCKSTEP_RETURN_IF_ERROR(other->AllReduce(ones));
      if (ones.back() != communicator.world_size()) {
        return absl::DataLossError("not the number of ranks");
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(async.Wait());
    for (int i = 0; i < kCalls; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(sums.Check(i));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunStaged(run), Each(IsOk()));
}

TEST(StagedCommunicatorTest, TheHandlesOfAFailedGroupSayWhy) {
  if (!HasNcclRanks()) return;
  const auto run = [&](StagedCommunicator& communicator) -> absl::Status {
    Sums sums;
    LOCKSTEP_RETURN_IF_ERROR(sums.Make(communicator, /*pinned=*/true));
    const bool differs = communicator.rank() == 1;
    const PendingCollective good =
        communicator.Start(Collective::AllReduce(sums[0]));
    LOCKSTEP_RETURN_IF_ERROR(good.Wait());
    const PendingCollective bad = communicator.Start(
        Collective::AllReduce(sums[1].first(differs ? kCount - 1 : kCount)));
    const absl::Status first = bad.Wait();
    if (bad.Wait() != first) return absl::InternalError("another status");
    if (!good.Wait().ok()) return absl::InternalError("the first call failed");
    return first;
  };
  EXPECT_THAT(RunStaged(run),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            HasSubstr("ranks disagree: rank 0 called "
                                      "AllReduce(float32[300], sum)"))));
}

}  // namespace
}  // namespace lockstep
