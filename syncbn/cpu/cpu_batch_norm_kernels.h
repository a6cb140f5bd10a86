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

// The operations of BatchNormKernels in host memory; calls return when they are
// done. Activations may be of every type that IsActivationType names. Uses as
// many threads as oneDNN would (omp_get_max_threads of the calling thread).
//
// Bits depend on the shape and the values alone: not on the number of threads,
// the instruction set or the machine. (Which NaN a NaN is, is not specified.)
//
// Keeps scratch space from call to call, at most some MB, so it is not thread
// safe: each rank has its own, for all of its layers. Where there is no memory
// for scratch space, calls return kResourceExhausted; they have no other error.
class CpuBatchNormKernels : public BatchNormKernels {
 public:
  // unit: at most BestVectorUnit().
  explicit CpuBatchNormKernels(VectorUnit unit = BestVectorUnit())
      : unit_(unit) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override {
    return AllocateHost(bytes);
  }

  // Reads x from memory once: tiles of at most 64 rows of 64 columns
  // (workspace.h) are gone over twice, the second time out of the cache.
  //
  // Per column of a tile, in the type T that statistics have, with n <= 64
  // values and unit round-off u:
  //
  //   p = sum x / n,  s = sum (x - p),  q = sum (x - p)^2,
  //   and in float64  mean = p + s / n,  m2 = q - s^2 / n
  //
  // (the corrected two-pass algorithm, in Chan, Golub & LeVeque 1983).
  // In exact arithmetic that holds for any p. All else is merged in float64.
  // (A tile of blocked channels has 16 columns. It has more than 32 rows,
  // unless it is the last of a plane of more than 64 pixels, or of the batch.)
  //
  // Error. A sum has at most n / 4 + 2 <= 18 additions in a row, so with
  // g = 20 u (one more rounding each for x - p and its square) and an upper
  // bound A of |x|: p is off by at most d = g A, s by g sum |x - p|, q by
  // g sum (x - p)^2, where sum (x - p)^2 <= m2 + n d^2. To first order in u:
  //
  //   tile:   |m2 error|   <= 3 g (m2 + n d^2)
  //           |mean error| <= g (sqrt(m2 / n) + d)
  //
  // In what is merged of n values the means' errors move the part of m2 that is
  // between tiles by 2 g m2 at most, and K <= n / 32 + 74 merges in a row, each
  // with some roundings to v = 2^-53, move means by e = 2 K v A:
  //
  //   all:    |m2 error|   <= (5 g + 4 K v) (m2 + n d^2)
  //                           + 3 (sqrt(m2 n) e + n e^2)
  //           |mean error| <= g (sqrt(m2 / n) + d) + e + u |mean|
  //
  // If the mean is 1000 deviations, d is 0.0012 deviations in float32 and e
  // nothing: the variance is right to 100 u, where that of E[x^2] - E[x]^2 is
  // off by 10^6 u and more.
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;

  // Per element, in the type T of the statistics,
  //
  //   y = (x - mean) * (inverse deviation * weight) + bias, + residual, ReLU
  //
  // with each operation rounded to T, and y once more to a 16-bit type.
  absl::Status Normalize(const NormalizeCall& call) override;

  // In one pass. Sums of a tile of 64 rows (workspace.h) are in the type T of
  // the statistics, with at most 18 additions in a row; all else is in float64,
  // and rounded to T at the end. So sum of g is off by at most 19 u sum |g|,
  // and the other by 22 u sum |g (x - mean)| * inverse deviation, to first
  // order in the unit round-off u.
  absl::Status BackwardReduce(const BackwardCall& call) override;

  // Per element, each operation rounded to T,
  //
  //   dx = a * ((g - b) - (x - mean) * c),  a = weight * inverse deviation,
  //   b = sums[0] / count,  c = sums[1] / count * inverse deviation
  absl::Status BackwardInput(const BackwardCall& call) override;

  // With blocks of channels both finish some blocks before they begin others.
  // If a core's L2 cache holds one block of the whole batch, they read their
  // inputs from memory once: forward moves B less than its operations do,
  // backward 2 B less, and B for y. If the cache does not hold it, backward
  // with ReLU keeps g in place of reading dy and y again: B less.
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
  // The operations on some channels. The first range of a record starts it.
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record, ChannelRange range);
  static void Merge(const MergeCall& call, ChannelRange range);
  absl::Status Normalize(const NormalizeCall& call, ChannelRange range);
  // Writes g to `gradient`, if not empty. That takes ReLU, no conversion of
  // types, and tiles that lie in place; `gradient` may be dy's memory.
  absl::Status BackwardReduce(const BackwardCall& call, ChannelRange range,
                              const Buffer& gradient);
  absl::Status BackwardInput(const BackwardCall& call, ChannelRange range);

  const VectorUnit unit_;
  Scratch scratch_;
};

// What oneDNN's batch norm leaves to be done to each activation:
//
// y = normal, + residual if not empty, then max(0, .) if `relu`, with NaN for
// NaN. Nothing if there is neither. y may be the memory of either.
void AddAndRelu(const ConstBuffer& normal, const ConstBuffer& residual,
                bool relu, const Buffer& y);
// g = dy where not y <= 0, else 0. g may be dy's memory.
void MaskByRelu(const ConstBuffer& y, const ConstBuffer& dy, const Buffer& g);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_
