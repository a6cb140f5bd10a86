#include "conformance/check/judge/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/data_types.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

// compare.h derives these numbers.
constexpr int kFloatDigits = 24;
constexpr double kSpreadFactor = 8;
constexpr double kUnits = 4;          // Units of float32 for each rank.
constexpr double kBFloat16Units = 8;  // Units of bfloat16.
// Four times kUnits. A scalar is one number, so its reordered runs may agree by
// chance; among a tensor's many elements, some differ.
constexpr double kScalarUnits = 16;
// A tensor whose spread exceeds this part of its magnitude is rounding. With
// kSpreadFactor, its tolerance would be nearly as large as the tensor.
constexpr double kNoise = 0.1;
// Replaces kSpreadFactor and kUnits for a tensor that is rounding.
constexpr double kNoiseFactor = 64;
// A part of the layer's magnitude. With a larger tolerance, a wrong value could
// pass for rounding.
constexpr double kNoiseCap = 0.1;
// Below this part of the largest change in its layer, a change may be rounding.
constexpr double kSmall = 0.01;
// A part of the change of a small tensor. It is less than half, so that three
// mistakes are found: those that give zero, the double, or half (two ranks that
// divide twice).
constexpr double kSmallCap = 0.4;

// Returns the smallest allowance for a magnitude, in the type computed in.
double UnitsOf(const CheckCase& check, double magnitude) {
  const int digits = DigitsOf(check);
  const int ranks = std::max(1, check.all_ranks.c.world_size());
  const double units = digits == kFloatDigits ? kUnits * ranks : kBFloat16Units;
  return units * UnitInLastPlace(magnitude, digits);
}

// A tensor's magnitude and rounding.
struct Rounding {
  double change = 0;  // The largest change since the start.
  double units = 0;   // The smallest allowance.
  double spread = 0;
  double scale = 0;    // The largest change in its layer.
  bool noise = false;  // By its spread or the units of its value.
  bool small = false;  // By its size alone.
};

Rounding RoundingOf(const CheckCase& check, const std::string& name,
                    const Tensors& start, const Tensors& want,
                    std::span<const Tensors> reordered) {
  const Values& values = want.at(name);
  const auto began = start.find(name);
  Rounding result;
  const double value = LargestMagnitude(values);
  result.change = began == start.end()
                      ? value
                      : LargestMagnitude(Minus(values, began->second));
  const double kept =
      began == start.end() ? 0 : kUnits * UnitInLastPlace(value, kFloatDigits);
  result.units = kept + UnitsOf(check, result.change);
  for (const Tensors& run : reordered) {
    const auto other = run.find(name);
    const double off =
        other == run.end() ? value : LargestDifference(values, other->second);
    if (!(off <= result.spread)) result.spread = off;
  }
  result.noise =
      result.spread >= kNoise * result.change || result.change <= kept;
  return result;
}

using Roundings = std::map<std::string, Rounding>;

// Returns the tensors of the layer of `name`; all tensors if it is in no layer.
std::vector<std::string> Layer(const CheckCase& check,
                               const std::string& name) {
  for (const NamedLayer& layer : check.layers) {
    if (Includes(layer.tensors, name)) return layer.tensors;
  }
  return NamesInOrder(check);
}

// Returns the largest change in the layer of `name`. Tensors that are noise and
// counters, which have no scale, do not count.
double LayerScale(const CheckCase& check, const std::string& name,
                  const Roundings& roundings) {
  const NamedTensors& weights = check.files.weights.tensors;
  double scale = 0;
  for (const std::string& other : Layer(check, name)) {
    const auto found = roundings.find(other);
    if (found == roundings.end() || found->second.noise) continue;
    const auto tensor = weights.find(other);
    const bool is_counter =
        tensor != weights.end() && tensor->second.type == DataType::kInt64;
    if (!is_counter) scale = std::max(scale, found->second.change);
  }
  return scale;
}

// Returns whether `name` is in a batch norm whose statistics are merged from
// all ranks' parts.
bool IsInMergedNorm(const CheckCase& check, const std::string& name) {
  if (check.all_ranks.c.batch_norm != "sync") return false;
  return std::ranges::any_of(check.layers, [&](const NamedLayer& layer) {
    return Includes(layer.tensors, name) && IsBatchNorm(layer);
  });
}

// Returns by tensor the largest relative spread of the tensor and of all
// tensors behind it.
std::map<std::string, double> SpreadsBehind(const CheckCase& check,
                                            const Roundings& roundings) {
  std::map<std::string, double> spreads;
  double largest = 0;
  std::vector<std::string> names = NamesInOrder(check);
  std::ranges::reverse(names);
  for (const std::string& name : names) {
    const auto found = roundings.find(name);
    if (found == roundings.end()) continue;
    const Rounding& rounding = found->second;
    if (!rounding.noise && !rounding.small) {
      largest = std::max(largest, rounding.spread / rounding.change);
    }
    spreads[name] = largest;
  }
  return spreads;
}

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

double CapOf(const CheckCase& check) {
  return check.one_rank.c.dtype == "bfloat16" ? 0.1 : 0.01;
}

// Returns the smallest rounding error of the ranks' parts, which are as large
// as the layer's magnitude.
double UnitsOfParts(const CheckCase& check, const Rounding& rounding) {
  return std::max(UnitsOf(check, rounding.scale),
                  kNoiseFactor * UnitInLastPlace(rounding.scale, kFloatDigits));
}

// Returns whether a small tensor may be only the rounding error of its layer's
// parts. behind: the largest relative spread of the tensor and of all tensors
// behind it.
bool MayBeRounding(const CheckCase& check, const Rounding& rounding,
                   double behind) {
  const double spread = std::max(rounding.spread, behind * rounding.scale);
  const double lost = std::max(
      {kSpreadFactor * spread, rounding.units, UnitsOfParts(check, rounding)});
  return lost > kSmallCap * rounding.change;
}

Allowed ToleranceFromOwnScale(const CheckCase& check, const Rounding& rounding,
                              double behind) {
  Allowed allowed;
  allowed.magnitude = rounding.change;
  allowed.spread = std::max(rounding.spread, behind * rounding.change);
  allowed.error = std::max(kSpreadFactor * allowed.spread, rounding.units);
  allowed.meaningful = allowed.error <= CapOf(check) * allowed.magnitude;
  return allowed;
}

Allowed ToleranceFromLayerScale(const CheckCase& check,
                                const Rounding& rounding, double behind) {
  const bool full = DigitsOf(check) == kFloatDigits;
  const double factor = full ? kNoiseFactor : kSpreadFactor;
  Allowed allowed;
  allowed.magnitude = rounding.scale;
  allowed.spread = std::max(rounding.spread, behind * rounding.scale);
  allowed.error = std::max(factor * allowed.spread,
                           rounding.units + UnitsOfParts(check, rounding));
  allowed.meaningful = allowed.error <= kNoiseCap * allowed.magnitude;
  return allowed;
}

Allowed AllowedError(const CheckCase& check, const Rounding& rounding,
                     double behind) {
  const Allowed by_layer = ToleranceFromLayerScale(check, rounding, behind);
  if (rounding.noise) return by_layer;
  Allowed allowed = ToleranceFromOwnScale(check, rounding, behind);
  if (!rounding.small) return allowed;
  if (MayBeRounding(check, rounding, behind)) return by_layer;
  const double most = kSmallCap * rounding.change;
  allowed.error = std::max(allowed.error, std::min(by_layer.error, most));
  allowed.meaningful = allowed.error <= most;
  return allowed;
}

}  // namespace

bool IsBatchNorm(const NamedLayer& layer) {
  return std::ranges::any_of(layer.tensors, [](const std::string& name) {
    return absl::EndsWith(name, "running_mean");
  });
}

int DigitsOf(const CheckCase& check) {
  return check.one_rank.c.dtype == "bfloat16" ? 8 : kFloatDigits;
}

AllowedErrors AllowedErrorsOf(const CheckCase& check, const Tensors& start,
                              const Tensors& want,
                              std::span<const Tensors> reordered) {
  Roundings roundings;
  for (const auto& [name, values] : want) {
    roundings[name] = RoundingOf(check, name, start, want, reordered);
  }
  for (auto& [name, rounding] : roundings) {
    rounding.scale = LayerScale(check, name, roundings);
    if (IsInMergedNorm(check, name)) {
      rounding.units += UnitsOf(check, rounding.scale);
    }
    rounding.small =
        !rounding.noise && rounding.change <= kSmall * rounding.scale;
  }
  const auto spreads = SpreadsBehind(check, roundings);
  AllowedErrors result;
  for (const auto& [name, rounding] : roundings) {
    result[name] = AllowedError(check, rounding, spreads.at(name));
  }
  return result;
}

Allowed AllowedScalarError(const CheckCase& check, double want,
                           std::span<const double> reordered) {
  Allowed allowed;
  allowed.magnitude = std::fabs(want);
  allowed.spread = LargestMagnitude(reordered);
  double units = kScalarUnits * UnitInLastPlace(want, kFloatDigits);
  if (DigitsOf(check) != kFloatDigits) units += UnitsOf(check, want);
  allowed.error = std::max(kSpreadFactor * allowed.spread, units);
  allowed.meaningful = allowed.error <= CapOf(check) * allowed.magnitude;
  return allowed;
}

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
  const auto found = std::ranges::find_if(
      compared.differing,
      [](const Difference& d) { return !d.allowed.meaningful; });
  return found == compared.differing.end() ? nullptr : &*found;
}

std::string Describe(const CheckCase& check, const Difference& difference) {
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
      absl::StrFormat(
          "%s is off by %.3g at element %d: it is %.7g, one rank has "
          "%.7g (",
          place, difference.error, difference.element, difference.got,
          difference.want),
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
  const double most = *std::ranges::max_element(counts);
  const auto active = static_cast<double>(
      std::ranges::count_if(counts, [](double count) { return count > 0; }));
  const auto ranks = static_cast<double>(counts.size());
  if (!(total > 0 && total < full)) return {};
  std::vector<NamedFactor> factors = {
      {total / full, Cause::kDividedByFullBatch}};
  // The ranks' means have a common factor only if all active ranks have equally
  // many samples.
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
  // If a factor of 1 fits as well, the numbers are too close to tell.
  const auto fits = [&](double k) {
    return Fits(names, Times(k, want), got, allowed, std::fabs(k)) &&
           !Fits(names, want, got, allowed, std::fabs(k));
  };
  for (const NamedFactor& factor : named) {
    if (fits(factor.k)) return FoundFactor{factor.k, factor.cause, names};
  }
  const double k = any ? FittedFactor(names, want, got) : 0;
  // A factor of 0 would fit any small numbers.
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

}  // namespace lockstep::conformance
