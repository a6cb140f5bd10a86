// Bugs in what a training step computes, and in the settings of a run.
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
#include "conformance/rejection.h"
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

}  // namespace

std::vector<Mutant> ModelMutants() {
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
      {"SumNotMean",
       "gradients are summed where their mean is due",
       Scaling(sum),
       {"Gradients"},
       "the world size: summed, not averaged?"},
      {"MeanOfMeans",
       "uneven shards' means are averaged without weights",
       Scaling(mean_of_means),
       {"Gradients"},
       "the mean of the ranks' means, without weights"},
      {"LastBatchAsFull",
       "a partial batch is weighted as a full one",
       Scaling(full_batch),
       {"Gradients"},
       "another batch's count?"},
      {"Accumulated",
       "gradients are not cleared between steps",
       Stepping(Accumulate),
       {"Gradients"},
       "the sum with that of the step before: not cleared?"},
      {"ParameterLeftOut",
       "one parameter gets no gradient",
       Stepping(LeaveOutB3),
       {"Gradients"},
       "all of b3 is zero: left out?"},
      {"LabelsShifted",
       "rank 1 reads each label one too high",
       Stepping(ShiftLabelsOfRank1),
       {"Samples", "Gradients"},
       "samples have another label"},
      {"Decayed",
       "parameters shrink between the steps",
       Stepping(Decay),
       {"Updates"},
       "values shrink by 0.0001 of themselves: weight decay?"},
      {"LearningRateScaled",
       "the learning rate is multiplied by the ranks",
       ScaleLearningRate(),
       {"Updates"},
       "the world size: the learning rate multiplied by the ranks?"},
  };
}

// Bugs in which samples a rank draws.
namespace {

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

}  // namespace

std::vector<Mutant> SamplerMutants() {
  return {
      {"SameShard",
       "every rank draws rank 0's samples",
       Drawing(SameShard),
       {"Samples", "Gradients"},
       "the same shard on every rank"},
      {"EpochNotSet",
       "every epoch has the order of the first",
       Drawing(EpochNotSet),
       {"Samples", "EpochsDiffer", "Gradients"},
       "epoch 1 step 0: the ranks see the samples of epoch 0 again"},
      {"SeedByRank",
       "each rank shuffles with a seed of its own",
       Drawing(SeedByRank),
       {"Samples", "Gradients"},
       "come to several ranks: shuffled apart?"},
      {"NotShuffled",
       "every epoch visits the samples in the order of the file",
       Drawing(NoShuffle),
       {"Samples", "EpochsDiffer", "Gradients"},
       "in the data set's order: not shuffled?"},
      {"SampleRepeated",
       "a rank draws one sample twice, another never",
       Drawing(RepeatSample),
       {"Samples", "Gradients"},
       "are missing, 1 are too many; 1 come more than once"},
  };
}

// All planted bugs in one list.

std::vector<Mutant> AllMutants() {
  std::vector<Mutant> all = CommunicatorMutants();
  for (Mutant& mutant : ModelMutants()) all.push_back(std::move(mutant));
  for (Mutant& mutant : SamplerMutants()) all.push_back(std::move(mutant));
  return all;
}

// Plants bugs in LeNet's training and asks the checks.

absl::StatusOr<std::vector<Rejection>> PlantMutation(const Mutation& mutation) {
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
  return rejections;
}

}  // namespace lockstep
