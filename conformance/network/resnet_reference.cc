// ResNet-18 forward and backward, layer by layer.
#include "conformance/network/resnet_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "conformance/network/plain_layers.h"
#include "conformance/trace.h"
#include "models/model.h"

namespace lockstep {
namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kFeatures = 512;
constexpr int kBlocks = 8;

// A convolution or batch norm with the places of its tensors.
struct ConvolutionPlace {
  PlainConvolution conv;
  int64_t weight = 0, bias = 0;  // Offsets among the parameters.
};
struct NormPlace {
  int64_t channels = 0;
  int64_t weight = 0, bias = 0;
  int64_t mean = 0, variance = 0;  // Offsets among the running statistics.
};
struct BlockPlace {
  ConvolutionPlace conv1, conv2, conv3;
  NormPlace bn1, bn2;
  bool projects = false;  // Whether there is a conv3.
};

// Where everything lies.
struct Layout {
  std::vector<ParameterSpec> parameters, buffers;
  ConvolutionPlace stem;
  NormPlace stem_norm;
  std::array<BlockPlace, kBlocks> blocks;
  int64_t fc_weight = 0, fc_bias = 0;

  Layout() {
    stem = AddConvolution("0", 1, 64, 3, 1);
    stem_norm = AddNorm("1", 64);
    int64_t in = 64;
    for (int i = 0; i < kBlocks; ++i) {
      const int64_t out = int64_t{64} << (i / 2);
      const std::string name =
          absl::StrCat("resnet_block", i / 2 + 1, ".", i % 2, ".");
      BlockPlace& block = blocks[i];
      block.projects = in != out;
      const int64_t stride = block.projects ? 2 : 1;
      block.conv1 = AddConvolution(name + "conv1", in, out, 3, stride);
      block.conv2 = AddConvolution(name + "conv2", out, out, 3, 1);
      if (block.projects) {
        block.conv3 = AddConvolution(name + "conv3", in, out, 1, stride);
      }
      block.bn1 = AddNorm(name + "bn1", out);
      block.bn2 = AddNorm(name + "bn2", out);
      in = out;
    }
    fc_weight = Add(parameters, "fc.1.weight", {kClasses, kFeatures});
    fc_bias = Add(parameters, "fc.1.bias", {kClasses});
  }

  static int64_t Add(std::vector<ParameterSpec>& specs, std::string name,
                     std::vector<int64_t> shape) {
    int64_t offset = 0, size = 1;
    if (!specs.empty()) offset = specs.back().offset + specs.back().size;
    for (const int64_t extent : shape) size *= extent;
    specs.push_back({std::move(name), std::move(shape), offset, size});
    return offset;
  }

  ConvolutionPlace AddConvolution(const std::string& name, int64_t in,
                                  int64_t out, int64_t kernel, int64_t stride) {
    ConvolutionPlace place{.conv = {in, out, kernel, stride}};
    place.weight = Add(parameters, name + ".weight", {out, in, kernel, kernel});
    place.bias = Add(parameters, name + ".bias", {out});
    return place;
  }

  NormPlace AddNorm(const std::string& name, int64_t channels) {
    NormPlace place{.channels = channels};
    place.weight = Add(parameters, name + ".weight", {channels});
    place.bias = Add(parameters, name + ".bias", {channels});
    place.mean = Add(buffers, name + ".running_mean", {channels});
    place.variance = Add(buffers, name + ".running_var", {channels});
    return place;
  }
};

const Layout& TheLayout() {
  static const Layout& layout = *new Layout;
  return layout;
}

// What backward needs of one block.
template <typename T>
struct BlockState {
  Plane<T> x;             // The block's input.
  Plane<T> inner, outer;  // What its two ReLUs were given.
  Plane<T> activated;     // What the first one gave.
  NormState<T> norm1, norm2;
};

template <typename T>
Plane<T> Relu(Plane<T> z) {
  for (T& v : z.v) v = v > 0 ? v : 0;
  return z;
}

template <typename T>
Plane<T> ReluBackward(const Plane<T>& z, Plane<T> dy) {
  for (size_t i = 0; i < dy.v.size(); ++i) {
    if (!(z.v[i] > 0)) dy.v[i] = 0;
  }
  return dy;
}

template <typename T>
void AddTo(Plane<T>& sum, const Plane<T>& x) {
  for (size_t i = 0; i < sum.v.size(); ++i) sum.v[i] += x.v[i];
}

}  // namespace

template <typename T>
struct ResNetReference<T>::State {
  const Layout& layout = TheLayout();
  std::span<const T> parameters;
  std::vector<T> running;
  std::vector<int32_t> labels;
  bool training = true;

  Plane<T> images, stem, features;
  NormState<T> stem_norm;
  std::array<BlockState<T>, kBlocks> blocks;
  std::vector<T> pooled;         // [n, features].
  std::vector<T> probabilities;  // [n, classes].
  double loss_sum = 0;
  int64_t correct = 0;

  std::span<const T> Value(int64_t offset, int64_t size) const {
    return parameters.subspan(offset, size);
  }
  std::span<const T> Weight(const ConvolutionPlace& at) const {
    const PlainConvolution& conv = at.conv;
    return Value(at.weight, conv.out * conv.in * conv.kernel * conv.kernel);
  }

  Plane<T> Convolve(const ConvolutionPlace& at, const Plane<T>& x) const {
    return at.conv.template Forward<T>(x, Weight(at),
                                       Value(at.bias, at.conv.out));
  }

  Plane<T> Normalise(const NormPlace& at, const Plane<T>& x,
                     NormState<T>& state) {
    const std::span<T> all = running;
    const std::span<T> mean = all.subspan(at.mean, at.channels);
    const std::span<T> variance = all.subspan(at.variance, at.channels);
    const std::span<const T> weight = Value(at.weight, at.channels);
    const std::span<const T> bias = Value(at.bias, at.channels);
    if (!training) return NormEvaluate<T>(x, weight, bias, mean, variance);
    return NormTrain<T>(x, weight, bias, mean, variance, state);
  }

  Plane<T> ForwardBlock(const BlockPlace& at, Plane<T> x, BlockState<T>& to) {
    to.x = std::move(x);
    to.inner = Normalise(at.bn1, Convolve(at.conv1, to.x), to.norm1);
    to.activated = Relu(to.inner);
    to.outer = Normalise(at.bn2, Convolve(at.conv2, to.activated), to.norm2);
    AddTo(to.outer, at.projects ? Convolve(at.conv3, to.x) : to.x);
    return Relu(to.outer);
  }

  void Forward() {
    stem =
        Normalise(layout.stem_norm, Convolve(layout.stem, images), stem_norm);
    features = Relu(stem);
    for (int i = 0; i < kBlocks; ++i) {
      features = ForwardBlock(layout.blocks[i], std::move(features), blocks[i]);
    }
    Pool();
    Classify();
  }

  void Pool() {
    const int64_t area = features.h * features.w;
    pooled.resize(features.n * kFeatures);
    for (int64_t pixel = 0; pixel < features.pixels(); ++pixel) {
      for (int64_t c = 0; c < kFeatures; ++c) {
        pooled[pixel / area * kFeatures + c] +=
            features.v[pixel * kFeatures + c] / static_cast<T>(area);
      }
    }
  }

  void Classify() {
    const auto weight = Value(layout.fc_weight, kClasses * kFeatures);
    const auto bias = Value(layout.fc_bias, kClasses);
    for (size_t n = 0; n < labels.size(); ++n) {
      std::array<T, kClasses> logits;
      for (int64_t k = 0; k < kClasses; ++k) {
        logits[k] = bias[k];
        for (int64_t c = 0; c < kFeatures; ++c) {
          logits[k] += weight[k * kFeatures + c] * pooled[n * kFeatures + c];
        }
      }
      const auto most = std::max_element(logits.begin(), logits.end());
      T sum = 0;
      for (const T logit : logits) sum += std::exp(logit - *most);
      for (const T logit : logits) {
        probabilities.push_back(std::exp(logit - *most) / sum);
      }
      loss_sum += std::log(sum) - (logits[labels[n]] - *most);
      if (most - logits.begin() == labels[n]) ++correct;
    }
  }

  // The gradient of `features`, and that of the last layer's parameters.
  Plane<T> BackwardHead(std::span<const T> scales,
                        std::span<T> gradient) const {
    Plane<T> dx(features.n, features.h, features.w, features.c);
    const auto weight = Value(layout.fc_weight, kClasses * kFeatures);
    const int64_t area = features.h * features.w;
    for (int64_t n = 0; n < features.n; ++n) {
      std::array<T, kFeatures> dpooled = {};
      for (int64_t k = 0; k < kClasses; ++k) {
        const T d = scales[n] * (probabilities[n * kClasses + k] -
                                 (labels[n] == k ? 1 : 0));
        gradient[layout.fc_bias + k] += d;
        for (int64_t c = 0; c < kFeatures; ++c) {
          const int64_t at = k * kFeatures + c;
          gradient[layout.fc_weight + at] += d * pooled[n * kFeatures + c];
          dpooled[c] += d * weight[at];
        }
      }
      for (int64_t at = 0; at < area * kFeatures; ++at) {
        dx.v[n * area * kFeatures + at] =
            dpooled[at % kFeatures] / static_cast<T>(area);
      }
    }
    return dx;
  }

  Plane<T> BackwardConvolution(const ConvolutionPlace& at, const Plane<T>& x,
                               const Plane<T>& dy, bool input_gradient,
                               std::span<T> gradient) const {
    const std::span<const T> weight = Weight(at);
    return at.conv.template Backward<T>(
        x, weight, dy, input_gradient,
        gradient.subspan(at.weight, weight.size()),
        gradient.subspan(at.bias, at.conv.out));
  }

  Plane<T> BackwardNorm(const NormPlace& at, const NormState<T>& state,
                        const Plane<T>& dy, std::span<T> gradient) const {
    return NormBackward<T>(state, Value(at.weight, at.channels), dy,
                           gradient.subspan(at.weight, at.channels),
                           gradient.subspan(at.bias, at.channels));
  }

  Plane<T> BackwardBlock(const BlockPlace& at, const BlockState<T>& state,
                         Plane<T> dy, std::span<T> gradient) const {
    const Plane<T> douter = ReluBackward(state.outer, std::move(dy));
    const Plane<T> dactivated = BackwardConvolution(
        at.conv2, state.activated,
        BackwardNorm(at.bn2, state.norm2, douter, gradient), true, gradient);
    const Plane<T> dinner = ReluBackward(state.inner, dactivated);
    Plane<T> dx = BackwardConvolution(
        at.conv1, state.x, BackwardNorm(at.bn1, state.norm1, dinner, gradient),
        true, gradient);
    AddTo(dx, at.projects ? BackwardConvolution(at.conv3, state.x, douter, true,
                                                gradient)
                          : douter);
    return dx;
  }
};

template <typename T>
ResNetReference<T>::ResNetReference(std::span<const T> parameters,
                                    std::span<const T> running,
                                    const Samples& samples, bool training)
    : state_(std::make_unique<State>()) {
  const int64_t n = samples.size();
  const int64_t side =
      std::lround(std::sqrt(static_cast<double>(samples.images.size()) / n));
  state_->parameters = parameters;
  state_->running.assign(running.begin(), running.end());
  state_->labels = samples.labels;
  state_->training = training;
  state_->images = Plane<T>(n, side, side, 1);
  std::copy(samples.images.begin(), samples.images.end(),
            state_->images.v.begin());
  state_->Forward();
}

template <typename T>
ResNetReference<T>::~ResNetReference() = default;

template <typename T>
double ResNetReference<T>::loss_sum() const {
  return state_->loss_sum;
}

template <typename T>
int64_t ResNetReference<T>::correct() const {
  return state_->correct;
}

template <typename T>
const std::vector<T>& ResNetReference<T>::running() const {
  return state_->running;
}

template <typename T>
std::vector<std::span<const T>> ResNetReference<T>::relu_inputs() const {
  std::vector<std::span<const T>> inputs = {state_->stem.v};
  for (const BlockState<T>& block : state_->blocks) {
    inputs.push_back(block.inner.v);
    inputs.push_back(block.outer.v);
  }
  return inputs;
}

template <typename T>
std::vector<T> ResNetReference<T>::Gradient(T scale) const {
  return Gradient(std::vector<T>(state_->labels.size(), scale));
}

template <typename T>
std::vector<T> ResNetReference<T>::Gradient(
    const std::vector<T>& scales) const {
  const State& state = *state_;
  const Layout& layout = state.layout;
  std::vector<T> gradient(state.parameters.size());
  Plane<T> d = state.BackwardHead(scales, gradient);
  for (int i = kBlocks - 1; i >= 0; --i) {
    d = state.BackwardBlock(layout.blocks[i], state.blocks[i], std::move(d),
                            gradient);
  }
  const Plane<T> dstem =
      state.BackwardNorm(layout.stem_norm, state.stem_norm,
                         ReluBackward(state.stem, std::move(d)), gradient);
  state.BackwardConvolution(layout.stem, state.images, dstem, false, gradient);
  return gradient;
}

template class ResNetReference<float>;
template class ResNetReference<double>;

const std::vector<ParameterSpec>& ResNetParameterSpecs() {
  return TheLayout().parameters;
}

const std::vector<ParameterSpec>& ResNetBufferSpecs() {
  return TheLayout().buffers;
}

bool HasZeroGradient(const ParameterSpec& parameter) {
  const std::string& name = parameter.name;
  return name == "0.bias" || absl::EndsWith(name, "conv1.bias") ||
         absl::EndsWith(name, "conv2.bias");
}

}  // namespace lockstep
