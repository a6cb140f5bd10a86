// Judges whether ranks hold the same gradients and parameters.
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
#include "conformance/protocol/rank_output.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string>;

// The first rank that does not hold rank 0's bits, and in which tensors.
struct Disagreement {
  int rank = 0;
  Names names;  // In the order of the forward pass.
};

const NamedTensor* Find(const RankOutput& output, const std::string& key) {
  const auto found = output.tensors.find(key);
  return found == output.tensors.end() ? nullptr : &found->second;
}

std::optional<Disagreement> DisagreementIn(const Evidence& evidence,
                                           const std::string& kind,
                                           int64_t step) {
  const Names order = NamesInOrder(evidence.check);
  for (int r = 1; r < evidence.world_size(); ++r) {
    Disagreement found{.rank = r, .names = {}};
    for (const std::string& name : order) {
      const std::string key = absl::StrCat(kind, ".", step, "/", name);
      const NamedTensor* mine = Find(evidence.rank(r), key);
      const NamedTensor* first = Find(evidence.rank(0), key);
      const bool still = kind == "gradient" && IsStill(evidence.check, name);
      if (still || (mine == nullptr && first == nullptr)) continue;
      if (mine == nullptr || first == nullptr || !(*mine == *first)) {
        found.names.push_back(name);
      }
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

// Whether every rank holds what it should, but for rounding.
bool HoldReference(const Evidence& evidence, const Reference& reference,
                   const Names& names, int64_t step) {
  for (int r = 0; r < evidence.world_size(); ++r) {
    if (!Fits(names, reference.want,
              TensorsOf(evidence.rank(r), "gradient", step),
              reference.allowed)) {
      return false;
    }
  }
  return true;
}

// Whether what the ranks hold averages to what each should hold.
bool AverageToReference(const Evidence& evidence, const Reference& reference,
                        const Names& names, int64_t step) {
  std::vector<Tensors> held;
  for (int r = 0; r < evidence.world_size(); ++r) {
    held.push_back(TensorsOf(evidence.rank(r), "gradient", step));
  }
  std::vector<double> weights = evidence.Counts(step);
  double total = 0;
  for (const double weight : weights) total += weight;
  for (double& weight : weights) weight /= total;
  const std::vector<double> equal(weights.size(),
                                  1 / static_cast<double>(weights.size()));
  const auto fits = [&](const std::vector<double>& by) {
    return Fits(names, WeightedSum(by, held), reference.want,
                reference.allowed);
  };
  return fits(weights) || fits(equal);
}

// Whether each rank holds the gradient of its own share, however scaled.
bool HoldOwnShares(Evidence& evidence, const Reference& reference,
                   const Names& names, int64_t step) {
  const auto& shares = evidence.Shares();
  if (step != 1 || !shares.ok()) return false;
  for (int r = 0; r < evidence.world_size(); ++r) {
    const ShareProbe& share = (*shares)[static_cast<size_t>(r)];
    const Tensors held = TensorsOf(evidence.rank(r), "gradient", step);
    if (share.count == 0 ||
        Fits(names, share.gradients, held, reference.allowed)) {
      continue;
    }
    if (!FactorOf(names, share.gradients, held, reference.allowed, {},
                  /*any=*/true)) {
      return false;
    }
  }
  return true;
}

Cause CauseOfParting(Evidence& evidence, const Names& names, int64_t step) {
  const absl::StatusOr<Reference> reference = GradientReference(evidence, step);
  if (!reference.ok()) return Cause::kUnknown;
  // Ranks may then part for no other reason than that a rank parts from itself.
  const AllowedErrors& allowed = reference->allowed;
  const bool noisy =
      std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        const auto found = allowed.find(name);
        return found != allowed.end() && !found->second.meaningful;
      });
  if (noisy) return Cause::kTooNoisy;
  if (HoldReference(evidence, *reference, names, step)) {
    return Cause::kRanksRoundApart;
  }
  if (HoldOwnShares(evidence, *reference, names, step)) {
    return Cause::kNotReduced;
  }
  return AverageToReference(evidence, *reference, names, step)
             ? Cause::kReducedInPart
             : Cause::kUnknown;
}

Verdict GradientsPart(Evidence& evidence, const Disagreement& found,
                      int64_t step) {
  Diagnosis diagnosis{.cause = CauseOfParting(evidence, found.names, step),
                      .facts = {}};
  diagnosis.facts.step = step;
  diagnosis.facts.world_size = evidence.world_size();
  diagnosis.facts.tensors =
      OnlyThese(evidence.check, found.names,
                TensorsOf(evidence.one_rank(), "gradient", step).size());
  return Failed(evidence.check, Claim::kRanksAgree,
                Describe(evidence, found, "gradient", step), diagnosis);
}

Verdict ParametersPart(const Evidence& evidence, const Disagreement& found,
                       int64_t step) {
  const Case& c = evidence.check.all_ranks.c;
  const std::string& name = found.names.front();
  const auto has = [&name](const Names& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto& known = c.write_gradients;  // To agree.
  const bool equal = std::find(known.begin(), known.end(), step) != known.end();
  const bool still = has(c.frozen) || has(c.unused);
  Diagnosis diagnosis{
      .cause = equal ? Cause::kRanksUpdateApart : Cause::kDrifts, .facts = {}};
  if (has(c.frozen)) diagnosis.cause = Cause::kFrozenMoves;
  if (has(c.unused)) diagnosis.cause = Cause::kUnusedMoves;
  diagnosis.facts.step = step;
  diagnosis.facts.rank = found.rank;
  diagnosis.facts.world_size = evidence.world_size();
  if (still) diagnosis.facts.tensors = name;
  return Failed(evidence.check, Claim::kRanksAgree,
                Describe(evidence, found, "parameter", step), diagnosis);
}

}  // namespace

Verdict JudgeRanksAgree(Evidence& evidence) {
  const Case& c = evidence.check.all_ranks.c;
  for (const int64_t step : c.write_gradients) {
    const auto found = DisagreementIn(evidence, "gradient", step);
    if (found.has_value()) return GradientsPart(evidence, *found, step);
  }
  for (const int64_t step : c.write_state) {
    const auto found = DisagreementIn(evidence, "parameter", step);
    if (found.has_value()) return ParametersPart(evidence, *found, step);
  }
  return Passed(evidence.check, Claim::kRanksAgree, 0);
}

}  // namespace lockstep
