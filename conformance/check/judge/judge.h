// Judges what a trainer did on a case: what the checker says about each claim,
// and the causes that it can name, with what each means and how to mend it.
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
  kDocumented,  // Fails as the trainer's documentation says that it does.
  kSkipped,     // Not judged: Verdict::what says why.
};

// The causes that the checker can name. Explain() has a sentence for each.
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

// "passed".
const char* OutcomeName(Outcome outcome);

struct Verdict {
  std::string case_name;
  Claim claim = Claim::kRun;
  Outcome outcome = Outcome::kPassed;
  // The largest error over its allowed error; none if nothing was measured, as
  // after a crash.
  std::optional<double> error_over_allowed = {};
  Cause cause = Cause::kNone;
  // One sentence each; "" where they do not apply.
  // What differs first, where, by how much; or why skipped.
  std::string what = {};
  std::string why = {};    // The likely cause.
  std::string fix = {};    // What to do about it.
  std::string cited = {};  // For kDocumented: where it is documented.
  // If a run failed: the last lines that the trainer printed in it.
  std::vector<std::string> last_lines = {};
  // If the case is kept: the command that starts the run at fault again.
  std::string by_hand = {};
};

// What the sentences about a cause mention. Each reads only what it needs.
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

std::vector<Cause> AllCauses();

// "ranks_shuffle_apart": the name of kRanksShuffleApart.
std::string CauseName(Cause cause);

// Both "" for kNone.
Explanation Explain(Cause cause, const CauseFacts& facts);

// Starts the trainer once more with one rank, to tell causes apart: one step,
// or no step (`epochs` is 0) and an evaluation, on part of the data. Called
// only when a claim fails, and for the reference of local batch norm.
using RunExtra = std::function<absl::StatusOr<TrainerRun>(const ExtraStart&)>;

// Judges every claim in `check.claims`, in order. A claim that cannot be judged
// because an earlier one failed is kSkipped and says so.
std::vector<Verdict> Judge(const CheckCase& check, const CaseRuns& runs,
                           const RunExtra& run_extra);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_
