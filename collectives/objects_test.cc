#include "collectives/objects.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/communicator.h"
#include "collectives/on_rank.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;

class ObjectsTest : public testing::TestWithParam<Backend> {};

// Any bytes, zeros and nothing among them, and more than one message holds.
std::string ObjectOf(int rank, size_t size) {
  std::string object(rank == 1 ? 0 : size + static_cast<size_t>(rank), '\0');
  for (size_t i = 0; i < object.size(); ++i) {
    object[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank) * 31);
  }
  return object;
}

TEST_P(ObjectsTest, AllGatherObjectGivesEveryRanksBytes) {
  for (const int world_size : {1, 2, 3, 5}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{300000}}) {
      std::vector<std::string> want;
      for (int rank = 0; rank < world_size; ++rank) {
        want.push_back(ObjectOf(rank, size));
      }
      const auto statuses =
          RunRanks(GetParam(), world_size, [&](Communicator& communicator) {
            LOCKSTEP_ASSIGN_OR_RETURN(
                const std::vector<std::string> got,
                AllGatherObject(communicator,
                                ObjectOf(communicator.rank(), size)));
            return got == want ? absl::OkStatus()
                               : absl::DataLossError("other bytes");
          });
      EXPECT_THAT(statuses, Each(IsOk())) << world_size << " ranks, " << size;
    }
  }
}

// Losses of 1, 2, 3 and counts of 10, 20, 30.
absl::Status Reduce(Communicator& communicator, bool average, double loss_want,
                    int64_t count_want) {
  double loss = communicator.rank() + 1;
  std::vector<int64_t> counts(3, 10 * (communicator.rank() + 1));
  const std::map<std::string, Buffer> tensors = {{"loss", std::span(&loss, 1)},
                                                 {"counts", counts}};
  LOCKSTEP_RETURN_IF_ERROR(ReduceDict(communicator, tensors, average));
  if (loss == loss_want && counts == std::vector<int64_t>(3, count_want)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(loss, " and ", counts[0]));
}

TEST_P(ObjectsTest, ReduceDictAveragesOrSums) {
  EXPECT_THAT(
      RunRanks(GetParam(), 3,
               [](Communicator& c) { return Reduce(c, true, 2.0, 20); }),
      Each(IsOk()));
  EXPECT_THAT(
      RunRanks(GetParam(), 3,
               [](Communicator& c) { return Reduce(c, false, 6.0, 60); }),
      Each(IsOk()));
  // The control.
  EXPECT_THAT(
      RunRanks(GetParam(), 3,
               [](Communicator& c) { return Reduce(c, true, 6.0, 60); }),
      Each(StatusIs(absl::StatusCode::kDataLoss, "2 and 20")));
}

TEST_P(ObjectsTest, ReduceDictOfDifferentTensorsSaysWhichAndGoesOn) {
  const auto statuses = RunRanks(GetParam(), 3, [](Communicator& communicator) {
    std::vector<float> a(2, 1.0f);
    std::vector<float> b(communicator.rank() == 2 ? 4 : 3, 1.0f);
    const absl::Status status = ReduceDict(communicator, {{"a", a}, {"b", b}});
    if (a[0] != 1.0f) return absl::DataLossError("a tensor was changed");
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    return status;
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "ranks have different tensors: rank 0 "
                                      "has 'b: float32[3]', rank 2 has "
                                      "'b: float32[4]'")));
  const auto missing = RunRanks(GetParam(), 2, [](Communicator& communicator) {
    std::vector<float> a(2);
    std::map<std::string, Buffer> tensors = {{"a", a}};
    if (communicator.rank() == 1) tensors.clear();
    return ReduceDict(communicator, tensors);
  });
  EXPECT_THAT(missing, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("rank 1 has nothing more"))));
}

TEST_P(ObjectsTest, OnRankRunsThereAlone) {
  const auto statuses = RunRanks(GetParam(), 3, [](Communicator& communicator) {
    const auto fail = [] { return absl::AbortedError("ran"); };
    const bool ran = !OnRank(communicator, 1, fail).ok();
    if (ran != (communicator.rank() == 1)) {
      return absl::DataLossError("ran on the wrong rank");
    }
    if (OnRank(communicator, std::nullopt, fail).ok()) {
      return absl::DataLossError("did not run on every rank");
    }
    return OnRank(communicator, 3, fail);
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      "rank 3 is outside [0, 3)")));
}

INSTANTIATE_TEST_SUITE_P(Backends, ObjectsTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
