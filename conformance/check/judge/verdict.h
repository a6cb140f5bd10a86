// What the checker says about one claim of one case.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_VERDICT_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_VERDICT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// The claims, in the order in which they are asked: the first that fails is the
// one to read.
enum class Claim {
  kRun,         // The trainer ended, wrote what it was asked for, and no NaN.
  kSamples,     // The ranks together draw what one rank draws, each once.
  kRanksAgree,  // Every rank holds the same gradients and parameters, bitwise.
  kGradients,   // The first step's are one rank's on the global batch.
  kLoss,        // Each step's, weighted over ranks, is one rank's.
  kState,       // Parameters and buffers after each step are one rank's.
  kEvaluation,  // Metrics are one rank's, each sample counted once.
};
inline constexpr Claim kAllClaims[] = {
    Claim::kRun,  Claim::kSamples, Claim::kRanksAgree, Claim::kGradients,
    Claim::kLoss, Claim::kState,   Claim::kEvaluation};

enum class Outcome {
  kPassed,
  kFailed,
  kDocumented,  // Fails as the trainer's documentation says that it does.
  kSkipped,     // Not asked: see Verdict::what.
};

// The causes that the checker can name. What it says of each, and how to mend
// it, is in causes.h.
enum class Cause {
  kNone,      // Nothing failed.
  kUnknown,   // It differs, and no known cause fits.
  kTooNoisy,  // One rank's own rounding hides what was to be judged.
  // Runs.
  kHangs,
  kCrashes,
  kWritesNothing,
  kWritesGarbage,
  kWrongWorldSize,
  kNotFinite,
  kIncomplete,  // A tensor or step that was asked for is missing.
  // Samples.
  kSameOrderEveryEpoch,
  kRanksDrawTheSame,   // Each rank draws as if it were alone.
  kRanksShuffleApart,  // Different seeds: some twice, some never.
  kPadded,             // Repeats at the end of an epoch.
  kRankSkipsLastBatch,
  kDropsLastBatch,
  kResumesAtStart,  // After a resume, an epoch begins anew.
  kOrderDependsOnWorldSize,
  // Gradients.
  kSummedNotAveraged,  // k = N: or reduced twice.
  kDividedTwice,       // k = 1 / N.
  kAccumulationNotScaled,
  kRanksAndMicroBatches,  // k of both: N * A, N / A, A / N, 1 / (N * A).
  kMeanOfMeans,           // Ranks averaged without their counts.
  kDividedByFullBatch,    // Where an epoch's last one is smaller.
  kNotReduced,            // Each rank has its own share's gradient.
  kReducedInPart,         // Right on average over the ranks alone.
  kRanksRoundApart,       // Right on every rank, with other bits.
  kScaled,                // g_N = k g_1 with another k.
  // Batch norm.
  kLocalBatchNorm,       // Ranks normalise over their own batch.
  kBuffersOfOneRank,     // Ranks hold different buffers.
  kBuffersCountedTwice,  // A batch enters the running statistics twice.
  // Updates.
  kLearningRateScaled,  // The update is k times one rank's.
  kRanksUpdateApart,    // Equal gradients, other updates.
  kMomentumLost,        // After a resume.
  kFrozenMoves,
  kUnusedMoves,
  kDrifts,  // From a step on, ranks or runs part.
  // Evaluation.
  kEvaluationPadded,
  kMetricsUnweighted,
  kMetricsOfOneRank,
};

// "run", "ranks_agree", "passed".
const char* ClaimName(Claim claim);
const char* OutcomeName(Outcome outcome);

struct Verdict {
  std::string case_name;
  Claim claim = Claim::kRun;
  Outcome outcome = Outcome::kPassed;
  // Of what was compared, the largest error over its allowed error; 0 where
  // nothing is measured.
  double error_over_allowed = 0;
  Cause cause = Cause::kNone;
  // One sentence each; "" where they do not apply.
  std::string what;   // What differs first, where, by how much; or why skipped.
  std::string why;    // The likely cause.
  std::string fix;    // What to do about it.
  std::string cited;  // For kDocumented: where it is documented.
};

// Every cause that the checker can name: what it means and how to mend it.

// What a sentence about a cause may speak of. Only what a cause needs is read.
struct CauseFacts {
  double k = 1;                   // Of g_N = k * g_1, or of an update.
  int world_size = 1;             // Of the run that is wrong.
  int rank = -1;                  // The one at fault; -1: none in particular.
  int64_t step = 0;               // From 1; 0: none in particular.
  int64_t accumulate = 1;         // Micro-batches of a step.
  std::string tensors = {};       // "W3 (the first linear layer)"; "" for all.
  std::string of = "one rank's";  // What k is a factor of.
};

struct Explanation {
  std::string why;  // One sentence: the likely cause.
  std::string fix;  // One sentence: what to do about it.
};

std::span<const Cause> AllCauses();

// "ranks_shuffle_apart": the name of kRanksShuffleApart.
std::string CauseName(Cause cause);

// Both "" for kNone.
Explanation Explain(Cause cause, const CauseFacts& facts);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_VERDICT_H_
