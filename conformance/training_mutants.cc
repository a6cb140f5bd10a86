// Mutants of what a step computes, of the settings of a run, and of which
// samples a rank draws; and how a mutant is planted.
#include "conformance/training_mutants.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/checks.h"
#include "conformance/decorators.h"
#include "conformance/trace.h"
#include "conformance/training_run.h"
#include "models/model.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

using Ready = Model::GradientReady;

// A mutation whose step is `step`; one state of it a rank.
Mutation Stepping(std::function<ModelMutant::Step(const RankContext&)> step) {
  Mutation mutation;
  mutation.model = [step = std::move(step)](Model& inner,
                                            const RankContext& context) {
    return std::make_unique<ModelMutant>(inner, step(context));
  };
  return mutation;
}

// A step whose gradients are scaled by `scale` of the shard and the scale that
// was asked for.
Mutation Scaling(
    std::function<float(const RankContext&, int64_t samples, float)> scale) {
  return Stepping([scale = std::move(scale)](const RankContext& context) {
    return [scale, context](Model& model, const Batch& batch, float asked,
                            Ready ready) {
      const auto samples = static_cast<int64_t>(batch.labels.size());
      return model.ForwardBackward(batch, scale(context, samples, asked),
                                   ready);
    };
  });
}

// Runs the step and then `change`s the gradients before any is ready.
absl::StatusOr<Metrics> StepThen(Model& model, const Batch& batch, float scale,
                                 Ready ready,
                                 const std::function<void()>& change) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics,
                            model.ForwardBackward(batch, scale, [](int) {}));
  change();
  for (int i = model.parameters().count() - 1; i >= 0; --i) ready(i);
  return metrics;
}

ModelMutant::Step Accumulate(const RankContext&) {
  auto sum = std::make_shared<std::vector<float>>();
  return [sum](Model& model, const Batch& batch, float scale, Ready ready) {
    return StepThen(model, batch, scale, ready, [&model, &sum] {
      const std::span<float> gradients = model.parameters().gradients();
      sum->resize(gradients.size());
      for (size_t i = 0; i < gradients.size(); ++i) {
        gradients[i] += (*sum)[i];
        (*sum)[i] = gradients[i];
      }
    });
  };
}

ModelMutant::Step LeaveOutB3(const RankContext&) {
  return [](Model& model, const Batch& batch, float scale, Ready ready) {
    return StepThen(model, batch, scale, ready, [&model] {
      for (int i = 0; i < model.parameters().count(); ++i) {
        const std::span<float> gradient = model.parameters().gradient(i);
        if (model.parameters().specs()[i].name == "b3") {
          std::fill(gradient.begin(), gradient.end(), 0.0f);
        }
      }
    });
  };
}

ModelMutant::Step ShiftLabelsOfRank1(const RankContext& context) {
  return [rank = context.rank](Model& model, const Batch& batch, float scale,
                               Ready ready) {
    std::vector<int32_t> labels(batch.labels.begin(), batch.labels.end());
    for (int32_t& label : labels) {
      if (rank == 1) label = (label + 1) % 10;
    }
    return model.ForwardBackward({batch.images, labels}, scale, ready);
  };
}

ModelMutant::Step Decay(const RankContext&) {
  auto first = std::make_shared<bool>(true);
  return [first](Model& model, const Batch& batch, float scale, Ready ready) {
    for (float& v : model.parameters().values()) {
      if (!*first) v *= 0.9999f;
    }
    *first = false;
    return model.ForwardBackward(batch, scale, ready);
  };
}

Mutation ScaleLearningRate() {
  Mutation mutation;
  mutation.trainer = [](TrainerOptions& options, int world_size) {
    options.learning_rate *= static_cast<float>(world_size);
  };
  return mutation;
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
      {{"SumNotMean",
        "gradients are summed where their mean is due",
        {"Gradients"},
        "the world size: summed, not averaged?"},
       Scaling(sum)},
      {{"MeanOfMeans",
        "uneven shards' means are averaged without weights",
        {"Gradients"},
        "the mean of the ranks' means, without weights"},
       Scaling(mean_of_means)},
      {{"LastBatchAsFull",
        "a partial batch is weighted as a full one",
        {"Gradients"},
        "another batch's count?"},
       Scaling(full_batch)},
      {{"Accumulated",
        "gradients are not cleared between steps",
        {"Gradients"},
        "the sum with that of the step before: not cleared?"},
       Stepping(Accumulate)},
      {{"ParameterLeftOut",
        "one parameter gets no gradient",
        {"Gradients"},
        "all of b3 is zero: left out?"},
       Stepping(LeaveOutB3)},
      {{"LabelsShifted",
        "rank 1 reads each label one too high",
        {"Samples", "Gradients"},
        "samples have another label"},
       Stepping(ShiftLabelsOfRank1)},
      {{"Decayed",
        "parameters shrink between the steps",
        {"Updates"},
        "values shrink by 0.0001 of themselves: weight decay?"},
       Stepping(Decay)},
      {{"LearningRateScaled",
        "the learning rate is multiplied by the ranks",
        {"Updates"},
        "the world size: the learning rate multiplied by the ranks?"},
       ScaleLearningRate()},
  };
}

// Which samples a rank draws.
Mutation Drawing(std::function<SamplerMutant::Draw(const RankContext&)> draw) {
  Mutation mutation;
  mutation.sampler = [draw = std::move(draw)](std::unique_ptr<Sampler> inner,
                                              const RankContext& context) {
    return std::make_unique<SamplerMutant>(std::move(inner), draw(context));
  };
  return mutation;
}

// Draws from a sampler created with other options.
SamplerMutant::Draw DrawWith(const DistributedSamplerOptions& options) {
  return [options](Sampler&, int64_t epoch) {
    DistributedSampler sampler = DistributedSampler::Create(options).value();
    sampler.SetEpoch(epoch);
    return sampler.Indices();
  };
}

DistributedSamplerOptions OptionsOf(const RankContext& context) {
  return {.dataset_size = context.dataset_size,
          .world_size = context.world_size,
          .rank = context.rank,
          .seed = static_cast<int64_t>(context.trainer->seed)};
}

SamplerMutant::Draw SameShard(const RankContext& context) {
  DistributedSamplerOptions options = OptionsOf(context);
  options.rank = 0;
  return DrawWith(options);
}

SamplerMutant::Draw SeedByRank(const RankContext& context) {
  DistributedSamplerOptions options = OptionsOf(context);
  options.seed += context.rank;
  return DrawWith(options);
}

SamplerMutant::Draw NoShuffle(const RankContext& context) {
  DistributedSamplerOptions options = OptionsOf(context);
  options.shuffle = false;
  return DrawWith(options);
}

SamplerMutant::Draw EpochNotSet(const RankContext&) {
  return [](Sampler& inner, int64_t) {
    inner.SetEpoch(0);
    return inner.Indices();
  };
}

SamplerMutant::Draw RepeatSample(const RankContext& context) {
  return [rank = context.rank](Sampler& inner, int64_t epoch) {
    inner.SetEpoch(epoch);
    absl::StatusOr<std::vector<int64_t>> indices = inner.Indices();
    if (indices.ok() && rank == 1) (*indices)[1] = (*indices)[0];
    return indices;
  };
}

std::vector<TrainingMutant> SamplerMutants() {
  return {
      {{"SameShard",
        "every rank draws rank 0's samples",
        {"Samples", "Gradients"},
        "the same shard on every rank"},
       Drawing(SameShard)},
      {{"EpochNotSet",
        "every epoch has the order of the first",
        {"Samples", "EpochsDiffer", "Gradients"},
        "epoch 1 step 0: the ranks see the samples of epoch 0 again"},
       Drawing(EpochNotSet)},
      {{"SeedByRank",
        "each rank shuffles with a seed of its own",
        {"Samples", "Gradients"},
        "come to several ranks: shuffled apart?"},
       Drawing(SeedByRank)},
      {{"NotShuffled",
        "every epoch visits the samples in the order of the file",
        {"Samples", "EpochsDiffer", "Gradients"},
        "in the data set's order: not shuffled?"},
       Drawing(NoShuffle)},
      {{"SampleRepeated",
        "a rank draws one sample twice, another never",
        {"Samples", "Gradients"},
        "are missing, 1 are too many; 1 come more than once"},
       Drawing(RepeatSample)},
  };
}

// What each check says of a run of three ranks: 6, 6 and 5 samples a step, then
// one each in the last step of an epoch. Errors: the run's, and kInternal if a
// check failed otherwise than by kDataLoss.
absl::StatusOr<Caught> Plant(const Mutation& mutation) {
  RunOptions options;
  options.world_size = 3;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankTrace> ranks,
                            RunTraining(options, mutation));
  const Expectation want = OneRank(options);
  std::vector<Rejection> rejections;
  for (const Check& check : AllChecks()) {
    const absl::Status status = check.run(want, ranks);
    if (status.ok()) continue;
    if (status.code() != absl::StatusCode::kDataLoss) {
      return absl::InternalError(
          absl::StrCat(check.name, " failed: ", status.ToString()));
    }
    rejections.push_back({check.name, std::string(status.message())});
  }
  return CaughtBy(rejections);
}

}  // namespace

std::vector<TrainingMutant> AllTrainingMutants() {
  std::vector<TrainingMutant> all = CommunicatorMutants();
  for (auto& some : {StepMutants(), SamplerMutants()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

MutantSuite TrainingMutants() {
  std::vector<std::string> checks;
  for (const Check& check : AllChecks()) checks.push_back(check.name);
  std::vector<Mutant> mutants;
  for (const TrainingMutant& row : AllTrainingMutants()) {
    mutants.push_back(row.mutant);
    mutants.back().plant = [mutation = row.mutation] {
      return Plant(mutation);
    };
  }
  return MakeSuite("training", checks, std::move(mutants));
}

}  // namespace lockstep
