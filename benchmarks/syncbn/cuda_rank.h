// What a rank of the command `syncbn` does on a GPU: the memory of its layers
// there, and timers of a stream's work.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "syncbn/batch_norm.h"
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
class CudaTimedKernels : public TimedKernels {
 public:
  CudaTimedKernels(CudaBatchNormKernels& kernels, CallTiming& timing)
      : TimedKernels(kernels, timing), stream_(kernels.stream()) {}

  // Adds the times of the kernels since the last call to `timing`, once the
  // stream has done them. Errors: CudaStatus of what the runtime says.
  absl::Status Collect();

 protected:
  // Errors: CudaStatus of what the runtime says, and the kernel's.
  absl::Status Time(TimedKernel kernel,
                    absl::FunctionRef<absl::Status()> run) override;

 private:
  struct Timed {
    TimedKernel kernel;
    CudaTimer timer;
  };

  const cudaStream_t stream_;
  std::vector<Timed> timed_;  // Of which the first `used_` are due.
  size_t used_ = 0;
};

// Copies on one stream, whose device is the calling thread's current one. Not
// thread safe. Errors: CudaStatus of what the runtime says.
class CudaLayerMirror : public LayerMirror {
 public:
  // Borrows the stream, and the kernels, whose times Finish collects.
  CudaLayerMirror(cudaStream_t stream, CudaTimedKernels& kernels)
      : stream_(stream), kernels_(kernels) {}

  absl::Status Add(std::span<float> host) override;
  void* Of(const float* host) const override;
  absl::Status Upload() override;
  absl::Status Download() override;
  absl::Status Finish() override;

 private:
  struct Part {
    std::span<float> host;
    DeviceMemory device;
  };

  absl::Status Copy(cudaMemcpyKind kind, const char* what);

  const cudaStream_t stream_;
  CudaTimedKernels& kernels_;
  std::vector<Part> parts_;
};

// Makes the library's layer that SyncBN is compared with, on those kernels'
// stream.
using CreateLocalBatchNorm =
    std::function<absl::StatusOr<std::unique_ptr<BatchNorm>>(
        const BatchNormOptions&, CudaBatchNormKernels&)>;

// The GPUs that this process can use. Error: kFailedPrecondition if it has
// none.
absl::StatusOr<int> CountGpus();

// Takes turns on one thread, whose current device becomes the rank's: number
// rank % CountGpus(). Keeps the memory of one layer shape. Not thread safe.
class SyncBnCudaRank {
 public:
  // Collective: splits an NCCL group off `group`, whose memory is the host's
  // and which is borrowed, also for meeting before each call. Errors: of the
  // groups, and CudaStatus of what the runtime says.
  static absl::StatusOr<std::unique_ptr<SyncBnCudaRank>> Create(
      Communicator& group, const GroupOptions& options,
      CreateLocalBatchNorm create_local);

  // Collective: every rank takes the same turns. Errors: those of the groups,
  // of layers and of memory; kUnimplemented for the network and PyTorch. That
  // the library lacks the type is no error, but turn.missing.
  absl::StatusOr<RankTurn> Take(const SyncBnRequest& request);

 private:
  SyncBnCudaRank(Communicator& group, CreateLocalBatchNorm create_local);

  absl::Status Start(const GroupOptions& options);
  absl::Status UseLayer(const LayerSpec& spec);
  absl::StatusOr<RankTurn> TimeMessages(const SyncBnRequest& request);
  absl::StatusOr<RankTurn> TimeCopies(const SyncBnRequest& request);

  Communicator& group_;
  const CreateLocalBatchNorm create_local_;
  CallTiming timing_;
  std::string gpu_;  // Its name.
  Stream stream_;
  std::unique_ptr<NcclCommunicator> nccl_;
  std::unique_ptr<CudaBatchNormKernels> kernels_;
  std::optional<CudaTimedKernels> timed_kernels_;
  // Its messages begin when the stream has done all before them, so that the
  // time in a message has no kernel's in it.
  std::optional<TimedCommunicator> timed_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;  // Of layer_'s channels.
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
