// The order of turns, with teams and a clock that are made up.
#include "benchmarks/all_reduce_measure.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce_plan.h"
#include "benchmarks/all_reduce_report.h"
#include "benchmarks/all_reduce_turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

AllReduceSettings Settings() {
  AllReduceSettings settings;
  settings.buffers = {BufferKind::kGroup};
  settings.peers = {TeamKind::kOpenMpi};
  settings.sizes = {1 << 20, 1 << 21};
  settings.rounds = 3;
  return settings;
}

class MeasureSizeTest : public testing::Test {
 protected:
  absl::StatusOr<MeasuredSize> Measure(const AllReduceSettings& settings) {
    subjects_ = SubjectsOf(settings);
    return MeasureSize(
        settings, 1 << 20,
        [this](const Team& team,
               const TurnRequest& request) -> absl::StatusOr<TurnResult> {
          turns_.push_back(Name(team.kind));
          requests_.push_back(request);
          if (team.kind == failing_) return absl::AbortedError("it broke");
          now_ += 1;
          return TurnResult{{0.5}, 1};
        },
        [this] { return now_; }, subjects_, missing_);
  }

  TeamKind failing_ = TeamKind::kThreads;  // Which nobody here is.
  double now_ = 100;
  std::vector<std::string> turns_;
  std::vector<TurnRequest> requests_;
  std::vector<Subject> subjects_;
  std::vector<MissingPeer> missing_;
};

TEST_F(MeasureSizeTest, BeginsEveryRoundWithAnother) {
  const absl::StatusOr<MeasuredSize> measured = Measure(Settings());
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("processes", "Open MPI", "copy",  //
                                  "Open MPI", "copy", "processes",  //
                                  "copy", "processes", "Open MPI"));
  EXPECT_EQ(measured->rounds, 3);
  ASSERT_THAT(measured->subjects, SizeIs(3));
  for (const MeasuredSubject& subject : measured->subjects) {
    EXPECT_THAT(subject.seconds, ElementsAre(0.5, 0.5, 0.5));
    EXPECT_EQ(subject.wrong, 3);
  }
}

TEST_F(MeasureSizeTest, GivesEveryRoundInputsOfItsOwn) {
  AllReduceSettings settings = Settings();
  settings.iterations = 10;
  ASSERT_THAT(Measure(settings), IsOk());
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(requests_[i].first, static_cast<int64_t>(i / 3 * 10));
    EXPECT_EQ(requests_[i].iterations, 10);
    EXPECT_EQ(requests_[i].count, 1 << 18);
    EXPECT_EQ(requests_[i].in_place, 1);
  }
}

TEST_F(MeasureSizeTest, StopsWhenTheSizesPartOfTheTimeIsOver) {
  AllReduceSettings settings = Settings();
  settings.rounds = 0;
  settings.seconds = 24;  // 12 for this size; a round takes 3.
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(4 * 3));
}

TEST_F(MeasureSizeTest, HasThreeRoundsHoweverLongTheyTake) {
  AllReduceSettings settings = Settings();
  settings.rounds = 0;
  settings.seconds = 0.1;
  ASSERT_THAT(Measure(settings), IsOk());
  EXPECT_THAT(turns_, SizeIs(3 * 3));
}

TEST_F(MeasureSizeTest, GoesOnWithoutAPeerThatFails) {
  failing_ = TeamKind::kOpenMpi;
  const absl::StatusOr<MeasuredSize> measured = Measure(Settings());
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(measured->subjects, SizeIs(2));
  EXPECT_THAT(subjects_, SizeIs(2));
  ASSERT_THAT(missing_, SizeIs(1));
  EXPECT_EQ(missing_[0].peer, TeamKind::kOpenMpi);
  EXPECT_EQ(missing_[0].why, "it broke");
}

TEST_F(MeasureSizeTest, FailsWithOneOfOurs) {
  failing_ = TeamKind::kProcesses;
  EXPECT_THAT(Measure(Settings()), StatusIs(absl::StatusCode::kAborted,
                                            "processes auto group: it broke"));
  EXPECT_THAT(missing_, IsEmpty());
}

}  // namespace
}  // namespace lockstep
