// A layer's tensors in the memory of a GPU.
#ifndef LOCKSTEP_BENCHMARKS_CUDA_LAYER_MIRROR_H_
#define LOCKSTEP_BENCHMARKS_CUDA_LAYER_MIRROR_H_

#include <cuda_runtime.h>

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "benchmarks/layer_mirror.h"
#include "collectives/nccl/cuda_handles.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_CUDA_LAYER_MIRROR_H_
