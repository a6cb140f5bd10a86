#include "collectives/testing/run_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class RunRanksTest : public testing::TestWithParam<Backend> {};

TEST_P(RunRanksTest, ReturnsEachRanksStatus) {
  EXPECT_THAT(
      RunRanks(GetParam(), 3,
               [](Communicator& communicator) {
                 return communicator.rank() == 1
                            ? absl::NotFoundError("nothing")
                            : absl::OkStatus();
               }),
      ElementsAre(IsOk(), StatusIs(absl::StatusCode::kNotFound, "nothing"),
                  IsOk()));
}

// More bytes than a pipe holds.
TEST_P(RunRanksTest, ReturnsEachRanksBytes) {
  const auto bytes = [](int rank) {
    return std::string(1 << 18, static_cast<char>('a' + rank));
  };
  EXPECT_THAT(
      RunRanksCollect(
          GetParam(), 2,
          [&](Communicator& communicator) -> absl::StatusOr<std::string> {
            return bytes(communicator.rank());
          }),
      ElementsAre(IsOkAndHolds(bytes(0)), IsOkAndHolds(bytes(1))));
}

TEST_P(RunRanksTest, ReportsWhyThereIsNoGroup) {
  RunRanksOptions options;
  options.group.slot_bytes = 65;
  const auto statuses = RunRanks(
      GetParam(), 2, [](Communicator&) { return absl::OkStatus(); }, options);
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("slot_bytes 65"))));
}

INSTANTIATE_TEST_SUITE_P(Backends, RunRanksTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

TEST(RunRanksProcessesTest, NamesTheSignalThatEndedARank) {
  const auto statuses =
      RunRanks(Backend::kProcesses, 2, [](Communicator& communicator) {
        if (communicator.rank() == 1) raise(SIGKILL);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses,
              ElementsAre(IsOk(), StatusIs(absl::StatusCode::kAborted,
                                           "rank 1 ended by signal 9")));
}

TEST(RunRanksProcessesTest, NamesTheExitStatusOfARankWithoutResult) {
  const auto statuses = RunRanks(
      Backend::kProcesses, 1, [](Communicator&) -> absl::Status { _exit(3); });
  EXPECT_THAT(statuses, ElementsAre(StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("exit status 3"))));
}

TEST(RunRanksProcessesTest, KillsWhatOutlivesTheDeadline) {
  RunRanksOptions options;
  options.deadline = absl::Milliseconds(100);
  const auto statuses = RunRanks(
      Backend::kProcesses, 2,
      [](Communicator& communicator) {
        while (communicator.rank() == 1) pause();
        return absl::OkStatus();
      },
      options);
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("rank 1 was still running")));
}

TEST(RunRanksProcessesTest, EndsWhenOnlyStoppedRanksAreLeft) {
  const auto statuses =
      RunRanks(Backend::kProcesses, 2, [](Communicator& communicator) {
        if (communicator.rank() == 0) raise(SIGSTOP);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, ElementsAre(StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("signal 9")),
                                    IsOk()));
}

}  // namespace
}  // namespace lockstep
