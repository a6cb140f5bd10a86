// What a test gets from ranks under mpirun, also from those that end badly.
#include "collectives/mpi/testing/mpirun.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MpirunTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoMpirun();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

absl::StatusOr<std::string> Describe(Communicator& communicator) {
  return absl::StrCat(communicator.rank(), " of ", communicator.world_size());
}

TEST_F(MpirunTest, CollectsWhatEachRankReturned) {
  EXPECT_THAT(RunMpiRanksCollect(2, Describe),
              ElementsAre(IsOkAndHolds("0 of 2"), IsOkAndHolds("1 of 2")));
}

TEST_F(MpirunTest, RunsLaterCallsOfABodyWithTheEarlierResults) {
  const auto first = RunMpiRanksCollect(1, Describe);
  ASSERT_THAT(first, ElementsAre(IsOkAndHolds("0 of 1")));
  EXPECT_THAT(
      RunMpiRanksCollect(
          2, [&](Communicator&) { return absl::StrCat("after ", *first[0]); }),
      ElementsAre(IsOkAndHolds("after 0 of 1"), IsOkAndHolds("after 0 of 1")));
}

TEST_F(MpirunTest, ReportsErrorsAndDeaths) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGKILL);
    if (communicator.rank() == 2) return absl::NotFoundError("its own");
    return absl::OkStatus();
  });
  EXPECT_THAT(
      statuses,
      ElementsAre(IsOk(),
                  StatusIs(absl::StatusCode::kAborted,
                           HasSubstr("rank 1 ended without a result")),
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("its own"))));
}

TEST_F(MpirunTest, KillsStoppedRanksOnceTheOthersAreDone) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGSTOP);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses,
              ElementsAre(IsOk(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("without a result"))));
}

TEST_F(MpirunTest, EndsAtTheDeadline) {
  MpiRunOptions options;
  options.deadline = absl::Seconds(2);
  const auto statuses = RunMpiRanks(
      2,
      [](Communicator& communicator) {
        while (communicator.rank() == 1) pause();
        return absl::OkStatus();
      },
      options);
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("running after 2s")));
}

TEST_F(MpirunTest, LeavesNoFiles) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGKILL);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0], IsOk());
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::TempDir())) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("mpirun.")));
  }
}

}  // namespace
}  // namespace lockstep
