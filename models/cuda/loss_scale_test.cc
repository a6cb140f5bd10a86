#include "models/cuda/loss_scale.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/test_vector.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class LossScaleTest : public GpuTest {
 protected:
  // Takes the end of a step: the gradients, the update, the next scale.
  LossScale EndStep(LossScale before, std::vector<float> gradients) {
    const auto count = static_cast<int64_t>(gradients.size());
    TestVector<LossScale> scale({before});
    TestVector<float> device(gradients), rate(std::vector<float>{1});
    TestVector<float> values(std::vector<float>(gradients.size(), 1));
    EXPECT_THAT(UnscaleGradients(count, device.data(), scale.data(), nullptr),
                IsOk());
    EXPECT_THAT(SgdUpdateOnGpu(count, values.data(), device.data(), rate.data(),
                               scale.data(), nullptr),
                IsOk());
    EXPECT_THAT(EndScaledStep(scale.data(), nullptr), IsOk());
    unscaled_ = device.Read();
    values_ = values.Read();
    return scale.Read()[0];
  }

  std::vector<float> unscaled_, values_;
};

TEST_F(LossScaleTest, FiniteGradientsAreDividedExactly) {
  const std::vector<float> gradients = {3, -0.5f, 0, 1e38f, 0x1p-100f};
  const LossScale after = EndStep({.scale = 1024, .good_steps = 7}, gradients);
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_EQ(unscaled_[i], gradients[i] / 1024);
    EXPECT_EQ(values_[i], 1 - gradients[i] / 1024);
  }
  EXPECT_EQ(after.scale, 1024);
  EXPECT_EQ(after.good_steps, 8);
  EXPECT_EQ(after.overflows, 0);
  EXPECT_EQ(after.skipped, 0);
}

// One gradient of few or of more than a grid has threads, wherever it is.
TEST_F(LossScaleTest, OneGradientThatIsNotFiniteSkipsTheStep) {
  constexpr size_t kMany = 1'100'000;
  for (const auto& [at, size, bad] : {std::tuple(size_t{0}, size_t{1}, kNan),
                                      {0, 300, kInfinity},
                                      {299, 300, -kInfinity},
                                      {kMany - 1, kMany, kNan}}) {
    SCOPED_TRACE(size);
    std::vector<float> gradients(size, 2);
    gradients[at] = bad;
    const LossScale after =
        EndStep({.scale = 1024, .good_steps = 1999, .skipped = 4}, gradients);
    EXPECT_EQ(values_, std::vector<float>(size, 1));
    EXPECT_EQ(after.scale, 512);
    EXPECT_EQ(after.good_steps, 0);
    EXPECT_EQ(after.overflows, 0);
    EXPECT_EQ(after.skipped, 5);
  }
}

TEST_F(LossScaleTest, TwoThousandGoodStepsDoubleTheScale) {
  LossScale scale = EndStep({.scale = 1024, .good_steps = 1998}, {1});
  EXPECT_EQ(scale.scale, 1024);
  scale = EndStep(scale, {1});
  EXPECT_EQ(scale.scale, 2048);
  EXPECT_EQ(scale.good_steps, 0);
}

TEST_F(LossScaleTest, TheScaleKeepsItsLimits) {
  EXPECT_EQ(EndStep({.scale = LossScale::kMost, .good_steps = 1999}, {1}).scale,
            LossScale::kMost);
  EXPECT_EQ(EndStep({.scale = LossScale::kLeast}, {kNan}).scale,
            LossScale::kLeast);
}

}  // namespace
}  // namespace lockstep
