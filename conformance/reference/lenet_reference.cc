// The layers of a small network with a running error bound.
#include "conformance/reference/lenet_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "conformance/reference/bounded.h"

namespace lockstep {
namespace {

std::vector<float> Transposed(std::span<const float> m, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(m.size()) / rows;
  std::vector<float> t(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) t[c * rows + r] = m[r * columns + c];
  }
  return t;
}

// [oc, ic, k, k] to [oc, k, k, ic].
std::vector<float> ChannelsLast(std::span<const float> w, const ConvShape& s) {
  std::vector<float> out(w.size());
  const int64_t taps = s.kernel * s.kernel;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        out[(o * taps + t) * s.in_channels + c] =
            w[(o * s.in_channels + c) * taps + t];
      }
    }
  }
  return out;
}

// Where the window of output (y, x) starts in the input.
int64_t WindowStart(const ConvShape& s, int64_t y, int64_t x) {
  return (y * s.in_side + x) * s.in_channels;
}

void Append(const Bounded& part, int64_t i, Bounded& out) {
  out.value.push_back(part.value[i]);
  out.bound.push_back(part.bound[i]);
}

// All sums, each with the terms of its output, `output_of(i)`.
template <typename OutputOf>
Bounded FinishByOutput(const Sums& sums, const LayerGradient& layer,
                       int world_size, OutputOf output_of) {
  Bounded out(sums.size());
  for (int64_t i = 0; i < sums.size(); ++i) {
    sums.Finish(i, layer.terms[output_of(i)] + world_size, out);
  }
  return out;
}

void AppendBiasGradient(const LayerGradient& layer, int world_size,
                        Bounded& out) {
  const Bounded bias = FinishByOutput(layer.bias, layer, world_size,
                                      [](int64_t i) { return i; });
  for (int64_t i = 0; i < bias.size(); ++i) Append(bias, i, out);
}

}  // namespace

ConvWeights::ConvWeights(std::span<const float> w, std::span<const float> b,
                         const ConvShape& shape)
    : by_output(ChannelsLast(w, shape)),
      by_tap(Transposed(ChannelsLast(w, shape), shape.out_channels)),
      bias(b) {}

LinearWeights::LinearWeights(std::span<const float> w, std::span<const float> b,
                             int64_t inputs)
    : by_input(w), by_output(Transposed(w, inputs)), bias(b) {}

Bounded ConvForward(const Factor& in, const ConvWeights& w,
                    const ConvShape& s) {
  Sums out(s.out_size());
  for (int64_t y = 0, at = 0; y < s.out_side(); ++y) {
    for (int64_t x = 0; x < s.out_side(); ++x, at += s.out_channels) {
      out.Add(at, w.bias, 0, s.out_channels);
      for (int64_t ky = 0; ky < s.kernel; ++ky) {
        const int64_t row = WindowStart(s, y + ky, x);
        for (int64_t i = 0; i < s.window_row(); ++i) {
          out.AddScaled(at, in, row + i, w.by_tap,
                        (ky * s.window_row() + i) * s.out_channels,
                        s.out_channels);
        }
      }
    }
  }
  return out.Finish(s.window() + 1);
}

void ConvWeightGradient(const Factor& in, const Factor& delta,
                        const ConvShape& s, LayerGradient& gradient) {
  for (int64_t y = 0, at = 0; y < s.out_side(); ++y) {
    for (int64_t x = 0; x < s.out_side(); ++x, at += s.out_channels) {
      gradient.bias.Add(0, delta, at, s.out_channels);
      for (int64_t o = 0; o < s.out_channels; ++o) {
        if (delta.upper[at + o] == 0) continue;
        ++gradient.terms[o];
        for (int64_t ky = 0; ky < s.kernel; ++ky) {
          gradient.weight.AddScaled(o * s.window() + ky * s.window_row(), delta,
                                    at + o, in, WindowStart(s, y + ky, x),
                                    s.window_row());
        }
      }
    }
  }
}

Bounded ConvInputGradient(const Factor& delta, const ConvWeights& w,
                          const ConvShape& s) {
  Sums in(s.in_size());
  std::vector<int64_t> terms(s.in_side * s.in_side);
  for (int64_t y = 0, at = 0; y < s.out_side(); ++y) {
    for (int64_t x = 0; x < s.out_side(); ++x, at += s.out_channels) {
      int64_t active = 0;
      for (int64_t o = 0; o < s.out_channels; ++o) {
        if (delta.upper[at + o] == 0) continue;
        ++active;
        for (int64_t ky = 0; ky < s.kernel; ++ky) {
          in.AddScaled(WindowStart(s, y + ky, x), delta, at + o, w.by_output,
                       o * s.window() + ky * s.window_row(), s.window_row());
        }
      }
      for (int64_t t = 0; t < s.kernel * s.kernel; ++t) {
        terms[(y + t / s.kernel) * s.in_side + x + t % s.kernel] += active;
      }
    }
  }
  Bounded out(s.in_size());
  for (int64_t i = 0; i < s.in_size(); ++i) {
    in.Finish(i, terms[i / s.in_channels], out);
  }
  return out;
}

Bounded LinearForward(const Factor& in, const LinearWeights& w) {
  const int64_t outputs = static_cast<int64_t>(w.bias.value.size());
  const int64_t inputs = static_cast<int64_t>(in.value.size());
  Sums out(outputs);
  out.Add(0, w.bias, 0, outputs);
  for (int64_t i = 0; i < inputs; ++i) {
    out.AddScaled(0, in, i, w.by_input, i * outputs, outputs);
  }
  return out.Finish(inputs + 1);
}

void LinearWeightGradient(const Factor& in, const Factor& delta,
                          LayerGradient& gradient) {
  const int64_t outputs = gradient.bias.size();
  gradient.bias.Add(0, delta, 0, outputs);
  for (int64_t i = 0; i < static_cast<int64_t>(in.value.size()); ++i) {
    gradient.weight.AddScaled(i * outputs, in, i, delta, 0, outputs);
  }
  for (int64_t& terms : gradient.terms) ++terms;
}

Bounded LinearInputGradient(const Factor& delta, const LinearWeights& w) {
  const int64_t outputs = static_cast<int64_t>(delta.value.size());
  const int64_t inputs =
      static_cast<int64_t>(w.by_output.value.size()) / outputs;
  Sums in(inputs);
  for (int64_t o = 0; o < outputs; ++o) {
    in.AddScaled(0, delta, o, w.by_output, o * inputs, inputs);
  }
  return in.Finish(outputs);
}

Bounded Relu(const Bounded& z) {
  Bounded out(z.size());
  for (int64_t i = 0; i < z.size(); ++i) {
    out.value[i] = std::max(z.value[i], 0.0);
    out.bound[i] =
        z.value[i] > 0 ? z.bound[i] : std::max(z.value[i] + z.bound[i], 0.0);
  }
  return out;
}

void ReluBackward(const Bounded& z, Bounded& delta) {
  for (int64_t i = 0; i < z.size(); ++i) {
    if (z.value[i] > z.bound[i]) continue;
    const bool ambiguous = z.value[i] + z.bound[i] > 0;
    delta.bound[i] =
        ambiguous ? std::abs(delta.value[i]) + delta.bound[i] : 0.0;
    if (!(z.value[i] > 0)) delta.value[i] = 0;
  }
}

Bounded AveragePool(const Bounded& in, int64_t side, int64_t channels) {
  const int64_t half = side / 2;
  Bounded out(half * half * channels);
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t c = i % channels;
    const int64_t x = i / channels % half;
    const int64_t y = i / channels / half;
    double value = 0, magnitude = 0, bound = 0;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t at =
          ((2 * y + k / 2) * side + 2 * x + k % 2) * channels + c;
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

Bounded AveragePoolBackward(const Bounded& delta, int64_t side,
                            int64_t channels) {
  const int64_t half = side / 2;
  Bounded in(side * side * channels);
  for (int64_t i = 0; i < delta.size(); ++i) {
    const int64_t c = i % channels;
    const int64_t x = i / channels % half;
    const int64_t y = i / channels / half;
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t at =
          ((2 * y + k / 2) * side + 2 * x + k % 2) * channels + c;
      in.value[at] = delta.value[i] / 4;
      in.bound[at] = delta.bound[i] / 4;
    }
  }
  return in;
}

void AppendConvGradient(const LayerGradient& layer, const ConvShape& s,
                        int world_size, Bounded& out) {
  const Bounded weight =
      FinishByOutput(layer.weight, layer, world_size,
                     [&s](int64_t i) { return i / s.window(); });
  const int64_t taps = s.kernel * s.kernel;
  for (int64_t o = 0; o < s.out_channels; ++o) {
    for (int64_t c = 0; c < s.in_channels; ++c) {
      for (int64_t t = 0; t < taps; ++t) {
        Append(weight, o * s.window() + t * s.in_channels + c, out);
      }
    }
  }
  AppendBiasGradient(layer, world_size, out);
}

void AppendLinearGradient(const LayerGradient& layer, int world_size,
                          Bounded& out) {
  const int64_t outputs = layer.bias.size();
  const Bounded weight =
      FinishByOutput(layer.weight, layer, world_size,
                     [outputs](int64_t i) { return i % outputs; });
  for (int64_t i = 0; i < weight.size(); ++i) Append(weight, i, out);
  AppendBiasGradient(layer, world_size, out);
}

// LeNet's loss and gradients, and their bounds, layer by layer.
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
