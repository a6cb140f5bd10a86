#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "conformance/checks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/training_run.h"
#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {
namespace {

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

// A pass of T over some of the samples of a step, and what it borrows.
template <typename T>
struct ReferencePass {
  // order: the samples that it has, in their order, by number.
  ReferencePass(const StepInput& in, IndexOrder order)
      : parameters(in.parameters.begin(), in.parameters.end()),
        numbers(std::move(order)),
        samples(Pick(in)),
        pass(in.network ? *in.network : in.tested.network(), parameters,
             std::vector<T>(in.running.begin(), in.running.end()),
             {.images = samples.images,
              .labels = samples.labels,
              .samples = numbers},
             /*training=*/true, in.keep ? in.keep : MaskOf(in.step)) {}

  Samples Pick(const StepInput& in) const {
    const int64_t pixels = in.tested.network().input_shape().size();
    Samples picked;
    for (const int64_t number : numbers) {
      const auto image = in.samples.images.begin() + number * pixels;
      picked.images.insert(picked.images.end(), image, image + pixels);
      picked.labels.push_back(in.samples.labels[number]);
    }
    return picked;
  }

  const std::vector<T> parameters;
  const IndexOrder numbers;
  const Samples samples;
  const NetworkReference<T> pass;
};

double MeanOf(const StepInput& in) {
  return 1.0 / static_cast<double>(in.samples.size());
}

}  // namespace

NetworkStep ReferenceStep(const StepInput& in) {
  const ReferencePass<double> own(in, IdentityOf(in.samples.size()));
  return {own.pass.loss_sum, own.pass.Gradient(MeanOf(in)), own.pass.running};
}

std::vector<double> MeanOfMeansGradient(const StepInput& in,
                                        std::span<const int64_t> deal) {
  std::vector<double> scales;
  for (const int64_t count : deal) {
    const double scale =
        1.0 / static_cast<double>(count) / static_cast<double>(deal.size());
    scales.insert(scales.end(), static_cast<size_t>(count), scale);
  }
  return ReferencePass<double>(in, IdentityOf(in.samples.size()))
      .pass.Gradient(scales);
}

std::vector<double> LeftOutGradient(const StepInput& in,
                                    const Consumer& left_out) {
  const std::vector<double> scales(in.samples.size(), MeanOf(in));
  return ReferencePass<double>(in, IdentityOf(in.samples.size()))
      .pass.Gradient(scales, &left_out);
}

LocalStep LocalReferenceStep(const StepInput& in,
                             std::span<const int64_t> deal) {
  LocalStep step{.gradient = std::vector<double>(in.parameters.size()),
                 .running = {}};
  int64_t begin = 0;
  for (const int64_t count : deal) {
    step.running.emplace_back(in.running.begin(), in.running.end());
    if (count == 0) continue;
    IndexOrder order = IdentityOf(count);
    for (int64_t& number : order) number += begin;
    begin += count;
    const ReferencePass<double> own(in, order);
    step.loss_sum += own.pass.loss_sum;
    step.running.back() = own.pass.running;
    const std::vector<double> part = own.pass.Gradient(MeanOf(in));
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

Rounding MeasureRounding(const StepInput& in) {
  IndexOrder order = IdentityOf(in.samples.size());
  const ReferencePass<double> exact(in, order);
  const std::vector<double> gradient = exact.pass.Gradient(MeanOf(in));
  Rounding rounding;
  for (int turn = 0; turn < 2; ++turn) {
    const ReferencePass<float> rounded(in, order);
    double losses = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const double error = rounded.pass.losses[i] - exact.pass.losses[order[i]];
      losses += error * error;
    }
    rounding.loss_sum = std::max(rounding.loss_sum, std::sqrt(losses));
    RaiseTo(rounding.gradients,
            TensorDistances(in.tested.specs(),
                            rounded.pass.Gradient(MeanOf(in)), gradient));
    RaiseTo(rounding.running,
            TensorDistances(in.tested.buffer_specs(), rounded.pass.running,
                            exact.pass.running));
    std::ranges::reverse(order);
  }
  return rounding;
}

const StepReference& ReferenceOf(const StepInput& in) {
  using Key = std::tuple<const TestedNetwork*, int, std::vector<float>,
                         std::vector<float>>;
  static auto& cache = *new std::map<Key, StepReference>;
  Key key = {&in.tested,
             in.step,
             {in.parameters.begin(), in.parameters.end()},
             {in.running.begin(), in.running.end()}};
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() > 16) cache.clear();
  return cache[std::move(key)] = {ReferenceStep(in), MeasureRounding(in)};
}

double Clearance(const StepInput& in) {
  const IndexOrder order = IdentityOf(in.samples.size());
  const ReferencePass<double> exact(in, order);
  const ReferencePass<float> rounded(in, order);
  double clearance = std::numeric_limits<double>::infinity();
  for (size_t at = 0; at < exact.pass.switches.size(); ++at) {
    const std::vector<double>& z = exact.pass.switches[at];
    const std::vector<float>& z_rounded = rounded.pass.switches[at];
    double least = std::numeric_limits<double>::infinity();
    double error = 0;
    for (size_t i = 0; i < z.size(); ++i) {
      least = std::min(least, std::abs(z[i]));
      error = std::max(error, std::abs(z[i] - z_rounded[i]));
    }
    clearance = std::min(clearance, least / error);
  }
  return clearance;
}

}  // namespace lockstep::conformance
