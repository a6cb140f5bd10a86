#include "benchmarks/scaling/rank.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
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
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "benchmarks/harness/nvml.h"
#include "benchmarks/harness/ranks.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/cpu_model.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/data_flags.h"
#include "models/train/data_parallel.h"
#include "models/train/device.h"
#include "models/train/rank_steps.h"
#include "models/train/trainer.h"

namespace lockstep::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 0;

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

}  // namespace

GpuTimedSteps::GpuTimedSteps(RankSteps& steps, const RunSpec& spec)
    : steps_(steps),
      global_batch_(spec.configuration.global_batch),
      warmup_steps_(spec.warmup_steps),
      all_steps_(spec.warmup_steps + spec.steps) {}

bool GpuTimedSteps::done() const { return full_steps_ >= all_steps_; }

absl::StatusOr<StepResult> GpuTimedSteps::Step(const Batch& shard,
                                               int64_t global_samples,
                                               float learning_rate,
                                               bool /*with_metrics*/) {
  is_full_.push_back(global_samples == global_batch_);
  full_steps_ += is_full_.back() ? 1 : 0;
  LOCKSTEP_ASSIGN_OR_RETURN(
      StepResult result,
      steps_.Step(shard, global_samples, learning_rate, done()));
  if (done()) last_ = result;
  return result;
}

absl::StatusOr<std::vector<RankStep>> GpuTimedSteps::Timed() const {
  if (last_.gpu_steps.size() != is_full_.size()) {
    return absl::InternalError(absl::StrCat("the GPU timed ",
                                            last_.gpu_steps.size(), " of ",
                                            is_full_.size(), " steps"));
  }
  std::vector<RankStep> timed;
  int full_steps = 0;
  for (size_t i = 0; i < is_full_.size(); ++i) {
    if (!is_full_[i] || ++full_steps <= warmup_steps_) continue;
    const StepParts parts = PartsOf(last_.gpu_steps[i]);
    const double seconds = parts.Sum();
    timed.push_back(
        {.seconds = seconds, .parts = parts, .cpu_seconds = seconds});
  }
  return timed;
}

namespace {

// Reads memory and energy of a rank's GPU: energy from when the host has
// enqueued the last warm-up step until the last timed step has ended. Does
// nothing on a CPU.
class GpuMeter {
 public:
  explicit GpuMeter(const GpuDescription& gpu) {
    if (!gpu.name.empty()) gpu_.emplace(gpu.uuid);
  }

  void Begin() {
    if (!gpu_.has_value()) return;
    begin_ = Clock::now();
    joules_ = gpu_->EnergyJoules();
  }
  void End(RankResult& result) const {
    if (!gpu_.has_value()) return;
    result.gpu_memory_bytes = gpu_->UsedMemoryBytes().value_or(0);
    const std::optional<double> joules = gpu_->EnergyJoules();
    if (!joules_.has_value() || !joules.has_value()) return;
    result.gpu_joules = *joules - *joules_;
    result.gpu_seconds =
        std::chrono::duration<double>(Clock::now() - begin_).count();
  }

 private:
  std::optional<NvmlGpu> gpu_;
  Clock::time_point begin_;
  std::optional<double> joules_;
};

bool IsFull(const RunSpec& spec, const StepReport& report) {
  return report.global_samples == spec.configuration.global_batch;
}

// Trains, epoch after epoch, until `on_step` returns false. Gives it the number
// of steps on full batches so far. Begins the meter after the warm-up.
absl::Status TrainUntil(
    Trainer& trainer, const RunSpec& spec, GpuMeter& meter,
    const std::function<bool(const StepReport&, int full_steps)>& on_step) {
  bool goes_on = true;
  int full_steps = 0;
  if (spec.warmup_steps == 0) meter.Begin();
  const auto on_any_step = [&](const StepReport& report) {
    if (IsFull(spec, report) && ++full_steps == spec.warmup_steps) {
      meter.Begin();
    }
    goes_on = on_step(report, full_steps);
    return goes_on;
  };
  for (int64_t epoch = 0; goes_on; ++epoch) {
    LOCKSTEP_RETURN_IF_ERROR(trainer.TrainEpoch(epoch, on_any_step).status());
  }
  return absl::OkStatus();
}

// Trains until the steps of the run are done, and appends the timed steps to
// `steps`. Returns the metrics of this rank's shard in the last step.
absl::StatusOr<Metrics> TimeSteps(Trainer& trainer, const RunSpec& spec,
                                  GpuMeter& meter,
                                  std::vector<RankStep>& steps) {
  Clock::time_point last_end;
  double last_cpu = 0;
  Metrics last_metrics;
  const bool on_gpu = spec.configuration.device == ComputeDevice::kCuda;
  const auto on_step = [&](const StepReport& report, int full_steps) {
    const Clock::time_point now = Clock::now();
    const double cpu_now = ThreadCpuSeconds();
    if (IsFull(spec, report)) {
      if (full_steps > spec.warmup_steps) {
        const double seconds =
            std::chrono::duration<double>(now - last_end).count();
        steps.push_back({.seconds = seconds,
                         .parts = PartsOf(report.times),
                         .cpu_seconds = on_gpu ? seconds : cpu_now - last_cpu});
      }
      last_metrics = report.shard_metrics;
    }
    last_end = now;
    last_cpu = cpu_now;
    return full_steps < spec.warmup_steps + spec.steps;
  };
  LOCKSTEP_RETURN_IF_ERROR(TrainUntil(trainer, spec, meter, on_step));
  return last_metrics;
}

// A rank's replica. Members are destroyed from the last to the first.
struct Replica {
  std::unique_ptr<Model> model;  // Null if `steps` have their own.
  std::unique_ptr<RankSteps> steps;
  std::string convolution;  // As in RankResult; gpu and hosts_sum too.
  GpuDescription gpu;
  std::string hosts_sum;
};

// Returns the largest number of images that a rank computes in a step.
int64_t LargestShard(const Communicator& group, const RunSpec& spec) {
  const int64_t world_size = group.world_size();
  return (spec.configuration.global_batch + world_size - 1) / world_size;
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

absl::StatusOr<Replica> CreateOnCpu(Communicator& group, const RunSpec& spec,
                                    Network network) {
  Replica replica;
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<CpuReplica> model,
      CreateCpuReplica(std::move(network),
                       {.seed = kSeed, .type = spec.configuration.type}));
  LOCKSTEP_ASSIGN_OR_RETURN(replica.convolution,
                            ConvolutionOf(*model, LargestShard(group, spec)));
  replica.model = std::move(model);
  return replica;
}

absl::StatusOr<Replica> CreateOnGpu(Communicator& group, int local_rank,
                                    const RunSpec& spec,
                                    const Network& network) {
  Replica replica;
  replica.convolution = "cudnn";
  LOCKSTEP_ASSIGN_OR_RETURN(replica.gpu, DescribeGpu(local_rank));
  LOCKSTEP_ASSIGN_OR_RETURN(
      replica.steps,
      CreateGpuSteps(group, local_rank, network,
                     {.seed = kSeed,
                      .largest_shard = LargestShard(group, spec),
                      .graph_samples = GraphSamples(
                          spec.configuration.global_batch, group.world_size())},
                     replica.hosts_sum));
  if (replica.steps != nullptr) return replica;
  LOCKSTEP_ASSIGN_OR_RETURN(replica.model,
                            CreateGpuModel(network, kSeed, local_rank));
  return replica;
}

absl::StatusOr<Replica> CreateReplica(Communicator& group, int local_rank,
                                      const RunSpec& spec,
                                      const Network& network) {
  LOCKSTEP_ASSIGN_OR_RETURN(Replica replica,
                            spec.configuration.device == ComputeDevice::kCuda
                                ? CreateOnGpu(group, local_rank, spec, network)
                                : CreateOnCpu(group, spec, network));
  if (replica.steps == nullptr) {
    replica.steps = std::make_unique<ModelSteps>(group, *replica.model,
                                                 /*bucket_bytes=*/0);
  }
  return replica;
}

// Trains, and appends the timed steps to `steps`. Returns the metrics of
// RoundSample's loss, those of this rank.
absl::StatusOr<Metrics> Train(Communicator& group, Replica& replica,
                              const Dataset& train, const DataFlags& data,
                              const RunSpec& spec, GpuMeter& meter,
                              std::vector<RankStep>& steps) {
  const TrainerOptions options = {
      .batch_size = spec.configuration.global_batch,
      .learning_rate = static_cast<float>(spec.learning_rate),
      .seed = kSeed,
      .transform = data.transform,
      .loader = data.loader};
  // The steps of a model wait for its device.
  const bool waits = replica.model != nullptr;
  GpuTimedSteps gpu_steps(*replica.steps, spec);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(group, waits ? *replica.steps : gpu_steps, train,
                      options));
  if (group.rank() == 0 && !trainer->warning().empty()) {
    std::fprintf(stderr, "scaling: warning: %s\n", trainer->warning().c_str());
  }
  if (waits) return TimeSteps(*trainer, spec, meter, steps);
  LOCKSTEP_RETURN_IF_ERROR(
      TrainUntil(*trainer, spec, meter,
                 [&](const StepReport&, int) { return !gpu_steps.done(); }));
  LOCKSTEP_ASSIGN_OR_RETURN(steps, gpu_steps.Timed());
  return gpu_steps.metrics();
}

// Returns the values of all ranks, in the order of the ranks.
template <typename T>
absl::StatusOr<std::vector<T>> GatherAll(Communicator& communicator,
                                         std::span<const T> own) {
  std::vector<T> all(own.size() * communicator.world_size());
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGather(own, std::span<T>(all)));
  return all;
}

// Returns the number of ranks from which this rank received their own number.
absl::StatusOr<int> CountRanks(Communicator& communicator) {
  const int64_t rank = communicator.rank();
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<int64_t> heard,
      GatherAll(communicator, std::span<const int64_t>(&rank, 1)));
  int count = 0;
  for (size_t i = 0; i < heard.size(); ++i) {
    count += heard[i] == static_cast<int64_t>(i);
  }
  return count;
}

// Returns whether another rank has this rank's GPU.
absl::StatusOr<bool> SharesGpu(Communicator& communicator,
                               const GpuDescription& gpu) {
  int64_t uuid[2];
  static_assert(sizeof(uuid) == sizeof(gpu.uuid));
  std::memcpy(uuid, gpu.uuid.data(), sizeof(uuid));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<int64_t> uuids,
      GatherAll(communicator, std::span<const int64_t>(uuid)));
  int same = 0;
  for (size_t i = 0; i < uuids.size(); i += 2) {
    same += uuids[i] == uuid[0] && uuids[i + 1] == uuid[1];
  }
  return same > 1;
}

absl::StatusOr<bool> HasParametersOfRankZero(Communicator& communicator,
                                             const Network& network,
                                             RankSteps& steps) {
  Parameters parameters = CreateParameters(network);
  Buffers buffers = CreateBuffers(network);
  LOCKSTEP_RETURN_IF_ERROR(steps.Read(parameters, buffers));
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

// Sets the members of `result` that the ranks find out together.
absl::Status CompareRanks(Communicator& communicator, const Network& network,
                          Replica& replica, const Metrics& metrics,
                          RankResult& result) {
  LOCKSTEP_ASSIGN_OR_RETURN(result.world_size, CountRanks(communicator));
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.same_parameters,
      HasParametersOfRankZero(communicator, network, *replica.steps));
  LOCKSTEP_ASSIGN_OR_RETURN(result.loss, GlobalLoss(communicator, metrics));
  if (result.gpu.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const bool shares,
                            SharesGpu(communicator, replica.gpu));
  result.shares_gpu = shares ? 1 : 0;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankResult> RunRank(Communicator& communicator, int local_rank,
                                   const Dataset& train, const DataFlags& data,
                                   const RunSpec& spec) {
  if (train.size() < spec.configuration.global_batch) {
    return absl::InvalidArgumentError(
        absl::StrCat("a global batch of ", spec.configuration.global_batch,
                     " images is more than the data set's ", train.size()));
  }
  SetComputeThreads(1);
  // A rank of kApart trains in a group of its own, on its share of the batch.
  std::vector<std::unique_ptr<Communicator>> alone;
  RunSpec own = spec;
  if (spec.configuration.ranks == RankKind::kApart) {
    LOCKSTEP_ASSIGN_OR_RETURN(alone, CreateThreadGroup(1));
    own.configuration.global_batch = LargestShard(communicator, spec);
    LOCKSTEP_RETURN_IF_ERROR(CountRanks(communicator).status());
  }
  Communicator& group = alone.empty() ? communicator : *alone[0];
  LOCKSTEP_ASSIGN_OR_RETURN(const NetworkInput input,
                            InputOf(train, data.transform));
  LOCKSTEP_ASSIGN_OR_RETURN(const Network network,
                            CreateNetwork(spec.model, input));
  LOCKSTEP_ASSIGN_OR_RETURN(Replica replica,
                            CreateReplica(group, local_rank, own, network));
  RankResult result = {.rank = communicator.rank(),
                       .convolution = replica.convolution,
                       .gpu = replica.gpu.name,
                       .hosts_sum = replica.hosts_sum};
  GpuMeter meter(replica.gpu);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Metrics metrics,
      Train(group, replica, train, data, own, meter, result.steps));
  meter.End(result);
  LOCKSTEP_RETURN_IF_ERROR(
      CompareRanks(communicator, network, replica, metrics, result));
  return result;
}

}  // namespace lockstep::benchmarks
