// What the claims are judged on, and how a verdict is put.
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
#include "conformance/check/judge/numbers.h"
#include "conformance/check/judge/tolerance.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {

// What one rank computes on exactly one rank's share of the first step.
struct ShareProbe {
  double count = 0;  // Samples of the share.
  Tensors gradients;
  Tensors buffers;
  double loss = 0;
};

// A case's runs, and the probes of them, each made when first asked for. Not
// thread safe. Holds references: they must outlive it.
class Evidence {
 public:
  Evidence(const CheckCase& check, const CaseRuns& runs, const RunProbe& probe)
      : check(check), runs(runs), probe(probe) {}

  const CheckCase& check;
  const CaseRuns& runs;
  const RunProbe& probe;

  int world_size() const { return runs.all_ranks.world_size; }
  const RankOutput& one_rank() const { return runs.one_rank.ranks[0].output; }
  const RankOutput& rank(int r) const {
    return runs.all_ranks.ranks[static_cast<size_t>(r)].output;
  }

  // By rank; of count 0 for a rank without samples in the first step. Errors:
  // the probe's.
  const absl::StatusOr<std::vector<ShareProbe>>& Shares();

  // The samples of each rank in `step`, from 1.
  std::vector<double> Counts(int64_t step) const;

 private:
  absl::StatusOr<std::vector<ShareProbe>> MakeShares() const;

  std::optional<absl::StatusOr<std::vector<ShareProbe>>> shares_;
};

// Samples of a full global batch.
double FullBatch(const Evidence& evidence);

// The sum over ranks of weight * share, the weights those of `counts` or, if
// not `weighted`, 1 for each rank with samples; over their sum.
Tensors MeanOfShares(const std::vector<ShareProbe>& shares, bool weighted,
                     Tensors ShareProbe::*field);

// What is compared with what in one set of tensors.
struct Reference {
  Tensors want;
  AllowedErrors allowed;
};

// The gradients of `step` that the ranks should hold: one rank's; with local
// batch norm the weighted mean of the shares'. Errors: the probe's.
absl::StatusOr<Reference> GradientReference(Evidence& evidence, int64_t step);

// One rank's output of the kind, "parameter" or "buffer", after `step`.
Reference StateReference(const Evidence& evidence, const std::string& kind,
                         int64_t step);

// Whether a tensor is one of the frozen or unused parameters, which are held to
// where they started.
bool IsStill(const CheckCase& check, const std::string& name);

// "" if `names` are all of `count` tensors, else these and their layers.
std::string OnlyThese(const CheckCase& check,
                      const std::vector<std::string>& names, size_t count);

// A cause and what is known of it.
struct Diagnosis {
  Cause cause = Cause::kUnknown;
  CauseFacts facts;
};

Verdict Passed(const CheckCase& check, Claim claim, double error_over_allowed,
               const std::string& what = "");
Verdict Failed(const CheckCase& check, Claim claim, const std::string& what,
               const Diagnosis& diagnosis, double error_over_allowed = 0);
Verdict Skipped(const CheckCase& check, Claim claim, const std::string& why);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVIDENCE_H_
