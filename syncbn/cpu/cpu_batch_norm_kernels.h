// Batch norm's operations on the CPU.
#ifndef LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_
#define LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/reduction_kernels.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// Memory is host memory; calls return when they are done. Activations may be of
// every type that IsActivationType names. Uses as many threads as oneDNN would
// (omp_get_max_threads of the calling thread).
//
// Bits depend on the shape and the values alone: not on the number of threads,
// the instruction set or the machine. (But which NaN a NaN is, is not said.)
// The accuracy of sums is written in batch_moments.h and backward.h.
//
// Keeps scratch space from call to call, at most some MB, so it is not thread
// safe: each rank has its own, for all of its layers.
class CpuBatchNormKernels : public BatchNormKernels {
 public:
  // unit: at most BestVectorUnit().
  explicit CpuBatchNormKernels(VectorUnit unit = BestVectorUnit())
      : unit_(unit) {}

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override;

  // These return kResourceExhausted where there is no memory for scratch space,
  // and no other error.
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override;
  absl::Status BackwardInput(const BackwardCall& call, ConstBuffer sums,
                             Buffer dx, Buffer dresidual) override;

  // Cannot fail.
  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override;
  absl::Status UseRunning(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved) override;

 private:
  const VectorUnit unit_;
  Scratch scratch_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_CPU_BATCH_NORM_KERNELS_H_
