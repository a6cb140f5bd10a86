// Least squares of one unknown.
#include "conformance/check/judge/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "conformance/check/judge/numbers.h"
#include "conformance/check/judge/tolerance.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {

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
