// What a rank of the command `syncbn` does on a GPU.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Makes the library's layer that SyncBN is compared with, on those kernels'
// stream.
using CreateLocalBatchNorm =
    std::function<absl::StatusOr<std::unique_ptr<BatchNorm>>(
        const BatchNormOptions&, CudaBatchNormKernels&)>;

// The GPUs that this process can use. Error: kFailedPrecondition if it has
// none.
absl::StatusOr<int> CountGpus();

// Takes turns on one thread, whose current device becomes the rank's: number
// rank % CountGpus(). Keeps the memory of one layer shape. Collective: every
// rank takes the same turns. Not thread safe. Errors: those of the groups, of
// layers and of memory; kUnimplemented for the network and PyTorch. That the
// library lacks the type is no error, but turn.missing.
using TakeCudaTurn =
    std::function<absl::StatusOr<RankTurn>(const SyncBnRequest& request)>;

// Collective: splits an NCCL group off `group`, whose memory is the host's and
// which is borrowed, also for meeting before each call. Errors: of the groups,
// and CudaStatus of what the runtime says.
absl::StatusOr<TakeCudaTurn> CreateSyncBnCudaRank(
    Communicator& group, const GroupOptions& options,
    CreateLocalBatchNorm create_local);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
