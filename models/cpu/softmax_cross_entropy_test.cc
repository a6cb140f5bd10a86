#include "models/cpu/softmax_cross_entropy.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Metrics Loss(const std::vector<float>& logits,
             const std::vector<int32_t>& labels, int64_t classes) {
  return SoftmaxCrossEntropy(logits, labels, classes, 0, {});
}

TEST(SoftmaxCrossEntropyTest, EqualLogitsGiveLogOfClasses) {
  std::vector<float> gradient(8, kNan);
  const Metrics metrics =
      SoftmaxCrossEntropy(std::vector<float>(8, 3.0f),
                          std::vector<int32_t>{0, 2}, 4, 2.0f, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2 * std::log(4.0), 1e-15);
  EXPECT_EQ(metrics.samples, 2);
  EXPECT_EQ(metrics.correct, 1);  // Of equal logits the first counts.
  EXPECT_THAT(gradient,
              ElementsAre(-1.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, -1.5f, 0.5f));
}

TEST(SoftmaxCrossEntropyTest, GradientIsTheSlopeOfTheLoss) {
  const std::vector<float> logits = {0.5f, -1.25f, 2.0f, 0.0f, 3.0f, -2.0f};
  const std::vector<int32_t> labels = {1, 1};
  std::vector<float> gradient(6, kNan);
  SoftmaxCrossEntropy(logits, labels, 3, 1, gradient);
  constexpr float kStep = 0x1p-10f;  // Exact in these logits.
  for (size_t i = 0; i < logits.size(); ++i) {
    std::vector<float> above = logits, below = logits;
    above[i] += kStep;
    below[i] -= kStep;
    const double slope =
        (Loss(above, labels, 3).loss_sum - Loss(below, labels, 3).loss_sum) /
        (2 * kStep);
    // The third derivative of the loss is below 1/2: step^2 / 6 * 1/2.
    EXPECT_NEAR(gradient[i], slope, 0x1p-20 / 12 + 0x1p-24);
  }
}

TEST(SoftmaxCrossEntropyTest, HugeLogitsDoNotOverflow) {
  std::vector<float> gradient(2, kNan);
  const Metrics metrics =
      SoftmaxCrossEntropy(std::vector<float>{1e30f, -1e30f},
                          std::vector<int32_t>{1}, 2, 1, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2e30, 1e24);
  EXPECT_EQ(metrics.correct, 0);
  EXPECT_THAT(gradient, ElementsAre(1.0f, -1.0f));
}

TEST(SoftmaxCrossEntropyTest, GradientMayOverwriteLogits) {
  const std::vector<int32_t> labels = {0, 1};
  std::vector<float> logits = {1, 2, 3, -1, 0, 1}, gradient(6);
  SoftmaxCrossEntropy(logits, labels, 3, 0.5f, gradient);
  SoftmaxCrossEntropy(logits, labels, 3, 0.5f, logits);
  EXPECT_EQ(logits, gradient);
}

TEST(SoftmaxCrossEntropyTest, NanIsNeverCorrectAndShowsInTheLoss) {
  for (size_t at = 0; at < 3; ++at) {
    for (const int32_t label : {0, 1, 2}) {
      std::vector<float> logits = {1, 1, 1}, gradient(3);
      logits[at] = kNan;
      logits[label] += 5;
      const Metrics metrics = SoftmaxCrossEntropy(
          logits, std::vector<int32_t>{label}, 3, 1, gradient);
      EXPECT_EQ(metrics.correct, 0);
      EXPECT_TRUE(std::isnan(metrics.loss_sum));
      EXPECT_TRUE(std::isnan(gradient[label]));
    }
  }
  EXPECT_TRUE(std::isnan(Loss({kInfinity, 0}, {0}, 2).loss_sum));
}

TEST(SoftmaxCrossEntropyTest, EmptyBatchIsZero) {
  const Metrics metrics = Loss({}, {}, 10);
  EXPECT_EQ(metrics.loss_sum, 0);
  EXPECT_EQ(metrics.samples, 0);
}

TEST(CheckLabelsTest, NamesTheFirstOutOfRange) {
  const auto bad = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(CheckLabels({}, 3), IsOk());
  EXPECT_THAT(CheckLabels(std::vector<int32_t>{0, 1, 2}, 3), IsOk());
  EXPECT_THAT(CheckLabels(std::vector<int32_t>{0, 3, 4}, 3),
              bad("label 3 of sample 1 is not in [0, 3)"));
  EXPECT_THAT(CheckLabels(std::vector<int32_t>{-1}, 3),
              bad("label -1 of sample 0"));
}

}  // namespace
}  // namespace lockstep
