// Teams of real processes, well-behaved and not.
#include "benchmarks/rank_team.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce_turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(20);

std::unique_ptr<RankTeam> StartTeam(const std::string& how) {
  absl::StatusOr<std::unique_ptr<RankTeam>> team =
      RankTeam::Start([&](const std::string& listener) {
        TeamCommand command;
        command.argv = {"benchmarks/rank_team_test_rank", listener, how};
        command.nproc = command.connections = command.world_size = 2;
        return command;
      });
  EXPECT_THAT(team, IsOk());
  return *std::move(team);
}

TurnRequest Request(int64_t count) {
  TurnRequest request;
  request.count = count;
  return request;
}

TEST(RankTeamTest, TakesTurnsAndCombinesThem) {
  const std::unique_ptr<RankTeam> team = StartTeam("well");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<TurnResult> result =
        team->TakeTurn(Request(1), kDeadline);
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->seconds, ElementsAre(2));
    EXPECT_EQ(result->wrong, 1);
  }
  EXPECT_THAT(team->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, EndsWhileAnotherGoesOn) {
  const std::unique_ptr<RankTeam> first = StartTeam("well");
  ASSERT_THAT(first->AwaitRanks(kDeadline), IsOk());
  const std::unique_ptr<RankTeam> second = StartTeam("well");
  ASSERT_THAT(second->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(first->Stop(kDeadline), IsOk());
  EXPECT_THAT(second->TakeTurn(Request(1), kDeadline), IsOk());
  EXPECT_THAT(second->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, RefusesAWorldOfAnotherSize) {
  EXPECT_THAT(StartTeam("singletons")->AwaitRanks(kDeadline),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "a rank is one of 1, not of 2 as asked"));
}

TEST(RankTeamTest, RefusesTheSameRankTwice) {
  EXPECT_THAT(StartTeam("twins")->AwaitRanks(kDeadline),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "rank 0 of 2 is one too many"));
}

TEST(RankTeamTest, QuotesWhatARankSaidThatDidNotCome) {
  EXPECT_THAT(StartTeam("mute")->AwaitRanks(kDeadline),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 is sorry"));
}

TEST(RankTeamTest, DoesNotWaitForeverForRanks) {
  const std::unique_ptr<RankTeam> team = StartTeam("silent");
  EXPECT_THAT(team->AwaitRanks(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "0 of 2 ranks connected within 1ms"));
  EXPECT_THAT(team->Stop(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kAborted,
                       "the ranks did not end within 50ms"));
}

TEST(RankTeamTest, SaysWhichRankFailedAndWhy) {
  const std::unique_ptr<RankTeam> team = StartTeam("fails");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->TakeTurn(Request(13), kDeadline),
              StatusIs(absl::StatusCode::kAborted, "rank 1: unlucky"));
}

TEST(RankTeamTest, SaysWhichRankDied) {
  const std::unique_ptr<RankTeam> team = StartTeam("dies");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->TakeTurn(Request(13), kDeadline),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("was killed by signal 9 (SIGKILL)")));
}

TEST(RankTeamTest, GivesATurnUp) {
  const std::unique_ptr<RankTeam> team = StartTeam("hangs");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->TakeTurn(Request(13), absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "rank 1: no answer came in time"));
  EXPECT_THAT(team->Stop(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kAborted,
                       "the ranks did not end within 50ms"));
}

TEST(RankTeamTest, ReportsAProgramThatIsNotThere) {
  absl::StatusOr<std::unique_ptr<RankTeam>> team =
      RankTeam::Start([&](const std::string&) {
        TeamCommand command;
        command.argv = {"/absent/program"};
        return command;
      });
  ASSERT_THAT(team, IsOk());
  EXPECT_THAT(
      (*team)->AwaitRanks(kDeadline),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/absent/program")));
}

}  // namespace
}  // namespace lockstep
