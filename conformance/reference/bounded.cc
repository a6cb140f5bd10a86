// Running error analysis of sums of products.
#include "conformance/reference/bounded.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace lockstep::conformance {
namespace {

// The inner loop of the whole reference, in a form that compilers vectorise.
void Axpy(double* __restrict out, double a, const double* __restrict b,
          int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] += a * b[i];
}

}  // namespace

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

Factor::Factor(std::span<const float> exact)
    : value(exact.begin(), exact.end()), magnitude(exact.size()) {
  for (size_t i = 0; i < value.size(); ++i) magnitude[i] = std::abs(value[i]);
  upper = magnitude;
}

Factor::Factor(const Bounded& bounded)
    : value(bounded.value), magnitude(value.size()), upper(value.size()) {
  for (size_t i = 0; i < value.size(); ++i) {
    magnitude[i] = std::abs(value[i]);
    upper[i] = magnitude[i] + bounded.bound[i];
  }
}

void Sums::AddScaled(int64_t at, const Factor& a, int64_t j, const Factor& b,
                     int64_t from, int64_t count) {
  if (a.upper[j] == 0) return;
  Axpy(value_.data() + at, a.value[j], b.value.data() + from, count);
  Axpy(magnitude_.data() + at, a.magnitude[j], b.magnitude.data() + from,
       count);
  Axpy(upper_.data() + at, a.upper[j], b.upper.data() + from, count);
}

void Sums::Add(int64_t at, const Factor& a, int64_t from, int64_t count) {
  Axpy(value_.data() + at, 1.0, a.value.data() + from, count);
  Axpy(magnitude_.data() + at, 1.0, a.magnitude.data() + from, count);
  Axpy(upper_.data() + at, 1.0, a.upper.data() + from, count);
}

void Sums::Finish(int64_t i, int64_t terms, Bounded& out) const {
  out.value[i] = value_[i];
  const double bound = (upper_[i] - magnitude_[i]) + Gamma(terms) * upper_[i];
  out.bound[i] =
      bound * (1 + kOwnError) + static_cast<double>(terms) * kSmallest;
}

Bounded Sums::Finish(int64_t terms) const {
  Bounded out(size_);
  for (int64_t i = 0; i < size_; ++i) Finish(i, terms, out);
  return out;
}

double Norm(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

}  // namespace lockstep::conformance
