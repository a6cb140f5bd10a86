// Tests of the profiles and of what momentum means in each.
#include "syncbn/batch_norm_options.h"

#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm_semantics.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(BatchNormSemanticsTest, AreFoundByName) {
  ASSERT_TRUE(ParseBatchNormSemantics("torch").has_value());
  EXPECT_TRUE(ParseBatchNormSemantics("torch")->unbiased_running_variance);
  ASSERT_TRUE(ParseBatchNormSemantics("paddle").has_value());
  EXPECT_FALSE(ParseBatchNormSemantics("paddle")->unbiased_running_variance);
  EXPECT_EQ(ParseBatchNormSemantics("Torch"), std::nullopt);
  EXPECT_EQ(ParseBatchNormSemantics(""), std::nullopt);
}

TEST(WeightOfBatchTest, IsMomentumOrItsComplement) {
  BatchNormOptions options;
  options.momentum = 0.3;
  EXPECT_EQ(WeightOfBatch(options, 7), 0.3);
  options.semantics = kPaddleBatchNorm;
  EXPECT_EQ(WeightOfBatch(options, 7), 1 - 0.3);
}

TEST(WeightOfBatchTest, OfTheDefaultsIsTheSameInBothProfiles) {
  for (const BatchNormSemantics& semantics : kAllBatchNormSemantics) {
    BatchNormOptions options;
    options.semantics = semantics;
    options.momentum = semantics.default_momentum;
    EXPECT_NEAR(WeightOfBatch(options, 1), 0.1, 1e-15) << semantics.name;
  }
}

TEST(WeightOfBatchTest, WithoutMomentumIsThatOfAnAverage) {
  BatchNormOptions options;
  options.momentum = std::nullopt;
  double average = 0;
  const double batches[] = {3, 5, 10};
  for (int i = 0; i < 3; ++i) {
    const double weight = WeightOfBatch(options, i + 1);
    average = (1 - weight) * average + weight * batches[i];
  }
  EXPECT_DOUBLE_EQ(average, 6);
}

TEST(CheckBatchNormOptionsTest, TakesWhatALayerMayBe) {
  BatchNormOptions options;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
  options.epsilon = 0;
  options.momentum = 0;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
  options.momentum = 1;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
  options.momentum = std::nullopt;
  EXPECT_THAT(CheckBatchNormOptions(options), IsOk());
}

TEST(CheckBatchNormOptionsTest, NamesWhatIsWrong) {
  const auto message = [](auto change) {
    BatchNormOptions options;
    change(options);
    const absl::Status status = CheckBatchNormOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& o) { o.channels = 0; }),
              HasSubstr("channels is 0"));
  EXPECT_THAT(message([](auto& o) { o.channels = int64_t{1} << 31; }),
              HasSubstr("channels is 2147483648"));
  EXPECT_THAT(message([](auto& o) { o.epsilon = -1; }),
              HasSubstr("epsilon is -1"));
  EXPECT_THAT(message([](auto& o) { o.epsilon = kNan; }),
              HasSubstr("epsilon is nan"));
  EXPECT_THAT(message([](auto& o) { o.momentum = 1.5; }),
              HasSubstr("momentum is 1.5"));
  EXPECT_THAT(message([](auto& o) { o.momentum = -0.1; }),
              HasSubstr("momentum is -0.1"));
  EXPECT_THAT(message([](auto& o) { o.momentum = kNan; }),
              HasSubstr("momentum is nan"));
  EXPECT_THAT(message([](auto& o) { o.semantics.refuses_one_value = false; }),
              HasSubstr("unbiased variance of one value"));
}

}  // namespace
}  // namespace lockstep
