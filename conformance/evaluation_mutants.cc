// The bugs.
#include "conformance/evaluation_mutants.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation_check.h"
#include "conformance/evaluation_run.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/data_parallel.h"
#include "models/train/trainer.h"
#include "sampler/distributed_sampler.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

constexpr int64_t kBatch = Trainer::kEvaluationBatch;

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

Metrics SumOf(const std::vector<Metrics>& parts) {
  Metrics sum;
  for (const Metrics& part : parts) sum += part;
  return sum;
}

// The rank's share of the first `size` samples, in whole batches.
absl::StatusOr<Metrics> EvaluateShare(const Communicator& group, Model& model,
                                      const Dataset& data, int64_t size) {
  const int64_t batches = (size + kBatch - 1) / kBatch;
  const Shard shard = ExactShard(batches, group.world_size(), group.rank());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<Metrics> parts,
      EvaluateBatches(model, data,
                      Range(std::min(size, shard.begin * kBatch),
                            std::min(size, shard.end * kBatch))));
  return SumOf(parts);
}

}  // namespace

absl::StatusOr<Evaluation> ReportOwnShare(Communicator& group, Model& model,
                                          const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size));
  return MeanOf(share);
}

absl::StatusOr<Evaluation> PadSampler(Communicator& group, Model& model,
                                      const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      DistributedSampler sampler,
      DistributedSampler::Create({.dataset_size = data.size,
                                  .world_size = group.world_size(),
                                  .rank = group.rank(),
                                  .shuffle = false}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> samples,
                            sampler.Indices());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Metrics> parts,
                            EvaluateBatches(model, data, samples));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum,
                            AllReduceMetrics(group, SumOf(parts)));
  return MeanOf(sum);
}

absl::StatusOr<Evaluation> DropPartialBatch(Communicator& group, Model& model,
                                            const Dataset& data) {
  const int64_t whole = data.size / kBatch * kBatch;
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, whole));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum, AllReduceMetrics(group, share));
  return MeanOf(sum);
}

absl::StatusOr<Evaluation> AverageRanksMeans(Communicator& group, Model& model,
                                             const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size));
  double means[] = {MeanOf(share).loss, MeanOf(share).accuracy};
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(means));
  return Evaluation{means[0] / group.world_size(),
                    means[1] / group.world_size(), data.size};
}

absl::StatusOr<Evaluation> AverageRanksAccuracies(Communicator& group,
                                                  Model& model,
                                                  const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(Evaluation right,
                            EvaluateByTrainer(group, model, data));
  LOCKSTEP_ASSIGN_OR_RETURN(const Evaluation wrong,
                            AverageRanksMeans(group, model, data));
  right.accuracy = wrong.accuracy;
  return right;
}

absl::StatusOr<Evaluation> SumPlainly(Communicator& group, Model& model,
                                      const Dataset& data) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics share,
                            EvaluateShare(group, model, data, data.size));
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics sum, AllReduceMetrics(group, share));
  return MeanOf(sum);
}

std::vector<EvaluationMutant> AllEvaluationMutants() {
  return {
      {.name = "OwnShare",
       .bug = "every rank reports the metrics of its own share",
       .check = "RanksAgree",
       .says = "each of its own samples, not reduced over the ranks?",
       .evaluate = ReportOwnShare},
      {.name = "Padded",
       .bug = "the sampler repeats samples so that ranks are even",
       .check = "Samples",
       .says = "1 count twice, those of a padded sampler?",
       .evaluate = PadSampler},
      {.name = "PartialBatchDropped",
       .bug = "the last batch is left out as it is not whole",
       .check = "Samples",
       .says = "are left out, those of the partial batch?",
       .evaluate = DropPartialBatch},
      {.name = "MeanOfMeans",
       .bug = "the ranks' means are averaged without weights",
       .check = "Loss",
       .says = "it is the mean of the ranks' means",
       .evaluate = AverageRanksMeans},
      {.name = "MeanWithoutSamples",
       .bug = "the same where a rank has no sample",
       .check = "Loss",
       .says = "the mean of a rank without samples?",
       .evaluate = AverageRanksMeans,
       .size = 1},
      {.name = "MeanOfAccuracies",
       .bug = "the ranks' accuracies are averaged without weights",
       .check = "Accuracy",
       .says = "it is the mean of the ranks' means",
       .evaluate = AverageRanksAccuracies},
      {.name = "PlainSum",
       .bug = "losses are added rank by rank, so rounded by the ranks' number",
       .check = "Loss",
       .says = "within rounding, so float64 sums of parts",
       .evaluate = SumPlainly,
       .by_chance = true},
  };
}

absl::Status PlantEvaluationMutant(const EvaluationMutant& mutant) {
  const std::vector<int> world_sizes =
      mutant.by_chance ? std::vector<int>{1, 2, 3, 4, 8}
                       : std::vector<int>{mutant.world_size};
  const uint32_t draws = mutant.by_chance ? 12 : 1;
  for (uint32_t draw = kEvaluationDraw; draw < kEvaluationDraw + draws;
       ++draw) {
    LOCKSTEP_ASSIGN_OR_RETURN(const OneRankEvaluation want,
                              EvaluateOnOneRank(mutant.size, draw));
    for (const int world_size : world_sizes) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<Evaluation> ranks,
          RunEvaluation(Backend::kThreads, world_size, mutant.size,
                        mutant.evaluate, draw));
      LOCKSTEP_RETURN_IF_ERROR(CheckEvaluation(want, ranks));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
