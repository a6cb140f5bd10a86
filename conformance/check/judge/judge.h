// Judges the runs of a trainer on a case. Defines the verdict on a claim and
// the causes that the checker can name, each with its meaning and its fix.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"

namespace lockstep::conformance {

enum class Outcome {
  kPassed,
  kFailed,
  kDocumented,  // Fails as the trainer's documentation states.
  kSkipped,     // Not judged: Verdict::what gives the reason.
};

// The causes that the checker can name. Explain() gives the sentences for each.
enum class Cause {
  kNone,      // Nothing failed.
  kUnknown,   // The claim failed, and no known cause fits.
  kTooNoisy,  // One rank's own rounding hides the result.
  // Runs.
  kHangs,
  kCrashes,
  kWritesNothing,
  kWritesGarbage,
  kWrongWorldSize,
  kNotFinite,
  kIncomplete,  // A requested tensor or step is missing.
  // Samples.
  kSameOrderEveryEpoch,
  kRanksDrawTheSame,   // Each rank draws as if it were alone.
  kRanksShuffleApart,  // Different seeds: some samples twice, some never.
  kPadded,             // Samples repeat at the end of an epoch.
  kRankSkipsLastBatch,
  kDropsLastBatch,
  kResumesAtStart,  // After a resume, an epoch begins again.
  kResumeRepeatsBatch,
  kResumeSkipsBatch,
  kOrderDependsOnWorldSize,
  // Gradients.
  kSummedNotAveraged,  // k = N; or reduced twice.
  kDividedTwice,       // k = 1 / N.
  kAccumulationNotScaled,
  kRanksAndMicroBatches,  // k = N * A, N / A, A / N or 1 / (N * A).
  kMeanOfMeans,           // Ranks averaged without their sample counts.
  kDividedByFullBatch,    // In an epoch's smaller last batch.
  kNotReduced,            // Each rank has its own share's gradient.
  kReducedInPart,         // Only the average over the ranks is right.
  kRanksRoundApart,       // Right on every rank, but not bitwise equal.
  kReducedInNarrowType,   // Summed in bfloat16 or float16.
  kScaled,                // g_N = k * g_1 with a k that has no name.
  // Losses.
  kLossIsSum,  // A sum over a rank's samples, not their mean.
  // Batch norm.
  kLocalBatchNorm,          // Ranks normalise over their own batch.
  kLocalBatchNormBackward,  // Backward sums over a rank's own batch.
  kBuffersOfOneRank,        // Ranks hold different buffers.
  kBuffersCountedTwice,     // A batch enters the running statistics twice.
  // Updates.
  kLearningRateScaled,  // The update is k times one rank's.
  kWeightDecayScaled,   // Weight decay is k times one rank's.
  kUpdatesEachMicroBatch,
  kFirstWeightsDiffer,  // Equal updates, from different first weights.
  kRanksUpdateApart,    // Equal gradients, different updates.
  kMomentumLost,        // Momentum is lost after a resume.
  kFrozenMoves,
  kUnusedMoves,
  kDrifts,  // From some step on, ranks or runs differ.
  // Evaluation.
  kEvaluationPadded,
  kMetricsUnweighted,
  kMetricsOfOneRank,
};

// Returns the name of an outcome, such as "passed".
const char* OutcomeName(Outcome outcome);

struct Verdict {
  std::string case_name;
  Claim claim = Claim::kRun;
  Outcome outcome = Outcome::kPassed;
  // The largest error over its allowed error; none if nothing was measured, for
  // example after a crash.
  std::optional<double> error_over_allowed = {};
  Cause cause = Cause::kNone;
  // The next four strings are one sentence each, or "" if they do not apply.
  // `what`: the first difference, its place and size; or the reason for
  // skipping.
  std::string what = {};
  std::string why = {};    // The likely cause.
  std::string fix = {};    // The remedy.
  std::string cited = {};  // For kDocumented: the place in the documentation.
  // If a run failed: the last lines that the trainer printed in that run.
  std::vector<std::string> last_lines = {};
  // If the case is kept: the command that repeats the failed run.
  std::string by_hand = {};
};

// The facts that the sentences about a cause mention. Each cause uses only some
// of them.
struct CauseFacts {
  double k = 1;              // The factor in g_N = k * g_1, or of an update.
  int world_size = 1;        // The world size of the wrong run.
  int rank = -1;             // The rank at fault; -1: no particular rank.
  int64_t step = 0;          // From 1; 0: no particular step.
  int64_t accumulate = 1;    // The number of micro-batches in a step.
  std::string tensors = {};  // "W3 (the first linear layer)"; "": all.
  std::string of = "one rank's";      // The quantity that k multiplies.
  std::string subject = "Gradients";  // The plural that is k times `of`.
};

struct Explanation {
  std::string why;  // One sentence: the likely cause.
  std::string fix;  // One sentence: the remedy.
};

std::vector<Cause> AllCauses();

// Returns the name of a cause: "ranks_shuffle_apart" for kRanksShuffleApart.
std::string CauseName(Cause cause);

// Returns the sentences for a cause; for kNone, both are "".
Explanation Explain(Cause cause, const CauseFacts& facts);

// Starts the trainer once more with one rank on part of the data, to tell
// causes apart. The start makes one step, or no step (`epochs` is 0) and an
// evaluation. Called only if a claim fails, and for the reference of local
// batch norm.
using RunExtra = std::function<absl::StatusOr<TrainerRun>(const ExtraStart&)>;

// Judges every claim in `check.claims`, in order. A claim that cannot be judged
// because an earlier one failed is kSkipped and says so.
std::vector<Verdict> Judge(const CheckCase& check, const CaseRuns& runs,
                           const RunExtra& run_extra);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_
