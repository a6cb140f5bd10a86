// What lenet_test.cc does not show: networks that do not fit.
#include "models/cpu/classifier.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/buffers.h"
#include "models/cpu/layer.h"
#include "models/cpu/linear.h"
#include "models/cpu/shape.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Shape kSample = {.n = 1, .c = 1, .h = 1, .w = 2};

std::unique_ptr<Model> LinearClassifier(int64_t inputs, int64_t outputs,
                                        int64_t classes) {
  Parameters parameters({{"W", {inputs, outputs}}, {"b", {outputs}}});
  return CreateClassifier(kSample, classes, std::move(parameters), Buffers(),
                          CreateLinear({.name = "linear",
                                        .weights = 0,
                                        .bias = 1,
                                        .out_features = outputs}));
}

TEST(ClassifierTest, GradientOfALinearClassifier) {
  const std::unique_ptr<Model> model = LinearClassifier(2, 2, 2);
  const std::vector<float> images = {1, 2, 4, 8};
  const std::vector<int32_t> labels = {0, 1};
  ASSERT_THAT(model->ForwardBackward({images, labels}, 1, [](int) {}), IsOk());
  // Zero weights: softmax is 1/2 everywhere, so each sample adds x * (-+1/2).
  EXPECT_THAT(model->parameters().gradient(0),
              ElementsAre(1.5f, -1.5f, 3.0f, -3.0f));
  EXPECT_THAT(model->parameters().gradient(1), ElementsAre(0, 0));
}

TEST(ClassifierTest, RejectsANetworkThatGivesOtherLogits) {
  const std::vector<float> images = {1, 2};
  const std::vector<int32_t> labels = {1};
  EXPECT_THAT(
      LinearClassifier(2, 3, 2)->Evaluate({images, labels}),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("the network gives 3 logits a sample for 2 classes")));
  EXPECT_THAT(LinearClassifier(3, 2, 2)->Evaluate({images, labels}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("linear: parameter W is [3,2]")));
}

}  // namespace
}  // namespace lockstep
