// What a scaling measurement runs: settings, configurations, their length.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_PLAN_H_
#define LOCKSTEP_BENCHMARKS_SCALING_PLAN_H_

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/harness/ranks.h"

namespace lockstep::benchmarks {

// What stays fixed as ranks are added.
enum class ScalingMode {
  kStrong,  // The global batch.
  kWeak,    // The batch of each rank.
};

const char* Name(ScalingMode mode);

struct ScalingSettings {
  std::vector<ScalingMode> modes = {ScalingMode::kStrong, ScalingMode::kWeak};
  std::vector<int> world_sizes = {};  // Ascending, distinct, each at least 1.
  RankKind ranks = RankKind::kProcesses;
  std::string model = "lenet";
  std::string dataset = "fashion_mnist";
  std::string data_dir = {};
  int64_t batch_size = 256;  // Global in strong scaling, a rank's in weak.
  int rounds = 5;            // Each runs every configuration once.
  int steps = 0;             // Timed, in one run; 0: as the time allows.
  int warmup_steps = 5;      // Before them, in every run.
};

// What is run. Strong and weak scaling at world size 1 are the same one.
struct Configuration {
  int world_size = 1;
  int64_t global_batch = 0;

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// One run of one configuration: what every rank of it is told.
struct RunSpec {
  Configuration configuration = {};
  RankKind ranks = RankKind::kProcesses;
  std::string data_dir = {};
  int steps = 0;
  int warmup_steps = 0;

  static auto Members(auto& self) {
    return std::tie(self.configuration, self.ranks, self.data_dir, self.steps,
                    self.warmup_steps);
  }
  friend bool operator==(const RunSpec&, const RunSpec&) = default;
};

// Powers of two below `cores`, and `cores`: 1, 2, 4, 6 for six. None is above
// what a group may have, kMaxWorldSize.
std::vector<int> DefaultWorldSizes(int cores);

// The lists that the flags of the same name hold ("1,2,4"; "strong,weak"),
// ascending and without repetition. Errors: kInvalidArgument, naming the flag.
absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text);
absl::StatusOr<std::vector<ScalingMode>> ParseModes(absl::string_view text);
absl::StatusOr<RankKind> ParseRankKind(absl::string_view text);

// kInvalidArgument, naming the flag, if a number is out of range or a global
// batch has fewer images than ranks.
absl::Status Validate(const ScalingSettings& settings);

// The global batch is batch_size (strong) or batch_size * world_size (weak).
Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size);

// The distinct configurations, by world size, then by batch.
std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings);

// What one run of a configuration was seen to cost.
struct RunCost {
  double fixed_seconds = 0;  // Start, data, warm-up: whatever is not a step.
  double step_seconds = 0;
};

// The number of rounds, at most `rounds` and at least 1, that leave `seconds`
// enough for the fewest steps that StepsWithin gives.
int RoundsWithin(double seconds, int rounds, std::span<const RunCost> costs);

// The number of timed steps with which `rounds` runs of each configuration
// take about `seconds`, within [10, 60]: fewer say nothing about tails, more
// teach nothing that more rounds would not teach better.
int StepsWithin(double seconds, int rounds, std::span<const RunCost> costs);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_PLAN_H_
