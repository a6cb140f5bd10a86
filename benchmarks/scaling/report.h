// From measured rounds to throughput, speed-up, efficiency and lost time.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/round.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// One configuration, as measured.
struct MeasuredConfiguration {
  Configuration configuration = {};
  std::vector<RoundSample> rounds = {};  // At least one.
};

// One configuration in one mode, with P ranks and a batch of B images a rank,
// against the smallest world size that was measured, the baseline, with p and
// b. Usually p is 1.
//
// "The median round" is the one with the median images/s (of two in the middle,
// the slower). Taking all that adds up from one round keeps it adding up.
struct ConfigurationReport {
  MeasuredConfiguration measured;
  bool oversubscribed = false;  // More ranks than cores.

  double images_per_second = 0;  // Of the median round.
  double slowest_round = 0;      // In images/s.
  double fastest_round = 0;
  double speedup = 0;     // S(P) = images/s at P / images/s at p.
  double efficiency = 0;  // S(P) * p / P, in either mode.
  double step_p50 = 0;    // Seconds, over the steps of all rounds.
  double step_p99 = 0;
  int64_t step_count = 0;
  StepParts parts;       // Seconds of a step in the median round.
  double imbalance = 0;  // Of the median round, as kept_waiting is.
  double kept_waiting = 0;

  // How much of a step each part costs beyond the ideal, which is B / b times
  // what it takes at p: (part(P) - B / b * part(p)) / step(P). Negative for
  // what got better. The four add up to 1 - efficiency.
  StepParts lost;

  int world_size() const { return measured.configuration.world_size; }
  int64_t global_batch() const { return measured.configuration.global_batch; }
  double step_seconds() const { return parts.Sum(); }
};

struct ModeReport {
  ScalingMode mode = ScalingMode::kStrong;
  std::vector<ConfigurationReport> configurations;  // By world size.
  std::string limits;  // What limits scaling, in sentences.

  const ConfigurationReport& baseline() const { return configurations[0]; }
};

struct ScalingReport {
  ScalingSettings settings;  // `steps` as they were run.
  report::Origin origin;
  std::vector<ModeReport> modes;
};

// Derives a mode's numbers, all but `limits`. measured: at least one, by
// ascending world size. cores: those that the ranks could use.
ModeReport DeriveMode(ScalingMode mode,
                      std::vector<MeasuredConfiguration> measured, int cores);

// A few sentences about the largest world size that has a core for each
// rank (or the largest, if none but the baseline has): its efficiency, what
// each part of a step takes from it, and what makes the numbers doubtful, if
// anything does: ranks that share cores or are kept from them, imbalance,
// rounds that differ. `report.limits` is not read. cores: those that the ranks
// could use.
std::string DescribeLimits(const ModeReport& report, int cores);

// benchmarks/README.md lists the keys of its JSON.
report::Document ScalingDocument(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_
