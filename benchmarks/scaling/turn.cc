#include "benchmarks/scaling/turn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/cpu/algorithm.h"
#include "models/train/device.h"

namespace lockstep::benchmarks {
namespace {

absl::Status VoidRunError(const RunSpec& spec, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the run of ", spec.configuration.world_size,
                   " ranks on global batches of ",
                   spec.configuration.global_batch, " is void: ", what));
}

absl::Status CheckRank(const RunSpec& spec, const RankResult& result) {
  const int world_size = spec.configuration.world_size;
  if (result.world_size != world_size) {
    return VoidRunError(spec, absl::StrCat("rank ", result.rank, " was one of ",
                                           result.world_size));
  }
  if (result.rank < 0 || result.rank >= world_size) {
    return VoidRunError(spec, absl::StrCat("it has a rank ", result.rank));
  }
  if (static_cast<int>(result.steps.size()) != spec.steps) {
    return VoidRunError(
        spec, absl::StrCat("rank ", result.rank, " timed ", result.steps.size(),
                           " steps, not ", spec.steps));
  }
  if (!result.same_parameters) {
    return VoidRunError(spec, absl::StrCat("rank ", result.rank,
                                           " ended with other parameters than "
                                           "rank 0"));
  }
  if (!std::isfinite(result.loss)) {
    return VoidRunError(spec, absl::StrCat("the loss became ", result.loss));
  }
  const bool on_gpu = spec.configuration.device == ComputeDevice::kCuda;
  if (result.gpu.empty() == on_gpu) {
    return VoidRunError(spec,
                        absl::StrCat("rank ", result.rank, " computed on a ",
                                     on_gpu ? "CPU" : "GPU"));
  }
  return absl::OkStatus();
}

absl::Status CheckRun(const RunSpec& spec,
                      std::span<const RankResult> results) {
  std::vector<int> seen(spec.configuration.world_size, 0);
  for (const RankResult& result : results) {
    LOCKSTEP_RETURN_IF_ERROR(CheckRank(spec, result));
    ++seen[result.rank];
  }
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] == 1) continue;
    return VoidRunError(
        spec, absl::StrCat("rank ", rank, " reported ", seen[rank], " times"));
  }
  return absl::OkStatus();
}

// Sets what is known of the ranks' GPUs.
void CombineUsage(std::span<const RankResult> results, RoundSample& sample) {
  const auto ranks = static_cast<double>(results.size());
  bool energy_known = true;
  for (const RankResult& result : results) {
    sample.gpu_memory_bytes =
        std::max(sample.gpu_memory_bytes, result.gpu_memory_bytes);
    sample.gpu_joules += result.gpu_joules / ranks;
    sample.gpu_seconds += result.gpu_seconds / ranks;
    energy_known = energy_known && result.gpu_seconds > 0;
  }
  if (!energy_known) sample.gpu_joules = sample.gpu_seconds = 0;
}

double Imbalance(std::span<const RankResult> results, int step) {
  double slowest = 0, sum = 0;
  for (const RankResult& result : results) {
    slowest = std::max(slowest, result.steps[step].parts.compute);
    sum += result.steps[step].parts.compute;
  }
  const double mean = sum / static_cast<double>(results.size());
  return mean > 0 ? slowest / mean - 1 : 0;
}

// Returns one rank's share for RoundSample::kept_waiting. A rank that waits for
// a sum may keep a core busy; the result is then too small.
double ShareOffCore(const RankResult& result) {
  double working = 0, running = 0;
  for (const RankStep& step : result.steps) {
    working += step.seconds - step.parts.exposed_communication;
    running += step.cpu_seconds;
  }
  return working > 0 ? std::clamp(1 - running / working, 0.0, 1.0) : 0;
}

}  // namespace

absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRun(spec, results));
  RoundSample sample = {.loss = results[0].loss};
  sample.step_seconds.resize(spec.steps, 0);
  const double weight =
      1.0 / (static_cast<double>(results.size()) * spec.steps);
  double slowest_rank = 0;
  for (const RankResult& result : results) {
    if (sample.convolution != Name(ConvolutionAlgorithm::kWinograd)) {
      sample.convolution = result.convolution;
    }
    if (!result.gpu.empty() &&
        std::ranges::count(sample.gpus, result.gpu) == 0) {
      sample.gpus.push_back(result.gpu);
    }
    sample.shared_gpu = sample.shared_gpu || result.shares_gpu != 0;
    if (sample.hosts_sum.empty()) sample.hosts_sum = result.hosts_sum;
    double seconds = 0;
    for (int i = 0; i < spec.steps; ++i) {
      const RankStep& step = result.steps[i];
      seconds += step.seconds;
      sample.step_seconds[i] = std::max(sample.step_seconds[i], step.seconds);
      for (double StepParts::*const part : kStepParts) {
        sample.parts.*part += weight * step.parts.*part;
      }
    }
    slowest_rank = std::max(slowest_rank, seconds);
    sample.kept_waiting +=
        ShareOffCore(result) / static_cast<double>(results.size());
  }
  CombineUsage(results, sample);
  const double step = slowest_rank / spec.steps;
  sample.parts.rest = step - sample.parts.Sum();
  // Nothing is left but rounding.
  if (std::abs(sample.parts.rest) < 1e-9 * step) sample.parts.rest = 0;
  sample.images_per_second =
      static_cast<double>(spec.steps * spec.configuration.global_batch) /
      slowest_rank;
  for (int i = 0; i < spec.steps; ++i) {
    sample.imbalance += Imbalance(results, i) / spec.steps;
  }
  return sample;
}

}  // namespace lockstep::benchmarks
