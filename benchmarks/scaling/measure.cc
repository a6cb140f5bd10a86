#include "benchmarks/scaling/measure.h"

#include <algorithm>
#include <cstddef>
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
#include "benchmarks/harness/statistics.h"
#include "benchmarks/scaling/plan.h"
#include "report/format.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kProbeSteps = 3;

RunSpec SpecOf(const ScalingSettings& settings,
               const Configuration& configuration, int steps) {
  return {.configuration = configuration,
          .ranks = settings.ranks,
          .model = settings.model,
          .dataset = settings.dataset,
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
