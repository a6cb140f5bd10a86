#include "models/cpu/layers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

auto Invalid(const char* what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

// An unrelated parameter comes first: offsets matter.
Parameters MakeParameters(std::vector<int64_t> weights, int64_t out) {
  Parameters parameters(
      {{"other", {3}}, {"W", std::move(weights)}, {"b", {out}}});
  std::ranges::copy(
      Integers(parameters.values().size(), kOtherLimit, /*seed=*/3),
      parameters.values().begin());
  return parameters;
}

// A convolution, or a linear layer, whose kernel is the whole image.
struct Affine {
  Shape in;
  int64_t out, kernel_h, kernel_w, stride, padding;
  bool relu;
};

struct Want {
  std::vector<double> y, dw, db, dx;
};

// The definition, in float64. w: [out, in.c, kernel_h, kernel_w]. Without dy
// only y.
Want Reference(const Affine& a, std::span<const float> w,
               std::span<const float> b, std::span<const double> x,
               std::span<const double> dy = {}) {
  const int64_t kernel = a.kernel_h * a.kernel_w;
  const int64_t height = (a.in.h + 2 * a.padding - a.kernel_h) / a.stride + 1;
  const int64_t width = (a.in.w + 2 * a.padding - a.kernel_w) / a.stride + 1;
  Want want;
  want.y.resize(a.in.n * height * width * a.out);
  want.dw.resize(w.size());
  want.db.resize(b.size());
  want.dx.resize(a.in.size());
  // Calls f(input index, weight index) for each product of one output.
  const auto taps = [&](int64_t n, int64_t o, int64_t p, int64_t q, auto f) {
    for (int64_t ch = 0; ch < a.in.c; ++ch) {
      for (int64_t k = 0; k < kernel; ++k) {
        const int64_t h = p * a.stride + k / a.kernel_w - a.padding;
        const int64_t v = q * a.stride + k % a.kernel_w - a.padding;
        if (h < 0 || h >= a.in.h || v < 0 || v >= a.in.w) continue;
        f(At(a.in, n, ch, h, v), (o * a.in.c + ch) * kernel + k);
      }
    }
  };
  for (size_t i = 0; i < want.y.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) / a.out;
    const int64_t o = static_cast<int64_t>(i) % a.out, q = at % width;
    const int64_t p = at / width % height, n = at / width / height;
    double sum = b[o];
    taps(n, o, p, q, [&](int64_t j, int64_t k) { sum += x[j] * w[k]; });
    want.y[i] = a.relu ? std::max(sum, 0.0) : sum;
    if (dy.empty() || (a.relu && !(sum > 0))) continue;
    want.db[o] += dy[i];
    taps(n, o, p, q, [&](int64_t j, int64_t k) {
      want.dw[k] += dy[i] * x[j];
      want.dx[j] += dy[i] * w[k];
    });
  }
  return want;
}

std::vector<double> Doubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// [rows, columns] as [columns, rows].
template <typename T>
std::vector<T> Transposed(std::span<const T> values, int64_t columns) {
  const int64_t rows = std::ssize(values) / columns;
  std::vector<T> transposed;
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    transposed.push_back(values[i % rows * columns + i / rows]);
  }
  return transposed;
}

// Expects of a layer with parameters of MakeParameters what the definition
// gives. transposed: whether its weights are [in.c * in.h * in.w, out].
void CheckAffine(const Layer& layer, const Affine& affine,
                 Parameters& parameters, bool transposed, bool input_gradient) {
  SCOPED_TRACE(testing::Message()
               << affine.in.n << "x" << affine.in.c << "x" << affine.in.h << "x"
               << affine.in.w << " to " << affine.out << " kernel "
               << affine.kernel_h << " stride " << affine.stride << " padding "
               << affine.padding << " relu " << affine.relu << " transposed "
               << transposed);
  const auto run = RunLayer(layer, parameters, affine.in, input_gradient);
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->output.c, affine.out);
  const std::span<const float> w = parameters.value(1);
  const std::vector<float> weights =
      transposed ? Transposed(w, affine.out)
                 : std::vector<float>(w.begin(), w.end());
  Want want = Reference(affine, weights, parameters.value(2), Doubles(run->x),
                        Doubles(run->dy));
  if (transposed) {
    want.dw = Transposed(std::span<const double>(want.dw),
                         std::ssize(want.dw) / affine.out);
  }
  EXPECT_THAT(CheckNear(run->y, want.y), IsOk());
  EXPECT_THAT(CheckNear(parameters.gradient(1), want.dw), IsOk());
  EXPECT_THAT(CheckNear(parameters.gradient(2), want.db), IsOk());
  if (input_gradient) {
    EXPECT_THAT(CheckNear(run->dx, want.dx), IsOk());
  }
  EXPECT_THAT(parameters.gradient(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(run->ready, ElementsAre(2, 1));
}

ConvolutionOptions Options(const Affine& a) {
  return {.name = "conv",
          .weights = 1,
          .bias = 2,
          .out_channels = a.out,
          .kernel = a.kernel_h,
          .stride = a.stride,
          .padding = a.padding,
          .relu = a.relu};
}

Parameters ParametersOf(const Affine& a) {
  return MakeParameters({a.out, a.in.c, a.kernel_h, a.kernel_w}, a.out);
}

TEST(ConvolutionTest, MatchesTheDefinition) {
  for (const Affine& c : {Affine{{1, 1, 1, 1}, 1, 1, 1, 1, 0, false},
                          Affine{{1, 1, 1, 1}, 1, 1, 1, 1, 0, true},
                          Affine{{2, 3, 5, 7}, 4, 3, 3, 1, 1, false},
                          Affine{{3, 1, 28, 28}, 20, 3, 3, 1, 0, true},
                          Affine{{17, 20, 13, 13}, 50, 5, 5, 1, 0, true},
                          Affine{{1, 20, 13, 13}, 50, 5, 5, 1, 0, false},
                          Affine{{2, 17, 9, 8}, 33, 3, 3, 2, 1, true},
                          Affine{{3, 64, 7, 5}, 32, 1, 1, 2, 0, false},
                          Affine{{2, 64, 8, 8}, 32, 3, 3, 2, 1, false},
                          Affine{{3, 32, 8, 6}, 64, 1, 1, 2, 0, false},
                          Affine{{2, 16, 1, 1}, 16, 3, 3, 1, 1, false},
                          Affine{{2, 16, 1, 1}, 32, 3, 3, 2, 1, false},
                          Affine{{0, 3, 5, 7}, 4, 3, 3, 2, 1, false}}) {
    Parameters parameters = ParametersOf(c);
    for (const bool input_gradient : {true, false}) {
      CheckAffine(CreateConvolution(Options(c)), c, parameters,
                  /*transposed=*/false, input_gradient);
    }
  }
}

TEST(ConvolutionErrorsTest, NameTheLayerAndTheSizes) {
  const Affine c{{1, 2, 4, 4}, 3, 5, 5, 1, 0, false};
  Parameters parameters = ParametersOf(c);
  const Layer layer = CreateConvolution(Options(c));
  const auto run = [&](const Layer& l, const Shape& input) {
    return RunLayer(l, parameters, input, true).status();
  };
  EXPECT_THAT(
      run(layer, c.in),
      Invalid("conv: kernel 5 with padding 0 does not fit an input of 4x4"));
  EXPECT_THAT(run(layer, {1, 2, 5, 4}), Invalid("5x4"));
  EXPECT_THAT(run(layer, {1, 2, 5, 5}), IsOk());
  EXPECT_THAT(
      run(layer, {1, 4, 5, 5}),
      Invalid("conv: parameter W is [3,2,5,5], the layer and its input need "
              "[3,4,5,5]"));
  ConvolutionOptions options = Options(c);
  options.bias = 0;
  EXPECT_THAT(run(CreateConvolution(options), {1, 2, 5, 5}), IsOk());
  options.bias = 3;
  EXPECT_THAT(run(CreateConvolution(options), {1, 2, 5, 5}),
              Invalid("conv: no parameter 3 among 3"));
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

void CheckLinear(const Shape& in, int64_t out, bool relu, bool outputs_first) {
  const int64_t features = in.c * in.h * in.w;
  Parameters parameters = outputs_first ? MakeParameters({out, features}, out)
                                        : MakeParameters({features, out}, out);
  CheckAffine(CreateLinear(Options(out, relu, outputs_first)),
              {in, out, in.h, in.w, 1, 0, relu}, parameters, !outputs_first,
              /*input_gradient=*/true);
}

TEST(LinearTest, MatchesTheDefinitionWithEitherOrderOfWeights) {
  const std::pair<Shape, int64_t> cases[] = {
      {{1, 1, 1, 1}, 1},     {{3, 7, 1, 1}, 5}, {{17, 128, 1, 1}, 10},
      {{32, 512, 1, 1}, 10}, {{2, 3, 5, 4}, 7}, {{17, 50, 4, 4}, 128},
      {{0, 3, 2, 2}, 5},
  };
  for (const auto& [in, out] : cases) {
    for (const bool relu : {false, true}) {
      CheckLinear(in, out, relu, /*outputs_first=*/false);
      CheckLinear(in, out, relu, /*outputs_first=*/true);
    }
  }
}

TEST(LinearTest, NamesWhatDoesNotFit) {
  Parameters parameters = MakeParameters({8, 3}, 3);
  EXPECT_THAT(
      RunLayer(CreateLinear(Options(3, false)), parameters, {1, 3, 2, 2}, true)
          .status(),
      Invalid("linear: parameter W is [8,3], the layer and its input need "
              "[12,3]"));
  LinearOptions options = Options(3, false);
  options.bias = 1;
  EXPECT_THAT(
      RunLayer(CreateLinear(options), parameters, {1, 2, 2, 2}, true).status(),
      Invalid("need [3]"));
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

TEST(AveragePoolTest, MatchesTheDefinition) {
  const std::pair<Shape, int64_t> cases[] = {
      {{1, 1, 1, 1}, 1},
      {{1, 1, 2, 2}, 2},
      {{3, 5, 6, 4}, 2},
      {{17, 20, 26, 26}, 2},
      {{2, 50, 9, 9}, 2},  // A row and a column are left
                           // over.
      {{2, 33, 7, 10}, 3},
      {{0, 3, 4, 4}, 2},
  };
  for (const auto& [in, window] : cases) {
    CheckPool(CreateAveragePool("pool", window), in, window, window);
  }
}

TEST(AveragePoolTest, GlobalTakesWholeImages) {
  for (const Shape& in :
       {Shape{1, 1, 1, 1}, Shape{2, 512, 4, 4}, Shape{3, 5, 2, 8},
        Shape{2, 33, 3, 7}, Shape{0, 3, 4, 4}}) {
    CheckPool(CreateGlobalAveragePool("pool"), in, in.h, in.w);
  }
}

TEST(AveragePoolTest, RejectsAWindowLargerThanTheInput) {
  Parameters none({});
  const auto layer = CreateAveragePool("pool", 3);
  for (const Shape& input : {Shape{1, 1, 2, 3}, Shape{1, 1, 3, 2}}) {
    EXPECT_THAT(RunLayer(layer, none, input, true).status(),
                Invalid("pool: window 3 does not fit"));
  }
  EXPECT_THAT(RunLayer(layer, none, {1, 1, 3, 3}, true).status(), IsOk());
}

// For two 1x1 convolutions and a linear layer. Values up to 1 keep the sums
// small, so that they are exact: every y is below 500 * 2 * 3 * 8 + 33.
Parameters SequentialParameters() {
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

Layer Convolution(int weights, int64_t out, bool relu) {
  return CreateConvolution({.name = "conv",
                            .weights = weights,
                            .bias = weights + 1,
                            .out_channels = out,
                            .relu = relu});
}

Layer Linear() {
  return CreateLinear({.name = "linear",
                       .weights = 4,
                       .bias = 5,
                       .out_features = 2,
                       .relu = false});
}

// Nested in several ways, the same layers are the same function.
std::vector<Layer> Nestings() {
  std::vector<Layer> nestings;
  for (int inner = 1; inner <= 3; ++inner) {
    std::vector<Layer> first, all;
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

TEST(SequentialTest, IsTheChainOfItsLayersHoweverNested) {
  const Shape input{.n = 3, .c = 2, .h = 2, .w = 2};
  const Affine first{input, 3, 1, 1, 1, 0, true};
  const Affine second{{3, 3, 2, 2}, 2, 1, 1, 1, 0, true};
  const Affine last{input, 2, 2, 2, 1, 0, false};
  for (const auto& layer : Nestings()) {
    Parameters parameters = SequentialParameters();
    const auto run = RunLayer(layer, parameters, input, true);
    ASSERT_THAT(run, IsOk());
    const auto p = [&](int i) {
      return std::span<const float>(parameters.value(i));
    };
    const std::vector<double> x = Doubles(run->x);
    const std::vector<double> h1 = Reference(first, p(0), p(1), x).y;
    const std::vector<double> h2 = Reference(second, p(2), p(3), h1).y;
    const Want top =
        Reference(last, Transposed(p(4), 2), p(5), h2, Doubles(run->dy));
    const Want middle = Reference(second, p(2), p(3), h1, top.dx);
    const Want bottom = Reference(first, p(0), p(1), x, middle.dx);
    EXPECT_THAT(CheckNear(run->y, top.y), IsOk());
    EXPECT_THAT(CheckNear(run->dx, bottom.dx), IsOk());
    EXPECT_THAT(CheckNear(parameters.gradient(1), bottom.db), IsOk());
    EXPECT_THAT(run->ready, ElementsAre(5, 4, 3, 2, 1, 0));
  }
}

TEST(SequentialTest, PassesOnItsLayersErrorsAndRejectsNoLayers) {
  Parameters parameters = SequentialParameters();
  std::vector<Layer> layers;
  layers.push_back(Convolution(0, 3, true));
  layers.push_back(Linear());
  const auto error = [&](std::vector<Layer> of) {
    return RunLayer(CreateSequential("net", std::move(of)), parameters,
                    {1, 2, 2, 2}, true)
        .status();
  };
  EXPECT_THAT(error(std::move(layers)), Invalid("linear: parameter W3"));
  EXPECT_THAT(error({}), Invalid("net: no layers"));
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

}  // namespace
}  // namespace lockstep
