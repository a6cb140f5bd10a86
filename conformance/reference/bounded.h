// Running error analysis: numbers in float64 that carry a bound on how far a
// float32 computation of them can be, whatever the order of its additions.
//
// Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM
// 2002, section 3.1 (lemma 3.1, inner products: eq. 3.5) and 3.3 (running error
// analysis). With u = 2^-24 and gamma(n) = n u / (1 - n u), a float32 sum of n
// products differs from the exact one by at most gamma(n) sum |a||b|, in any
// order, with or without fused multiply-add. If the float32 operands are
// themselves only known to lie within e_a of a and e_b of b,
//
//   |computed - sum a b| <= (1 + gamma(n)) sum (|a| + e_a)(|b| + e_b)
//                           - sum |a||b|
//
// which is what Sums::Finish returns. Adding an exact zero is exact, so n need
// only count the products that can be other than zero. The bounds hold for
// direct summation, not for algorithms that form other products (Winograd,
// FFT).
//
// Two terms make the bound complete: kSmallest a term for results flushed to
// zero, and kOwnError relative for the float64 arithmetic here, whose unit
// round-off 2^-53 is 2^-29 of u.
#ifndef LOCKSTEP_CONFORMANCE_REFERENCE_BOUNDED_H_
#define LOCKSTEP_CONFORMANCE_REFERENCE_BOUNDED_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/bounded.h"

namespace lockstep::conformance {

inline constexpr double kUnitRoundoff = 0x1p-24;
inline constexpr double kSmallest = 0x1p-126;
inline constexpr double kOwnError = 0x1p-20;

// n u / (1 - n u). n in [0, 2^23].
double Gamma(int64_t n);

// How many times `allowed` an error is: 0 where there is none, an infinity for
// NaN.
double ErrorOverAllowed(double error, double allowed);

// The largest error of any of `got`, over its bound.
double LargestError(const Bounded& want, std::span<const float> got);

// A factor in a sum of products: the values v, |v| and |v| + bound.
struct Factor {
  explicit Factor(std::span<const float> exact);  // Bound 0.
  explicit Factor(const Bounded& bounded);

  std::vector<double> value;
  std::vector<double> magnitude;
  std::vector<double> upper;
};

// An array of sums of products under way.
class Sums {
 public:
  explicit Sums(int64_t size)
      : value_(size), magnitude_(size), upper_(size), size_(size) {}

  int64_t size() const { return size_; }

  // Sum `at + i` += a[j] * b[from + i] for i in [0, count): one term each.
  void AddScaled(int64_t at, const Factor& a, int64_t j, const Factor& b,
                 int64_t from, int64_t count);

  // Sum `at + i` += a[from + i], for i in [0, count): one term each.
  void Add(int64_t at, const Factor& a, int64_t from, int64_t count);

  // Sum i with its bound, for a sum of at most `terms` terms that can be other
  // than zero.
  void Finish(int64_t i, int64_t terms, Bounded& out) const;

  // The same for all sums.
  Bounded Finish(int64_t terms) const;

 private:
  std::vector<double> value_;
  std::vector<double> magnitude_;  // Of the exact terms.
  std::vector<double> upper_;      // Of what float32 terms may be.
  int64_t size_;
};

// Euclidean norm.
double Norm(std::span<const double> values);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_REFERENCE_BOUNDED_H_
