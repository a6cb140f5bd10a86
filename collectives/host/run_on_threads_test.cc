#include "collectives/host/run_on_threads.h"

#include <atomic>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(RunOnThreadsTest, RunsEveryRankOnce) {
  for (const int world_size : {1, 2, 3, 8}) {
    std::atomic<int> ranks = 0;
    EXPECT_THAT(RunOnThreads(world_size, {},
                             [&](Communicator& group) {
                               ranks += 1 << group.rank();
                               return group.Barrier();
                             }),
                IsOk());
    EXPECT_EQ(ranks, (1 << world_size) - 1);
  }
}

// The others lose their peer; that is not the cause.
TEST(RunOnThreadsTest, ReturnsTheCause) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    EXPECT_THAT(RunOnThreads(3, {},
                             [&](Communicator& group) {
                               return group.rank() == culprit
                                          ? absl::DataLossError("bad batch")
                                          : group.Barrier();
                             }),
                StatusIs(absl::StatusCode::kDataLoss, "bad batch"));
  }
}

TEST(RunOnThreadsTest, ReturnsALostPeerIfThatIsAllThereIs) {
  EXPECT_THAT(RunOnThreads(2, {},
                           [](Communicator& group) {
                             return group.rank() == 0 ? absl::OkStatus()
                                                      : group.Barrier();
                           }),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("rank 0 left the group")));
}

TEST(RunOnThreadsTest, RefusesAnImpossibleWorldSize) {
  EXPECT_THAT(
      RunOnThreads(0, {}, [](Communicator&) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size 0")));
}

}  // namespace
}  // namespace lockstep
