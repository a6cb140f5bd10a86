// The scaling measurement: its settings and configurations, the order and
// length of the runs, and the measurements of one rank. The formulas derive
// throughput, speed-up, efficiency and lost time from the rounds.
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

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// One run of one configuration, as the driver sends it to every rank.
struct RunSpec {
  Configuration configuration = {};
  std::string model = "lenet";
  double learning_rate = 0.01;  // For this global batch.
  int steps = 0;
  int warmup_steps = 0;

  static auto Members(auto& self) {
    return std::tie(self.configuration, self.model, self.learning_rate,
                    self.steps, self.warmup_steps);
  }
  friend bool operator==(const RunSpec&, const RunSpec&) = default;
};

// Returns the powers of two below `cores`, and `cores` itself: 1, 2, 4, 6 for
// 6. No size is above kMaxWorldSize, the largest that a group may have.
std::vector<int> DefaultWorldSizes(int cores);

// Parse the lists of --world_sizes, --mode, --backend, --peers and --type, such
// as "1,2,4" or "strong,weak". The results have no repetitions. World sizes and
// modes are ascending. The list of --peers may be empty. Errors:
// kInvalidArgument, naming the flag.
absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text);
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

// The parts of a step's time, in seconds (or as shares of a step).
struct StepParts {
  double compute = 0;                // Forward, backward, update.
  double exposed_communication = 0;  // Waiting for sums after backward.
  double data_wait = 0;              // Gathering the batch.
  double rest = 0;                   // Not explained by the others.

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
  StepParts parts = {};    // `rest` is 0.
  double cpu_seconds = 0;  // The time of the rank's thread on a core.

  friend bool operator==(const RankStep&, const RankStep&) = default;
};

// The outcome of a run on one rank, which the rank returns to the driver.
struct RankResult {
  int rank = 0;
  int world_size = 0;                // The ranks that it received from.
  bool same_parameters = false;      // Equal to rank 0's bits at the end.
  double loss = 0;                   // Mean over the last global batch.
  std::string convolution = {};      // As in RoundSample.
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
  // The mean over steps of: the slowest rank's compute / the ranks' mean - 1.
  double imbalance = 0;
  // The mean over ranks of a share of time. The whole is the time in which a
  // rank had work to do: a step without its exposed communication. The share is
  // the part that the rank's computing thread did not spend on a core. The
  // rank's communication thread, other ranks or other programs used the core
  // instead.
  double kept_waiting = 0;
  std::vector<double> step_seconds = {};  // Each step's, on its slowest rank.
  double loss = 0;
  // "winograd" if a rank computes a convolution by Winograd, else "direct".
  // Empty if the algorithm is not known.
  std::string convolution = {};
};

// Combines the results of all ranks, in any order, into one round. Returns
// kDataLoss for a run that differs from `spec` in its world size or number of
// steps, or that lacks a rank or has it twice. Returns kDataLoss too if the
// parameters differ between ranks, or if the loss is not finite.
absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results);

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
  bool oversubscribed = false;  // More ranks than cores.

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

  // The share of a step that each part costs beyond the ideal. The ideal is
  // (B / b) times the part at p ranks: (part(P) - B / b * part(p)) / step(P).
  // A negative value is a gain. The four parts add up to 1 - efficiency.
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

// Returns a few sentences about the largest world size that has a core for each
// rank. If no world size but the baseline has enough cores, the sentences are
// about the largest world size. The sentences say the efficiency, the cost of
// each part of a step, and the reasons to doubt the numbers: ranks that share
// cores or wait for one, imbalance, and rounds that differ. `report.limits` is
// not read. cores: the number that the ranks may use.
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

// Trains for the warm-up and the timed steps on one compute thread, then checks
// the outcome with the other ranks. A step's time runs from the end of one step
// to the end of the next, so it includes everything that the trainer does in
// between. The smaller batch at the end of an epoch is trained on, but it is
// neither timed nor counted. Ranks of kApart begin together and train on the
// same images, each in a group of one rank. Their outcomes are checked as for
// other backends. data: how the images are transformed and loaded. Errors:
// kInvalidArgument if the data set has less than one global batch; the
// network's; the trainer's; the communicator's.
absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const DataFlags& data,
                                   const RunSpec& spec);

// The settings with which the driver starts ranks.
struct RankLaunchSettings {
  std::vector<std::string> flags = {};  // The flags of this program.
  std::string mpi_folder = {};          // The folder of MpirunCommand.
  int cores = 1;                        // The number that the ranks may use.
  // The Pythons that kDdp tries in turn, and the network's input for kDdp.
  std::vector<std::string> pythons = {};
  NetworkInput input = {};
};

// Returns the path of the program whose processes are ranks. For MPI that is
// scaling_mpi, in the same folder, because only scaling_mpi needs MPI's
// library. Otherwise it is this program. Error: kInvalidArgument, naming
// --backend, if scaling_mpi was not built.
absl::StatusOr<std::string> ProgramOf(RankKind ranks);

// Returns the command that starts the ranks of a run: one process for each
// rank, one process with a thread for each rank, or mpirun. The command's flags
// are those of `setting`, then --worker, --backend and --world_sizes. The
// program must call ServeRun.
TeamCommand CommandOf(const RankLaunchSettings& setting, const RunSpec& spec,
                      const std::string& program, const std::string& listener);

// Starts the ranks, has them run `spec`, and combines their results. The caller
// must have only one thread. Errors: ProgramOf's; RankTeam's, which name the
// rank; CombineRanks's; for kDdp, RunDdpOnce's.
absl::StatusOr<RoundSample> RunOnce(const RankLaunchSettings& setting,
                                    const RunSpec& spec);

// Checks that PyTorch can train the network, and returns PyTorch's name and
// version. Error: kInvalidArgument, naming --peers.
absl::StatusOr<std::string> CheckDdp(const RankLaunchSettings& setting,
                                     const Network& network);

// Does RunOnce's work for kDdp. The images of each rank are made up and stay
// the same, so nothing is loaded. Only the length of each step is known: `rest`
// is the whole step. Errors: the Python's, with the rank; CombineRanks's.
absl::StatusOr<RoundSample> RunDdpOnce(const RankLaunchSettings& setting,
                                       const RunSpec& spec);

// Serves as one rank of a run, or as all ranks if the ranks are threads: loads
// the data, joins the group, and runs each RunSpec that the driver at
// `listener` sends. Errors: those of the data, the group, the training and the
// connection.
absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const DataFlags& data);

// Returns the report as a document. README.md lists the keys of its JSON.
report::Document ScalingDocument(const ScalingReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_REPORT_H_
