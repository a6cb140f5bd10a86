// The mistakes that the fake trainer can be told to make.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_

#include "conformance/check/cases/check_case.h"
#include "conformance/check/run/trainer_run.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// Each at every world size where it makes sense there, as in a real trainer.
enum class FakeFault {
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
  kFirstRankEvaluatesAll,  // And the others nothing: no mistake.
  kFirstRankEvaluatesAllToo,
  kMeanOfRankMetrics,
  kMeanOfBatchMetrics,
  kOwnMetrics,
  kTruncatesAccuracy,
  kFirstRanksMetrics,
};

// A trainer of the little model, right or with one mistake, that ranks do not
// really run: it gives what a judged trainer's processes would have written.

// One run of the plan, joined where it has two starts. `files` must be of a
// case WithFakeModel.
TrainerRun FakeRun(const CasePlan& plan, const CaseFiles& files,
                   FakeFault fault);

// All runs of a case, and probes, by a trainer with `fault`.
CaseRuns FakeRuns(const CheckCase& check, FakeFault fault);
RunProbe FakeProbe(FakeFault fault);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_
