#include "models/cpu/layers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/layer.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

using dnnl::memory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An unrelated parameter comes first: offsets matter.
Parameters MakeParameters(std::vector<int64_t> weights, int64_t out) {
  Parameters parameters(
      {{"other", {3}}, {"W", std::move(weights)}, {"b", {out}}});
  std::ranges::copy(
      Integers(parameters.values().size(), kOtherLimit, /*seed=*/3),
      parameters.values().begin());
  return parameters;
}

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

Parameters ParametersOf(const Case& c) {
  return MakeParameters({c.out, c.input.c, c.kernel, c.kernel}, c.out);
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
  Parameters parameters = ParametersOf(GetParam());
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
  Parameters parameters = ParametersOf(c);
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

LinearOptions Options(int64_t out, bool relu, bool outputs_first = false) {
  return {.name = "linear",
          .weights = 1,
          .bias = 2,
          .out_features = out,
          .relu = relu,
          .outputs_first = outputs_first};
}

// Checks one size against the definition, in float64.
void CheckLinear(const Shape& in, int64_t out, bool relu,
                 bool outputs_first = false) {
  SCOPED_TRACE(testing::Message() << in.n << "x" << in.c << "x" << in.h << "x"
                                  << in.w << " to " << out << " relu " << relu
                                  << " outputs first " << outputs_first);
  const int64_t features = in.c * in.h * in.w;
  Parameters parameters = outputs_first ? MakeParameters({out, features}, out)
                                        : MakeParameters({features, out}, out);
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
  Parameters parameters = MakeParameters({8, 3}, 3);
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

// Checks a layer that averages windows of height x width against the
// definition, in float64.
void CheckPool(const Layer& layer, const Shape& in, int64_t height,
               int64_t width) {
  SCOPED_TRACE(testing::Message()
               << in.n << "x" << in.c << "x" << in.h << "x" << in.w
               << " window " << height << "x" << width);
  Parameters none({});
  const auto run = RunLayer(layer, none, in, true);
  ASSERT_THAT(run, IsOk());
  const Shape& out = run->output;
  ASSERT_EQ(out, (Shape{in.n, in.c, in.h / height, in.w / width}));
  std::vector<double> y(out.size()), dx(in.size());
  const int64_t window = height * width;
  const double area = static_cast<double>(window);
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t c = i % out.c, q = i / out.c % out.w;
    const int64_t p = i / out.c / out.w % out.h, n = i / out.c / out.w / out.h;
    for (int64_t k = 0; k < window; ++k) {
      const int64_t at =
          At(in, n, c, p * height + k / width, q * width + k % width);
      y[i] += run->x[at] / area;
      dx[at] += run->dy[i] / area;
    }
  }
  // The sums are exact; what remains is a division, or a product with the
  // rounded 1 / area: two roundings of numbers up to the limits. A division by
  // a power of two is exact, so those windows would pass with none.
  const double unit = (window & (window - 1)) == 0 ? 0 : 2 * 0x1p-24;
  EXPECT_THAT(CheckNear(run->y, y, unit * kInputLimit), IsOk());
  EXPECT_THAT(CheckNear(run->dx, dx, unit * kOtherLimit), IsOk());
  EXPECT_THAT(run->ready, IsEmpty());
}

void CheckPool(const Shape& in, int64_t window) {
  CheckPool(*CreateAveragePool("pool", window), in, window, window);
}

void CheckGlobalPool(const Shape& in) {
  CheckPool(*CreateGlobalAveragePool("pool"), in, in.h, in.w);
}

TEST(AveragePoolTest, MatchesTheDefinition) {
  CheckPool({1, 1, 1, 1}, 1);
  CheckPool({1, 1, 2, 2}, 2);
  CheckPool({3, 5, 6, 4}, 2);
  CheckPool({17, 20, 26, 26}, 2);
  CheckPool({2, 50, 9, 9}, 2);  // A row and a column are left over.
  CheckPool({2, 33, 7, 10}, 3);
  CheckPool({0, 3, 4, 4}, 2);
}

TEST(AveragePoolTest, GlobalTakesWholeImages) {
  CheckGlobalPool({1, 1, 1, 1});
  CheckGlobalPool({2, 512, 4, 4});
  CheckGlobalPool({3, 5, 2, 8});
  CheckGlobalPool({2, 33, 3, 7});
  CheckGlobalPool({0, 3, 4, 4});
}

TEST(AveragePoolTest, RejectsAWindowLargerThanTheInput) {
  Parameters none({});
  const auto layer = CreateAveragePool("pool", 3);
  for (const Shape& input : {Shape{1, 1, 2, 3}, Shape{1, 1, 3, 2}}) {
    EXPECT_THAT(RunLayer(*layer, none, input, true).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("pool: window 3 does not fit")));
  }
  EXPECT_THAT(RunLayer(*layer, none, {1, 1, 3, 3}, true).status(), IsOk());
}

TEST(CatchOnednnTest, TurnsAnErrorIntoAStatusThatNamesTheLayer) {
  EXPECT_THAT(CatchOnednn("conv7", [] {}), IsOk());
  EXPECT_THAT(
      CatchOnednn("conv7",
                  [] { throw dnnl::error(dnnl_unimplemented, "no such"); }),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("conv7: oneDNN: no such")));
  // A real one: there is no engine of this number.
  EXPECT_THAT(
      CatchOnednn("engine", [] { dnnl::engine(dnnl::engine::kind::cpu, 99); }),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("engine: oneDNN:")));
}

TEST(AlignedSizeTest, RoundsUpToCacheLines) {
  for (const auto& [floats, want] :
       {std::pair{0, 0}, {1, 16}, {15, 16}, {16, 16}, {17, 32}}) {
    EXPECT_EQ(AlignedSize(floats), want);
    EXPECT_EQ(AlignedSize(ChannelsLast({.n = 1, .c = floats})), want);
  }
  EXPECT_EQ(AlignedSize(memory::desc()), 0);
}

TEST(FormatConversionTest, TransposesAndCopiesNothingIfEqual) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = memory::data_type::f32;
  const memory::desc rows({2, 3}, type, memory::format_tag::ab);
  const memory::desc columns({2, 3}, type, memory::format_tag::ba);
  FormatConversion transpose(engine, rows, columns);
  ASSERT_FALSE(transpose.is_identity());
  const std::vector<float> from = {1, 2, 3, 4, 5, 6};
  std::vector<float> to(6);
  transpose.Run(stream, from.data(), to.data());
  EXPECT_THAT(to, ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_TRUE(FormatConversion(engine, rows, rows).is_identity());
}

TEST(AccumulationTest, AddsAndLeavesWhatItAdds) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  for (const int64_t size : {1, 2, 15, 16, 17, 1000}) {
    std::vector<float> from(size), to(size + 1, 0.5f), want(size + 1, 0.5f);
    for (int64_t i = 0; i < size; ++i) {
      from[i] = static_cast<float>(i % 37);
      want[i] += from[i];
    }
    const std::vector<float> before = from;
    Accumulation(engine, size).Run(stream, from.data(), to.data());
    EXPECT_EQ(to, want);
    EXPECT_EQ(from, before);
  }
}

}  // namespace
}  // namespace lockstep
