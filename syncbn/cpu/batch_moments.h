// Count, mean and M2 of each channel of host activations.
#ifndef LOCKSTEP_SYNCBN_CPU_BATCH_MOMENTS_H_
#define LOCKSTEP_SYNCBN_CPU_BATCH_MOMENTS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/buffer.h"
#include "syncbn/activations.h"
#include "syncbn/cpu/scratch.h"

namespace lockstep {

// BatchNormKernels::ComputeMoments. Reads x from memory once: tiles of 64 rows
// of 64 columns (column_plan.h) are gone over twice, the second time out of the
// cache.
//
// Per column of a tile, in the type T that statistics have, with n <= 64 values
// and unit round-off u:
//
//   p = sum x / n,  s = sum (x - p),  q = sum (x - p)^2,
//   and in float64  mean = p + s / n,  m2 = q - s^2 / n
//
// (the corrected two-pass algorithm, in Chan, Golub & LeVeque 1983).
// In exact arithmetic that holds for any p. All else is merged in float64.
//
// Error. A sum has at most n / 4 + 2 <= 18 additions in a row, so with g = 20 u
// (one more rounding each for x - p and its square) and an upper bound A of
// |x|: p is off by at most d = g A, s by g sum |x - p|, q by g sum (x - p)^2,
// where sum (x - p)^2 <= m2 + n d^2. To first order in u:
//
//   tile:   |m2 error|   <= 3 g (m2 + n d^2)
//           |mean error| <= g (sqrt(m2 / n) + d)
//
// In what is merged of n values the means' errors move the part of m2 that is
// between tiles by 2 g m2 at most, and K <= n / 64 + 74 merges in a row, each
// with some roundings to v = 2^-53, move means by e = 2 K v A:
//
//   all:    |m2 error|   <= (5 g + 4 K v) (m2 + n d^2)
//                           + 3 (sqrt(m2 n) e + n e^2)
//           |mean error| <= g (sqrt(m2 / n) + d) + e + u |mean|
//
// If the mean is 1000 deviations, d is 0.0012 deviations in float32 and e
// nothing: the variance is right to 100 u, where that of E[x^2] - E[x]^2 is off
// by 10^6 u and more.
absl::Status ComputeBatchMoments(const ActivationShape& shape, ConstBuffer x,
                                 VectorUnit unit, Scratch& scratch,
                                 std::byte* record);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_BATCH_MOMENTS_H_
