// How long a part of a stream's work takes on the GPU.
#ifndef LOCKSTEP_BENCHMARKS_CUDA_TIMER_H_
#define LOCKSTEP_BENCHMARKS_CUDA_TIMER_H_

#include <cuda_runtime.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/nccl/cuda_handles.h"

namespace lockstep {

// Two events. Of the current device. Errors: CudaStatus of what the runtime
// says.
class CudaTimer {
 public:
  static absl::StatusOr<CudaTimer> Create();

  // Calls `enqueue` between the two on `stream`. Errors: its own too.
  absl::Status Time(cudaStream_t stream,
                    absl::FunctionRef<absl::Status()> enqueue);

  // Of the last that was timed. Waits until it is done.
  absl::StatusOr<double> Seconds() const;

 private:
  CudaTimer() = default;

  Event begin_;
  Event end_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_CUDA_TIMER_H_
