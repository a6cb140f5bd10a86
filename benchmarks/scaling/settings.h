// The settings of the scaling measurement: its flags as checked values, and the
// configurations and lengths of runs that follow from them.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_SETTINGS_H_
#define LOCKSTEP_BENCHMARKS_SCALING_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/ranks.h"
#include "models/networks/networks.h"
#include "models/train/device.h"

namespace lockstep::benchmarks {

// The batch that stays the same as ranks are added.
enum class ScalingMode {
  kStrong,  // The global batch.
  kWeak,    // The batch of each rank.
};

const char* Name(ScalingMode mode);

struct ScalingSettings {
  std::vector<ScalingMode> modes = {ScalingMode::kStrong, ScalingMode::kWeak};
  std::vector<int> world_sizes = {};  // Ascending, distinct, each at least 1.
  std::vector<RankKind> backends = {RankKind::kProcesses};  // Distinct.
  // Distinct.
  std::vector<DataType> types = {DataType::kFloat32};
  ComputeDevice device = ComputeDevice::kCpu;
  std::string model = "lenet";            // As CreateNetwork takes it.
  std::string dataset = "fashion_mnist";  // As LoadDataset takes it.
  int64_t train_samples = 0;              // Images in an epoch; 0: not known.
  std::string skipped = {};               // SkippedText of the images left out.
  NetworkInput input = {};                // The model's input.
  int64_t batch_size = 256;     // Global (strong), of one rank (weak).
  double learning_rate = 0.01;  // For a step of batch_size images.
  int rounds = 5;               // Each runs every configuration once.
  int steps = 0;                // Timed steps of a run; 0: from `seconds`.
  int warmup_steps = 5;         // Before the timed steps of each run.
  double seconds = 40;          // The target for all runs, if steps is 0.
};

// A combination of settings that a round runs once. Strong and weak scaling
// share one configuration at world size 1. All backends but kDdp share it too,
// because one rank sends nothing.
struct Configuration {
  int world_size = 1;
  int64_t global_batch = 0;
  RankKind ranks = RankKind::kProcesses;
  DataType type = DataType::kFloat32;  // The type of activations.
  ComputeDevice device = ComputeDevice::kCpu;

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// Returns the powers of two below `devices`, and `devices` itself: 1, 2, 4, 6
// for 6. No size is above kMaxWorldSize, the largest that a group may have.
// devices: the number of cores, or of GPUs.
std::vector<int> DefaultWorldSizes(int devices);

// Parse the lists of --world_sizes, --mode, --backend, --peers and --type, such
// as "1,2,4" or "strong,weak". The results have no repetitions. World sizes and
// modes are ascending. The list of --peers may be empty. all_gpus: the world
// size for "-1"; 0: "-1" is an error. Errors: kInvalidArgument, naming the
// flag.
absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text,
                                                 int all_gpus = 0);
absl::StatusOr<std::vector<ScalingMode>> ParseModes(absl::string_view text);
absl::StatusOr<std::vector<RankKind>> ParseBackends(absl::string_view text);
absl::StatusOr<std::vector<RankKind>> ParsePeers(absl::string_view text);
absl::StatusOr<std::vector<DataType>> ParseTypes(absl::string_view text);

// Returns kInvalidArgument, naming the flag, if the model does not exist, a
// number is out of range, or a global batch has fewer images than ranks.
absl::Status Validate(const ScalingSettings& settings);

// A backend and a type. A variant is a line of a chart, and a group of rows of
// a table.
struct Variant {
  RankKind ranks = RankKind::kProcesses;
  DataType type = DataType::kFloat32;
};

// Returns every backend with every type, grouped by backend.
std::vector<Variant> VariantsOf(const ScalingSettings& settings);

// Returns the words that distinguish the variant from the others: "threads",
// "bfloat16" or "threads, bfloat16". Empty if the settings have only one
// variant.
std::string NameOf(const ScalingSettings& settings, const Variant& variant);

// Returns the configuration of a variant. The global batch is batch_size
// (strong) or batch_size * world_size (weak). At world size 1 the backend is
// the first that is not kDdp, unless the variant's own backend is kDdp.
Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size, const Variant& variant);

// Returns the distinct configurations, sorted by world size, then by variant,
// then by batch.
std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings);

// The measured cost of runs.
struct RunCost {
  // Start, data and warm-up: all but the timed steps.
  double fixed_seconds = 0;
  double step_seconds = 0;
};

// Returns the number of rounds, in [1, rounds], for which `seconds` suffice
// with the fewest steps that StepsWithin returns. round: the cost of one run of
// every configuration.
int RoundsWithin(double seconds, int rounds, const RunCost& round);

// Returns the number of timed steps, in [10, 60], with which `rounds` runs of
// each configuration take about `seconds`. Fewer than 10 steps say nothing
// about tails. Instead of more than 60 steps, more rounds are the better use of
// time.
int StepsWithin(double seconds, int rounds, const RunCost& round);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_SETTINGS_H_
