// The order of the runs of the scaling measurement. The formulas derive
// throughput, speed-up, efficiency and lost time from the rounds.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_RESULTS_H_
#define LOCKSTEP_BENCHMARKS_SCALING_RESULTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/scaling/settings.h"
#include "benchmarks/scaling/turn.h"
#include "models/train/device.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// One configuration and the rounds that were measured.
struct MeasuredConfiguration {
  Configuration configuration = {};
  std::vector<RoundSample> rounds = {};  // At least one.
};

// One configuration in one mode, with P ranks and B images on each rank. The
// baseline is the smallest world size that was measured, with p ranks and b
// images on each. Usually p is 1.
//
// The median round is the one with the median images/s (of two in the middle,
// the slower one). The numbers that must add up all come from that one round.
struct ConfigurationReport {
  MeasuredConfiguration measured;
  // Ranks of the CPU: more ranks than cores. Ranks of GPUs: ranks share one.
  bool oversubscribed = false;

  double images_per_second = 0;  // Of the median round.
  double slowest_round = 0;      // In images/s.
  double fastest_round = 0;
  double speedup = 0;     // S(P) = images/s at P / images/s at p.
  double efficiency = 0;  // S(P) * p / P, in either mode.
  double step_p50 = 0;    // In seconds, over the steps of all rounds.
  double step_p99 = 0;
  int64_t step_count = 0;
  StepParts parts;       // In seconds a step, in the median round.
  double imbalance = 0;  // Of the median round; kept_waiting too.
  double kept_waiting = 0;
  int64_t gpu_memory_bytes = 0;  // The most in a round; 0: not known.
  // The mean power of a rank's GPU over all rounds; 0: not known, or measured
  // for less than a second.
  double gpu_watts = 0;

  // The share of a step that each part costs beyond the ideal. The ideal is
  // (B / b) times the part at p ranks: (part(P) - B / b * part(p)) / step(P).
  // A negative value is a gain. The four parts add up to 1 - efficiency.
  StepParts lost;

  int world_size() const { return measured.configuration.world_size; }
  bool on_gpus() const {
    return measured.configuration.device == ComputeDevice::kCuda;
  }
  int64_t global_batch() const { return measured.configuration.global_batch; }
  double step_seconds() const { return parts.Sum(); }
  double batch_per_rank() const {
    return static_cast<double>(global_batch()) / world_size();
  }
};

// One variant in one mode.
struct ModeReport {
  ScalingMode mode = ScalingMode::kStrong;
  Variant variant = {};
  std::vector<ConfigurationReport> configurations = {};  // By world size.
  std::string limits = {};  // The sentences of DescribeLimits.

  const ConfigurationReport& baseline() const { return configurations[0]; }
};

struct ScalingReport {
  ScalingSettings
      settings;  // `rounds` and `steps` are those that were planned.
  report::Origin origin = {};
  std::string pytorch = {};            // PyTorch's name and version, for kDdp.
  std::vector<ModeReport> modes = {};  // Sorted by mode, then by variant.
  std::string ended = {};              // Why rounds are missing, if any are.

  // Returns the seconds of an epoch at this rate; 0 if the epoch's size is not
  // known.
  double EpochSeconds(double images_per_second) const {
    return static_cast<double>(settings.train_samples) / images_per_second;
  }
};

// Derives all numbers of a mode. `limits` stays empty. measured: at least one,
// by ascending world size. cores: the number that the ranks may use.
ModeReport DeriveMode(ScalingMode mode,
                      std::vector<MeasuredConfiguration> measured, int cores);

// Returns a few sentences about the largest world size that has a core, or a
// GPU, for each rank. If no world size but the baseline has enough, the
// sentences are about the largest world size. The sentences say the efficiency,
// the cost of each part of a step, and the reasons to doubt the numbers: ranks
// that share cores or wait for one, imbalance, and rounds that differ.
// `report.limits` is not read. cores: the number that the ranks may use.
std::string DescribeLimits(const ModeReport& report, int cores);

// Returns a sentence that compares the images/s of `report` with those of
// `other`, another backend with the same mode and type. The world size is the
// one that DescribeLimits describes. The sentence says the median and the range
// of the ratios, round by round, because the backends take turns in each round.
// Empty if the world size is 1.
std::string CompareBackends(const ModeReport& report, const ModeReport& other);

// Runs one configuration once.
using ScalingRunner =
    std::function<absl::StatusOr<RoundSample>(const RunSpec& spec)>;

// Receives text that shows the progress to the user, line ends included.
using ScalingProgress = std::function<void(absl::string_view text)>;

// Runs every configuration once in each round (harness/rounds.h). If
// settings.steps is 0, a short round, which does not count, runs first to find
// out how many steps and rounds fit into the time. The caller sets the report's
// origin. settings: must be valid. cores: the number that the ranks may use.
// Errors: the runner's first error. If that error is kCancelled
// (harness/interrupt.h) and a whole round is complete, the report has the whole
// rounds, and `ended` says why rounds are missing.
absl::StatusOr<ScalingReport> MeasureScaling(const ScalingSettings& settings,
                                             int cores,
                                             const ScalingRunner& run,
                                             const ScalingProgress& progress);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_RESULTS_H_
