// Running error bounds through LeNet's layers, one image at a time, in plain
// loops; see bounded.h for what a bound is. A linear layer is a convolution
// whose kernel is as large as its input.
//
// Activations are [height, width, channel], so that a row of a convolution's
// window is contiguous. Images are square.
#include "conformance/reference/lenet_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "conformance/reference/bounded.h"
#include "models/data/dataset.h"

namespace lockstep::conformance {
namespace {

constexpr int64_t kClasses = kLeNetClasses;
constexpr double kExpLogError = 8 * kUnitRoundoff;  // 4 ulp.

// A convolution without padding, of stride 1; and whether means of 2 x 2 blocks
// of what its ReLU gives are passed on, or its weights are a linear layer's.
struct LayerShape {
  int64_t in_channels, in_side, kernel, out_channels;
  bool pools, is_linear;

  int64_t out_side() const { return in_side - kernel + 1; }
  int64_t in_size() const { return in_side * in_side * in_channels; }
  int64_t out_size() const { return out_side() * out_side() * out_channels; }
  int64_t window_row() const { return kernel * in_channels; }
  int64_t window() const { return kernel * window_row(); }
  // Where the window of output (y, x) starts in the input.
  int64_t WindowStart(int64_t y, int64_t x) const {
    return (y * in_side + x) * in_channels;
  }
  // Where weight i of the window of output o is among the parameters: [oc, ic,
  // k, k], or a linear layer's [ic, k, k, oc].
  int64_t Place(int64_t o, int64_t i) const {
    const int64_t tap = i / in_channels, channel = i % in_channels;
    const int64_t at = channel * kernel * kernel + tap;
    return is_linear ? at * out_channels + o : o * window() + at;
  }
};

constexpr std::array<LayerShape, 4> kLayers = {
    {{1, 28, 3, 20, true, false},     // To 26 x 26, pooled to 13.
     {20, 13, 5, 50, true, false},    // To 9 x 9, pooled to 4.
     {50, 4, 4, 128, false, true},    // [800, 128].
     {128, 1, 1, 10, false, true}}};  // [128, 10].

// One layer's weights in the two orders that the loops want them in, and the
// sums of its gradients over all samples.
class Layer {
 public:
  // w, b: as the parameters have them.
  Layer(const LayerShape& shape, std::span<const float> w,
        std::span<const float> b)
      : s_(shape),
        by_output_(Ordered(w, /*by_tap=*/false)),
        by_tap_(Ordered(w, /*by_tap=*/true)),
        bias_(b),
        weight_sums_(shape.window() * shape.out_channels),
        bias_sums_(shape.out_channels),
        terms_(shape.out_channels) {}

  const LayerShape& shape() const { return s_; }

  Bounded Forward(const Factor& in) const {
    Sums out(s_.out_size());
    for (int64_t y = 0, at = 0; y < s_.out_side(); ++y) {
      for (int64_t x = 0; x < s_.out_side(); ++x, at += s_.out_channels) {
        out.Add(at, bias_, 0, s_.out_channels);
        for (int64_t ky = 0; ky < s_.kernel; ++ky) {
          const int64_t row = s_.WindowStart(y + ky, x);
          for (int64_t i = 0; i < s_.window_row(); ++i) {
            out.AddScaled(at, in, row + i, by_tap_,
                          (ky * s_.window_row() + i) * s_.out_channels,
                          s_.out_channels);
          }
        }
      }
    }
    return out.Finish(s_.window() + 1);
  }

  // Adds the gradients of one sample.
  void AddGradient(const Factor& in, const Factor& delta) {
    for (int64_t y = 0, at = 0; y < s_.out_side(); ++y) {
      for (int64_t x = 0; x < s_.out_side(); ++x, at += s_.out_channels) {
        bias_sums_.Add(0, delta, at, s_.out_channels);
        for (int64_t o = 0; o < s_.out_channels; ++o) {
          if (delta.upper[at + o] == 0) continue;
          ++terms_[o];
          for (int64_t ky = 0; ky < s_.kernel; ++ky) {
            weight_sums_.AddScaled(o * s_.window() + ky * s_.window_row(),
                                   delta, at + o, in, s_.WindowStart(y + ky, x),
                                   s_.window_row());
          }
        }
      }
    }
  }

  Bounded InputGradient(const Factor& delta) const {
    Sums in(s_.in_size());
    std::vector<int64_t> terms(s_.in_side * s_.in_side);
    for (int64_t y = 0, at = 0; y < s_.out_side(); ++y) {
      for (int64_t x = 0; x < s_.out_side(); ++x, at += s_.out_channels) {
        int64_t active = 0;
        for (int64_t o = 0; o < s_.out_channels; ++o) {
          if (delta.upper[at + o] == 0) continue;
          ++active;
          for (int64_t ky = 0; ky < s_.kernel; ++ky) {
            in.AddScaled(s_.WindowStart(y + ky, x), delta, at + o, by_output_,
                         o * s_.window() + ky * s_.window_row(),
                         s_.window_row());
          }
        }
        for (int64_t t = 0; t < s_.kernel * s_.kernel; ++t) {
          terms[(y + t / s_.kernel) * s_.in_side + x + t % s_.kernel] += active;
        }
      }
    }
    Bounded out(s_.in_size());
    for (int64_t i = 0; i < s_.in_size(); ++i) {
      in.Finish(i, terms[i / s_.in_channels], out);
    }
    return out;
  }

  // Appends weight and bias gradient as the parameters have them. The sum over
  // ranks adds `world_size` terms at most.
  void AppendGradient(int world_size, Bounded& all) const {
    Bounded weight(weight_sums_.size()), one(weight_sums_.size());
    for (int64_t i = 0; i < weight.size(); ++i) {
      const int64_t o = i / s_.window();
      const int64_t at = s_.Place(o, i % s_.window());
      weight_sums_.Finish(i, terms_[o] + world_size, one);
      weight.value[at] = one.value[i];
      weight.bound[at] = one.bound[i];
    }
    Bounded bias(bias_sums_.size());
    for (int64_t o = 0; o < bias.size(); ++o) {
      bias_sums_.Finish(o, terms_[o] + world_size, bias);
    }
    for (const Bounded& part : {weight, bias}) {
      all.value.insert(all.value.end(), part.value.begin(), part.value.end());
      all.bound.insert(all.bound.end(), part.bound.begin(), part.bound.end());
    }
  }

 private:
  // [oc, window], or by tap: [window, oc].
  Factor Ordered(std::span<const float> w, bool by_tap) const {
    std::vector<float> out(w.size());
    for (int64_t o = 0; o < s_.out_channels; ++o) {
      for (int64_t i = 0; i < s_.window(); ++i) {
        out[by_tap ? i * s_.out_channels + o : o * s_.window() + i] =
            w[s_.Place(o, i)];
      }
    }
    return Factor(out);
  }

  const LayerShape s_;
  const Factor by_output_, by_tap_, bias_;
  Sums weight_sums_, bias_sums_;
  std::vector<int64_t> terms_;  // Deltas that can be other than 0, by output.
};

// max(z, 0) as float32 may see it: between 0 and z + bound.
Bounded Relu(const Bounded& z) {
  Bounded out(z.size());
  for (int64_t i = 0; i < z.size(); ++i) {
    out.value[i] = std::max(z.value[i], 0.0);
    out.bound[i] =
        z.value[i] > 0 ? z.bound[i] : std::max(z.value[i] + z.bound[i], 0.0);
  }
  return out;
}

// Where z may be of either sign, so may the derivative be 0 or 1.
void ReluBackward(const Bounded& z, Bounded& delta) {
  for (int64_t i = 0; i < z.size(); ++i) {
    if (z.value[i] > z.bound[i]) continue;
    const bool ambiguous = z.value[i] + z.bound[i] > 0;
    delta.bound[i] =
        ambiguous ? std::abs(delta.value[i]) + delta.bound[i] : 0.0;
    if (!(z.value[i] > 0)) delta.value[i] = 0;
  }
}

// Element k of the 2 x 2 block of which output i is the mean; an odd last row
// and column are left out.
int64_t InBlock(int64_t i, int64_t k, const LayerShape& s) {
  const int64_t side = s.out_side(), half = side / 2;
  const int64_t pixel = i / s.out_channels;
  const int64_t y = 2 * (pixel / half) + k / 2, x = 2 * (pixel % half) + k % 2;
  return (y * side + x) * s.out_channels + i % s.out_channels;
}

Bounded AveragePool(const Bounded& in, const LayerShape& s) {
  const int64_t half = s.out_side() / 2;
  Bounded out(half * half * s.out_channels);
  for (int64_t i = 0; i < out.size(); ++i) {
    double value = 0, magnitude = 0, bound = 0;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t at = InBlock(i, k, s);
      value += in.value[at] / 4;
      magnitude += std::abs(in.value[at]) / 4;
      bound += in.bound[at] / 4;
    }
    out.value[i] = value;
    out.bound[i] = (bound + Gamma(4) * (magnitude + bound)) * (1 + kOwnError) +
                   4 * kSmallest;
  }
  return out;
}

Bounded AveragePoolBackward(const Bounded& delta, const LayerShape& s) {
  Bounded in(s.out_size());
  for (int64_t i = 0; i < delta.size(); ++i) {
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t at = InBlock(i, k, s);
      in.value[at] = delta.value[i] / 4;
      in.bound[at] = delta.bound[i] / 4;
    }
  }
  return in;
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

// Adds one sample's loss to `result`, its gradients to the layers' sums.
void Accumulate(std::span<const float> image, int32_t label, int64_t samples,
                std::vector<Layer>& layers, LeNetResult& result) {
  std::vector<Factor> inputs = {Factor(image)};
  std::vector<Bounded> sums;
  for (const Layer& layer : layers) {
    sums.push_back(layer.Forward(inputs.back()));
    const Bounded h = Relu(sums.back());
    inputs.emplace_back(layer.shape().pools ? AveragePool(h, layer.shape())
                                            : h);
  }
  Bounded delta = CrossEntropy(sums.back(), label, samples, result);
  for (size_t i = layers.size(); i-- > 0;) {
    const Factor d(delta);
    layers[i].AddGradient(inputs[i], d);
    if (i == 0) return;
    const LayerShape& before = layers[i - 1].shape();
    delta = layers[i].InputGradient(d);
    if (before.pools) delta = AveragePoolBackward(delta, before);
    ReluBackward(sums[i - 1], delta);
  }
}

// The fixtures are from std::mt19937's own numbers, the same with every
// standard library.
constexpr int kLeNetSide = 28;

// In [0, 1).
double Uniform(std::mt19937& random) { return random() * 0x1p-32; }

struct LayerWeights {
  int weights, fan_in, biases;
  // Of the well-conditioned weights: uniform^power of mean gain / fan_in.
  double gain, power;
  double bias;  // Their mean.
};
constexpr LayerWeights kLayerWeights[] = {{180, 9, 20, 1.3, 8, -0.1},
                                          {25000, 500, 50, 1.3, 30, -0.02},
                                          {102400, 800, 128, 1.3, 60, -0.02},
                                          {1280, 128, 10, 3, 60, 0}};

}  // namespace

LeNetResult LeNetReference(std::span<const float> parameters,
                           std::span<const float> images,
                           std::span<const int32_t> labels, int world_size) {
  std::vector<Layer> layers;
  for (const LayerShape& shape : kLayers) {
    const int64_t weights = shape.window() * shape.out_channels;
    layers.emplace_back(shape, parameters.first(weights),
                        parameters.subspan(weights, shape.out_channels));
    parameters = parameters.subspan(weights + shape.out_channels);
  }
  LeNetResult result{.gradient = Bounded(0)};
  const int64_t samples = static_cast<int64_t>(labels.size());
  for (int64_t i = 0; i < samples; ++i) {
    Accumulate(images.subspan(i * kLeNetPixels, kLeNetPixels), labels[i],
               samples, layers, result);
  }
  for (const Layer& layer : layers)
    layer.AppendGradient(world_size, result.gradient);
  return result;
}

Dataset BlobDataset(int64_t size) {
  std::mt19937 random(7);
  Dataset data{.size = size,
               .channels = 1,
               .height = kLeNetSide,
               .width = kLeNetSide,
               .num_classes = 10,
               .images = {},
               .labels = {}};
  for (int64_t n = 0; n < size; ++n) {
    const double x0 = 4 + 20 * Uniform(random);
    const double y0 = 4 + 20 * Uniform(random);
    const double width = 2 + 5 * Uniform(random);
    for (int i = 0; i < kLeNetSide * kLeNetSide; ++i) {
      const double dx = i % kLeNetSide - x0, dy = i / kLeNetSide - y0;
      const double blob = std::exp(-(dx * dx + dy * dy) / (2 * width * width));
      const double texture = 0.5 + 0.5 * Uniform(random);
      data.images.push_back(
          static_cast<uint8_t>(blob < 0.1 ? 0 : 255 * blob * texture));
    }
    const int quarter = (x0 > 14 ? 1 : 0) + (y0 > 14 ? 2 : 0);
    const int large = width > 6 ? 2 : width > 4 ? 1 : 0;
    data.labels.push_back(static_cast<uint8_t>((4 * large + quarter) % 10));
  }
  return data;
}

std::vector<float> WellConditionedLeNet(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (const LayerWeights& layer : kLayerWeights) {
    const double scale = layer.gain * (layer.power + 1) / layer.fan_in;
    for (int i = 0; i < layer.weights; ++i) {
      const double weight = scale * std::pow(Uniform(random), layer.power);
      // Zero in place of numbers that float32 arithmetic is slow on.
      out.push_back(weight < 1e-12 ? 0.0f : static_cast<float>(weight));
    }
    for (int i = 0; i < layer.biases; ++i) {
      out.push_back(static_cast<float>(2 * layer.bias * Uniform(random)));
    }
  }
  return out;
}

std::vector<float> HeLeNet(uint32_t seed) {
  std::mt19937 random(seed);
  // The sum of twelve uniform numbers is close to normal.
  const auto normal = [&random] {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform(random);
    return sum;
  };
  std::vector<float> out;
  for (const LayerWeights& layer : kLayerWeights) {
    const double scale = std::sqrt(2.0 / layer.fan_in);
    for (int i = 0; i < layer.weights; ++i) {
      out.push_back(static_cast<float>(scale * normal()));
    }
    for (int i = 0; i < layer.biases; ++i) {
      out.push_back(static_cast<float>(0.1 * normal()));
    }
  }
  return out;
}

}  // namespace lockstep::conformance
