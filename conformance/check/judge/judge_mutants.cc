#include "conformance/check/judge/judge_mutants.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_model.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/mutant.h"

namespace lockstep {
namespace {

using enum TrainerMutant;

std::vector<JudgeMutant> RunMutants() {
  constexpr Claim kRun = Claim::kRun;
  return {
      {"hangs", "the ranks never end", kHangs, "even", kRun, Cause::kHangs},
      {"crashes", "a rank exits with status 1", kCrashes, "even", kRun,
       Cause::kCrashes},
      {"writes_nothing", "it ends without a file", kWritesNothing, "even", kRun,
       Cause::kWritesNothing},
      {"writes_garbage", "a file that is not JSON", kWritesGarbage, "even",
       kRun, Cause::kWritesGarbage},
      {"other_shape", "tensors of another shape", kWritesOtherShape, "even",
       kRun, Cause::kWritesGarbage},
      {"foreign_index", "an index that the data do not have",
       kWritesForeignIndex, "even", kRun, Cause::kWritesGarbage},
      {"alone", "every rank thinks that it is the only one", kThinksItIsAlone,
       "even", kRun, Cause::kWrongWorldSize},
      {"nan_without_samples", "a rank without samples divides by their number",
       kDividesByNoSamples, "uneven_last_batch", kRun, Cause::kNotFinite},
      {"infinite_gradient", "a gradient overflows", kInfiniteGradient, "even",
       kRun, Cause::kNotFinite},
      {"tensor_left_out", "one parameter is not written", kLeavesOutTensor,
       "even", kRun, Cause::kIncomplete},
      {"evaluation_left_out", "no metrics are written", kLeavesOutEvaluation,
       "evaluation", kRun, Cause::kIncomplete},
      {"others_hang", "the last rank skips its last batch, the others hang",
       kLastRankSkipsAndOthersHang, "even", kRun, Cause::kRankSkipsLastBatch},
      {"others_crash", "the last rank skips its last batch, the others crash",
       kLastRankSkipsAndOthersCrash, "even", kRun, Cause::kRankSkipsLastBatch},
      {"dropout", "dropout is left on", kDropout, "even", Claim::kGradients,
       Cause::kTooNoisy},
  };
}

std::vector<JudgeMutant> SampleMutants() {
  constexpr Claim kSamples = Claim::kSamples;
  return {
      {"no_set_epoch", "every epoch is shuffled with the same seed",
       kNoSetEpoch, "shuffled", kSamples, Cause::kSameOrderEveryEpoch},
      {"no_distributed_sampler", "every rank goes through all of the data",
       kNoDistributedSampler, "even", kSamples, Cause::kRanksDrawTheSame},
      {"each_shuffles_alone",
       "every rank goes through all of the data in an order of its own",
       kEachShufflesAlone, "shuffled", kSamples, Cause::kRanksDrawTheSame},
      {"seed_per_rank", "ranks shuffle with different seeds", kSeedPerRank,
       "shuffled", kSamples, Cause::kRanksShuffleApart},
      {"padded", "the last batch is filled up with the first samples", kPads,
       "uneven_last_batch", kSamples, Cause::kPadded},
      {"rank_skips_last_batch", "the last rank leaves out its last batch",
       kLastRankSkipsLastBatch, "even", kSamples, Cause::kRankSkipsLastBatch},
      {"drop_last", "the last batch is dropped", kDropLast, "uneven_last_batch",
       kSamples, Cause::kDropsLastBatch},
      {"resume_begins_epoch", "the epoch begins anew after a resume",
       kResumesEpoch, "resume", kSamples, Cause::kResumesAtStart},
      {"shuffles_within_shards", "ranks shuffle parts of the data",
       kShufflesWithinShards, "shuffled", kSamples,
       Cause::kOrderDependsOnWorldSize},
  };
}

std::vector<JudgeMutant> AgreementMutants() {
  constexpr Claim kAgree = Claim::kRanksAgree;
  return {
      {"not_reduced", "no gradient is reduced", kReducesNothing, "even", kAgree,
       Cause::kNotReduced},
      {"not_reduced_with_dropout", "the same with dropout left on",
       kReducesNothingWithDropout, "even", kAgree, Cause::kTooNoisy},
      {"reduced_with_neighbour", "each rank reduces with the next one only",
       kMixesWithNeighbour, "even", kAgree, Cause::kReducedInPart},
      {"own_order", "each rank adds the others' gradients to its own",
       kAddsInOwnOrder, "even", kAgree, Cause::kRanksRoundApart},
      {"one_left_out", "one parameter is left out of the reduction",
       kLeavesOutOneParameter, "even", kAgree, Cause::kNotReduced},
      {"one_left_out_uneven", "the same with uneven batches",
       kLeavesOutOneParameter, "uneven_batches", kAgree, Cause::kNotReduced},
      {"last_ranks_rate", "the last rank has another learning rate",
       kLastRanksLearningRate, "even", kAgree, Cause::kRanksUpdateApart},
      {"frozen_decays_on_one_rank",
       "weight decay moves a frozen parameter on the last rank",
       kDecaysFrozenOnLastRank, "frozen_parameter", kAgree,
       Cause::kFrozenMoves},
      {"one_rank_drifts", "the last rank's learning rate falls from step 3 on",
       kLastRankDrifts, "even", kAgree, Cause::kDrifts},
  };
}

std::vector<JudgeMutant> GradientMutants() {
  constexpr Claim kGradients = Claim::kGradients;
  return {
      {"summed", "gradients are summed over ranks", kSums, "even", kGradients,
       Cause::kSummedNotAveraged},
      {"one_reduced_twice", "one parameter's gradient is reduced twice",
       kReducesTwiceOneParameter, "even", kGradients,
       Cause::kSummedNotAveraged},
      {"sum_of_means", "the ranks' means are summed", kSumOfMeans,
       "uneven_batches", kGradients, Cause::kSummedNotAveraged},
      {"divided_twice", "gradients are divided by the ranks twice",
       kDividesTwice, "even", kGradients, Cause::kDividedTwice},
      {"accumulation_summed", "micro-batches are summed", kAccumulationSums,
       "accumulation", kGradients, Cause::kAccumulationNotScaled},
      {"accumulation_divided_twice", "micro-batches are divided twice",
       kAccumulationDividesTwice, "accumulation", kGradients,
       Cause::kAccumulationNotScaled},
      {"ranks_and_micro_batches", "both are summed", kSumsRanksAndMicroBatches,
       "accumulation", kGradients, Cause::kRanksAndMicroBatches},
      {"mean_of_means", "ranks are averaged without their counts", kMeanOfMeans,
       "uneven_batches", kGradients, Cause::kMeanOfMeans},
      {"mean_of_local_means", "the same with local batch norm", kMeanOfMeans,
       "local_bn", kGradients, Cause::kMeanOfMeans},
      {"first_ranks_gradients", "rank 0's gradients are broadcast",
       kFirstRanksGradients, "even", kGradients, Cause::kNotReduced},
      {"loss_scale", "the loss is scaled and not unscaled", kLossScale, "even",
       kGradients, Cause::kScaled},
      {"summed_bfloat16", "gradients are summed, in bfloat16", kSums,
       "bfloat16", kGradients, Cause::kSummedNotAveraged},
      {"local_batch_norm", "batch norm is not synchronised", kLocalBatchNorm,
       "sync_bn", kGradients, Cause::kLocalBatchNorm},
  };
}

std::vector<JudgeMutant> LossMutants() {
  constexpr Claim kLoss = Claim::kLoss;
  return {
      {"unweighted_loss", "the loss is averaged without counts",
       kReportsUnweightedLoss, "uneven_batches", kLoss, Cause::kMeanOfMeans},
      {"summed_loss", "the loss is summed over ranks", kReportsSummedLoss,
       "even", kLoss, Cause::kSummedNotAveraged},
      {"first_ranks_loss", "rank 0's loss is reported by all",
       kReportsFirstRanksLoss, "even", kLoss, Cause::kMetricsOfOneRank},
      {"micro_batch_loss", "the loss is divided by the micro-batches twice",
       kReportsMicroBatchLoss, "accumulation", kLoss,
       Cause::kAccumulationNotScaled},
      {"scaled_loss", "the reported loss is scaled", kReportsScaledLoss, "even",
       kLoss, Cause::kScaled},
      {"loss_of_full_batch", "the loss is divided by a full batch's size",
       kReportsLossOfFullBatch, "uneven_last_batch", kLoss,
       Cause::kDividedByFullBatch},
  };
}

std::vector<JudgeMutant> StateMutants() {
  constexpr Claim kState = Claim::kState;
  return {
      {"full_batch", "gradients are divided by a full batch's size",
       kDividesByFullBatch, "uneven_last_batch", kState,
       Cause::kDividedByFullBatch},
      {"idle_ranks", "ranks without samples count in the average",
       kAveragesIdleRanks, "uneven_last_batch", kState, Cause::kMeanOfMeans},
      {"local_buffers", "running statistics are of a rank's own batch",
       kLocalBuffers, "sync_bn", kState, Cause::kBuffersOfOneRank},
      {"first_ranks_buffers", "rank 0's running statistics are broadcast",
       kFirstRanksBuffers, "local_bn", kState, Cause::kBuffersOfOneRank},
      {"only_first_rank_has_buffers",
       "ranks but the first leave their running statistics as they were",
       kOnlyFirstRankHasBuffers, "sync_bn", kState, Cause::kBuffersOfOneRank},
      {"buffers_twice", "a batch enters the running statistics twice",
       kBuffersTwice, "sync_bn", kState, Cause::kBuffersCountedTwice},
      {"rate_times_ranks", "the learning rate is multiplied by the ranks",
       kLearningRateTimesRanks, "even", kState, Cause::kLearningRateScaled},
      {"rate_times_root", "the learning rate grows with the root of the ranks",
       kLearningRateTimesRoot, "even", kState, Cause::kLearningRateScaled},
      {"momentum_lost", "momentum is not in the checkpoint", kForgetsMomentum,
       "resume", kState, Cause::kMomentumLost},
      {"frozen_decays", "weight decay moves a frozen parameter", kDecaysFrozen,
       "frozen_parameter", kState, Cause::kFrozenMoves},
      {"unused_decays", "an unused parameter gets a gradient of zero",
       kDecaysUnused, "unused_parameter", kState, Cause::kUnusedMoves},
      {"other_schedule", "the learning rate falls from step 3 on",
       kSchedulesByRanks, "even", kState, Cause::kDrifts},
  };
}

std::vector<JudgeMutant> EvaluationMutants() {
  constexpr Claim kEvaluation = Claim::kEvaluation;
  return {
      {"evaluation_padded", "test samples are repeated", kPadsEvaluation,
       "evaluation", kEvaluation, Cause::kEvaluationPadded},
      {"evaluation_tail_dropped", "the last test samples are left out",
       kDropsEvaluationTail, "evaluation", kEvaluation, Cause::kDropsLastBatch},
      {"evaluates_on_first_rank", "rank 0 alone evaluates its share",
       kEvaluatesOnFirstRank, "evaluation", kEvaluation,
       Cause::kMetricsOfOneRank},
      {"mean_of_rank_metrics", "ranks' metrics are averaged without weights",
       kMeanOfRankMetrics, "evaluation", kEvaluation,
       Cause::kMetricsUnweighted},
      {"mean_of_batch_metrics", "batches' metrics are averaged without weights",
       kMeanOfBatchMetrics, "evaluation", kEvaluation,
       Cause::kMetricsUnweighted},
      {"own_metrics", "every rank reports its share's metrics", kOwnMetrics,
       "evaluation", kEvaluation, Cause::kMetricsOfOneRank},
      {"first_ranks_metrics", "rank 0's metrics are broadcast",
       kFirstRanksMetrics, "evaluation", kEvaluation, Cause::kMetricsOfOneRank},
  };
}

// How a diagnosis begins: so marked, no cause's name is the end of another's.
std::string Named(Cause cause) {
  return absl::StrCat("cause ", CauseName(cause), ": ");
}

Caught CaughtBy(const std::vector<Verdict>& verdicts) {
  Caught caught;
  for (const Verdict& verdict : verdicts) {
    if (verdict.outcome != Outcome::kFailed) continue;
    caught.checks.push_back(ClaimName(verdict.claim));
    if (!caught.diagnosis.empty()) continue;
    caught.diagnosis =
        absl::StrCat(Named(verdict.cause), verdict.what, " ", verdict.why);
  }
  return caught;
}

}  // namespace

std::vector<JudgeMutant> AllJudgeMutants() {
  std::vector<JudgeMutant> all;
  for (const auto& part :
       {RunMutants(), SampleMutants(), AgreementMutants(), GradientMutants(),
        LossMutants(), StateMutants(), EvaluationMutants()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

MutantSuite JudgeMutants() {
  std::vector<std::string> claims;
  for (const Claim claim : kAllClaims) claims.push_back(ClaimName(claim));
  std::vector<Mutant> mutants;
  for (const JudgeMutant& mutant : AllJudgeMutants()) {
    mutants.push_back(
        {.name = mutant.name,
         .planted = mutant.planted,
         .checks = {ClaimName(mutant.claim)},
         .says = Named(mutant.cause),
         .plant = [mutant]() -> absl::StatusOr<Caught> {
           return CaughtBy(JudgeTrainer(
               mutant.mutant, FakeCase(mutant.case_name, /*world_size=*/2)));
         }});
  }
  return MakeSuite("check", claims, std::move(mutants));
}

CheckCase FakeCase(const std::string& name, int world_size) {
  for (CheckCase& check : BuiltInCases(world_size)) {
    if (check.name == name) return WithFakeModel(std::move(check));
  }
  return {};
}

std::vector<Verdict> JudgeTrainer(TrainerMutant mutant,
                                  const CheckCase& check) {
  return Judge(check, FakeRuns(check, mutant), FakeExtraRuns(mutant));
}

}  // namespace lockstep
