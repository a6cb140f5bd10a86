// Tests of the order of draws, with fake draws and a fake clock.
#include "benchmarks/sampler/results.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/sampler/settings.h"
#include "benchmarks/sampler/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

class MeasureEpochTest : public testing::Test {
 protected:
  MeasureEpochTest() { settings_.rounds = 3; }

  absl::StatusOr<DrawRows> Measure() {
    return MeasureEpoch(
        settings_, 1000,
        [this](DrawSubject subject, int64_t size) {
          EXPECT_EQ(size, 1000);
          return Draw(subject);
        },
        [this] { return now_; }, subjects_, missing_);
  }

  absl::StatusOr<DrawResult> Draw(DrawSubject subject) {
    turns_.push_back(Name(subject));
    now_ += seconds_;
    const int64_t turn = ++turns_of_[subject];
    if (subject == failing_ && turn == failing_turn_) {
      return absl::UnavailableError("it broke");
    }
    const bool other = subject == other_ && turn >= other_turn_;
    return DrawResult{
        .seconds = seconds_, .count = 125, .checksum = other ? 8u : 7u};
  }

  SamplerSettings settings_;
  std::vector<DrawSubject> subjects_ = {
      DrawSubject::kTorch, DrawSubject::kPyTorch, DrawSubject::kTable};
  std::string missing_;
  double now_ = 0;
  double seconds_ = 0.5;                        // Of each draw.
  DrawSubject failing_ = DrawSubject::kPaddle;  // Not drawn here.
  int64_t failing_turn_ = 2;
  DrawSubject other_ = DrawSubject::kPaddle;
  int64_t other_turn_ = 1;
  std::vector<std::string> turns_;
  std::map<DrawSubject, int64_t> turns_of_;
};

TEST_F(MeasureEpochTest, GivesEachATurnInEveryRound) {
  const absl::StatusOr<DrawRows> measured = Measure();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("torch", "PyTorch", "table",  //
                                  "PyTorch", "torch", "table",  //
                                  "PyTorch", "table", "torch"));
  EXPECT_EQ(measured->size, 1000);
  ASSERT_THAT(measured->rows, SizeIs(3));
  for (const DrawRow& draws : measured->rows) {
    EXPECT_THAT(draws.seconds, ElementsAre(0.5, 0.5, 0.5));
    EXPECT_EQ(draws.count, 125);
    EXPECT_EQ(draws.checksum, 7u);
  }
  EXPECT_THAT(missing_, IsEmpty());
}

TEST_F(MeasureEpochTest, TakesAsManyRoundsAsTheTimeAllows) {
  settings_.rounds = 0;
  settings_.seconds = 10;
  const std::vector<std::pair<double, size_t>> rounds_of_seconds = {
      {100, 2}, {1.2, 2}, {1.1, 3}, {0.5, 6}, {0.001, 15}};
  for (const auto& [seconds, rounds] : rounds_of_seconds) {
    seconds_ = seconds;
    now_ = 0;
    const absl::StatusOr<DrawRows> measured = Measure();
    ASSERT_THAT(measured, IsOk());
    EXPECT_THAT(measured->rows[0].seconds, SizeIs(rounds)) << seconds;
  }
  // The time that earlier sizes took is not available.
  seconds_ = 0.5;
  now_ = 9;
  EXPECT_THAT(Measure()->rows[0].seconds, SizeIs(2));
}

TEST_F(MeasureEpochTest, GoesOnWithoutPyTorch) {
  failing_ = DrawSubject::kPyTorch;
  const absl::StatusOr<DrawRows> measured = Measure();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(missing_, "at 1000 samples: it broke");
  EXPECT_THAT(subjects_, ElementsAre(DrawSubject::kTorch, DrawSubject::kTable));
  ASSERT_THAT(measured->rows, SizeIs(2));
  for (const DrawRow& draws : measured->rows) {
    EXPECT_THAT(draws.seconds, SizeIs(3));
  }
}

TEST_F(MeasureEpochTest, FailsWithOneOfOurs) {
  failing_ = DrawSubject::kTorch;
  EXPECT_THAT(Measure(),
              StatusIs(absl::StatusCode::kUnavailable, "torch: it broke"));
}

TEST_F(MeasureEpochTest, ComparesWithPyTorchAndWithTheRoundBefore) {
  other_ = DrawSubject::kPyTorch;
  EXPECT_THAT(Measure(), StatusIs(kDataLoss,
                                  "torch: of 1000 samples it draws 125 indices "
                                  "with CRC-32 7, PyTorch 125 with 8"));
  EXPECT_THAT(turns_, SizeIs(2));
  turns_of_.clear();
  other_ = DrawSubject::kTorch;
  other_turn_ = 2;
  EXPECT_THAT(Measure(),
              StatusIs(kDataLoss, HasSubstr("drawn again, has other indices")));
}

}  // namespace
}  // namespace lockstep::benchmarks
