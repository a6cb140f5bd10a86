// Least squares of one unknown.
#include "conformance/check/factors.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/check/causes.h"
#include "conformance/check/numbers.h"
#include "conformance/check/tolerance.h"
#include "conformance/check/verdict.h"

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
  return factors;
}

std::optional<NamedFactor> FactorOf(const std::vector<std::string>& names,
                                    const Tensors& want, const Tensors& got,
                                    const AllowedErrors& allowed,
                                    const std::vector<NamedFactor>& named,
                                    bool any) {
  for (const NamedFactor& factor : named) {
    if (Fits(names, Times(factor.k, want), got, allowed, factor.k)) {
      return factor;
    }
  }
  const double k = any ? FittedFactor(names, want, got) : 0;
  // A factor of 0 would fit whatever is small.
  constexpr double kLeast = 1e-3;
  if (std::fabs(k) > kLeast &&
      Fits(names, Times(k, want), got, allowed, std::fabs(k))) {
    return NamedFactor{k, Cause::kScaled};
  }
  if (names.size() < 2) return std::nullopt;
  std::optional<NamedFactor> first;
  for (const std::string& name : names) {
    const auto own = FactorOf({name}, want, got, allowed, named, any);
    if (!own.has_value()) return std::nullopt;
    if (!first.has_value()) first = own;
  }
  return first;
}

}  // namespace lockstep
