#include "models/cpu/sequential.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/convolution.h"
#include "models/cpu/layer.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/linear.h"
#include "models/cpu/shape.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// For two 1x1 convolutions and a linear layer. Values up to 1 keep the sums
// small, so that they are exact: every y is below 500 * 2 * 3 * 8 + 33.
Parameters MakeParameters() {
  Parameters parameters({{"W1", {3, 2, 1, 1}},
                         {"b1", {3}},
                         {"W2", {2, 3, 1, 1}},
                         {"b2", {2}},
                         {"W3", {8, 2}},
                         {"b3", {2}}});
  std::ranges::copy(Integers(parameters.values().size(), 1, /*seed=*/5),
                    parameters.values().begin());
  return parameters;
}

std::unique_ptr<Layer> Convolution(int weights, int64_t out, bool relu) {
  return CreateConvolution({.name = "conv",
                            .weights = weights,
                            .bias = weights + 1,
                            .out_channels = out,
                            .relu = relu});
}

std::unique_ptr<Layer> Linear() {
  return CreateLinear({.name = "linear",
                       .weights = 4,
                       .bias = 5,
                       .out_features = 2,
                       .relu = false});
}

// Nested in several ways, the same layers are the same function.
std::vector<std::unique_ptr<Layer>> Nestings() {
  std::vector<std::unique_ptr<Layer>> nestings;
  for (int inner = 1; inner <= 3; ++inner) {
    std::vector<std::unique_ptr<Layer>> first, all;
    first.push_back(Convolution(0, 3, true));
    if (inner >= 2) first.push_back(Convolution(2, 2, true));
    if (inner >= 3) first.push_back(Linear());
    all.push_back(CreateSequential("inner", std::move(first)));
    if (inner < 2) all.push_back(Convolution(2, 2, true));
    if (inner < 3) all.push_back(Linear());
    nestings.push_back(CreateSequential("outer", std::move(all)));
  }
  return nestings;
}

// y = A3 relu(A2 relu(A1 x)), and its derivative by x along the chain, in
// float64.
struct Chain {
  std::vector<double> y, dx, db1;
};

std::vector<double> Pointwise(const std::vector<double>& x,
                              std::span<const float> w,
                              std::span<const float> b, bool relu) {
  const size_t in = w.size() / b.size();
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); i += in) {
    for (size_t o = 0; o < b.size(); ++o) {
      double sum = b[o];
      for (size_t k = 0; k < in; ++k) sum += x[i + k] * w[o * in + k];
      y.push_back(relu ? std::max(sum, 0.0) : sum);
    }
  }
  return y;
}

// The gradient of x from that of y, masked by y > 0; y's in place.
std::vector<double> PointwiseBackward(const std::vector<double>& y,
                                      std::vector<double>& dy,
                                      std::span<const float> w, size_t out) {
  const size_t in = w.size() / out;
  std::vector<double> dx(dy.size() / out * in);
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!(y[i] > 0)) dy[i] = 0;
    for (size_t k = 0; k < in; ++k) {
      dx[i / out * in + k] += dy[i] * w[i % out * in + k];
    }
  }
  return dx;
}

Chain Reference(const Parameters& parameters, const LayerRun& run, int64_t n) {
  const auto p = [&](int i) { return parameters.value(i); };
  const std::vector<double> x(run.x.begin(), run.x.end());
  const std::vector<double> h1 = Pointwise(x, p(0), p(1), true);
  const std::vector<double> h2 = Pointwise(h1, p(2), p(3), true);
  Chain chain;
  std::vector<double> dh2(h2.size());
  const Shape hidden{.n = n, .c = 2, .h = 2, .w = 2};
  for (int64_t i = 0; i < n * 2; ++i) {
    double sum = p(5)[i % 2];
    for (int64_t f = 0; f < 8; ++f) {
      const int64_t at = At(hidden, i / 2, f / 4, f / 2 % 2, f % 2);
      sum += h2[at] * p(4)[f * 2 + i % 2];
      dh2[at] += double{run.dy[i]} * p(4)[f * 2 + i % 2];
    }
    chain.y.push_back(sum);
  }
  std::vector<double> dh1 = PointwiseBackward(h2, dh2, p(2), 2);
  chain.dx = PointwiseBackward(h1, dh1, p(0), 3);
  chain.db1.resize(3);
  for (size_t i = 0; i < dh1.size(); ++i) chain.db1[i % 3] += dh1[i];
  return chain;
}

TEST(SequentialTest, IsTheChainOfItsLayersHoweverNested) {
  const Shape input{.n = 3, .c = 2, .h = 2, .w = 2};
  for (const auto& layer : Nestings()) {
    Parameters parameters = MakeParameters();
    const auto run = RunLayer(*layer, parameters, input, true);
    ASSERT_THAT(run, IsOk());
    const Chain want = Reference(parameters, *run, input.n);
    EXPECT_THAT(CheckNear(run->y, want.y), IsOk());
    EXPECT_THAT(CheckNear(run->dx, want.dx), IsOk());
    EXPECT_THAT(CheckNear(parameters.gradient(1), want.db1), IsOk());
    EXPECT_THAT(run->ready, ElementsAre(5, 4, 3, 2, 1, 0));
  }
}

TEST(SequentialTest, PassesOnItsLayersErrors) {
  Parameters parameters = MakeParameters();
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(Convolution(0, 3, true));
  layers.push_back(Linear());
  const auto sequential = CreateSequential("net", std::move(layers));
  EXPECT_THAT(RunLayer(*sequential, parameters, {1, 2, 2, 2}, true).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("linear: parameter W3")));
}

TEST(SequentialTest, RejectsNoLayers) {
  Parameters parameters = MakeParameters();
  EXPECT_THAT(
      RunLayer(*CreateSequential("net", {}), parameters, {1, 2, 2, 2}, true)
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "net: no layers"));
}

}  // namespace
}  // namespace lockstep
