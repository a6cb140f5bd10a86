// The error bound on sums of products, on sums whose float32 error is known;
// the float64 reference against an independent one and against differences of
// the loss; its bounds against a float32 computation.
#include "conformance/reference/lenet_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/reference/plain_layers.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"

namespace lockstep::conformance {
namespace {

// 1 + 2^-24 rounds to 1: n such additions lose n * 2^-24 together, the worst
// that a float32 sum can do. The bound must hold, and not by much.
TEST(BoundedTest, WorstCaseSumIsWithinTheBoundAndCloseToIt) {
  for (const int64_t n : {1, 2, 3, 10, 500, 4096}) {
    std::vector<float> terms(n + 1, 0x1p-24f);
    terms[0] = 1;
    float sum = 0;
    for (const float term : terms) sum += term;
    Sums sums(1);
    const Factor ones(std::vector<float>{1});
    const Factor factor(terms);
    for (int64_t i = 0; i <= n; ++i) sums.AddScaled(0, factor, i, ones, 0, 1);
    const Bounded got = sums.Finish(n + 1);
    const double error = std::abs(sum - got.value[0]);
    EXPECT_EQ(error, static_cast<double>(n) * 0x1p-24);
    EXPECT_LE(error, got.bound[0]);
    EXPECT_LE(got.bound[0], 2.01 * error);
  }
}

// The factors' own bounds e and f come out as |a| f + e |b| + e f.
TEST(BoundedTest, FactorsPassTheirBoundsOn) {
  Bounded a(1), b(1);
  a.value = {2}, a.bound = {0.5};
  b.value = {-3}, b.bound = {0.25};
  Sums sums(1);
  sums.AddScaled(0, Factor(a), 0, Factor(b), 0, 1);
  const Bounded got = sums.Finish(1);
  EXPECT_EQ(got.value[0], -6);
  EXPECT_GE(got.bound[0], 2 * 0.25 + 3 * 0.5 + 0.5 * 0.25);
  EXPECT_NEAR(got.bound[0], 2 * 0.25 + 3 * 0.5 + 0.5 * 0.25, 1e-5);
}

TEST(BoundedTest, ZeroTermsAreExact) {
  Sums sums(1);
  EXPECT_EQ(sums.Finish(0).value[0], 0);
  EXPECT_EQ(sums.Finish(0).bound[0], 0);
  EXPECT_EQ(Gamma(0), 0);
}

TEST(BoundedTest, LargestErrorIsInBounds) {
  Bounded want(3);
  want.value = {1, 2, 3};
  want.bound = {0.5, 0.25, 0};
  EXPECT_EQ(LargestError(want, std::vector<float>{1, 2, 3}), 0);
  EXPECT_EQ(LargestError(want, std::vector<float>{1.25, 1.75, 3}), 1);
  EXPECT_EQ(LargestError(want, std::vector<float>{0, 2, 3}), 2);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(LargestError(want, std::vector<float>{1, 2, 4}), infinity);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(LargestError(want, std::vector<float>{nan, 2, 3}), infinity);
}

TEST(BoundedTest, NanStaysNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Sums sums(1);
  const Factor factor(std::vector<float>{nan});
  sums.AddScaled(0, factor, 0, factor, 0, 1);
  EXPECT_TRUE(std::isnan(sums.Finish(1).value[0]));
  EXPECT_TRUE(std::isnan(sums.Finish(1).bound[0]));
}

struct Problem {
  std::vector<float> parameters;
  std::vector<float> images;
  std::vector<int32_t> labels;
};

Problem MakeProblem(std::vector<float> parameters, int64_t samples) {
  const Dataset data = BlobDataset(samples);
  Problem problem{std::move(parameters), std::vector<float>(samples * 784),
                  std::vector<int32_t>(samples)};
  std::vector<int64_t> all(samples);
  std::iota(all.begin(), all.end(), 0);
  data.GatherImages(all, problem.images);
  data.GatherLabels(all, problem.labels);
  return problem;
}

// LeNet out of plain layers, in any precision: the second opinion on
// LeNetReference. A linear layer is a convolution whose kernel is as large as
// its input, with its weights transposed.
struct PlainLayer {
  int64_t in, out, kernel;
  bool pools, is_linear;
};
constexpr PlainLayer kPlainLeNet[] = {{1, 20, 3, true, false},
                                      {20, 50, 5, true, false},
                                      {50, 128, 4, false, true},
                                      {128, 10, 1, false, true}};

// [inputs, outputs] to [outputs, inputs].
template <typename T>
std::vector<T> Transposed(const std::vector<T>& m, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(m.size()) / rows;
  std::vector<T> t(m.size());
  for (int64_t i = 0; i < rows * columns; ++i) {
    t[i % columns * rows + i / columns] = m[i];
  }
  return t;
}

// Calls f(output, input) for each element of 2 x 2 blocks.
template <typename T, typename F>
void ForBlocks(const Plane<T>& x, F f) {
  const int64_t h = x.h / 2, w = x.w / 2;
  for (int64_t out = 0; out < x.n * h * w * x.c; ++out) {
    const int64_t pixel = out / x.c;
    const int64_t row = pixel / w / h * x.h + pixel / w % h * 2;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t in = (row + k / 2) * x.w + pixel % w * 2 + k % 2;
      f(out, in * x.c + out % x.c);
    }
  }
}

struct Plain {
  double loss_sum = 0;
  std::vector<double> gradient;  // Of the mean loss.
};

template <typename T>
class PlainLeNet {
 public:
  PlainLeNet(const std::vector<T>& parameters, const Problem& problem)
      : labels_(problem.labels) {
    Plane<T> x(std::ssize(labels_), 28, 28, 1);
    std::ranges::copy(problem.images, x.v.begin());
    auto next = parameters.begin();
    for (const PlainLayer& layer : kPlainLeNet) {
      const PlainConvolution<T> conv = ConvolutionOf(layer);
      std::vector<T> weight(next, next + conv.weights());
      next += conv.weights();
      if (layer.is_linear) {
        weight = Transposed(weight, conv.weights() / conv.biases());
      }
      const std::vector<T> bias(next, next + conv.biases());
      next += conv.biases();
      sums_.push_back(conv.Forward(x, weight, bias));
      inputs_.push_back(std::move(x));
      weights_.push_back(std::move(weight));
      x = Relu(sums_.back());
      if (!layer.pools) continue;
      Plane<T> pooled(x.n, x.h / 2, x.w / 2, x.c);
      ForBlocks(x,
                [&](int64_t out, int64_t in) { pooled.v[out] += x.v[in] / 4; });
      x = std::move(pooled);
    }
  }

  Plain Run() const {
    Plane<T> p = sums_.back();
    Plain plain{.loss_sum = SoftmaxLoss<T>(labels_, p), .gradient = {}};
    const auto samples = static_cast<T>(labels_.size());
    Plane<T> d = SoftmaxLossBackward<T>(
        labels_, std::move(p), std::vector<T>(labels_.size(), 1 / samples));
    for (size_t i = std::size(kPlainLeNet); i-- > 0;) {
      const PlainConvolution<T> conv = ConvolutionOf(kPlainLeNet[i]);
      std::vector<T> weight(conv.weights()), bias(conv.biases());
      d = conv.Backward(inputs_[i], weights_[i], d, i > 0, weight, bias);
      if (kPlainLeNet[i].is_linear) weight = Transposed(weight, conv.biases());
      weight.insert(weight.end(), bias.begin(), bias.end());
      plain.gradient.insert(plain.gradient.begin(), weight.begin(),
                            weight.end());
      if (i == 0) break;
      if (kPlainLeNet[i - 1].pools) {
        const Plane<T>& z = sums_[i - 1];
        Plane<T> unpooled(z.n, z.h, z.w, z.c);
        ForBlocks(
            z, [&](int64_t out, int64_t in) { unpooled.v[in] = d.v[out] / 4; });
        d = std::move(unpooled);
      }
      d = ReluBackward(sums_[i - 1], std::move(d));
    }
    return plain;
  }

 private:
  static PlainConvolution<T> ConvolutionOf(const PlainLayer& layer) {
    return {layer.in, layer.out, layer.kernel, /*stride=*/1, /*padding=*/0};
  }

  const std::vector<int32_t>& labels_;
  std::vector<Plane<T>> inputs_, sums_;
  std::vector<std::vector<T>> weights_;
};

template <typename T>
Plain RunPlain(const Problem& problem) {
  return PlainLeNet<T>({problem.parameters.begin(), problem.parameters.end()},
                       problem)
      .Run();
}

LeNetResult RunReference(const Problem& problem) {
  return LeNetReference(problem.parameters, problem.images, problem.labels, 8);
}

class LeNetReferenceTest : public testing::TestWithParam<std::string> {
 protected:
  Problem MakeParamProblem() {
    return MakeProblem(
        GetParam() == "He" ? HeLeNet(1) : WellConditionedLeNet(1), 4);
  }
};

TEST_P(LeNetReferenceTest, EqualsAnIndependentComputationInFloat64) {
  const Problem problem = MakeParamProblem();
  const LeNetResult got = RunReference(problem);
  const Plain want = RunPlain<double>(problem);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * want.loss_sum);
  ASSERT_EQ(got.gradient.value.size(), want.gradient.size());
  const double norm = Norm(want.gradient);
  ASSERT_GT(norm, 0.1);
  for (size_t i = 0; i < want.gradient.size(); ++i) {
    ASSERT_NEAR(got.gradient.value[i], want.gradient[i], 1e-13 * norm) << i;
  }
}

// Whichever sample is the first. With every sum in another order:
// ReorderedLeNetTest of conformance/checks_test.cc.
TEST_P(LeNetReferenceTest, BoundsHoldInFloat32) {
  Problem problem = MakeParamProblem();
  const LeNetResult want = RunReference(problem);
  for (const char* share : {"largest_share", "largest_share_rotated"}) {
    const Plain got = RunPlain<float>(problem);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, want.loss_sum_bound);
    double largest_share = 0;  // Of the bound that an error takes up.
    for (size_t i = 0; i < got.gradient.size(); ++i) {
      const double error = std::abs(got.gradient[i] - want.gradient.value[i]);
      ASSERT_LE(error, want.gradient.bound[i]) << i;
      largest_share = std::max(largest_share, error / want.gradient.bound[i]);
    }
    RecordProperty(share, absl::StrCat(largest_share));
    EXPECT_GT(largest_share, 0);  // Float32 does round.
    std::ranges::rotate(problem.images, problem.images.begin() + 784);
    std::ranges::rotate(problem.labels, problem.labels.begin() + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, LeNetReferenceTest,
                         testing::Values("He", "WellConditioned"),
                         [](const auto& info) { return info.param; });

// Central differences of the independent loss in float64, for one element in
// the middle of each tensor. Their error is h^2 times a third derivative, and
// 1e-16 / h: with h = 1e-5 both are below 1e-8.
TEST(LeNetReferenceDifferencesTest, GradientIsTheSlopeOfTheLoss) {
  const Problem problem = MakeProblem(HeLeNet(1), 4);
  const LeNetResult got = RunReference(problem);
  const auto loss = [&](int64_t element, double shift) {
    std::vector<double> parameters(problem.parameters.begin(),
                                   problem.parameters.end());
    parameters[element] += shift;
    return PlainLeNet<double>(parameters, problem).Run().loss_sum / 4;
  };
  constexpr double kShift = 1e-5;
  for (const int64_t i :
       {90, 190, 12700, 25225, 76450, 127714, 128418, 129063}) {
    const double slope = (loss(i, kShift) - loss(i, -kShift)) / (2 * kShift);
    EXPECT_NEAR(got.gradient.value[i], slope, 1e-7) << i;
  }
}

TEST(LeNetReferenceBoundsTest, AreSmallAgainstWellConditionedGradients) {
  const LeNetResult r = RunReference(MakeProblem(WellConditionedLeNet(1), 12));
  int64_t at = 0;
  for (const int64_t size : {180, 20, 25000, 50, 102400, 128, 1280, 10}) {
    const double value = Norm(std::span(r.gradient.value).subspan(at, size));
    const double bound = Norm(std::span(r.gradient.bound).subspan(at, size));
    EXPECT_GT(value, 0.01) << "tensor at " << at;
    EXPECT_LT(bound, 0.01 * value) << "tensor at " << at;
    at += size;
  }
  EXPECT_EQ(at, kLeNetParameters);
}

}  // namespace
}  // namespace lockstep::conformance
