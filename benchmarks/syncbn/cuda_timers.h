// Timers of a stream's work, and of the kernels and messages of a SyncBatchNorm
// on it.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_TIMERS_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_TIMERS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/cuda_handles.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::benchmarks {

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

// Kernels with an event of their stream before and after each. Borrows both.
class CudaTimedKernels : public BatchNormKernels {
 public:
  CudaTimedKernels(CudaBatchNormKernels& kernels, CallTiming& timing)
      : kernels_(kernels), timing_(timing) {}

  // Adds the times of the kernels since the last call to `timing`, once the
  // stream has done them. Errors, as of all below: CudaStatus of what the
  // runtime says, and those of the kernels.
  absl::Status Collect();

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes) override;
  absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                              std::byte* record) override;
  absl::StatusOr<int64_t> Merge(const StatisticsRecord& record,
                                const std::byte* gathered, int ranks,
                                const MergeOptions& options,
                                const RunningStatistics& running,
                                std::byte* saved) override;
  absl::Status UseRunning(const StatisticsRecord& record,
                          const RunningStatistics& running, double epsilon,
                          std::byte* saved) override;
  absl::Status Normalize(const NormalizeCall& call) override;
  absl::Status BackwardReduce(const BackwardCall& call, Buffer sums,
                              Buffer dweight, Buffer dbias) override;
  absl::Status BackwardInput(const BackwardCall& call, ConstBuffer sums,
                             Buffer dx, Buffer dresidual) override;

 private:
  struct Timed {
    TimedKernel kernel;
    CudaTimer timer;
  };

  absl::Status Time(TimedKernel kernel,
                    absl::FunctionRef<absl::Status()> enqueue);

  CudaBatchNormKernels& kernels_;
  CallTiming& timing_;
  std::vector<Timed> timed_;  // Of which the first `used_` are due.
  size_t used_ = 0;
};

// A group whose messages begin when the stream has done all before them, so
// that the time in a message has no kernel's in it. Borrows the group.
class DrainedCommunicator : public Communicator {
 public:
  DrainedCommunicator(Communicator& group, cudaStream_t stream)
      : group_(group), stream_(stream) {}

  int rank() const override { return group_.rank(); }
  int world_size() const override { return group_.world_size(); }
  absl::Status Run(const Collective& call) override;
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override;

 private:
  Communicator& group_;
  const cudaStream_t stream_;
};

// A layer that is done when its calls return: they wait for the stream, then
// call `done`.
class FinishedBatchNorm : public BatchNorm {
 public:
  FinishedBatchNorm(std::unique_ptr<BatchNorm> layer, cudaStream_t stream,
                    std::function<absl::Status()> done);

  int64_t SavedBytes(DataType type) const override;
  absl::Status Forward(const Forwards& buffers) override;
  absl::Status Backward(const Backwards& buffers,
                        absl::FunctionRef<void()> gradients_ready) override;

 private:
  absl::Status Finish() const;

  const std::unique_ptr<BatchNorm> layer_;
  const cudaStream_t stream_;
  const std::function<absl::Status()> done_;
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_TIMERS_H_
