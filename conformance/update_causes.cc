// Fits mistakes to an update.
#include "conformance/update_causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/reference/bounded.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

// How far, of the update's norm, an explanation may be off.
constexpr double kFitResidual = 0.05;

// Whether every element, and not most of the norm, moves by `shrinks` of itself
// and `times` its step, by more than rounding does.
bool Shrinks(const ParameterUpdate& update, size_t begin, size_t end,
             double shrinks, double times) {
  // Of float32: the fit's own error, two roundings of the decayed value, the
  // step's and the difference's.
  constexpr double kRoundings = 16 * kUnitRoundoff;
  if (!(shrinks > kRoundings)) return false;
  for (size_t i = begin; i < end; ++i) {
    const double value = update.before[i];
    const double step = times * update.learning_rate * update.gradient[i];
    const double moved = value - update.after[i];
    if (!(std::abs(moved - shrinks * value - step) <=
          kRoundings * (std::abs(value) + std::abs(step)))) {
      return false;
    }
  }
  return true;
}

// The update as a value and a step: the factors a and b of a * value - b * rate
// * gradient that fit the elements in [begin, end) best. `what`: whose they
// are.
std::string Fit(const ParameterUpdate& update, size_t begin, size_t end,
                const std::string& what) {
  double vv = 0, vg = 0, gg = 0, vd = 0, gd = 0, left = 0;
  for (size_t i = begin; i < end; ++i) {
    const double value = update.before[i];
    const double step = update.learning_rate * update.gradient[i];
    const double moved = value - update.after[i];
    vv += value * value;
    vg += value * step;
    gg += step * step;
    vd += value * moved;
    gd += step * moved;
    left += moved * moved;
  }
  const double determinant = vv * gg - vg * vg;
  if (!(determinant > kUnitRoundoff * vv * gg)) return "";
  const double shrinks = (vd * gg - gd * vg) / determinant;
  const double times = (gd * vv - vd * vg) / determinant;
  const double residual = left - shrinks * vd - times * gd;
  if (!(residual <= kFitResidual * kFitResidual * left)) return "";
  std::string cause;
  if (Shrinks(update, begin, end, shrinks, times)) {
    absl::StrAppendFormat(&cause,
                          "; %s shrink by %.3g of themselves: weight decay?",
                          what, shrinks);
  }
  if (std::abs(times - 1) > kFitResidual) {
    absl::StrAppendFormat(&cause, "; the step is %.4g times it", times);
    if (std::abs(times - static_cast<double>(update.world_size)) <=
        kFitResidual * times) {
      cause += ", the world size: the learning rate multiplied by the ranks?";
    }
  }
  return cause;
}

}  // namespace

std::string CauseOfUpdate(const ParameterUpdate& update, size_t wrong) {
  if (std::isnan(update.gradient[wrong])) {
    const auto count =
        std::count_if(update.gradient.begin(), update.gradient.end(),
                      [](float v) { return std::isnan(v); });
    return absl::StrCat("; its gradient is NaN, one of ", count,
                        " elements of the gradient that are");
  }
  std::string cause = Fit(update, 0, update.before.size(), "values");
  for (const ParameterSpec& spec : update.specs) {
    const auto begin = static_cast<size_t>(spec.offset);
    const size_t end = begin + static_cast<size_t>(spec.size);
    if (!cause.empty() || wrong < begin || wrong >= end) continue;
    cause = Fit(update, begin, end, absl::StrCat("values of ", spec.name));
  }
  return cause;
}

}  // namespace lockstep
