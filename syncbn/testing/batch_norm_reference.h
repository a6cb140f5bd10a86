// Batch norm of one process over the batch of all ranks, in float64, from the
// formulas, with a bound on how far each number may be off that is computed in
// another precision and order. Shares no code with //syncbn.
//
// Forward, per channel, of n values x (over all samples and pixels):
//
//   mean = sum x / n,  M2 = sum (x - mean)^2,  v = M2 / n,
//   r = 1 / sqrt(v + epsilon),  z = (x - mean) r,
//   y = z weight + bias (+ residual, ReLU).
//
// Backward, of a loss with gradient dy, g = dy (where ReLU let it through):
//
//   dbias = S0 = sum g,  dweight = S1 = sum g z,
//   dx = weight r (g - S0 / n - z S1 / n),  dresidual = g,
//
// and dx = weight r g where mean and v are constants.
//
// Bounds. Let u be the unit round-off of the type that is computed in (with
// 2^-53 added for the reference itself), q that of the outputs if it is
// another, A = max |x|, R = max x - min x of the channel. None is tuned; each
// holds for sums in any order, with and without fused multiply-add, up to terms
// of order u^2, which the rounded-up numbers of operations more than cover
// (Higham, Accuracy and Stability, 2nd ed., lemma 3.1, has the sums).
//
//   mean   A sum of n terms errs by n u sum |x| / n <= n u A. One of merges of
//          means, mean_a + delta * share, errs at each of at most n - 1 merges
//          by u |mean| + 3 u |delta| and passes on what its parts err by in a
//          convex combination. So of any part of k values
//            e(k) <= (k + 4) u (A + 3 R),  and e = e(n).
//   M2     Two passes about a mean that is e off: n e^2, and n + 10 roundings.
//          Merging, M2_a + M2_b + w delta^2 with w = k_a k_b / (k_a + k_b),
//          delta errs by e(k_a + k_b) = (k_a + k_b) t at most (t = e / n), so
//          M2 by sum 2 w |delta| (k_a + k_b) t; by Cauchy and Schwarz, with
//          sum w delta^2 = M2 and sum k_a k_b = n (n - 1) / 2 over any tree,
//            <= 2 t sqrt(M2) sqrt(n^3 / 2) = e sqrt(2 n M2),
//          and by n e^2 for the square. Together
//            e2 = e sqrt(2 n M2) + n e^2,  E2 = e2 + (n + 10) u (M2 + e2).
//   r      its value at v +- (E2 / n + 2 u v), and 4 roundings. v is never
//          below 0.
//   y      8 roundings of |weight| r (|x| + |mean|) + |bias| + |residual|,
//          which allows x * scale + shift; |weight| (e r + |x - mean| e_r); and
//          q |y| for the last rounding. ReLU adds nothing.
//   S0     n u sum |g|.
//   S1     sum |g| e_z + (n + 6) u sum |g| |x - mean| r, where
//          e_z = e r + |x - mean| e_r.
//   dx     sum by sum: |weight| (e_r t + r (e_S0 / n + e_z |S1| / n +
//          |z| e_S1 / n) + 8 u r p), with t = |g| + |S0| / n + |z| |S1| / n,
//          and p the same with (|x| + |mean|) r for |z|; and q |dx|.
//
// Running statistics: (1 - w) old + w batch, 6 roundings and w times the
// batch's bound. Where r, S0 or S1 stand in a bound they are taken as large as
// theirs lets them be.
#ifndef LOCKSTEP_SYNCBN_TESTING_BATCH_NORM_REFERENCE_H_
#define LOCKSTEP_SYNCBN_TESTING_BATCH_NORM_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/bounded.h"
#include "base/data_types.h"

namespace lockstep {

// Unit round-offs of what computes and of what it gives.
struct Precision {
  double unit = 0;             // u, without the reference's own.
  double output_unit = 0;      // q; 0 where outputs are of the same type.
  double output_smallest = 0;  // Absolute: half of the least positive output.
};

// Of activations of `type` and statistics of StatisticsTypeOf it.
Precision PrecisionOf(DataType type);

struct ReferenceLayer {
  int64_t channels = 1;
  int64_t hw = 1;
  double epsilon = 0;
  bool relu = false;
  std::vector<double> weight;  // [c]; 1 in a layer that is not affine.
  std::vector<double> bias;    // [c]; 0 likewise.
};

// One rank's, all [n, c, hw].
struct ReferenceBatch {
  int64_t n = 0;
  std::vector<double> x;
  std::vector<double> residual;  // Or empty.
  std::vector<double> dy;
};

// Of each channel.
struct ReferenceStatistics {
  // `constants`: mean and variance do not depend on x; count is then 0.
  bool constants = false;
  int64_t count = 0;
  Bounded mean{0};
  Bounded m2{0};  // Of constants: the variance.
  Bounded inverse_deviation{0};
};

// Of all ranks' values together.
ReferenceStatistics StatisticsOf(const ReferenceLayer& layer,
                                 std::span<const ReferenceBatch> ranks,
                                 const Precision& precision);
// Of evaluation.
ReferenceStatistics ConstantStatistics(const ReferenceLayer& layer,
                                       std::span<const double> mean,
                                       std::span<const double> variance,
                                       const Precision& precision);

// y of one rank before ReLU: what tells which elements ReLU may or may not let
// through, |value| <= bound.
Bounded ReferenceBeforeRelu(const ReferenceLayer& layer,
                            const ReferenceStatistics& statistics,
                            const ReferenceBatch& batch,
                            const Precision& precision);

struct ReferenceResult {
  std::vector<Bounded> y;   // By rank.
  std::vector<Bounded> dx;  // Likewise.
  // Likewise: g, which is exact.
  std::vector<std::vector<double>> dresidual;
  Bounded dweight{0};  // The sum over all ranks.
  Bounded dbias{0};
};

// The statistics are those of all of `ranks` together, or constants. dy must be
// 0 where ReferenceBeforeRelu cannot tell, if the layer has ReLU.
ReferenceResult ReferenceOf(const ReferenceLayer& layer,
                            const ReferenceStatistics& statistics,
                            std::span<const ReferenceBatch> ranks,
                            const Precision& precision);

// What a batch makes of the running statistics.
struct ReferenceRunning {
  Bounded mean{0};
  Bounded variance{0};
};

// `weight` is the batch's. An empty batch changes nothing.
ReferenceRunning EnterRunning(std::span<const double> mean,
                              std::span<const double> variance, double weight,
                              bool unbiased, const ReferenceStatistics& batch,
                              const Precision& precision);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_BATCH_NORM_REFERENCE_H_
