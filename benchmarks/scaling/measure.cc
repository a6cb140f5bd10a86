// Rounds of runs.
#include "benchmarks/scaling/measure.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/scaling/report.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kProbeSteps = 3;

// Runs whole rounds.
class RoundRunner {
 public:
  RoundRunner(const ScalingSettings& settings, const ScalingRunner& run,
              const ScalingProgress& progress)
      : settings_(settings),
        run_(run),
        progress_(progress),
        configurations_(DistinctConfigurations(settings)) {}

  const std::vector<Configuration>& configurations() const {
    return configurations_;
  }

  // Runs each configuration for `steps` timed steps; element i of the result
  // belongs to configuration i.
  absl::StatusOr<std::vector<RoundSample>> RunRound(absl::string_view name,
                                                    int steps) {
    std::vector<RoundSample> samples;
    costs_.clear();
    for (const Configuration& configuration : configurations_) {
      progress_(
          absl::StrFormat("%s: %d %s, %d images a step: ", std::string(name),
                          configuration.world_size,
                          configuration.world_size == 1 ? "rank" : "ranks",
                          configuration.global_batch));
      const absl::Time start = absl::Now();
      absl::StatusOr<RoundSample> sample = run_(SpecOf(configuration, steps));
      progress_(sample.ok() ? absl::StrFormat("%.0f images/s\n",
                                              sample->images_per_second)
                            : std::string("failed\n"));
      if (!sample.ok()) return sample.status();
      const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
      const double step = sample->parts.Sum();
      costs_.push_back({.fixed_seconds = std::max(0.0, seconds - steps * step),
                        .step_seconds = step});
      samples.push_back(*std::move(sample));
    }
    return samples;
  }

  // What each run of the last round cost.
  const std::vector<RunCost>& costs() const { return costs_; }

 private:
  RunSpec SpecOf(const Configuration& configuration, int steps) const {
    return {.configuration = configuration,
            .ranks = settings_.ranks,
            .model = settings_.model,
            .dataset = settings_.dataset,
            .data_dir = settings_.data_dir,
            .steps = steps,
            .warmup_steps = settings_.warmup_steps};
  }

  const ScalingSettings& settings_;
  const ScalingRunner& run_;
  const ScalingProgress& progress_;
  const std::vector<Configuration> configurations_;
  std::vector<RunCost> costs_;
};

// Sets the number of steps, unless it was asked for, and drops rounds for which
// the time is too short.
absl::Status ChooseLength(double seconds, RoundRunner& runner,
                          ScalingSettings& settings) {
  if (settings.steps > 0) return absl::OkStatus();
  const absl::Time start = absl::Now();
  LOCKSTEP_RETURN_IF_ERROR(
      runner.RunRound("probing (not counted)", kProbeSteps).status());
  const double left = seconds - absl::ToDoubleSeconds(absl::Now() - start);
  settings.rounds = RoundsWithin(left, settings.rounds, runner.costs());
  settings.steps = StepsWithin(left, settings.rounds, runner.costs());
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
  RoundRunner runner(settings, run, progress);
  ScalingReport report;
  report.settings = settings;
  LOCKSTEP_RETURN_IF_ERROR(
      ChooseLength(options.seconds, runner, report.settings));
  std::vector<MeasuredConfiguration> measured;
  for (const Configuration& configuration : runner.configurations()) {
    measured.push_back({.configuration = configuration, .rounds = {}});
  }
  for (int round = 1; round <= report.settings.rounds; ++round) {
    const std::string name =
        absl::StrCat("round ", round, " of ", report.settings.rounds);
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<RoundSample> samples,
                              runner.RunRound(name, report.settings.steps));
    for (size_t i = 0; i < samples.size(); ++i) {
      measured[i].rounds.push_back(std::move(samples[i]));
    }
  }
  for (const ScalingMode mode : settings.modes) {
    report.modes.push_back(
        DeriveMode(mode, Select(settings, mode, measured), options.cores));
    report.modes.back().limits =
        DescribeLimits(report.modes.back(), options.cores);
  }
  return report;
}

}  // namespace lockstep::benchmarks
