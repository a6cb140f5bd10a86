// Judges the losses that ranks report.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/claims.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/judge.h"
#include "conformance/protocol/rank_output.h"
#include "conformance/reference/bounded.h"

namespace lockstep {
namespace {

// The losses of a step, averaged over ranks with these weights.
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
    for (size_t i = 0; i < output.steps.size(); ++i) {
      const auto step = static_cast<int64_t>(i + 1);
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

// The factor that the losses of all steps have in common; 0 if there is none,
// or one step only, in which any number is a factor.
double CommonFactor(const Evidence& evidence, double k,
                    const Allowed& allowed) {
  const auto last = static_cast<int64_t>(evidence.one_rank().steps.size());
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

// Factors that would explain the loss of this step.
std::vector<NamedFactor> FactorsOf(const Evidence& evidence, int64_t step) {
  const Case& c = evidence.check.all_ranks.c;
  if (step == 1) return NamedFactors(evidence.world_size(), c.accumulate);
  return BatchFactors(evidence.Counts(step),
                      static_cast<double>(c.global_batch()));
}

// A loss that is made of the shares', as of the first step.
std::optional<Diagnosis> LossFromShares(Evidence& evidence, double got,
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
  const Case& c = evidence.check.all_ranks.c;
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
  if (step == 1 && diagnosis.cause == Cause::kUnknown) {
    diagnosis = LossFromShares(evidence, got, allowed).value_or(diagnosis);
  }
  if (step == 1 && diagnosis.cause == Cause::kUnknown) {
    const double k = CommonFactor(evidence, got / want, allowed);
    if (k != 0) diagnosis = {.cause = Cause::kScaled, .facts = {.k = k}};
  }
  // The only type in which a later state is not judged.
  if (step > 1 && c.dtype == "bfloat16") diagnosis.cause = Cause::kDrifts;
  diagnosis.facts.step = step;
  return diagnosis;
}

}  // namespace

Verdict JudgeLoss(Evidence& evidence, int64_t last_step) {
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
        return NoReference(check, Claim::kLoss, shares.status());
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
    return Failed(check, Claim::kLoss, what, diagnosis, ratio);
  }
  return Passed(check, Claim::kLoss, worst);
}

}  // namespace lockstep
