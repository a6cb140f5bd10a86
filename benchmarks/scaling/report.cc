#include "benchmarks/scaling/report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/scaling/plan.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// From ranks to a round.
namespace {

absl::Status Refusal(const RunSpec& spec, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the run of ", spec.configuration.world_size,
                   " ranks on global batches of ",
                   spec.configuration.global_batch, " is void: ", what));
}

absl::Status CheckRank(const RunSpec& spec, const RankResult& result) {
  const int world_size = spec.configuration.world_size;
  if (result.world_size != world_size) {
    return Refusal(spec, absl::StrCat("rank ", result.rank, " was one of ",
                                      result.world_size));
  }
  if (result.rank < 0 || result.rank >= world_size) {
    return Refusal(spec, absl::StrCat("it has a rank ", result.rank));
  }
  if (static_cast<int>(result.steps.size()) != spec.steps) {
    return Refusal(
        spec, absl::StrCat("rank ", result.rank, " timed ", result.steps.size(),
                           " steps, not ", spec.steps));
  }
  if (!result.same_parameters) {
    return Refusal(spec, absl::StrCat("rank ", result.rank,
                                      " ended with other parameters than "
                                      "rank 0"));
  }
  if (!std::isfinite(result.loss)) {
    return Refusal(spec, absl::StrCat("the loss became ", result.loss));
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
    return Refusal(
        spec, absl::StrCat("rank ", rank, " reported ", seen[rank], " times"));
  }
  return absl::OkStatus();
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

// Waiting for a sum may or may not keep a core busy; if it does, this comes out
// smaller than it is.
double KeptWaiting(const RankResult& result) {
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
  RoundSample sample;
  sample.loss = results[0].loss;
  sample.step_seconds.resize(spec.steps, 0);
  const double weight =
      1.0 / (static_cast<double>(results.size()) * spec.steps);
  double slowest_rank = 0;
  for (const RankResult& result : results) {
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
        KeptWaiting(result) / static_cast<double>(results.size());
  }
  sample.parts.rest = slowest_rank / spec.steps - sample.parts.Sum();
  sample.images_per_second =
      static_cast<double>(spec.steps * spec.configuration.global_batch) /
      slowest_rank;
  for (int i = 0; i < spec.steps; ++i) {
    sample.imbalance += Imbalance(results, i) / spec.steps;
  }
  return sample;
}

// From rounds to a report.
namespace {

ConfigurationReport Summarise(MeasuredConfiguration measured, int cores) {
  ConfigurationReport report;
  std::vector<double> throughputs, steps;
  for (const RoundSample& round : measured.rounds) {
    throughputs.push_back(round.images_per_second);
    steps.insert(steps.end(), round.step_seconds.begin(),
                 round.step_seconds.end());
  }
  const RoundSample& median = measured.rounds[MedianIndex(throughputs)];
  report.images_per_second = median.images_per_second;
  report.parts = median.parts;
  report.imbalance = median.imbalance;
  report.kept_waiting = median.kept_waiting;
  report.slowest_round = *std::ranges::min_element(throughputs);
  report.fastest_round = *std::ranges::max_element(throughputs);
  report.step_p50 = Percentile(steps, 50);
  report.step_p99 = Percentile(steps, 99);
  report.step_count = static_cast<int64_t>(steps.size());
  report.oversubscribed = measured.configuration.world_size > cores;
  report.measured = std::move(measured);
  return report;
}

double BatchPerRank(const ConfigurationReport& report) {
  return static_cast<double>(report.global_batch()) / report.world_size();
}

void Compare(const ConfigurationReport& baseline, ConfigurationReport& report) {
  report.speedup = report.images_per_second / baseline.images_per_second;
  report.efficiency =
      report.speedup * baseline.world_size() / report.world_size();

  const double work = BatchPerRank(report) / BatchPerRank(baseline);
  const double step = report.step_seconds();
  for (double StepParts::*const part : kStepParts) {
    report.lost.*part =
        (report.parts.*part - work * baseline.parts.*part) / step;
  }
}

}  // namespace

ModeReport DeriveMode(ScalingMode mode,
                      std::vector<MeasuredConfiguration> measured, int cores) {
  ModeReport report;
  report.mode = mode;
  for (MeasuredConfiguration& configuration : measured) {
    report.configurations.push_back(Summarise(std::move(configuration), cores));
  }
  for (ConfigurationReport& configuration : report.configurations) {
    Compare(report.baseline(), configuration);
  }
  return report;
}

// The order of runs.
namespace {

constexpr int kProbeSteps = 3;

RunSpec SpecOf(const ScalingSettings& settings,
               const Configuration& configuration, int steps) {
  return {.configuration = configuration,
          .ranks = settings.ranks,
          .data_dir = settings.data_dir,
          .steps = steps,
          .warmup_steps = settings.warmup_steps};
}

// One run, which is named and shown as it goes.
absl::StatusOr<RoundSample> RunAndShow(absl::string_view name,
                                       const RunSpec& spec,
                                       const ScalingRunner& run,
                                       const ScalingProgress& progress) {
  const Configuration& configuration = spec.configuration;
  progress(absl::StrCat(name, ": ",
                        report::Counted(configuration.world_size, "rank"), ", ",
                        configuration.global_batch, " images a step: "));
  absl::StatusOr<RoundSample> sample = run(spec);
  progress(sample.ok()
               ? absl::StrFormat("%.0f images/s\n", sample->images_per_second)
               : std::string("failed\n"));
  return sample;
}

// Sets the number of steps, unless it was asked for, and drops rounds for which
// the time is too short.
absl::Status ChooseLength(double seconds, const ScalingRunner& run,
                          const ScalingProgress& progress,
                          ScalingSettings& settings) {
  if (settings.steps > 0) return absl::OkStatus();
  const double start = SteadySeconds();
  std::vector<RunCost> costs;
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    const double begin = SteadySeconds();
    LOCKSTEP_ASSIGN_OR_RETURN(
        const RoundSample sample,
        RunAndShow("probing (not counted)",
                   SpecOf(settings, configuration, kProbeSteps), run,
                   progress));
    const double step = sample.parts.Sum();
    const double whole = SteadySeconds() - begin;
    costs.push_back({.fixed_seconds = std::max(0.0, whole - kProbeSteps * step),
                     .step_seconds = step});
  }
  const double left = seconds - (SteadySeconds() - start);
  settings.rounds = RoundsWithin(left, settings.rounds, costs);
  settings.steps = StepsWithin(left, settings.rounds, costs);
  return absl::OkStatus();
}

// What `mode` needs of what was measured.
std::vector<MeasuredConfiguration> Select(
    const ScalingSettings& settings, ScalingMode mode,
    const std::vector<MeasuredConfiguration>& measured) {
  std::vector<MeasuredConfiguration> selected;
  for (const int world_size : settings.world_sizes) {
    const Configuration wanted = ConfigurationOf(settings, mode, world_size);
    selected.push_back(*std::ranges::find(
        measured, wanted, &MeasuredConfiguration::configuration));
  }
  return selected;
}

}  // namespace

absl::StatusOr<ScalingReport> MeasureScaling(const ScalingSettings& settings,
                                             const MeasureOptions& options,
                                             const ScalingRunner& run,
                                             const ScalingProgress& progress) {
  ScalingReport report;
  report.settings = settings;
  LOCKSTEP_RETURN_IF_ERROR(
      ChooseLength(options.seconds, run, progress, report.settings));
  std::vector<MeasuredConfiguration> measured;
  for (const Configuration& configuration : DistinctConfigurations(settings)) {
    measured.push_back({.configuration = configuration, .rounds = {}});
  }
  const int rounds = report.settings.rounds;
  const auto take_turn = [&](int round, size_t next) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        RoundSample sample,
        RunAndShow(absl::StrCat("round ", round + 1, " of ", rounds),
                   SpecOf(settings, measured[next].configuration,
                          report.settings.steps),
                   run, progress));
    measured[next].rounds.push_back(std::move(sample));
    return absl::OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(MeasureRounds({.rounds = rounds}, measured.size(),
                                         SteadySeconds, take_turn)
                               .status());
  for (const ScalingMode mode : settings.modes) {
    report.modes.push_back(
        DeriveMode(mode, Select(settings, mode, measured), options.cores));
    report.modes.back().limits =
        DescribeLimits(report.modes.back(), options.cores);
  }
  return report;
}

}  // namespace lockstep::benchmarks
