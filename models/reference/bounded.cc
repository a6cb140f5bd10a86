// Running error analysis of sums of products.
#include "models/reference/bounded.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace lockstep {

double Gamma(int64_t n) {
  const double nu = static_cast<double>(n) * kUnitRoundoff;
  return nu / (1 - nu);
}

double ErrorOverAllowed(double error, double allowed) {
  if (std::isnan(error)) return std::numeric_limits<double>::infinity();
  return error == 0 ? 0 : error / allowed;
}

double LargestError(const Bounded& want, std::span<const float> got) {
  double largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.value.size()); ++i) {
    const double error = std::abs(got[i] - want.value[i]);
    largest = std::max(largest, ErrorOverAllowed(error, want.bound[i]));
  }
  return largest;
}

BoundedNumber BoundedSum::Finish(double more) const {
  const double n = terms + more;
  const double bound =
      (upper - magnitude) + Gamma(static_cast<int64_t>(n)) * upper;
  return {value, bound * (1 + kOwnError) + n * kSmallest};
}

double Norm(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

}  // namespace lockstep
