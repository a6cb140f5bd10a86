// Batch norm of one process over the batch of all ranks, in float64, computed
// from the formulas. Each number has a bound on the error of computing it in
// another precision and order. This code shares nothing with //syncbn.
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
// and dx = weight r g if mean and v are constants.
//
// Bounds. Let u be the unit round-off of the type of the arithmetic, with 2^-53
// added for the reference itself. Let q be the unit round-off of the outputs,
// if their type is another. Let A = max |x| and R = max x - min x of the
// channel. No bound is tuned. Each is valid for sums in any order, with and
// without fused multiply-add, up to terms of order u^2. The counts of
// operations are rounded up, which more than covers these terms. (Sums: Higham,
// Accuracy and Stability, 2nd ed., lemma 3.1.)
//
//   mean   A sum of n terms errs by n u sum |x| / n <= n u A. A mean that is
//          merged, mean_a + delta * share, errs at each of at most n - 1 merges
//          by u |mean| + 3 u |delta|. It also passes on the errors of its
//          parts, as a convex combination. For any part of k values, therefore,
//            e(k) <= (k + 4) u (A + 3 R),  and e = e(n).
//   M2     Two passes about a mean that is e off: n e^2, and n + 10 roundings.
//          Merging computes M2_a + M2_b + w delta^2 with
//          w = k_a k_b / (k_a + k_b). delta errs by at most
//          e(k_a + k_b) = (k_a + k_b) t, with t = e / n. M2 then errs by
//          sum 2 w |delta| (k_a + k_b) t. By Cauchy and Schwarz, with
//          sum w delta^2 = M2 and sum k_a k_b = n (n - 1) / 2 over any tree,
//          this is <= 2 t sqrt(M2) sqrt(n^3 / 2) = e sqrt(2 n M2).
//          The square adds n e^2. Together
//            e2 = e sqrt(2 n M2) + n e^2,  E2 = e2 + (n + 10) u (M2 + e2).
//   r      The value at v +- (E2 / n + 2 u v), and 4 roundings. v is never
//          below 0.
//   y      8 roundings of |weight| r (|x| + |mean|) + |bias| + |residual|,
//          which allows x * scale + shift; |weight| (e r + |x - mean| e_r); and
//          q |y| for the last rounding. ReLU adds nothing.
//   S0     n u sum |g|.
//   S1     sum |g| e_z + (n + 6) u sum |g| |x - mean| r, where
//          e_z = e r + |x - mean| e_r.
//   dx     Sum by sum: |weight| (e_r t + r (e_S0 / n + e_z |S1| / n +
//          |z| e_S1 / n) + 8 u r p), with t = |g| + |S0| / n + |z| |S1| / n,
//          and p the same with (|x| + |mean|) r for |z|; and q |dx|.
//
// Running statistics: (1 - w) old + w batch, 6 roundings and w times the
// batch's bound. If r, S0 or S1 appear in a bound, they are taken as large as
// their own bounds allow.
#ifndef LOCKSTEP_SYNCBN_TESTING_BATCH_NORM_REFERENCE_H_
#define LOCKSTEP_SYNCBN_TESTING_BATCH_NORM_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/bounded.h"
#include "base/data_types.h"

namespace lockstep {

// The unit round-offs of the arithmetic and of its outputs.
struct Precision {
  double unit = 0;             // u, without the reference's own error.
  double output_unit = 0;      // q; 0 if outputs have the same type.
  double output_smallest = 0;  // Absolute: half of the least positive output.
};

// Returns the precision for activations of `type` and statistics of
// StatisticsTypeOf(type).
Precision PrecisionOf(DataType type);

struct ReferenceLayer {
  int64_t channels = 1;
  int64_t hw = 1;
  double epsilon = 0;
  bool relu = false;
  std::vector<double> weight;  // [c]; 1 if the layer is not affine.
  std::vector<double> bias;    // [c]; 0 if the layer is not affine.
};

// One rank's batch; each array is [n, c, hw].
struct ReferenceBatch {
  int64_t n = 0;
  std::vector<double> x;
  std::vector<double> residual;  // May be empty.
  std::vector<double> dy;
};

// The statistics of each channel.
struct ReferenceStatistics {
  // If true, mean and variance do not depend on x, and count is 0.
  bool constants = false;
  int64_t count = 0;
  Bounded mean{0};
  Bounded m2{0};  // If `constants`: the variance.
  Bounded inverse_deviation{0};
};

// Returns the statistics of all ranks' values together.
ReferenceStatistics StatisticsOf(const ReferenceLayer& layer,
                                 std::span<const ReferenceBatch> ranks,
                                 const Precision& precision);
// Returns the statistics of evaluation.
ReferenceStatistics ConstantStatistics(const ReferenceLayer& layer,
                                       std::span<const double> mean,
                                       std::span<const double> variance,
                                       const Precision& precision);

// Returns y of one rank before ReLU. If |value| <= bound, ReLU may or may not
// let the element through.
Bounded ReferenceBeforeRelu(const ReferenceLayer& layer,
                            const ReferenceStatistics& statistics,
                            const ReferenceBatch& batch,
                            const Precision& precision);

struct ReferenceResult {
  std::vector<Bounded> y;   // One for each rank.
  std::vector<Bounded> dx;  // One for each rank.
  // One for each rank: g, which is exact.
  std::vector<std::vector<double>> dresidual;
  Bounded dweight{0};  // The sum over all ranks.
  Bounded dbias{0};
};

// Returns the result for the statistics of all of `ranks` together, or for
// constants. If the layer has ReLU, dy must be 0 for the elements for which
// ReferenceBeforeRelu cannot tell whether ReLU lets them through.
ReferenceResult ReferenceOf(const ReferenceLayer& layer,
                            const ReferenceStatistics& statistics,
                            std::span<const ReferenceBatch> ranks,
                            const Precision& precision);

// The running statistics after a batch has entered them.
struct ReferenceRunning {
  Bounded mean{0};
  Bounded variance{0};
};

// Returns the running statistics after the batch has entered with the weight
// `weight`. An empty batch changes nothing.
ReferenceRunning EnterRunning(std::span<const double> mean,
                              std::span<const double> variance, double weight,
                              bool unbiased, const ReferenceStatistics& batch,
                              const Precision& precision);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_TESTING_BATCH_NORM_REFERENCE_H_
