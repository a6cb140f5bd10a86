// The error bound on sums of products, on sums whose float32 error is known;
// the float64 reference against an independent one and against differences of
// the loss; its bounds against float32 computations in two orders.
#include "conformance/reference/lenet_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/reference/bounded.h"
#include "conformance/reference/lenet_fixtures.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"

namespace lockstep {
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

// LeNet in the plainest loops there are, in any precision and with its sums
// taken in either order: the second opinion on LeNetReference.
//
// All arithmetic is in T; tensors are [c, h, w]. `reversed` runs every loop
// backwards, so that every sum is taken in the opposite order.
template <typename T>
class PlainLeNet {
 public:
  PlainLeNet(std::span<const T> parameters, bool reversed)
      : p_(parameters), reversed_(reversed), gradient_(parameters.size()) {}

  // Adds the gradients of scale * loss of one image; returns the loss.
  T Step(const std::vector<T>& x, int label, T scale) {
    const std::vector<T> z1 = Conv(x, {1, 28, 3, 20}, 0);
    const std::vector<T> h1 = Pool(Relu(z1), 26, 20);
    const std::vector<T> z2 = Conv(h1, {20, 13, 5, 50}, 200);
    const std::vector<T> h2 = Pool(Relu(z2), 9, 50);
    const std::vector<T> z3 = Linear(h2, 128, 25250);
    const std::vector<T> h3 = Relu(z3);
    const std::vector<T> z4 = Linear(h3, 10, 127778);
    std::vector<T> d4(10);
    const T largest = *std::max_element(z4.begin(), z4.end());
    T sum = 0;
    For(10, [&](int k) { sum += std::exp(z4[k] - largest); });
    for (int k = 0; k < 10; ++k) {
      d4[k] = (std::exp(z4[k] - largest) / sum - T(k == label)) * scale;
    }
    std::vector<T> d3 = LinearBackward(h3, d4, 127778);
    ReluBackward(z3, d3);
    std::vector<T> d2 = PoolBackward(LinearBackward(h2, d3, 25250), 9, 50);
    ReluBackward(z2, d2);
    std::vector<T> d1 =
        PoolBackward(ConvBackward(h1, {20, 13, 5, 50}, d2, 200), 26, 20);
    ReluBackward(z1, d1);
    ConvBackward(x, {1, 28, 3, 20}, d1, 0);
    return std::log(sum) - (z4[label] - largest);
  }

  const std::vector<T>& gradient() const { return gradient_; }

 private:
  struct Shape {
    int in_channels, side, kernel, out_channels;
    int out_side() const { return side - kernel + 1; }
    int weights() const { return out_channels * in_channels * kernel * kernel; }
  };

  template <typename F>
  void For(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) {
      f(static_cast<int>(reversed_ ? n - 1 - i : i));
    }
  }

  // Calls f(output, input, weight) for every product of a convolution.
  template <typename F>
  void ForTaps(const Shape& s, F f) const {
    const int n = s.out_side();
    For(s.out_channels * n * n, [&](int out) {
      const int o = out / (n * n), y = out / n % n, x = out % n;
      For(s.in_channels * s.kernel * s.kernel, [&](int t) {
        const int c = t / (s.kernel * s.kernel);
        const int ky = t / s.kernel % s.kernel, kx = t % s.kernel;
        f(out, (c * s.side + y + ky) * s.side + x + kx,
          o * s.in_channels * s.kernel * s.kernel + t);
      });
    });
  }

  std::vector<T> Conv(const std::vector<T>& in, const Shape& s, int at) {
    const int area = s.out_side() * s.out_side();
    std::vector<T> out(s.out_channels * area);
    ForTaps(s, [&](int o, int i, int w) { out[o] += p_[at + w] * in[i]; });
    for (size_t o = 0; o < out.size(); ++o) {
      out[o] += p_[at + s.weights() + o / area];
    }
    return out;
  }

  std::vector<T> ConvBackward(const std::vector<T>& in, const Shape& s,
                              const std::vector<T>& delta, int at) {
    std::vector<T> d(in.size());
    ForTaps(s, [&](int o, int i, int w) {
      gradient_[at + w] += delta[o] * in[i];
      d[i] += delta[o] * p_[at + w];
    });
    const int area = s.out_side() * s.out_side();
    For(delta.size(),
        [&](int o) { gradient_[at + s.weights() + o / area] += delta[o]; });
    return d;
  }

  std::vector<T> Linear(const std::vector<T>& in, int outputs, int at) {
    std::vector<T> out(outputs);
    For(in.size(), [&](int i) {
      for (int o = 0; o < outputs; ++o) {
        out[o] += in[i] * p_[at + i * outputs + o];
      }
    });
    for (int o = 0; o < outputs; ++o) {
      out[o] += p_[at + in.size() * outputs + o];
    }
    return out;
  }

  std::vector<T> LinearBackward(const std::vector<T>& in,
                                const std::vector<T>& delta, int at) {
    const int outputs = static_cast<int>(delta.size());
    std::vector<T> d(in.size());
    For(in.size(), [&](int i) {
      For(outputs, [&](int o) {
        gradient_[at + i * outputs + o] += in[i] * delta[o];
        d[i] += delta[o] * p_[at + i * outputs + o];
      });
    });
    for (int o = 0; o < outputs; ++o) {
      gradient_[at + in.size() * outputs + o] += delta[o];
    }
    return d;
  }

  static std::vector<T> Relu(std::vector<T> z) {
    for (T& v : z) v = std::max(v, T(0));
    return z;
  }

  static void ReluBackward(const std::vector<T>& z, std::vector<T>& delta) {
    for (size_t i = 0; i < z.size(); ++i) {
      if (!(z[i] > 0)) delta[i] = 0;
    }
  }

  static std::vector<T> Pool(const std::vector<T>& in, int side, int channels) {
    const int half = side / 2;
    std::vector<T> out(channels * half * half);
    for (size_t i = 0; i < out.size(); ++i) {
      const int at = TopLeft(static_cast<int>(i), side);
      out[i] = (in[at] + in[at + 1] + in[at + side] + in[at + side + 1]) / 4;
    }
    return out;
  }

  static std::vector<T> PoolBackward(const std::vector<T>& delta, int side,
                                     int channels) {
    std::vector<T> in(channels * side * side);
    for (size_t i = 0; i < delta.size(); ++i) {
      const int at = TopLeft(static_cast<int>(i), side);
      in[at] = in[at + 1] = in[at + side] = in[at + side + 1] = delta[i] / 4;
    }
    return in;
  }

  // The first input of the block that pooled output i averages.
  static int TopLeft(int i, int side) {
    const int half = side / 2;
    const int channel = i / (half * half), y = i / half % half, x = i % half;
    return (channel * side + 2 * y) * side + 2 * x;
  }

  std::span<const T> p_;
  bool reversed_;
  std::vector<T> gradient_;
};

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
  for (int64_t i = 0; i < samples; ++i) all[i] = i;
  data.GatherImages(all, problem.images);
  data.GatherLabels(all, problem.labels);
  return problem;
}

struct Plain {
  double loss_sum = 0;
  std::vector<double> gradient;
};

template <typename T>
Plain RunPlain(const Problem& problem, bool reversed) {
  const std::vector<T> parameters(problem.parameters.begin(),
                                  problem.parameters.end());
  PlainLeNet<T> net(parameters, reversed);
  const int64_t samples = static_cast<int64_t>(problem.labels.size());
  T loss = 0;
  for (int64_t k = 0; k < samples; ++k) {
    const int64_t i = reversed ? samples - 1 - k : k;
    loss += net.Step({problem.images.begin() + i * 784,
                      problem.images.begin() + (i + 1) * 784},
                     problem.labels[i], T(1) / static_cast<T>(samples));
  }
  return {static_cast<double>(loss),
          {net.gradient().begin(), net.gradient().end()}};
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
  const Plain want = RunPlain<double>(problem, false);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * want.loss_sum);
  ASSERT_EQ(got.gradient.value.size(), want.gradient.size());
  const double norm = Norm(want.gradient);
  ASSERT_GT(norm, 0.1);
  for (size_t i = 0; i < want.gradient.size(); ++i) {
    ASSERT_NEAR(got.gradient.value[i], want.gradient[i], 1e-13 * norm) << i;
  }
}

TEST_P(LeNetReferenceTest, BoundsHoldInFloat32InEitherOrder) {
  const Problem problem = MakeParamProblem();
  const LeNetResult want = RunReference(problem);
  for (const bool reversed : {false, true}) {
    const Plain got = RunPlain<float>(problem, reversed);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, want.loss_sum_bound);
    double largest_share = 0;  // Of the bound that an error takes up.
    for (size_t i = 0; i < got.gradient.size(); ++i) {
      const double error = std::abs(got.gradient[i] - want.gradient.value[i]);
      ASSERT_LE(error, want.gradient.bound[i]) << i;
      largest_share = std::max(largest_share, error / want.gradient.bound[i]);
    }
    RecordProperty(reversed ? "largest_share_reversed" : "largest_share",
                   absl::StrCat(largest_share));
    EXPECT_GT(largest_share, 0);  // Float32 does round.
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
    PlainLeNet<double> net(parameters, false);
    double sum = 0;
    for (int64_t i = 0; i < 4; ++i) {
      sum += net.Step({problem.images.begin() + i * 784,
                       problem.images.begin() + (i + 1) * 784},
                      problem.labels[i], 1.0);
    }
    return sum / 4;
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
}  // namespace lockstep
