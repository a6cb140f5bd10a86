// Two passes over the inputs, one over the outputs.
#include "benchmarks/syncbn/check.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"

namespace lockstep::benchmarks {
namespace {

constexpr double kUnit = 0x1p-24;  // The unit round-off of float32.

double Value(float x) { return x; }
double Value(Float16 x) { return ToFloat(x); }
double Value(BFloat16 x) { return ToFloat(x); }

// The unit round-off of a type, and its largest error below the normal numbers.
template <typename T>
constexpr double kRoundOff = 0x1p-24;
template <>
constexpr double kRoundOff<Float16> = 0x1p-11;
template <>
constexpr double kRoundOff<BFloat16> = 0x1p-8;
template <typename T>
constexpr double kSubnormalError = 0x1p-149;
template <>
constexpr double kSubnormalError<Float16> = 0x1p-25;

// Calls visit(channel, index of an element) for every element.
template <typename Visit>
void ForEachElement(const ActivationShape& shape, const Visit& visit) {
  if (shape.layout == Layout::kNhwc) {
    for (int64_t i = 0; i < shape.values_per_channel(); ++i) {
      for (int64_t c = 0; c < shape.c; ++c) visit(c, i * shape.c + c);
    }
    return;
  }
  for (int64_t plane = 0; plane < shape.n * shape.c; ++plane) {
    const int64_t c = plane % shape.c;
    for (int64_t i = 0; i < shape.hw; ++i) visit(c, plane * shape.hw + i);
  }
}

// Calls run with a value of the C++ type of `type`.
template <typename Run>
auto WithType(DataType type, const Run& run) {
  if (type == DataType::kBFloat16) return run(BFloat16());
  if (type == DataType::kFloat16) return run(Float16());
  return run(float());
}

absl::Status SumOverRanks(Communicator* group, std::vector<double>& sums) {
  if (group == nullptr) return absl::OkStatus();
  return group->AllReduce(std::span<double>(sums));
}

// Sums of x by channel, then the number of values.
std::vector<double> FirstSums(const LayerInputs& inputs) {
  const auto channels = static_cast<size_t>(inputs.shape.c);
  std::vector<double> sums(channels + 1);
  WithType(inputs.x.type, [&](auto type) {
    const auto* x = static_cast<const decltype(type)*>(inputs.x.data);
    ForEachElement(inputs.shape, [&](int64_t c, int64_t i) {
      sums[static_cast<size_t>(c)] += Value(x[i]);
    });
  });
  sums[channels] = static_cast<double>(inputs.shape.values_per_channel());
  return sums;
}

// By channel: of (x - mean)^2, dy, dy (x - mean), dy^2.
constexpr size_t kSecondSums = 4;
std::vector<double> SecondSums(const LayerInputs& inputs,
                               std::span<const double> means) {
  std::vector<double> sums(kSecondSums * static_cast<size_t>(inputs.shape.c));
  WithType(inputs.x.type, [&](auto type) {
    const auto* x = static_cast<const decltype(type)*>(inputs.x.data);
    const auto* dy = static_cast<const decltype(type)*>(inputs.dy.data);
    ForEachElement(inputs.shape, [&](int64_t c, int64_t i) {
      const double deviation = Value(x[i]) - means[static_cast<size_t>(c)];
      const double gradient = Value(dy[i]);
      double* const to = &sums[kSecondSums * static_cast<size_t>(c)];
      to[0] += deviation * deviation;
      to[1] += gradient;
      to[2] += gradient * deviation;
      to[3] += gradient * gradient;
    });
  });
  return sums;
}

bool IsWrong(double value, double want, double tolerance) {
  return !(std::abs(value - want) <= tolerance);
}

}  // namespace

absl::StatusOr<LayerReference> LayerReference::Create(const LayerInputs& inputs,
                                                      double epsilon,
                                                      Communicator* group) {
  const auto channels = static_cast<size_t>(inputs.shape.c);
  std::vector<double> means = FirstSums(inputs);
  LOCKSTEP_RETURN_IF_ERROR(SumOverRanks(group, means));
  LayerReference reference;
  reference.values_ = means[channels];
  for (size_t c = 0; c < channels; ++c) means[c] /= reference.values_;
  const std::vector<double> own = SecondSums(inputs, means);
  std::vector<double> all = own;
  LOCKSTEP_RETURN_IF_ERROR(SumOverRanks(group, all));
  for (size_t c = 0; c < channels; ++c) {
    const double* const sums = &all[kSecondSums * c];
    const double variance = sums[0] / reference.values_;
    Channel channel;
    channel.mean = means[c];
    channel.inverse = 1 / std::sqrt(variance + epsilon);
    channel.rms_x = std::sqrt(variance + means[c] * means[c]);
    channel.mean_dy = sums[1] / reference.values_;
    channel.mean_dy_normalised = sums[2] * channel.inverse / reference.values_;
    channel.rms_dy = std::sqrt(sums[3] / reference.values_);
    channel.own_dy = own[kSecondSums * c + 1];
    channel.own_dy_normalised = own[kSecondSums * c + 2] * channel.inverse;
    reference.channels_.push_back(channel);
  }
  return reference;
}

template <typename T>
int64_t LayerReference::CountWrongElements(const LayerInputs& inputs,
                                           const LayerOutputs& outputs) const {
  const auto* x = static_cast<const T*>(inputs.x.data);
  const auto* dy = static_cast<const T*>(inputs.dy.data);
  const auto* y = static_cast<const T*>(outputs.y.data);
  const auto* dx = static_cast<const T*>(outputs.dx.data);
  const double k_u = (8 * std::sqrt(values_) + 16) * kUnit;
  int64_t wrong = 0;
  ForEachElement(inputs.shape, [&](int64_t at, int64_t i) {
    const auto c = static_cast<size_t>(at);
    const Channel& channel = channels_[c];
    const double weight = inputs.weight[c], bias = inputs.bias[c];
    const double normalised = (Value(x[i]) - channel.mean) * channel.inverse;
    const double spread = channel.rms_x * channel.inverse;
    const double want_y = normalised * weight + bias;
    const double scale = weight * channel.inverse;
    const double want_dx = scale * (Value(dy[i]) - channel.mean_dy -
                                    normalised * channel.mean_dy_normalised);
    const double size = std::abs(normalised);
    const double y_error =
        k_u * (std::abs(weight) * (spread + size) + std::abs(bias));
    const double dx_error =
        k_u * std::abs(scale) *
        (std::abs(Value(dy[i])) + channel.rms_dy * (1 + size) * (2 + spread));
    wrong +=
        IsWrong(Value(y[i]), want_y,
                y_error + kRoundOff<T> * std::abs(want_y) + kSubnormalError<T>);
    wrong += IsWrong(
        Value(dx[i]), want_dx,
        dx_error + kRoundOff<T> * std::abs(want_dx) + kSubnormalError<T>);
  });
  return wrong;
}

int64_t LayerReference::CountWrongGradients(const LayerOutputs& outputs) const {
  const double k_u = (8 * std::sqrt(values_) + 16) * kUnit;
  int64_t wrong = 0;
  for (size_t c = 0; c < channels_.size(); ++c) {
    const Channel& channel = channels_[c];
    const double size = k_u * values_ * channel.rms_dy;
    wrong += IsWrong(outputs.dbias[c], channel.own_dy, size);
    wrong += IsWrong(outputs.dweight[c], channel.own_dy_normalised,
                     4 * size * (1 + channel.rms_x * channel.inverse));
  }
  return wrong;
}

int64_t LayerReference::CountWrong(const LayerInputs& inputs,
                                   const LayerOutputs& outputs) const {
  return WithType(inputs.x.type,
                  [&](auto type) {
                    return CountWrongElements<decltype(type)>(inputs, outputs);
                  }) +
         CountWrongGradients(outputs);
}

}  // namespace lockstep::benchmarks
