// Each mistake is named, and nothing else is.
#include "conformance/update_causes.h"

#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::IsEmpty;

constexpr float kRate = 0.1f;
constexpr size_t kSize = 40;

class UpdateCausesTest : public testing::Test {
 protected:
  UpdateCausesTest() {
    std::mt19937 random(1);
    for (size_t i = 0; i < kSize; ++i) {
      // In (-1, 1), in float32's steps.
      before_.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1);
      gradient_.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1);
    }
    after_ = Updated(1, 1);
  }

  std::vector<float> Updated(float keeps, float times) const {
    std::vector<float> after;
    for (size_t i = 0; i < kSize; ++i) {
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
  for (size_t i = 0; i < kSize; ++i) after_[i] += i % 2 == 0 ? 1.0f : -1.0f;
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
