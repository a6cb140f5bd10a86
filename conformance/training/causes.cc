// Fits causes to a gradient and to an update.
#include "conformance/training/causes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {
namespace {

// The largest error of a sum of parts that explains a gradient, relative to the
// gradient's norm.
constexpr double kFitResidual = 1e-3;
// The largest distance between a weight and the one it is taken for.
constexpr double kFitWeight = 0.01;
// The largest distance between a gradient and its explanation, relative to the
// bound. The explanation's own rounding adds to the error.
constexpr double kSlack = 4;
// The number of consecutive values of another place that rules out a
// coincidence.
constexpr int64_t kMovedValues = 8;
// Half a unit in the last place of bfloat16's 8 bits.
constexpr double kBFloat16Roundoff = 0x1p-8;
constexpr double kFloat16Roundoff = 0x1p-11;

bool Near(double a, double b) { return std::abs(a - b) <= kFitWeight; }

// Solves a x = b by elimination with row exchanges; none if a is singular to
// float32 precision.
std::optional<std::vector<double>> Solve(std::vector<std::vector<double>> a,
                                         std::vector<double> b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    if (!(std::abs(a[k][k]) > kUnitRoundoff)) return {};
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

template <typename A, typename B>
double Dot(const A& a, const B& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

class GradientCauses {
 public:
  GradientCauses(const StepGradients& step, int rank)
      : step_(step), rank_(rank), got_(step.ranks[static_cast<size_t>(rank)]) {}

  std::string First() const {
    for (const auto cause :
         {&GradientCauses::NotCleared, &GradientCauses::OtherWeights,
          &GradientCauses::ZeroTensor, &GradientCauses::Early,
          &GradientCauses::Moved, &GradientCauses::Coarse}) {
      const std::string text = (this->*cause)();
      if (!text.empty()) return "; " + text;
    }
    return "";
  }

 private:
  bool IsRight(size_t i) const {
    return std::abs(got_[i] - step_.want.value[i]) <= step_.want.bound[i];
  }

  std::string NotCleared() const {
    if (step_.before.empty()) return "";
    for (size_t i = 0; i < got_.size(); ++i) {
      const double sum = step_.want.value[i] + step_.before[i];
      if (!(std::abs(got_[i] - sum) <=
            kSlack * (step_.want.bound[i] +
                      kUnitRoundoff * std::abs(step_.before[i])))) {
        return "";
      }
    }
    return "it is the sum with that of the step before: not cleared?";
  }

  // Returns the weights with which the ranks' parts add up to the gradient. The
  // weight of a rank without samples is 1.
  std::optional<std::vector<double>> Weights() const {
    std::vector<size_t> ranks;
    for (size_t r = 0; r < step_.parts.size(); ++r) {
      if (step_.samples[r] > 0) ranks.push_back(r);
    }
    // Each part is scaled to norm 1.
    std::vector<double> norms;
    for (const size_t r : ranks) {
      const std::vector<double>& part = step_.parts[r].value;
      norms.push_back(std::sqrt(Dot(part, part)));
      if (!(norms.back() > 0)) return {};
    }
    const size_t n = ranks.size();
    std::vector<std::vector<double>> products(n, std::vector<double>(n));
    std::vector<double> right(n);
    for (size_t i = 0; i < n; ++i) {
      const std::vector<double>& part = step_.parts[ranks[i]].value;
      right[i] = Dot(part, got_) / norms[i];
      for (size_t j = 0; j < n; ++j) {
        products[i][j] =
            Dot(part, step_.parts[ranks[j]].value) / norms[i] / norms[j];
      }
    }
    const auto solution = Solve(products, right);
    if (!solution) return {};
    std::vector<double> weights(step_.parts.size(), 1);
    for (size_t i = 0; i < n; ++i) {
      weights[ranks[i]] = (*solution)[i] / norms[i];
    }
    return weights;
  }

  bool Explains(const std::vector<double>& weights) const {
    double square = 0;
    for (size_t i = 0; i < got_.size(); ++i) {
      double error = got_[i];
      for (size_t r = 0; r < weights.size(); ++r) {
        error -= weights[r] * step_.parts[r].value[i];
      }
      square += error * error;
    }
    return std::sqrt(square) <= kFitResidual * std::sqrt(Dot(got_, got_));
  }

  // Returns the common weight of all ranks with samples, if there is one.
  std::optional<double> OneFactor(const std::vector<double>& weights) const {
    std::vector<double> own;
    for (size_t r = 0; r < weights.size(); ++r) {
      if (step_.samples[r] > 0) own.push_back(weights[r]);
    }
    const auto [least, most] = std::minmax_element(own.begin(), own.end());
    if (!Near(*least, *most)) return {};
    return *least;
  }

  // For a gradient that is k times the right one: returns whether the sum over
  // the samples was divided by another count. CheckGradients gives k itself,
  // and names it if it is the world size or its inverse.
  std::string OtherCount(double k, double samples) const {
    const auto ranks = static_cast<double>(step_.samples.size());
    const double count = std::round(samples / k);
    if (Near(k, ranks) || Near(k, 1 / ranks) || !(count >= 1) ||
        !Near(samples / k, count)) {
      return "";
    }
    return absl::StrFormat(
        "it is the sum over %g samples divided by %g: another batch's count?",
        samples, count);
  }

  std::string OtherWeights() const {
    const auto weights = Weights();
    if (!weights || !Explains(*weights)) return "";
    bool alone = true, mean_of_means = true;
    std::string others;
    const auto all = static_cast<double>(std::accumulate(
        step_.samples.begin(), step_.samples.end(), int64_t{0}));
    for (size_t r = 0; r < weights->size(); ++r) {
      if (step_.samples[r] == 0) continue;
      const double weight = (*weights)[r];
      alone = alone && Near(weight, static_cast<int>(r) == rank_ ? 1 : 0);
      mean_of_means = mean_of_means &&
                      Near(weight, all / static_cast<double>(weights->size()) /
                                       static_cast<double>(step_.samples[r]));
      if (Near(weight, 1)) continue;
      absl::StrAppend(
          &others, others.empty() ? "" : ", ",
          Near(weight, 0)
              ? absl::StrCat("rank ", r, "'s part is left out")
              : absl::StrFormat("rank %d's part counts %.3g times", r, weight));
    }
    if (others.empty()) return "";
    if (const auto k = OneFactor(*weights)) return OtherCount(*k, all);
    if (alone) return "it is that of this rank's own samples: not reduced?";
    if (mean_of_means) {
      return "it is the mean of the ranks' means, without weights";
    }
    return others;
  }

  std::string ZeroTensor() const {
    for (const ParameterSpec& spec : step_.specs) {
      const auto begin = got_.begin() + spec.offset;
      bool is_right = true;
      for (int64_t i = spec.offset; i < spec.offset + spec.size; ++i) {
        is_right = is_right && IsRight(static_cast<size_t>(i));
      }
      if (is_right) continue;
      return std::all_of(begin, begin + spec.size,
                         [](float v) { return v == 0; })
                 ? absl::StrCat("all of ", spec.name, " is zero: left out?")
                 : "";
    }
    return "";
  }

  // Returns the cause if the ranks summed a tensor too early: the first wrong
  // tensor is then the sum of the gradients that the previous step left there.
  std::string Early() const {
    if (step_.before.empty()) return "";
    const auto ranks = static_cast<double>(step_.ranks.size());
    for (const ParameterSpec& spec : step_.specs) {
      bool is_right = true, is_early = true;
      for (int64_t at = spec.offset; at < spec.offset + spec.size; ++at) {
        const auto i = static_cast<size_t>(at);
        const double early = ranks * step_.before[i];
        is_right = is_right && IsRight(i);
        is_early = is_early && std::abs(got_[i] - early) <=
                                   ranks * kUnitRoundoff * std::abs(early);
      }
      if (is_right) continue;
      return is_early ? absl::StrCat("all of ", spec.name, " is ", ranks,
                                     " times the sum of the step before: "
                                     "reduced before it was computed?")
                      : "";
    }
    return "";
  }

  // Returns whether the values from i on are those expected from j on.
  bool AreOf(size_t i, size_t j) const {
    double size = 0;
    for (size_t k = 0; k < kMovedValues; ++k) {
      const double want = step_.want.value[j + k];
      if (!(std::abs(got_[i + k] - want) <= step_.want.bound[j + k])) {
        return false;
      }
      size += std::abs(want) - step_.want.bound[j + k];
    }
    return size > 0;  // Zeros would fit any place.
  }

  std::string Moved() const {
    size_t i = 0;
    while (i < got_.size() && IsRight(i)) ++i;
    for (size_t j = 0; std::max(i, j) + kMovedValues <= got_.size(); ++j) {
      if (j == i || !AreOf(i, j)) continue;
      return absl::StrCat("it has there the values of ",
                          ElementName(step_.specs, static_cast<int64_t>(j)),
                          ": in another's place?");
    }
    return "";
  }

  // Returns the cause if the errors look like bfloat16 rounding. Rounding
  // leaves most elements off, by no common factor, and further than float16
  // would.
  std::string Coarse() const {
    size_t wrong = 0;
    double square = 0, along = 0, sizes = 0;
    for (size_t i = 0; i < got_.size(); ++i) {
      double size = 0;
      for (const Bounded& part : step_.parts) size += std::abs(part.value[i]);
      const double error = got_[i] - step_.want.value[i];
      if (!(std::abs(error) <=
            step_.want.bound[i] + kBFloat16Roundoff * size)) {
        return "";
      }
      if (size == 0) continue;
      wrong += IsRight(i) ? 0 : 1;
      square += error * error;
      along += error * step_.want.value[i];
      sizes += size * size;
    }
    const double want = Dot(step_.want.value, step_.want.value);
    const bool by_a_factor = along * along > square * want / 4;
    const bool fine = square <= sizes * kFloat16Roundoff * kFloat16Roundoff;
    if (by_a_factor || fine || wrong < got_.size() / 4) return "";
    return "all of it is as near as bfloat16 rounds the ranks' parts";
  }

  const StepGradients& step_;
  const int rank_;
  const std::vector<float>& got_;
};

// Returns whether `is` holds for every element in which the rank and rank 0
// differ.
template <typename Is>
bool WhereDifferent(const StepGradients& step, int rank, Is is) {
  const std::vector<float>& a = step.ranks[0];
  const std::vector<float>& b = step.ranks[static_cast<size_t>(rank)];
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) &&
        !is(i)) {
      return false;
    }
  }
  return true;
}

bool IsWithin(const Bounded& want, float got, size_t i, double slack) {
  return std::abs(got - want.value[i]) <= slack * want.bound[i];
}

// The largest error of an explanation, relative to the update's norm.
constexpr double kUpdateResidual = 0.05;

// Returns whether each element shrinks by `shrinks` of itself and moves by
// `times` its step, and the shrinking exceeds rounding. Every element must fit:
// a fit of most of the norm is not enough.
bool Shrinks(const ParameterUpdate& update, size_t begin, size_t end,
             double shrinks, double times) {
  // In units of float32: the fit's own error, two roundings of the decayed
  // value, and those of the step and of the difference.
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

// Fits an update by a value and a step: the factors a and b of a * value - b *
// rate * gradient that best fit the elements in [begin, end). what: names these
// elements.
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
  if (!(residual <= kUpdateResidual * kUpdateResidual * left)) return "";
  std::string cause;
  if (Shrinks(update, begin, end, shrinks, times)) {
    absl::StrAppendFormat(&cause,
                          "; %s shrink by %.3g of themselves: weight decay?",
                          what, shrinks);
  }
  if (std::abs(times - 1) > kUpdateResidual) {
    absl::StrAppendFormat(&cause, "; the step is %.4g times it", times);
    if (std::abs(times - static_cast<double>(update.world_size)) <=
        kUpdateResidual * times) {
      cause += ", the world size: the learning rate multiplied by the ranks?";
    }
  }
  return cause;
}

}  // namespace

std::string CauseOfGradient(const StepGradients& step, int rank) {
  return GradientCauses(step, rank).First();
}

std::string CauseOfDisagreement(const StepGradients& step, int rank) {
  const auto is_own = [&](int who) {
    const auto r = static_cast<size_t>(who);
    return WhereDifferent(step, rank, [&](size_t i) {
      return IsWithin(step.parts[r], step.ranks[r][i], i, kSlack);
    });
  };
  const auto is_right = [&](int who) {
    return WhereDifferent(step, rank, [&](size_t i) {
      return IsWithin(step.want, step.ranks[static_cast<size_t>(who)][i], i, 1);
    });
  };
  if (is_right(0) && is_right(rank)) {
    return "; both are right within rounding: added in different orders?";
  }
  if (is_own(0) && is_own(rank)) {
    return "; each has there the gradient of its own samples: not reduced?";
  }
  for (const int who : {0, rank}) {
    if (!is_own(who)) continue;
    return absl::StrCat("; rank ", who,
                        " has there the gradient of its own samples: not "
                        "reduced, or not written back?");
  }
  return "";
}

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

}  // namespace lockstep::conformance
