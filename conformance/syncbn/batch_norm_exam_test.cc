// An exam that says nothing of one channel is rejected, whatever it says of the
// others; and large ones are as large as they are meant to be.
#include "conformance/syncbn/batch_norm_exam.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/data_type.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Of 9 channels and 2 samples of 4 pixels.
BatchNormExam SmallExam() {
  BatchNormExam exam = MakeExam({.world_size = 2,
                                 .batches = Batches::kOneSample,
                                 .channels = 9,
                                 .hw = 4});
  EXPECT_THAT(CheckMeaning(exam), IsOk());
  return exam;
}

auto Rejects(const std::string& what) {
  return StatusIs(absl::StatusCode::kInternal, HasSubstr(what));
}

// Sets the numbers of one channel of one sample, [1, 9, 4].
void SetChannel(std::vector<double>& numbers, size_t c, double value) {
  for (size_t i = 0; i < 4; ++i) numbers[c * 4 + i] = value;
}

TEST(MeaningTest, RejectsABoundThatOneChannelIsTooSmallFor) {
  for (size_t c = 0; c < 9; ++c) {
    BatchNormExam exam = SmallExam();
    // The other channels would bear 0.4.
    for (size_t i = 0; i < 9; ++i) exam.layer.weight[i] = 1;
    ASSERT_THAT(CheckMeaning(exam), IsOk());
    SetChannel(exam.steps[1].want.y[1].bound, c, 0.4);
    ASSERT_THAT(CheckMeaning(exam), IsOk());
    exam.layer.weight[c] = -0.6;
    EXPECT_THAT(CheckMeaning(exam),
                Rejects("channel " + std::to_string(c) + ": bounds of y 1.3"));
  }
}

TEST(MeaningTest, RejectsBoundsOfGradients) {
  BatchNormExam exam = SmallExam();
  exam.steps[0].want.dx[1].bound[8 * 4] = 10;
  EXPECT_THAT(CheckMeaning(exam), Rejects("channel 8: "));
  exam = SmallExam();
  exam.steps[2].want.dweight.bound[3] = 8 * 0.26;
  EXPECT_THAT(CheckMeaning(exam), Rejects("channel 3: "));
  exam = SmallExam();
  exam.steps[2].want.y[0].bound[5 * 4 + 1] = NAN;
  EXPECT_THAT(CheckMeaning(exam), Rejects("channel 5: "));
}

// By chance, up to a third of the channels may have a gradient near zero.
TEST(MeaningTest, RejectsManyGradientsNearZero) {
  BatchNormExam exam = SmallExam();
  for (size_t c = 0; c < 3; ++c) exam.steps[0].want.dbias.value[c] = 0;
  EXPECT_THAT(CheckMeaning(exam), IsOk());
  exam.steps[0].want.dweight.value[7] = 0;
  EXPECT_THAT(CheckMeaning(exam), Rejects("4 channels have gradients near"));
  exam = SmallExam();
  for (size_t c = 0; c < 4; ++c) {
    SetChannel(exam.steps[1].want.dx[0].value, c, 0);
    SetChannel(exam.steps[1].want.dx[1].value, c, 0);
  }
  EXPECT_THAT(CheckMeaning(exam), Rejects("4 channels have gradients near"));
}

TEST(MeaningTest, RejectsGradientsThatReluTakesAway) {
  BatchNormExam exam = SmallExam();
  for (std::vector<double>& g : exam.steps[1].want.dresidual) {
    for (size_t i = 4; i < g.size(); ++i) g[i] = 0;
  }
  EXPECT_THAT(CheckMeaning(exam), IsOk());
  for (std::vector<double>& g : exam.steps[1].want.dresidual) {
    SetChannel(g, 0, 0);
  }
  EXPECT_THAT(CheckMeaning(exam), Rejects("9 have none"));
}

// The sizes from which the CPU's kernels take other ways (column_plan.cc,
// elementwise.h), aligned, in the first step.
TEST(LargeProblemsTest, HaveSegmentsAndStreams) {
  constexpr int64_t kTwoSegments = 2 << 17;
  int last = 0;
  int first = 0;
  int streams = 0;
  for (const BatchNormProblem& problem : LargeProblems()) {
    const int64_t values = BatchSizes(problem, 0)[0] * problem.hw;
    const int64_t size = values * problem.channels;
    last += size >= kTwoSegments;
    first += values >= kTwoSegments;
    streams += problem.type == DataType::kFloat32 && problem.hw % 16 == 0 &&
               size * SizeOf(problem.type) >= 4 << 20;
  }
  EXPECT_EQ(last, 3);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(streams, 1);
}

}  // namespace
}  // namespace lockstep
