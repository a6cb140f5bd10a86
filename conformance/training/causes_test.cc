// Tests the causes on made-up steps, where they apply and where they do not.
// The mutants test the causes that they are named by.
#include "conformance/training/causes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kSize = 40;

// Returns a number in (-1, 1), in float32's steps.
float Draw(std::mt19937& random) {
  return static_cast<float>(random() >> 8) * 0x1p-23f - 1;
}

class GradientCausesTest : public testing::Test {
 protected:
  GradientCausesTest() {
    std::mt19937 random(1);
    for (int rank = 0; rank < 3; ++rank) {
      Bounded part(kSize);
      for (size_t i = 0; i < kSize; ++i) {
        part.value[i] = Draw(random);
        part.bound[i] = 1e-6;
        want_.value[i] += part.value[i];
        want_.bound[i] += part.bound[i];
      }
      parts_.push_back(part);
    }
    ranks_.assign(3, Weighted({1, 1, 1}));
  }

  std::vector<float> Weighted(const std::vector<double>& weights) const {
    std::vector<float> sum(kSize);
    for (size_t i = 0; i < kSize; ++i) {
      double value = 0;
      for (size_t r = 0; r < weights.size(); ++r) {
        value += weights[r] * parts_[r].value[i];
      }
      sum[i] = static_cast<float>(value);
    }
    return sum;
  }

  StepGradients Step() const {
    return {specs_, want_, ranks_, parts_, samples_, {}};
  }
  // Returns the cause for ranks that all have this gradient.
  std::string CauseOf(const std::vector<float>& got) {
    ranks_.assign(3, got);
    return CauseOfGradient(Step(), 0);
  }

  const std::vector<ParameterSpec> specs_ = {{"W", {36}, 0, 36},
                                             {"b", {4}, 36, 4}};
  std::vector<int64_t> samples_ = {6, 6, 5};
  Bounded want_{kSize};
  std::vector<Bounded> parts_;
  std::vector<std::vector<float>> ranks_;
};

TEST_F(GradientCausesTest, NamesPartsWithOtherWeights) {
  const auto same = [](double weight) { return std::vector(3, weight); };
  const std::pair<std::vector<double>, const char*> kCauses[] = {
      {{1, 1, 0}, "; rank 2's part is left out"},
      {{0, 2, 1}, "; rank 0's part is left out, rank 1's part counts 2 times"},
      {{1, 0, 0}, "; it is that of this rank's own samples: not reduced?"},
      {{0, 1, 0}, "; rank 0's part is left out, rank 2's part is left out"},
      {{17.0 / 18, 17.0 / 18, 17.0 / 15},
       "; it is the mean of the ranks' means, without weights"},
      {same(17.0 / 24),
       "; it is the sum over 17 samples divided by 24: another batch's count?"},
      {same(2), ""},  // 8.5 is no count.
      {same(-1), ""},
      {same(1), ""},
      {same(1.002), ""},
      // CheckGradients names the world size.
      {same(3), ""},
      {same(1.0 / 3), ""}};
  for (const auto& [weights, cause] : kCauses) {
    EXPECT_EQ(CauseOf(Weighted(weights)), cause);
  }
}

TEST_F(GradientCausesTest, NamesATensorThatIsTheSumOfTheStepBefore) {
  std::mt19937 random(2);
  std::vector<float> before(kSize);
  for (float& value : before) value = Draw(random);
  std::vector<float> got = Weighted({1, 1, 1});
  for (size_t i = 0; i < 36; ++i) got[i] = before[i] + before[i] + before[i];
  ranks_.assign(3, got);
  StepGradients step = Step();
  EXPECT_EQ(CauseOfGradient(step, 0), "");  // The first step.
  step.before = before;
  EXPECT_EQ(CauseOfGradient(step, 0),
            "; all of W is 3 times the sum of the step before: reduced before "
            "it was computed?");
  before[35] += 1e-5f;
  EXPECT_EQ(CauseOfGradient(step, 0), "");
}

TEST_F(GradientCausesTest, LeavesOutRanksWithoutSamples) {
  samples_ = {6, 6, 0};
  parts_[2] = Bounded(kSize);
  want_ = Bounded(kSize);
  for (size_t i = 0; i < kSize; ++i) {
    want_.value[i] = parts_[0].value[i] + parts_[1].value[i];
    want_.bound[i] = 2e-6;
  }
  EXPECT_EQ(CauseOf(Weighted({2, 2, 0})),
            "; it is the sum over 12 samples divided by 6: another batch's "
            "count?");
  EXPECT_EQ(CauseOf(Weighted({1, 0.5, 0})), "; rank 1's part counts 0.5 times");
  samples_ = {6, 0, 0};
  parts_[1] = Bounded(kSize);
  want_.value = parts_[0].value;
  EXPECT_EQ(CauseOf(Weighted({1.0 / 3, 0, 0})), "");
}

TEST_F(GradientCausesTest, NamesValuesOfAnotherPlaceAndATensorOfZeros) {
  std::vector<float> got = Weighted({1, 1, 1});
  std::swap_ranges(got.begin(), got.begin() + 12, got.begin() + 12);
  EXPECT_EQ(CauseOf(got),
            "; it has there the values of W[12]: in another's place?");
  got = Weighted({1, 1, 1});
  std::fill(got.begin() + 36, got.end(), 0.0f);
  EXPECT_EQ(CauseOf(got), "; all of b is zero: left out?");
  got[37] = 0.5f;
  EXPECT_EQ(CauseOf(got), "");
}

TEST_F(GradientCausesTest, NamesNothingElse) {
  const std::vector<float> right = Weighted({1, 1, 1});
  // Errors that are small, but not like rounding; and arbitrary ones.
  for (const float wrong : {right[7] * 1.001f, right[7] + 1, std::nanf(""),
                            std::numeric_limits<float>::infinity()}) {
    std::vector<float> got = right;
    got[7] = wrong;
    EXPECT_EQ(CauseOf(got), "") << wrong;
  }
  std::vector<float> got = right;
  for (float& v : got) {  // As float16 would round.
    v = std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x1000u) &
                             0xffffe000u);
  }
  EXPECT_EQ(CauseOf(got), "");
  EXPECT_EQ(CauseOf(std::vector<float>(kSize, 0.25f)), "");
  // Parts that are equal cannot be distinguished.
  parts_[1] = parts_[0];
  EXPECT_EQ(CauseOf(Weighted({3, 0, 1})), "");
}

TEST_F(GradientCausesTest, NamesWhyRanksDisagree) {
  for (size_t rank = 0; rank < 3; ++rank) {
    std::vector<double> own(3);
    own[rank] = 1;
    const std::vector<float> part = Weighted(own);
    std::copy(part.begin(), part.begin() + 20, ranks_[rank].begin());
  }
  EXPECT_EQ(CauseOfDisagreement(Step(), 2),
            "; each has there the gradient of its own samples: not reduced?");
  ranks_[0] = Weighted({1, 1, 1});
  EXPECT_THAT(CauseOfDisagreement(Step(), 2),
              HasSubstr("; rank 2 has there the gradient of its own samples"));
  ranks_[2][3] += 1;
  EXPECT_EQ(CauseOfDisagreement(Step(), 2), "");
  ranks_[2] = ranks_[0];
  ranks_[2][3] = std::nextafter(ranks_[2][3], 9.0f);
  EXPECT_EQ(CauseOfDisagreement(Step(), 2),
            "; both are right within rounding: added in different orders?");
}

constexpr float kRate = 0.1f;

// An update of 40 parameters in two tensors.
class UpdateCausesTest : public testing::Test {
 protected:
  UpdateCausesTest() {
    std::mt19937 random(1);
    for (size_t i = 0; i < 40; ++i) {
      before_.push_back(Draw(random));
      gradient_.push_back(Draw(random));
    }
    after_ = Updated(1, 1);
  }

  std::vector<float> Updated(float keeps, float times) const {
    std::vector<float> after;
    for (size_t i = 0; i < 40; ++i) {
      after.push_back(keeps * before_[i] - times * kRate * gradient_[i]);
    }
    return after;
  }
  std::string Cause(size_t wrong = 0) const {
    return CauseOfUpdate({specs_, before_, after_, gradient_, kRate, 3}, wrong);
  }

  const std::vector<ParameterSpec> specs_ = {{"a", {10}, 0, 10},
                                             {"b", {30}, 10, 30}};
  std::vector<float> before_, gradient_, after_;
};

// With one wrong element, the best fit would shrink or grow the others too.
TEST_F(UpdateCausesTest, ARightOrUnexplainedOneHasNone) {
  EXPECT_THAT(Cause(), IsEmpty());
  for (size_t i = 0; i < 40; ++i) after_[i] += i % 2 == 0 ? 1.0f : -1.0f;
  EXPECT_THAT(Cause(), IsEmpty());
  for (const size_t wrong : {0u, 7u, 20u, 39u}) {
    after_ = Updated(1, 1);
    after_[wrong] += 0.001f;
    EXPECT_THAT(Cause(wrong), IsEmpty()) << wrong;
  }
}

TEST_F(UpdateCausesTest, NamesOneTensorsDecayAStepOfAnotherSizeAndNan) {
  const std::vector<float> decayed = Updated(0.5f, 1);
  for (size_t i = 0; i < 10; ++i) after_[i] = decayed[i];
  EXPECT_EQ(Cause(),
            "; values of a shrink by 0.5 of themselves: weight decay?");
  EXPECT_THAT(Cause(/*wrong=*/10), IsEmpty());
  after_ = Updated(1, 2);
  EXPECT_EQ(Cause(), "; the step is 2 times it");
  after_ = Updated(1, 3);
  EXPECT_EQ(Cause(),
            "; the step is 3 times it, the world size: the learning rate "
            "multiplied by the ranks?");
  gradient_[3] = gradient_[7] = std::nanf("");
  EXPECT_EQ(Cause(/*wrong=*/3),
            "; its gradient is NaN, one of 2 elements of the gradient that "
            "are");
}

}  // namespace
}  // namespace lockstep::conformance
