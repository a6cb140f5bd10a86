#include "models/cpu/linear.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/layer.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/shape.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LinearOptions Options(int64_t out, bool relu, bool outputs_first = false) {
  return {.name = "linear",
          .weights = 1,
          .bias = 2,
          .out_features = out,
          .relu = relu,
          .outputs_first = outputs_first};
}

Parameters MakeParameters(int64_t in, int64_t out, bool outputs_first = false) {
  const std::vector<int64_t> weights = outputs_first
                                           ? std::vector<int64_t>{out, in}
                                           : std::vector<int64_t>{in, out};
  Parameters parameters({{"other", {3}}, {"W", weights}, {"b", {out}}});
  std::ranges::copy(
      Integers(parameters.values().size(), kOtherLimit, /*seed=*/4),
      parameters.values().begin());
  return parameters;
}

// Checks one size against the definition, in float64.
void CheckLinear(const Shape& in, int64_t out, bool relu,
                 bool outputs_first = false) {
  SCOPED_TRACE(testing::Message() << in.n << "x" << in.c << "x" << in.h << "x"
                                  << in.w << " to " << out << " relu " << relu
                                  << " outputs first " << outputs_first);
  const int64_t features = in.c * in.h * in.w;
  Parameters parameters = MakeParameters(features, out, outputs_first);
  const auto run = RunLayer(*CreateLinear(Options(out, relu, outputs_first)),
                            parameters, in, true);
  ASSERT_THAT(run, IsOk());
  ASSERT_EQ(run->output, (Shape{.n = in.n, .c = out}));
  const auto w = parameters.value(1), b = parameters.value(2);
  std::vector<double> y(in.n * out), dw(w.size()), db(out), dx(in.size());
  for (int64_t i = 0; i < in.n * out; ++i) {
    const int64_t n = i / out, o = i % out;
    // Row f of the weights belongs to feature f in the order c, h, w.
    const auto x_at = [&](int64_t f) {
      return At(in, n, f / (in.h * in.w), f / in.w % in.h, f % in.w);
    };
    const auto weight_at = [&](int64_t f) {
      return outputs_first ? o * features + f : f * out + o;
    };
    double sum = b[o];
    for (int64_t f = 0; f < features; ++f) {
      sum += double{run->x[x_at(f)]} * w[weight_at(f)];
    }
    y[i] = relu ? std::max(sum, 0.0) : sum;
    if (relu && !(sum > 0)) continue;
    db[o] += run->dy[i];
    for (int64_t f = 0; f < features; ++f) {
      dw[weight_at(f)] += double{run->dy[i]} * run->x[x_at(f)];
      dx[x_at(f)] += double{run->dy[i]} * w[weight_at(f)];
    }
  }
  EXPECT_THAT(CheckNear(run->y, y), IsOk());
  EXPECT_THAT(CheckNear(parameters.gradient(1), dw), IsOk());
  EXPECT_THAT(CheckNear(parameters.gradient(2), db), IsOk());
  EXPECT_THAT(CheckNear(run->dx, dx), IsOk());
  EXPECT_THAT(parameters.gradient(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(run->ready, ElementsAre(2, 1));
}

TEST(LinearTest, MatchesTheDefinition) {
  for (const bool relu : {false, true}) {
    CheckLinear({1, 1, 1, 1}, 1, relu);
    CheckLinear({3, 7, 1, 1}, 5, relu);
    CheckLinear({17, 128, 1, 1}, 10, relu);
    CheckLinear({2, 3, 5, 4}, 7, relu);
    CheckLinear({17, 50, 4, 4}, 128, relu);
    CheckLinear({0, 3, 2, 2}, 5, relu);
  }
}

TEST(LinearTest, TakesWeightsWithTheirOutputsFirst) {
  for (const bool relu : {false, true}) {
    CheckLinear({1, 1, 1, 1}, 1, relu, true);
    CheckLinear({3, 7, 1, 1}, 5, relu, true);
    CheckLinear({32, 512, 1, 1}, 10, relu, true);
    CheckLinear({2, 3, 5, 4}, 7, relu, true);
    CheckLinear({0, 3, 2, 2}, 5, relu, true);
  }
}

TEST(LinearTest, NamesWhatDoesNotFit) {
  Parameters parameters = MakeParameters(8, 3);
  EXPECT_THAT(
      RunLayer(*CreateLinear(Options(3, false)), parameters, {1, 3, 2, 2}, true)
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("linear: parameter W is [8,3], the layer and its "
                         "input need [12,3]")));
  LinearOptions options = Options(3, false);
  options.bias = 1;
  EXPECT_THAT(
      RunLayer(*CreateLinear(options), parameters, {1, 2, 2, 2}, true).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("need [3]")));
}

}  // namespace
}  // namespace lockstep
