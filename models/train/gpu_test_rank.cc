#include "models/train/gpu_test_rank.h"

#include <cuda_runtime.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "models/cuda/cuda_replica.h"
#include "models/networks/network.h"

namespace lockstep {

absl::StatusOr<GpuTestRank> CreateGpuTestRank(
    Communicator& control, const Network& network,
    const CudaReplicaOptions& options) {
  GpuTestRank rank;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(control.rank()), "cudaSetDevice"));
  LOCKSTEP_ASSIGN_OR_RETURN(rank.compute, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(rank.communication, MakeUrgentStream());
  LOCKSTEP_ASSIGN_OR_RETURN(rank.another, MakeUrgentStream());
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> owned,
                            control.Split(/*color=*/0, /*key=*/0));
  NcclOptions nccl;
  nccl.device = control.rank();
  nccl.stream = rank.communication.get();
  LOCKSTEP_ASSIGN_OR_RETURN(rank.gradients,
                            NcclCommunicator::Create(std::move(owned), nccl));
  LOCKSTEP_ASSIGN_OR_RETURN(
      rank.norms, rank.gradients->SplitOnStream(/*color=*/0, /*key=*/0,
                                                rank.compute.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(
      rank.replica, CudaReplica::Create(network, rank.compute.get(), options));
  if (control.world_size() > 1) {
    rank.replica->ConvertSyncBatchNorm(*rank.norms);
  }
  return rank;
}

}  // namespace lockstep
