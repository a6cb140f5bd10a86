#include "benchmarks/scaling/report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "benchmarks/harness/statistics.h"

namespace lockstep::benchmarks {
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
  const StepParts &at = report.parts, &from = baseline.parts;
  report.lost = {
      .compute = (at.compute - work * from.compute) / step,
      .exposed_communication =
          (at.exposed_communication - work * from.exposed_communication) / step,
      .data_wait = (at.data_wait - work * from.data_wait) / step,
      .rest = (at.rest - work * from.rest) / step};
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

}  // namespace lockstep::benchmarks
