#include "benchmarks/scaling/turn.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
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

// The combination of ranks.
namespace {

absl::Status VoidRunError(const RunSpec& spec, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the run of ", spec.configuration.world_size,
                   " ranks on global batches of ",
                   spec.configuration.global_batch, " is void: ", what));
}

absl::Status CheckRank(const RunSpec& spec, const RankResult& result) {
  const int world_size = spec.configuration.world_size;
  if (result.world_size != world_size) {
    return VoidRunError(spec, absl::StrCat("rank ", result.rank, " was one of ",
                                           result.world_size));
  }
  if (result.rank < 0 || result.rank >= world_size) {
    return VoidRunError(spec, absl::StrCat("it has a rank ", result.rank));
  }
  if (static_cast<int>(result.steps.size()) != spec.steps) {
    return VoidRunError(
        spec, absl::StrCat("rank ", result.rank, " timed ", result.steps.size(),
                           " steps, not ", spec.steps));
  }
  if (!result.same_parameters) {
    return VoidRunError(spec, absl::StrCat("rank ", result.rank,
                                           " ended with other parameters than "
                                           "rank 0"));
  }
  if (!std::isfinite(result.loss)) {
    return VoidRunError(spec, absl::StrCat("the loss became ", result.loss));
  }
  return absl::OkStatus();
}

absl::Status CheckRun(const RunSpec& spec,
                      std::span<const RankResult> results) {
  std::vector<int> seen(spec.configuration.world_size, 0);
  for (const RankResult& result : results) {
    LOCKSTEP_RETURN_IF_ERROR(CheckRank(spec, result));
    ++seen[result.rank];
  }
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] == 1) continue;
    return VoidRunError(
        spec, absl::StrCat("rank ", rank, " reported ", seen[rank], " times"));
  }
  return absl::OkStatus();
}

double Imbalance(std::span<const RankResult> results, int step) {
  double slowest = 0, sum = 0;
  for (const RankResult& result : results) {
    slowest = std::max(slowest, result.steps[step].parts.compute);
    sum += result.steps[step].parts.compute;
  }
  const double mean = sum / static_cast<double>(results.size());
  return mean > 0 ? slowest / mean - 1 : 0;
}

// Returns one rank's share for RoundSample::kept_waiting. A rank that waits for
// a sum may keep a core busy; the result is then too small.
double ShareOffCore(const RankResult& result) {
  double working = 0, running = 0;
  for (const RankStep& step : result.steps) {
    working += step.seconds - step.parts.exposed_communication;
    running += step.cpu_seconds;
  }
  return working > 0 ? std::clamp(1 - running / working, 0.0, 1.0) : 0;
}

}  // namespace

absl::StatusOr<RoundSample> CombineRanks(const RunSpec& spec,
                                         std::span<const RankResult> results) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRun(spec, results));
  RoundSample sample = {.loss = results[0].loss};
  sample.step_seconds.resize(spec.steps, 0);
  const double weight =
      1.0 / (static_cast<double>(results.size()) * spec.steps);
  double slowest_rank = 0;
  for (const RankResult& result : results) {
    if (sample.convolution != Name(ConvolutionAlgorithm::kWinograd)) {
      sample.convolution = result.convolution;
    }
    double seconds = 0;
    for (int i = 0; i < spec.steps; ++i) {
      const RankStep& step = result.steps[i];
      seconds += step.seconds;
      sample.step_seconds[i] = std::max(sample.step_seconds[i], step.seconds);
      for (double StepParts::*const part : kStepParts) {
        sample.parts.*part += weight * step.parts.*part;
      }
    }
    slowest_rank = std::max(slowest_rank, seconds);
    sample.kept_waiting +=
        ShareOffCore(result) / static_cast<double>(results.size());
  }
  sample.parts.rest = slowest_rank / spec.steps - sample.parts.Sum();
  sample.images_per_second =
      static_cast<double>(spec.steps * spec.configuration.global_batch) /
      slowest_rank;
  for (int i = 0; i < spec.steps; ++i) {
    sample.imbalance += Imbalance(results, i) / spec.steps;
  }
  return sample;
}

}  // namespace lockstep::benchmarks
