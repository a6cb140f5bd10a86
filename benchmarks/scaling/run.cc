// What is run, and a rank that runs it.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/report.h"
#include "collectives/communicator.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/networks.h"
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

absl::StatusOr<RankKind> ParseRankKind(absl::string_view text) {
  return ParseName<RankKind>(
      "--backend", text,
      {{"processes", RankKind::kProcesses}, {"threads", RankKind::kThreads}});
}

absl::Status Validate(const ScalingSettings& settings) {
  if (settings.model != "lenet") {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: '", settings.model, "' is not lenet"));
  }
  if (settings.dataset != "fashion_mnist") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dataset: '", settings.dataset, "' is not fashion_mnist"));
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

Configuration ConfigurationOf(const ScalingSettings& settings, ScalingMode mode,
                              int world_size) {
  const int64_t factor = mode == ScalingMode::kWeak ? world_size : 1;
  return {.world_size = world_size,
          .global_batch = settings.batch_size * factor};
}

std::vector<Configuration> DistinctConfigurations(
    const ScalingSettings& settings) {
  std::vector<Configuration> distinct;
  for (const int world_size : settings.world_sizes) {
    for (const ScalingMode mode : settings.modes) {
      const Configuration c = ConfigurationOf(settings, mode, world_size);
      if (distinct.empty() || !(distinct.back() == c)) distinct.push_back(c);
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

// For ranks to load the data and to meet, and to go.
constexpr absl::Duration kStartTimeout = absl::Minutes(5);
constexpr absl::Duration kStopTimeout = absl::Minutes(1);

// The time that the calling thread has spent on a core.
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

// Trains until the steps of the run are done, and adds those that are timed to
// `steps`. Returns the metrics of this rank's shard in the last of them.
absl::StatusOr<Metrics> TimeSteps(Trainer& trainer, const RunSpec& spec,
                                  std::vector<RankStep>& steps) {
  int full_steps = 0;
  Clock::time_point last_end;
  double last_cpu = 0;
  Metrics last_metrics;
  const auto done = [&] {
    return full_steps == spec.warmup_steps + spec.steps;
  };
  // Returns whether the training shall go on.
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

// How many ranks this one hears from, each under its own number.
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
  // memcmp, since NaN is not equal to itself and -0 is to 0.
  return std::memcmp(first.data(), own.data(), own.size_bytes()) == 0;
}

absl::StatusOr<double> GlobalLoss(Communicator& communicator,
                                  const Metrics& shard) {
  std::vector<double> sums = {shard.loss_sum,
                              static_cast<double>(shard.samples)};
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span<double>(sums)));
  return sums[0] / sums[1];
}

}  // namespace

absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const RunSpec& spec) {
  if (train.size < spec.configuration.global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("a global batch of ", spec.configuration.global_batch,
                     " images is more than the data set's ", train.size));
  }
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = CreateLeNet(kSeed);
  TrainerOptions options = {.batch_size = spec.configuration.global_batch,
                            .seed = kSeed};
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(communicator, *model, train, options));

  RankResult result = {.rank = communicator.rank()};
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics shard,
                            TimeSteps(*trainer, spec, result.steps));
  LOCKSTEP_ASSIGN_OR_RETURN(result.world_size, CountRanks(communicator));
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.same_parameters,
      HasParametersOfRankZero(communicator, model->parameters()));
  LOCKSTEP_ASSIGN_OR_RETURN(result.loss, GlobalLoss(communicator, shard));
  return result;
}

absl::StatusOr<RoundSample> RunOnce(const RunSpec& spec) {
  const int world_size = spec.configuration.world_size;
  const auto command = [&](const std::string& listener) {
    return TeamCommand{
        .argv = {OwnProgram(), absl::StrCat("--worker=", listener),
                 absl::StrCat("--backend=", Name(spec.ranks)),
                 absl::StrCat("--world_sizes=", world_size),
                 absl::StrCat("--data_dir=", spec.data_dir)},
        .nproc = spec.ranks == RankKind::kProcesses ? world_size : 1,
        .environment = {{"OMP_NUM_THREADS", "1"}},
        .world_size = world_size};
  };
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<RankTeam> team,
                            RankTeam::Start(command));
  LOCKSTEP_RETURN_IF_ERROR(team->AwaitRanks(kStartTimeout));
  // Steps take as long as they take; ranks that hang end at the deadline of
  // their own group.
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<RankResult> results,
      team->Ask<RankResult>(spec, absl::InfiniteDuration()));
  LOCKSTEP_RETURN_IF_ERROR(team->Stop(kStopTimeout));
  return CombineRanks(spec, results);
}

absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const std::string& data_dir) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data,
                            LoadFashionMnist(data_dir));
  return RunAsRanks(
      ranks, world_size, GroupOptions(), [&](Communicator& communicator) {
        return ServeTurns<RunSpec>(
            listener, {communicator.rank(), communicator.world_size()},
            [&](const RunSpec& spec) {
              return RunRank(communicator, data.train, spec);
            });
      });
}

}  // namespace lockstep::benchmarks
