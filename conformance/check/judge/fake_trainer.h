// A trainer of the little model (fake_model.h), right or mutated, whose ranks
// do not really run: it gives what the processes of a judged trainer would have
// written.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// Mutants of the trainer. Each shows at every world size where it makes sense,
// as in a real trainer.
enum class TrainerMutant {
  kNone,
  // Runs.
  kHangs,
  kCrashes,
  kWritesNothing,
  kWritesGarbage,
  kWritesOtherShape,
  kWritesForeignIndex,
  kThinksItIsAlone,
  kDividesByNoSamples,  // NaN on a rank that has none.
  kInfiniteGradient,
  kLeavesOutTensor,
  kLeavesOutEvaluation,
  kDropout,
  // Samples.
  kNoSetEpoch,
  kNoDistributedSampler,
  kEachShufflesAlone,  // All of the data, with a seed of its own.
  kSeedPerRank,
  kPads,
  kLastRankSkipsLastBatch,
  kLastRankSkipsAndOthersHang,
  kLastRankSkipsAndOthersCrash,
  kDropLast,
  kResumesEpoch,
  kShufflesWithinShards,
  kLosesASample,  // Rank 0, in the first step.
  // Gradients.
  kSums,
  kReducesTwiceOneParameter,
  kDividesTwice,
  kAccumulationSums,
  kAccumulationDividesTwice,
  kSumsRanksAndMicroBatches,
  kMeanOfMeans,
  kSumOfMeans,
  kAveragesIdleRanks,  // Those without a sample count as ranks.
  kDividesByFullBatch,
  kReducesNothing,
  kReducesNothingWithDropout,
  kMixesWithNeighbour,  // Each rank, its own with the next one's.
  kAddsInOwnOrder,
  kLeavesOutOneParameter,
  kFirstRanksGradients,
  kLossScale,
  // Losses.
  kReportsUnweightedLoss,
  kReportsSummedLoss,
  kReportsFirstRanksLoss,
  kReportsMicroBatchLoss,
  kReportsScaledLoss,
  kReportsRoundedLoss,
  kReportsLossOfFullBatch,
  // Batch norm.
  kLocalBatchNorm,
  kLocalBuffers,
  kFirstRanksBuffers,
  kOnlyFirstRankHasBuffers,
  kBuffersTwice,
  kOtherBuffersOnLastRank,
  // Updates.
  kLearningRateTimesRanks,
  kLearningRateTimesRoot,  // Of the number of ranks.
  kLastRanksLearningRate,
  kForgetsMomentum,
  kDecaysFrozen,
  kDecaysFrozenOnLastRank,
  kDecaysUnused,
  kSchedulesByRanks,  // A smaller learning rate from step 3 on.
  kLastRankDrifts,
  // Evaluation.
  kPadsEvaluation,
  kDropsEvaluationTail,
  kEvaluatesOnFirstRank,   // Its share only.
  kFirstRankEvaluatesAll,  // And the others nothing, which is right.
  kFirstRankEvaluatesAllToo,
  kMeanOfRankMetrics,
  kMeanOfBatchMetrics,
  kOwnMetrics,
  kTruncatesAccuracy,
  kFirstRanksMetrics,
};

// One run of the plan, joined where it has two starts. `files` must be of a
// case WithFakeModel.
TrainerRun FakeRun(const CasePlan& plan, const CaseFiles& files,
                   TrainerMutant mutant);

// All runs of a case, and extra runs, by the mutant.
CaseRuns FakeRuns(const CheckCase& check, TrainerMutant mutant);
RunExtra FakeExtraRuns(TrainerMutant mutant);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_
