#include "conformance/check/judge/loss_claim.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

// Returns the loss of a step, averaged over ranks with these weights.
double MeanLoss(const Evidence& evidence, int64_t step,
                const std::vector<double>& weights) {
  double sum = 0, total = 0;
  for (int r = 0; r < evidence.world_size(); ++r) {
    const double weight = weights[r];
    if (weight == 0) continue;
    const StepOutput& output = evidence.rank(r).steps[step - 1];
    sum += weight * output.loss.value_or(0);
    total += weight;
  }
  return sum / total;
}

double LossOf(const RankOutput& output, int64_t step) {
  const auto i = static_cast<size_t>(step - 1);
  return i < output.steps.size() ? output.steps[i].loss.value_or(0) : 0;
}

std::vector<double> ReorderedDifferences(const Evidence& evidence) {
  std::vector<double> differences;
  for (const TrainerRun& run : evidence.runs.reordered) {
    const RankOutput& output = run.ranks[0].output;
    for (int64_t step = 1; step <= std::ssize(output.steps); ++step) {
      differences.push_back(LossOf(output, step) -
                            LossOf(evidence.one_rank(), step));
    }
  }
  return differences;
}

double MeanShareLoss(const std::vector<ShareResult>& shares, bool weighted) {
  double sum = 0, total = 0;
  for (const ShareResult& share : shares) {
    const double weight = weighted ? share.count : share.count > 0 ? 1 : 0;
    sum += weight * share.loss;
    total += weight;
  }
  return sum / total;
}

// Returns `k` if the losses of all steps are k times one rank's; otherwise 0.
// Returns 0 for a run of one step, in which any number would be a factor.
double CommonFactor(const Evidence& evidence, double k,
                    const Allowed& allowed) {
  const int64_t last = std::ssize(evidence.one_rank().steps);
  for (int64_t step = 1; step <= last; ++step) {
    const double got = MeanLoss(evidence, step, evidence.Counts(step));
    const double want = LossOf(evidence.one_rank(), step);
    if (!(std::fabs(got - k * want) <=
          std::max(1.0, std::fabs(k)) * allowed.error)) {
      return 0;
    }
  }
  return last > 1 ? k : 0;
}

// Returns the factors that could explain the loss of this step.
std::vector<NamedFactor> FactorsOf(const Evidence& evidence, int64_t step) {
  const Case& c = evidence.c;
  if (step == 1) return NamedFactors(evidence.world_size(), c.accumulate);
  return BatchFactors(evidence.Counts(step),
                      static_cast<double>(c.global_batch()));
}

// Returns whether the first step's losses are sums over samples. One rank's
// loss is then the sum of the shares' losses and not their mean, and the ranks'
// losses `got` are the shares'.
bool IsSumOverSamples(Evidence& evidence, double got, const Allowed& allowed) {
  const auto& shares = evidence.Shares();
  if (!shares.ok()) return false;
  const auto near = [&](double a, double b) {
    return std::fabs(a - b) <= allowed.error;
  };
  const double one = LossOf(evidence.one_rank(), 1);
  const double mean = MeanShareLoss(*shares, true);
  double sum = 0;
  for (const ShareResult& share : *shares) sum += share.loss;
  return near(one, sum) && !near(one, mean) && near(got, mean);
}

// Returns the diagnosis if the first step's loss is a combination of the
// shares' losses.
std::optional<Diagnosis> DiagnoseLossFromShares(Evidence& evidence, double got,
                                                const Allowed& allowed) {
  const auto& shares = evidence.Shares();
  if (!shares.ok()) return std::nullopt;
  const auto fits = [&](double value) {
    return std::fabs(got - value) <= allowed.error;
  };
  if (fits(MeanShareLoss(*shares, false))) {
    return Diagnosis{.cause = Cause::kMeanOfMeans};
  }
  for (size_t r = 0; r < shares->size(); ++r) {
    if ((*shares)[r].count == 0 || !fits((*shares)[r].loss)) continue;
    return Diagnosis{.cause = Cause::kMetricsOfOneRank,
                     .facts = {.rank = static_cast<int>(r)}};
  }
  return std::nullopt;
}

Diagnosis DiagnoseLoss(Evidence& evidence, int64_t step, double want,
                       double got, const Allowed& allowed) {
  const Case& c = evidence.c;
  Diagnosis diagnosis;
  for (const NamedFactor& factor : FactorsOf(evidence, step)) {
    if (std::fabs(got - factor.k * want) >
        std::max(1.0, factor.k) * allowed.error) {
      continue;
    }
    diagnosis.cause = factor.cause;
    diagnosis.facts.k = factor.k;
    break;
  }
  // A sum over samples is 1 / N of one rank's if all shares are equally large.
  // Asking the shares starts the trainer again, so no other factor does.
  if (step == 1 &&
      (diagnosis.cause == Cause::kUnknown ||
       diagnosis.cause == Cause::kDividedTwice) &&
      IsSumOverSamples(evidence, got, allowed)) {
    diagnosis = {.cause = Cause::kLossIsSum};
  }
  if (step == 1 && diagnosis.cause == Cause::kUnknown) {
    diagnosis =
        DiagnoseLossFromShares(evidence, got, allowed).value_or(diagnosis);
  }
  if (step == 1 && diagnosis.cause == Cause::kUnknown) {
    const double k = CommonFactor(evidence, got / want, allowed);
    if (k != 0) diagnosis = {.cause = Cause::kScaled, .facts = {.k = k}};
  }
  // A later state is judged in every type except bfloat16.
  if (step > 1 && c.dtype == "bfloat16") diagnosis.cause = Cause::kDrifts;
  diagnosis.facts.step = step;
  diagnosis.facts.subject = "Losses";
  return diagnosis;
}

}  // namespace

Judgement JudgeLoss(Evidence& evidence, int64_t last_step) {
  const CheckCase& check = evidence.check;
  const bool local = check.all_ranks.c.batch_norm == "local";
  const std::vector<double> reordered = ReorderedDifferences(evidence);
  double worst = 0;
  for (int64_t step = 1; step <= (local ? 1 : last_step); ++step) {
    const std::vector<double> counts = evidence.Counts(step);
    const double got = MeanLoss(evidence, step, counts);
    double want = LossOf(evidence.one_rank(), step);
    if (local) {
      const auto& shares = evidence.Shares();
      if (!shares.ok()) {
        return ReferenceFailed(shares.status());
      }
      want = MeanShareLoss(*shares, true);
    }
    const Allowed allowed = AllowedScalarError(check, want, reordered);
    const double error = std::fabs(got - want);
    const double ratio = ErrorOverAllowed(error, allowed.error);
    if (!(ratio <= worst)) worst = ratio;
    if (error <= allowed.error && allowed.meaningful) continue;
    const std::string what = absl::StrFormat(
        "In step %d the ranks' losses, weighted by their samples, are %.7g and "
        "one rank's %.7g: %.3g apart (relative %.2g, %.3g units in the last "
        "place; %.2g is allowed)",
        step, got, want, error, error / std::fabs(want),
        error / UnitInLastPlace(want, DigitsOf(check)), allowed.error);
    const Diagnosis diagnosis =
        allowed.meaningful ? DiagnoseLoss(evidence, step, want, got, allowed)
                           : Diagnosis{.cause = Cause::kTooNoisy};
    return Failed(what, diagnosis, ratio);
  }
  return Passed(worst);
}

}  // namespace lockstep::conformance
