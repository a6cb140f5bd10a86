// What the claims are judged on, how a verdict is put, and the judge of each
// claim. Internal to the judge; Judge (judge.h) puts the claims together.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_

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

// What one rank computes on exactly one rank's share of the first step.
struct ShareResult {
  double count = 0;  // Samples of the share.
  Tensors gradients;
  Tensors buffers;
  double loss = 0;
};

// A case's runs, and extra runs on the ranks' shares, which are started when
// they are first asked for. Not thread safe. Holds references: what they refer
// to must outlive it.
struct Evidence {
  const CheckCase& check;
  const CaseRuns& runs;
  const RunExtra& run_extra;
  const Case& c = check.all_ranks.c;

  int world_size() const { return runs.all_ranks.world_size; }
  const RankOutput& one_rank() const { return runs.one_rank.ranks[0].output; }
  const RankOutput& rank(int r) const { return runs.all_ranks.ranks[r].output; }

  // By rank; of count 0 for a rank without samples in the first step. Errors:
  // run_extra's; kFailedPrecondition if it did not give one step.
  const absl::StatusOr<std::vector<ShareResult>>& Shares();

  // The samples of each rank in `step`, from 1.
  std::vector<double> Counts(int64_t step) const;

  std::optional<absl::StatusOr<std::vector<ShareResult>>> shares = {};
};

// The mean gradients of the shares that have samples, weighted by their samples
// or, if not `weighted`, equally.
Tensors MeanOfShares(const std::vector<ShareResult>& shares, bool weighted);

// What the ranks should hold of one set of tensors.
struct Reference {
  Tensors want;
  AllowedErrors allowed;
};

// One rank's output of the kind, "gradient", "parameter" or "buffer", of or
// after `step`.
Reference OneRanksReference(const Evidence& evidence, const std::string& kind,
                            int64_t step);

// The gradients of `step` that the ranks should hold: one rank's; with local
// batch norm the weighted mean of the shares'. Errors: those of Shares().
absl::StatusOr<Reference> GradientReference(Evidence& evidence, int64_t step);

// Whether a tensor is a frozen or unused parameter, which must stay where it
// started.
bool IsStill(const CheckCase& check, const std::string& name);

// "" if `names` are all of `count` tensors, else these and their layers.
std::string OnlyThese(const CheckCase& check,
                      const std::vector<std::string>& names, size_t count);

// "With 2 ranks".
std::string WithRanks(int world_size);

// A cause and what is known of it, besides the case's world size and
// accumulation, which Judge() adds.
struct Diagnosis {
  Cause cause = Cause::kUnknown;
  CauseFacts facts = {};
};

// A verdict on a claim, to which Judge() adds the claim and the explanation.
struct Judgement {
  Outcome outcome = Outcome::kPassed;
  std::optional<double> error_over_allowed = {};  // As Verdict's.
  std::string what = {};     // As Verdict's; without the last dot if it failed.
  Diagnosis diagnosis = {};  // If it failed.
  // The run that failed, one of the evidence's; null if all ended well.
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

// A failure because the runs that a reference is made of failed with `status`.
Judgement NoReference(const absl::Status& status);

// The claims. All judges but JudgeRun take for granted that JudgeRun passed:
// every rank's output is there, with the steps that it says it did, finite and
// of the right shapes.

// All runs ended well and wrote what the case asks for, and every number is
// finite. kSkipped, with the trainer's reason, if a run says that the trainer
// does not support the case. Where a run failed although a rank wrote its
// output after fewer steps than the others, that rank's missing steps are the
// cause.
Judgement JudgeRun(Evidence& evidence);

// Every epoch of either run draws each sample once, and every step of all ranks
// together the samples of one rank's step; shuffled epochs differ.
Judgement JudgeSamples(Evidence& evidence);

// All gradients and parameters that were written have the same bits on every
// rank.
Judgement JudgeRanksAgree(Evidence& evidence);

// The written gradients are the reference's.
Judgement JudgeGradients(Evidence& evidence);

// The ranks' losses, weighted by their samples, are one rank's in the steps
// from 1 to `last_step`.
Judgement JudgeLoss(Evidence& evidence, int64_t last_step);

// The written parameters and buffers are one rank's; frozen and unused ones
// are where they started. With local batch norm and in bfloat16 only the first
// step is judged; with local batch norm, buffers are each rank's own.
Judgement JudgeState(Evidence& evidence);

// The ranks evaluate every sample once between them (or every rank all of
// them), and all report the metrics of one rank.
Judgement JudgeEvaluation(Evidence& evidence);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_
