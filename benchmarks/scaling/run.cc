// The configurations and lengths of runs, the commands that start ranks, and
// the work of one rank.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/data_types.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/report.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/data/load_dataset.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_flags.h"
#include "models/train/trainer.h"

namespace lockstep::benchmarks {
namespace {

constexpr int kMinSteps = 10;
constexpr int kMaxSteps = 60;

}  // namespace

const char* Name(ScalingMode mode) {
  return mode == ScalingMode::kStrong ? "strong" : "weak";
}

std::vector<int> DefaultWorldSizes(int cores) {
  std::vector<int> sizes;
  const int most = std::clamp(cores, 1, kMaxWorldSize);
  for (int size = 1; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

absl::StatusOr<std::vector<int>> ParseWorldSizes(absl::string_view text) {
  std::set<int> sizes;
  for (const absl::string_view field : absl::StrSplit(text, ',')) {
    int size = 0;
    if (!absl::SimpleAtoi(field, &size) || size < 1 || size > kMaxWorldSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("--world_sizes: '", field,
                       "' is not a number between 1 and ", kMaxWorldSize));
    }
    sizes.insert(size);
  }
  return std::vector<int>(sizes.begin(), sizes.end());
}

absl::StatusOr<std::vector<ScalingMode>> ParseModes(absl::string_view text) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::vector<ScalingMode> modes,
      ParseNames<ScalingMode>(
          "--mode", text,
          {{"strong", ScalingMode::kStrong}, {"weak", ScalingMode::kWeak}}));
  std::sort(modes.begin(), modes.end());
  return modes;
}

absl::StatusOr<std::vector<RankKind>> ParseBackends(absl::string_view text) {
  return ParseNames<RankKind>("--backend", text,
                              {{"processes", RankKind::kProcesses},
                               {"tcp", RankKind::kTcp},
                               {"threads", RankKind::kThreads},
                               {"mpi", RankKind::kMpi},
                               {"apart", RankKind::kApart},
                               {"ddp", RankKind::kDdp}});
}

absl::StatusOr<std::vector<RankKind>> ParsePeers(absl::string_view text) {
  if (text.empty()) return std::vector<RankKind>();
  return ParseNames<RankKind>("--peers", text, {{"torch", RankKind::kDdp}});
}

absl::StatusOr<std::vector<DataType>> ParseTypes(absl::string_view text) {
  return ParseNames<DataType>(
      "--type", text,
      {{"float32", DataType::kFloat32}, {"bfloat16", DataType::kBFloat16}});
}

absl::Status Validate(const ScalingSettings& settings) {
  const absl::Status model = HasBatchNorm(settings.model).status();
  if (!model.ok()) return FlagError("model", settings.model, model.message());
  if (!(settings.learning_rate > 0 &&
        std::isfinite(static_cast<float>(settings.learning_rate)))) {
    return FlagError("lr", settings.learning_rate, "must be a positive number");
  }
  for (const absl::Status& status :
       {CheckRange("--batch_size", settings.batch_size, 1, 1 << 20),
        CheckRange("--rounds", settings.rounds, 1, 1000),
        CheckRange("--steps", settings.steps, 0, 1000000),
        CheckRange("--warmup_steps", settings.warmup_steps, 1, 1000000)}) {
    if (!status.ok()) return status;
  }
  for (const Configuration& c : DistinctConfigurations(settings)) {
    if (c.global_batch >= c.world_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch_size: ", c.global_batch, " images are fewer than the ",
        c.world_size, " ranks that --world_sizes asks for"));
  }
  return CheckSeconds("--seconds", settings.seconds);
}

std::vector<Variant> VariantsOf(const ScalingSettings& settings) {
  std::vector<Variant> variants;
  for (const RankKind ranks : settings.backends) {
    for (const DataType type : settings.types) {
      variants.push_back({ranks, type});
    }
  }
  return variants;
}

std::string NameOf(const ScalingSettings& settings, const Variant& variant) {
  std::vector<std::string> names;
  if (settings.backends.size() > 1) names.push_back(Name(variant.ranks));
  if (settings.types.size() > 1) names.push_back(Name(variant.type));
  return absl::StrJoin(names, ", ");
}

Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size, const Variant& variant) {
  const int64_t factor = mode == ScalingMode::kWeak ? world_size : 1;
  Configuration configuration = {.world_size = world_size,
                                 .global_batch = settings.batch_size * factor,
                                 .ranks = variant.ranks,
                                 .type = variant.type};
  if (world_size == 1 && variant.ranks != RankKind::kDdp) {
    configuration.ranks = *std::ranges::find_if(
        settings.backends,
        [](RankKind ranks) { return ranks != RankKind::kDdp; });
  }
  return configuration;
}

std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings) {
  std::vector<Configuration> distinct;
  for (const int world_size : settings.world_sizes) {
    for (const Variant& variant : VariantsOf(settings)) {
      for (const ScalingMode mode : settings.modes) {
        const Configuration c =
            ConfigurationOf(settings, mode, world_size, variant);
        if (std::ranges::count(distinct, c) == 0) distinct.push_back(c);
      }
    }
  }
  return distinct;
}

int RoundsWithin(double seconds, int rounds, const RunCost& round) {
  const double shortest =
      round.fixed_seconds + kMinSteps * std::max(round.step_seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(seconds / shortest, 1, rounds));
}

int StepsWithin(double seconds, int rounds, const RunCost& round) {
  const double steps = (seconds / rounds - round.fixed_seconds) /
                       std::max(round.step_seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(steps, kMinSteps, kMaxSteps));
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 0;

// The time for ranks to load the data and join the group, and the time for
// ranks to end.
constexpr absl::Duration kStartTimeout = absl::Minutes(5);
constexpr absl::Duration kStopTimeout = absl::Minutes(1);

// Returns the time that the calling thread has spent on a core.
double ThreadCpuSeconds() {
  timespec time;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

StepParts PartsOf(const StepTimes& times) {
  return {.compute = absl::ToDoubleSeconds(times.compute),
          .exposed_communication =
              absl::ToDoubleSeconds(times.exposed_communication),
          .data_wait = absl::ToDoubleSeconds(times.data_wait)};
}

// Trains until the steps of the run are done, and appends the timed steps to
// `steps`. Returns the metrics of this rank's shard in the last step.
absl::StatusOr<Metrics> TimeSteps(Trainer& trainer, const RunSpec& spec,
                                  std::vector<RankStep>& steps) {
  int full_steps = 0;
  Clock::time_point last_end;
  double last_cpu = 0;
  Metrics last_metrics;
  const auto done = [&] {
    return full_steps == spec.warmup_steps + spec.steps;
  };
  // Returns whether the training should continue.
  const auto on_step = [&](const StepReport& report) {
    const Clock::time_point now = Clock::now();
    const double cpu_now = ThreadCpuSeconds();
    if (report.global_samples == spec.configuration.global_batch) {
      if (++full_steps > spec.warmup_steps) {
        steps.push_back(
            {.seconds = std::chrono::duration<double>(now - last_end).count(),
             .parts = PartsOf(report.times),
             .cpu_seconds = cpu_now - last_cpu});
      }
      last_metrics = report.shard_metrics;
    }
    last_end = now;
    last_cpu = cpu_now;
    return !done();
  };
  for (int64_t epoch = 0; !done(); ++epoch) {
    LOCKSTEP_RETURN_IF_ERROR(trainer.TrainEpoch(epoch, on_step).status());
  }
  return last_metrics;
}

// Returns the number of ranks from which this rank received their own number.
absl::StatusOr<int> CountRanks(Communicator& communicator) {
  const int64_t rank = communicator.rank();
  std::vector<int64_t> heard(communicator.world_size(), -1);
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGather(
      std::span<const int64_t>(&rank, 1), std::span<int64_t>(heard)));
  int count = 0;
  for (size_t i = 0; i < heard.size(); ++i) {
    count += heard[i] == static_cast<int64_t>(i);
  }
  return count;
}

absl::StatusOr<bool> HasParametersOfRankZero(Communicator& communicator,
                                             const Parameters& parameters) {
  const std::span<const float> own = parameters.values();
  std::vector<float> first(own.begin(), own.end());
  LOCKSTEP_RETURN_IF_ERROR(communicator.Broadcast(std::span<float>(first), 0));
  // Compares with memcmp, because NaN is not equal to itself and -0 is equal to
  // 0.
  return std::memcmp(first.data(), own.data(), own.size_bytes()) == 0;
}

absl::StatusOr<double> GlobalLoss(Communicator& communicator,
                                  const Metrics& shard) {
  std::vector<double> sums = {shard.loss_sum,
                              static_cast<double>(shard.samples)};
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span<double>(sums)));
  return sums[0] / sums[1];
}

// Returns the algorithm by which the model convolves batches of n: Winograd's
// if at least one of its convolutions uses it, else the direct one.
absl::StatusOr<std::string> ConvolutionOf(CpuReplica& model, int64_t n) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> algorithms,
                            model.Algorithms(n));
  const std::string winograd = Name(ConvolutionAlgorithm::kWinograd);
  return std::ranges::count(algorithms, winograd) > 0
             ? winograd
             : Name(ConvolutionAlgorithm::kDirect);
}

}  // namespace

absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const DataFlags& data,
                                   const RunSpec& spec) {
  if (train.size() < spec.configuration.global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("a global batch of ", spec.configuration.global_batch,
                     " images is more than the data set's ", train.size()));
  }
  SetComputeThreads(1);
  // A rank of kApart trains in a group of its own, on its share of the batch.
  const int world_size = communicator.world_size();
  const bool apart = spec.configuration.ranks == RankKind::kApart;
  std::vector<std::unique_ptr<Communicator>> alone;
  RunSpec own = spec;
  if (apart) {
    LOCKSTEP_ASSIGN_OR_RETURN(alone, CreateThreadGroup(1));
    own.configuration.global_batch =
        (spec.configuration.global_batch + world_size - 1) / world_size;
    LOCKSTEP_RETURN_IF_ERROR(CountRanks(communicator).status());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const NetworkInput input,
                            InputOf(train, data.transform));
  LOCKSTEP_ASSIGN_OR_RETURN(Network network, CreateNetwork(spec.model, input));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<CpuReplica> model,
      CreateCpuReplica(std::move(network),
                       {.seed = kSeed, .type = spec.configuration.type}));
  const TrainerOptions options = {
      .batch_size = own.configuration.global_batch,
      .learning_rate = static_cast<float>(spec.learning_rate),
      .seed = kSeed,
      .transform = data.transform,
      .loader = data.loader};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                            Trainer::Create(apart ? *alone[0] : communicator,
                                            *model, train, options));
  if (communicator.rank() == 0 && !trainer->warning().empty()) {
    std::fprintf(stderr, "scaling: warning: %s\n", trainer->warning().c_str());
  }

  RankResult result = {.rank = communicator.rank()};
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics shard,
                            TimeSteps(*trainer, own, result.steps));
  LOCKSTEP_ASSIGN_OR_RETURN(result.world_size, CountRanks(communicator));
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.same_parameters,
      HasParametersOfRankZero(communicator, model->parameters()));
  LOCKSTEP_ASSIGN_OR_RETURN(result.loss, GlobalLoss(communicator, shard));
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.convolution,
      ConvolutionOf(*model, (spec.configuration.global_batch + world_size - 1) /
                                world_size));
  return result;
}

absl::StatusOr<std::string> ProgramOf(RankKind ranks) {
  if (ranks != RankKind::kMpi) return OwnProgramPath();
  const std::string program =
      std::filesystem::path(OwnProgramPath()).replace_filename("scaling_mpi");
  if (access(program.c_str(), X_OK) == 0) return program;
  return FlagError("backend", "mpi",
                   "scaling_mpi was not built: Open MPI is not installed "
                   "(tools/setup.sh)");
}

TeamCommand CommandOf(const RankLaunchSettings& setting, const RunSpec& spec,
                      const std::string& program, const std::string& listener) {
  const int world_size = spec.configuration.world_size;
  const RankKind ranks = spec.configuration.ranks;
  TeamCommand command;
  if (ranks == RankKind::kMpi) {
    command = MpirunCommand(world_size, setting.cores, setting.mpi_folder);
    // The ranks of the other backends are not bound either. A rank that is
    // bound to one core shares the core with its communication thread.
    command.argv.insert(command.argv.end(), {"--bind-to", "none"});
  }
  const bool one = ranks == RankKind::kThreads || ranks == RankKind::kMpi;
  command.nproc = one ? 1 : world_size;
  command.world_size = world_size;
  command.environment.emplace_back("OMP_NUM_THREADS", "1");
  command.argv.push_back(program);
  command.argv.insert(command.argv.end(), setting.flags.begin(),
                      setting.flags.end());
  command.argv.insert(command.argv.end(),
                      {absl::StrCat("--worker=", listener),
                       absl::StrCat("--backend=", Name(ranks)),
                       absl::StrCat("--world_sizes=", world_size)});
  return command;
}

absl::StatusOr<RoundSample> RunOnce(const RankLaunchSettings& setting,
                                    const RunSpec& spec) {
  if (spec.configuration.ranks == RankKind::kDdp) {
    return RunDdpOnce(setting, spec);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string program,
                            ProgramOf(spec.configuration.ranks));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<RankTeam> team,
                            RankTeam::Start([&](const std::string& listener) {
                              return CommandOf(setting, spec, program,
                                               listener);
                            }));
  LOCKSTEP_RETURN_IF_ERROR(team->AwaitRanks(kStartTimeout));
  // The call has no deadline, because the length of a step is not known. If
  // ranks hang, their own group times out.
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<RankResult> results,
      team->Ask<RankResult>(spec, absl::InfiniteDuration()));
  LOCKSTEP_RETURN_IF_ERROR(team->Stop(kStopTimeout));
  return CombineRanks(spec, results);
}

absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const DataFlags& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const DatasetParts parts,
                            LoadDataset(data.dataset, data.dir, data.options));
  return RunAsRanks(
      ranks, world_size, GroupOptions(), [&](Communicator& communicator) {
        return ServeTurns<RunSpec>(
            listener, {communicator.rank(), communicator.world_size()},
            [&](const RunSpec& spec) {
              return RunRank(communicator, *parts.train, data, spec);
            });
      });
}

}  // namespace lockstep::benchmarks
