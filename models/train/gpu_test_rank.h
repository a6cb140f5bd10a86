// The parts of a rank on a GPU, for tests that put them together.
#ifndef LOCKSTEP_MODELS_TRAIN_GPU_TEST_RANK_H_
#define LOCKSTEP_MODELS_TRAIN_GPU_TEST_RANK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "models/cuda/cuda_replica.h"
#include "models/networks/network.h"

namespace lockstep {

// Streams, a replica and groups, as GpuRankSteps connects them. A test can
// connect them wrongly, which is a planted bug.
struct GpuTestRank {
  Stream compute;
  Stream communication;                         // Urgent.
  Stream another;                               // Urgent. No part uses it.
  std::unique_ptr<CudaReplica> replica;         // On `compute`.
  std::unique_ptr<NcclCommunicator> gradients;  // On `communication`.
  std::unique_ptr<NcclCommunicator> norms;      // On `compute`.
};

// Returns the parts of a rank on device control.rank(), which becomes the
// current device. Several ranks have SyncBatchNorm. Borrows nothing. Every rank
// must make the call. Errors: those of CUDA, NCCL and CudaReplica.
absl::StatusOr<GpuTestRank> CreateGpuTestRank(
    Communicator& control, const Network& network,
    const CudaReplicaOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GPU_TEST_RANK_H_
