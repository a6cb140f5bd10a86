#include "models/cpu/convolution.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
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

struct Case {
  Shape input;
  int64_t out, kernel, stride, padding;
  bool relu;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << c.input.n << "x" << c.input.c << "x" << c.input.h << "x" << c.input.w
      << " out " << c.out << " kernel " << c.kernel << " stride " << c.stride
      << " padding " << c.padding << (c.relu ? " relu" : "");
}

ConvolutionOptions Options(const Case& c) {
  return {.name = "conv",
          .weights = 1,
          .bias = 2,
          .out_channels = c.out,
          .kernel = c.kernel,
          .stride = c.stride,
          .padding = c.padding,
          .relu = c.relu};
}

// An unrelated parameter comes first: offsets matter.
Parameters MakeParameters(const Case& c) {
  Parameters parameters({{"other", {3}},
                         {"W", {c.out, c.input.c, c.kernel, c.kernel}},
                         {"b", {c.out}}});
  std::ranges::copy(
      Integers(parameters.values().size(), kOtherLimit, /*seed=*/3),
      parameters.values().begin());
  return parameters;
}

struct Want {
  std::vector<double> y, dw, db, dx;
};

// The definition, in float64.
Want Reference(const Case& c, const Parameters& parameters,
               const LayerRun& run) {
  const Shape& in = c.input;
  const Shape& out = run.output;
  const auto w = parameters.value(1), b = parameters.value(2);
  Want want;
  want.y.resize(out.size());
  want.dw.resize(w.size());
  want.db.resize(b.size());
  want.dx.resize(in.size());
  // Calls f(input index, weight index) for each product of one output.
  const auto taps = [&](int64_t n, int64_t o, int64_t p, int64_t q, auto f) {
    for (int64_t ch = 0; ch < in.c; ++ch) {
      for (int64_t k = 0; k < c.kernel * c.kernel; ++k) {
        const int64_t h = p * c.stride + k / c.kernel - c.padding;
        const int64_t v = q * c.stride + k % c.kernel - c.padding;
        if (h < 0 || h >= in.h || v < 0 || v >= in.w) continue;
        f(At(in, n, ch, h, v), (o * in.c + ch) * c.kernel * c.kernel + k);
      }
    }
  };
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t o = i % out.c, q = i / out.c % out.w;
    const int64_t p = i / out.c / out.w % out.h, n = i / out.c / out.w / out.h;
    double sum = b[o];
    taps(n, o, p, q,
         [&](int64_t x, int64_t k) { sum += double{run.x[x]} * w[k]; });
    want.y[i] = c.relu ? std::max(sum, 0.0) : sum;
    if (c.relu && !(sum > 0)) continue;
    want.db[o] += run.dy[i];
    taps(n, o, p, q, [&](int64_t x, int64_t k) {
      want.dw[k] += double{run.dy[i]} * run.x[x];
      want.dx[x] += double{run.dy[i]} * w[k];
    });
  }
  return want;
}

class ConvolutionTest : public testing::TestWithParam<Case> {};

TEST_P(ConvolutionTest, MatchesTheDefinition) {
  Parameters parameters = MakeParameters(GetParam());
  for (const bool input_gradient : {true, false}) {
    const auto run = RunLayer(*CreateConvolution(Options(GetParam())),
                              parameters, GetParam().input, input_gradient);
    ASSERT_THAT(run, IsOk());
    const Want want = Reference(GetParam(), parameters, *run);
    EXPECT_THAT(CheckNear(run->y, want.y), IsOk());
    EXPECT_THAT(CheckNear(parameters.gradient(1), want.dw), IsOk());
    EXPECT_THAT(CheckNear(parameters.gradient(2), want.db), IsOk());
    if (input_gradient) {
      EXPECT_THAT(CheckNear(run->dx, want.dx), IsOk());
    }
    EXPECT_THAT(parameters.gradient(0), ElementsAre(0, 0, 0));
    EXPECT_THAT(run->ready, ElementsAre(2, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ConvolutionTest,
    testing::Values(Case{{1, 1, 1, 1}, 1, 1, 1, 0, false},
                    Case{{1, 1, 1, 1}, 1, 1, 1, 0, true},
                    Case{{2, 3, 5, 7}, 4, 3, 1, 1, false},
                    Case{{3, 1, 28, 28}, 20, 3, 1, 0, true},
                    Case{{17, 20, 13, 13}, 50, 5, 1, 0, true},
                    Case{{1, 20, 13, 13}, 50, 5, 1, 0, false},
                    Case{{2, 17, 9, 8}, 33, 3, 2, 1, true},
                    Case{{3, 64, 7, 5}, 32, 1, 2, 0, false},
                    Case{{2, 64, 8, 8}, 32, 3, 2, 1, false},
                    Case{{3, 32, 8, 6}, 64, 1, 2, 0, false},
                    Case{{2, 16, 1, 1}, 16, 3, 1, 1, false},
                    Case{{2, 16, 1, 1}, 32, 3, 2, 1, false},
                    Case{{0, 3, 5, 7}, 4, 3, 2, 1, false}));

TEST(ConvolutionErrorsTest, NameTheLayerAndTheSizes) {
  const Case c{{1, 2, 4, 4}, 3, 5, 1, 0, false};
  Parameters parameters = MakeParameters(c);
  const std::unique_ptr<Layer> layer = CreateConvolution(Options(c));
  const auto run = [&](const Layer& l, const Shape& input) {
    return RunLayer(l, parameters, input, true).status();
  };
  const auto is = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(run(*layer, c.input),
              is("conv: kernel 5 with padding 0 does not fit an input of 4x4"));
  EXPECT_THAT(run(*layer, {1, 2, 5, 4}), is("5x4"));
  EXPECT_THAT(run(*layer, {1, 2, 5, 5}), IsOk());
  EXPECT_THAT(run(*layer, {1, 4, 5, 5}),
              is("conv: parameter W is [3,2,5,5], the layer and its input need "
                 "[3,4,5,5]"));
  ConvolutionOptions options = Options(c);
  options.bias = 0;
  EXPECT_THAT(run(*CreateConvolution(options), {1, 2, 5, 5}), IsOk());
  options.bias = 3;
  EXPECT_THAT(run(*CreateConvolution(options), {1, 2, 5, 5}),
              is("conv: no parameter 3 among 3"));
}

// The controls of the comparison that the layers' tests rest on.
TEST(CheckNearTest, RejectsDifferencesNanAndSizes) {
  const std::vector<double> want = {1, 2};
  const auto lost = [](const char* what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  EXPECT_THAT(CheckNear(std::vector<float>{1, 2}, want), IsOk());
  EXPECT_THAT(CheckNear(std::vector<float>{1, 3}, want), lost("element 1"));
  EXPECT_THAT(CheckNear(std::vector<float>{1, 3}, want, 1), IsOk());
  EXPECT_THAT(CheckNear(std::vector<float>{std::nanf(""), 2}, want, 1),
              lost("element 0"));
  EXPECT_THAT(CheckNear(std::vector<float>{1}, want), lost("size 1"));
}

}  // namespace
}  // namespace lockstep
