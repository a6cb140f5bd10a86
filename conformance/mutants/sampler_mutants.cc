// Bugs in which samples a rank draws.
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/mutants/mutants.h"
#include "conformance/mutants/training_decorators.h"
#include "conformance/training_run.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
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

}  // namespace lockstep
