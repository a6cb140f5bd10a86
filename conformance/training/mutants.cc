// Mutants that change how gradients and parameters travel between the ranks,
// what a step computes, the settings of a run, or the samples of a rank. Also
// plants them.
#include "conformance/training/mutants.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "conformance/training/checks.h"
#include "conformance/training/run.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

using Data = std::span<float>;

Mutation Summing(std::function<absl::Status(Communicator&, Data)> sum) {
  return Calling(SumBy(std::move(sum)));
}

void Scale(Data data, float factor) {
  for (float& v : data) v *= factor;
}

absl::Status DropLastRank(Communicator& group, Data data) {
  if (group.rank() == group.world_size() - 1) Scale(data, 0);
  return group.AllReduce(data);
}

absl::Status CountRankTwice(Communicator& group, Data data) {
  if (group.rank() == 1) Scale(data, 2);
  return group.AllReduce(data);
}

absl::Status CountRankForAnother(Communicator& group, Data data) {
  if (group.rank() == 0) Scale(data, 0);
  if (group.rank() == 1) Scale(data, 2);
  return group.AllReduce(data);
}

// The ring's chunks 0 and 1 of P end in each other's place.
absl::Status SwapChunks(Communicator& group, Data data) {
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
  const size_t chunk = data.size() / group.world_size();
  std::swap_ranges(data.begin(), data.begin() + chunk, data.begin() + chunk);
  return absl::OkStatus();
}

Mutation SkipLastBucket() {
  return {.communicator = [](Communicator& inner, const RankContext& context) {
    // The last bucket that is sent begins where the parameters begin.
    return std::make_unique<GroupMutant>(
        inner, SumBy([parameters = context.parameters](Communicator& group,
                                                       Data data) {
          return data.data() == parameters->gradients().data()
                     ? absl::OkStatus()
                     : group.AllReduce(data);
        }));
  }};
}

// Returns each bucket's sum of the previous step.
Mutation OneStepStale() {
  std::map<const float*, std::vector<float>> sums;
  return Summing([sums](Communicator& group, Data data) mutable {
    LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
    std::vector<float>& before = sums[data.data()];
    std::vector<float> sum(data.begin(), data.end());
    if (!before.empty()) std::copy(before.begin(), before.end(), data.begin());
    before = std::move(sum);
    return absl::OkStatus();
  });
}

absl::Status KeepOwnOnOneRank(Communicator& group, Data data) {
  std::vector<float> copy(data.begin(), data.end());
  return group.AllReduce(group.rank() == 1 ? Data(copy) : data);
}

absl::Status SumFirstHalf(Communicator& group, Data data) {
  return group.AllReduce(data.first(data.size() / 2));
}

absl::Status SumAllButLast(Communicator& group, Data data) {
  return group.AllReduce(data.first(data.size() - 1));
}

absl::Status SumToNan(Communicator& group, Data data) {
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
  data[data.size() / 2] = std::nanf("");
  return absl::OkStatus();
}

absl::Status AverageAgain(Communicator& group, Data data) {
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(data));
  Scale(data, 1.0f / static_cast<float>(group.world_size()));
  return absl::OkStatus();
}

// Rounds to the nearest of bfloat16's 8 significant bits for the transfer.
absl::Status SumInBFloat16(Communicator& group, Data data) {
  for (float& v : data) v = ToFloat(ToBFloat16(v));
  return group.AllReduce(data);
}

// Every rank adds the ranks' contributions starting with its own.
absl::Status SumFromOwnRank(Communicator& group, Data data) {
  std::vector<float> all(data.size() * group.world_size());
  LOCKSTEP_RETURN_IF_ERROR(
      group.AllGather(std::span<const float>(data), std::span<float>(all)));
  for (int i = 1; i < group.world_size(); ++i) {
    const size_t rank = (group.rank() + i) % group.world_size();
    for (size_t k = 0; k < data.size(); ++k) {
      data[k] += all[rank * data.size() + k];
    }
  }
  return absl::OkStatus();
}

absl::Status NoBroadcast(Communicator& group, const Collective& call) {
  return call.operation == Operation::kBroadcast ? absl::OkStatus()
                                                 : group.Run(call);
}

absl::Status BroadcastFromLastRank(Communicator& group,
                                   const Collective& call) {
  return call.operation == Operation::kBroadcast
             ? group.Broadcast(call.output, group.world_size() - 1)
             : group.Run(call);
}

std::vector<TrainingMutant> CommunicatorMutants() {
  return {
      {{"RankDropped", "the last rank's gradient is not in the sum",
        "Gradients", "rank 2's part is left out"},
       Summing(DropLastRank)},
      {{"RankCountedTwice", "rank 1's gradient is in the sum twice",
        "Gradients", "; rank 1's part counts 2 times"},
       Summing(CountRankTwice)},
      {{"RankCountedForAnother",
        "rank 1's gradient is in the sum in place of rank 0's too", "Gradients",
        "rank 0's part is left out, rank 1's part counts 2 times"},
       Summing(CountRankForAnother)},
      {{"ChunksSwapped", "two chunks of the ring change places on every rank",
        "Gradients", "it has there the values of W"},
       Summing(SwapChunks)},
      {{"LastBucketNotReduced",
        "the last bucket stays as each rank computed it",
        "RanksAgree, Gradients",
        "each has there the gradient of its own samples: not reduced?"},
       SkipLastBucket()},
      {{"OneStepStale", "each step applies the gradient of the step before",
        "Gradients", "the step before: stale"},
       OneStepStale()},
      {{"NotWrittenBack", "rank 1 keeps its own gradient",
        "RanksAgree, Gradients",
        "rank 1 has there the gradient of its own samples"},
       Summing(KeepOwnOnOneRank)},
      {{"HalfReduced", "the second half of each bucket is not summed",
        "RanksAgree, Gradients",
        "each has there the gradient of its own samples: not reduced?"},
       Summing(SumFirstHalf)},
      {{"LastElementNotReduced",
        "the last element of each bucket is not summed",
        "RanksAgree, Gradients",
        "each has there the gradient of its own samples: not reduced?"},
       Summing(SumAllButLast)},
      {{"NotANumber", "one element of each bucket becomes NaN",
        "Updates, Gradients", "its gradient is NaN, one of"},
       Summing(SumToNan)},
      {{"AveragedTwice", "the mean is divided by the world size again",
        "Gradients", "averaged twice"},
       Summing(AverageAgain)},
      {{"SummedInBFloat16", "gradients are rounded to bfloat16 to travel",
        "Gradients", "as near as bfloat16 rounds"},
       Summing(SumInBFloat16)},
      {{"SummedFromOwnRank", "each rank adds the gradients in its own order",
        "RanksAgree", "added in different orders?"},
       Summing(SumFromOwnRank)},
      {{"NotBroadcast", "every rank starts with parameters of its own",
        "SameStart, RanksAgree, Gradients",
        "parameters not broadcast from rank 0?"},
       Calling(NoBroadcast)},
      {{"WrongRoot", "the parameters are broadcast from the last rank",
        "SameStart", "and all ranks start alike: broadcast from another rank?"},
       Calling(BroadcastFromLastRank)},
  };
}

// Makes a step whose gradients are scaled by `scale` of the shard and the
// requested scale.
Mutation Scaling(float (*scale)(const RankContext&, int64_t samples, float)) {
  return Stepping([scale](const StepCall& call) {
    const auto samples = static_cast<int64_t>(call.batch.labels.size());
    return call.model.ForwardBackward(
        call.batch, scale(call.on, samples, call.scale), call.ready);
  });
}

// Runs the step, then applies `change` to the gradients before any is ready.
Mutation Changing(std::function<void(Parameters&)> change) {
  return Stepping([change = std::move(change)](
                      const StepCall& call) -> absl::StatusOr<Metrics> {
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
    change(call.model.parameters());
    call.MarkAllReady();
    return metrics;
  });
}

Mutation Accumulate() {
  return Changing([sum = std::vector<float>()](Parameters& parameters) mutable {
    const std::span<float> gradients = parameters.gradients();
    sum.resize(gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] += sum[i];
      sum[i] = gradients[i];
    }
  });
}

void LeaveOutB3(Parameters& parameters) {
  for (int i = 0; i < parameters.count(); ++i) {
    if (parameters.specs()[i].name != "b3") continue;
    std::ranges::fill(parameters.gradient(i), 0.0f);
  }
}

// From the second step on, the first bucket is summed before its last gradient,
// W3's, is computed. Each rank adds the values that the previous step left
// there, and the sum replaces the gradient that comes too late.
Mutation ReduceBucketEarly() {
  return Stepping([first = true](
                      const StepCall& call) mutable -> absl::StatusOr<Metrics> {
    if (std::exchange(first, false)) return call.Make();
    Parameters& parameters = call.model.parameters();
    int last = 0;
    while (parameters.specs()[last].name != "W3") ++last;
    const std::span<float> gradient = parameters.gradient(last);
    const std::vector<float> early(gradient.begin(), gradient.end());
    LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
    std::ranges::copy(early, gradient.begin());
    call.MarkAllReady();
    return metrics;
  });
}

absl::StatusOr<Metrics> ShiftLabelsOfRank1(const StepCall& call) {
  if (call.on.rank != 1) return call.Make();
  std::vector<int32_t> labels(call.batch.labels.begin(),
                              call.batch.labels.end());
  for (int32_t& label : labels) label = (label + 1) % 10;
  return call.model.ForwardBackward({call.batch.images, labels}, call.scale,
                                    call.ready);
}

Mutation Decay() {
  return Stepping([first = true](const StepCall& call) mutable {
    for (float& v : call.model.parameters().values()) {
      if (!first) v *= 0.9999f;
    }
    first = false;
    return call.Make();
  });
}

Mutation ScaleLearningRate() {
  return {.trainer = [](TrainerOptions& options, int world_size) {
    options.learning_rate *= static_cast<float>(world_size);
  }};
}

std::vector<TrainingMutant> StepMutants() {
  const auto sum = [](const RankContext& context, int64_t, float asked) {
    return asked * static_cast<float>(context.world_size);
  };
  const auto mean_of_means = [](const RankContext& context, int64_t samples,
                                float) {
    return 1.0f / static_cast<float>(context.world_size *
                                     std::max<int64_t>(samples, 1));
  };
  const auto full_batch = [](const RankContext& context, int64_t, float) {
    return 1.0f / static_cast<float>(context.trainer->batch_size);
  };
  return {
      {{"SumNotMean", "gradients are summed where their mean is due",
        "Gradients", "the world size: summed, not averaged?"},
       Scaling(sum)},
      {{"MeanOfMeans", "uneven shards' means are averaged without weights",
        "Gradients", "the mean of the ranks' means, without weights"},
       Scaling(mean_of_means)},
      {{"LastBatchAsFull", "a partial batch is weighted as a full one",
        "Gradients", "another batch's count?"},
       Scaling(full_batch)},
      {{"Accumulated", "gradients are not cleared between steps", "Gradients",
        "the sum with that of the step before: not cleared?"},
       Accumulate()},
      {{"ParameterLeftOut", "one parameter gets no gradient", "Gradients",
        "all of b3 is zero: left out?"},
       Changing(LeaveOutB3)},
      {{"BucketBeforeLastGradient",
        "a bucket is reduced before its last gradient is computed", "Gradients",
        "all of W3 is 3 times the sum of the step before"},
       ReduceBucketEarly()},
      {{"LabelsShifted", "rank 1 reads each label one too high",
        "Samples, Gradients", "samples have another label"},
       Stepping(ShiftLabelsOfRank1)},
      {{"Decayed", "parameters shrink between the steps", "Updates",
        "values shrink by 0.0001 of themselves: weight decay?"},
       Decay()},
      {{"LearningRateScaled", "the learning rate is multiplied by the ranks",
        "Updates",
        "the world size: the learning rate multiplied by the ranks?"},
       ScaleLearningRate()},
  };
}

// A sampler that draws with `draw`, from the sampler that it owns and the
// current epoch.
class SamplerMutant : public Sampler {
 public:
  using Draw = absl::StatusOr<std::vector<int64_t>> (*)(Sampler&, int64_t epoch,
                                                        int rank);

  SamplerMutant(std::unique_ptr<Sampler> inner, int rank, Draw draw)
      : inner_(std::move(inner)), rank_(rank), draw_(draw) {}

  void SetEpoch(int64_t epoch) override { epoch_ = epoch; }
  absl::StatusOr<std::vector<int64_t>> Indices() override {
    return draw_(*inner_, epoch_, rank_);
  }

 private:
  const std::unique_ptr<Sampler> inner_;
  const int rank_;
  const Draw draw_;
  int64_t epoch_ = 0;
};

Mutation Drawing(SamplerMutant::Draw draw) {
  return {.sampler = [draw](std::unique_ptr<Sampler> inner,
                            const RankContext& context) {
    return std::make_unique<SamplerMutant>(std::move(inner), context.rank,
                                           draw);
  }};
}

// Returns a mutation whose sampler has changed options.
Mutation DrawingWith(void (*change)(DistributedSamplerOptions&)) {
  return {.sampler = [change](std::unique_ptr<Sampler>,
                              const RankContext& context) {
    DistributedSamplerOptions options = {
        .dataset_size = context.dataset_size,
        .world_size = context.world_size,
        .rank = context.rank,
        .seed = static_cast<int64_t>(context.trainer->seed)};
    change(options);
    return std::make_unique<DistributedSampler>(
        DistributedSampler::Create(options).value());
  }};
}

absl::StatusOr<std::vector<int64_t>> ForgetEpoch(Sampler& sampler, int64_t,
                                                 int) {
  sampler.SetEpoch(0);
  return sampler.Indices();
}

absl::StatusOr<std::vector<int64_t>> RepeatSample(Sampler& sampler,
                                                  int64_t epoch, int rank) {
  sampler.SetEpoch(epoch);
  auto indices = sampler.Indices();
  if (indices.ok() && rank == 1) (*indices)[1] = (*indices)[0];
  return indices;
}

std::vector<TrainingMutant> SamplerMutants() {
  return {
      {{"SameShard", "every rank draws rank 0's samples", "Samples, Gradients",
        "the same shard on every rank"},
       DrawingWith([](auto& options) { options.rank = 0; })},
      {{"EpochNotSet", "every epoch has the order of the first",
        "Samples, EpochsDiffer, Gradients",
        "epoch 1 step 0: the ranks see the samples of epoch 0 again"},
       Drawing(ForgetEpoch)},
      {{"SeedByRank", "each rank shuffles with a seed of its own",
        "Samples, Gradients", "come to several ranks: shuffled apart?"},
       DrawingWith([](auto& options) { options.seed += options.rank; })},
      {{"NotShuffled",
        "every epoch visits the samples in the order of the file",
        "Samples, EpochsDiffer, Gradients",
        "in the data set's order: not shuffled?"},
       DrawingWith([](auto& options) { options.shuffle = false; })},
      {{"SampleRepeated", "a rank draws one sample twice, another never",
        "Samples, Gradients",
        "are missing, 1 are too many; 1 come more than once"},
       Drawing(RepeatSample)},
  };
}

// Plants a mutation in a run of three ranks and returns each check's verdict.
// The ranks have 4, 4 and 3 samples a step, then one each in the last step of
// an epoch. Errors: the run's, and CaughtBy's.
absl::StatusOr<Caught> Plant(const RankRunner& run, const Mutation& mutation) {
  RunOptions options;
  options.run = run;
  options.world_size = 3;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankTrace> ranks,
                            RecordTraining(options, mutation));
  const Expectation want = OneRank(options);
  std::vector<std::pair<std::string, absl::Status>> verdicts;
  for (const Check& check : AllChecks()) {
    verdicts.emplace_back(check.name, check.run(want, ranks));
  }
  return CaughtBy(verdicts);
}

}  // namespace

Mutation Calling(GroupMutant::RunWrong run) {
  return {.communicator = [run = std::move(run)](Communicator& inner,
                                                 const RankContext&) {
    return std::make_unique<GroupMutant>(inner, run);
  }};
}

GroupMutant::RunWrong SumBy(
    std::function<absl::Status(Communicator&, Data)> sum) {
  return [sum = std::move(sum)](Communicator& real, const Collective& call) {
    if (call.operation != Operation::kAllReduce ||
        call.output.type != DataType::kFloat32) {
      return real.Run(call);
    }
    return sum(real, {static_cast<float*>(call.output.data),
                      static_cast<size_t>(call.output.count)});
  };
}

Mutation Stepping(SteppedModel::Step step) {
  return {.model = [step = std::move(step)](Model& inner,
                                            const RankContext& context) {
    return std::make_unique<SteppedModel>(inner, step, context);
  }};
}

std::vector<TrainingMutant> AllTrainingMutants() {
  std::vector<TrainingMutant> all = CommunicatorMutants();
  for (auto& some : {StepMutants(), SamplerMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

MutantSuite TrainingMutants(const RankRunner& run) {
  std::vector<std::string> checks;
  for (const Check& check : AllChecks()) checks.push_back(check.name);
  std::vector<Mutant> mutants;
  for (const TrainingMutant& row : AllTrainingMutants()) {
    mutants.push_back(row.mutant);
    mutants.back().plant = [run, mutation = row.mutation] {
      return Plant(run, mutation);
    };
  }
  return MakeSuite("training", checks, std::move(mutants));
}

}  // namespace lockstep::conformance
