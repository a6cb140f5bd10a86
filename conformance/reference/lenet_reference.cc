// LeNet's loss and gradients, and their bounds, layer by layer.
#include "conformance/reference/lenet_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "conformance/reference/bounded.h"
#include "conformance/reference/bounded_layers.h"

namespace lockstep {
namespace {

constexpr int64_t kClasses = kLeNetClasses;
constexpr double kExpLogError = 8 * kUnitRoundoff;  // 4 ulp.

constexpr ConvShape kConv1 = {1, 28, 3, 20};   // To 26 x 26, pooled to 13.
constexpr ConvShape kConv2 = {20, 13, 5, 50};  // To 9 x 9, pooled to 4.
constexpr int64_t kFeatures = 800;
constexpr int64_t kHidden = 128;

// [4, 4, 50] to the [50, 4, 4] that the linear layer's rows are in, and back.
Bounded ChannelsFirst(const Bounded& in) {
  Bounded out(kFeatures);
  for (int64_t i = 0; i < kFeatures; ++i) {
    const int64_t from = i % 16 * 50 + i / 16;
    out.value[i] = in.value[from];
    out.bound[i] = in.bound[from];
  }
  return out;
}

Bounded ChannelsLast(const Bounded& in) {
  Bounded out(kFeatures);
  for (int64_t i = 0; i < kFeatures; ++i) {
    const int64_t to = i % 16 * 50 + i / 16;
    out.value[to] = in.value[i];
    out.bound[to] = in.bound[i];
  }
  return out;
}

// How far log p may be from its exact value; see the header for the terms.
// 32 u is exp in the numerator, the denominator and of the log-probability, the
// division and second-order terms; 10 u times the logarithm's size is its
// error, and two subtractions.
std::vector<double> LogProbabilityBounds(const Bounded& z,
                                         const std::vector<double>& t,
                                         double log_sum) {
  const double worst = *std::max_element(z.bound.begin(), z.bound.end());
  std::vector<double> eta(kClasses);
  for (int64_t k = 0; k < kClasses; ++k) {
    eta[k] = z.bound[k] +
             kUnitRoundoff * (std::abs(t[k]) + z.bound[k] + worst) + kSmallest;
  }
  const double worst_eta = *std::max_element(eta.begin(), eta.end());
  std::vector<double> rho(kClasses);
  for (int64_t k = 0; k < kClasses; ++k) {
    rho[k] = eta[k] + worst_eta + Gamma(kClasses) + 4 * kExpLogError +
             10 * kUnitRoundoff * (std::abs(t[k]) + log_sum);
  }
  return rho;
}

// Adds the sample's loss and its bound to `result`; returns the gradient of
// loss / samples in the logits.
Bounded CrossEntropy(const Bounded& z, int32_t label, int64_t samples,
                     LeNetResult& result) {
  const double largest = *std::max_element(z.value.begin(), z.value.end());
  std::vector<double> t(kClasses);
  double sum = 0;
  for (int64_t k = 0; k < kClasses; ++k) {
    t[k] = z.value[k] - largest;
    sum += std::exp(t[k]);
  }
  const double log_sum = std::log(sum);
  const std::vector<double> rho = LogProbabilityBounds(z, t, log_sum);
  const double loss = log_sum - t[label];
  result.loss_sum += loss;
  result.loss_sum_bound += rho[label] + Gamma(samples + kClasses) * loss;
  const double scale = 1.0 / static_cast<double>(samples);
  Bounded delta(kClasses);
  for (int64_t k = 0; k < kClasses; ++k) {
    const double y = k == label ? 1 : 0;
    const double p = std::exp(t[k] - log_sum);
    const double p_bound = p * std::expm1(rho[k]) + kSmallest;
    delta.value[k] = (p - y) * scale;
    delta.bound[k] =
        (p_bound + Gamma(4) * (p + p_bound + y)) * scale * (1 + kOwnError) +
        kSmallest;
  }
  return delta;
}

// Splits off the next `size` elements of `rest`.
template <typename T>
std::span<T> Take(std::span<T>& rest, int64_t size) {
  const std::span<T> head = rest.first(size);
  rest = rest.subspan(size);
  return head;
}

class LeNet {
 public:
  // Braces, since only they take the parameters from left to right.
  explicit LeNet(std::span<const float> p)
      : conv1_{Take(p, 180), Take(p, 20), kConv1},
        conv2_{Take(p, 25000), Take(p, 50), kConv2},
        hidden_{Take(p, 102400), Take(p, 128), kFeatures},
        output_{Take(p, 1280), Take(p, 10), kHidden} {}

  // Adds one sample's loss to `result`, its gradients to the layers' sums.
  void Accumulate(std::span<const float> image, int32_t label, int64_t samples,
                  LeNetResult& result) {
    const Factor x(image);
    const Bounded z1 = ConvForward(x, conv1_, kConv1);
    const Factor h1(AveragePool(Relu(z1), 26, 20));
    const Bounded z2 = ConvForward(h1, conv2_, kConv2);
    const Factor h2(ChannelsFirst(AveragePool(Relu(z2), 9, 50)));
    const Bounded z3 = LinearForward(h2, hidden_);
    const Factor h3(Relu(z3));
    const Bounded z4 = LinearForward(h3, output_);

    const Factor d4(CrossEntropy(z4, label, samples, result));
    LinearWeightGradient(h3, d4, output_gradient_);
    Bounded delta = LinearInputGradient(d4, output_);
    ReluBackward(z3, delta);
    const Factor d3(delta);
    LinearWeightGradient(h2, d3, hidden_gradient_);
    delta = AveragePoolBackward(ChannelsLast(LinearInputGradient(d3, hidden_)),
                                9, 50);
    ReluBackward(z2, delta);
    const Factor d2(delta);
    ConvWeightGradient(h1, d2, kConv2, conv2_gradient_);
    delta = AveragePoolBackward(ConvInputGradient(d2, conv2_, kConv2), 26, 20);
    ReluBackward(z1, delta);
    ConvWeightGradient(x, Factor(delta), kConv1, conv1_gradient_);
  }

  // The gradients summed so far, in the layout of Parameters.
  Bounded Gradient(int world_size) const {
    Bounded all(0);
    AppendConvGradient(conv1_gradient_, kConv1, world_size, all);
    AppendConvGradient(conv2_gradient_, kConv2, world_size, all);
    AppendLinearGradient(hidden_gradient_, world_size, all);
    AppendLinearGradient(output_gradient_, world_size, all);
    return all;
  }

 private:
  ConvWeights conv1_, conv2_;
  LinearWeights hidden_, output_;
  LayerGradient conv1_gradient_{180, 20};
  LayerGradient conv2_gradient_{25000, 50};
  LayerGradient hidden_gradient_{102400, 128};
  LayerGradient output_gradient_{1280, 10};
};

}  // namespace

LeNetResult LeNetReference(std::span<const float> parameters,
                           std::span<const float> images,
                           std::span<const int32_t> labels, int world_size) {
  LeNet net(parameters);
  LeNetResult result{.gradient = Bounded(0)};
  const int64_t samples = static_cast<int64_t>(labels.size());
  for (int64_t i = 0; i < samples; ++i) {
    net.Accumulate(images.subspan(i * kLeNetPixels, kLeNetPixels), labels[i],
                   samples, result);
  }
  result.gradient = net.Gradient(world_size);
  return result;
}

}  // namespace lockstep
