// What a scaling measurement runs: settings, configurations, their length; what
// a rank does and measures, in which order configurations are run; and from
// rounds to throughput, speed-up, efficiency and lost time.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_flags.h"
#include "report/document.h"

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
  std::vector<RankKind> backends = {RankKind::kProcesses};  // Distinct.
  std::vector<DataType> types = {DataType::kFloat32};       // Likewise.
  std::string model = "lenet";                              // CreateNetwork's.
  std::string dataset = "fashion_mnist";                    // LoadDataset's.
  int64_t train_samples = 0;    // Of an epoch; 0: not known.
  std::string skipped = {};     // SkippedText of the images that are left out.
  NetworkInput input = {};      // What the model takes.
  int64_t batch_size = 256;     // Global in strong scaling, a rank's in weak.
  double learning_rate = 0.01;  // Of a step of batch_size images.
  int rounds = 5;               // Each runs every configuration once.
  int steps = 0;                // Timed, in one run; 0: as the time allows.
  int warmup_steps = 5;         // Before them, in every run.
  double seconds = 40;          // That all should take, if steps is 0.
};

// What is run. Strong and weak scaling at world size 1 are the same one, and so
// are all backends but kDdp: a rank alone sends nothing.
struct Configuration {
  int world_size = 1;
  int64_t global_batch = 0;
  RankKind ranks = RankKind::kProcesses;
  DataType type = DataType::kFloat32;  // Of activations.

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// One run of one configuration: what every rank of it is told.
struct RunSpec {
  Configuration configuration = {};
  std::string model = "lenet";
  double learning_rate = 0.01;  // Of this global batch.
  int steps = 0;
  int warmup_steps = 0;

  static auto Members(auto& self) {
    return std::tie(self.configuration, self.model, self.learning_rate,
                    self.steps, self.warmup_steps);
  }
  friend bool operator==(const RunSpec&, const RunSpec&) = default;
};

// Powers of two below `cores`, and `cores`: 1, 2, 4, 6 for six. None is above
// what a group may have, kMaxWorldSize.
std::vector<int> DefaultWorldSizes(int cores);

// The lists that the flags of the same name hold ("1,2,4"; "strong,weak"),
// without repetition, the first two ascending; that of --peers may be empty.
// Errors: kInvalidArgument, naming the flag.
absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text);
absl::StatusOr<std::vector<ScalingMode>> ParseModes(absl::string_view text);
absl::StatusOr<std::vector<RankKind>> ParseBackends(absl::string_view text);
absl::StatusOr<std::vector<RankKind>> ParsePeers(absl::string_view text);
absl::StatusOr<std::vector<DataType>> ParseTypes(absl::string_view text);

// kInvalidArgument, naming the flag, if there is no such model, a number is out
// of range, or a global batch has fewer images than ranks.
absl::Status Validate(const ScalingSettings& settings);

// A backend and a type: a line of a chart, and rows of a table.
struct Variant {
  RankKind ranks = RankKind::kProcesses;
  DataType type = DataType::kFloat32;
};

// Every backend with every type, by backend.
std::vector<Variant> VariantsOf(const ScalingSettings& settings);

// What tells it from the other variants: "threads", "bfloat16", "threads,
// bfloat16"; empty if there is no other.
std::string NameOf(const ScalingSettings& settings, const Variant& variant);

// The global batch is batch_size (strong) or batch_size * world_size (weak).
// One rank alone is of the first backend that is not kDdp, unless this is.
Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size, const Variant& variant);

// The distinct configurations, by world size, then by variant, then by batch.
std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings);

// What runs were seen to cost.
struct RunCost {
  double fixed_seconds = 0;  // Start, data, warm-up: whatever is not a step.
  double step_seconds = 0;
};

// The number of rounds, at most `rounds` and at least 1, that leave `seconds`
// enough for the fewest steps that StepsWithin gives. round: the cost of one
// run of every configuration.
int RoundsWithin(double seconds, int rounds, const RunCost& round);

// The number of timed steps with which `rounds` runs of each configuration
// take about `seconds`, within [10, 60]: fewer say nothing about tails, more
// teach nothing that more rounds would not teach better.
int StepsWithin(double seconds, int rounds, const RunCost& round);

// Where a step's time goes, in seconds (or any share of a step).
struct StepParts {
  double compute = 0;                // Forward, backward, update.
  double exposed_communication = 0;  // Waiting for sums after backward.
  double data_wait = 0;              // Gathering the batch.
  double rest = 0;                   // What none of those explains.

  double Sum() const {
    return compute + exposed_communication + data_wait + rest;
  }
  friend bool operator==(const StepParts&, const StepParts&) = default;
};

inline constexpr double StepParts::*kStepParts[] = {
    &StepParts::compute, &StepParts::exposed_communication,
    &StepParts::data_wait, &StepParts::rest};

// One timed step on one rank.
struct RankStep {
  double seconds = 0;
  StepParts parts = {};    // Without `rest`.
  double cpu_seconds = 0;  // That the rank's thread spent on a core.

  friend bool operator==(const RankStep&, const RankStep&) = default;
};

// What one rank hands to whoever started it.
struct RankResult {
  int rank = 0;
  int world_size = 0;                // The ranks it heard from.
  bool same_parameters = false;      // As rank 0's, bit for bit, at the end.
  double loss = 0;                   // Mean over the last global batch.
  std::string convolution = {};      // As of RoundSample.
  std::vector<RankStep> steps = {};  // In order.

  static auto Members(auto& self) {
    return std::tie(self.rank, self.world_size, self.same_parameters, self.loss,
                    self.convolution, self.steps);
  }
  friend bool operator==(const RankResult&, const RankResult&) = default;
};

// One run, all ranks together.
struct RoundSample {
  double images_per_second = 0;  // steps * global_batch / slowest rank's time.
  StepParts parts = {};  // A step's, mean over steps and ranks; they add up to
                         // global_batch / images_per_second.
  double imbalance = 0;  // Mean over steps of the slowest rank's
                         // compute / the ranks' mean - 1.
  // Mean over ranks: the share of the time in which a rank had work to do (all
  // but exposed communication) that its computing thread did not spend on a
  // core, because its communication thread, other ranks or other programs did.
  double kept_waiting = 0;
  std::vector<double> step_seconds = {};  // Of each step, on its slowest rank.
  double loss = 0;
  // "winograd" if a rank computes a convolution so, else "direct"; empty if it
  // is not known.
  std::string convolution = {};
};

// Refuses, with kDataLoss, a run that did not do what was asked: another world
// size or number of steps, a rank missing or twice, parameters that differ
// between ranks, a loss that is not finite. `results` in any order.
absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results);

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
  double batch_per_rank() const {
    return static_cast<double>(global_batch()) / world_size();
  }
};

// One variant in one mode.
struct ModeReport {
  ScalingMode mode = ScalingMode::kStrong;
  Variant variant = {};
  std::vector<ConfigurationReport> configurations = {};  // By world size.
  std::string limits = {};  // What limits scaling, in sentences.

  const ConfigurationReport& baseline() const { return configurations[0]; }
};

struct ScalingReport {
  ScalingSettings settings;  // `steps` as they were run.
  report::Origin origin = {};
  std::string pytorch = {};            // Of kDdp: name and version.
  std::vector<ModeReport> modes = {};  // By mode, then by variant.
  std::string ended = {};              // Why there are fewer rounds, if so.

  // Of an epoch at so many images/s; 0 if its size is not known.
  double EpochSeconds(double images_per_second) const {
    return static_cast<double>(settings.train_samples) / images_per_second;
  }
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

// A sentence about the world size that DescribeLimits is about: how many times
// the images/s of another backend in the same mode and type this has, by the
// median of the rounds, which took turns, and by their range. Empty for one
// rank alone.
std::string CompareBackends(const ModeReport& report, const ModeReport& other);

// Runs one configuration once.
using ScalingRunner =
    std::function<absl::StatusOr<RoundSample>(const RunSpec& spec)>;

// Takes text to show to whoever waits, line ends included.
using ScalingProgress = std::function<void(absl::string_view text)>;

// Runs every configuration once in each round (harness/measure.h). Before that,
// if settings.steps is 0, a short round that does not count finds out how many
// steps fit. The report's origin is left to the caller. settings: valid. cores:
// those that the ranks may use.
// Errors: the runner's first. If it is kCancelled (harness/interrupt.h) after a
// whole round, the report has the whole rounds, and `ended` says so.
absl::StatusOr<ScalingReport> MeasureScaling(const ScalingSettings& settings,
                                             int cores,
                                             const ScalingRunner& run,
                                             const ScalingProgress& progress);

// Trains for the warm-up and the timed steps, on one compute thread, and checks
// the outcome with the other ranks. A step's time runs from the end of one step
// to the end of the next, so whatever the trainer does in between counts, with
// one exception: the smaller batch that ends an epoch is trained on and left
// out. data: what becomes of the images. Errors: kInvalidArgument if the data
// set has less than one global batch; the network's; the trainer's; the
// communicator's. Ranks of kApart begin together, train on the same images,
// each as if it were the only one, and are compared like all others.
absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const DataFlags& data,
                                   const RunSpec& spec);

// How ranks are started.
struct RankSetting {
  std::vector<std::string> flags = {};  // This program's own.
  std::string mpi_folder = {};          // As of MpirunCommand.
  int cores = 1;                        // That the ranks may use.
  // Of kDdp.
  std::vector<std::string> pythons = {};  // To be tried in turn.
  NetworkInput input = {};
};

// The program whose processes are ranks: this one, or for MPI the one beside
// it, which alone needs MPI's library. Error: kInvalidArgument, naming
// --backend, if that was not built.
absl::StatusOr<std::string> ProgramOf(RankKind ranks);

// The command for the ranks of that run: a process for each, or one with a
// thread for each. Its flags are the setting's and, after them, --worker,
// --backend and --world_sizes: it has to end in ServeRun.
TeamCommand CommandOf(const RankSetting& setting, const RunSpec& spec,
                      const std::string& program, const std::string& listener);

// Starts those ranks, has them run `spec`, and combines what they answer. The
// caller must have one thread only. Errors: ProgramOf's; RankTeam's, which name
// the rank; CombineRanks's.
absl::StatusOr<RoundSample> RunOnce(const RankSetting& setting,
                                    const RunSpec& spec);

// Whether PyTorch can train the network; its name and version. Error:
// kInvalidArgument, naming --peers.
absl::StatusOr<std::string> CheckDdp(const RankSetting& setting,
                                     const Network& network);

// RunOnce's part for kDdp. Each rank's images are made up and stay the same:
// nothing is loaded. Of a step only its length is known: all is `rest`. Errors:
// the Python's, with the rank; CombineRanks's.
absl::StatusOr<RoundSample> RunDdpOnce(const RankSetting& setting,
                                       const RunSpec& spec);

// Is a rank, or all of them if they are threads, for the driver that listens at
// `listener`: loads the data, joins the group, runs what it is asked for.
// Errors: of the data, the group, the training, the connection.
absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const DataFlags& data);

// README.md lists the keys of its JSON.
report::Document ScalingDocument(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_
