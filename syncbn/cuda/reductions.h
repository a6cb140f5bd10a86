// Reductions of batch norm on a GPU, from a batch to numbers per channel.
#ifndef LOCKSTEP_SYNCBN_CUDA_REDUCTIONS_H_
#define LOCKSTEP_SYNCBN_CUDA_REDUCTIONS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// The device memory of reductions on one stream: partial results, and the
// tickets by which the last block of a channel knows that it is the last. All
// memory lives as long as this object, since work that is enqueued, and graphs
// that captured a reduction, may use it.
class ReductionMemory {
 public:
  ReductionMemory() = default;
  // Allocates `bytes` for partial results.
  static absl::StatusOr<ReductionMemory> Create(int64_t bytes,
                                                cudaStream_t stream);

  // Makes room for `bytes` of partial results. The memory grows at least
  // twofold, so that all outgrown memory is less than the present one.
  absl::Status Reserve(int64_t bytes);

  std::byte* scratch() const {
    return scratch_.empty() ? nullptr : scratch_.back().get();
  }
  std::byte* tickets() const { return tickets_.get(); }

 private:
  DeviceMemory tickets_;  // kTickets (partition.h), 0 between reductions.
  std::vector<DeviceMemory> scratch_;  // The last is in use.
  int64_t scratch_bytes_ = 0;          // The size of the last.
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadReductionKernels();

// Enqueue CudaBatchNormKernels::ComputeMoments and BackwardReduce on a stream
// of the current device. merge: the call that merges the record of this rank
// alone, whose results are stored in place of `record`; null: none. Errors:
// kUnimplemented for other types and layouts than CudaBatchNormKernels
// supports; those of ReductionMemory::Reserve and of the launches.
absl::Status ReduceMomentsOnGpu(const ActivationShape& shape, ConstBuffer x,
                                std::byte* record,
                                const BatchNormKernels::MergeCall* merge,
                                ReductionMemory& memory, cudaStream_t stream);
absl::Status ReduceGradientsOnGpu(const BatchNormKernels::BackwardCall& call,
                                  ReductionMemory& memory, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_REDUCTIONS_H_
