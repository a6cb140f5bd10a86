// Judges whether ranks hold the same gradients and parameters, and whether the
// gradients equal one rank's.
#include "conformance/check/judge/gradient_claim.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/compare.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/gradient_causes.h"
#include "conformance/check/judge/judge.h"
#include "conformance/check/judge/updates.h"

namespace lockstep::conformance {
namespace {

using Names = std::vector<std::string>;

// The first rank whose bits differ from rank 0's, and the tensors that differ.
struct Disagreement {
  int rank = 0;
  Names names;  // In the order of the forward pass.
};

std::optional<Disagreement> DisagreementIn(const Evidence& evidence,
                                           const std::string& kind,
                                           int64_t step) {
  const Names order = NamesInOrder(evidence.check);
  for (int r = 1; r < evidence.world_size(); ++r) {
    Disagreement found{.rank = r, .names = {}};
    for (const std::string& name : order) {
      const std::string key = absl::StrCat(kind, ".", step, "/", name);
      if (kind == "gradient" && IsFrozenOrUnused(evidence.check, name))
        continue;
      const NamedTensors& mine = evidence.rank(r).tensors;
      const NamedTensors& first = evidence.rank(0).tensors;
      const bool same = mine.contains(key) && first.contains(key)
                            ? mine.at(key) == first.at(key)
                            : mine.contains(key) == first.contains(key);
      if (!same) found.names.push_back(name);
    }
    if (!found.names.empty()) return found;
  }
  return std::nullopt;
}

std::string Describe(const Evidence& evidence, const Disagreement& found,
                     const std::string& kind, int64_t step) {
  const std::string& name = found.names.front();
  const Values a = TensorsOf(evidence.rank(0), kind, step)[name];
  const Values b = TensorsOf(evidence.rank(found.rank), kind, step)[name];
  const double off = LargestDifference(a, b);
  const double magnitude = LargestMagnitude(a);
  return absl::StrFormat(
      "In step %d, ranks 0 and %d hold another %s of %s: %.3g apart (relative "
      "%.2g, %.3g units in the last place of its largest element; no bit may "
      "differ); %d in all differ",
      step, found.rank, kind, WithLayer(evidence.check, name), off,
      off / magnitude, off / UnitInLastPlace(magnitude, 24),
      found.names.size());
}

// Returns whether each rank holds the gradient of its own share of the first
// step, up to a factor.
bool RanksHoldOwnShares(const std::vector<Tensors>& held,
                        const std::vector<ShareResult>& shares,
                        const Reference& reference, const Names& names) {
  for (size_t r = 0; r < held.size(); ++r) {
    const Tensors& own = shares[r].gradients;
    if (shares[r].count > 0 && !Fits(names, own, held[r], reference.allowed) &&
        !FactorOf(names, own, held[r], reference.allowed, {}, /*any=*/true)) {
      return false;
    }
  }
  return true;
}

Cause CauseOfDifferingRanks(Evidence& evidence, const Names& names,
                            int64_t step) {
  const absl::StatusOr<Reference> reference = GradientReference(evidence, step);
  if (!reference.ok()) return Cause::kUnknown;
  // If one rank's own runs differ too much, the noise alone may explain why
  // ranks differ.
  const AllowedErrors& allowed = reference->allowed;
  const bool noisy = std::ranges::any_of(names, [&](const std::string& name) {
    const auto found = allowed.find(name);
    return found != allowed.end() && !found->second.meaningful;
  });
  if (noisy) return Cause::kTooNoisy;
  std::vector<Tensors> held;  // By rank.
  for (int r = 0; r < evidence.world_size(); ++r) {
    held.push_back(TensorsOf(evidence.rank(r), "gradient", step));
  }
  if (std::ranges::all_of(held, [&](const Tensors& one) {
        return Fits(names, reference->want, one, allowed);
      })) {
    return Cause::kRanksRoundApart;
  }
  if (step == 1 && evidence.Shares().ok() &&
      RanksHoldOwnShares(held, *evidence.Shares(), *reference, names)) {
    return Cause::kNotReduced;
  }
  // The ranks may be wrong one by one and still have the right average.
  for (const std::vector<double>& weights :
       {evidence.Counts(step), std::vector<double>(held.size(), 1)}) {
    if (Fits(names, WeightedMean(weights, held), reference->want, allowed)) {
      return Cause::kReducedInPart;
    }
  }
  return Cause::kUnknown;
}

Judgement GradientsPart(Evidence& evidence, const Disagreement& found,
                        int64_t step) {
  Diagnosis diagnosis{.cause =
                          CauseOfDifferingRanks(evidence, found.names, step)};
  diagnosis.facts.step = step;
  diagnosis.facts.tensors =
      NamesUnlessAll(evidence.check, found.names,
                     TensorsOf(evidence.one_rank(), "gradient", step).size());
  return Failed(Describe(evidence, found, "gradient", step), diagnosis);
}

// Returns whether a rank moves by rank 0's updates, from other first weights.
// Another first update alone would be a multiple of rank 0's.
bool BeganApart(const Evidence& evidence, const Disagreement& found) {
  const Case& c = evidence.c;
  if (c.weight_decay != 0) return false;  // Decay makes the weights part less.
  const auto fits = [&](int64_t step, bool any_factor) {
    AllowedErrors allowed =
        OneRanksReference(evidence, "parameter", step).allowed;
    for (auto& [name, one] : allowed) one.error *= 2;  // Two numbers, rounded.
    const Tensors first =
        UpdateOf(evidence, evidence.rank(0), "parameter", step);
    const Tensors mine =
        UpdateOf(evidence, evidence.rank(found.rank), "parameter", step);
    return any_factor ? FactorOf(found.names, first, mine, allowed, {},
                                 /*any=*/true)
                            .has_value()
                      : Fits(found.names, first, mine, allowed);
  };
  int later = 0;
  for (const int64_t step : c.write_state) {
    if (step < 2 || !Includes(c.write_state, step - 1)) continue;
    if (!fits(step, /*any_factor=*/false)) return false;
    ++later;
  }
  return later > 0 && !fits(1, /*any_factor=*/true);
}

// Returns which of two ranks lost its momentum at a resume; -1 for neither.
int RankWithoutMomentum(const Evidence& evidence, const Disagreement& found,
                        int64_t step) {
  if (!IsFirstAfterResume(evidence, step)) return -1;
  const AllowedErrors allowed =
      OneRanksReference(evidence, "parameter", step).allowed;
  const auto lost = [&](int right, int got) {
    return HasLostMomentum(evidence, found.names, evidence.rank(right),
                           evidence.rank(got), step, allowed);
  };
  if (lost(0, found.rank)) return found.rank;
  return lost(found.rank, 0) ? 0 : -1;
}

Diagnosis DiagnoseParametersApart(const Evidence& evidence,
                                  const Disagreement& found, int64_t step) {
  const Case& c = evidence.c;
  // The written gradients are known to agree.
  Diagnosis diagnosis{.cause = Includes(c.write_gradients, step)
                                   ? Cause::kRanksUpdateApart
                                   : Cause::kDrifts,
                      .facts = {.rank = found.rank, .step = step}};
  const std::string& name = found.names.front();
  if (IsFrozenOrUnused(evidence.check, name)) {
    diagnosis.cause =
        Includes(c.frozen, name) ? Cause::kFrozenMoves : Cause::kUnusedMoves;
    diagnosis.facts.tensors = name;
    return diagnosis;
  }
  const int without_momentum = RankWithoutMomentum(evidence, found, step);
  if (without_momentum >= 0) {
    diagnosis.cause = Cause::kMomentumLost;
    diagnosis.facts.rank = without_momentum;
  } else if (step == 1 && BeganApart(evidence, found)) {
    diagnosis.cause = Cause::kFirstWeightsDiffer;
  }
  return diagnosis;
}

Judgement ParametersPart(const Evidence& evidence, const Disagreement& found,
                         int64_t step) {
  return Failed(Describe(evidence, found, "parameter", step),
                DiagnoseParametersApart(evidence, found, step));
}

Judgement GradientVerdict(Evidence& evidence, const Compared& compared,
                          const Reference& reference, const Tensors& got,
                          int64_t step) {
  const CheckCase& check = evidence.check;
  // A tolerance without meaning is reported before any error.
  if (const Difference* noisy = FirstNotJudged(compared)) {
    return Failed(absl::StrCat("In step ", step, ", the gradient of ",
                               Describe(check, *noisy)),
                  {.cause = Cause::kTooNoisy}, compared.error_over_allowed);
  }
  const Names names = NamesOf(compared);
  std::string what = absl::StrCat("In step ", step, ", the gradient of ",
                                  Describe(check, compared.differing.front()));
  absl::StrAppend(&what, "; ", names.size(), " of ", reference.want.size(),
                  " gradients differ");
  const Diagnosis diagnosis =
      DiagnoseGradients(evidence, names, reference, got, step);
  if (diagnosis.cause == Cause::kUnknown) {
    absl::StrAppend(&what,
                    absl::StrFormat(", and the factor that fits best is %.4g",
                                    FittedFactor(names, reference.want, got)));
  }
  return Failed(what, diagnosis, compared.error_over_allowed);
}

// Returns how far local batch norm is from batch norm over all samples, in
// words.
std::string LocalDistance(const Evidence& evidence, const Tensors& want) {
  const Tensors one = TensorsOf(evidence.one_rank(), "gradient", 1);
  double furthest = 0;
  std::string where;
  for (const auto& [name, values] : want) {
    const auto other = one.find(name);
    if (other == one.end()) continue;
    const double magnitude = LargestMagnitude(other->second);
    const double off = LargestDifference(values, other->second);
    // A tensor that is only rounding has a large relative distance to anything.
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

Judgement JudgeRanksAgree(Evidence& evidence) {
  const Case& c = evidence.c;
  for (const int64_t step : c.write_gradients) {
    const auto found = DisagreementIn(evidence, "gradient", step);
    if (found.has_value()) return GradientsPart(evidence, *found, step);
  }
  for (const int64_t step : c.write_state) {
    const auto found = DisagreementIn(evidence, "parameter", step);
    if (found.has_value()) return ParametersPart(evidence, *found, step);
  }
  return Passed();
}

Judgement JudgeGradients(Evidence& evidence) {
  const CheckCase& check = evidence.check;
  double worst = 0;
  std::string what;
  for (const int64_t step : check.all_ranks.c.write_gradients) {
    if (check.all_ranks.c.batch_norm == "local" && step > 1) break;
    const absl::StatusOr<Reference> reference =
        GradientReference(evidence, step);
    if (!reference.ok()) {
      return ReferenceFailed(reference.status());
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
  return Passed(worst, what);
}

}  // namespace lockstep::conformance
