// Count, mean and sum of squared deviations of a set of numbers, and how those
// of two sets become those of their union. Used by the CPU's loops, by CUDA
// kernels, and by the merge over ranks.
#ifndef LOCKSTEP_SYNCBN_MOMENTS_H_
#define LOCKSTEP_SYNCBN_MOMENTS_H_

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

namespace lockstep {

// T: float or double. Count 0 has mean 0 and m2 0.
template <typename T>
struct Moments {
  int64_t count = 0;
  T mean = 0;
  T m2 = 0;  // Sum of (x - mean)^2.
};

// The moments of both sets together (Chan, Golub & LeVeque 1983, formulas 2.1
// and 2.2; written so that equal means stay the same bits). A set that is empty
// changes nothing, whatever its mean and m2 are.
template <typename T>
LOCKSTEP_HOST_DEVICE constexpr Moments<T> MergeMoments(const Moments<T>& a,
                                                       const Moments<T>& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const int64_t count = a.count + b.count;
  const T delta = b.mean - a.mean;
  const T share = static_cast<T>(b.count) / static_cast<T>(count);
  return {count, a.mean + delta * share,
          a.m2 + b.m2 + delta * delta * static_cast<T>(a.count) * share};
}

// Variance about the mean; divided by n. 0 of no numbers.
template <typename T>
LOCKSTEP_HOST_DEVICE constexpr T BiasedVariance(const Moments<T>& moments) {
  return moments.count == 0 ? T{0} : moments.m2 / static_cast<T>(moments.count);
}

// The same divided by n - 1; NaN of fewer than two numbers.
template <typename T>
LOCKSTEP_HOST_DEVICE inline T UnbiasedVariance(const Moments<T>& moments) {
  return moments.count < 2 ? static_cast<T>(NAN)
                           : moments.m2 / static_cast<T>(moments.count - 1);
}

// 1 / sqrt(variance + epsilon).
LOCKSTEP_HOST_DEVICE inline double InverseDeviation(double biased_variance,
                                                    double epsilon) {
  return 1 / std::sqrt(biased_variance + epsilon);
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_MOMENTS_H_
