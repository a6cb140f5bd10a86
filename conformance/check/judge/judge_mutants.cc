// The table of faults.
#include "conformance/check/judge/judge_mutants.h"

#include <string>
#include <utility>
#include <vector>

#include "conformance/check/cases/built_in_cases.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_model.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {
namespace {

using F = FakeFault;

std::vector<JudgeFault> RunFaults() {
  constexpr Claim kRun = Claim::kRun;
  return {
      {"hangs", "the ranks never end", F::kHangs, "even", kRun, Cause::kHangs},
      {"crashes", "a rank exits with status 1", F::kCrashes, "even", kRun,
       Cause::kCrashes},
      {"writes_nothing", "it ends without a file", F::kWritesNothing, "even",
       kRun, Cause::kWritesNothing},
      {"writes_garbage", "a file that is not JSON", F::kWritesGarbage, "even",
       kRun, Cause::kWritesGarbage},
      {"other_shape", "tensors of another shape", F::kWritesOtherShape, "even",
       kRun, Cause::kWritesGarbage},
      {"foreign_index", "an index that the data do not have",
       F::kWritesForeignIndex, "even", kRun, Cause::kWritesGarbage},
      {"alone", "every rank thinks that it is the only one",
       F::kThinksItIsAlone, "even", kRun, Cause::kWrongWorldSize},
      {"nan_without_samples", "a rank without samples divides by their number",
       F::kDividesByNoSamples, "uneven_last_batch", kRun, Cause::kNotFinite},
      {"infinite_gradient", "a gradient overflows", F::kInfiniteGradient,
       "even", kRun, Cause::kNotFinite},
      {"tensor_left_out", "one parameter is not written", F::kLeavesOutTensor,
       "even", kRun, Cause::kIncomplete},
      {"evaluation_left_out", "no metrics are written", F::kLeavesOutEvaluation,
       "evaluation", kRun, Cause::kIncomplete},
      {"others_hang", "the last rank skips its last batch, the others hang",
       F::kLastRankSkipsAndOthersHang, "even", kRun,
       Cause::kRankSkipsLastBatch},
      {"others_crash", "the last rank skips its last batch, the others crash",
       F::kLastRankSkipsAndOthersCrash, "even", kRun,
       Cause::kRankSkipsLastBatch},
      {"dropout", "dropout is left on", F::kDropout, "even", Claim::kGradients,
       Cause::kTooNoisy},
  };
}

std::vector<JudgeFault> SampleFaults() {
  constexpr Claim kSamples = Claim::kSamples;
  return {
      {"no_set_epoch", "every epoch is shuffled with the same seed",
       F::kNoSetEpoch, "shuffled", kSamples, Cause::kSameOrderEveryEpoch},
      {"no_distributed_sampler", "every rank goes through all of the data",
       F::kNoDistributedSampler, "even", kSamples, Cause::kRanksDrawTheSame},
      {"each_shuffles_alone",
       "every rank goes through all of the data in an order of its own",
       F::kEachShufflesAlone, "shuffled", kSamples, Cause::kRanksDrawTheSame},
      {"seed_per_rank", "ranks shuffle with different seeds", F::kSeedPerRank,
       "shuffled", kSamples, Cause::kRanksShuffleApart},
      {"padded", "the last batch is filled up with the first samples", F::kPads,
       "uneven_last_batch", kSamples, Cause::kPadded},
      {"rank_skips_last_batch", "the last rank leaves out its last batch",
       F::kLastRankSkipsLastBatch, "even", kSamples,
       Cause::kRankSkipsLastBatch},
      {"drop_last", "the last batch is dropped", F::kDropLast,
       "uneven_last_batch", kSamples, Cause::kDropsLastBatch},
      {"resume_begins_epoch", "the epoch begins anew after a resume",
       F::kResumesEpoch, "resume", kSamples, Cause::kResumesAtStart},
      {"shuffles_within_shards", "ranks shuffle parts of the data",
       F::kShufflesWithinShards, "shuffled", kSamples,
       Cause::kOrderDependsOnWorldSize},
  };
}

std::vector<JudgeFault> AgreementFaults() {
  constexpr Claim kAgree = Claim::kRanksAgree;
  return {
      {"not_reduced", "no gradient is reduced", F::kReducesNothing, "even",
       kAgree, Cause::kNotReduced},
      {"not_reduced_with_dropout", "the same with dropout left on",
       F::kReducesNothingWithDropout, "even", kAgree, Cause::kTooNoisy},
      {"reduced_with_neighbour", "each rank reduces with the next one only",
       F::kMixesWithNeighbour, "even", kAgree, Cause::kReducedInPart},
      {"own_order", "each rank adds the others' gradients to its own",
       F::kAddsInOwnOrder, "even", kAgree, Cause::kRanksRoundApart},
      {"one_left_out", "one parameter is left out of the reduction",
       F::kLeavesOutOneParameter, "even", kAgree, Cause::kNotReduced},
      {"one_left_out_uneven", "the same with uneven batches",
       F::kLeavesOutOneParameter, "uneven_batches", kAgree, Cause::kNotReduced},
      {"last_ranks_rate", "the last rank has another learning rate",
       F::kLastRanksLearningRate, "even", kAgree, Cause::kRanksUpdateApart},
      {"frozen_decays_on_one_rank",
       "weight decay moves a frozen parameter on the last rank",
       F::kDecaysFrozenOnLastRank, "frozen_parameter", kAgree,
       Cause::kFrozenMoves},
      {"one_rank_drifts", "the last rank's learning rate falls from step 3 on",
       F::kLastRankDrifts, "even", kAgree, Cause::kDrifts},
  };
}

std::vector<JudgeFault> GradientFaults() {
  constexpr Claim kGradients = Claim::kGradients;
  return {
      {"summed", "gradients are summed over ranks", F::kSums, "even",
       kGradients, Cause::kSummedNotAveraged},
      {"one_reduced_twice", "one parameter's gradient is reduced twice",
       F::kReducesTwiceOneParameter, "even", kGradients,
       Cause::kSummedNotAveraged},
      {"sum_of_means", "the ranks' means are summed", F::kSumOfMeans,
       "uneven_batches", kGradients, Cause::kSummedNotAveraged},
      {"divided_twice", "gradients are divided by the ranks twice",
       F::kDividesTwice, "even", kGradients, Cause::kDividedTwice},
      {"accumulation_summed", "micro-batches are summed", F::kAccumulationSums,
       "accumulation", kGradients, Cause::kAccumulationNotScaled},
      {"accumulation_divided_twice", "micro-batches are divided twice",
       F::kAccumulationDividesTwice, "accumulation", kGradients,
       Cause::kAccumulationNotScaled},
      {"ranks_and_micro_batches", "both are summed",
       F::kSumsRanksAndMicroBatches, "accumulation", kGradients,
       Cause::kRanksAndMicroBatches},
      {"mean_of_means", "ranks are averaged without their counts",
       F::kMeanOfMeans, "uneven_batches", kGradients, Cause::kMeanOfMeans},
      {"mean_of_local_means", "the same with local batch norm", F::kMeanOfMeans,
       "local_bn", kGradients, Cause::kMeanOfMeans},
      {"first_ranks_gradients", "rank 0's gradients are broadcast",
       F::kFirstRanksGradients, "even", kGradients, Cause::kNotReduced},
      {"loss_scale", "the loss is scaled and not unscaled", F::kLossScale,
       "even", kGradients, Cause::kScaled},
      {"summed_bfloat16", "gradients are summed, in bfloat16", F::kSums,
       "bfloat16", kGradients, Cause::kSummedNotAveraged},
      {"local_batch_norm", "batch norm is not synchronised", F::kLocalBatchNorm,
       "sync_bn", kGradients, Cause::kLocalBatchNorm},
  };
}

std::vector<JudgeFault> LossFaults() {
  constexpr Claim kLoss = Claim::kLoss;
  return {
      {"unweighted_loss", "the loss is averaged without counts",
       F::kReportsUnweightedLoss, "uneven_batches", kLoss, Cause::kMeanOfMeans},
      {"summed_loss", "the loss is summed over ranks", F::kReportsSummedLoss,
       "even", kLoss, Cause::kSummedNotAveraged},
      {"first_ranks_loss", "rank 0's loss is reported by all",
       F::kReportsFirstRanksLoss, "even", kLoss, Cause::kMetricsOfOneRank},
      {"micro_batch_loss", "the loss is divided by the micro-batches twice",
       F::kReportsMicroBatchLoss, "accumulation", kLoss,
       Cause::kAccumulationNotScaled},
      {"scaled_loss", "the reported loss is scaled", F::kReportsScaledLoss,
       "even", kLoss, Cause::kScaled},
      {"loss_of_full_batch", "the loss is divided by a full batch's size",
       F::kReportsLossOfFullBatch, "uneven_last_batch", kLoss,
       Cause::kDividedByFullBatch},
  };
}

std::vector<JudgeFault> StateFaults() {
  constexpr Claim kState = Claim::kState;
  return {
      {"full_batch", "gradients are divided by a full batch's size",
       F::kDividesByFullBatch, "uneven_last_batch", kState,
       Cause::kDividedByFullBatch},
      {"idle_ranks", "ranks without samples count in the average",
       F::kAveragesIdleRanks, "uneven_last_batch", kState, Cause::kMeanOfMeans},
      {"local_buffers", "running statistics are of a rank's own batch",
       F::kLocalBuffers, "sync_bn", kState, Cause::kBuffersOfOneRank},
      {"first_ranks_buffers", "rank 0's running statistics are broadcast",
       F::kFirstRanksBuffers, "local_bn", kState, Cause::kBuffersOfOneRank},
      {"only_first_rank_has_buffers",
       "ranks but the first leave their running statistics as they were",
       F::kOnlyFirstRankHasBuffers, "sync_bn", kState,
       Cause::kBuffersOfOneRank},
      {"buffers_twice", "a batch enters the running statistics twice",
       F::kBuffersTwice, "sync_bn", kState, Cause::kBuffersCountedTwice},
      {"rate_times_ranks", "the learning rate is multiplied by the ranks",
       F::kLearningRateTimesRanks, "even", kState, Cause::kLearningRateScaled},
      {"rate_times_root", "the learning rate grows with the root of the ranks",
       F::kLearningRateTimesRoot, "even", kState, Cause::kLearningRateScaled},
      {"momentum_lost", "momentum is not in the checkpoint",
       F::kForgetsMomentum, "resume", kState, Cause::kMomentumLost},
      {"frozen_decays", "weight decay moves a frozen parameter",
       F::kDecaysFrozen, "frozen_parameter", kState, Cause::kFrozenMoves},
      {"unused_decays", "an unused parameter gets a gradient of zero",
       F::kDecaysUnused, "unused_parameter", kState, Cause::kUnusedMoves},
      {"other_schedule", "the learning rate falls from step 3 on",
       F::kSchedulesByRanks, "even", kState, Cause::kDrifts},
  };
}

std::vector<JudgeFault> EvaluationFaults() {
  constexpr Claim kEvaluation = Claim::kEvaluation;
  return {
      {"evaluation_padded", "test samples are repeated", F::kPadsEvaluation,
       "evaluation", kEvaluation, Cause::kEvaluationPadded},
      {"evaluation_tail_dropped", "the last test samples are left out",
       F::kDropsEvaluationTail, "evaluation", kEvaluation,
       Cause::kDropsLastBatch},
      {"evaluates_on_first_rank", "rank 0 alone evaluates its share",
       F::kEvaluatesOnFirstRank, "evaluation", kEvaluation,
       Cause::kMetricsOfOneRank},
      {"mean_of_rank_metrics", "ranks' metrics are averaged without weights",
       F::kMeanOfRankMetrics, "evaluation", kEvaluation,
       Cause::kMetricsUnweighted},
      {"mean_of_batch_metrics", "batches' metrics are averaged without weights",
       F::kMeanOfBatchMetrics, "evaluation", kEvaluation,
       Cause::kMetricsUnweighted},
      {"own_metrics", "every rank reports its share's metrics", F::kOwnMetrics,
       "evaluation", kEvaluation, Cause::kMetricsOfOneRank},
      {"first_ranks_metrics", "rank 0's metrics are broadcast",
       F::kFirstRanksMetrics, "evaluation", kEvaluation,
       Cause::kMetricsOfOneRank},
  };
}

}  // namespace

std::vector<JudgeFault> AllJudgeFaults() {
  std::vector<JudgeFault> all;
  for (const auto& part :
       {RunFaults(), SampleFaults(), AgreementFaults(), GradientFaults(),
        LossFaults(), StateFaults(), EvaluationFaults()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

CheckCase FakeCase(const std::string& name, int world_size) {
  for (CheckCase& check : BuiltInCases(world_size)) {
    if (check.name == name) return WithFakeModel(std::move(check));
  }
  return {};
}

std::vector<Verdict> JudgeFaulty(const JudgeFault& fault,
                                 const CheckCase& check) {
  return Judge(check, FakeRuns(check, fault.fault), FakeProbe(fault.fault));
}

}  // namespace lockstep
