#include "conformance/check/judge/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/cases/tensors.h"
#include "conformance/check/judge/tolerance.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/reference/bounded.h"

namespace lockstep {
namespace {

Difference DifferenceOf(const std::string& name, const Values& want,
                        const Values& got, const Allowed& allowed) {
  Difference difference{.name = name, .allowed = allowed};
  difference.error = LargestDifference(want, got);
  for (size_t i = 0; i < want.size() && i < got.size(); ++i) {
    const double off = std::fabs(want[i] - got[i]);
    if (off != difference.error && !std::isnan(off)) continue;
    difference.element = i;
    difference.want = want[i];
    difference.got = got[i];
    break;
  }
  return difference;
}

}  // namespace

Compared Compare(const CheckCase& check, const Tensors& want,
                 const Tensors& got, const AllowedErrors& allowed) {
  Compared compared;
  for (const std::string& name : NamesInOrder(check)) {
    const auto wanted = want.find(name);
    if (wanted == want.end()) continue;
    const auto found = got.find(name);
    const auto limit = allowed.find(name);
    const Difference difference = DifferenceOf(
        name, wanted->second,
        found == got.end() ? Values(wanted->second.size()) : found->second,
        limit == allowed.end() ? Allowed{} : limit->second);
    const double ratio =
        ErrorOverAllowed(difference.error, difference.allowed.error);
    if (!(ratio <= compared.error_over_allowed)) {
      compared.error_over_allowed = ratio;
    }
    if (!(difference.error <= difference.allowed.error) ||
        !difference.allowed.meaningful) {
      compared.differing.push_back(difference);
    }
  }
  return compared;
}

bool Fits(const std::vector<std::string>& names, const Tensors& candidate,
          const Tensors& got, const AllowedErrors& allowed, double slack) {
  for (const std::string& name : names) {
    const auto want = candidate.find(name), have = got.find(name);
    const auto limit = allowed.find(name);
    if (want == candidate.end() || have == got.end() || limit == allowed.end())
      return false;
    const double error = LargestDifference(want->second, have->second);
    if (!limit->second.meaningful) return false;
    if (!(error <= std::max(1.0, slack) * limit->second.error)) return false;
  }
  return !names.empty();
}

std::vector<std::string> NamesOf(const Compared& compared) {
  std::vector<std::string> names;
  for (const Difference& difference : compared.differing) {
    names.push_back(difference.name);
  }
  return names;
}

const Difference* FirstNotJudged(const Compared& compared) {
  const auto found =
      std::find_if(compared.differing.begin(), compared.differing.end(),
                   [](const Difference& d) { return !d.allowed.meaningful; });
  return found == compared.differing.end() ? nullptr : &*found;
}

std::string Describe(const CheckCase& check, const Difference& difference,
                     const std::string& reference) {
  const Allowed& allowed = difference.allowed;
  const std::string place = WithLayer(check, difference.name);
  if (!(difference.error > allowed.error) && !allowed.meaningful) {
    return absl::StrFormat(
        "%s cannot be judged: one rank's own runs differ by %.2g when the "
        "samples of a step change places, so an error of %.2g would have to be "
        "allowed, and its magnitude is %.2g",
        place, allowed.spread, allowed.error, allowed.magnitude);
  }
  const double unit = UnitInLastPlace(difference.want, DigitsOf(check));
  return absl::StrCat(
      absl::StrFormat("%s is off by %.3g at element %d: it is %.7g, %s has "
                      "%.7g (",
                      place, difference.error, difference.element,
                      difference.got, reference, difference.want),
      difference.want == 0
          ? std::string("where 0 is expected, relative error has no meaning")
          : absl::StrFormat("relative %.2g, %.3g units in the last place",
                            difference.error / std::fabs(difference.want),
                            difference.error / unit),
      absl::StrFormat("; %.2g is allowed)", allowed.error));
}

double FittedFactor(const std::vector<std::string>& names, const Tensors& want,
                    const Tensors& got) {
  double product = 0, square = 0;
  for (const std::string& name : names) {
    const auto w = want.find(name), g = got.find(name);
    if (w == want.end() || g == got.end()) continue;
    for (size_t i = 0; i < w->second.size() && i < g->second.size(); ++i) {
      product += w->second[i] * g->second[i];
      square += w->second[i] * w->second[i];
    }
  }
  return square > 0 ? product / square : 0;
}

std::vector<NamedFactor> NamedFactors(int world_size, int64_t accumulate) {
  std::vector<NamedFactor> factors;
  const auto n = static_cast<double>(world_size);
  const auto a = static_cast<double>(accumulate);
  if (world_size > 1) {
    factors.push_back({n, Cause::kSummedNotAveraged});
    factors.push_back({1 / n, Cause::kDividedTwice});
  }
  if (accumulate > 1) {
    factors.push_back({a, Cause::kAccumulationNotScaled});
    factors.push_back({1 / a, Cause::kAccumulationNotScaled});
  }
  if (world_size > 1 && accumulate > 1) {
    for (const double k : {n * a, 1 / (n * a), n / a, a / n}) {
      if (k != 1) factors.push_back({k, Cause::kRanksAndMicroBatches});
    }
  }
  return factors;
}

std::vector<NamedFactor> BatchFactors(const std::vector<double>& counts,
                                      double full) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  const double most = *std::max_element(counts.begin(), counts.end());
  const auto active = static_cast<double>(std::count_if(
      counts.begin(), counts.end(), [](double count) { return count > 0; }));
  const auto ranks = static_cast<double>(counts.size());
  if (!(total > 0 && total < full)) return {};
  std::vector<NamedFactor> factors = {
      {total / full, Cause::kDividedByFullBatch}};
  // Else the ranks' means have no common factor.
  if (most * active != total || active == ranks) return factors;
  factors.push_back({most * ranks / full, Cause::kDividedByFullBatch});
  factors.push_back({active / ranks, Cause::kMeanOfMeans});
  return factors;
}

std::optional<FoundFactor> FactorOf(const std::vector<std::string>& names,
                                    const Tensors& want, const Tensors& got,
                                    const AllowedErrors& allowed,
                                    const std::vector<NamedFactor>& named,
                                    bool any) {
  // Where a factor of 1 fits as well, the numbers are too close to tell.
  const auto fits = [&](double k) {
    return Fits(names, Times(k, want), got, allowed, std::fabs(k)) &&
           !Fits(names, want, got, allowed, std::fabs(k));
  };
  for (const NamedFactor& factor : named) {
    if (fits(factor.k)) return FoundFactor{factor.k, factor.cause, names};
  }
  const double k = any ? FittedFactor(names, want, got) : 0;
  // A factor of 0 would fit whatever is small.
  constexpr double kLeast = 1e-3;
  if (std::fabs(k) > kLeast && fits(k)) {
    return FoundFactor{k, Cause::kScaled, names};
  }
  if (names.size() < 2) return std::nullopt;
  std::optional<FoundFactor> first;
  for (const std::string& name : names) {
    const auto own = FactorOf({name}, want, got, allowed, named, any);
    if (!own.has_value()) return std::nullopt;
    if (!first.has_value()) {
      first = own;
    } else if (own->k == first->k) {
      first->names.push_back(name);
    }
  }
  return first;
}

}  // namespace lockstep
