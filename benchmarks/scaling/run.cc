// Train, time, check.
#include "benchmarks/scaling/run.h"

#include <time.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_environment.h"
#include "models/cpu/classifier.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/train/trainer.h"

namespace lockstep::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 0;

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

// Launch and collect; join and report.
namespace {

std::string ResultPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/rank_", rank);
}

absl::StatusOr<std::vector<RankResult>> ReadResults(const std::string& folder,
                                                    int world_size) {
  std::vector<RankResult> results;
  for (int rank = 0; rank < world_size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string text,
                              ReadFile(ResultPath(folder, rank)));
    LOCKSTEP_ASSIGN_OR_RETURN(RankResult result, ParseRankResult(text));
    results.push_back(std::move(result));
  }
  return results;
}

absl::Status RunAndWrite(Communicator& communicator, const Dataset& train,
                         const RunSpec& spec, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankResult result,
                            RunRank(communicator, train, spec));
  return ReplaceFile(ResultPath(folder, communicator.rank()),
                     SerializeRankResult(result));
}

absl::Status RunProcess(const Dataset& train, const RunSpec& spec,
                        const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a worker needs a launcher");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            JoinLaunchedGroup(*environment, GroupOptions()));
  return RunAndWrite(*communicator, train, spec, folder);
}

absl::Status RunThreads(const Dataset& train, const RunSpec& spec,
                        const std::string& folder) {
  return RunOnThreads(spec.configuration.world_size, GroupOptions(),
                      [&](Communicator& communicator) {
                        return RunAndWrite(communicator, train, spec, folder);
                      });
}

}  // namespace

absl::StatusOr<RoundSample> RunOnce(
    const RunSpec& spec,
    const std::function<std::vector<std::string>(const std::string& folder)>&
        worker) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-scaling"));
  const int world_size = spec.configuration.world_size;
  LaunchOptions options;
  options.nproc = spec.ranks == RankKind::kProcesses ? world_size : 1;
  options.argv = worker(folder.path());
  options.environment = {{"OMP_NUM_THREADS", "1"}};
  LOCKSTEP_ASSIGN_OR_RETURN(const LaunchSummary summary, Launch(options));
  if (summary.received_signal != 0) {
    return absl::CancelledError(absl::StrCat(
        "ended by signal ", FormatSignal(summary.received_signal)));
  }
  if (ExitStatus(summary) != 0) {
    return absl::AbortedError(DescribeFailure(summary));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankResult> results,
                            ReadResults(folder.path(), world_size));
  return CombineRanks(spec, results);
}

absl::Status RunWorker(const RunSpec& spec, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data,
                            LoadFashionMnist(spec.data_dir));
  return spec.ranks == RankKind::kProcesses
             ? RunProcess(data.train, spec, folder)
             : RunThreads(data.train, spec, folder);
}

}  // namespace lockstep::benchmarks
