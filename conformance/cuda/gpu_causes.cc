#include "conformance/cuda/gpu_causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "conformance/cuda/gpu_run.h"
#include "conformance/network/network_causes.h"
#include "conformance/network/network_rounding.h"
#include "conformance/network/network_run.h"
#include "conformance/training/trace.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {
namespace {

// Looks for the cause of one step's gradients.
class GradientCauses {
 public:
  GradientCauses(const GpuRun& run, const GpuTrace& trace, int step)
      : run_(run),
        trace_(trace),
        step_(step),
        got_(trace.network.first.gradients[step].begin(),
             trace.network.first.gradients[step].end()),
        want_(GradientOf(Right(), MaskOf(step))) {}

  std::string First() {
    for (std::string (GradientCauses::*const look)() const :
         {&GradientCauses::OfEarlyRead, &GradientCauses::OfOtherBatch,
          &GradientCauses::OfOwnStart, &GradientCauses::OfOwnSeeds}) {
      if (std::string cause = (this->*look)(); !cause.empty()) return cause;
    }
    return "";
  }

 private:
  // The samples and the parameters from which a rank computes its gradients.
  struct Source {
    int batch;  // The step whose samples the rank computes.
    std::span<const float> parameters;
  };

  std::vector<Source> Right() const {
    return std::vector<Source>(run_.deal.size(),
                               {step_, trace_.network.first.parameters[step_]});
  }

  // Returns the sum of the gradients that the ranks compute from these sources.
  std::vector<double> GradientOf(const std::vector<Source>& sources,
                                 const KeepMask& keep) const;
  // Whether the run's gradients are much nearer to these than these are to the
  // right ones.
  bool Fits(const std::vector<double>& other) const {
    const double moved = Distance(want_, other);
    return moved > 0 && Distance(got_, other) <= kFit * moved;
  }
  // Calls source(rank) for every rank, then for each rank alone. Returns "every
  // rank", "rank 1" or so if the gradients of these sources fit, otherwise "".
  template <typename SourceOf>
  std::string RanksThatFit(const SourceOf& source) const;

  std::string OfEarlyRead() const;
  // Returns those of the parameters from `first` to before `end` whose
  // gradients a sum read, on the rank, as they were before the step.
  std::vector<std::string> EarlyNames(size_t rank, int first, int end) const;
  std::string OfOtherBatch() const;
  std::string OfOwnStart() const;
  std::string OfOwnSeeds() const;

  const GpuRun& run_;
  const GpuTrace& trace_;
  const int step_;
  const std::vector<double> got_, want_;
};

std::vector<double> GradientCauses::GradientOf(
    const std::vector<Source>& sources, const KeepMask& keep) const {
  const int64_t pixels = run_.tested->network().input_shape().size();
  std::vector<double> sum(got_.size());
  int64_t begin = 0;
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    const int64_t count = run_.deal[rank];
    const int64_t first = std::exchange(begin, begin + count);
    if (count == 0) continue;
    const Samples batch = run_.tested->StepBatch(sources[rank].batch);
    const auto image = batch.images.begin() + first * pixels;
    const auto label = batch.labels.begin() + first;
    const Samples own = {{image, image + count * pixels},
                         {label, label + count}};
    StepInput in = {*run_.tested, step_, sources[rank].parameters,
                    trace_.network.ranks[0][step_].running, own};
    in.keep = [&keep, first](int layer, double rate, int64_t sample,
                             int64_t element) {
      return keep(layer, rate, first + sample, element);
    };
    const double share =
        static_cast<double>(count) / static_cast<double>(kNetworkBatchSize);
    const std::vector<double> part = ReferenceStep(in).gradient;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += share * part[i];
  }
  return sum;
}

template <typename SourceOf>
std::string GradientCauses::RanksThatFit(const SourceOf& source) const {
  const auto ranks = static_cast<int>(run_.deal.size());
  std::vector<Source> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(source(rank));
  if (Fits(GradientOf(all, MaskOf(step_)))) return "every rank";
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Source> sources = Right();
    sources[rank] = all[rank];
    if (Fits(GradientOf(sources, MaskOf(step_)))) {
      return absl::StrCat("rank ", rank);
    }
  }
  return "";
}

std::string GradientCauses::OfEarlyRead() const {
  for (size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
    if (run_.deal[rank] == 0) continue;
    for (const auto& [first, end] : trace_.ranks[rank].buckets) {
      const std::vector<std::string> early = EarlyNames(rank, first, end);
      if (early.empty()) continue;
      const std::string read = absl::StrFormat(
          "; a sum reads rank %d's gradients of %s as they were before the "
          "step",
          rank, absl::StrJoin(early, ", "));
      if (early.size() == static_cast<size_t>(end - first)) {
        return read + ": does the reduction not wait for the backward pass?";
      }
      return read +
             ", and the others of its bucket as the step computed them: is a "
             "bucket reduced before its last gradient?";
    }
  }
  return "";
}

std::vector<std::string> GradientCauses::EarlyNames(size_t rank, int first,
                                                    int end) const {
  const GpuRankTrace& own = trace_.ranks[rank];
  const std::vector<float> zeros(own.read[step_].size());
  const std::vector<float>& before =
      step_ == 0 ? zeros : own.gradients[step_ - 1];
  std::vector<std::string> names;
  for (int i = first; i < end; ++i) {
    const ParameterSpec& spec = run_.tested->specs()[i];
    if (std::ranges::equal(spec.Part(std::span(own.read[step_])),
                           spec.Part(std::span(before)))) {
      names.push_back(spec.name);
    }
  }
  return names;
}

std::string GradientCauses::OfOtherBatch() const {
  const int first = std::max(0, step_ - kBuffers);
  const int last = std::min(run_.steps - 1, step_ + kBuffers);
  for (int batch = first; batch <= last; ++batch) {
    if (batch == step_) continue;
    const std::string ranks = RanksThatFit([&](int) {
      return Source{batch, trace_.network.first.parameters[step_]};
    });
    if (ranks.empty()) continue;
    const bool is_graph = run_.graphs && step_ > kFirstGraph;
    return absl::StrCat(
        "; ", ranks, " computes the samples of step ", batch,
        batch > step_
            ? ": was pinned memory filled again before its copy to the GPU?"
        : is_graph ? ": was the graph captured with another batch's memory?"
                   : ": was its memory not filled?");
  }
  return "";
}

std::string GradientCauses::OfOwnStart() const {
  std::vector<Parameters> starts;
  for (size_t rank = 0; rank < run_.deal.size(); ++rank) {
    starts.push_back(CreateParameters(run_.tested->network()));
    Buffers buffers = CreateBuffers(run_.tested->network());
    FillNetworkStart(*run_.tested, static_cast<int>(rank), starts.back(),
                     buffers);
  }
  const std::string ranks = RanksThatFit([&](int rank) {
    return Source{step_, std::as_const(starts[rank]).values()};
  });
  if (ranks.empty()) return "";
  return absl::StrCat("; ", ranks,
                      " computes with the weights of its start, before rank "
                      "0's replaced them: is the 16-bit copy stale?");
}

std::string GradientCauses::OfOwnSeeds() const {
  const auto rank_of = [this](int64_t sample) {
    size_t rank = 0;
    while (sample >= run_.deal[rank]) sample -= run_.deal[rank++];
    return rank;
  };
  std::vector<KeepMask> masks;
  for (size_t rank = 0; rank < run_.deal.size(); ++rank) {
    masks.push_back(MasksOf(kMaskSeed + rank, step_));
  }
  const auto keep = [&](int layer, double rate, int64_t sample,
                        int64_t element) {
    return masks[rank_of(sample)](layer, rate, sample, element);
  };
  if (!Fits(GradientOf(Right(), keep))) return "";
  return "; the masks are those of a seed plus the rank: drawn per rank, not "
         "per sample?";
}

// Returns whether the rank's update applied the gradients before their sum.
// scale: the factor of the gradients that the sum read.
bool AppliesOwn(const GpuRankTrace& rank, int step, float scale) {
  const std::vector<float>& before = rank.parameters[step];
  const std::vector<float>& after = rank.parameters[step + 1];
  const std::vector<float>& own = rank.read[step];
  const std::vector<float>& sum = rank.gradients[step];
  double error = 0, difference = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    const double applied =
        (double{before[i]} - after[i]) / double{kNetworkLearningRate};
    const double unscaled = own[i] / scale;
    error += std::pow(applied - unscaled, 2);
    difference += std::pow(sum[i] - unscaled, 2);
  }
  return error <= kFit * kFit * difference;
}

std::string CauseOfUpdate(const GpuRun& run, const GpuTrace& trace, int rank,
                          int step) {
  const GpuRankTrace& own = trace.ranks[rank];
  const bool scales = run.precision == ConvolutionPrecision::kFloat16;
  const float scale = scales ? own.scales[step].scale : 1;
  if (run.deal[rank] > 0 && !own.read.empty() && AppliesOwn(own, step, scale)) {
    return absl::StrFormat(
        "; rank %d applies its own gradients, not their sum over the ranks: "
        "does the update not wait for the reduction?",
        rank);
  }
  const std::span<const float> before = own.parameters[step];
  const std::span<const float> after = own.parameters[step + 1];
  if (IsBFloat16(after)) {
    return "; all parameters are bfloat16's: no float32 master weights?";
  }
  for (const ParameterSpec& spec : run.tested->specs()) {
    if (!std::ranges::equal(spec.Part(before), spec.Part(after))) continue;
    const std::span<const float> sum = own.gradients[step];
    if (std::ranges::count(spec.Part(sum), 0.0f) == spec.size) continue;
    return absl::StrCat(
        "; ", spec.name, " keeps its values: is its ",
        run.network().type == DataType::kFloat32 ? "value" : "master weight",
        " not updated?");
  }
  return "";
}

}  // namespace

std::string CauseOfGradients(const GpuRun& run, const GpuTrace& trace,
                             int steps) {
  for (int step = 0; step < steps; ++step) {
    std::string cause = GradientCauses(run, trace, step).First();
    if (!cause.empty()) return cause;
  }
  return "";
}

std::string CauseOfUpdates(const GpuRun& run, const GpuTrace& trace,
                           int steps) {
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < run.world_size(); ++rank) {
      std::string cause = CauseOfUpdate(run, trace, rank, step);
      if (!cause.empty()) return cause;
    }
  }
  return "";
}

}  // namespace lockstep::conformance
