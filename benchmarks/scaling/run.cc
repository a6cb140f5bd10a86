#include <time.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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

// Times the steps of a run as the trainer reports them.
class StepRecorder {
 public:
  explicit StepRecorder(const RunSpec& spec) : spec_(spec) {}

  // Returns whether the training shall go on.
  bool OnStep(const StepReport& report) {
    const Clock::time_point now = Clock::now();
    const double cpu_now = ThreadCpuSeconds();
    if (report.global_samples == spec_.configuration.global_batch) {
      if (++full_steps_ > spec_.warmup_steps) {
        Record(now - last_end_, cpu_now - last_cpu_, report);
      }
      last_metrics_ = report.shard_metrics;
    }
    last_end_ = now;
    last_cpu_ = cpu_now;
    return !done();
  }

  bool done() const { return full_steps_ == spec_.warmup_steps + spec_.steps; }
  const std::vector<RankStep>& steps() const { return steps_; }
  // Of this rank's shard in the last step that counted.
  const Metrics& last_metrics() const { return last_metrics_; }

 private:
  void Record(Clock::duration duration, double cpu_seconds,
              const StepReport& report) {
    const StepTimes& times = report.times;
    steps_.push_back(
        {.seconds = std::chrono::duration<double>(duration).count(),
         .parts = {.compute = absl::ToDoubleSeconds(times.compute),
                   .exposed_communication =
                       absl::ToDoubleSeconds(times.exposed_communication),
                   .data_wait = absl::ToDoubleSeconds(times.data_wait)},
         .cpu_seconds = cpu_seconds});
  }

  const RunSpec& spec_;
  int full_steps_ = 0;
  Clock::time_point last_end_;
  double last_cpu_ = 0;
  Metrics last_metrics_;
  std::vector<RankStep> steps_;
};

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
  TrainerOptions options;
  options.batch_size = spec.configuration.global_batch;
  options.seed = kSeed;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(communicator, *model, train, options));

  StepRecorder recorder(spec);
  for (int64_t epoch = 0; !recorder.done(); ++epoch) {
    LOCKSTEP_RETURN_IF_ERROR(
        trainer
            ->TrainEpoch(epoch,
                         [&recorder](const StepReport& report) {
                           return recorder.OnStep(report);
                         })
            .status());
  }

  RankResult result;
  result.rank = communicator.rank();
  result.steps = recorder.steps();
  LOCKSTEP_ASSIGN_OR_RETURN(result.world_size, CountRanks(communicator));
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.same_parameters,
      HasParametersOfRankZero(communicator, model->parameters()));
  LOCKSTEP_ASSIGN_OR_RETURN(result.loss,
                            GlobalLoss(communicator, recorder.last_metrics()));
  return result;
}

absl::StatusOr<RoundSample> RunOnce(const RunSpec& spec) {
  const int world_size = spec.configuration.world_size;
  const auto command = [&](const std::string& listener) {
    TeamCommand command;
    command.argv = {OwnProgram(), absl::StrCat("--worker=", listener),
                    absl::StrCat("--backend=", Name(spec.ranks)),
                    absl::StrCat("--world_sizes=", world_size),
                    absl::StrCat("--data_dir=", spec.data_dir)};
    command.nproc = spec.ranks == RankKind::kProcesses ? world_size : 1;
    command.environment = {{"OMP_NUM_THREADS", "1"}};
    command.world_size = world_size;
    return command;
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
