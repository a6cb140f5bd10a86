// Tests of oneDNN's Winograd convolutions, forward and both gradients. They are
// compared with the definition of a convolution, within the bound of F(4x4,
// 3x3), on shapes whose tiles reach over the border. Other tests check which
// convolutions use Winograd.
#include "models/reference/winograd.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/linear.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/bounded.h"
#include "models/reference/products.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {
namespace {

using reference::Plane;
using reference::Products;
using reference::WinogradBound;
using reference::WinogradProducts;

bool HasWinograd() {
  return CheckConvolutionAlgorithm(ConvolutionAlgorithm::kWinograd).ok();
}

struct Case {
  int64_t n, c, h, w, out;
  int64_t padding = 1;
};

void PrintTo(const Case& tried, std::ostream* out) {
  *out << tried.n << " x " << tried.c << " x " << tried.h << " x " << tried.w
       << " to " << tried.out << ", padding " << tried.padding;
}

const Case kCases[] = {
    {1, 16, 28, 28, 16},  {2, 48, 14, 14, 16},   {9, 16, 7, 7, 48},
    {1, 16, 5, 9, 16},    {2, 16, 1, 1, 16},     {9, 32, 4, 4, 32},
    {2, 16, 8, 6, 32, 0}, {3, 64, 3, 13, 16, 1},
};

// Returns the index of element (pixel, channel) of activations in kNchw16c.
int64_t InBlocks(const Shape& shape, int64_t pixel, int64_t channel) {
  const int64_t pixels = shape.h * shape.w;
  const int64_t block = pixel / pixels * (shape.c / 16) + channel / 16;
  return (block * pixels + pixel % pixels) * 16 + channel % 16;
}

AlignedBuffer ToBlocks(const Plane<double>& plane) {
  AlignedBuffer blocks(plane.shape.size());
  for (int64_t at = 0; at < plane.shape.size(); ++at) {
    blocks
        .data()[InBlocks(plane.shape, at / plane.shape.c, at % plane.shape.c)] =
        static_cast<float>(plane.v[at]);
  }
  return blocks;
}

std::vector<float> FromBlocks(const Shape& shape, const float* blocks) {
  std::vector<float> values(shape.size());
  for (int64_t at = 0; at < shape.size(); ++at) {
    values[at] = blocks[InBlocks(shape, at / shape.c, at % shape.c)];
  }
  return values;
}

// One convolution and its inputs, which float32 holds exactly.
struct Problem {
  explicit Problem(const Case& tried)
      : padding(tried.padding),
        x(Shape{tried.n, tried.c, tried.h, tried.w}),
        dy(Shape{tried.n, tried.out, tried.h + 2 * tried.padding - 2,
                 tried.w + 2 * tried.padding - 2}),
        weight(tried.out * tried.c * 9) {
    std::mt19937 random(7);
    const auto fill = [&](std::vector<double>& values) {
      for (double& value : values) value = (random() >> 8) * 0x1p-23 - 1;
    };
    fill(x.v);
    fill(dy.v);
    fill(weight);
  }

  int64_t padding;
  Plane<double> x, dy;
  std::vector<double> weight;
};

// A convolution's results: y, and the gradients of the input and the weights.
template <typename T>
struct Outcome {
  std::vector<T> y, dx, dweight;
};

Outcome<double> Exact(const Problem& problem) {
  const Shape& x = problem.x.shape;
  const Shape& y = problem.dy.shape;
  const Products<double> products({3, 3, 1, problem.padding}, x.c, y.c, false);
  Outcome<double> outcome;
  outcome.y = products.Forward(problem.x, problem.weight, {}, y).v;
  outcome.dx = products.InputGradient(x, problem.weight, problem.dy).v;
  outcome.dweight.resize(problem.weight.size());
  products.ParameterGradients(problem.x, problem.dy, 0, outcome.dweight, {});
  return outcome;
}

// Returns the bounds of Winograd's errors.
Outcome<double> Bounds(const Problem& problem) {
  const Shape& x = problem.x.shape;
  const Shape& y = problem.dy.shape;
  const WinogradProducts<double> magnitudes(problem.padding, x.c, y.c, true);
  Outcome<double> bounds;
  bounds.y = magnitudes.Forward(problem.x, problem.weight, {}, y).v;
  bounds.dx = magnitudes.InputGradient(x, problem.weight, problem.dy).v;
  bounds.dweight.resize(problem.weight.size());
  magnitudes.ParameterGradients(problem.x, problem.dy, bounds.dweight, {});
  const int64_t tiles = y.n * ((y.h + 3) / 4) * ((y.w + 3) / 4);
  const auto scale = [](std::vector<double>& of, int64_t terms) {
    for (double& bound : of) bound *= WinogradBound(terms);
  };
  scale(bounds.y, x.c);
  scale(bounds.dx, y.c);
  scale(bounds.dweight, tiles);
  return bounds;
}

// Returns the bounds of direct convolution's errors: gamma of its products.
Outcome<double> DirectBounds(Problem problem) {
  for (std::vector<double>* values :
       {&problem.x.v, &problem.dy.v, &problem.weight}) {
    for (double& value : *values) value = std::abs(value);
  }
  Outcome<double> bounds = Exact(problem);
  const auto scale = [](std::vector<double>& of, int64_t terms) {
    for (double& bound : of) bound *= Gamma(terms);
  };
  const Shape& y = problem.dy.shape;
  scale(bounds.y, 9 * problem.x.shape.c);
  scale(bounds.dx, 9 * y.c);
  scale(bounds.dweight, y.n * y.h * y.w);
  return bounds;
}

// Computes the outcome by the plan of a network's only convolution.
// algorithm_name: set to the plan's `algorithm_name`.
Outcome<float> Compute(const Problem& problem, ConvolutionAlgorithm algorithm,
                       std::string* algorithm_name = nullptr) {
  const Shape& x = problem.x.shape;
  const Shape& y = problem.dy.shape;
  Network network("one", {1, x.c, x.h, x.w});
  network.Convolution(
      "conv", network.input(),
      {.out = y.c, .kernel = 3, .padding = problem.padding, .bias = false});
  Parameters parameters = CreateParameters(network);
  std::ranges::copy(problem.weight, parameters.values().begin());
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const PlanContext context = {.engine = engine,
                               .stream = dnnl::stream(engine),
                               .layout = Layout::kNchw16c,
                               .convolution = algorithm,
                               .parameters = &parameters};
  auto plan = PlanConvolution(context, {.operation = &network.operations()[0],
                                        .x = x,
                                        .output = y,
                                        .input_gradient = true});
  EXPECT_THAT(plan, IsOk());
  if (!plan.ok()) return {};
  if (algorithm_name != nullptr) *algorithm_name = (*plan)->algorithm_name;
  AlignedBuffer in = ToBlocks(problem.x);
  AlignedBuffer dy = ToBlocks(problem.dy);
  AlignedBuffer out(y.size()), dx(x.size());
  AlignedBuffer scratch((*plan)->scratch_bytes / 4);
  AlignedBuffer saved((*plan)->saved_bytes / 4);
  EXPECT_THAT((*plan)->Forward({.x = in.data(),
                                .second = nullptr,
                                .y = out.data(),
                                .saved = saved.data(),
                                .scratch = scratch.data(),
                                .training = true,
                                .batch = nullptr}),
              IsOk());
  EXPECT_THAT((*plan)->Backward({.x = in.data(),
                                 .second = nullptr,
                                 .y = out.data(),
                                 .saved = saved.data(),
                                 .dy = dy.data(),
                                 .dx = dx.data(),
                                 .dsecond = nullptr,
                                 .scratch = scratch.data(),
                                 .batch = nullptr},
                                [](int) {}),
              IsOk());
  const std::span<const float> gradients = parameters.gradients();
  return {FromBlocks(y, out.data()),
          FromBlocks(x, dx.data()),
          {gradients.begin(), gradients.end()}};
}

// Returns the largest ratio of an error to its bound.
double Excess(const std::vector<float>& got, const std::vector<double>& want,
              const std::vector<double>& bounds) {
  EXPECT_EQ(got.size(), want.size());
  EXPECT_EQ(bounds.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst,
                     ErrorOverAllowed(std::abs(got[i] - want[i]), bounds[i]));
  }
  return worst;
}

class WinogradTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!HasWinograd()) GTEST_SKIP() << "oneDNN has no Winograd here";
  }
};

TEST_P(WinogradTest, IsWithinItsBoundOfTheDefinition) {
  const Problem problem(GetParam());
  std::string algorithm_name;
  const Outcome<float> got =
      Compute(problem, ConvolutionAlgorithm::kWinograd, &algorithm_name);
  const Outcome<double> want = Exact(problem);
  const Outcome<double> bounds = Bounds(problem);
  EXPECT_LE(Excess(got.y, want.y, bounds.y), 1);
  EXPECT_LE(Excess(got.dx, want.dx, bounds.dx), 1);
  EXPECT_LE(Excess(got.dweight, want.dweight, bounds.dweight), 1);
  EXPECT_EQ(algorithm_name, "winograd");
  // The results differ, so another algorithm computed them.
  EXPECT_NE(got.y, Compute(problem, ConvolutionAlgorithm::kDirect).y);
}

// A tile left out at the border, of the outputs or of the sums, shows.
TEST_P(WinogradTest, AForgottenTileIsFarOutsideTheBound) {
  const Problem problem(GetParam());
  Problem cut = problem;  // Without the last row of tiles of the last sample.
  const Shape& y = cut.dy.shape;
  const int64_t begin = ((y.n - 1) * y.h + (y.h - 1) / 4 * 4) * y.w;
  std::fill(cut.dy.v.begin() + begin * y.c, cut.dy.v.end(), 0);
  Outcome<float> got = Compute(cut, ConvolutionAlgorithm::kWinograd);
  const Outcome<double> want = Exact(problem);
  const Outcome<double> bounds = Bounds(problem);
  EXPECT_GT(Excess(got.dx, want.dx, bounds.dx), 100);
  EXPECT_GT(Excess(got.dweight, want.dweight, bounds.dweight), 100);
  std::fill(got.y.begin() + begin * y.c, got.y.end(), 0.0f);
  EXPECT_GT(Excess(got.y, want.y, bounds.y), 100);
}

INSTANTIATE_TEST_SUITE_P(Shapes, WinogradTest, testing::ValuesIn(kCases));

// A pixel a million times as bright as all others rounds every output of its
// tile, including outputs whose window does not contain it.
TEST(WinogradBoundTest, OfDirectConvolutionIsTooTight) {
  if (!HasWinograd()) GTEST_SKIP() << "oneDNN has no Winograd here";
  Problem problem({2, 16, 8, 8, 16});
  std::fill_n(problem.x.v.begin(), 16, 0x1p20);
  std::fill_n(problem.dy.v.begin(), 16, 0x1p20);
  const Outcome<double> want = Exact(problem);
  const Outcome<double> tight = DirectBounds(problem);
  const Outcome<float> direct = Compute(problem, ConvolutionAlgorithm::kDirect);
  EXPECT_LE(Excess(direct.y, want.y, tight.y), 1);
  EXPECT_LE(Excess(direct.dx, want.dx, tight.dx), 1);
  EXPECT_LE(Excess(direct.dweight, want.dweight, tight.dweight), 1);
  const Outcome<float> got = Compute(problem, ConvolutionAlgorithm::kWinograd);
  EXPECT_GT(Excess(got.y, want.y, tight.y), 10);
  EXPECT_GT(Excess(got.dx, want.dx, tight.dx), 10);
  const Outcome<double> bounds = Bounds(problem);
  EXPECT_LE(Excess(got.y, want.y, bounds.y), 1);
  EXPECT_LE(Excess(got.dx, want.dx, bounds.dx), 1);
  EXPECT_LE(Excess(got.dweight, want.dweight, bounds.dweight), 1);
}

// Shapes alone decide: 32 channels and 64 tiles of 4x4 outputs are enough.
TEST(AlgorithmTest, WinogradComputesWhereItGains) {
  struct Row {
    int64_t n, c, h, out;
    ConvolutionOp op;
    bool automatic, wherever;
  };
  const ConvolutionOp fits = {.kernel = 3, .padding = 1};
  const Row rows[] = {
      {64, 32, 4, 32, fits, true, true},
      {63, 32, 4, 32, fits, false, true},  // Too few tiles.
      {16, 32, 7, 32, fits, true, true},   // Four tiles an image.
      {64, 16, 8, 64, fits, false, true},  // Too few channels.
      {64, 64, 8, 16, fits, false, true},
      {64, 3, 8, 64, fits, false, false},  // No full block.
      {64, 64, 8, 64, {.kernel = 3, .stride = 2, .padding = 1}, false, false},
      {64, 64, 8, 64, {.kernel = 5, .padding = 1}, false, false},
      {64, 64, 8, 64, {.kernel = 3, .padding = 2}, false, false},
  };
  for (const Row& row : rows) {
    const Shape x = {row.n, row.c, row.h, row.h};
    const Shape y = {row.n, row.out, row.h, row.h};
    SCOPED_TRACE(testing::Message() << row.n << " x " << row.c << " at "
                                    << row.h << " to " << row.out);
    EXPECT_EQ(IsWinograd(ConvolutionAlgorithm::kAuto, row.op, x, y),
              row.automatic);
    EXPECT_EQ(IsWinograd(ConvolutionAlgorithm::kWinograd, row.op, x, y),
              row.wherever);
    EXPECT_FALSE(IsWinograd(ConvolutionAlgorithm::kDirect, row.op, x, y));
  }
}

// A stem of three channels, a convolution of 3x3 and one of 1x1.
Network Small(int64_t channels, int64_t last, int64_t stem = 3) {
  Network network("small", {1, stem, 8, 8});
  Value x = network.Convolution("a", network.input(),
                                {.out = channels, .kernel = 3, .padding = 1});
  x = network.Convolution("b", x, {.out = channels, .kernel = 3, .padding = 1});
  x = network.Convolution("c", x, {.out = last});
  network.Linear("d", network.GlobalAveragePool("pool", x), {.out = 10});
  return network;
}

TEST(AlgorithmTest, NetworksLieInBlocksIfAllOfThemCan) {
  if (!HasWinograd()) GTEST_SKIP() << "oneDNN has no Winograd here";
  using enum ConvolutionAlgorithm;
  const auto layout = [](const Network& network, ConvolutionAlgorithm algorithm,
                         DataType type = DataType::kFloat32) {
    return LayoutOf(network, type, algorithm);
  };
  EXPECT_EQ(layout(Small(32, 48), kAuto), Layout::kNchw16c);
  EXPECT_EQ(layout(Small(32, 48), kDirect), Layout::kNhwc);
  EXPECT_EQ(layout(Small(32, 48), kAuto, DataType::kBFloat16), Layout::kNhwc);
  EXPECT_EQ(layout(Small(32, 24), kAuto), Layout::kNhwc);
  EXPECT_EQ(layout(Small(32, 48, /*stem=*/5), kAuto), Layout::kNhwc);
  EXPECT_EQ(layout(Small(16, 16), kAuto), Layout::kNhwc);  // No gain.
  EXPECT_EQ(layout(Small(16, 16), kWinograd), Layout::kNchw16c);
  EXPECT_EQ(ResolveConvolution(Small(16, 16), kAuto), kDirect);
  EXPECT_EQ(ResolveConvolution(Small(32, 16), kAuto), kAuto);
}

}  // namespace
}  // namespace lockstep
