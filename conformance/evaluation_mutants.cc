#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/evaluation.h"
#include "conformance/mutant.h"
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

// An evaluator, and where it must be seen to be wrong.
struct Planting {
  Evaluator* evaluate;
  int64_t size = kEvaluationSamples;
  int world_size = 2;
  // It shows in the last bits alone, and where is chance that depends on the
  // machine: it is tried at several world sizes and draws until it does.
  bool by_chance = false;
};

absl::Status Check(const Planting& planting) {
  const std::vector<int> world_sizes =
      planting.by_chance ? std::vector<int>{1, 2, 3, 4, 8}
                         : std::vector<int>{planting.world_size};
  const uint32_t draws = planting.by_chance ? 12 : 1;
  for (uint32_t draw = kEvaluationDraw; draw < kEvaluationDraw + draws;
       ++draw) {
    LOCKSTEP_ASSIGN_OR_RETURN(const OneRankEvaluation want,
                              EvaluateOnOneRank(planting.size, draw));
    for (const int world_size : world_sizes) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<Evaluation> ranks,
          RunEvaluation(Backend::kThreads, world_size, planting.size,
                        *planting.evaluate, draw));
      const absl::Status rejected = CheckEvaluation(want, ranks);
      if (rejected.ok()) continue;
      if (!planting.by_chance) return rejected;
      // The trainer is right where this is wrong, not by the same chance.
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<Evaluation> exact,
          RunEvaluation(Backend::kThreads, world_size, planting.size,
                        EvaluateByTrainer, draw));
      const absl::Status right = CheckEvaluation(want, exact);
      return right.ok() ? rejected : absl::InternalError(right.message());
    }
  }
  return absl::OkStatus();
}

Mutant Planted(Mutant mutant, const Planting& planting) {
  mutant.plant = [planting] { return CaughtBy(Check(planting)); };
  return mutant;
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

MutantSuite EvaluationMutants() {
  std::vector<Mutant> mutants = {
      Planted({"OwnShare", "every rank reports the metrics of its own share",
               "RanksAgree",
               "each of its own samples, not reduced over the ranks?"},
              {.evaluate = ReportOwnShare}),
      Planted({"Padded", "the sampler repeats samples so that ranks are even",
               "Samples", "1 count twice, those of a padded sampler?"},
              {.evaluate = PadSampler}),
      Planted({"PartialBatchDropped",
               "the last batch is left out as it is not whole", "Samples",
               "are left out, those of the partial batch?"},
              {.evaluate = DropPartialBatch}),
      Planted({"MeanOfMeans", "the ranks' means are averaged without weights",
               "Loss", "it is the mean of the ranks' means"},
              {.evaluate = AverageRanksMeans}),
      Planted({"MeanWithoutSamples", "the same where a rank has no sample",
               "Loss", "the mean of a rank without samples?"},
              {.evaluate = AverageRanksMeans, .size = 1}),
      Planted({"MeanOfAccuracies",
               "the ranks' accuracies are averaged without weights", "Accuracy",
               "it is the mean of the ranks' means"},
              {.evaluate = AverageRanksAccuracies}),
      Planted({"PlainSum",
               "losses are added rank by rank, so rounded by the ranks' number",
               "Loss", "within rounding, so float64 sums of parts"},
              {.evaluate = SumPlainly, .by_chance = true}),
  };
  return MakeSuite("evaluation", kEvaluationChecks, std::move(mutants));
}

}  // namespace lockstep
