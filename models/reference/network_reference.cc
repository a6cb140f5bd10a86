// Forward and backward, layer by layer.
#include "models/reference/network_reference.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <numbers>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/counter_random.h"
#include "base/data_types.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/bounded.h"
#include "models/reference/products.h"
#include "models/reference/winograd.h"

namespace lockstep {
namespace reference {
namespace {

constexpr double kExpLogError = 8 * kUnitRoundoff;  // 4 ulp.
constexpr double kMomentum = 0.1;

template <typename T>
T Relu(const T& z) {
  return z > 0 ? z : 0;
}
// Returns the exact result, with a bound for what float32 computes: a value
// between 0 and z + bound.
BoundedNumber Relu(const BoundedNumber& z) {
  if (z.value > 0) return z;
  return {0, std::max(z.value + z.bound, 0.0)};
}

template <typename T>
T ReluBackward(const T& z, const T& dy) {
  return z > 0 ? dy : 0;
}
// If z may have either sign, its derivative may be 0 or 1.
BoundedNumber ReluBackward(const BoundedNumber& z, const BoundedNumber& dy) {
  if (z.value > z.bound) return dy;
  if (z.value + z.bound <= 0) return {};
  return {z.value > 0 ? dy.value : 0, std::abs(dy.value) + dy.bound};
}

// A sample's target distribution: two classes and their weights.
struct Target {
  int32_t label = 0, other = 0;
  double share = 1;

  double Of(int64_t k) const {
    return (k == label ? share : 0) + (k == other ? 1 - share : 0);
  }
};

// Returns the loss of outputs z, and replaces z by the loss's gradient.
template <typename T>
T CrossEntropy(std::span<T> z, const Target& target, T scale) {
  const T largest = *std::ranges::max_element(z);
  T sum = 0;
  for (const T& v : z) sum += std::exp(v - largest);
  const T log_sum = std::log(sum);
  T loss = 0;
  for (size_t k = 0; k < z.size(); ++k) {
    const T weight = static_cast<T>(target.Of(static_cast<int64_t>(k)));
    const T log_p = z[k] - largest - log_sum;
    if (weight != 0) loss -= weight * log_p;
    z[k] = (std::exp(log_p) - weight) * scale;
  }
  return loss;
}

// Returns the bounds on the error of log p; see the header for the terms. 32 u
// covers exp in the numerator, in the denominator and of the log-probability,
// the division and second-order terms. 10 u times the logarithm's size covers
// the logarithm's error and two subtractions.
std::vector<double> LogProbabilityBounds(std::span<const BoundedNumber> z,
                                         double largest, double log_sum) {
  double worst = 0, worst_eta = 0;
  for (const BoundedNumber& x : z) worst = std::max(worst, x.bound);
  std::vector<double> eta;
  for (const BoundedNumber& x : z) {
    eta.push_back(x.bound +
                  kUnitRoundoff * (largest - x.value + x.bound + worst) +
                  kSmallest);
    worst_eta = std::max(worst_eta, eta.back());
  }
  for (size_t k = 0; k < z.size(); ++k) {
    eta[k] += worst_eta + Gamma(static_cast<int64_t>(z.size())) +
              4 * kExpLogError +
              10 * kUnitRoundoff * (largest - z[k].value + log_sum);
  }
  return eta;
}

BoundedNumber CrossEntropy(std::span<BoundedNumber> z, const Target& target,
                           BoundedNumber scale) {
  double largest = z[0].value, sum = 0;
  for (const BoundedNumber& x : z) largest = std::max(largest, x.value);
  for (const BoundedNumber& x : z) sum += std::exp(x.value - largest);
  const double log_sum = std::log(sum);
  const std::vector<double> rho = LogProbabilityBounds(z, largest, log_sum);
  BoundedNumber loss;
  for (size_t k = 0; k < z.size(); ++k) {
    const double y = target.Of(static_cast<int64_t>(k));
    const double log_p = z[k].value - largest - log_sum;
    const double p = std::exp(log_p);
    const double p_bound = p * std::expm1(rho[k]) + kSmallest;
    loss.value -= y * log_p;
    loss.bound += y * rho[k];
    z[k].value = (p - y) * scale.value;
    z[k].bound = (p_bound + Gamma(4) * (p + p_bound + y)) * scale.value *
                     (1 + kOwnError) +
                 kSmallest;
  }
  return loss;
}

// Returns x rounded to one of its neighbours in a 16-bit type, at random.
double RoundAtRandom(DataType type, double x, std::mt19937& random) {
  const bool is_half = type == DataType::kFloat16;
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| is in [2^(exponent - 1), 2^exponent).
  const double spacing = is_half ? std::ldexp(1, std::max(exponent - 11, -24))
                                 : std::ldexp(1, exponent - 8);
  const double share = static_cast<double>(random()) * 0x1p-32;
  return std::floor(x / spacing + share) * spacing;
}

// Rounds numbers to the type of activations in memory.
class Storage {
 public:
  explicit Storage(const StoredActivations& stored)
      : stored_(stored), random_(stored.seed) {}

  bool rounds() const { return SizeOf(stored_.type) == 2; }
  template <typename T>
  void Round(std::span<T> values) {
    if constexpr (!kIsBounded<T>) {
      if (!rounds()) return;
      for (T& value : values) value = static_cast<T>(Rounded(value));
    }
  }
  // Rounds gradients, which hold the loss scale as a factor.
  template <typename T>
  void RoundGradients(std::span<T> values) {
    if constexpr (!kIsBounded<T>) {
      const T scale = static_cast<T>(stored_.loss_scale);
      for (T& value : values) value *= scale;
      Round(values);
      for (T& value : values) value /= scale;
    }
  }
  template <typename T>
  T RoundGradient(T value) {
    RoundGradients(std::span(&value, 1));
    return value;
  }
  template <typename T>
  T Round(T value) {
    Round(std::span(&value, 1));
    return value;
  }

 private:
  double Rounded(double value) {
    if (stored_.seed != 0) return RoundAtRandom(stored_.type, value, random_);
    const auto wide = static_cast<float>(value);
    return stored_.type == DataType::kFloat16 ? ToFloat(ToFloat16(wide))
                                              : ToFloat(ToBFloat16(wide));
  }

  const StoredActivations stored_;
  std::mt19937 random_;
};

double ValueOf(double x) { return x; }
double ValueOf(const BoundedNumber& x) { return x.value; }

// One forward pass, and the values that backward needs.
template <typename T>
struct Pass {
  const Network& network;
  std::span<const T> parameters;
  Batch batch;
  bool training = true;
  KeepMask keep = nullptr;
  double more = 0;  // For parameters' gradients; see BoundedSum::Finish.
  SumOverRanks<T> sum_over_ranks = nullptr;
  WinogradRule winograd = nullptr;
  std::shared_ptr<Storage> storage = nullptr;
  // The parameters as factors of products, in the type of activations.
  std::vector<T> factors = {};
  std::vector<int64_t> parameter_offsets = {}, buffer_offsets = {};
  // The activations of each value, which backward reads too.
  std::vector<Plane<T>> values = {};
  // For each operation: the inputs of its ReLU, and other values for backward.
  std::vector<Plane<T>> inner = {};
  std::vector<std::vector<T>> saved = {}, saved_too = {};
  // The number of values per channel, by batch norm.
  std::map<int, T> counts = {};
  // The maxima's input elements, by output.
  std::map<int, std::vector<int64_t>> maxima = {};

  std::span<const T> Parameter(int index) const {
    if (index == kNoTensor) return {};
    return parameters.subspan(parameter_offsets[index],
                              network.parameters()[index].size());
  }
  std::span<const T> Factor(int index) const {
    if (index == kNoTensor) return {};
    return std::span(factors).subspan(parameter_offsets[index],
                                      network.parameters()[index].size());
  }
  std::span<T> GradientOf(int index, std::vector<T>& gradient) const {
    if (index == kNoTensor) return {};
    return std::span(gradient).subspan(parameter_offsets[index],
                                       network.parameters()[index].size());
  }
  std::span<T> Buffer(int index, std::vector<T>& running) const {
    return std::span(running).subspan(buffer_offsets[index],
                                      network.buffers()[index].size());
  }

  void Place() {
    int64_t at = 0;
    for (const TensorDescription& parameter : network.parameters()) {
      parameter_offsets.push_back(at);
      at += parameter.size();
    }
    assert(at == static_cast<int64_t>(parameters.size()));
    factors.assign(parameters.begin(), parameters.end());
    storage->Round(std::span(factors));
    at = 0;
    for (const TensorDescription& buffer : network.buffers()) {
      buffer_offsets.push_back(at);
      if (!buffer.counter) at += buffer.size();
    }
  }

  double Kept(int layer, double rate, int64_t sample, int64_t element) const {
    if (!training || rate == 0 || !keep) return 1;
    const int64_t number =
        batch.samples.empty() ? sample : batch.samples[sample];
    return keep(layer, rate, number, element) ? 1 / (1 - rate) : 0;
  }

  void OverRanks(std::vector<T>& values) const {
    if (sum_over_ranks) sum_over_ranks(values);
  }

  int64_t size() const { return static_cast<int64_t>(batch.labels.size()); }
  Target TargetOf(int64_t sample) const {
    if (batch.other_labels.empty()) {
      return {batch.labels[sample], batch.labels[sample], 1};
    }
    return {batch.labels[sample], batch.other_labels[sample],
            static_cast<double>(batch.shares[sample])};
  }

  // One operation and its index in the network.
  struct Call {
    const Network::Operation& operation;
    int index;
  };
  const Plane<T>& In(const Call& call, int i = 0) const {
    return values[call.operation.inputs[i]];
  }
  Shape OutShape(const Call& call) const {
    return WithSamples(call.operation.output, size());
  }

  static Products<T> ProductsOf(const ConvolutionOp& op, const Call& call,
                                const Shape& x) {
    return {{op.kernel, op.kernel, op.stride, op.padding},
            x.c,
            call.operation.output.c,
            /*inputs_first=*/false};
  }
  static Products<T> ProductsOf(const LinearOp& op, const Call& call,
                                const Shape& x) {
    const Window window =
        op.per_position ? Window() : Window{.kernel_h = x.h, .kernel_w = x.w};
    return {window, x.c, call.operation.output.c, op.inputs_first};
  }

  Plane<T> Activate(const Call& call, Plane<T> z, bool relu) {
    if (!relu) return z;
    inner[call.index] = z;
    for (T& v : z.v) v = Relu(v);
    return z;
  }
  Plane<T> Deactivate(const Call& call, Plane<T> dy, bool relu) const {
    if (!relu) return dy;
    const std::vector<T>& z = inner[call.index].v;
    for (size_t i = 0; i < z.size(); ++i) dy.v[i] = ReluBackward(z[i], dy.v[i]);
    return dy;
  }

  // Calls f with the Winograd form of the convolution and returns true, if the
  // rule selects it.
  template <typename F>
  bool IfWinograd(const ConvolutionOp& op, const Call& call, const Shape& x,
                  F f) const {
    if constexpr (!kIsBounded<T>) {
      if (winograd && winograd(op, x, OutShape(call))) {
        f(WinogradProducts<T>(op.padding, x.c, call.operation.output.c,
                              /*magnitudes=*/false));
        return true;
      }
    }
    return false;
  }
  template <typename F>
  bool IfWinograd(const LinearOp&, const Call&, const Shape&, F) const {
    return false;
  }

  // Computes convolutions and linear layers.
  template <typename Op>
  Plane<T> Forward(const Op& op, const Call& call, std::vector<T>&) {
    const Plane<T>& x = In(call);
    Plane<T> y;
    const auto forward = [&](const auto& products) {
      y = products.Forward(x, Factor(op.weight), Factor(op.bias),
                           OutShape(call));
    };
    if (!IfWinograd(op, call, x.shape, forward)) {
      forward(ProductsOf(op, call, x.shape));
    }
    return Activate(call, std::move(y), op.relu);
  }
  template <typename Op>
  std::vector<Plane<T>> Backward(const Op& op, const Call& call, Plane<T> d,
                                 std::vector<T>& gradient) const {
    const Plane<T>& x = In(call);
    const Plane<T> dy = Deactivate(call, std::move(d), op.relu);
    const bool has_dx = call.operation.inputs[0] != 0;
    const std::span<const T> weight = Factor(op.weight);
    const std::span<T> dweight = GradientOf(op.weight, gradient);
    const std::span<T> dbias = GradientOf(op.bias, gradient);
    Plane<T> dx;
    if (IfWinograd(op, call, x.shape, [&](const auto& products) {
          products.ParameterGradients(x, dy, dweight, dbias);
          if (has_dx) dx = products.InputGradient(x.shape, weight, dy);
        })) {
      return {std::move(dx)};
    }
    const Products<T> products = ProductsOf(op, call, x.shape);
    products.ParameterGradients(x, dy, more, dweight, dbias);
    if (std::is_same_v<Op, ConvolutionOp>) storage->RoundGradients(dweight);
    if (has_dx) dx = products.InputGradient(x.shape, weight, dy);
    return {std::move(dx)};
  }

  Plane<T> Forward(const BatchNormOp& op, const Call& call,
                   std::vector<T>& running) {
    const Plane<T>& x = In(call);
    const int64_t c = x.shape.c;
    T count = static_cast<T>(x.pixels());
    const std::span<T> running_mean = Buffer(op.running_mean, running);
    const std::span<T> running_var = Buffer(op.running_variance, running);
    std::vector<T> mean(running_mean.begin(), running_mean.end());
    std::vector<T> variance(running_var.begin(), running_var.end());
    if (training) {
      mean = x.SumOverPixels([&](int64_t at, int64_t) { return x.v[at]; });
      mean.push_back(count);
      OverRanks(mean);
      count = mean.back();
      mean.pop_back();
      counts[call.index] = count;
      for (T& m : mean) m /= count;
      variance = x.SumOverPixels([&](int64_t at, int64_t i) {
        return (x.v[at] - mean[i]) * (x.v[at] - mean[i]);
      });
      OverRanks(variance);
      for (int64_t i = 0; i < c; ++i) {
        const T momentum = static_cast<T>(kMomentum);
        running_mean[i] += momentum * (mean[i] - running_mean[i]);
        running_var[i] +=
            momentum * (variance[i] / (count - 1) - running_var[i]);
        variance[i] /= count;
      }
    }
    std::vector<T>& inverse = saved_too[call.index];
    for (const T& v : variance) {
      inverse.push_back(1 / std::sqrt(v + static_cast<T>(op.epsilon)));
    }
    const auto weight = Parameter(op.weight), bias = Parameter(op.bias);
    const bool adds = call.operation.inputs.size() > 1;
    Plane<T> y(x.shape);
    saved[call.index].resize(x.v.size());
    for (int64_t at = 0; at < x.shape.size(); ++at) {
      const int64_t i = at % c;
      const T normalised = (x.v[at] - mean[i]) * inverse[i];
      saved[call.index][at] = normalised;
      y.v[at] = normalised * weight[i] + bias[i];
      if (adds) y.v[at] += In(call, 1).v[at];
    }
    return Activate(call, std::move(y), op.relu);
  }
  std::vector<Plane<T>> Backward(const BatchNormOp& op, const Call& call,
                                 Plane<T> d, std::vector<T>& gradient) const {
    const Plane<T> dy = Deactivate(call, std::move(d), op.relu);
    const std::vector<T>& normalised = saved[call.index];
    const std::vector<T>& inverse = saved_too[call.index];
    std::vector<T> sum =
        dy.SumOverPixels([&](int64_t at, int64_t) { return dy.v[at]; });
    std::vector<T> dot = dy.SumOverPixels(
        [&](int64_t at, int64_t) { return dy.v[at] * normalised[at]; });
    std::ranges::copy(sum, GradientOf(op.bias, gradient).begin());
    std::ranges::copy(dot, GradientOf(op.weight, gradient).begin());
    OverRanks(sum);
    OverRanks(dot);
    const T count = counts.at(call.index);
    const auto weight = Parameter(op.weight);
    Plane<T> dx(dy.shape);
    for (int64_t at = 0; at < dx.shape.size(); ++at) {
      const int64_t i = at % dx.shape.c;
      dx.v[at] = weight[i] * inverse[i] *
                 (dy.v[at] - sum[i] / count - normalised[at] * dot[i] / count);
    }
    return {std::move(dx), dy};
  }

  static Window WindowOf(const PoolOp& op, const Shape&) {
    return {op.kernel, op.kernel, op.stride, op.padding};
  }
  static Window WindowOf(const GlobalAveragePoolOp&, const Shape& x) {
    return {.kernel_h = x.h, .kernel_w = x.w};
  }
  // Calls f(input element) for all elements in the window of output `out`.
  template <typename F>
  static void ForWindow(const Window& window, const Shape& x, const Shape& y,
                        int64_t out, F f) {
    for (int64_t tap = 0; tap < window.taps(); ++tap) {
      const int64_t pixel = window.Input(tap, out / y.c, x, y);
      if (pixel >= 0) f(pixel * x.c + out % x.c);
    }
  }

  template <typename Op>
  Plane<T> ForwardAverage(const Op& op, const Call& call) const {
    const Plane<T>& x = In(call);
    const Window window = WindowOf(op, x.shape);
    const SumOf<T> share(
        static_cast<T>(1.0 / static_cast<double>(window.taps())));
    Plane<T> y(OutShape(call));
    for (int64_t out = 0; out < y.shape.size(); ++out) {
      SumOf<T> sum{};
      ForWindow(window, x.shape, y.shape, out,
                [&](int64_t at) { sum += SumOf<T>(x.v[at]) * share; });
      y.v[out] = Finish<T>(sum);
    }
    return y;
  }
  // Each sum adds products with the share; a product is rounded once.
  template <typename Op>
  Plane<T> BackwardAverage(const Op& op, const Call& call,
                           const Plane<T>& dy) const {
    const Shape& x = In(call).shape;
    const Window window = WindowOf(op, x);
    const SumOf<T> share(
        static_cast<T>(1.0 / static_cast<double>(window.taps())));
    Plane<SumOf<T>> sums(x);
    for (int64_t out = 0; out < dy.shape.size(); ++out) {
      const SumOf<T> part = SumOf<T>(dy.v[out]) * share;
      ForWindow(window, x, dy.shape, out,
                [&](int64_t at) { sums.v[at] += part; });
    }
    Plane<T> dx(x);
    for (size_t i = 0; i < dx.v.size(); ++i) dx.v[i] = Finish<T>(sums.v[i]);
    return dx;
  }

  // Stores in `inner` the margin of each maximum over the next value, or 1 if
  // the maximum is zero or the only value.
  Plane<T> ForwardMaximum(const PoolOp& op, const Call& call) {
    const Plane<T>& x = In(call);
    Plane<T> y(OutShape(call));
    inner[call.index] = Plane<T>(y.shape);
    for (int64_t out = 0; out < y.shape.size(); ++out) {
      int64_t best = -1, next = -1;
      ForWindow(WindowOf(op, x.shape), x.shape, y.shape, out, [&](int64_t at) {
        if (best < 0 || x.v[at] > x.v[best]) {
          next = std::exchange(best, at);
        } else if (next < 0 || x.v[at] > x.v[next]) {
          next = at;
        }
      });
      y.v[out] = x.v[best];
      maxima[call.index].push_back(best);
      inner[call.index].v[out] =
          next < 0 || x.v[best] == 0 ? 1 : x.v[best] - x.v[next];
    }
    return y;
  }

  Plane<T> Forward(const PoolOp& op, const Call& call, std::vector<T>&) {
    if constexpr (!kIsBounded<T>) {
      if (op.maximum) return ForwardMaximum(op, call);
    }
    return ForwardAverage(op, call);
  }
  std::vector<Plane<T>> Backward(const PoolOp& op, const Call& call, Plane<T> d,
                                 std::vector<T>&) const {
    if (!op.maximum) return {BackwardAverage(op, call, d)};
    Plane<T> dx(In(call).shape);
    for (size_t out = 0; out < d.v.size(); ++out) {
      dx.v[maxima.at(call.index)[out]] += d.v[out];
    }
    return {std::move(dx)};
  }
  Plane<T> Forward(const GlobalAveragePoolOp& op, const Call& call,
                   std::vector<T>&) {
    return ForwardAverage(op, call);
  }
  std::vector<Plane<T>> Backward(const GlobalAveragePoolOp& op,
                                 const Call& call, Plane<T> d,
                                 std::vector<T>&) const {
    return {BackwardAverage(op, call, d)};
  }

  Plane<T> Forward(const LayerNormOp& op, const Call& call, std::vector<T>&) {
    const Plane<T>& x = In(call);
    const int64_t c = x.shape.c;
    const auto weight = Parameter(op.weight), bias = Parameter(op.bias);
    Plane<T> y(x.shape);
    saved[call.index].resize(x.v.size());
    for (int64_t pixel = 0; pixel < x.pixels(); ++pixel) {
      const T* const in = &x.v[pixel * c];
      T mean = 0, variance = 0;
      for (int64_t i = 0; i < c; ++i) mean += in[i];
      mean /= static_cast<T>(c);
      for (int64_t i = 0; i < c; ++i) {
        variance += (in[i] - mean) * (in[i] - mean);
      }
      const T inverse = 1 / std::sqrt(variance / static_cast<T>(c) +
                                      static_cast<T>(op.epsilon));
      saved_too[call.index].push_back(inverse);
      for (int64_t i = 0; i < c; ++i) {
        const T normalised = (in[i] - mean) * inverse;
        saved[call.index][pixel * c + i] = normalised;
        y.v[pixel * c + i] = normalised * weight[i] + bias[i];
      }
    }
    return y;
  }
  std::vector<Plane<T>> Backward(const LayerNormOp& op, const Call& call,
                                 Plane<T> dy, std::vector<T>& gradient) const {
    const int64_t c = dy.shape.c;
    const auto weight = Parameter(op.weight);
    const auto dweight = GradientOf(op.weight, gradient);
    const auto dbias = GradientOf(op.bias, gradient);
    Plane<T> dx(dy.shape);
    for (int64_t pixel = 0; pixel < dy.pixels(); ++pixel) {
      const T* const normalised = &saved[call.index][pixel * c];
      const T* const d = &dy.v[pixel * c];
      T sum = 0, dot = 0;
      for (int64_t i = 0; i < c; ++i) {
        dbias[i] += d[i];
        dweight[i] += d[i] * normalised[i];
        sum += d[i] * weight[i];
        dot += d[i] * weight[i] * normalised[i];
      }
      for (int64_t i = 0; i < c; ++i) {
        dx.v[pixel * c + i] = saved_too[call.index][pixel] *
                              (d[i] * weight[i] - sum / static_cast<T>(c) -
                               normalised[i] * dot / static_cast<T>(c));
      }
    }
    return {std::move(dx)};
  }

  // Returns Phi of the normal distribution.
  static T Phi(T x) {
    return static_cast<T>(0.5) * (1 + std::erf(x / std::numbers::sqrt2_v<T>));
  }
  Plane<T> Forward(const GeluOp&, const Call& call, std::vector<T>&) {
    Plane<T> y = In(call);
    for (T& v : y.v) v *= Phi(v);
    return y;
  }
  std::vector<Plane<T>> Backward(const GeluOp&, const Call& call, Plane<T> dy,
                                 std::vector<T>&) const {
    const T density = std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
    for (size_t i = 0; i < dy.v.size(); ++i) {
      const T x = In(call).v[i];
      dy.v[i] *= Phi(x) + x * density * std::exp(-x * x / 2);
    }
    return {std::move(dy)};
  }

  // One head of one sample: the positions of its queries, keys and values.
  struct Head {
    int64_t sample, head, length, size, width;

    int64_t At(int64_t position, int part, int64_t i) const {
      return ((sample * length + position) * 3 + part) * width + head * size +
             i;
    }
    int64_t Out(int64_t position, int64_t i) const {
      return (sample * length + position) * width + head * size + i;
    }
    // Returns a position in the softmax, within the sample.
    int64_t Score(int64_t query, int64_t key) const {
      return (head * length + query) * length + key;
    }
    int64_t AllScores(const AttentionOp& op) const {
      return sample * op.heads * length * length;
    }
  };
  template <typename F>
  void ForHeads(const AttentionOp& op, const Call& call, F f) const {
    const Shape& y = call.operation.output;
    for (int64_t n = 0; n < size(); ++n) {
      for (int64_t head = 0; head < op.heads; ++head) {
        f(Head{n, head, y.h * y.w, y.c / op.heads, y.c});
      }
    }
  }
  static T ScaleOf(const Head& head) {
    return 1 / std::sqrt(static_cast<T>(head.size));
  }

  Plane<T> Forward(const AttentionOp& op, const Call& call, std::vector<T>&) {
    const std::vector<T>& x = In(call).v;
    Plane<T> y(OutShape(call));
    const int64_t length = y.shape.h * y.shape.w;
    std::vector<T>& softmax = saved[call.index];
    softmax.resize(y.shape.n * op.heads * length * length);
    ForHeads(op, call, [&](const Head& head) {
      T* const p = &softmax[head.AllScores(op)];
      for (int64_t q = 0; q < length; ++q) {
        T* const row = &p[head.Score(q, 0)];
        T sum = 0;
        for (int64_t k = 0; k < length; ++k) {
          T dot = 0;
          for (int64_t i = 0; i < head.size; ++i) {
            dot += x[head.At(q, 0, i)] * x[head.At(k, 1, i)];
          }
          row[k] = dot * ScaleOf(head);
        }
        const T largest = *std::max_element(row, row + length);
        for (int64_t k = 0; k < length; ++k) {
          sum += row[k] = std::exp(row[k] - largest);
        }
        for (int64_t k = 0; k < length; ++k) {
          row[k] = storage->Round(row[k] / sum);
          const T kept = static_cast<T>(
              Kept(op.layer, op.dropout, head.sample, head.Score(q, k)));
          const T share = storage->Round(row[k] * kept);
          for (int64_t i = 0; i < head.size; ++i) {
            y.v[head.Out(q, i)] += share * x[head.At(k, 2, i)];
          }
        }
      }
    });
    return y;
  }
  std::vector<Plane<T>> Backward(const AttentionOp& op, const Call& call,
                                 Plane<T> dy, std::vector<T>&) const {
    const std::vector<T>& x = In(call).v;
    Plane<T> dx(In(call).shape);
    ForHeads(op, call, [&](const Head& head) {
      const T* const p = &saved[call.index][head.AllScores(op)];
      std::vector<T> dp(head.length);
      for (int64_t q = 0; q < head.length; ++q) {
        T dot = 0;
        for (int64_t k = 0; k < head.length; ++k) {
          const T kept = static_cast<T>(
              Kept(op.layer, op.dropout, head.sample, head.Score(q, k)));
          const T own = p[head.Score(q, k)];
          const T share = storage->Round(own * kept);
          dp[k] = 0;
          for (int64_t i = 0; i < head.size; ++i) {
            const T d = dy.v[head.Out(q, i)];
            dp[k] += d * kept * x[head.At(k, 2, i)];
            dx.v[head.At(k, 2, i)] += share * d;
          }
          dot += own * dp[k];
        }
        for (int64_t k = 0; k < head.length; ++k) {
          const T ds =
              storage->RoundGradient(p[head.Score(q, k)] * (dp[k] - dot));
          const T d = ds * ScaleOf(head);
          for (int64_t i = 0; i < head.size; ++i) {
            dx.v[head.At(q, 0, i)] += d * x[head.At(k, 1, i)];
            dx.v[head.At(k, 1, i)] += d * x[head.At(q, 0, i)];
          }
        }
      }
    });
    return {std::move(dx)};
  }

  Plane<T> Forward(const EmbedOp& op, const Call& call, std::vector<T>&) {
    const Plane<T>& x = In(call);
    Plane<T> y(OutShape(call));
    const int64_t row = y.shape.h * y.shape.c;
    const auto token = Parameter(op.class_token);
    const auto position = Parameter(op.position);
    for (int64_t at = 0; at < y.shape.size(); ++at) {
      const int64_t n = at / row, i = at % row;
      y.v[at] = position[i] +
                (i < y.shape.c ? token[i]
                               : x.v[n * (row - y.shape.c) + i - y.shape.c]);
    }
    return y;
  }
  std::vector<Plane<T>> Backward(const EmbedOp& op, const Call& call,
                                 Plane<T> dy, std::vector<T>& gradient) const {
    Plane<T> dx(In(call).shape);
    const int64_t c = dy.shape.c, row = dy.shape.h * c;
    for (int64_t at = 0; at < dy.shape.size(); ++at) {
      const int64_t n = at / row, i = at % row;
      GradientOf(op.position, gradient)[i] += dy.v[at];
      (i < c ? GradientOf(op.class_token, gradient)[i]
             : dx.v[n * (row - c) + i - c]) += dy.v[at];
    }
    return {std::move(dx)};
  }

  Plane<T> Forward(const FirstPositionOp&, const Call& call, std::vector<T>&) {
    const Plane<T>& x = In(call);
    Plane<T> y(OutShape(call));
    const int64_t row = x.shape.h * x.shape.w * x.shape.c;
    for (int64_t at = 0; at < y.shape.size(); ++at) {
      y.v[at] = x.v[at / x.shape.c * row + at % x.shape.c];
    }
    return y;
  }
  std::vector<Plane<T>> Backward(const FirstPositionOp&, const Call& call,
                                 Plane<T> dy, std::vector<T>&) const {
    Plane<T> dx(In(call).shape);
    const int64_t row = dx.shape.h * dx.shape.w * dx.shape.c;
    for (int64_t at = 0; at < dy.shape.size(); ++at) {
      dx.v[at / dy.shape.c * row + at % dy.shape.c] = dy.v[at];
    }
    return {std::move(dx)};
  }

  Plane<T> Masked(const DropoutOp& op, Plane<T> x) const {
    const int64_t row = x.shape.h * x.shape.w * x.shape.c;
    for (int64_t at = 0; at < x.shape.size(); ++at) {
      x.v[at] *= static_cast<T>(Kept(op.layer, op.rate, at / row, at % row));
    }
    return x;
  }
  Plane<T> Forward(const DropoutOp& op, const Call& call, std::vector<T>&) {
    return Masked(op, In(call));
  }
  std::vector<Plane<T>> Backward(const DropoutOp& op, const Call&, Plane<T> dy,
                                 std::vector<T>&) const {
    return {Masked(op, std::move(dy))};
  }

  Plane<T> Branch(const AddOp& op, Plane<T> x) const {
    const int64_t row = x.shape.h * x.shape.w * x.shape.c;
    for (int64_t at = 0; at < x.shape.size(); ++at) {
      x.v[at] *= static_cast<T>(Kept(op.layer, op.drop_path, at / row, 0));
    }
    return x;
  }
  Plane<T> Forward(const AddOp& op, const Call& call, std::vector<T>&) {
    Plane<T> y = Branch(op, In(call, 1));
    for (size_t i = 0; i < y.v.size(); ++i) y.v[i] += In(call).v[i];
    return y;
  }
  std::vector<Plane<T>> Backward(const AddOp& op, const Call&, Plane<T> dy,
                                 std::vector<T>&) const {
    return {dy, Branch(op, dy)};
  }

  // Calls f(operation) if T supports the operation; otherwise aborts.
  template <typename Result, typename F>
  static Result Visit(const OperationKind& kind, F f) {
    return std::visit(
        [&](const auto& op) -> Result {
          using Op = std::decay_t<decltype(op)>;
          constexpr bool kKnown = !kIsBounded<T> ||
                                  std::is_same_v<Op, ConvolutionOp> ||
                                  std::is_same_v<Op, LinearOp>;
          if constexpr (kKnown) {
            return f(op);
          } else if constexpr (std::is_same_v<Op, PoolOp>) {
            if (op.maximum) std::abort();
            return f(op);
          } else {
            std::abort();
          }
        },
        kind);
  }
};

}  // namespace
}  // namespace reference

using reference::CrossEntropy;
using reference::Finish;
using reference::Plane;
using reference::SumOf;
using reference::ValueOf;
using reference::WithSamples;

template <typename T>
struct NetworkReference<T>::State : reference::Pass<T> {};

template <typename T>
NetworkReference<T>::NetworkReference(
    const Network& network, std::span<const T> parameters,
    std::span<const T> running_before, const Batch& batch, bool training,
    KeepMask keep, int world_size, SumOverRanks<T> sum_over_ranks,
    WinogradRule winograd, const StoredActivations& stored)
    : running(running_before.begin(), running_before.end()),
      state_(std::make_shared<State>(
          State{{network, parameters, batch, training, std::move(keep),
                 static_cast<double>(world_size), std::move(sum_over_ranks),
                 std::move(winograd),
                 std::make_shared<reference::Storage>(stored)}})) {
  State& state = *state_;
  state.Place();
  const size_t count = network.operations().size();
  state.inner.resize(count);
  state.saved.resize(count);
  state.saved_too.resize(count);
  Plane<T> images(WithSamples(network.input_shape(), state.size()));
  assert(images.v.size() == batch.images.size());
  std::ranges::copy(batch.images, images.v.begin());
  state.storage->Round(std::span(images.v));
  state.values.push_back(std::move(images));
  for (size_t i = 0; i < count; ++i) {
    const typename State::Call call = {network.operations()[i],
                                       static_cast<int>(i)};
    state.values.push_back(State::template Visit<Plane<T>>(
        call.operation.kind,
        [&](const auto& op) { return state.Forward(op, call, running); }));
    state.storage->Round(std::span(state.values.back().v));
    if (!state.inner[i].v.empty()) switches.push_back(state.inner[i].v);
  }
  outputs = state.values.back().v;
  const int64_t classes = network.classes();
  std::vector<T> z = outputs;
  for (int64_t n = 0; n < state.size(); ++n) {
    const std::span<T> own = std::span(z).subspan(n * classes, classes);
    const auto best = std::ranges::max_element(
        own, {}, [](const T& x) { return ValueOf(x); });
    if (best - own.begin() == batch.labels[n]) ++correct;
    losses.push_back(CrossEntropy(own, state.TargetOf(n), T(1)));
  }
  SumOf<T> sum{};
  for (const T& loss : losses) sum += SumOf<T>(loss);
  loss_sum = Finish<T>(sum, static_cast<double>(classes));
}

template <typename T>
std::vector<T> NetworkReference<T>::Gradient(double scale) const {
  return Gradient(std::vector<double>(state_->size(), scale));
}

template <typename T>
std::vector<T> NetworkReference<T>::Gradient(std::span<const double> scales,
                                             const Consumer* left_out) const {
  const State& state = *state_;
  assert(state.training);
  const std::vector<Network::Operation>& operations =
      state.network.operations();
  std::vector<T> gradient(state.parameters.size());
  std::vector<Plane<T>> d(state.values.size());
  d.back() = state.values.back();
  const int64_t classes = state.network.classes();
  for (int64_t n = 0; n < state.size(); ++n) {
    CrossEntropy(std::span(d.back().v).subspan(n * classes, classes),
                 state.TargetOf(n), static_cast<T>(scales[n]));
  }
  state.storage->RoundGradients(std::span(d.back().v));
  for (size_t i = operations.size(); i-- > 0;) {
    const typename State::Call call = {operations[i], static_cast<int>(i)};
    std::vector<Plane<T>> parts = State::template Visit<std::vector<Plane<T>>>(
        call.operation.kind, [&](const auto& op) {
          return state.Backward(op, call, std::move(d[i + 1]), gradient);
        });
    for (size_t k = 0; k < call.operation.inputs.size(); ++k) {
      if (left_out != nullptr &&
          *left_out == Consumer{call.index, static_cast<int>(k)}) {
        continue;
      }
      Plane<T>& to = d[call.operation.inputs[k]];
      state.storage->RoundGradients(std::span(parts[k].v));
      if (to.v.empty()) {
        to = std::move(parts[k]);
        continue;
      }
      for (size_t at = 0; at < to.v.size(); ++at) to.v[at] += parts[k].v[at];
      state.storage->RoundGradients(std::span(to.v));
    }
  }
  return gradient;
}

KeepMask MasksOf(uint64_t seed, int64_t step) {
  return [seed, step](int layer, double rate, int64_t sample, int64_t element) {
    return CounterRandom(seed, step, sample, layer).Uniform(element) >= rate;
  };
}

template class NetworkReference<float>;
template class NetworkReference<double>;
template class NetworkReference<BoundedNumber>;

bool IsNorm(const Network& network, int parameter) {
  return std::ranges::any_of(
      network.operations(), [&](const Network::Operation& operation) {
        const auto* norm = std::get_if<BatchNormOp>(&operation.kind);
        return norm != nullptr &&
               (norm->weight == parameter || norm->bias == parameter);
      });
}

bool HasZeroGradient(const Network& network, int parameter) {
  const auto& operations = network.operations();
  for (size_t i = 0; i < operations.size(); ++i) {
    const auto* convolution = std::get_if<ConvolutionOp>(&operations[i].kind);
    if (convolution == nullptr || convolution->bias != parameter) continue;
    return std::ranges::any_of(operations, [&](const Network::Operation& next) {
      return std::holds_alternative<BatchNormOp>(next.kind) &&
             next.inputs[0] == static_cast<int>(i) + 1;
    });
  }
  return false;
}

BoundedStep BoundedReference(const Network& network,
                             std::span<const float> parameters,
                             const Batch& batch, int world_size) {
  const std::vector<BoundedNumber> exact(parameters.begin(), parameters.end());
  const NetworkReference<BoundedNumber> pass(
      network, exact, {}, batch, /*training=*/true, nullptr, world_size);
  const std::vector<BoundedNumber> gradient =
      pass.Gradient(1.0 / static_cast<double>(batch.labels.size()));
  BoundedStep step = {
      .loss_sum = pass.loss_sum.value,
      .loss_sum_bound = pass.loss_sum.bound,
      .gradient = Bounded(static_cast<int64_t>(gradient.size()))};
  for (size_t i = 0; i < gradient.size(); ++i) {
    step.gradient.value[i] = gradient[i].value;
    step.gradient.bound[i] = gradient[i].bound;
  }
  return step;
}

}  // namespace lockstep
