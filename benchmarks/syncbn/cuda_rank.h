// What a rank of the command `syncbn` does on a GPU.
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

// Makes the library's layer that SyncBN is compared with, on those kernels'
// stream.
using CreateLocalBatchNorm =
    std::function<absl::StatusOr<std::unique_ptr<BatchNorm>>(
        const BatchNormOptions&, CudaBatchNormKernels&)>;

// Has PyTorch take a turn; where: "cuda DEVICE RANK WORLD_SIZE SETS", the last
// being SetsBeyondCache of the layer.
using TakePeerTurn = std::function<absl::StatusOr<RankTurn>(
    const SyncBnRequest& request, const std::string& where)>;

// How many sets of tensors calls take turns on, where a call touches `touched`
// bytes of one: so many that more than three times the cache is touched between
// two uses of the same memory. At least 1.
int SetsBeyondCache(int64_t touched, int64_t cache_bytes);

// Takes turns on one thread, whose current device becomes the rank's. All calls
// of a turn are queued on one stream, with an event before each lap's passes
// (LayerMirror::Time); the host waits when all are queued. Of a network, a step
// is its batch norms alone, forward and then backward. Keeps the memory of one
// layer shape, or of the network, the GPU's until PyTorch's turn. Collective:
// every rank takes the same
// turns. Not thread safe. Errors: those of the groups, of layers and of memory.
// What the library or PyTorch lacks is no error, but turn.missing.
using TakeCudaTurn =
    std::function<absl::StatusOr<RankTurn>(const SyncBnRequest& request)>;

// What a rank on a GPU needs beside its group.
struct SyncBnCudaRankOptions {
  GroupOptions group;
  int local_rank = 0;  // Among the ranks of this host: it decides the GPU.
  CreateLocalBatchNorm create_local;
  TakePeerTurn take_peer = nullptr;  // Null: PyTorch is missing.
  // The inputs of the network's batch norms, in order, on one image.
  std::vector<ActivationShape> network = {};
};

// Collective: splits an NCCL group off `group`, whose memory is the host's and
// which is borrowed, also for meeting before each turn. Errors: of the groups,
// CudaStatus of what the runtime says; kNotFound without a GPU.
absl::StatusOr<TakeCudaTurn> CreateSyncBnCudaRank(
    Communicator& group, SyncBnCudaRankOptions options);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_CUDA_RANK_H_
