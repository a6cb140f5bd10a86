// Judges the gradients, and whether ranks hold the same.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

namespace lockstep {
namespace {

using Names = std::vector<std::string>;

// What the ranks' differing gradients are, where they are no factor of one
// rank's: made of the gradients of the ranks' shares.
std::optional<Diagnosis> FromShares(Evidence& evidence, const Names& names,
                                    const Tensors& got,
                                    const AllowedErrors& allowed) {
  const auto& shares = evidence.Shares();
  if (!shares.ok()) return std::nullopt;
  const Tensors mean = MeanOfShares(*shares, false, &ShareProbe::gradients);
  const Tensors weighted = MeanOfShares(*shares, true, &ShareProbe::gradients);
  const std::string& norm = evidence.check.all_ranks.c.batch_norm;
  const auto with = [](Cause cause, double k = 1, int rank = -1) {
    Diagnosis diagnosis{.cause = cause, .facts = {}};
    diagnosis.facts.k = k;
    diagnosis.facts.rank = rank;
    return diagnosis;
  };
  if (norm == "sync" && (Fits(names, weighted, got, allowed) ||
                         Fits(names, mean, got, allowed))) {
    return with(Cause::kLocalBatchNorm);
  }
  if (Fits(names, mean, got, allowed)) return with(Cause::kMeanOfMeans);
  for (size_t r = 0; r < shares->size(); ++r) {
    if (Fits(names, (*shares)[r].gradients, got, allowed)) {
      return with(Cause::kNotReduced, 1, static_cast<int>(r));
    }
  }
  const auto factor =
      FactorOf(names, mean, got, allowed,
               NamedFactors(evidence.world_size(),
                            evidence.check.all_ranks.c.accumulate),
               /*any=*/false);
  if (!factor.has_value()) return std::nullopt;
  Diagnosis diagnosis = with(factor->cause, factor->k);
  diagnosis.facts.of = "the plain mean of the ranks' own";
  return diagnosis;
}

Diagnosis DiagnoseGradients(Evidence& evidence, const Names& names,
                            const Reference& reference, const Tensors& got) {
  const Case& c = evidence.check.all_ranks.c;
  Diagnosis diagnosis;
  Names whose = names;
  const auto named = NamedFactors(evidence.world_size(), c.accumulate);
  auto factor = FactorOf(names, reference.want, got, reference.allowed, named,
                         /*any=*/false);
  if (!factor.has_value()) {
    const auto shares = FromShares(evidence, names, got, reference.allowed);
    if (shares.has_value()) {
      diagnosis = *shares;
    } else {
      factor = FactorOf(names, reference.want, got, reference.allowed, named,
                        /*any=*/true);
    }
  }
  if (factor.has_value()) {
    diagnosis.cause = factor->cause;
    diagnosis.facts.k = factor->k;
    whose = factor->names;
  }
  diagnosis.facts.world_size = evidence.world_size();
  diagnosis.facts.accumulate = c.accumulate;
  diagnosis.facts.tensors =
      OnlyThese(evidence.check, whose, reference.want.size());
  return diagnosis;
}

bool TooNoisy(const Difference& difference) {
  return !difference.allowed.meaningful;
}

Verdict GradientVerdict(Evidence& evidence, const Compared& compared,
                        const Reference& reference, const Tensors& got,
                        int64_t step) {
  const CheckCase& check = evidence.check;
  // A tolerance without meaning comes before any error.
  const auto noisy = std::find_if(compared.differing.begin(),
                                  compared.differing.end(), TooNoisy);
  if (noisy != compared.differing.end()) {
    return Failed(check, Claim::kGradients,
                  absl::StrCat("In step ", step, ", the gradient of ",
                               Describe(check, *noisy)),
                  {.cause = Cause::kTooNoisy, .facts = {}},
                  compared.error_over_allowed);
  }
  const Names names = NamesOf(compared);
  std::string what = absl::StrCat("In step ", step, ", the gradient of ",
                                  Describe(check, compared.differing.front()));
  absl::StrAppend(&what, "; ", names.size(), " of ", reference.want.size(),
                  " gradients differ");
  const Diagnosis diagnosis =
      DiagnoseGradients(evidence, names, reference, got);
  if (diagnosis.cause == Cause::kUnknown) {
    absl::StrAppend(&what,
                    absl::StrFormat(", and the factor that fits best is %.4g",
                                    FittedFactor(names, reference.want, got)));
  }
  return Failed(check, Claim::kGradients, what, diagnosis,
                compared.error_over_allowed);
}

// How far local batch norm is from batch norm over all samples.
std::string LocalDistance(const Evidence& evidence, const Tensors& want) {
  const Tensors one = TensorsOf(evidence.one_rank(), "gradient", 1);
  double furthest = 0;
  std::string where;
  for (const auto& [name, values] : want) {
    const auto other = one.find(name);
    if (other == one.end()) continue;
    const double magnitude = LargestMagnitude(other->second);
    const double off = LargestDifference(values, other->second);
    // What is only rounding is far from anything.
    constexpr double kNoise = 1e-4;
    if (off > furthest * magnitude && magnitude > kNoise) {
      furthest = off / magnitude;
      where = WithLayer(evidence.check, name);
    }
  }
  return absl::StrFormat(
      "These are the weighted mean of the ranks' gradients with their own "
      "statistics; one rank on the global batch is up to %.2g%% away, at %s.",
      100 * furthest, where);
}

}  // namespace

Verdict JudgeGradients(Evidence& evidence) {
  const CheckCase& check = evidence.check;
  double worst = 0;
  std::string what;
  for (const int64_t step : check.all_ranks.c.write_gradients) {
    if (check.all_ranks.c.batch_norm == "local" && step > 1) break;
    const absl::StatusOr<Reference> reference =
        GradientReference(evidence, step);
    if (!reference.ok()) {
      return Failed(check, Claim::kGradients,
                    absl::StrCat("There is no reference to judge by: ",
                                 std::string(reference.status().message())),
                    {});
    }
    const Tensors got = TensorsOf(evidence.rank(0), "gradient", step);
    const Compared compared =
        Compare(check, reference->want, got, reference->allowed);
    if (!compared.differing.empty()) {
      return GradientVerdict(evidence, compared, *reference, got, step);
    }
    worst = std::max(worst, compared.error_over_allowed);
    if (check.all_ranks.c.batch_norm == "local") {
      what = LocalDistance(evidence, reference->want);
    }
  }
  return Passed(check, Claim::kGradients, worst, what);
}

}  // namespace lockstep
