// Judges the losses that ranks report.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/check/causes.h"
#include "conformance/check/check_case.h"
#include "conformance/check/claims.h"
#include "conformance/check/evidence.h"
#include "conformance/check/factors.h"
#include "conformance/check/numbers.h"
#include "conformance/check/tolerance.h"
#include "conformance/check/verdict.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {
namespace {

// The losses of a step, averaged over ranks with these weights.
double MeanLoss(const Evidence& evidence, int64_t step,
                const std::vector<double>& weights) {
  double sum = 0, total = 0;
  for (int r = 0; r < evidence.world_size(); ++r) {
    const double weight = weights[static_cast<size_t>(r)];
    if (weight == 0) continue;
    const StepOutput& output =
        evidence.rank(r).steps[static_cast<size_t>(step - 1)];
    sum += weight * output.loss.value_or(0);
    total += weight;
  }
  return sum / total;
}

double LossOf(const RankOutput& output, int64_t step) {
  const auto i = static_cast<size_t>(step - 1);
  return i < output.steps.size() ? output.steps[i].loss.value_or(0) : 0;
}

std::vector<double> ShadowDifferences(const Evidence& evidence) {
  std::vector<double> differences;
  for (const TrainerRun& shadow : evidence.runs.shadows) {
    const RankOutput& output = shadow.ranks[0].output;
    for (size_t i = 0; i < output.steps.size(); ++i) {
      const auto step = static_cast<int64_t>(i + 1);
      differences.push_back(LossOf(output, step) -
                            LossOf(evidence.one_rank(), step));
    }
  }
  return differences;
}

double MeanShareLoss(const std::vector<ShareProbe>& shares, bool weighted) {
  double sum = 0, total = 0;
  for (const ShareProbe& share : shares) {
    const double weight = weighted ? share.count : share.count > 0 ? 1 : 0;
    sum += weight * share.loss;
    total += weight;
  }
  return sum / total;
}

Diagnosis DiagnoseLoss(Evidence& evidence, int64_t step, double want,
                       double got, const Allowed& allowed) {
  const Case& c = evidence.check.all_ranks.c;
  Diagnosis diagnosis{.cause = Cause::kDrifts, .facts = {}};
  diagnosis.facts.step = step;
  diagnosis.facts.world_size = evidence.world_size();
  diagnosis.facts.accumulate = c.accumulate;
  if (step > 1) return diagnosis;
  const auto named = [&](Cause cause, double k, int rank) {
    diagnosis.cause = cause;
    diagnosis.facts.k = k;
    diagnosis.facts.rank = rank;
    return diagnosis;
  };
  const auto fits = [&](double value) {
    return std::fabs(got - value) <= allowed.error;
  };
  for (const NamedFactor& factor :
       NamedFactors(evidence.world_size(), c.accumulate)) {
    if (std::fabs(got - factor.k * want) <=
        std::max(1.0, factor.k) * allowed.error) {
      return named(factor.cause, factor.k, -1);
    }
  }
  const auto& shares = evidence.Shares();
  if (shares.ok() && fits(MeanShareLoss(*shares, false))) {
    return named(Cause::kMeanOfMeans, 1, -1);
  }
  for (size_t r = 0; shares.ok() && r < shares->size(); ++r) {
    if ((*shares)[r].count > 0 && fits((*shares)[r].loss)) {
      return named(Cause::kMetricsOfOneRank, 1, static_cast<int>(r));
    }
  }
  return named(Cause::kScaled, got / want, -1);
}

}  // namespace

Verdict JudgeLoss(Evidence& evidence, int64_t last_step) {
  const CheckCase& check = evidence.check;
  const bool local = check.all_ranks.c.batch_norm == "local";
  const std::vector<double> shadows = ShadowDifferences(evidence);
  double worst = 0;
  for (int64_t step = 1; step <= (local ? 1 : last_step); ++step) {
    const std::vector<double> counts = evidence.Counts(step);
    const double got = MeanLoss(evidence, step, counts);
    double want = LossOf(evidence.one_rank(), step);
    if (local) {
      const auto& shares = evidence.Shares();
      if (!shares.ok()) {
        return Failed(check, Claim::kLoss,
                      absl::StrCat("There is no reference to judge by: ",
                                   std::string(shares.status().message())),
                      {});
      }
      want = MeanShareLoss(*shares, true);
    }
    const Allowed allowed = AllowedScalarError(check, want, shadows);
    const double error = std::fabs(got - want);
    const double ratio = error == 0 ? 0 : error / allowed.error;
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
                           : Diagnosis{.cause = Cause::kTooNoisy, .facts = {}};
    return Failed(check, Claim::kLoss, what, diagnosis, ratio);
  }
  return Passed(check, Claim::kLoss, worst);
}

}  // namespace lockstep
