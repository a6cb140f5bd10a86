#include "conformance/network/network_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "conformance/network/network_run.h"
#include "conformance/training/reordered.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/reference/bounded.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {
namespace {

// Returns the norm of f(i) over each tensor.
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

// A pass of T over some of a step's samples, with the data that it borrows.
template <typename T>
struct ReferencePass {
  // order: the numbers of these samples, in their order.
  ReferencePass(const StepInput& in, IndexOrder order,
                const StoredActivations& stored)
      : parameters(in.parameters.begin(), in.parameters.end()),
        numbers(std::move(order)),
        samples(Pick(in)),
        pass(in.network ? *in.network : in.tested.network(), parameters,
             std::vector<T>(in.running.begin(), in.running.end()),
             {.images = samples.images,
              .labels = samples.labels,
              .samples = numbers},
             /*training=*/true, in.keep ? in.keep : MaskOf(in.step),
             /*world_size=*/1, /*sum_over_ranks=*/nullptr,
             std::is_same_v<T, float> ? in.tested.winograd_rule() : nullptr,
             stored) {}

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

// The passes over a step's batch: one for one rank, or one for each rank with
// local batch norm. Borrows the input.
template <typename T>
class StepPasses {
 public:
  explicit StepPasses(const StepInput& in, bool is_reversed = false,
                      const StoredActivations& stored = {})
      : in_(in), is_reversed_(is_reversed) {
    const std::vector<int64_t> whole = {in.samples.size()};
    int64_t begin = 0;
    for (const int64_t count :
         in.local_deal.empty() ? std::span(whole) : in.local_deal) {
      IndexOrder order = IdentityOf(count);
      for (int64_t& number : order) number += begin;
      begin += count;
      if (is_reversed) std::ranges::reverse(order);
      passes_.push_back(
          count == 0 ? nullptr
                     : std::make_unique<ReferencePass<T>>(in, order, stored));
    }
  }

  // The passes; null for an empty share.
  const std::vector<std::unique_ptr<ReferencePass<T>>>& passes() const {
    return passes_;
  }

  // Returns the losses by sample, in the batch's order.
  std::vector<T> Losses() const {
    std::vector<T> losses(in_.samples.size());
    for (const auto& own : passes_) {
      if (own == nullptr) continue;
      for (size_t i = 0; i < own->numbers.size(); ++i) {
        losses[own->numbers[i]] = own->pass.losses[i];
      }
    }
    return losses;
  }

  T LossSum() const {
    T sum = 0;
    for (const auto& own : passes_) sum += own ? own->pass.loss_sum : 0;
    return sum;
  }

  // Returns the gradient of the scaled losses' sum. `scales` are by sample, in
  // the batch's order.
  std::vector<T> Gradient(std::span<const double> scales,
                          const Consumer* left_out = nullptr) const {
    std::vector<T> sum(in_.parameters.size());
    for (size_t i = 0; i < passes_.size(); ++i) {
      const auto& own = passes_[is_reversed_ ? passes_.size() - 1 - i : i];
      if (own == nullptr) continue;
      std::vector<double> picked;
      for (const int64_t number : own->numbers) {
        picked.push_back(scales[number]);
      }
      const std::vector<T> part = own->pass.Gradient(picked, left_out);
      for (size_t j = 0; j < part.size(); ++j) sum[j] += part[j];
    }
    return sum;
  }

  std::vector<T> MeanGradient() const {
    return Gradient(MeanScales(in_.samples.size()));
  }

  // Returns the running statistics after each pass.
  std::vector<std::vector<T>> Running() const {
    std::vector<std::vector<T>> running;
    for (const auto& own : passes_) {
      running.push_back(
          own ? own->pass.running
              : std::vector<T>(in_.running.begin(), in_.running.end()));
    }
    return running;
  }

  static std::vector<double> MeanScales(int64_t samples) {
    return std::vector<double>(samples, 1.0 / static_cast<double>(samples));
  }

 private:
  const StepInput& in_;
  const bool is_reversed_;
  std::vector<std::unique_ptr<ReferencePass<T>>> passes_;
};

NetworkStep StepOf(const StepPasses<double>& passes) {
  return {passes.LossSum(), passes.MeanGradient(), passes.Running()};
}

// Raises the rounding to the distance of `rounded` from `exact`, whose step is
// `want`.
template <typename T>
void AddDistance(const StepInput& in, const StepPasses<T>& rounded,
                 const std::vector<double>& losses, const NetworkStep& want,
                 Rounding& rounding) {
  // float32 holds 16-bit numbers' sums well enough to compare them.
  const auto narrow = [](const std::vector<T>& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  rounding.loss_sum = std::max(rounding.loss_sum,
                               LossRounding(narrow(rounded.Losses()), losses));
  RaiseTo(rounding.gradients,
          TensorDistances(in.tested.specs(), narrow(rounded.MeanGradient()),
                          want.gradient));
  const std::vector<std::vector<T>> running = rounded.Running();
  for (size_t i = 0; i < running.size(); ++i) {
    RaiseTo(rounding.running[i],
            TensorDistances(in.tested.buffer_specs(), narrow(running[i]),
                            want.running[i]));
  }
}

// Returns how far a device's rounding is from `exact`, whose step is `want`.
Rounding RoundingOf(const StepInput& in, const StepPasses<double>& exact,
                    const NetworkStep& want) {
  const std::vector<double> losses = exact.Losses();
  Rounding rounding;
  rounding.running.resize(want.running.size());
  if (in.type != DataType::kFloat32) {
    // The replica's first loss scale (models/cuda/loss_scale.h).
    const double scale = in.type == DataType::kFloat16 ? 65536 : 1;
    for (const uint32_t seed : {0, 1, 2}) {
      AddDistance(in,
                  StepPasses<double>(
                      in, /*is_reversed=*/false,
                      {.type = in.type, .seed = seed, .loss_scale = scale}),
                  losses, want, rounding);
    }
    return rounding;
  }
  for (const bool is_reversed : {false, true}) {
    AddDistance(in, StepPasses<float>(in, is_reversed), losses, want, rounding);
  }
  return rounding;
}

}  // namespace

double LossRounding(std::span<const float> rounded,
                    std::span<const double> exact) {
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    sum += (rounded[i] - exact[i]) * (rounded[i] - exact[i]);
  }
  return std::sqrt(sum);
}

StepInput InputOf(const NetworkRun& run, const NetworkTrace& trace, int step,
                  BatchStatistics statistics) {
  StepInput in = {*run.tested, step, trace.first.parameters[step],
                  trace.ranks[0][step].running, trace.first.samples[step]};
  if (statistics == BatchStatistics::kLocal) in.local_deal = run.deal;
  in.type = run.type;
  return in;
}

NetworkStep ReferenceStep(const StepInput& in) {
  return StepOf(StepPasses<double>(in));
}

std::vector<double> MeanOfMeansGradient(const StepInput& in,
                                        std::span<const int64_t> deal) {
  std::vector<double> scales;
  for (const int64_t count : deal) {
    const double scale =
        1.0 / static_cast<double>(count) / static_cast<double>(deal.size());
    scales.insert(scales.end(), static_cast<size_t>(count), scale);
  }
  return StepPasses<double>(in).Gradient(scales);
}

std::vector<double> LeftOutGradient(const StepInput& in,
                                    const Consumer& left_out) {
  return StepPasses<double>(in).Gradient(
      StepPasses<double>::MeanScales(in.samples.size()), &left_out);
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
  const StepPasses<double> exact(in);
  return RoundingOf(in, exact, StepOf(exact));
}

const StepReference& ReferenceOf(const StepInput& in) {
  using Key = std::tuple<const TestedNetwork*, int, std::vector<float>,
                         std::vector<float>, std::vector<int64_t>, DataType>;
  static auto& cache = *new std::map<Key, StepReference>;
  Key key = {&in.tested,
             in.step,
             {in.parameters.begin(), in.parameters.end()},
             {in.running.begin(), in.running.end()},
             {in.local_deal.begin(), in.local_deal.end()},
             in.type};
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() > 16) cache.clear();
  const StepPasses<double> exact(in);
  const NetworkStep want = StepOf(exact);
  return cache[std::move(key)] = {want, RoundingOf(in, exact, want)};
}

double Clearance(const StepInput& in) {
  const StepPasses<double> exact(in);
  const StepPasses<float> rounded(in);
  double clearance = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < exact.passes().size(); ++i) {
    if (exact.passes()[i] == nullptr) continue;
    const auto& all_z = exact.passes()[i]->pass.switches;
    const auto& all_rounded = rounded.passes()[i]->pass.switches;
    for (size_t at = 0; at < all_z.size(); ++at) {
      double least = std::numeric_limits<double>::infinity();
      double error = 0;
      for (size_t k = 0; k < all_z[at].size(); ++k) {
        const double z = all_z[at][k];
        least = std::min(least, std::abs(z));
        error = std::max(error, std::abs(z - all_rounded[at][k]));
      }
      clearance = std::min(clearance, least / error);
    }
  }
  return clearance;
}

}  // namespace lockstep::conformance
