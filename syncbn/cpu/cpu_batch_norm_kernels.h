// Batch norm's operations on the CPU, and how accurate they are.
#ifndef LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_
#define LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// The operations of BatchNormKernels in host memory; each call returns when its
// work is done. Activations may have every type that IsActivationType accepts.
// Uses as many threads as oneDNN would (omp_get_max_threads of the calling
// thread).
//
// The result bits depend only on the shape and the values, not on the number of
// threads, the instruction set or the machine. (The bits of a NaN are not
// specified.)
//
// Keeps scratch space of at most some MB between calls, so it is not thread
// safe. Each rank has its own object for all of its layers. If scratch space
// cannot be allocated, a call returns kResourceExhausted; there are no other
// errors.
class CpuBatchNormKernels : public BatchNormKernels {
 public:
  // unit: at most BestVectorUnit().
  explicit CpuBatchNormKernels(VectorUnit unit = BestVectorUnit())
      : unit_(unit) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return AllocateHost(bytes);
  }

  // Reads x from memory once: each tile of at most 64 rows of 64 columns
  // (workspace.h) is passed over twice, the second time from the cache.
  //
  // Per column of a tile, in the type T that statistics have, with n <= 64
  // values and unit round-off u:
  //
  //   p = sum x / n,  s = sum (x - p),  q = sum (x - p)^2,
  //   and in float64  mean = p + s / n,  m2 = q - s^2 / n
  //
  // (the corrected two-pass algorithm, in Chan, Golub & LeVeque 1983). In exact
  // arithmetic these formulas are valid for any p. All later merges are in
  // float64. (A tile of blocked channels has 16 columns. It has more than 32
  // rows, unless it is the last of a plane of more than 64 pixels, or the last
  // of the batch.)
  //
  // Error. A sum has at most n / 4 + 2 <= 18 additions in a row, so with
  // g = 20 u (one more rounding each for x - p and its square) and an upper
  // bound A of |x|: p is off by at most d = g A, s by g sum |x - p|, q by
  // g sum (x - p)^2, where sum (x - p)^2 <= m2 + n d^2. To first order in u:
  //
  //   tile:   |m2 error|   <= 3 g (m2 + n d^2)
  //           |mean error| <= g (sqrt(m2 / n) + d)
  //
  // When n values are merged, the means' errors move the part of m2 that is
  // between tiles by at most 2 g m2. At most K <= n / 32 + 74 merges follow one
  // another, each with some roundings to v = 2^-53, and move means by e = 2 K v
  // A:
  //
  //   all:    |m2 error|   <= (5 g + 4 K v) (m2 + n d^2)
  //                           + 3 (sqrt(m2 n) e + n e^2)
  //           |mean error| <= g (sqrt(m2 / n) + d) + e + u |mean|
  //
  // If the mean is 1000 deviations, d is 0.0012 deviations in float32 and e is
  // negligible: the error of the variance is 100 u. The error of E[x^2] -
  // E[x]^2 would be 10^6 u or more.
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;

  // Sets per element, in the type T of the statistics,
  //
  //   y = (x - mean) * (inverse deviation * weight) + bias, + residual, ReLU
  //
  // with each operation rounded to T. A 16-bit y is rounded once more, to its
  // type.
  absl::Status Normalize(const NormalizeCall& call) override;

  // Works in one pass. Sums of a tile of 64 rows (workspace.h) are in the type
  // T of the statistics, with at most 18 additions in a row. All later sums are
  // in float64, and rounded to T at the end. To first order in the unit
  // round-off u, the sum of g is therefore off by at most 19 u sum |g|, and the
  // other sum by 22 u sum |g (x - mean)| * inverse deviation.
  absl::Status BackwardReduce(const BackwardCall& call) override;

  // Sets per element, with each operation rounded to T,
  //
  //   dx = a * ((g - b) - (x - mean) * c),  a = weight * inverse deviation,
  //   b = sums[0] / count,  c = sums[1] / count * inverse deviation
  absl::Status BackwardInput(const BackwardCall& call) override;

  // With blocks of channels, both functions finish some blocks before they
  // begin others. If a core's L2 cache holds one block of the whole batch, they
  // read their inputs from memory only once. Forward then moves B less than its
  // operations do; backward moves 2 B less, and B less for y. If the cache does
  // not hold a block, backward with ReLU keeps g, so that dy and y are not read
  // again: B less.
  absl::Status ForwardLocal(const NormalizeCall& call,
                            const MergeOptions& options,
                            std::byte* record) override;
  absl::Status BackwardLocal(
      const BackwardCall& call,
      absl::FunctionRef<void()> gradients_ready) override;

  // Merge, ReadCount and UseRunning cannot fail.
  absl::Status Merge(const MergeCall& call) override;
  absl::StatusOr<int64_t> ReadCount(const std::byte* saved) override;
  absl::Status UseRunning(const RunningCall& call) override;

 private:
  const VectorUnit unit_;
  Scratch scratch_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_
