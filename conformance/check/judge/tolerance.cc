#include "conformance/check/judge/tolerance.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/cases/tensors.h"

namespace lockstep {
namespace {

// tolerance.h says where these numbers come from.
constexpr int kFloatDigits = 24;
constexpr double kSpreadFactor = 8;
constexpr double kUnits = 4;          // Of float32, for each rank.
constexpr double kBFloat16Units = 8;  // Of bfloat16.
constexpr double kScalarUnits = 16;
// Where a tensor's own spread is this part of its magnitude, it is rounding.
constexpr double kNoise = 0.1;
constexpr double kNoiseFactor = 64;  // In place of kSpreadFactor and kUnits.
constexpr double kNoiseCap = 0.1;    // Of the layer's magnitude.
// Below this part of the largest change in its layer, a change may be rounding.
constexpr double kSmall = 0.01;
// Of the change of a small tensor. Less than half, so that zero, the double,
// and the half that two ranks have who divide twice are found.
constexpr double kSmallCap = 0.4;

// The least that is allowed of a magnitude, in the type computed in.
double UnitsOf(const CheckCase& check, double magnitude) {
  const int digits = DigitsOf(check);
  const int ranks = std::max(1, check.all_ranks.c.world_size());
  const double units = digits == kFloatDigits ? kUnits * ranks : kBFloat16Units;
  return units * UnitInLastPlace(magnitude, digits);
}

// A tensor and how it rounds.
struct Rounding {
  double change = 0;  // Magnitude of the change since the start.
  double units = 0;   // The least that is allowed.
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

// The tensors of the layer of `name`; all, if it is in no layer.
std::vector<std::string> Layer(const CheckCase& check,
                               const std::string& name) {
  for (const NamedLayer& layer : check.layers) {
    const auto& all = layer.tensors;
    if (std::find(all.begin(), all.end(), name) != all.end()) return all;
  }
  return NamesInOrder(check);
}

bool IsInteger(const CheckCase& check, const std::string& name) {
  const auto found = check.files.weights.tensors.find(name);
  return found != check.files.weights.tensors.end() &&
         found->second.type == DataType::kInt64;
}

// The largest change in the layer of `name`, of tensors that are not noise (nor
// counters, which have no scale).
double LayerScale(const CheckCase& check, const std::string& name,
                  const Roundings& roundings) {
  double scale = 0;
  for (const std::string& other : Layer(check, name)) {
    const auto found = roundings.find(other);
    if (found == roundings.end() || found->second.noise) continue;
    if (IsInteger(check, other)) continue;
    scale = std::max(scale, found->second.change);
  }
  return scale;
}

void CompareWithLayers(const CheckCase& check, Roundings& roundings) {
  for (auto& [name, rounding] : roundings) {
    rounding.scale = LayerScale(check, name, roundings);
    rounding.small =
        !rounding.noise && rounding.change <= kSmall * rounding.scale;
  }
}

// By tensor: the largest relative spread of it and all behind it.
std::map<std::string, double> SpreadsBehind(const CheckCase& check,
                                            const Roundings& roundings) {
  std::map<std::string, double> spreads;
  double largest = 0;
  std::vector<std::string> names = NamesInOrder(check);
  std::reverse(names.begin(), names.end());
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

double CapOf(const CheckCase& check) {
  return check.one_rank.c.dtype == "bfloat16" ? 0.1 : 0.01;
}

// The least that ranks' parts, as large as the layer's, lose as they round.
double UnitsOfParts(const CheckCase& check, const Rounding& rounding) {
  return std::max(UnitsOf(check, rounding.scale),
                  kNoiseFactor * UnitInLastPlace(rounding.scale, kFloatDigits));
}

// Whether a small tensor may be nothing but what its layer's parts lose as they
// round. behind: the relative spread of it and all behind it.
bool MayBeRounding(const CheckCase& check, const Rounding& rounding,
                   double behind) {
  const double spread = std::max(rounding.spread, behind * rounding.scale);
  const double lost = std::max(
      {kSpreadFactor * spread, rounding.units, UnitsOfParts(check, rounding)});
  return lost > kSmallCap * rounding.change;
}

Allowed HeldToItself(const CheckCase& check, const Rounding& rounding,
                     double behind) {
  Allowed allowed;
  allowed.magnitude = rounding.change;
  allowed.spread = std::max(rounding.spread, behind * rounding.change);
  allowed.error = std::max(kSpreadFactor * allowed.spread, rounding.units);
  allowed.meaningful = allowed.error <= CapOf(check) * allowed.magnitude;
  return allowed;
}

Allowed HeldToLayer(const CheckCase& check, const Rounding& rounding,
                    double behind) {
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
  const Allowed by_layer = HeldToLayer(check, rounding, behind);
  if (rounding.noise) return by_layer;
  Allowed allowed = HeldToItself(check, rounding, behind);
  if (!rounding.small) return allowed;
  if (MayBeRounding(check, rounding, behind)) return by_layer;
  const double most = kSmallCap * rounding.change;
  allowed.error = std::max(allowed.error, std::min(by_layer.error, most));
  allowed.meaningful = allowed.error <= most;
  return allowed;
}

}  // namespace

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
  CompareWithLayers(check, roundings);
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
  if (DigitsOf(check) != kFloatDigits) {
    units += UnitsOf(check, want);
  }
  allowed.error = std::max(kSpreadFactor * allowed.spread, units);
  allowed.meaningful = allowed.error <= CapOf(check) * allowed.magnitude;
  return allowed;
}

}  // namespace lockstep
