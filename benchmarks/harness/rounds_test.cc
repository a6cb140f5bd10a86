// Tests rounds, and the signals that end them.
#include "benchmarks/harness/rounds.h"

#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/interrupt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::SizeIs;

// Rounds of turns, by a fake clock.

// Returns the turns of `rounds` rounds of `count` subjects, one after the
// other.
std::vector<size_t> Turns(int rounds, size_t count) {
  std::vector<size_t> turns;
  EXPECT_THAT(MeasureRounds(
                  {.rounds = rounds}, count, [] { return 0.0; },
                  [&](int, size_t subject) {
                    turns.push_back(subject);
                    return absl::OkStatus();
                  }),
              IsOkAndHolds(rounds));
  return turns;
}

TEST(MeasureRoundsTest, GoesBackEverySecondRound) {
  EXPECT_THAT(Turns(4, 3), testing::ElementsAre(0, 1, 2,  //
                                                1, 0, 2,  //
                                                1, 2, 0,  //
                                                2, 1, 0));
  EXPECT_THAT(Turns(3, 1), testing::ElementsAre(0, 0, 0));
}

// 14 rounds are two rounds of each beginning. Every subject then has every
// position, and each other subject comes just before it at most 7 times.
TEST(MeasureRoundsTest, PutsNoSubjectAlwaysBehindTheSame) {
  const std::vector<size_t> turns = Turns(14, 7);
  ASSERT_THAT(turns, SizeIs(14 * 7));
  for (size_t subject = 0; subject < 7; ++subject) {
    std::map<size_t, int> before;
    std::set<size_t> places;
    for (size_t i = 0; i < turns.size(); ++i) {
      if (turns[i] != subject) continue;
      places.insert(i % 7);
      if (i > 0) ++before[turns[i - 1]];
    }
    EXPECT_THAT(places, SizeIs(7)) << subject;
    EXPECT_THAT(before, SizeIs(testing::Ge(2u))) << subject;
    for (const auto& [other, times] : before) {
      EXPECT_NE(other, subject);
      EXPECT_LE(times, 7) << other << ", " << subject;
    }
  }
}

// Returns the number of rounds of `seconds` each that the limits allow.
absl::StatusOr<int> RoundsOf(const RoundLimits& limits, double seconds) {
  double now = 100;
  return MeasureRounds(
      limits, 2, [&] { return now; },
      [&](int, size_t) {
        now += seconds / 2;
        return absl::OkStatus();
      });
}

TEST(MeasureRoundsTest, HasAsManyRoundsAsTheTimeAllows) {
  const RoundLimits limits = {.fewest = 2, .most = 15, .seconds = 10};
  EXPECT_THAT(RoundsOf(limits, 100), IsOkAndHolds(2));
  EXPECT_THAT(RoundsOf(limits, 4), IsOkAndHolds(2));
  EXPECT_THAT(RoundsOf(limits, 2), IsOkAndHolds(5));
  EXPECT_THAT(RoundsOf(limits, 0.25), IsOkAndHolds(15));
  EXPECT_THAT(RoundsOf({.rounds = 4, .most = 1, .seconds = 1}, 100),
              IsOkAndHolds(4));
}

TEST(InterruptGuardTest, EndsTheRoundAfterTheTurnAndThenTheProcess) {
  const auto interrupted = [] {
    const InterruptGuard guard;
    if (!CheckInterrupted().ok()) _exit(1);
    int turns = 0;
    const absl::StatusOr<int> rounds = MeasureRounds(
        {.rounds = 5}, 2, SteadySeconds, [&](int, size_t) -> absl::Status {
          if (++turns == 3) raise(SIGINT);
          return absl::OkStatus();
        });
    if (turns != 3 || !absl::IsCancelled(rounds.status())) _exit(2);
  };
  EXPECT_EXIT(interrupted(), testing::KilledBySignal(SIGINT),
              "interrupted by signal 2 \\(SIGINT\\)");
  EXPECT_EXIT(
      {
        const InterruptGuard guard;
        raise(SIGTERM);
        raise(SIGTERM);
        _exit(3);
      },
      testing::KilledBySignal(SIGTERM), "");
}

TEST(InterruptGuardTest, LeavesIgnoredSignalsIgnoredAndGoesWithoutATrace) {
  EXPECT_EXIT(
      {
        signal(SIGHUP, SIG_IGN);
        {
          const InterruptGuard guard;
          raise(SIGHUP);
          if (!CheckInterrupted().ok()) _exit(1);
        }
        struct sigaction now;
        sigaction(SIGINT, nullptr, &now);
        _exit(now.sa_handler == SIG_DFL ? 0 : 2);
      },
      testing::ExitedWithCode(0), "");
}

TEST(MeasureRoundsTest, StopsAtTheFirstTurnThatFails) {
  int turns = 0;
  EXPECT_THAT(MeasureRounds(
                  {.rounds = 2}, 3, [] { return 0.0; },
                  [&](int, size_t subject) {
                    ++turns;
                    return subject == 1 ? absl::AbortedError("it broke")
                                        : absl::OkStatus();
                  }),
              StatusIs(absl::StatusCode::kAborted, "it broke"));
  EXPECT_EQ(turns, 2);
  EXPECT_THAT(Named("it", absl::AbortedError("broke")),
              StatusIs(absl::StatusCode::kAborted, "it: broke"));
}

}  // namespace
}  // namespace lockstep::benchmarks
