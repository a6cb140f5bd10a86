// What a rank of the command `syncbn` does on a GPU, and the memory of its
// layers there.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/syncbn/cuda_timers.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/timers.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/nccl/cuda_handles.h"
#include "collectives/nccl/nccl_communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Copies on one stream, whose device is the calling thread's current one. Not
// thread safe. Errors: CudaStatus of what the runtime says.
class CudaLayerMirror : public LayerMirror {
 public:
  // Borrows the stream.
  explicit CudaLayerMirror(cudaStream_t stream) : stream_(stream) {}

  absl::Status Add(std::span<float> host) override;
  void* Of(const float* host) const override;
  absl::Status Upload() override;
  absl::Status Download() override;

 private:
  struct Part {
    std::span<float> host;
    DeviceMemory device;
  };

  const cudaStream_t stream_;
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
  absl::StatusOr<RankTurn> TimeLayer(const SyncBnRequest& request);
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
  std::optional<TimedCommunicator> timed_group_;
  std::optional<DrainedCommunicator> drained_group_;
  std::unique_ptr<SyncBnLayer> layer_;
  LayerSubjects subjects_;  // Of layer_'s channels.
};

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
