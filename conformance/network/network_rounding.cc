#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "conformance/checks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/training_run.h"
#include "models/model.h"

namespace lockstep::conformance {
namespace {

constexpr int kBlocks = 8;
constexpr int kStages = 4;
constexpr uint32_t kReferenceRuns = 4;

// Whose channels are shuffled how: between the blocks and within each.
class ChannelOrders {
 public:
  explicit ChannelOrders(Reordering& reordering) : reordering_(reordering) {
    for (int stage = 0; stage < kStages; ++stage) {
      stages_.push_back(reordering.Shuffled(NetworkWidth() << stage));
    }
    for (int block = 0; block < kBlocks; ++block) {
      inner_.push_back(reordering.Shuffled(NetworkWidth() << (block / 2)));
    }
  }

  // Of all these tensors, one behind the other.
  IndexOrder PlacesOf(std::span<const ParameterSpec> specs) const {
    IndexOrder places;
    for (const ParameterSpec& spec : specs) {
      AppendTensor({OutputOrder(spec), InputOrder(spec),
                    spec.shape.size() == 4 ? reordering_.Square(spec.shape[2])
                                           : IdentityOf(1)},
                   places);
    }
    return places;
  }

 private:
  // The block that "resnet_block2.1.conv1.weight" is of: 3.
  static int BlockOf(const std::string& name) {
    return 2 * (name[12] - '1') + (name[14] - '0');
  }

  IndexOrder OutputOrder(const ParameterSpec& spec) const {
    const std::string& name = spec.name;
    if (absl::StartsWith(name, "fc.")) return IdentityOf(spec.shape[0]);
    if (!absl::StartsWith(name, "resnet_block")) return stages_[0];
    const int block = BlockOf(name);
    const bool inner =
        absl::StrContains(name, "conv1.") || absl::StrContains(name, "bn1.");
    return inner ? inner_[block] : stages_[block / 2];
  }

  IndexOrder InputOrder(const ParameterSpec& spec) const {
    const std::string& name = spec.name;
    if (spec.shape.size() == 1) return IdentityOf(1);
    if (name == "0.weight") return IdentityOf(1);
    if (name == "fc.1.weight") return stages_.back();
    const int block = BlockOf(name);
    if (absl::StrContains(name, "conv2.")) return inner_[block];
    return stages_[std::max(block - 1, 0) / 2];
  }

  const Reordering& reordering_;
  std::vector<IndexOrder> stages_;
  std::vector<IndexOrder> inner_;
};

// One training step's numbers, in the network's own order.
struct StepNumbers {
  double loss_sum = 0;
  std::vector<float> gradient;  // Of the mean loss.
  std::vector<float> running;   // After the step.
};

// What `model`, a ResNet-18, computes with these parameters and running
// statistics; with a seed other than 0, in an order of that seed's own.
absl::StatusOr<StepNumbers> ComputeInOrder(uint32_t seed, Model& model,
                                           std::span<const float> parameters,
                                           std::span<const float> running,
                                           const Samples& samples) {
  Reordering reordering(seed);
  const ChannelOrders orders(reordering);
  const IndexOrder places = orders.PlacesOf(NetworkSpecs());
  const IndexOrder running_places = orders.PlacesOf(NetworkBufferSpecs());
  Take(places, parameters, model.parameters().values());
  Take(running_places, running, model.buffers().floats());
  const Samples batch = reordering.Batch(samples);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Metrics metrics,
      model.ForwardBackward({batch.images, batch.labels},
                            1.0f / static_cast<float>(batch.size()),
                            [](int) {}));
  return StepNumbers{metrics.loss_sum,
                     PutBack(places, model.parameters().gradients()),
                     PutBack(running_places, model.buffers().floats())};
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

std::vector<double> Widened(std::span<const float> values) {
  return {values.begin(), values.end()};
}

NetworkStep ReferenceStep(std::span<const float> parameters,
                          std::span<const float> running,
                          const Samples& samples) {
  const std::vector<double> wide = Widened(parameters);
  const ResNetReference<double> pass(wide, Widened(running), samples,
                                     /*training=*/true);
  return {pass.loss_sum,
          pass.Gradient(1.0 / static_cast<double>(samples.size())),
          pass.running};
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
    step.loss_sum += pass.loss_sum;
    step.running.back() = pass.running;
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
  for (uint32_t seed = 0; seed <= kReferenceRuns; ++seed) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const StepNumbers numbers,
        ComputeInOrder(seed, model, parameters, running, samples));
    rounding.loss_sum = std::max(
        rounding.loss_sum, std::abs(numbers.loss_sum - reference.loss_sum));
    RaiseTo(
        rounding.gradients,
        TensorDistances(NetworkSpecs(), numbers.gradient, reference.gradient));
    RaiseTo(rounding.running,
            TensorDistances(NetworkBufferSpecs(), numbers.running,
                            reference.running));
  }
  return rounding;
}

double Clearance(std::span<const float> parameters,
                 std::span<const float> running, const Samples& samples) {
  const std::vector<double> wide = Widened(parameters);
  const ResNetReference<double> exact(wide, Widened(running), samples, true);
  const ResNetReference<float> rounded(parameters, running, samples, true);
  const auto& z = exact.relu_inputs;
  const auto& z_rounded = rounded.relu_inputs;
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

}  // namespace lockstep::conformance
