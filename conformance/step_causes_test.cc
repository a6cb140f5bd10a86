// Each cause is named, and nothing else is.
#include "conformance/step_causes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kSize = 40;

class GradientCausesTest : public testing::Test {
 protected:
  GradientCausesTest() {
    std::mt19937 random(1);
    for (int rank = 0; rank < 3; ++rank) {
      Bounded part(kSize);
      for (size_t i = 0; i < kSize; ++i) {
        // In (-1, 1), in float32's steps.
        part.value[i] = static_cast<double>(random() >> 8) * 0x1p-23 - 1;
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
    return {specs_, want_, ranks_, parts_, samples_, before_};
  }
  // Of ranks that all have these.
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
  std::vector<float> before_;
};

TEST_F(GradientCausesTest, NamesPartsWithOtherWeights) {
  EXPECT_EQ(CauseOf(Weighted({1, 1, 0})), "; rank 2's part is left out");
  EXPECT_EQ(CauseOf(Weighted({0, 2, 1})),
            "; rank 0's part is left out, rank 1's part counts 2 times");
  EXPECT_EQ(CauseOf(Weighted({1, 0, 0})),
            "; it is that of this rank's own samples: not reduced?");
  EXPECT_EQ(CauseOf(Weighted({0, 1, 0})),
            "; rank 0's part is left out, rank 2's part is left out");
  EXPECT_EQ(CauseOf(Weighted({17.0 / 18, 17.0 / 18, 17.0 / 15})),
            "; it is the mean of the ranks' means, without weights");
}

TEST_F(GradientCausesTest, NamesAnotherCountOfSamples) {
  EXPECT_EQ(CauseOf(Weighted({17.0 / 24, 17.0 / 24, 17.0 / 24})),
            "; it is the sum over 17 samples divided by 24: another batch's "
            "count?");
  EXPECT_EQ(CauseOf(Weighted({2, 2, 2})), "");  // Divided by 8.5?
  EXPECT_EQ(CauseOf(Weighted({-1, -1, -1})), "");
}

TEST_F(GradientCausesTest, LeavesTheWorldSizeToCheckGradients) {
  EXPECT_EQ(CauseOf(Weighted({3, 3, 3})), "");
  const double third = 1.0 / 3;
  EXPECT_EQ(CauseOf(Weighted({third, third, third})), "");
  EXPECT_EQ(CauseOf(Weighted({1, 1, 1})).find("counts"), std::string::npos);
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

TEST_F(GradientCausesTest, NamesWhatIsNotCleared) {
  before_ = Weighted({0.5, -3, 2});
  std::vector<float> got = Weighted({1, 1, 1});
  for (size_t i = 0; i < kSize; ++i) got[i] += before_[i];
  EXPECT_EQ(CauseOf(got),
            "; it is the sum with that of the step before: not cleared?");
}

TEST_F(GradientCausesTest, NamesATensorOfZeros) {
  std::vector<float> got = Weighted({1, 1, 1});
  std::fill(got.begin() + 36, got.end(), 0.0f);
  EXPECT_EQ(CauseOf(got), "; all of b is zero: left out?");
  got[37] = 0.5f;
  EXPECT_EQ(CauseOf(got), "");
}

TEST_F(GradientCausesTest, NamesValuesOfAnotherPlace) {
  std::vector<float> got = Weighted({1, 1, 1});
  std::swap_ranges(got.begin(), got.begin() + 12, got.begin() + 12);
  EXPECT_EQ(CauseOf(got),
            "; it has there the values of W[12]: in another's place?");
}

TEST_F(GradientCausesTest, NamesWhatBFloat16Rounds) {
  std::vector<float> got = Weighted({1, 1, 1});
  for (float& v : got) {
    v = std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x8000u) &
                             0xffff0000u);
  }
  EXPECT_EQ(CauseOf(got),
            "; all of it is as near as bfloat16 rounds the ranks' parts");
}

// Near enough, but not as rounding is.
TEST_F(GradientCausesTest, TakesNoOtherErrorForRounding) {
  std::vector<float> got = Weighted({1, 1, 1});
  got[7] *= 1.001f;
  EXPECT_EQ(CauseOf(got), "");
  EXPECT_EQ(CauseOf(Weighted({1.002, 1.002, 1.002})), "");
  got = Weighted({1, 1, 1});
  for (float& v : got) {  // As float16 would round.
    v = std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x1000u) &
                             0xffffe000u);
  }
  EXPECT_EQ(CauseOf(got), "");
}

TEST_F(GradientCausesTest, NamesNothingElse) {
  std::vector<float> got = Weighted({1, 1, 1});
  got[7] += 1;
  EXPECT_EQ(CauseOf(got), "");
  got[7] = std::nanf("");
  EXPECT_EQ(CauseOf(got), "");
  got[7] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(CauseOf(got), "");
  EXPECT_EQ(CauseOf(std::vector<float>(kSize, 0.25f)), "");
  // Parts that cannot be told apart.
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
      // In (-1, 1), in float32's steps.
      before_.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1);
      gradient_.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1);
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

TEST_F(UpdateCausesTest, ARightUpdateHasNone) {
  EXPECT_THAT(Cause(), IsEmpty());
}

TEST_F(UpdateCausesTest, AnUnexplainedOneHasNone) {
  for (size_t i = 0; i < 40; ++i) after_[i] += i % 2 == 0 ? 1.0f : -1.0f;
  EXPECT_THAT(Cause(), IsEmpty());
}

// One wrong element makes a fit that shrinks, or grows, the others too.
TEST_F(UpdateCausesTest, OneWrongElementIsNoDecay) {
  for (const size_t wrong : {0u, 7u, 20u, 39u}) {
    after_ = Updated(1, 1);
    after_[wrong] += 0.001f;
    EXPECT_THAT(Cause(wrong), IsEmpty()) << wrong;
  }
}

TEST_F(UpdateCausesTest, NamesDecay) {
  after_ = Updated(0.99f, 1);
  EXPECT_EQ(Cause(), "; values shrink by 0.01 of themselves: weight decay?");
}

TEST_F(UpdateCausesTest, NamesDecayOfOneTensor) {
  const std::vector<float> decayed = Updated(0.5f, 1);
  for (size_t i = 0; i < 10; ++i) after_[i] = decayed[i];
  EXPECT_EQ(Cause(),
            "; values of a shrink by 0.5 of themselves: weight decay?");
  EXPECT_THAT(Cause(/*wrong=*/10), IsEmpty());
}

TEST_F(UpdateCausesTest, NamesAScaledLearningRate) {
  after_ = Updated(1, 3);
  EXPECT_EQ(Cause(),
            "; the step is 3 times it, the world size: the learning rate "
            "multiplied by the ranks?");
  after_ = Updated(1, 2);
  EXPECT_EQ(Cause(), "; the step is 2 times it");
}

TEST_F(UpdateCausesTest, NamesNan) {
  gradient_[3] = gradient_[7] = std::nanf("");
  EXPECT_EQ(Cause(/*wrong=*/3),
            "; its gradient is NaN, one of 2 elements of the gradient that "
            "are");
}

}  // namespace
}  // namespace lockstep
