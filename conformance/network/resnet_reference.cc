// ResNet-18 forward and backward, layer by layer.
#include "conformance/network/resnet_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "conformance/checks.h"
#include "conformance/reference/plain_layers.h"
#include "models/model.h"

namespace lockstep::conformance {
namespace {

constexpr int64_t kClasses = 10;
constexpr int kBlocks = 8;

// A convolution or batch norm with the places of its tensors.
struct ConvolutionPlace {
  int64_t in, out, kernel, stride;
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
  ConvolutionPlace fc;

  explicit Layout(int64_t width) {
    stem = AddConvolution("0", 1, width, 3, 1);
    stem_norm = AddNorm("1", width);
    int64_t in = width;
    for (int i = 0; i < kBlocks; ++i) {
      const int64_t out = width << (i / 2);
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
    fc = {in, kClasses, /*kernel=*/1, /*stride=*/1};
    fc.weight = Add(parameters, "fc.1.weight", {kClasses, in});
    fc.bias = Add(parameters, "fc.1.bias", {kClasses});
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
    ConvolutionPlace place{in, out, kernel, stride};
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

// By width.
const std::map<int64_t, Layout>& Layouts() {
  static const auto& layouts = *new std::map<int64_t, Layout>{
      {kNarrowResNet, Layout(kNarrowResNet)}, {kResNet, Layout(kResNet)}};
  return layouts;
}

const Layout& LayoutOfSize(size_t parameters) {
  const Layout& narrow = Layouts().at(kNarrowResNet);
  const bool is_narrow =
      narrow.fc.bias + kClasses == static_cast<int64_t>(parameters);
  return is_narrow ? narrow : Layouts().at(kResNet);
}

// What backward needs of one block.
template <typename T>
struct BlockState {
  Plane<T> x;             // The block's input.
  Plane<T> inner, outer;  // What its two ReLUs were given.
  Plane<T> activated;     // What the first one gave.
  PlainBatchNorm<T> norm1, norm2;
};

template <typename T>
void AddTo(Plane<T>& sum, const Plane<T>& x) {
  for (size_t i = 0; i < sum.v.size(); ++i) sum.v[i] += x.v[i];
}

}  // namespace

template <typename T>
struct ResNetReference<T>::State {
  const Layout& layout;
  std::span<const T> parameters;
  std::vector<T> running;
  std::vector<int32_t> labels;
  bool training = true;

  Plane<T> images = {}, stem = {}, features = {};
  PlainBatchNorm<T> stem_norm = {};
  std::array<BlockState<T>, kBlocks> blocks = {};
  Plane<T> pooled = {};         // [n, 1, 1, features].
  Plane<T> probabilities = {};  // [n, 1, 1, classes].

  std::span<const T> Value(int64_t offset, int64_t size) const {
    return parameters.subspan(offset, size);
  }
  static PlainConvolution<T> Convolution(const ConvolutionPlace& at) {
    return {at.in, at.out, at.kernel, at.stride, /*padding=*/at.kernel / 2};
  }

  Plane<T> Convolve(const ConvolutionPlace& at, const Plane<T>& x) const {
    const PlainConvolution<T> conv = Convolution(at);
    return conv.Forward(x, Value(at.weight, conv.weights()),
                        Value(at.bias, conv.biases()));
  }

  Plane<T> Normalise(const NormPlace& at, const Plane<T>& x,
                     PlainBatchNorm<T>& norm) {
    const std::span<T> all = running;
    const std::span<T> mean = all.subspan(at.mean, at.channels);
    const std::span<T> variance = all.subspan(at.variance, at.channels);
    const std::span<const T> weight = Value(at.weight, at.channels);
    const std::span<const T> bias = Value(at.bias, at.channels);
    return training ? norm.Train(x, weight, bias, mean, variance)
                    : norm.Evaluate(x, weight, bias, mean, variance);
  }

  Plane<T> ForwardBlock(const BlockPlace& at, Plane<T> x, BlockState<T>& to) {
    to.x = std::move(x);
    to.inner = Normalise(at.bn1, Convolve(at.conv1, to.x), to.norm1);
    to.activated = Relu(to.inner);
    to.outer = Normalise(at.bn2, Convolve(at.conv2, to.activated), to.norm2);
    AddTo(to.outer, at.projects ? Convolve(at.conv3, to.x) : to.x);
    return Relu(to.outer);
  }

  // Sets the loss and the count of right answers of `to`.
  void Forward(ResNetReference& to) {
    stem =
        Normalise(layout.stem_norm, Convolve(layout.stem, images), stem_norm);
    features = Relu(stem);
    for (int i = 0; i < kBlocks; ++i) {
      features = ForwardBlock(layout.blocks[i], std::move(features), blocks[i]);
    }
    const int64_t area = features.h * features.w;
    pooled = Plane<T>(features.n, 1, 1, features.c);
    for (size_t i = 0; i < features.v.size(); ++i) {
      pooled.v[PooledOf(i)] += features.v[i] / static_cast<T>(area);
    }
    probabilities = Convolve(layout.fc, pooled);
    for (size_t n = 0; n < labels.size(); ++n) {
      const auto z = probabilities.v.begin() + n * kClasses;
      if (std::max_element(z, z + kClasses) - z == labels[n]) ++to.correct;
    }
    to.loss_sum = SoftmaxLoss<T>(labels, probabilities);
  }

  // The element of `pooled` that element i of `features` is averaged in.
  size_t PooledOf(size_t i) const {
    return i / (features.h * features.w * features.c) * features.c +
           i % features.c;
  }

  // The gradient of `features`, and that of the last layer's parameters.
  Plane<T> BackwardHead(std::span<const T> scales,
                        std::span<T> gradient) const {
    const Plane<T> dpooled = BackwardConvolution(
        layout.fc, pooled,
        SoftmaxLossBackward<T>(labels, probabilities, scales), true, gradient);
    Plane<T> dx(features.n, features.h, features.w, features.c);
    for (size_t i = 0; i < dx.v.size(); ++i) {
      dx.v[i] =
          dpooled.v[PooledOf(i)] / static_cast<T>(features.h * features.w);
    }
    return dx;
  }

  Plane<T> BackwardConvolution(const ConvolutionPlace& at, const Plane<T>& x,
                               const Plane<T>& dy, bool input_gradient,
                               std::span<T> gradient) const {
    const PlainConvolution<T> conv = Convolution(at);
    return conv.Backward(x, Value(at.weight, conv.weights()), dy,
                         input_gradient,
                         gradient.subspan(at.weight, conv.weights()),
                         gradient.subspan(at.bias, conv.biases()));
  }

  Plane<T> BackwardNorm(const NormPlace& at, const PlainBatchNorm<T>& norm,
                        const Plane<T>& dy, std::span<T> gradient) const {
    return norm.Backward(Value(at.weight, at.channels), dy,
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
                                    std::span<const T> running_before,
                                    const Samples& samples, bool training) {
  const auto state = std::make_shared<State>(
      State{LayoutOfSize(parameters.size()),
            parameters,
            {running_before.begin(), running_before.end()},
            samples.labels,
            training});
  const int64_t n = samples.size();
  const int64_t side =
      std::lround(std::sqrt(static_cast<double>(samples.images.size()) / n));
  state->images = Plane<T>(n, side, side, 1);
  std::copy(samples.images.begin(), samples.images.end(),
            state->images.v.begin());
  state->Forward(*this);
  running = state->running;
  relu_inputs = {state->stem.v};
  for (const BlockState<T>& block : state->blocks) {
    relu_inputs.push_back(block.inner.v);
    relu_inputs.push_back(block.outer.v);
  }
  state_ = state;
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

const std::vector<ParameterSpec>& ResNetParameterSpecs(int64_t width) {
  return Layouts().at(width).parameters;
}

const std::vector<ParameterSpec>& ResNetBufferSpecs(int64_t width) {
  return Layouts().at(width).buffers;
}

bool IsNorm(const ParameterSpec& parameter) {
  return absl::StrContains(parameter.name, "bn") ||
         absl::StartsWith(parameter.name, "1.");
}

bool HasZeroGradient(const ParameterSpec& parameter) {
  const std::string& name = parameter.name;
  return name == "0.bias" || absl::EndsWith(name, "conv1.bias") ||
         absl::EndsWith(name, "conv2.bias");
}

}  // namespace lockstep::conformance
