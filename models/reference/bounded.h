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
// which is what BoundedSum::Finish returns. Adding an exact zero is exact, so n
// need only count the products that can be other than zero. The bounds hold for
// direct summation, not for algorithms that form other products (Winograd,
// FFT).
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

// n u / (1 - n u). n in [0, 2^23].
double Gamma(int64_t n);

// How many times `allowed` an error is: 0 where there is none, an infinity for
// NaN.
double ErrorOverAllowed(double error, double allowed);

// The largest error of any of `got`, over its bound.
double LargestError(const Bounded& want, std::span<const float> got);

// A float32 computation's result: the exact value, and how far from it that
// can be.
struct BoundedNumber {
  BoundedNumber() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): exact, as numbers are.
  BoundedNumber(double exact) : value(exact) {}
  BoundedNumber(double value, double bound) : value(value), bound(bound) {}

  double value = 0;
  double bound = 0;
};

// A sum of products under way; or, of one number, a factor in it.
struct BoundedSum {
  BoundedSum() = default;
  explicit BoundedSum(const BoundedNumber& x)
      : value(x.value),
        magnitude(std::abs(x.value)),
        upper(magnitude + x.bound),
        terms(upper == 0 ? 0 : 1) {}

  // With its bound. more: terms that another order may add.
  BoundedNumber Finish(double more = 0) const;

  double value = 0;
  double magnitude = 0;  // Of the exact terms.
  double upper = 0;      // Of what float32 terms may be.
  double terms = 0;      // Those that can be other than zero.

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

// Adds `b` to `a`. The bound is that of a float32 sum of the two.
inline BoundedNumber& operator+=(BoundedNumber& a, const BoundedNumber& b) {
  BoundedSum sum(a);
  sum += BoundedSum(b);
  return a = sum.Finish();
}

// Euclidean norm.
double Norm(std::span<const double> values);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_BOUNDED_H_
