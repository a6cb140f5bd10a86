// The order of turns, with ranks and a clock that are made up.
#include "benchmarks/syncbn_measure.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/syncbn_plan.h"
#include "benchmarks/syncbn_turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SyncBnMeasureTest : public testing::Test {
 protected:
  SyncBnMeasureTest() {
    settings_.sets = {ShapeSet::kResNet18};
    settings_.rounds = 2;
  }

  absl::StatusOr<TeamTurn> Take(const SyncBnRequest& request) {
    turns_.push_back(Name(request.subject));
    requests_.push_back(request);
    now_ += 1;
    if (request.subject == failing_) return absl::AbortedError("it broke");
    TeamTurn turn;
    if (request.subject == missing_) {
      turn.missing = "not here";
      return turn;
    }
    turn.forward.resize(static_cast<size_t>(request.iterations));
    if (request.network == 0) turn.backward = turn.forward;
    turn.wrong = 1;
    turn.note = "who";
    return turn;
  }

  absl::StatusOr<MeasuredTurns> Layer(int64_t n = 1) {
    return MeasureLayer(
        settings_, {ShapeSet::kResNet18, n, 28, 28, 64},
        [this](const SyncBnRequest& request) { return Take(request); },
        [this] { return now_; });
  }
  absl::StatusOr<MeasuredTurns> Network() {
    return MeasureNetwork(
        settings_,
        [this](const SyncBnRequest& request) { return Take(request); },
        [this] { return now_; });
  }

  SyncBnSettings settings_;
  std::optional<SyncBnSubject> failing_, missing_;
  double now_ = 100;
  std::vector<std::string> turns_;
  std::vector<SyncBnRequest> requests_;
};

TEST_F(SyncBnMeasureTest, GoesBackEverySecondRound) {
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("local BN", "own local BN", "SyncBN",
                                  "SyncBN with timers", "message", "copy",
                                  "PyTorch",  //
                                  "own local BN", "local BN", "PyTorch", "copy",
                                  "message", "SyncBN with timers", "SyncBN"));
  EXPECT_EQ(measured->rounds, 2);
  ASSERT_THAT(measured->subjects, SizeIs(7));
  for (const SyncBnMeasured& subject : measured->subjects) {
    EXPECT_THAT(subject.forward, SizeIs(2 * 100));
    EXPECT_THAT(subject.backward, SizeIs(2 * 100));
    EXPECT_EQ(subject.wrong, 2);
    EXPECT_EQ(subject.note, "who");
  }
  EXPECT_EQ(requests_[0].layer.c, 64);
  EXPECT_EQ(requests_[0].warmup, 2);
  EXPECT_EQ(requests_[0].network, 0);
}

// Over two rounds of each beginning: every subject has every place, and the
// same one before it in at most half of the rounds.
TEST_F(SyncBnMeasureTest, PutsNoSubjectAlwaysBehindTheSame) {
  settings_.rounds = 14;
  ASSERT_THAT(Layer(), IsOk());
  ASSERT_THAT(turns_, SizeIs(14 * 7));
  for (size_t subject = 0; subject < 7; ++subject) {
    std::map<std::string, int> before;
    std::set<size_t> places;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i] != turns_[subject]) continue;
      places.insert(i % 7);
      if (i > 0) ++before[turns_[i - 1]];
    }
    EXPECT_THAT(places, SizeIs(7)) << turns_[subject];
    EXPECT_THAT(before, SizeIs(testing::Ge(2u))) << turns_[subject];
    for (const auto& [name, times] : before) {
      EXPECT_NE(name, turns_[subject]);
      EXPECT_LE(times, 7) << name << ", " << turns_[subject];
    }
  }
}

TEST_F(SyncBnMeasureTest, WarmsLargeTensorsUpOnce) {
  ASSERT_THAT(Layer(/*n=*/200), IsOk());
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(requests_[i].iterations, 1);
    EXPECT_EQ(requests_[i].warmup, i < 7 ? 1 : 0);
  }
}

TEST_F(SyncBnMeasureTest, LeavesOutPyTorchUnlessAsked) {
  settings_.torch = false;
  ASSERT_THAT(Layer(), IsOk());
  EXPECT_THAT(turns_, SizeIs(2 * 6));
}

TEST_F(SyncBnMeasureTest, GoesOnWithoutWhatIsMissing) {
  missing_ = SyncBnSubject::kTorch;
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, SizeIs(7 + 6));
  const SyncBnMeasured* const torch = measured->Find(SyncBnSubject::kTorch);
  ASSERT_NE(torch, nullptr);
  EXPECT_EQ(torch->missing, "not here");
  EXPECT_THAT(torch->forward, IsEmpty());
}

TEST_F(SyncBnMeasureTest, FailsWithATurn) {
  failing_ = SyncBnSubject::kSync;
  EXPECT_THAT(Layer(),
              StatusIs(absl::StatusCode::kAborted, "SyncBN: it broke"));
}

TEST_F(SyncBnMeasureTest, StopsWhenTheShapesPartOfTheTimeIsOver) {
  settings_.rounds = 0;
  settings_.network = false;
  settings_.seconds = 100;  // 25 for each of four shapes; a round takes 7.
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(measured->rounds, 4);
}

TEST_F(SyncBnMeasureTest, HasThreeRoundsHoweverLongTheyTake) {
  settings_.rounds = 0;
  settings_.seconds = 0.1;
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(measured->rounds, 3);
}

TEST_F(SyncBnMeasureTest, TrainsTheNetworkInTurns) {
  settings_.seed = 7;
  const absl::StatusOr<MeasuredTurns> measured = Network();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_,
              ElementsAre("local BN", "SyncBN", "SyncBN with timers",  //
                          "SyncBN", "local BN", "SyncBN with timers"));
  for (const SyncBnRequest& request : requests_) {
    EXPECT_EQ(request.network, 1);
    EXPECT_EQ(request.layer.n, 16);
    EXPECT_EQ(request.layer.seed, 7u);
    EXPECT_EQ(request.iterations, 1);
  }
}

}  // namespace
}  // namespace lockstep
