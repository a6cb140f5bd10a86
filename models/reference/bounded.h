// Running error analysis: numbers in float64 that carry a bound on the error of
// a float32 computation of them, for any order of its additions.
//
// Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., SIAM
// 2002, section 3.1 (lemma 3.1, inner products: eq. 3.5) and 3.3 (running error
// analysis). With u = 2^-24 and gamma(n) = n u / (1 - n u), a float32 sum of n
// products differs from the exact sum by at most gamma(n) sum |a||b|, in any
// order, with or without fused multiply-add. If the float32 operands are
// themselves only known to lie within e_a of a and e_b of b,
//
//   |computed - sum a b| <= (1 + gamma(n)) sum (|a| + e_a)(|b| + e_b)
//                           - sum |a||b|
//
// BoundedSum::Finish returns this bound. Adding an exact zero is exact, so n
// counts only the products that can be nonzero. The bounds are valid for direct
// summation, but not for algorithms that form other products (Winograd, FFT).
//
// Two terms make the bound complete: kSmallest a term for results flushed to
// zero, and kOwnError relative for the float64 arithmetic here, whose unit
// round-off 2^-53 is 2^-29 of u.
#ifndef LOCKSTEP_MODELS_REFERENCE_BOUNDED_H_
#define LOCKSTEP_MODELS_REFERENCE_BOUNDED_H_

#include <cmath>
#include <cstdint>
#include <span>

#include "base/bounded.h"

namespace lockstep {

inline constexpr double kUnitRoundoff = 0x1p-24;
inline constexpr double kSmallest = 0x1p-126;
inline constexpr double kOwnError = 0x1p-20;

// Returns n u / (1 - n u). n in [0, 2^23].
double Gamma(int64_t n);

// Returns error / allowed: 0 if there is no error, infinity if the error is
// NaN.
double ErrorOverAllowed(double error, double allowed);

// Returns the largest error in `got`, each as a multiple of its bound.
double LargestError(const Bounded& want, std::span<const float> got);

// The result of a float32 computation: the exact value, and a bound on its
// error.
struct BoundedNumber {
  BoundedNumber() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): exact, as numbers are.
  BoundedNumber(double exact) : value(exact) {}
  BoundedNumber(double value, double bound) : value(value), bound(bound) {}

  double value = 0;
  double bound = 0;
};

// A partial sum of products, or a single number as a factor of a product.
struct BoundedSum {
  BoundedSum() = default;
  explicit BoundedSum(const BoundedNumber& x)
      : value(x.value),
        magnitude(std::abs(x.value)),
        upper(magnitude + x.bound),
        terms(upper == 0 ? 0 : 1) {}

  // Returns the sum with its bound. more: the number of additional terms that
  // another order may add.
  BoundedNumber Finish(double more = 0) const;

  double value = 0;
  double magnitude = 0;  // The sum of the exact terms' magnitudes.
  double upper = 0;      // An upper bound on float32 terms' magnitudes.
  double terms = 0;      // The number of terms that can be nonzero.

  friend BoundedSum operator*(const BoundedSum& a, const BoundedSum& b) {
    BoundedSum c;
    c.value = a.value * b.value;
    c.magnitude = a.magnitude * b.magnitude;
    c.upper = a.upper * b.upper;
    c.terms = a.terms * b.terms;
    return c;
  }
  BoundedSum& operator+=(const BoundedSum& a) {
    value += a.value;
    magnitude += a.magnitude;
    upper += a.upper;
    terms += a.terms;
    return *this;
  }
};

// Adds `b` to `a`. The result's bound is the bound of a float32 addition.
inline BoundedNumber& operator+=(BoundedNumber& a, const BoundedNumber& b) {
  BoundedSum sum(a);
  sum += BoundedSum(b);
  return a = sum.Finish();
}

// Returns the Euclidean norm.
double Norm(std::span<const double> values);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_BOUNDED_H_
