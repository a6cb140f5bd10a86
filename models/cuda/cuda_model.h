// A Model that computes on a GPU, for trainers that keep parameters on the
// host.
#ifndef LOCKSTEP_MODELS_CUDA_CUDA_MODEL_H_
#define LOCKSTEP_MODELS_CUDA_CUDA_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "models/cuda/cuda_replica.h"
#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep {

// Creates a model whose parameters, gradients and buffers are in host memory,
// as those of a CpuReplica. Each step copies the parameters and the batch to
// the GPU and the gradients and buffers back, and waits: it shows what a GPU
// computes, not how fast it is. All gradients are announced at the end.
// SyncBatchNorm takes a group of host memory. device: as for cudaSetDevice.
// Errors: CudaReplica::Create's; kFailedPrecondition if there is no GPU.
absl::StatusOr<std::unique_ptr<Model>> CreateCudaModel(
    Network network, int device, const CudaReplicaOptions& options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_CUDA_MODEL_H_
