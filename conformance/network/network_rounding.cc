// The reference's step, and the distances of float32 from it.
#include "conformance/network/network_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/network/resnet_shadow.h"
#include "conformance/trace.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

constexpr uint32_t kShadows = 4;

std::vector<double> Widened(std::span<const float> values) {
  return {values.begin(), values.end()};
}

Samples Part(const Samples& samples, int64_t begin, int64_t count) {
  const int64_t pixels =
      static_cast<int64_t>(samples.images.size()) / samples.size();
  const auto image = samples.images.begin() + begin * pixels;
  const auto label = samples.labels.begin() + begin;
  return {{image, image + count * pixels}, {label, label + count}};
}

// Norms of f(i) over each tensor.
template <typename F>
std::vector<double> NormsOf(std::span<const ParameterSpec> specs, F f) {
  std::vector<double> norms;
  for (const ParameterSpec& spec : specs) {
    double sum = 0;
    for (int64_t i = spec.offset; i < spec.offset + spec.size; ++i) {
      sum += f(i) * f(i);
    }
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

void RaiseTo(std::vector<double>& most, const std::vector<double>& values) {
  most.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    most[i] = std::max(most[i], values[i]);
  }
}

}  // namespace

NetworkStep ReferenceStep(std::span<const float> parameters,
                          std::span<const float> running,
                          const Samples& samples) {
  const std::vector<double> wide = Widened(parameters);
  const ResNetReference<double> pass(wide, Widened(running), samples,
                                     /*training=*/true);
  return {pass.loss_sum(),
          pass.Gradient(1.0 / static_cast<double>(samples.size())),
          pass.running()};
}

std::vector<double> MeanOfMeansGradient(std::span<const float> parameters,
                                        std::span<const float> running,
                                        const Samples& samples,
                                        std::span<const int64_t> deal) {
  const std::vector<double> wide = Widened(parameters);
  const ResNetReference<double> pass(wide, Widened(running), samples,
                                     /*training=*/true);
  std::vector<double> scales;
  for (const int64_t count : deal) {
    const double scale =
        1.0 / static_cast<double>(count) / static_cast<double>(deal.size());
    scales.insert(scales.end(), static_cast<size_t>(count), scale);
  }
  return pass.Gradient(scales);
}

LocalStep LocalReferenceStep(std::span<const float> parameters,
                             std::span<const float> running,
                             const Samples& samples,
                             std::span<const int64_t> deal) {
  const std::vector<double> wide = Widened(parameters);
  LocalStep step{.gradient = std::vector<double>(wide.size()), .running = {}};
  int64_t begin = 0;
  for (const int64_t count : deal) {
    step.running.push_back(Widened(running));
    if (count == 0) continue;
    const ResNetReference<double> pass(wide, step.running.back(),
                                       Part(samples, begin, count),
                                       /*training=*/true);
    begin += count;
    step.loss_sum += pass.loss_sum();
    step.running.back() = pass.running();
    const std::vector<double> part =
        pass.Gradient(1.0 / static_cast<double>(samples.size()));
    for (size_t i = 0; i < part.size(); ++i) step.gradient[i] += part[i];
  }
  return step;
}

std::vector<double> TensorDistances(std::span<const ParameterSpec> specs,
                                    std::span<const float> a,
                                    std::span<const double> b) {
  return NormsOf(specs, [&](int64_t i) { return a[i] - b[i]; });
}

std::vector<double> TensorNorms(std::span<const ParameterSpec> specs,
                                std::span<const double> a) {
  return NormsOf(specs, [&](int64_t i) { return a[i]; });
}

absl::StatusOr<Rounding> MeasureRounding(Model& model,
                                         std::span<const float> parameters,
                                         std::span<const float> running,
                                         const Samples& samples,
                                         const NetworkStep& reference) {
  Rounding rounding;
  for (uint32_t seed = 0; seed <= kShadows; ++seed) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const NetworkNumbers numbers,
        ComputeInOrder(seed, model, parameters, running, samples));
    rounding.loss_sum = std::max(
        rounding.loss_sum, std::abs(numbers.loss_sum - reference.loss_sum));
    RaiseTo(rounding.gradients,
            TensorDistances(ResNetParameterSpecs(), numbers.gradient,
                            reference.gradient));
    RaiseTo(rounding.running,
            TensorDistances(ResNetBufferSpecs(), numbers.running,
                            reference.running));
  }
  return rounding;
}

double Clearance(std::span<const float> parameters,
                 std::span<const float> running, const Samples& samples) {
  const std::vector<double> wide = Widened(parameters);
  const ResNetReference<double> exact(wide, Widened(running), samples, true);
  const ResNetReference<float> rounded(parameters, running, samples, true);
  const auto z = exact.relu_inputs();
  const auto z_rounded = rounded.relu_inputs();
  double clearance = std::numeric_limits<double>::infinity();
  for (size_t relu = 0; relu < z.size(); ++relu) {
    double least = std::numeric_limits<double>::infinity();
    double error = 0;
    for (size_t i = 0; i < z[relu].size(); ++i) {
      least = std::min(least, std::abs(z[relu][i]));
      error = std::max(error, std::abs(z[relu][i] - z_rounded[relu][i]));
    }
    clearance = std::min(clearance, least / error);
  }
  return clearance;
}

}  // namespace lockstep
