// A rank of the command `syncbn` on a GPU.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"

namespace lockstep::benchmarks {

// Makes the library's layer that SyncBN is compared with, on the stream of the
// given kernels.
using CreateLocalBatchNorm =
    std::function<absl::StatusOr<std::unique_ptr<BatchNorm>>(
        const BatchNormOptions&, CudaBatchNormKernels&)>;

// Has PyTorch take a turn. where: "cuda DEVICE RANK WORLD_SIZE SETS"; SETS is
// SetsBeyondCache of the layer.
using TakePeerTurn = std::function<absl::StatusOr<RankTurn>(
    const SyncBnRequest& request, const std::string& where)>;

// Returns the number of sets of tensors on which calls take turns, if a call
// touches `touched` bytes of one set. More than three times the cache is
// touched between two uses of the same memory. At least 2.
int SetsBeyondCache(int64_t touched, int64_t cache_bytes);

// Takes turns on one thread, and makes the rank's device that thread's current
// one. All calls of a turn are queued on one stream, with an event before each
// lap's passes (LayerMirror::Time). The host waits when all are queued. A step
// of a network is its batch norms only, forward and then backward. Keeps the
// memory of one layer shape, or of the network; the GPU's memory only until
// PyTorch's turn.
//
// Collective: every rank takes the same turns. Not thread safe. Errors: those
// of the groups, of layers and of memory. If the library or PyTorch does not
// support the request, that is not an error: turn.missing says why.
using TakeCudaTurn =
    std::function<absl::StatusOr<RankTurn>(const SyncBnRequest& request)>;

// The options of a rank on a GPU, beside its group.
struct SyncBnCudaRankOptions {
  GroupOptions group;
  int local_rank = 0;  // Among this host's ranks; chooses the GPU.
  CreateLocalBatchNorm create_local;
  TakePeerTurn take_peer = nullptr;  // Null: PyTorch is missing.
  // The inputs of the network's batch norms, in order, on one image.
  std::vector<ActivationShape> network = {};
};

// Splits an NCCL group off `group`, whose memory is the host's. Borrows
// `group`, in which the ranks also meet before each turn. Collective. Errors:
// the groups'; CudaStatus of the runtime's errors; kNotFound without a GPU.
absl::StatusOr<TakeCudaTurn> CreateSyncBnCudaRank(
    Communicator& group, SyncBnCudaRankOptions options);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
