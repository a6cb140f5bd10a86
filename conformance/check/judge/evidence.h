// The evidence that claims are judged on, and the form of a judgement. Internal
// to the judge. All judges except JudgeRun require that JudgeRun passed: every
// rank's output exists and has its steps, only finite numbers, and the right
// shapes.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVIDENCE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVIDENCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep::conformance {

// The result of one rank on exactly one rank's share of the first step.
struct ShareResult {
  double count = 0;  // The number of samples in the share.
  Tensors gradients;
  Tensors buffers;
  double loss = 0;
};

// The runs of a case. Extra runs on the ranks' shares are started on first use.
// Not thread safe. Holds references: the referenced objects must outlive the
// evidence.
struct Evidence {
  const CheckCase& check;
  const CaseRuns& runs;
  const RunExtra& run_extra;
  const Case& c = check.all_ranks.c;

  int world_size() const { return runs.all_ranks.world_size; }
  const RankOutput& one_rank() const { return runs.one_rank.ranks[0].output; }
  const RankOutput& rank(int r) const { return runs.all_ranks.ranks[r].output; }

  // Returns the results by rank; the count is 0 for a rank without samples in
  // the first step. Cost: the first call starts the trainer once per share with
  // samples. Errors: run_extra's; kFailedPrecondition if an extra run did not
  // give one step.
  const absl::StatusOr<std::vector<ShareResult>>& Shares();

  // Returns the number of samples of each rank in `step`, from 1.
  std::vector<double> Counts(int64_t step) const;

  std::optional<absl::StatusOr<std::vector<ShareResult>>> shares = {};
};

// Returns the mean gradients of the shares that have samples. Each share is
// weighted by its samples or, if not `weighted`, equally.
Tensors MeanOfShares(const std::vector<ShareResult>& shares, bool weighted);

// The expected values of one set of tensors on the ranks.
struct Reference {
  Tensors want;
  AllowedErrors allowed;
};

// Returns one rank's output of one kind ("gradient", "parameter" or "buffer")
// in or after `step`.
Reference OneRanksReference(const Evidence& evidence, const std::string& kind,
                            int64_t step);

// Returns the gradients of `step` that the ranks should hold: one rank's or,
// with local batch norm, the weighted mean of the shares' gradients. Errors:
// those of Shares().
absl::StatusOr<Reference> GradientReference(Evidence& evidence, int64_t step);

// Returns whether a tensor is a frozen or unused parameter, which must keep its
// start value.
bool IsFrozenOrUnused(const CheckCase& check, const std::string& name);

// Returns "" if `names` are all of the `count` tensors; otherwise the names
// with their layers.
std::string NamesUnlessAll(const CheckCase& check,
                           const std::vector<std::string>& names, size_t count);

// Returns "With 2 ranks".
std::string WithRanks(int world_size);

// A cause and its facts. Judge() adds the case's world size and accumulation.
struct Diagnosis {
  Cause cause = Cause::kUnknown;
  CauseFacts facts = {};
};

// A verdict on a claim. Judge() adds the claim and the explanation.
struct Judgement {
  Outcome outcome = Outcome::kPassed;
  std::optional<double> error_over_allowed = {};  // As in Verdict.
  std::string what = {};     // As in Verdict; if it failed, no full stop.
  Diagnosis diagnosis = {};  // Set if the claim failed.
  // The run that failed, one of the evidence's; null if all runs ended well.
  const TrainerRun* run = nullptr;
};

inline Judgement Passed(std::optional<double> error_over_allowed = {},
                        const std::string& what = "") {
  return {Outcome::kPassed, error_over_allowed, what};
}
inline Judgement Failed(const std::string& what, const Diagnosis& diagnosis,
                        std::optional<double> error_over_allowed = {}) {
  return {Outcome::kFailed, error_over_allowed, what, diagnosis};
}
inline Judgement Skipped(const std::string& why) {
  return {Outcome::kSkipped, std::nullopt, why};
}

// Returns the failure of a claim whose reference could not be made: a run for
// the reference failed with `status`.
Judgement ReferenceFailed(const absl::Status& status);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVIDENCE_H_