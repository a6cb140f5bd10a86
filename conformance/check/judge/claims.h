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
#include "conformance/protocol/rank_output.h"

namespace lockstep {

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
class Evidence {
 public:
  Evidence(const CheckCase& check, const CaseRuns& runs,
           const RunExtra& run_extra)
      : check(check), runs(runs), run_extra(run_extra) {}

  const CheckCase& check;
  const CaseRuns& runs;
  const RunExtra& run_extra;

  int world_size() const { return runs.all_ranks.world_size; }
  const RankOutput& one_rank() const { return runs.one_rank.ranks[0].output; }
  const RankOutput& rank(int r) const { return runs.all_ranks.ranks[r].output; }

  // By rank; of count 0 for a rank without samples in the first step. Errors:
  // run_extra's; kFailedPrecondition if it did not give one step.
  const absl::StatusOr<std::vector<ShareResult>>& Shares();

  // The samples of each rank in `step`, from 1.
  std::vector<double> Counts(int64_t step) const;

 private:
  absl::StatusOr<std::vector<ShareResult>> MakeShares() const;

  std::optional<absl::StatusOr<std::vector<ShareResult>>> shares_;
};

// The mean of a field over the shares that have samples, weighted by their
// samples or, if not `weighted`, equally.
Tensors MeanOfShares(const std::vector<ShareResult>& shares, bool weighted,
                     Tensors ShareResult::*field);

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
// accumulation, which Failed() adds.
struct Diagnosis {
  Cause cause = Cause::kUnknown;
  CauseFacts facts = {};
};

Verdict Passed(const CheckCase& check, Claim claim, double error_over_allowed,
               const std::string& what = "");
Verdict Failed(const CheckCase& check, Claim claim, const std::string& what,
               const Diagnosis& diagnosis, double error_over_allowed = 0);
Verdict Skipped(const CheckCase& check, Claim claim, const std::string& why);

// A failure because the runs that a reference is made of failed with `status`.
Verdict NoReference(const CheckCase& check, Claim claim,
                    const absl::Status& status);

// The claims. All judges but JudgeRun take for granted that JudgeRun passed:
// every rank's output is there, with the steps that it says it did, finite and
// of the right shapes.

// All runs ended well and wrote what the case asks for, and every number is
// finite. kSkipped, with the trainer's reason, if a run says that the trainer
// does not support the case. Where a run failed although a rank wrote its
// output after fewer steps than the others, that rank's missing steps are the
// cause.
Verdict JudgeRun(const CheckCase& check, const CaseRuns& runs);

// Every epoch of either run draws each sample once, and every step of all ranks
// together the samples of one rank's step; shuffled epochs differ.
Verdict JudgeSamples(const Evidence& evidence);

// All gradients and parameters that were written have the same bits on every
// rank.
Verdict JudgeRanksAgree(Evidence& evidence);

// The written gradients are the reference's.
Verdict JudgeGradients(Evidence& evidence);

// The ranks' losses, weighted by their samples, are one rank's in the steps
// from 1 to `last_step`.
Verdict JudgeLoss(Evidence& evidence, int64_t last_step);

// The written parameters and buffers are one rank's; frozen and unused ones
// are where they started. With local batch norm and in bfloat16 only the first
// step is judged; with local batch norm, buffers are each rank's own.
Verdict JudgeState(Evidence& evidence);

// The ranks evaluate every sample once between them (or every rank all of
// them), and all report the metrics of one rank.
Verdict JudgeEvaluation(Evidence& evidence);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_
